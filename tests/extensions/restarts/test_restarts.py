"""Whatever an environment does, the others lose nothing, and the fault is reported."""

import gc
import multiprocessing
import re
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from types import FrameType
from typing import Any

import numpy as np
import pytest

from tests.faults.cases import CASES, N_STEP, Backend, all_rows, close_quickly, every_case, faulty_envs
from tests.faults.faulty import EPISODE, FAULTS, FAULTY, STEP, Fault, FaultyEnv, length
from tests.helpers.doubles import Still, one_by_one
from tests.helpers.scripted_env import STEP as PLAYED
from tests.helpers.scripted_env import ScriptedEnv
from trainkit.buffer import ReplayBuffer, RolloutBuffer
from trainkit.collector import Collector
from trainkit.collector.events import EpisodeEvents
from trainkit.core.data import Transition
from trainkit.core.errors import BadEnvDataError, ConfigError, EnvError
from trainkit.envs import make_envs

# Python 3.12 warns of fork() in a process with threads.
pytestmark = pytest.mark.filterwarnings("ignore:.*multi-threaded:DeprecationWarning")


@pytest.fixture
def lives(tmp_path: Path) -> Path:
    folder = tmp_path / "lives"
    folder.mkdir()
    return folder


@pytest.fixture(autouse=True)
def no_process_stays() -> Iterator[None]:
    yield
    assert multiprocessing.active_children() == []


def tags(rows: Transition, env: int) -> list[tuple[int, int, int]]:
    """Return (life, episode, step) of an environment's rows, in order."""
    return [(int(o[1]), int(o[2]), int(o[3])) for o in rows.obs[rows.env_ids == env]]


def expected_tags(env: int, n_rows: int, fault: Fault, *, keeps: bool) -> list[tuple[int, int, int]]:
    """Play by hand, without the broken episode's rows unless they are kept."""
    played: list[tuple[int, int, int]] = []
    life = episode = 0
    while len(played) < n_rows:
        breaks = env == FAULTY and life == 0 and episode == EPISODE
        n_steps = (STEP * keeps if fault.where == "step" else 0) if breaks else length(env)
        played += [(life, episode, step) for step in range(n_steps)]
        life, episode = (1 + fault.n_failing_makes, 0) if breaks else (life, episode + 1)
    return played[:n_rows]


@pytest.mark.one_of_each
@every_case
@pytest.mark.parametrize("faulty", ["drop", "cut"])
def test_only_the_environment_that_failed_is_restarted(
    fault: Fault, backend: Backend, faulty: Any, lives: Path, caplog: pytest.LogCaptureFixture
) -> None:
    envs = faulty_envs(fault, backend, lives, on_error="restart", failed_episodes=faulty)
    buffer = ReplayBuffer(1_000)
    collector = Collector(Still(), envs, buffer)
    stats = collector.collect(n_step=N_STEP)
    close_quickly(envs)

    is_step = fault.where == "step"
    n_dropped = STEP if is_step and faulty == "drop" else 0
    assert (stats.n_faulty_episodes, stats.n_env_restarts) == (1, 1 + fault.n_failing_makes)
    assert stats.n_step == collector.env_step == len(buffer) + n_dropped >= N_STEP
    rows = all_rows(buffer)
    for env in range(3):
        own = tags(rows, env)
        assert own == expected_tags(env, len(own), fault, keeps=faulty == "cut")
    # Every row is a real step of one life, with its true successor, and no flag but the episode's own.
    np.testing.assert_array_equal(rows.obs[:, 0], rows.env_ids)
    np.testing.assert_array_equal(rows.next_obs - rows.obs, np.broadcast_to([0.0, 0, 0, 1], (len(rows.obs), 4)))
    np.testing.assert_array_equal(rows.reward, rows.obs[:, 3] + 1)
    np.testing.assert_array_equal(rows.terminated, rows.next_obs[:, 3] == length(rows.env_ids))
    assert not rows.truncated.any()
    # An episode that was broken off is none that was finished.
    assert (stats.lengths.min, stats.lengths.max) == (length(0), length(2))
    assert stats.n_episode == rows.terminated.sum()
    # The others were made once, the faulty one as often as was needed.
    assert [len(list(lives.glob(f"{env}-*"))) for env in range(3)] == [1, 2 + fault.n_failing_makes, 1]
    log = "\n".join(caplog.messages)
    assert re.search(fault.words, log)
    assert "restart 1 of 10 in a row" in log


class Keeper(Still):
    """Keep the starts of episodes, with a copy of that time."""

    def __init__(self) -> None:
        super().__init__()
        self.starts: list[tuple[Any, Any]] = []

    def act(self, obs: Any, **options: Any) -> Any:
        self.starts.append((options["starts"], options["starts"].copy()))
        return super().act(obs, **options)


def test_the_starts_given_to_a_policy_are_not_changed_later(lives: Path) -> None:
    envs = faulty_envs(FAULTS[0], "sync", lives, on_error="restart")
    stats = Collector(policy := Keeper(), envs, ReplayBuffer(1_000)).collect(n_step=N_STEP)
    envs.close()
    assert stats.n_faulty_episodes == 1
    for starts, copied in policy.starts:
        np.testing.assert_array_equal(starts, copied)


@pytest.mark.fast_cases(7)
@pytest.mark.parametrize(
    "fault", [pytest.param(fault, id=str(fault)) for fault, backend in CASES if backend == "async"]
)
def test_a_process_that_failed_leaves_no_cycle_of_frames(fault: Fault, lives: Path) -> None:
    """They would keep all that a collect held until Python looks, the more seldom the larger a program is."""
    envs = faulty_envs(fault, "async", lives, on_error="restart")
    collector = Collector(Still(), envs, ReplayBuffer(1_000))
    gc.collect()
    gc.disable()
    gc.set_debug(gc.DEBUG_SAVEALL)
    try:
        stats = collector.collect(n_step=N_STEP)
        gc.collect()
        left = [frame.f_code.co_qualname for frame in gc.garbage if isinstance(frame, FrameType)]
    finally:
        gc.set_debug(0)
        gc.garbage.clear()
        gc.enable()
    close_quickly(envs)
    assert stats.n_env_restarts > 0
    assert left == []


@pytest.mark.parametrize("backend", ["sync", "async"])
def test_a_constructor_that_raises_at_first_raises_before_training(backend: Backend) -> None:
    def factory() -> Any:
        raise OSError("no licence")

    with pytest.raises(EnvError, match="make_envs: env 0 raised OSError when it was made: no licence") as caught:
        make_envs(factory, 3, backend=backend, on_error="restart")
    assert isinstance(caught.value.__cause__, OSError)


def hopeless(context: Any, lives: Path) -> FaultyEnv:
    """Make an environment that always fails."""
    env = FaultyEnv(context.index, None, lives)
    env.step = lambda action: 1 / 0  # type: ignore[method-assign]  # as a fault would
    return env


@pytest.mark.parametrize("backend", ["sync", "async"])
def test_too_many_restarts_in_a_row_raise_the_last_error(backend: Backend, lives: Path) -> None:
    factories = [partial(FaultyEnv, 0, None, lives), lambda context: hopeless(context, lives)]
    envs = make_envs(factories, backend=backend, on_error="restart", max_restarts=3, restart_delay_s=0.001)
    buffer = ReplayBuffer(100)
    collector = Collector(Still(), envs, buffer)
    with pytest.raises(
        EnvError, match=r"^env 1 raised ZeroDivisionError in step.* restarted 3 times in a row \(max_restarts"
    ):
        collector.collect(n_step=50)
    assert [len(list(lives.glob(f"{env}-*"))) for env in range(2)] == [1, 4]
    assert len(buffer) == collector.env_step == 4  # of the other, one in each of four vector steps
    with pytest.raises(EnvError, match="ZeroDivisionError") as caught:
        collector.collect(n_step=50)
    assert isinstance(caught.value.__cause__, ZeroDivisionError)
    close_quickly(envs)


@pytest.mark.parametrize(
    ("max_restarts", "words"),
    [
        (0, "; max_restarts=0 allows no restart"),
        (1, "; it was restarted once (max_restarts), and no episode ended in between"),
        (2, "; it was restarted 2 times in a row (max_restarts), and no episode ended in between"),
    ],
)
def test_the_last_error_explains_why_there_is_no_other_restart(max_restarts: int, words: str, lives: Path) -> None:
    options: dict[str, Any] = {"on_error": "restart", "max_restarts": max_restarts, "restart_delay_s": 0}
    with pytest.raises(EnvError) as caught:
        Collector(Still(), make_envs(lambda context: hopeless(context, lives), **options)).collect(n_step=9)
    assert str(caught.value).endswith(words)


def test_an_episode_that_ends_normally_resets_the_count_of_restarts(lives: Path) -> None:
    class Moody(FaultyEnv):
        """Fail in every second life's first step, for ever."""

        def step(self, action: Any) -> Any:
            if self.life % 2 == 0 or self.episode > 0:
                raise OSError("again")
            return super().step(action)

    envs = make_envs(partial(Moody, 0, None, lives), on_error="restart", max_restarts=2, restart_delay_s=0)
    stats = Collector(Still(), envs).collect(n_step=20)
    assert stats.n_episode == 5
    assert stats.n_env_restarts >= 9
    assert stats.n_env_restarts == stats.n_faulty_episodes


def test_an_episode_whose_last_row_is_invalid_resets_no_count(lives: Path) -> None:
    class Ends(FaultyEnv):
        """End every episode with its first step, and a reward that is none."""

        def step(self, action: Any) -> Any:
            obs, _, _, *rest = super().step(action)
            return obs, np.nan, True, *rest

    envs = make_envs(partial(Ends, 0, None, lives), on_error="restart", max_restarts=2, restart_delay_s=0)
    collector = Collector(Still(), envs)
    collector.between_steps = iter(range(9)).__next__  # and no more
    with pytest.raises(BadEnvDataError, match=r"restarted 2 times in a row \(max_restarts\)"):
        collector.collect(n_step=20)


def test_the_pause_before_another_restart_grows(lives: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    slept: list[float] = []
    monkeypatch.setattr("trainkit.extensions.restarts.restarts.time.sleep", slept.append)
    envs = make_envs(lambda context: hopeless(context, lives), on_error="restart", max_restarts=9, restart_delay_s=0.5)
    with pytest.raises(EnvError):
        Collector(Still(), envs).collect(n_step=50)
    assert slept == [0, 0.5, 1, 2, 4, 8, 16, 30, 30]


def test_listeners_are_notified_of_the_failed_episode_and_recorders_remove_it(lives: Path) -> None:
    class Recorder:
        def __init__(self) -> None:
            self.events: list[tuple[str, list[int]]] = []

        def add(self, transition: Transition) -> None: ...

        def cut(self, env_ids: Any) -> None:
            self.events.append(("cut", env_ids.tolist()))

        def drop(self, env_ids: Any) -> None:
            self.events.append(("drop", env_ids.tolist()))

    events: list[tuple[Any, ...]] = []
    collector = Collector(Still(), faulty_envs(FAULTS[0], "sync", lives, on_error="restart"))
    listener = one_by_one(lambda *call: events.append(call))
    collector.events = EpisodeEvents(3, listener, ["on_episode_failed", "on_episode_end"])
    recorder = Recorder()
    collector.recorders.append(recorder)
    collector.collect(n_step=60)
    assert recorder.events == [("cut", [0, 1, 2]), ("drop", [FAULTY])]
    ((_, episode, error),) = [news for news in events if news[0] == "on_episode_failed"]
    assert (episode.env_id, episode.length, episode.total_reward) == (FAULTY, STEP, 1 + 2)
    assert "no wheels" in str(error)
    ended = [episode for name, episode, *_ in events if name == "on_episode_end"]
    assert all(one.length == length(one.env_id) for one in ended)


def test_quotas_of_episodes_are_met_in_spite_of_failures(lives: Path) -> None:
    envs = faulty_envs(FAULTS[0], "sync", lives, on_error="restart")
    stats = Collector(Still(), envs).collect(n_episode=9)
    assert stats.n_episode == 9
    assert stats.n_faulty_episodes == 1
    assert stats.lengths.mean == np.mean([length(env) for env in range(3)])


@pytest.mark.parametrize("faulty", ["drop", "cut"])
def test_a_rollout_is_as_whole_as_a_replay_buffer(lives: Path, faulty: Any) -> None:
    buffer = RolloutBuffer()
    collector = Collector(
        Still(), faulty_envs(FAULTS[0], "sync", lives, on_error="restart", failed_episodes=faulty), buffer
    )
    collector.collect(n_step=60)
    rollout = buffer.read()
    assert len(rollout) == collector.env_step - (STEP if faulty == "drop" else 0)
    seen = [(int(o[1]), int(o[2]), int(o[3])) for o in rollout.obs[: rollout.n_rows[FAULTY], FAULTY]]
    assert seen == expected_tags(FAULTY, len(seen), FAULTS[0], keeps=faulty == "cut")
    ends = {(int(o[0]), int(o[1]), int(o[2]), int(o[3])) for o in rollout.last_obs}
    assert ((1, 0, EPISODE, STEP) in ends) == (faulty == "cut")  # what is cut bootstraps from its last observation


def test_stacks_masks_and_lives_continue_after_a_restart(lives: Path) -> None:
    class Counting(FaultyEnv):
        def reset(self, **options: Any) -> Any:
            first, info = super().reset(**options)
            return first, {**info, "lives": 3, "legal": [True, True]}

        def step(self, action: Any) -> Any:
            *rest, info = super().step(action)
            if (self.life, self.env, self.episode, self.step_) == (0, 1, 2, 1):
                return *rest, {"lives": 3}  # its mask is missing
            if (self.life, self.env, self.episode, self.step_) == (1, 1, 2, 1):
                return *rest, {"legal": [True, True], "lives": None}
            return *rest, {**info, "lives": 3, "legal": [True, True]}

    envs = make_envs(
        [partial(Counting, env, None, lives) for env in range(2)],
        on_error="restart",
        restart_delay_s=0,
        stack=3,
        mask_key="legal",
        lives_key="lives",
    )
    buffer = ReplayBuffer(1_000)
    stats = Collector(Still(), envs, buffer).collect(n_step=100)
    assert stats.n_env_restarts == stats.n_faulty_episodes == 2
    rows = all_rows(buffer)
    stacks = rows.obs["obs"]  # [rows, 3, 4]
    newest = stacks[:, -1]
    for back in (1, 2):
        np.testing.assert_array_equal(stacks[:, -1 - back, :3], newest[:, :3])
        np.testing.assert_array_equal(stacks[:, -1 - back, 3], np.maximum(newest[:, 3] - back, 0))
    assert {int(life) for life in newest[rows.env_ids == 1][:, 1]} == {0, 1, 2}


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"on_error": "retry"}, "on_error must be one of .* got 'retry'"),
        ({"max_restarts": -1}, "max_restarts must be a whole number >= 0, got -1"),
        ({"restart_delay_s": -1}, "restart_delay_s must be in"),
        ({"failed_episodes": "keep"}, "failed_episodes must be one of"),
        ({"on_error": "restart", "backend": "vector"}, 'on_error "restart" needs single environments, which'),
    ],
)
def test_options_of_restarts_that_are_not_supported_are_rejected(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        make_envs("CartPole-v1", 2, **options)


def test_an_environment_that_was_rebuilt_keeps_no_claim_on_the_former_one() -> None:
    made: list[ScriptedEnv] = []

    def factory() -> ScriptedEnv:
        made.append(ScriptedEnv(steps=[PLAYED if made else OSError("gone")] * 100))
        return made[-1]

    envs = make_envs(factory, on_error="restart", restart_delay_s=0.0)
    Collector(Still(), envs).collect(n_step=4)
    assert len(made) == 2
    make_envs(lambda: made[0]).close()
    with pytest.raises(ConfigError, match="already belongs"):
        make_envs(lambda: made[1])


def test_an_environment_made_again_after_a_fault_is_validated_too() -> None:
    seen: list[Any] = []
    made = partial(ScriptedEnv, steps=[OSError("gone")])
    envs = make_envs(made, on_error="restart", max_restarts=2, restart_delay_s=0.0, validate_env=seen.append)
    with pytest.raises(Exception, match="2 times in a row"):
        Collector(Still(), envs).collect(n_step=1)
    assert len(seen) == 3
