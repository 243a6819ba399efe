"""Devices: which are there, why one is not, and how arrays get there."""

import numpy as np
import pytest
import torch

from tests.helpers.learning import Spaces
from trainkit import DQNPolicy
from trainkit.engine.device import resolve_device, to_device
from trainkit.errors import DeviceError

CPU = torch.device("cpu")


def pretend(monkeypatch: pytest.MonkeyPatch, *, is_built: bool, n_gpus: int) -> None:
    """Let torch say that it was built for CUDA, or not, and sees this many GPUs."""
    monkeypatch.setattr(torch.version, "cuda", "13.0" if is_built else None)
    monkeypatch.setattr(torch.version, "hip", None)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: is_built and n_gpus > 0)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: n_gpus)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)


def test_auto_is_the_cpu_where_there_is_no_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    pretend(monkeypatch, is_built=True, n_gpus=0)

    assert resolve_device("auto") == CPU


def test_auto_is_cuda_where_there_is_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    pretend(monkeypatch, is_built=True, n_gpus=1)

    assert resolve_device("auto") == torch.device("cuda:0")


def test_cuda_without_a_number_is_the_current_one(monkeypatch: pytest.MonkeyPatch) -> None:
    pretend(monkeypatch, is_built=True, n_gpus=2)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 1)
    for device in ("auto", "cuda", torch.device("cuda")):
        assert resolve_device(device) == torch.device("cuda:1")


@pytest.mark.parametrize("device", ["cpu", CPU])
def test_a_name_or_a_device_is_taken_as_it_is(device: str | torch.device) -> None:
    assert resolve_device(device) == CPU


def test_cuda_on_a_cpu_build_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    pretend(monkeypatch, is_built=False, n_gpus=0)

    with pytest.raises(DeviceError, match=r"device 'cuda' needs CUDA, but this torch .* is a CPU build"):
        resolve_device("cuda")


def test_cuda_without_a_gpu_says_where_to_look(monkeypatch: pytest.MonkeyPatch) -> None:
    pretend(monkeypatch, is_built=True, n_gpus=0)

    with pytest.raises(DeviceError, match="no GPU is visible: check the driver and CUDA_VISIBLE_DEVICES"):
        resolve_device("cuda:0")


def test_a_gpu_beyond_the_last_says_how_many_there_are(monkeypatch: pytest.MonkeyPatch) -> None:
    pretend(monkeypatch, is_built=True, n_gpus=2)

    assert resolve_device("cuda:1") == torch.device("cuda:1")
    with pytest.raises(DeviceError, match="device 'cuda:2' is not there, only 2 GPUs are"):
        resolve_device("cuda:2")


@pytest.mark.parametrize("device", ["xpu", "mps:0", "hpu"])
def test_another_accelerator_that_is_not_there_says_so(device: str) -> None:
    if torch.device(device).type == str(torch.accelerator.current_accelerator()):
        pytest.skip("this machine has it")
    with pytest.raises(DeviceError, match=f"device '{device}' is not available. torch says: "):
        resolve_device(device)


@pytest.mark.parametrize("device", ["gpu", "", None, 1.5])
def test_what_is_no_device_is_refused(device: str) -> None:
    with pytest.raises(DeviceError, match=r"device must be 'auto', 'cpu', 'cuda' or a torch\.device, got"):
        resolve_device(device)


def test_a_policy_for_a_missing_device_fails_at_construction(monkeypatch: pytest.MonkeyPatch) -> None:
    pretend(monkeypatch, is_built=False, n_gpus=0)

    with pytest.raises(DeviceError, match="CPU build"):
        DQNPolicy.for_envs(Spaces(), device="cuda")


def test_arrays_share_memory_with_tensors_on_the_cpu() -> None:
    array = np.zeros(3, np.float32)
    tensor = to_device(array, CPU)
    array[1] = 7

    assert tensor.tolist() == [0, 7, 0]


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
