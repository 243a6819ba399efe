"""Running episodes are restored by replaying their seeds and actions; lost state of environments is detected."""

import logging
import random
from collections import deque
from types import SimpleNamespace
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from numpy.testing import assert_array_equal

import trainkit as tk
from tests.envs.restored_episodes import (
    OUTLIVES,
    Counts,
    check_that_episodes_continue,
    check_that_lost_state_is_warned_of,
    collector_of,
    next_steps,
    through_a_file,
    warnings_of,
)
from tests.trainer.toys import Walk
from trainkit.envs import played_actions
from trainkit.envs.fingerprints import differences, fingerprint, in_words
from trainkit.envs.played_actions import PlayedActions


class Moody(Walk):
    """Walk differently every time, whatever the seed."""

    moods = iter(range(1_000_000))

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        return super().reset(seed=next(self.moods))


class Paid(Walk):
    """See the same every time, and be paid differently."""

    pay = iter(range(1_000_000))

    def step(self, action: int) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        obs, _, *rest = super().step(action)
        return obs, float(next(self.pay)), *rest


class WithOptions(Walk):
    """Begin where the reset's options say."""

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self._place = (options or {}).get("place", 0.0)
        return self._obs(), {}


KINDS: dict[str, dict[str, Any]] = {
    "one": {"n": 1},
    "several": {"n": 3},
    "in processes": {"n": 2, "backend": "async"},
    "stacked": {"n": 2, "stack": 3},
}


@pytest.mark.one_of_each
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("n_step", [1, 7, 31])
def test_running_episodes_are_restored_and_continue_the_same(kind: str, n_step: int, tmp_path: Any) -> None:
    check_that_episodes_continue(n_step, tmp_path, **KINDS[kind])


def test_restored_episodes_can_be_saved_again(tmp_path: Any) -> None:
    first, second, third = (collector_of(tk.make_envs(Walk, 2, seed=seed)) for seed in (5, 6, 7))
    first.collect(n_step=9)
    second.load_state_dict(first.state_dict())
    second.policy.load_streams_state(first.policy.streams_state())
    second.collect(n_step=5)
    first.collect(n_step=5)
    third.load_state_dict(through_a_file(second.state_dict(), tmp_path))
    third.policy.load_streams_state(first.policy.streams_state())
    assert next_steps(third, 30) == next_steps(first, 30)


def test_an_interrupted_quota_of_episodes_continues(tmp_path: Any) -> None:
    def collected(stats: tk.CollectStats) -> Any:
        return stats.n_step, stats.n_episode, stats.returns, stats.lengths

    first, second, straight = (collector_of(tk.make_envs(Walk, 3, seed=5)) for _ in range(3))
    steps = 0

    def stop() -> None:
        nonlocal steps
        steps += 1
        if steps == 14:
            raise KeyboardInterrupt

    first.between_steps = stop
    with pytest.raises(KeyboardInterrupt):
        first.collect(n_episode=7)
    second.load_state_dict(through_a_file(first.state_dict(), tmp_path))
    second.policy.load_streams_state(first.policy.streams_state())
    assert second.is_interrupted
    assert collected(second.resume()) == collected(straight.collect(n_episode=7))


def after_loading(first: tk.Collector, second: tk.Collector, caplog: Any) -> str:
    """Load one's state into the other, see that episodes start again, and return the warning."""
    first.collect(n_step=4)
    caplog.clear()
    second.load_state_dict(first.state_dict())
    (warning,) = [record.message for record in caplog.records if record.levelno == logging.WARNING]
    assert warning.endswith("; the episodes that ran are cut and others begin")
    assert len(second.open_ids) == 0
    seen, _, _ = next_steps(second, 2)
    assert seen[0] == ("cut", list(range(second.envs.n)))
    return warning


@pytest.mark.parametrize("env", [Moody, Paid])
def test_an_environment_that_does_not_repeat_an_episode_is_detected(env: Any, caplog: Any) -> None:
    first, second = (collector_of(tk.make_envs(env, 2, seed=5)) for _ in range(2))
    assert "an episode differs" in after_loading(first, second, caplog)


def test_an_environment_that_fails_in_the_replay_is_detected(caplog: Any) -> None:
    def fail() -> None:
        raise OSError("mine")

    first, second = collector_of(tk.make_envs(Walk, seed=5)), collector_of(tk.make_envs(lambda: Walk(fail)))
    first.collect(n_step=4)
    second.load_state_dict(first.state_dict())
    assert "cannot be replayed: env 0 raised OSError in step: mine" in caplog.text


def test_a_vector_environment_that_seeds_itself_is_not_replayed(caplog: Any) -> None:
    def make() -> tk.Envs:
        return tk.make_envs(gym.vector.SyncVectorEnv([Walk, Walk]), seed=5)

    first, second = collector_of(make()), collector_of(make())
    assert "the actions of the running episodes are not known" in after_loading(first, second, caplog)


def test_the_loss_of_a_recurrent_state_is_logged(caplog: Any) -> None:
    class Counting(tk.RandomPolicy):
        def act(self, *args: Any, **options: Any) -> Any:
            return super().act(*args, **options)._replace(state=1)

    first, second = (
        collector_of(envs, Counting(envs.action_space)) for envs in (tk.make_envs(Walk, seed=5), tk.make_envs(Walk))
    )
    assert "what the policy keeps from step to step cannot be saved" in after_loading(first, second, caplog)


def test_an_episode_longer_than_the_kept_actions_is_not_replayed(monkeypatch: Any, caplog: Any) -> None:
    monkeypatch.setattr(played_actions, "_MAX_STEPS", 3)
    first, second = (collector_of(tk.make_envs(Walk, seed=5)) for _ in range(2))
    assert "are not known" in after_loading(first, second, caplog)


def test_only_the_last_steps_are_kept_and_they_are_enough_for_short_episodes(monkeypatch: Any, tmp_path: Any) -> None:
    monkeypatch.setattr(played_actions, "_MAX_STEPS", 12)  # as long as the longest episode
    first, second = (collector_of(tk.make_envs(Walk, 1, seed=5)) for _ in range(2))
    first.collect(n_step=100)
    second.load_state_dict(through_a_file(first.state_dict(), tmp_path))
    second.policy.load_streams_state(first.policy.streams_state())
    assert next_steps(second, 30) == next_steps(first, 30)


def test_actions_kept_are_bounded_in_bytes() -> None:
    played = PlayedActions(1_000, keeps=True)
    everyone = np.arange(1_000)
    played.begin(everyone, [None] * 1_000)
    for _ in range(40):
        played.add(np.zeros((1_000, 100)), everyone)  # 800 kB a step
    assert played.state_dict(np.zeros(1_000), everyone[:0]) is None
    assert played._actions.nbytes <= 16 * 2**20


def test_options_of_a_reset_are_replayed(tmp_path: Any) -> None:
    first, second = (collector_of(tk.make_envs(WithOptions, 2, seed=5)) for _ in range(2))
    first.envs.options = {"place": 1.5}
    first.collect(n_step=4)
    second.load_state_dict(through_a_file(first.state_dict(), tmp_path))
    assert_array_equal(first.envs.obs, second.envs.obs)
    assert second.envs.options is None


def test_options_that_no_file_can_hold_do_not_keep_a_run_from_being_saved(tmp_path: Any) -> None:
    first = collector_of(tk.make_envs(WithOptions, 2, seed=5))
    first.envs.options = {"place": 1.5, "friend": object()}
    first.collect(n_step=4)
    assert through_a_file(first.state_dict(), tmp_path)["envs"]["played"] is None


def test_episodes_with_different_reset_options_are_replayed_with_their_own(caplog: Any) -> None:
    first, second = (collector_of(tk.make_envs(WithOptions, 2, seed=5)) for _ in range(2))
    first.collect(n_step=2)
    first.envs.options = {"place": 1.5}
    while len(set(first.envs.episodes.tolist())) == 1:
        first.collect(n_step=2)
    state = first.state_dict()
    assert sorted(map(repr, state["envs"]["played"]["options"])) == ["None", "{'place': 1.5}"]
    caplog.clear()
    second.load_state_dict(state)
    assert not caplog.text
    assert_array_equal(second.envs.obs, first.envs.obs)


# ---- environments that keep something from one episode to the next ----


@pytest.mark.parametrize("backend", ["sync", "async"])
@pytest.mark.parametrize(("env", "name"), OUTLIVES)
def test_state_that_outlives_episodes_is_warned_of_on_resume(
    env: Any, name: str, backend: str, tmp_path: Any, caplog: Any
) -> None:
    check_that_lost_state_is_warned_of(env, name, tmp_path, caplog, backend=backend)


def test_a_first_episode_has_nothing_to_lose(tmp_path: Any, caplog: Any) -> None:
    first, second = (collector_of(tk.make_envs(Counts, 2, seed=5)) for _ in range(2))
    first.collect(n_step=4)
    second.load_state_dict(through_a_file(first.state_dict(), tmp_path))
    assert warnings_of(caplog) == []


def test_a_checkpoint_without_fingerprints_loads_in_silence(caplog: Any) -> None:
    first, second = (collector_of(tk.make_envs(Counts, 2, seed=5)) for _ in range(2))
    first.collect(n_step=60)
    state = first.state_dict()
    del state["envs"]["fingerprints"]
    second.load_state_dict(state)
    assert warnings_of(caplog) == []


def test_a_process_that_died_or_is_in_a_step_does_not_keep_a_run_from_being_saved(caplog: Any) -> None:
    collector = collector_of(tk.make_envs(Counts, 3, seed=5, backend="async"))
    collector.collect(n_step=6)
    runner = collector.envs.runner
    runner._processes[0].kill()
    runner._processes[0].wait(None)
    runner._workers[1].request_step([0], [0])  # its answer was never read, as after a second Ctrl-C
    try:
        first, second, third = collector.state_dict()["envs"]["fingerprints"]
        assert (first, second) == ({}, {})
        assert "n_walks" in third
        (warning,) = warnings_of(caplog)
        assert "env 0 died in the fingerprint of its attributes: its process was killed by SIGKILL" in warning
    finally:
        collector.envs.close()


def newest(name: str) -> str:
    """Return the id of an environment's last version; older ones warn."""
    return max(env_id for env_id in gym.registry if env_id.rpartition("-v")[0] == name)


PLAIN = ["CartPole", "Acrobot", "MountainCar", "MountainCarContinuous", "Pendulum"]
PLAIN += ["FrozenLake", "Taxi", "CliffWalking", "Blackjack"]


@pytest.mark.parametrize(
    ("env", "backend"), [*[(env, "sync") for env in PLAIN], ("CartPole", "async"), ("Taxi", "async")]
)
def test_gymnasiums_own_environments_keep_nothing_across_episodes(
    env: str, backend: Any, tmp_path: Any, caplog: Any
) -> None:
    both = [tk.make_envs(newest(env), 2, seed=5, backend=backend, max_episode_steps=25) for _ in range(2)]
    first, second = map(collector_of, both)
    try:
        for n_step in (3, 180):  # in the first episodes, and after others
            first.collect(n_step=n_step)
            second.load_state_dict(through_a_file(first.state_dict(), tmp_path))
            assert warnings_of(caplog) == []
            assert_array_equal(second.open_ids, first.open_ids)
    finally:
        for envs in both:
            envs.close()


def changed(one: Any, other: Any) -> dict[int, list[str]]:
    """Compare environments whose attribute `x` is one or the other."""
    pair = [fingerprint(SimpleNamespace(y=0, x=value)) for value in (one, other)]
    return differences(pair[:1], pair[1:])


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (1, 2),
        (0.0, -0.0),
        (True, 1),
        ("a", "b"),
        (b"a", "a"),
        (None, 3),
        (np.float32(1), np.float64(1)),
        (np.zeros(3), np.array([0.0, 0.0, 1e-300])),
        (np.zeros((2, 3)), np.zeros((3, 2))),
        ([1, [2]], [1, 2]),
        ({"a": [1]}, {"a": [1, 1]}),
        ({1, 2}, {1, 3}),
        (deque([1]), deque([2])),
        (np.random.default_rng(1), np.random.default_rng(2)),
        (random.Random(1), random.Random(2)),
        ([0] * 900, [0] * 1100),  # it grew beyond what is compared
    ],
)
def test_other_values_differ_and_the_same_do_not(one: Any, other: Any) -> None:
    assert changed(one, other) == {0: ["x"]}
    assert changed(one, one) == changed(other, other) == {}


def test_values_that_are_equal_have_equal_digests() -> None:
    assert changed(float("nan"), float("nan")) == {}
    assert changed(np.array([1.5, np.nan]), np.array([1.5, np.nan])) == {}
    assert changed({"one", "two", "three"}, {"three", "two", "one"}) == {}


class Raises(list[int]):
    """Raise wherever it is looked into."""

    @property
    def unwrapped(self) -> Any:
        raise OSError("mine")

    def __iter__(self) -> Any:
        raise OSError("mine")


@pytest.mark.parametrize(
    "value",
    [
        object(),
        Raises([1]),
        [object()],
        {"a": object()},
        None,
        np.zeros(10_000),
        np.array([object()]),
        "a" * 100_000,
        list(range(2_000)),
        {(1, key) for key in range(2_000)},
    ],
)
def test_objects_and_large_values_are_left_out(value: Any) -> None:
    assert fingerprint(SimpleNamespace(x=value)) == {}


def test_a_container_that_holds_itself_is_left_out() -> None:
    loop: list[Any] = []
    loop.append(loop)
    assert fingerprint(SimpleNamespace(x=loop)) == {}


def test_generators_seeded_by_resets_and_windows_are_left_out() -> None:
    names = ("_np_random_seed", "render_mode", "screen_width", "window_size", "pygame_ready", "viewer")
    assert fingerprint(SimpleNamespace(**dict.fromkeys(names, 1))) == {}


def test_a_slotted_or_broken_environment_has_an_empty_fingerprint() -> None:
    assert fingerprint(object()) == fingerprint(Raises()) == {}


def test_attributes_are_bounded_in_number() -> None:
    assert len(fingerprint(SimpleNamespace(**{f"x{place}": place for place in range(1_000)}))) == 256


def test_wrappers_are_not_looked_at() -> None:
    assert set(fingerprint(SimpleNamespace(of_wrapper=1, unwrapped=SimpleNamespace(own=1)))) == {"own"}


def test_an_empty_fingerprint_is_unknown_and_not_compared() -> None:
    assert differences([{}, {"x": "1"}, {"x": "1"}], [{"x": "1"}, {}, {"x": "2"}]) == {2: ["x"]}


def test_differences_are_described_by_attribute_and_cut_where_long() -> None:
    assert in_words({0: ["x"], 1: ["x"], 3: ["x", "y"]}) == "x of env 0, 1; x, y of env 3"
    assert in_words({index: ["x"] for index in range(10)}, "game") == "x of game 0, 1, 2, 3, 4, 5, 6, 7 and 2 more"
