"""What makes two runs of one seed differ, as listed in docs/howto/reproducibility.md, and the warnings that say so."""

import logging
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import trainkit as tk
from tests.trainer.toys import Walk, make_trainer

MACHINE = "trainkit.trainer.run_checkpoint._about_machine"


def weights(trainer: tk.Trainer) -> list[bytes]:
    return [parameter.detach().numpy().tobytes() for parameter in trainer.policy.parameters()]


def resume_warnings(folder: Path, caplog: Any) -> list[str]:
    caplog.clear()
    make_trainer(resume_from=folder)
    return [record.message for record in caplog.records if record.levelno == logging.WARNING]


# ---- the clock ----


class Ticks(tk.Callback):
    """Let a fake clock advance in every collect."""

    def __init__(self, now: list[float], seconds: float) -> None:
        self.now, self.seconds = now, seconds

    def on_collect_start(self, trainer: tk.Trainer) -> None:
        self.now[0] += self.seconds


def test_a_run_with_max_seconds_ends_where_the_clock_says(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [0.0]
    monkeypatch.setattr("trainkit.trainer.metrics.time.perf_counter", lambda: now[0])
    fast, slow = (make_trainer(max_seconds=10.0, callbacks=[Ticks(now, seconds)]) for seconds in (0.5, 1.0))
    assert (fast.run().env_step, slow.run().env_step) == (40, 20)
    assert weights(fast) != weights(slow)


def test_saves_by_the_clock_at_episode_ends_change_the_run(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    now = [0.0]
    monkeypatch.setattr("trainkit.trainer.callbacks.checkpointing.time.monotonic", lambda: now[0])

    def run(seconds: float) -> list[bytes]:
        saves = tk.Checkpoint(tmp_path / str(seconds), every=20, unit="seconds", at="episode_end")
        trainer = make_trainer(checkpoint=saves, callbacks=[Ticks(now, seconds)])
        trainer.run()
        return weights(trainer)

    assert run(1.0) != run(7.0)  # the open episodes are cut at other steps


# ---- the user's code ----


class Global(Walk):
    """Pay a reward drawn from numpy's global generator."""

    def step(self, action: int) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        obs, _, *rest = super().step(action)
        return obs, float(np.random.uniform()), *rest  # noqa: NPY002  # that no seed of ours reaches it is the point


@pytest.mark.global_rng
def test_code_that_draws_from_a_global_generator_differs_between_runs_of_one_seed() -> None:
    first, second = (make_trainer(env=Global) for _ in range(2))
    first.run()
    second.run()
    assert weights(first) != weights(second)


@pytest.mark.global_rng
def test_an_environment_that_draws_from_a_global_generator_is_warned_of_on_resume(tmp_path: Path, caplog: Any) -> None:
    first = make_trainer(env=Global)
    next(first)
    first.save(tmp_path / "run")
    make_trainer(env=Global, resume_from=tmp_path / "run")
    assert caplog.text.count("the episodes that ran are cut and others begin") == 1


# ---- what an environment keeps ----


class Later(Walk):
    """Pay more in every later episode, which the open episode's observations and rewards do not show at its start."""

    n_walks = 0

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        self.n_walks += 1
        return super().reset(seed=seed)

    def step(self, action: int) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        obs, reward, *rest = super().step(action)
        return obs, reward + self.n_walks // 5, *rest


def test_a_run_whose_environments_count_episodes_differs_after_a_resume_and_is_warned(
    tmp_path: Path, caplog: Any
) -> None:
    straight = make_trainer(env=Later, max_epoch=6)
    next(straight)
    straight.save(tmp_path / "run")
    caplog.clear()
    resumed = make_trainer(env=Later, max_epoch=6, resume_from=tmp_path / "run")
    assert caplog.text.count("the run may not continue with the same bits") == 1
    assert "n_walks of env " in caplog.text
    straight.run()
    resumed.run()
    assert weights(resumed) != weights(straight)


def test_environments_that_keep_nothing_are_not_warned_of(tmp_path: Path, caplog: Any) -> None:
    first = make_trainer()
    next(first)
    first.save(tmp_path / "run")
    assert resume_warnings(tmp_path / "run", caplog) == []


# ---- the machine ----


@pytest.mark.parametrize(
    ("function", "before", "now", "change"),
    [
        ("trainkit.core.checkpoint.platform.machine", "arm64", "x86_64", "processor 'arm64' -> 'x86_64'"),
        (
            "trainkit.core.checkpoint.torch.backends.cpu.get_cpu_capability",
            "AVX512",
            "AVX2",
            "vector_instructions 'AVX512' -> 'AVX2'",
        ),
    ],
)
def test_another_processor_is_warned_of(
    function: str, before: str, now: str, change: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, caplog: Any
) -> None:
    monkeypatch.setattr(function, lambda: before)
    make_trainer().save(tmp_path / "run")
    assert resume_warnings(tmp_path / "run", caplog) == []
    monkeypatch.setattr(function, lambda: now)
    (warning,) = resume_warnings(tmp_path / "run", caplog)
    assert warning.endswith(f"was saved by a run on another machine, the bits may differ: {change}")


def test_another_engine_is_warned_of(tmp_path: Path, caplog: Any) -> None:
    make_trainer(policy={"engine": "torch"}).save(tmp_path / "run")
    (warning,) = resume_warnings(tmp_path / "run", caplog)
    assert warning.endswith("the bits may differ: engine 'torch' -> 'auto'")


def on_device(device: str) -> Any:
    return lambda policy, threads: {"threads": 1, "device": device, "processor": "x86_64"}


def test_another_device_is_warned_of(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, caplog: Any) -> None:
    monkeypatch.setattr(MACHINE, on_device("cuda:0"))
    make_trainer().save(tmp_path / "run")
    monkeypatch.setattr(MACHINE, on_device("cpu"))
    (warning,) = resume_warnings(tmp_path / "run", caplog)
    assert warning.endswith("the bits may differ: device 'cuda:0' -> 'cpu'")


def test_a_resume_on_a_gpu_is_warned_of(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, caplog: Any) -> None:
    monkeypatch.setattr(MACHINE, on_device("cuda:0"))
    make_trainer().save(tmp_path / "run")
    (warning,) = resume_warnings(tmp_path / "run", caplog)
    assert "may not continue with the same bits: on cuda:0 kernels may add up in another order" in warning
    monkeypatch.setattr(torch, "are_deterministic_algorithms_enabled", lambda: True)
    assert resume_warnings(tmp_path / "run", caplog) == []
