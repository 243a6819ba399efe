"""The measurement of updates on a GPU: it runs, counts what torch counts, and says so where there is no GPU."""

import numpy as np
import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from benchmarks import gpu
from trainkit.core.data import Lookup


def test_the_floor_counts_the_multiplications_that_torch_counts() -> None:
    policy = gpu.made("cpu")
    with FlopCounterMode(display=False) as counter:
        policy.update(gpu.frames_of(3, seed=0), step=0)
    assert counter.get_total_flops() == gpu.flops(3)
    assert sum(parameter.numel() for parameter in policy.network.parameters()) == gpu.PARAMETERS


def test_what_needs_no_gpu_is_measured_without_one(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(gpu, "WARM_UP", 1)
    monkeypatch.setattr(gpu, "STORED", 100)
    gpu.main(["--device", "cpu", "--rounds", "1", "--updates", "1", "--batches", "2", "--steps", "0"])
    page = capsys.readouterr().out
    assert "## updates of 2 rows; floor" in page
    assert "| eager |" in page
    assert "| drawn |" in page
    assert "| graph |" not in page


def test_a_side_may_draw_from_frames_on_the_device(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpu, "STORED", 100)
    batches = [gpu.source_of(3, "cpu", drawn_from)() for drawn_from in (None, "host", "device")]
    assert [batch.obs.shape for batch in batches] == [(3, 4, 84, 84)] * 3
    assert [type(batch.obs) for batch in batches] == [np.ndarray, np.ndarray, Lookup]
    np.testing.assert_array_equal(batches[1].obs, batches[2].obs)


def test_without_a_gpu_it_says_what_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(SystemExit, match="there is no CUDA device here"):
        gpu.main([])
