"""Environments that are not quite gymnasium's: what is missing is named, with what to write instead."""

import logging
import sys
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium import spaces

import trainkit as tk
from trainkit.errors import BadEnvDataError, EnvError

BOX, CHOICE = spaces.Box(-10, 10, (2,), np.float32), spaces.Discrete(2)
BACKENDS = pytest.mark.parametrize("backend", ["sync", "async"])


class Standing(gym.Env[Any, Any]):
    """Nothing happens for five steps."""

    observation_space: Any = BOX
    action_space: Any = CHOICE

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self.count = 0
        return self.obs(), {}

    def obs(self) -> Any:
        return np.zeros(2, np.float32)

    def step(self, action: Any) -> Any:
        self.count += 1
        return self.obs(), 0.0, self.count >= 5, False, {}


class NoSpace(gym.Env[Any, Any]):
    action_space = CHOICE


class SpaceInReset(Standing):
    observation_space = action_space = None

    def reset(self, **kwargs: Any) -> Any:
        self.observation_space, self.action_space = BOX, CHOICE
        return super().reset(**kwargs)


class Exits(Standing):
    def __init__(self) -> None:
        sys.exit(3)


class ResetWithoutSeed(Standing):
    def reset(self) -> Any:  # type: ignore[override]  # the mistake
        self.count = 0
        return self.obs(), {}


def found(env: Any, level: str | None = None) -> str:
    """Return what `check_env` finds of a level, as text."""
    return "\n".join(f"{one.what}: {one.advice}" for one in tk.check_env(env) if level in (None, one.level))


@BACKENDS
@pytest.mark.parametrize("env", [NoSpace, SpaceInReset])
def test_an_error_says_where_to_set_missing_spaces(env: Any, backend: Any) -> None:
    with pytest.raises(tk.ConfigError, match=r"env 0, .*has observation_space None.*in its constructor"):
        tk.make_envs(env, 1, backend=backend)


@BACKENDS
def test_exiting_in_the_constructor_is_an_error_of_the_environment(backend: Any) -> None:
    with pytest.raises(EnvError, match="env 0 raised SystemExit when it was made: 3"):
        tk.make_envs(Exits, 1, backend=backend)
    assert "raised SystemExit" in found(Exits, "error")


@BACKENDS
def test_an_error_names_the_signature_of_a_reset_with_seed(backend: Any) -> None:
    envs = tk.make_envs(ResetWithoutSeed, 1, backend=backend)
    with pytest.raises(EnvError, match=r"def reset\(self, \*, seed=None, options=None\)"):
        tk.Collector(tk.RandomPolicy(envs.action_space, seed=0), envs).collect(n_step=1)
    envs.close()
    assert "def reset(self, *, seed=None, options=None)" in found(ResetWithoutSeed, "error")


def test_an_environment_of_gym_is_named_as_such() -> None:
    old = type("Old", (), {"__module__": "gym.core", "reset": lambda self: 0, "step": lambda self, action: 0})
    with pytest.raises(tk.ConfigError, match="it is of gym, which gymnasium replaced; wrap it by shimmy"):
        tk.make_envs(lambda: old(), 1)


class OtherVector:
    """What vector environments of other libraries have in common."""

    num_envs = 2
    observation_space, action_space = BOX, CHOICE

    def reset(self) -> Any:
        return np.zeros((2, 2), np.float32)

    def step(self, actions: Any) -> Any:
        return np.zeros((2, 2), np.float32), np.zeros(2), np.zeros(2, np.bool_), [{}, {}]


class HalfVector(gym.vector.VectorEnv[Any, Any, Any]):
    """A class of gymnasium's without the spaces of one environment."""

    num_envs = 2
    observation_space, action_space = BOX, CHOICE


@pytest.mark.parametrize("kind", [OtherVector, HalfVector])
def test_a_vector_environment_of_another_library_is_named_as_such(kind: Any) -> None:
    with pytest.raises(tk.ConfigError, match=rf"{kind.__name__}: it is a vector environment of another library"):
        tk.make_envs(kind())


# ---- action masks ----


class Masked(Standing):
    observation_space = spaces.Dict(obs=BOX, action_mask=spaces.MultiBinary(2))

    def obs(self) -> Any:
        return {"obs": np.zeros(2, np.float32), "action_mask": np.array([0, 1], np.int8)}


class MaskedParts(Masked):
    action_space = spaces.MultiDiscrete([2, 3])


def test_a_mask_of_several_parts_is_not_advised_to_be_flattened() -> None:
    text = found(MaskedParts, "error")
    assert "number the joint actions in a wrapper" in text
    assert "FlattenObservation" not in text
    with pytest.raises(tk.ConfigError, match="number the joint actions in a wrapper"):
        tk.make_envs(MaskedParts, 1)


class MaskedPartsInInfo(Standing):
    action_space = spaces.MultiDiscrete([2, 3])

    def reset(self, **options: Any) -> Any:
        obs, _ = super().reset(**options)
        return obs, {"action_mask": np.ones(5, np.int8)}


def test_a_mask_of_several_parts_in_the_info_is_not_advised_to_be_read_from_there() -> None:
    text = found(MaskedPartsInInfo, "warning")
    assert "number the joint actions in a wrapper" in text
    assert "mask_key" not in text


def test_an_illegal_action_of_a_script_is_named() -> None:
    legal = tk.policy.ScriptedPolicy(lambda obs: np.ones(len(obs["obs"]), np.int64))
    assert tk.Collector(legal, tk.make_envs(Masked, 2, seed=1)).collect(n_step=4).n_step == 4
    illegal = tk.policy.ScriptedPolicy(lambda obs: np.arange(len(obs["obs"]))[::-1])
    with pytest.raises(tk.ConfigError, match=r"legal actions, got 0 for env 1, whose action_mask allows \[1\]"):
        tk.Collector(illegal, tk.make_envs(Masked, 2, seed=1)).collect(n_step=4)


@pytest.mark.parametrize(
    "wrapper",
    [gym.wrappers.FlattenObservation, lambda env: gym.wrappers.FilterObservation(env, ["obs"])],
    ids=["FlattenObservation", "FilterObservation"],
)
@pytest.mark.parametrize("way", ["factory", "wrappers"])
def test_a_wrapper_that_dissolves_a_mask_is_warned_of(wrapper: Any, way: str, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, "trainkit"):
        if way == "factory":
            tk.make_envs(lambda: wrapper(Masked()), 3).close()
        else:
            tk.make_envs(Masked, 3, wrappers=[wrapper]).close()
    assert caplog.text.count("makes the environment's action_mask a feature, or removes it") == 1
    assert "illegal actions will be taken" in found(lambda: wrapper(Masked()), "warning")


def test_nothing_is_said_of_a_mask_that_stays(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, "trainkit"):
        tk.make_envs(Masked, 2, processors=[tk.envs.Flatten()], max_episode_steps=3).close()
    assert not caplog.records
    assert "mask" not in found(Masked)


# ---- what check_env finds ----


class Integers(Standing):
    size = 1

    def obs(self) -> Any:
        return np.array([self.size, 0], np.int64)


class LargeIntegers(Integers):
    observation_space = spaces.Box(-np.inf, np.inf, (2,), np.float32)
    size = 2**24 + 1


def test_integers_for_floats_are_found() -> None:
    assert "observation is int64, and the space says float32: return float32" in found(Integers, "note")
    assert "which rounds numbers as large as 16777217" in found(LargeIntegers, "warning")


@pytest.mark.parametrize(
    "space", [spaces.Sequence(CHOICE), spaces.Graph(BOX, None), spaces.Dict(a=spaces.Sequence(BOX))]
)
def test_spaces_of_no_fixed_length_are_advised_to_be_padded(space: Any) -> None:
    env = type("Varying", (Standing,), {"observation_space": space})
    text = found(env, "error")
    assert "pad it in a wrapper" in text
    assert "FlattenObservation" not in text


def test_whole_numbers_in_a_box_of_actions_are_found() -> None:
    env = type("Counted", (Standing,), {"action_space": spaces.Box(0, 5, (2,), np.int64)})
    assert "make it a MultiDiscrete" in found(env, "error")


# ---- rewards ----


@BACKENDS
@pytest.mark.parametrize(
    ("reward", "message"),
    [
        (10**400, "returned a reward of 1329 bits, which is too large for a float, at episode 0 step 2"),
        ("high", "returned reward 'high', which is not a number, at episode 0 step 2"),
        (np.nan, "returned reward nan, at episode 0 step 2"),
        (None, "returned reward None, which is not a number, at episode 0 step 2"),
    ],
    ids=["huge", "word", "nan", "none"],
)
def test_every_wrong_reward_is_said_to_be_of_the_same_step(reward: Any, message: str, backend: Any) -> None:
    class Wrong(Standing):
        def step(self, action: Any) -> Any:
            obs, _, *rest = super().step(action)
            return obs, reward if self.count == 2 else 0.0, *rest

    envs = tk.make_envs(Wrong, 1, backend=backend)
    with pytest.raises(BadEnvDataError, match=message):
        tk.Collector(tk.RandomPolicy(envs.action_space, seed=0), envs).collect(n_step=5)
    envs.close()


def test_a_tensor_of_one_number_is_a_reward_or_says_how_to_be_one() -> None:
    torch = pytest.importorskip("torch")

    class Tensors(Standing):
        def step(self, action: Any) -> Any:
            obs, _, *rest = super().step(action)
            return obs, torch.ones(1), *rest

    envs = tk.make_envs(Tensors, 1)
    with pytest.raises(BadEnvDataError, match=r"which is not a number: return reward\.item\(\)"):
        tk.Collector(tk.RandomPolicy(envs.action_space, seed=0), envs).collect(n_step=5)
