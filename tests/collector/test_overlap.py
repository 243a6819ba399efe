"""Work overlapped with environments: while those in processes step, once per step, and never in a half one."""

import time
from pathlib import Path
from typing import Any

import pytest
from gymnasium.vector import AsyncVectorEnv, AutoresetMode, SyncVectorEnv, VectorEnv
from gymnasium.wrappers.vector import TransformReward

import trainkit as tk
from tests.helpers.doubles import Still
from tests.helpers.small_envs import Waits
from trainkit.core.errors import EnvError


class Fails(Waits):
    """Raise in the second step."""

    def step(self, action: int) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        if self._clock == 1:
            raise ValueError("on purpose")
        return super().step(action)


def collector_of(envs: tk.Envs) -> tk.Collector:
    return tk.Collector(Still(), envs, tk.ReplayBuffer(100))


def gymnasium_s(kind: type[VectorEnv[Any, Any, Any]], sign: Path | None) -> VectorEnv[Any, Any, Any]:
    return kind([lambda: Waits(sign)] * 2, autoreset_mode=AutoresetMode.DISABLED)  # type: ignore[call-arg]


@pytest.mark.parametrize("processes", ["ours", "gymnasium's"])
def test_processes_step_while_the_work_is_done(processes: str, tmp_path: Path) -> None:
    sign = tmp_path / "worked"
    if processes == "ours":
        envs = tk.make_envs(lambda: Waits(sign), 2, backend="async")
    else:
        envs = tk.make_envs(gymnasium_s(AsyncVectorEnv, sign))
    collector = collector_of(envs)
    collector.overlap = sign.touch
    try:
        assert collector.collect(n_step=6).n_step == 6
    finally:
        collector.close()


@pytest.mark.parametrize("kind", ["sync", "vector", "wrapped"])
def test_where_steps_cannot_be_overlapped_the_work_comes_first(kind: str) -> None:
    made: dict[str, Any] = {
        "sync": lambda: tk.make_envs(Waits, 2),
        "vector": lambda: tk.make_envs(gymnasium_s(SyncVectorEnv, None)),
        "wrapped": lambda: tk.make_envs(TransformReward(gymnasium_s(AsyncVectorEnv, None), lambda reward: 2 * reward)),
    }
    collector = collector_of(made[kind]())
    done: list[int] = []
    collector.overlap = lambda: done.append(collector.env_step)
    stats = collector.collect(n_step=10)
    assert done == [0, 2, 4, 6, 8]
    assert collector.buffer is not None
    assert len(collector.buffer) == 10
    if kind == "wrapped":  # whose step would be passed by
        batch = collector.buffer.sample(4, horizon=tk.Horizon(1, 0.9))  # type: ignore[attr-defined]
        assert (batch.reward == 2.0).all()
    assert stats.n_vector_step == 5
    collector.close()


@pytest.mark.parametrize("backend", ["sync", "async"])
def test_what_it_raises_leaves_the_step_open_until_resume_has_called_it_again(backend: Any) -> None:
    collector = collector_of(tk.make_envs(Waits, 2, backend=backend))
    n_calls = 0

    def work() -> None:
        nonlocal n_calls
        n_calls += 1
        if n_calls == 2:
            raise KeyboardInterrupt

    collector.overlap = work
    try:
        with pytest.raises(KeyboardInterrupt):
            collector.collect(n_step=10)
        assert (collector.env_step, n_calls, collector.is_interrupted, collector.is_mid_step) == (2, 2, True, True)
        stats = collector.resume()
        assert (stats.n_step, n_calls, stats.n_episode, collector.is_mid_step) == (10, 6, 2, False)
        assert collector.n_vector_steps_left == 0
        assert next(collector.buffer.episodes()).obs.ravel().tolist() == [0, 1, 2, 3, 4]  # type: ignore[union-attr]
    finally:
        collector.close()


def test_an_environment_and_work_that_fail_together_are_both_reported() -> None:
    collector = collector_of(tk.make_envs(Fails, 1))
    collector.overlap = lambda: [][collector.env_step - 1 :][0] if collector.env_step else None
    with pytest.raises(EnvError, match="on purpose") as raised:
        collector.collect(n_step=5)
    assert raised.value.__notes__ == [
        "and the work overlapped with the step raised IndexError('list index out of range')"
    ]


def test_a_step_that_failed_leaves_no_time_that_was_not_spent() -> None:
    collector = collector_of(tk.make_envs(Fails, 1))
    collector.overlap = lambda: time.sleep(0.05)
    with pytest.raises(EnvError):
        collector.collect(n_step=3)
    collector.envs.runner.envs[0].__class__ = Waits  # type: ignore[attr-defined]
    stats = collector.resume()
    assert 0.0 <= stats.env_ms < 20.0  # type: ignore[operator]


def test_ctrl_c_comes_before_an_environment_that_fails() -> None:
    collector = collector_of(tk.make_envs(Fails, 1))

    def work() -> None:
        if collector.env_step:
            raise KeyboardInterrupt

    collector.overlap = work
    with pytest.raises(KeyboardInterrupt):
        collector.collect(n_step=5)


class Doubling(AsyncVectorEnv):
    """Another step than gymnasium's."""

    def step(self, actions: Any) -> Any:
        obs, reward, *rest = super().step(actions)
        return obs, 2 * reward, *rest


class Radio(SyncVectorEnv):
    """Send and receive something else."""

    def send(self, message: str) -> None:
        raise AssertionError

    recv = send


@pytest.mark.parametrize("kind", [Doubling, Radio])
def test_only_a_step_that_is_known_is_taken_in_two(kind: Any) -> None:
    collector = collector_of(tk.make_envs(gymnasium_s(kind, None)))
    done: list[int] = []
    collector.overlap = lambda: done.append(collector.env_step)
    try:
        collector.collect(n_step=6)
        batch = collector.buffer.sample(4, horizon=tk.Horizon(1, 0.9))  # type: ignore[union-attr]
        assert (batch.reward == (2.0 if kind is Doubling else 1.0)).all()
        assert done == [0, 2, 4]
    finally:
        collector.close()


def test_in_the_middle_of_a_step_environments_cannot_be_called_nor_saved() -> None:
    collector = collector_of(tk.make_envs(Waits, 2, backend="async"))
    try:
        for forbidden in (lambda: collector.envs.call("spec"), collector.envs.reset, collector.state_dict):
            collector.overlap = forbidden
            with pytest.raises(tk.errors.BusyError, match="in the middle of a step"):
                collector.collect(n_step=2)
            collector.overlap = None
            collector.resume()
        assert (collector.env_step, collector.envs.call("_clock")) == (6, [3, 3])
    finally:
        collector.close()


def test_its_time_is_not_the_environments() -> None:
    collector = collector_of(tk.make_envs(Waits, 2))
    collector.overlap = lambda: time.sleep(0.05)
    stats = collector.collect(n_step=6)
    assert stats.seconds < 0.05
    assert stats.env_ms is not None
    assert 0.0 < stats.env_ms < 50.0


def test_without_work_nothing_is_called_and_by_default_there_is_none() -> None:
    assert collector_of(tk.make_envs(Waits, 2)).overlap is None
