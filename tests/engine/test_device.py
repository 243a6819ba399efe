"""Devices: which are there, why one is not, and how arrays get there."""

import numpy as np
import pytest
import torch

from tests.helpers.learning import Spaces
from trainkit import DQNPolicy
from trainkit.engine.device import convolutions_timed, resolve_device, to_device
from trainkit.errors import DeviceError

CPU = torch.device("cpu")


def see(monkeypatch: pytest.MonkeyPatch, accelerator: str | None, n_devices: int = 0, current: int = 0) -> None:
    """Let torch say that it was built for an accelerator, or for none, and sees this many of its devices."""

    def current_accelerator(check_available: bool = False) -> torch.device | None:
        return None if accelerator is None or (check_available and n_devices == 0) else torch.device(accelerator)

    monkeypatch.setattr(torch.accelerator, "current_accelerator", current_accelerator)
    monkeypatch.setattr(torch.accelerator, "device_count", lambda: n_devices)
    monkeypatch.setattr(torch.accelerator, "current_device_index", lambda: current)


@pytest.mark.parametrize(
    ("accelerator", "n_devices", "expected"),
    [
        (None, 0, "cpu"),
        ("cuda", 0, "cpu"),
        ("cuda", 1, "cuda:0"),
        ("xpu", 2, "xpu:0"),
        ("mps", 1, "cpu"),  # which has no float64
    ],
)
def test_auto_is_torchs_accelerator_where_one_is_visible(
    monkeypatch: pytest.MonkeyPatch, accelerator: str | None, n_devices: int, expected: str
) -> None:
    see(monkeypatch, accelerator, n_devices)
    assert resolve_device("auto") == torch.device(expected)


@pytest.mark.parametrize("accelerator", ["cuda", "xpu", "mps"])
def test_a_name_without_a_number_is_the_current_one(monkeypatch: pytest.MonkeyPatch, accelerator: str) -> None:
    see(monkeypatch, accelerator, 2, current=1)
    for device in (accelerator, torch.device(accelerator)):
        assert resolve_device(device) == torch.device(accelerator, 1)


@pytest.mark.parametrize("device", ["cpu", "cpu:0", CPU])
def test_a_cpu_with_a_number_is_the_cpu(device: str | torch.device) -> None:
    assert resolve_device(device) == CPU


REJECTED = {
    "CPU build": (
        (None, 0),
        "cuda",
        r"device 'cuda' must be one that this build of torch supports, and torch \S+ supports no accelerator: install "
        "torch's build for 'cuda', or choose device='auto'",
    ),
    "another accelerator": (("cuda", 1), "xpu:1", "device 'xpu:1' must be .* the accelerator 'cuda' only: install"),
    "no GPU": (
        ("cuda", 0),
        "cuda:0",
        "device 'cuda:0' must be visible, and torch finds no 'cuda' device: check the driver and CUDA_VISIBLE_DEVICES",
    ),
    "no XPU": (("xpu", 0), "xpu", "no 'xpu' device: check the driver, or choose device='cpu'"),
    "beyond the only one": (
        ("cuda", 1),
        "cuda:1",
        "a number below 1, as torch finds 1 'cuda' device: choose 'cuda:0'$",
    ),
    "beyond the last": (("xpu", 3), "xpu:3", "a number below 3, .* 3 'xpu' devices: choose 'xpu:0' to 'xpu:2'$"),
    "meta": (("cuda", 1), "meta", "device 'meta' must be one that this build of torch supports"),
}


@pytest.mark.parametrize("case", REJECTED)
def test_a_device_that_is_not_there_is_rejected_with_the_reason(monkeypatch: pytest.MonkeyPatch, case: str) -> None:
    seen, device, message = REJECTED[case]
    see(monkeypatch, *seen)
    with pytest.raises(DeviceError, match=message):
        resolve_device(device)


@pytest.mark.parametrize("device", ["gpu", "", "cuda:x", None, 1.5])
def test_what_is_no_device_is_rejected(device: str) -> None:
    with pytest.raises(
        DeviceError, match=r"device must be .auto., .cpu., an accelerator.s name such as .cuda., .* got"
    ):
        resolve_device(device)


def test_a_policy_for_a_missing_device_fails_at_construction(monkeypatch: pytest.MonkeyPatch) -> None:
    see(monkeypatch, None)
    with pytest.raises(DeviceError, match="supports no accelerator"):
        DQNPolicy.for_envs(Spaces(), device="cuda")


def test_arrays_share_memory_with_tensors_on_the_cpu() -> None:
    array = np.zeros(3, np.float32)
    tensor = to_device(array, CPU)
    array[1] = 7

    assert tensor.tolist() == [0, 7, 0]


@pytest.mark.parametrize("before", [False, True])
@pytest.mark.parametrize("device", ["cuda:1", "cpu"])
def test_convolutions_are_timed_on_cuda_alone_and_the_switch_is_as_before(
    device: str, before: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.backends.cudnn, "benchmark", before)
    seen: list[bool] = []
    with pytest.raises(ZeroDivisionError), convolutions_timed(torch.device(device)):
        seen.append(torch.backends.cudnn.benchmark) or 1 / 0  # type: ignore[func-returns-value]
    assert seen == [before or device == "cuda:1"]
    assert torch.backends.cudnn.benchmark is before


def test_read_only_arrays_are_copied_without_a_warning() -> None:
    array = np.arange(3)
    array.flags.writeable = False

    assert to_device(array, CPU).tolist() == [0, 1, 2]


@pytest.mark.parametrize("order", ["reversed", "transposed", "strided"])
def test_arrays_of_any_strides_arrive_whole(order: str) -> None:
    array = np.arange(12, dtype=np.float32).reshape(3, 4)
    view = {"reversed": array[::-1], "transposed": array.T, "strided": array[:, ::2]}[order]

    np.testing.assert_array_equal(to_device(view, CPU).numpy(), view)


def test_trees_keep_their_structure_and_dtypes() -> None:
    moved = to_device({"a": (np.zeros(1, np.uint8), np.ones(1, np.bool_)), "b": np.zeros(1, np.float64)}, CPU)

    assert [moved["a"][0].dtype, moved["a"][1].dtype, moved["b"].dtype] == [torch.uint8, torch.bool, torch.float64]
