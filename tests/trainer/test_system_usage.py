"""Reports say what the process uses of the machine."""

import gc
import os
import time
from pathlib import Path

import numpy as np
import pytest

from tests.trainer.toys import make_trainer
from trainkit.trainer import system_usage as module
from trainkit.trainer.system_usage import ProcessorTime, resident_memory, system_usage


def test_a_busy_loop_is_one_core_and_a_sleep_none() -> None:
    busy = ProcessorTime()
    until = time.process_time() + 0.05
    while time.process_time() < until:
        pass
    cores = busy.cores()
    assert cores is not None
    assert 0.0 < cores <= 1.5  # less where other processes run
    asleep = ProcessorTime()
    time.sleep(0.05)
    assert asleep.cores() == pytest.approx(0.0, abs=0.5)


@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="the system does not say the present memory")
def test_memory_that_is_held_counts_until_it_is_released() -> None:
    gc.collect()  # garbage of other tests may be released in between
    before = resident_memory()
    held = np.ones(50_000_000)  # 400 MB: malloc serves less from what other tests have freed
    during = resident_memory()
    del held
    after = resident_memory()
    assert before is not None
    assert during is not None
    assert after is not None
    assert during - before > 300e6
    assert during - after > 300e6


def test_without_a_present_value_the_peak_is_given(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_MEMORY", Path("/nowhere/statm"))
    peak = resident_memory()
    assert peak is not None
    assert 1e6 < peak < 1e12


def test_metrics_are_in_megabytes_with_those_of_the_device() -> None:
    metrics = system_usage(ProcessorTime(), lambda: {"device_memory": 3_000_000, "device_memory_peak": 5_000_000})
    assert (metrics["device_memory_mb"], metrics["device_memory_peak_mb"]) == (3.0, 5.0)
    assert metrics.keys() == {"memory_mb", "cpu_cores", "device_memory_mb", "device_memory_peak_mb"}


def test_every_report_and_epoch_has_them() -> None:
    trainer = make_trainer(max_epoch=2)
    for _, stats, _ in trainer:
        memory = stats["system/memory_mb"]
        assert memory is not None
        assert memory > 10
        assert stats.system.keys() == {"memory_mb", "cpu_cores"}
        assert 0 < stats.system["cpu_cores"] <= (os.cpu_count() or 1) + 1
