"""The pretend device itself: what torch does elsewhere, what it counts, and what it rejects."""

import copy
import io
import pickle
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from tests.helpers.learning import small_net
from tests.pretend import PretendDevice, pretend_device
from trainkit.errors import DeviceError


def grid(device: Any) -> torch.Tensor:
    return torch.arange(12.0).view(3, 4).to(device)


# ---- torch as elsewhere ----


def test_a_loaded_device_is_torchs_accelerator_and_loaded_once(pretend: PretendDevice) -> None:
    assert pretend.device == torch.device("pretend:0") == torch.empty(0, device="pretend").device
    assert torch.accelerator.current_accelerator() == torch.device("pretend")
    assert PretendDevice.load() is pretend
    assert PretendDevice.missing() is None
    with pytest.raises(DeviceError, match=r"call PretendDevice\.load"):
        PretendDevice()


def test_a_process_with_an_accelerator_or_another_backend_says_what_to_do(
    pretend: PretendDevice, monkeypatch: pytest.MonkeyPatch
) -> None:
    load = pretend_device.load_library.__wrapped__
    monkeypatch.setattr(torch.accelerator, "current_accelerator", lambda check_available: torch.device("cuda"))
    with pytest.raises(DeviceError, match=r"without an accelerator, .* got cuda: hide it, for CUDA by CUDA_VISIBLE"):
        load()
    monkeypatch.setattr(torch.accelerator, "current_accelerator", lambda check_available: None)
    with pytest.raises(DeviceError, match="PrivateUse1 backend is 'pretend' already: use another process"):
        load()


def test_a_missing_compiler_and_broken_headers_are_errors_that_say_so(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(shutil, "which", lambda name: None)
    with pytest.raises(DeviceError, match=r"needs a C\+\+ compiler, .*: install one, or set CXX"):
        pretend_device.build()
    monkeypatch.setattr(shutil, "which", lambda name: sys.executable)  # which compiles no C++
    with pytest.raises(DeviceError, match="did not compile by"):
        pretend_device.build()
    assert not list(tmp_path.rglob("*.so"))


OPERATIONS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "transposed": lambda x: x.t()[1:].contiguous(),
    "view in place": lambda x: x.view(4, 3).transpose(0, 1).add_(1),
    "masked": lambda x: x[x > 3],
    "indexed by the cpu": lambda x: x[torch.tensor([0, 2])],
    "resized out": lambda x: torch.mul(x, 2, out=torch.empty(0, device=x.device)),
    "sorted": lambda x: torch.cat([x, x]).sort(dim=1, descending=True).values,
    "index put": lambda x: x.clone().index_put_((torch.tensor([0, 2]),), torch.tensor(5.0)),
    "split": lambda x: torch.stack(torch.split(x, 2, dim=1)),
    "convolution": lambda x: nn.functional.conv2d(x.view(1, 1, 3, 4), x.view(1, 1, 3, 4)),
    "product and scalar": lambda x: x.softmax(dim=1) @ x.t() + torch.tensor(2.0),
    "bfloat16": lambda x: x.to(torch.bfloat16).float().cumsum(0),
    "storage": lambda x: torch.empty(2, device=x.device).set_(x.untyped_storage(), 3, (2, 2)),
    "resized": lambda x: x.clone().resize_(2, 2),
    "mean loss": lambda x: nn.functional.mse_loss(x, x.flip(0)) + nn.functional.smooth_l1_loss(x, x.flip(0)),
}


@pytest.mark.parametrize("operation", OPERATIONS.values(), ids=OPERATIONS)
def test_operations_have_the_cpus_results(operation: Any, pretend: PretendDevice) -> None:
    result = operation(grid(pretend.device))

    assert result.device == pretend.device
    torch.testing.assert_close(result.cpu(), operation(grid("cpu")), rtol=0, atol=0)


@pytest.mark.parametrize("options", [{}, {"foreach": True}, {"fused": True}, {"capturable": True}], ids=str)
def test_adam_has_the_cpus_bits(options: dict[str, bool], pretend: PretendDevice) -> None:
    def trained(device: Any, **given: Any) -> list[torch.Tensor]:
        net = small_net().to(device)
        optimizer = torch.optim.Adam(net.parameters(), lr=0.1, **given)
        for _ in range(4):
            optimizer.zero_grad()
            net(grid(device)).square().mean().backward()
            optimizer.step()
        return [parameter.detach().cpu() for parameter in net.parameters()]

    on_the_cpu = trained("cpu", **{name: on for name, on in options.items() if name != "capturable"})
    tolerance = 1e-3 if options.get("capturable") else 0.0  # the CPU has none, and computes in another order
    torch.testing.assert_close(trained(pretend.device, **options), on_the_cpu, rtol=tolerance, atol=tolerance)


def test_generators_draw_the_cpus_numbers_and_keep_their_state(pretend: PretendDevice) -> None:
    generator = torch.Generator(pretend.device).manual_seed(3)
    state = generator.get_state()
    drawn = torch.randn(5, generator=generator, device=pretend.device)

    torch.testing.assert_close(drawn.cpu(), torch.randn(5, generator=torch.Generator().manual_seed(3)))
    generator.set_state(state)
    assert torch.equal(torch.randn(5, generator=generator, device=pretend.device), drawn)


def test_draws_without_a_generator_leave_the_cpus_alone(pretend: PretendDevice) -> None:
    before = torch.get_rng_state()
    torch.rand(3, device=pretend.device)

    assert torch.equal(torch.get_rng_state(), before)


@pytest.mark.global_rng
def test_fork_rng_restores_the_default_generator(pretend: PretendDevice) -> None:
    def draw() -> list[float]:
        return torch.rand(3, device=pretend.device).tolist()

    torch.manual_seed(1)  # noqa: TID251  # the default generator is what is tested
    with torch.random.fork_rng():
        first = draw()
        assert draw() != first
    assert draw() == first
    torch.manual_seed(1)  # noqa: TID251  # the default generator is what is tested
    assert draw() == first


def test_tensors_are_copied_pickled_saved_and_loaded(pretend: PretendDevice) -> None:
    tensor, file = grid(pretend.device), io.BytesIO()
    torch.save({"x": tensor}, file)
    loaded = {where: torch.load(io.BytesIO(file.getvalue()), map_location=where)["x"] for where in ("cpu", "pretend")}

    assert {where: one.device.type for where, one in loaded.items()} == {"cpu": "cpu", "pretend": "pretend"}
    for one in (*loaded.values(), pickle.loads(pickle.dumps(tensor)), copy.deepcopy(tensor)):  # noqa: S301 - our own
        assert torch.equal(one.cpu(), tensor.cpu())
        assert one.data_ptr() != tensor.data_ptr()


def test_autocast_lowers_products_and_keeps_sums(pretend: PretendDevice) -> None:
    net = small_net().to(pretend.device)
    with torch.autocast("pretend", dtype=torch.bfloat16):
        output = net(grid(pretend.device))

        assert (output.dtype, output.sum().dtype, output.exp().dtype) == (torch.bfloat16, torch.float32, torch.float32)
    output.float().sum().backward()
    assert all(parameter.grad.dtype == torch.float32 for parameter in net.parameters() if parameter.grad is not None)


def test_pinned_memory_streams_and_events_are_there(pretend: PretendDevice) -> None:
    pinned = torch.empty(8, pin_memory=True)
    assert (pinned.is_pinned(), pinned[3:].is_pinned(), torch.empty(8).is_pinned()) == (True, True, False)
    stream = torch.Stream(pretend.device)
    with stream:
        assert torch.accelerator.current_stream() == stream
    assert torch.accelerator.current_stream() != stream
    event = torch.Event(pretend.device)
    event.record()
    assert event.query()
    torch.accelerator.empty_cache()


@pytest.mark.parametrize(
    "operation",
    [
        lambda x, y: x + y,
        lambda x, y: x @ y.t(),
        lambda x, y: nn.functional.linear(x, y),
        lambda x, y: torch.cat([x, y]),
        lambda x, y: nn.functional.conv2d(x.view(1, 1, 3, 4), y.view(1, 1, 3, 4)),
        lambda x, y: x.sum(dim=1).add_(y.sum(dim=1)),
    ],
    ids=["sum", "product", "linear", "cat", "convolution", "in place"],
)
def test_operations_that_mix_devices_are_rejected(operation: Any, pretend: PretendDevice) -> None:
    for one, other in ((pretend.device, "cpu"), ("cpu", pretend.device)):
        given = grid(one), grid(other)
        with pytest.raises(RuntimeError, match="Expected all tensors to be on the same device"):
            operation(*given)


def test_tensors_are_not_arrays(pretend: PretendDevice) -> None:
    for convert in (np.asarray, torch.Tensor.numpy, lambda x: np.testing.assert_array_equal(x, x)):
        with pytest.raises(TypeError, match="can't convert pretend:0 device type tensor to numpy"):
            convert(grid(pretend.device))


# ---- what is counted ----


def test_operations_copies_and_waits_are_counted(pretend: PretendDevice) -> None:
    x, pinned = grid(pretend.device), torch.ones(4).pin_memory()
    with pretend.counting() as counts:
        x.mul(2).mul(3).view(-1)[1:].add(1)
        pinned.to(pretend.device, non_blocking=True)
    x.mul(2)
    assert counts.operations == {"aten::mul": 2, "aten::add": 1}
    assert (counts.waits, counts.copies_to_device, counts.copies_to_cpu) == (0, 1, 0)


WAITS: list[tuple[str, Callable[[torch.Tensor], Any]]] = [
    ("aten::_local_scalar_dense", lambda x: x.sum().item()),
    ("aten::_local_scalar_dense", lambda x: bool(x.sum() > 3)),
    ("aten::nonzero", lambda x: x.nonzero()),
    ("aten::nonzero", lambda x: x[x > 3]),
    ("aten::copy_", lambda x: x.cpu()),
    ("aten::copy_", lambda x: x.tolist()),
    ("aten::copy_", lambda x: torch.ones(3).to(x.device)),
    ("aten::copy_", lambda x: torch.tensor(1.0, device=x.device)),
    ("aten::equal", lambda x: torch.equal(x, x)),
    ("synchronize", lambda x: torch.accelerator.synchronize()),
    ("synchronize", lambda x: torch.accelerator.current_stream(x.device).synchronize()),
]


@pytest.mark.parametrize(("name", "wait"), WAITS, ids=range(len(WAITS)))
def test_a_wait_is_counted_with_its_line_and_rejected_in_a_capture(
    name: str, wait: Any, pretend: PretendDevice
) -> None:
    x = grid(pretend.device)
    with pretend.counting() as counts:
        wait(x)
    assert counts.waits == 1
    ((operation, line),) = counts.lines
    assert operation == name
    assert line.startswith(f"{__file__}:")
    with (
        pytest.raises(DeviceError, match=rf"a CUDA graph cannot record {name} .*, called at {__file__}:"),
        pretend.capturing(),
    ):
        wait(x)


@pytest.mark.parametrize(
    "work",
    [
        lambda x: torch.empty(8, pin_memory=True),
        lambda x: torch.ones(3).to(x.device, non_blocking=True),
    ],
    ids=["new pinned memory", "a copy from memory that is not pinned"],
)
def test_a_capture_rejects_what_cuda_does_though_nothing_waits(work: Any, pretend: PretendDevice) -> None:
    x = grid(pretend.device)
    with pretend.counting() as counts:
        work(x)
    assert counts.waits == 0
    with pytest.raises(DeviceError, match="a CUDA graph cannot record"), pretend.capturing():
        work(x)


def test_a_capture_lets_everything_else_run(pretend: PretendDevice) -> None:
    pinned, net = torch.ones(2, 4).pin_memory(), small_net().to(pretend.device)
    with pretend.capturing():
        net(pinned.to(pretend.device, non_blocking=True)).square().mean().backward()
    assert all(parameter.grad is not None for parameter in net.parameters())


def test_a_capture_reports_a_rejection_that_its_code_caught(pretend: PretendDevice) -> None:
    x = grid(pretend.device)
    inside = pytest.raises(RuntimeError, match="not permitted when stream is capturing")
    with pytest.raises(DeviceError, match="_local_scalar_dense"), pretend.capturing(), inside:
        x.sum().item()


def test_other_errors_pass_a_capture(pretend: PretendDevice) -> None:
    with pytest.raises(RuntimeError, match="own"), pretend.capturing():
        raise RuntimeError("own")


# ---- delayed copies ----


def test_the_log_has_the_order_of_operations_and_the_number_of_each_event(pretend: PretendDevice) -> None:
    x = grid(pretend.device)
    with pretend.counting() as counts:
        event = torch.accelerator.current_stream().record_event()
        x.add_(1)
        event.synchronize()
        x.sum().item()
    *log, last = [entry for entry in counts.log if "event" not in entry]
    assert (log, last) == (["operation aten::add", "operation aten::sum"], "wait aten::_local_scalar_dense")
    recorded, waited = (entry for entry in counts.log if "event" in entry)
    assert waited == recorded.replace("record", "wait")
    assert counts.log.index(waited) == 2


WAITS: dict[str, Callable[[torch.Tensor], Any]] = {
    "event": lambda x: torch.accelerator.current_stream().record_event().synchronize(),
    "query": lambda x: torch.accelerator.current_stream().record_event().query(),
    "stream": lambda x: torch.accelerator.current_stream().synchronize(),
    "device": lambda x: torch.accelerator.synchronize(),
    "item": lambda x: x.sum().item(),
    "copy to the cpu": lambda x: x.cpu(),
    "copy to the device": lambda x: torch.ones(2).to(x.device),
    "copied indices": lambda x: x[torch.tensor([0, 1])],
}


@pytest.mark.parametrize("wait", WAITS.values(), ids=WAITS)
def test_a_delayed_copy_to_the_cpu_has_the_source_of_its_time_once_the_cpu_has_waited(
    wait: Any, pretend: PretendDevice
) -> None:
    x = grid(pretend.device)
    before = torch.accelerator.current_stream().record_event()
    with pretend.delaying():
        copy = x.to("cpu", non_blocking=True)
        x.add_(1)
        before.synchronize()  # was recorded too early
        assert copy.isnan().all()
        wait(x)
        torch.testing.assert_close(copy, grid("cpu"))
    assert not x.to("cpu", non_blocking=True).isnan().any()


def test_a_copy_on_another_stream_reads_as_late_as_events_allow(pretend: PretendDevice) -> None:
    other, current = torch.Stream(pretend.device), torch.accelerator.current_stream()

    def copied(x: torch.Tensor) -> tuple[torch.Tensor, torch.Event]:
        with other:
            return x.to("cpu", non_blocking=True), other.record_event()

    with pretend.delaying():
        x = grid(pretend.device)
        raced, event = copied(x)
        x.zero_()
        event.synchronize()
        ordered, event = copied(x)
        current.wait_event(event)
        x.add_(1)
        event.synchronize()
        freed, event = copied(x + 1)
        event.synchronize()
        with other:
            kept = (x + 1).to("cpu", non_blocking=True)
        other.synchronize()
    assert (raced == 0).all()
    assert (ordered == 0).all()
    assert freed.isnan().all()  # another tensor may have had the memory
    assert (kept == 2).all()


def test_memory_that_changes_before_it_was_sent_is_an_error_that_names_the_line(pretend: PretendDevice) -> None:
    x = grid(pretend.device)
    block = torch.zeros(3, 4).pin_memory()
    with pretend.delaying():
        x.copy_(block, non_blocking=True)
        torch.accelerator.synchronize()
        block.fill_(1.0)

    def change_too_early(value: float) -> None:
        with pretend.delaying():
            x.copy_(block, non_blocking=True)
            block.fill_(value)

    def nested() -> None:
        with pretend.delaying():
            x.copy_(torch.zeros(3, 4).pin_memory(), non_blocking=True)
            change_too_early(3.0)

    for work in (lambda: change_too_early(2.0), nested):
        with pytest.raises(DeviceError, match=rf"before its copy to the device was done, .* at {__file__}:\d+:"):
            work()
