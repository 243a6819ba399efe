"""Environments have one owner, are used by one thread at a time, and not after they are closed."""

import gc
import multiprocessing
import os
import resource
import signal
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.vector import AutoresetMode, SyncVectorEnv

import trainkit as tk
from tests.helpers.doubles import Ledger, Player
from tests.helpers.scripted_env import ScriptedEnv
from tests.helpers.tagged import TaggedEnv
from tests.helpers.truth import assert_rows_are_real, tagged_envs
from trainkit.collector import Collector
from trainkit.core.errors import BusyError, ConfigError, EnvError
from trainkit.envs import Envs, make_envs
from trainkit.testing import FakeVectorEnv
from trainkit.trainer import evaluate

OWNED = "already belong to a Collector, whose episodes another owner would mix with its own: make_envs others"
forks = pytest.mark.filterwarnings("ignore:.*multi-threaded:DeprecationWarning")
every_way = pytest.mark.parametrize("way", ["sync", pytest.param("async", marks=forks), "SyncVectorEnv NEXT_STEP"])


class Actor(Player):
    """A player that `evaluate` takes, too."""

    last_step = 0

    def start_streams(self, root: int) -> None:
        """Draw nothing."""


def owned(way: str = "sync", n: int = 2) -> tuple[Collector, Ledger]:
    """Return a collector in the middle of episodes, and its buffer."""
    ledger = Ledger()
    collector = Collector(Actor(), tagged_envs(way, n), ledger)
    collector.collect(n_step=5 * n)
    return collector, ledger


@pytest.mark.one_of_each
@every_way
@pytest.mark.parametrize(
    "use",
    [
        lambda collector: Collector(Actor(), collector.envs),
        lambda collector: Collector(Actor(), collector.envs, Ledger()),
        lambda collector: Collector(Actor(), make_envs(collector.envs)),
        lambda collector: evaluate(Actor(), collector.envs, n_episode=2),
        lambda collector: collector.envs.reset(),
        lambda collector: collector.envs.step(np.zeros(2, np.int64), np.arange(2)),
        lambda collector: collector.envs.begin(np.arange(1)),
    ],
    ids=["collector", "collector with buffer", "made again", "evaluate", "reset", "step", "begin"],
)
def test_nothing_else_steps_the_environments_of_a_collector(way: str, use: Callable[[Collector], Any]) -> None:
    collector, ledger = owned(way)
    with pytest.raises(ConfigError, match="belong to a Collector"):
        use(collector)
    collector.collect(n_step=200)
    assert len(ledger) >= 200
    assert_rows_are_real(ledger.rows(), 2)
    collector.close()


def test_the_error_of_a_second_collector_says_what_to_do() -> None:
    collector, _ = owned()
    with pytest.raises(ConfigError, match=rf"^the environments of custom {OWNED}, or give these up first with Coll"):
        Collector(Player(), collector.envs)


def test_a_released_collector_gives_its_environments_to_the_next_and_ends_its_episodes() -> None:
    first, ledger = owned()
    n_cuts = len(ledger.cuts)
    first.release()
    first.release()  # twice is fine
    assert len(ledger.cuts) == n_cuts + 1
    second = Collector(Player(), first.envs, rows := Ledger())
    second.collect(n_step=200)
    with pytest.raises(ConfigError, match="this Collector has released the environments of custom: make another one"):
        first.collect(n_step=1)
    with pytest.raises(ConfigError, match="has released"):
        first.reset()
    second.collect(n_step=200)
    assert_rows_are_real(rows.rows(), 2)


def test_a_collector_that_nothing_refers_to_owns_nothing() -> None:
    first, _ = owned()
    envs = first.envs
    first.recorders.append(first)  # type: ignore[arg-type]  # a cycle: only the garbage collector frees it
    gc.disable()
    try:
        del first
        second = Collector(Player(), envs, rows := Ledger())
    finally:
        gc.enable()
    second.collect(n_step=200)
    assert_rows_are_real(rows.rows(), 2)


def test_a_collector_that_could_not_be_made_owns_nothing() -> None:
    class Full(Ledger):
        def bind(self, spec: Any) -> None:
            raise ConfigError("full")

    class Picky(Player):
        def check_spaces(self, *spaces: Any) -> None:
            raise ConfigError("other spaces")

    envs = tagged_envs("sync", 2)
    errors = []  # keeps the tracebacks, and with them the collectors, alive
    for policy, buffer in ((Player(), Full()), (Picky(), Ledger())):
        with pytest.raises(ConfigError) as caught:
            Collector(policy, envs, buffer)
        errors.append(caught)
    Collector(Player(), envs).collect(n_step=4)


def test_environments_without_an_owner_may_be_stepped_by_hand() -> None:
    envs = tagged_envs("sync", 2)
    envs.reset(seed=1)
    envs.step(np.zeros(2, np.int64), np.arange(2))
    Collector(Player(), envs, rows := Ledger()).collect(n_step=100)
    assert_rows_are_real(rows.rows(), 2)


# ---- evaluation ----


@every_way
def test_an_evaluation_leaves_the_environments_it_was_given_open_and_free(way: str) -> None:
    envs = tagged_envs(way, 2)
    first, second = (evaluate(Actor(), envs, n_episode=4, seed=3) for _ in range(2))
    assert first.n_episode == second.n_episode == 4
    assert first.returns is not None
    if way != "SyncVectorEnv NEXT_STEP":  # tagged episodes are numbered on by the environments themselves
        assert envs.call("n_closed") == [0, 0]
    Collector(Player(), envs, rows := Ledger()).collect(n_step=300)
    assert_rows_are_real(rows.rows(), 2)
    envs.close()


def test_an_evaluation_does_not_close_a_vector_environment_it_was_given() -> None:
    venv = SyncVectorEnv([lambda: TaggedEnv(0), lambda: TaggedEnv(1)], autoreset_mode=AutoresetMode.NEXT_STEP)
    for _ in range(2):
        assert evaluate(Actor(), venv, n_episode=3).n_episode == 3
    assert not venv.closed
    assert venv.call("n_closed") == (0, 0)
    venv.reset()
    venv.step(np.zeros(2, np.int64))


def test_an_evaluation_plays_in_as_many_environments_as_it_was_given() -> None:
    assert evaluate(Actor(), tagged_envs("sync", 3), n_episode=5).n_episode == 5
    assert evaluate(Actor(), [lambda: TaggedEnv(0), lambda: TaggedEnv(1)], n_episode=5).n_episode == 5


# ---- the same environment below two Envs ----


def test_one_vector_environment_is_not_for_two_envs() -> None:
    venv = SyncVectorEnv([lambda: TaggedEnv(0), lambda: TaggedEnv(1)], autoreset_mode=AutoresetMode.NEXT_STEP)
    first = make_envs(venv)
    wrapped = gym.wrappers.vector.RecordEpisodeStatistics(venv)
    for again in (venv, wrapped):
        with pytest.raises(
            ConfigError, match=r"already belongs to another Envs, .*: make another environment, or close"
        ):
            make_envs(again)
    first.close()
    with pytest.raises(ConfigError, match="is closed already: make another vector environment"):
        make_envs(venv)


@pytest.mark.parametrize(
    "make",
    [
        lambda env: make_envs(lambda: env),
        lambda env: make_envs(lambda: gym.wrappers.TimeLimit(env, 3)),
        lambda env: make_envs([lambda: TaggedEnv(1), lambda: env]),
        lambda env: make_envs(SyncVectorEnv([lambda: env], autoreset_mode=AutoresetMode.NEXT_STEP)),
        lambda env: tk.check_env(env),
    ],
    ids=["again", "wrapped", "as second", "in a vector", "check_env"],
)
def test_one_environment_is_not_for_two_envs(make: Callable[[Any], Any]) -> None:
    env = TaggedEnv(0)
    first = make_envs(lambda: env)
    with pytest.raises(ConfigError, match="belongs to a"):
        make(env)
    first.close()
    make(env)  # its driver is done


def test_one_environment_wrapped_twice_is_not_for_two_places() -> None:
    env = TaggedEnv(0)
    with pytest.raises(ConfigError, match="factory 1 returned an environment a second time"):
        make_envs([lambda: gym.wrappers.TimeLimit(env, 3), lambda: env])
    make_envs(lambda: env)  # what could not be made keeps nothing


# ---- closed ----


@pytest.mark.one_of_each
@every_way
@pytest.mark.parametrize(
    "use",
    [
        lambda envs: envs.reset(),
        lambda envs: envs.step(np.zeros(2, np.int64), np.arange(2)),
        lambda envs: envs.begin(np.arange(1)),
        lambda envs: envs.call("n_closed"),
        lambda envs: envs.render(),
        lambda envs: Collector(Player(), envs),
        lambda envs: evaluate(Actor(), envs, n_episode=1),
    ],
    ids=["reset", "step", "begin", "call", "render", "collector", "evaluate"],
)
def test_closed_environments_are_of_no_more_use(way: str, use: Callable[[Envs], Any]) -> None:
    envs = tagged_envs(way, 2)
    envs.close()
    with pytest.raises(ConfigError, match="are closed: make_envs again"):
        use(envs)


def test_an_environment_that_raises_when_it_is_closed_is_logged_and_all_others_are_closed(caplog: Any) -> None:
    def fail() -> None:
        raise OSError("the socket is gone")

    made = [ScriptedEnv(), ScriptedEnv()]
    made[0].close = fail  # type: ignore[method-assign]
    make_envs([lambda env=env: env for env in made]).close()
    assert made[1].n_closed == 1
    assert "env 0 raised OSError in close: the socket is gone" in caplog.text


def test_a_closed_collector_collects_no_more() -> None:
    collector, ledger = owned()
    collector.close()
    n_rows = len(ledger)
    for use in (lambda: collector.collect(n_step=1), collector.resume, collector.reset):
        with pytest.raises(ConfigError, match="the environments of custom are closed"):
            use()
    assert len(ledger) == n_rows
    assert not collector.is_interrupted


# ---- threads ----


class Waiting(TaggedEnv):
    """Wait in a step until released."""

    def __init__(self, env: int) -> None:
        super().__init__(env)
        self.is_in, self.may_go = threading.Event(), threading.Event()

    def step(self, action: Any) -> Any:
        self.is_in.set()
        assert self.may_go.wait(5)
        return super().step(action)


@pytest.mark.parametrize(
    "use",
    [
        lambda collector: collector.collect(n_step=7),
        lambda collector: collector.collect(n_episode=1),
        lambda collector: collector.resume(),
        lambda collector: collector.reset(),
        lambda collector: collector.envs.call("n_closed"),
    ],
    ids=["steps", "episodes", "resume", "reset", "call"],
)
def test_a_collector_is_for_one_thread_at_a_time(use: Callable[[Collector], Any]) -> None:
    env, ledger = Waiting(0), Ledger()
    collector = Collector(Player(), make_envs(lambda: env), ledger)
    thread = threading.Thread(target=collector.collect, kwargs={"n_step": 50})
    thread.start()
    assert env.is_in.wait(5)
    with pytest.raises(BusyError, match=r"in use by another thread: .* one thread and one call at a time; make_envs"):
        use(collector)
    env.may_go.set()
    thread.join()
    assert len(ledger) == collector.env_step == 50
    use(collector)  # one after the other is fine
    assert_rows_are_real(ledger.rows(), 1)


def test_threads_that_step_by_hand_are_one_at_a_time_too() -> None:
    env = Waiting(0)
    envs = make_envs(lambda: env)
    envs.reset()
    thread = threading.Thread(target=envs.step, args=(np.zeros(1, np.int64), np.arange(1)))
    thread.start()
    assert env.is_in.wait(5)
    with pytest.raises(BusyError, match="another thread"):
        envs.reset()
    env.may_go.set()
    thread.join()
    envs.reset()


def test_a_collect_within_a_collect_is_rejected() -> None:
    collector, ledger = owned()

    def again() -> None:
        with pytest.raises(BusyError, match="further up in this thread"):
            collector.collect(n_step=1)

    collector.between_steps = again
    collector.collect(n_step=20)
    assert len(ledger) == 30
    assert_rows_are_real(ledger.rows(), 2)


def test_what_a_callback_raises_leaves_the_collector_free() -> None:
    collector, ledger = owned()
    collector.between_steps = iter([]).__next__
    with pytest.raises(StopIteration):
        collector.collect(n_step=20)
    collector.between_steps = None
    assert collector.resume().n_step == 20
    assert_rows_are_real(ledger.rows(), 2)


def test_an_environment_may_be_called_in_a_collect() -> None:
    collector, _ = owned()
    closed: list[Any] = []
    collector.between_steps = lambda: closed.append(collector.envs.call("n_closed"))
    collector.collect(n_step=4)
    assert closed == [[0, 0]] * 2


# ---- processes ----


@forks
def test_daemonic_processes_get_the_reason_why_they_can_start_no_environments(monkeypatch: pytest.MonkeyPatch) -> None:
    process = multiprocessing.current_process()
    monkeypatch.setitem(process._config, "daemon", True)  # type: ignore[attr-defined]  # as Pool does
    with pytest.raises(ConfigError, match=r'"async" cannot start processes in a daemonic process, .*backend="sync"'):
        make_envs(ScriptedEnv, backend="async")


@forks
def test_an_environment_may_start_processes_of_its_own() -> None:
    class Starting(ScriptedEnv):
        def answer(self) -> int:
            context = multiprocessing.get_context("fork")
            pipe, theirs = context.Pipe()
            process = context.Process(target=theirs.send, args=(42,))
            process.start()
            process.join()
            return int(pipe.recv())

    envs = make_envs(Starting, 2, backend="async", step_timeout_s=10)
    assert envs.call("answer") == [42, 42]
    envs.close()


@forks
def test_an_environment_can_terminate_the_processes_that_it_forked(tmp_path: Path) -> None:
    def help_for_a_minute(pipe: Any) -> None:
        pipe.send("ready")
        time.sleep(60)

    class Helped(ScriptedEnv):
        def reset(self, **options: Any) -> Any:
            context = multiprocessing.get_context("fork")
            pipe, theirs = context.Pipe()
            self.helper = context.Process(target=help_for_a_minute, args=(theirs,))
            self.helper.start()
            assert pipe.recv() == "ready"
            return super().reset(**options)

        def close(self) -> None:
            self.helper.terminate()
            self.helper.join()
            (tmp_path / "ended").write_text(str(self.helper.exitcode))

    envs = make_envs(Helped, backend="async")
    envs.reset()
    envs.close()
    assert (tmp_path / "ended").read_text() == str(-int(signal.SIGTERM))


def test_running_out_of_file_descriptors_is_reported_with_the_limit_to_raise() -> None:
    before = len(os.listdir("/proc/self/fd"))
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (before + 12, limits[1]))
    try:
        with pytest.raises(
            EnvError, match=r"no process could be started for env \d+: .*Too many open files.*ulimit -n"
        ):
            make_envs(ScriptedEnv, 20, backend="async")
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)
    assert multiprocessing.active_children() == []
    gc.collect()
    assert len(os.listdir("/proc/self/fd")) <= before + 2  # Python itself leaves a pipe open where a fork fails


def test_a_fake_vector_environment_is_one_environment() -> None:
    fake = FakeVectorEnv(gym.spaces.Box(0, 1, (2,), np.float32), gym.spaces.Discrete(2), n=2)
    make_envs(fake)
    make_envs(fake)  # nothing holds the first
