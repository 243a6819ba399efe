"""What is wrong with an environment is found before hours are spent in it."""

import itertools
import sys
from collections.abc import Callable
from functools import partial
from typing import Any

import gymnasium as gym
import numpy as np
import pytest

from tests.helpers.scripted_env import OBS, STEP, ScriptedEnv, answer
from trainkit.core.errors import ConfigError
from trainkit.envs import Finding, check_env

END = answer(terminated=True)
MASKED = gym.spaces.Dict(obs=gym.spaces.Box(-1, 1, (3,), np.float32), action_mask=gym.spaces.MultiBinary(2))


class Loop(gym.Env[Any, Any]):
    """Count to five, as determined by seed and actions, unless a part is replaced."""

    metadata = {"render_modes": ["rgb_array"]}  # noqa: RUF012  # gymnasium's own way
    observation_space = gym.spaces.Box(-9, 9, (2,), np.float32)
    action_space = gym.spaces.Discrete(3, start=5)

    def __init__(self, render_mode: str | None = "rgb_array") -> None:
        self.render_mode = render_mode
        self.n_closed = 0

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self.steps = 0
        return self.np_random.uniform(-1, 1, 2).astype(np.float32), {}

    def step(self, action: Any) -> Any:
        assert self.action_space.contains(np.int64(action))
        self.steps += 1
        return np.array([action, self.steps], np.float32), 1.0, self.steps == 5, False, {}

    def close(self) -> None:
        self.n_closed += 1


class Unseeded(Loop):
    def reset(self, **options: Any) -> Any:
        first, info = super().reset()
        return first, info


class Moody(Loop):
    """Steps draw from a stream that no seed reaches."""

    def __init__(self) -> None:
        super().__init__()
        self.rng = np.random.default_rng(0)

    def step(self, action: Any) -> Any:
        obs, _, *rest = super().step(action)
        return obs, self.rng.random(), *rest


class Reusing(Loop):
    """Write every observation into one array."""

    def reset(self, **options: Any) -> Any:
        self.array, info = super().reset(**options)
        return self.array, info

    def step(self, action: Any) -> Any:
        obs, *rest = super().step(action)
        self.array[:] = obs
        return self.array, *rest


class Limited(Loop):
    """Never end."""

    def step(self, action: Any) -> Any:
        obs, gain, _, truncated, info = super().step(action)
        return obs, gain, False, truncated, info


def scripted(*steps: Any, **options: Any) -> Callable[[], ScriptedEnv]:
    return partial(ScriptedEnv, steps=steps, **options)


class Masking(Loop):
    """An environment with sb3-contrib's method."""

    def action_masks(self) -> Any:
        return np.ones(3, bool)


def levels(findings: list[Finding], words: str) -> list[str]:
    """Return the levels of the findings that say so."""
    return [finding.level for finding in findings if words in str(finding)]


def test_a_valid_environment_has_only_a_note_on_its_speed(monkeypatch: pytest.MonkeyPatch) -> None:
    ticks = itertools.count()
    monkeypatch.setattr("trainkit.envs.env_checker.time.perf_counter", lambda: 1e-5 * next(ticks))
    (speed,) = check_env(Loop)
    assert speed.level == "note"
    assert speed.what == "it makes 100,000 steps per second"
    assert 'make_envs(backend="sync")' in speed.advice


@pytest.mark.parametrize(
    "spec",
    ["CartPole-v1", "tests.envs.test_env_checker.Loop", lambda: Loop(), lambda context: Loop()],
    ids=["id", "path", "factory", "factory with context"],
)
def test_ids_classes_and_factories_are_made(spec: Any) -> None:
    assert {finding.level for finding in check_env(spec)} == {"note"}


def test_a_limit_is_for_environments_that_are_made_here() -> None:
    assert not [one for one in check_env(Limited, n_steps=50, max_episode_steps=5) if "no episode ended" in one.what]
    with pytest.raises(ConfigError, match="max_episode_steps is for environments that it makes"):
        check_env(Limited(), max_episode_steps=20)


def test_a_made_environment_is_left_open_and_one_of_our_own_closed() -> None:
    env = Loop()
    check_env(env)
    assert env.n_closed == 0
    made: list[Loop] = []
    check_env(lambda: made.append(Loop()) or made[0])  # type: ignore[func-returns-value]  # appends, then returns
    assert made[0].n_closed == 1


@pytest.mark.parametrize(
    ("env", "level", "words"),
    [
        (Unseeded, "warning", "two resets with the same seed differ: call super().reset(seed=seed)"),
        (Moody, "warning", "two episodes with the same seed and actions differ"),
        (Reusing, "note", "it writes into observations it returned before"),
        (
            Limited,
            "warning",
            "no episode ended within 50 steps: let it terminate, or give max_episode_steps to make_envs and here",
        ),
        (partial(Loop, None), "note", "its render_mode is None: for videos"),
        (scripted(END), "note", "it renders nothing, no arrays"),
        (scripted(STEP, answer(terminated=True, truncated=True)), "note", "both terminated and truncated"),
        (scripted(answer(reward=None)), "error", "it returned reward None, which is not a number"),
        (scripted(answer(reward=np.nan)), "error", "a reward was nan"),
        (scripted(answer(reward=np.ones(1))), "note", "rewards are arrays float64 (1,): return a float"),
        (scripted(answer(terminated=1)), "note", "terminated is a int: return a bool"),
        (scripted(answer(terminated=None)), "error", "it returned terminated = None, which is not a bool"),
        (scripted(answer()[:4]), "error", "it returned 4 values from step"),
        (scripted(END, resets=[OBS]), "error", "it returned ndarray from reset, not (obs, info)"),
        (scripted(END, resets=[(OBS[:2], {})]), "error", "observation of shape (2,), the space says (3,)"),
        (scripted(END, resets=[(OBS.astype(np.float64), {})]), "note", "is float64 and is cast to the space's float32"),
        (scripted(answer(obs=OBS + 7)), "warning", "observation at [0] is 7, outside its bounds"),
        (scripted(answer(obs=OBS + np.inf)), "error", "observation has nan or infinity"),
        (scripted(OSError("no wheels")), "error", "it raised OSError in step: no wheels"),
        (scripted(END, resets=[KeyError("map")]), "error", "it raised KeyError in reset: 'map'"),
        (scripted(END, made=OSError("no licence")), "error", "it cannot be made: make_envs: env 0 raised OSError"),
        ("CartPol-v1", "error", "Did you mean: `CartPole`"),
        (5, "error", "check_env needs an id, a factory or an environment, got 5"),
        (
            scripted(observation_space=gym.spaces.Text(3)),
            "error",
            "ImgObsWrapper or FlatObsWrapper): gymnasium.wrappers.Fl",
        ),
        (
            scripted(action_space=gym.spaces.Dict(a=gym.spaces.Discrete(2), b=gym.spaces.Box(0, 9, (1,), np.uint8))),
            "error",
            "gymnasium.wrappers.TransformAction",
        ),
        (scripted(END, action_space=gym.spaces.Box(-np.inf, np.inf)), "warning", "have no bounds"),
        (scripted(END, resets=[(OBS, {"action_mask": [0, 1]})]), "warning", 'make_envs(mask_key="action_mask")'),
        (
            Masking,
            "warning",
            "its method action_masks(), sb3-contrib's, is not read: return masks as a leaf action_mask, or in the info",
        ),
        (
            scripted(END, resets=[({"obs": OBS, "action_mask": np.zeros(2, np.int8)}, {})], observation_space=MASKED),
            "error",
            "it allows no action: its action_mask is all False",
        ),
        (
            scripted(
                ({"obs": OBS, "action_mask": np.zeros(2, np.int8)}, 0.0, False, True, {}),
                resets=[({"obs": OBS, "action_mask": np.ones(2, np.int8)}, {})],
                observation_space=MASKED,
            ),
            "error",
            "it truncates an episode in an observation whose action_mask is all False",
        ),
    ],
)
def test_every_mistake_is_found_with_its_remedy(env: Any, level: str, words: str) -> None:
    assert levels(check_env(env, n_steps=50), words) == [level]


def test_a_tuple_may_be_returned_as_a_list_as_for_make_envs() -> None:
    space = gym.spaces.Tuple([gym.spaces.Box(-1, 1, (3,), np.float32), gym.spaces.Discrete(2)])
    obs = [np.zeros(3, np.float32), 1]
    findings = check_env(scripted(answer(obs=obs, terminated=True), resets=[(obs, {})], observation_space=space))
    assert {finding.level for finding in findings} == {"note"}


def test_an_unknown_id_has_its_own_remedy() -> None:
    (finding,) = check_env("CartPol-v1")
    remedy = "import the package that registers it, or give module:id, a class or a function that makes one"
    assert str(finding).startswith("error: it cannot be made: make_envs: Environment `CartPol`")
    assert str(finding).endswith(remedy)


def test_a_mask_in_the_info_is_used_or_warned_of() -> None:
    sound = scripted(END, resets=[(OBS, {"legal": [False, True]})])
    assert {finding.level for finding in check_env(sound, mask_key="legal")} == {"note"}
    env = ScriptedEnv(steps=[END], resets=[(OBS, {"legal": [False, True]})])
    check_env(env, mask_key="legal")
    assert set(map(int, env.actions)) == {1}
    (missing, *_) = check_env(scripted(END), mask_key="legal")
    assert missing.what == "info['legal'] is object (), not 2 bools"


def test_a_slow_environment_is_advised_processes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys.modules["trainkit.envs.env_checker"], "_MIN_ASYNC_MS", 0.0)
    assert 'make_envs(backend="async"): a process each' in check_env(Loop)[-1].advice


def test_errors_come_first() -> None:
    found = check_env(scripted(answer(terminated=1, reward=np.inf), resets=[(OBS + 7, {})]))
    assert [finding.level for finding in found] == ["error", "warning", "note", "note", "note"]


def test_wrong_arguments_are_rejected() -> None:
    with pytest.raises(ConfigError, match=r"n_steps must be .* got 0\ncheck_env.seed must be .* got -1"):
        check_env(Loop, n_steps=0, seed=-1)
