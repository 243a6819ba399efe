"""Small runs of every preset, on any device, and how close their results must be."""

from typing import Any

import gymnasium as gym
import numpy as np
import torch
from gymnasium import spaces

import trainkit as tk
from tests.helpers.evaluation_options import as_evaluated
from tests.helpers.learning import assert_same, observations
from trainkit import presets

N_UPDATES = 3


class Corridor(gym.Env[np.ndarray, Any]):
    """Walk along a line by one of three actions, or by a force; an episode takes 9 steps."""

    observation_space = gym.spaces.Box(-10.0, 10.0, (4,), np.float32)

    def __init__(self, action_space: gym.Space[Any] | None = None) -> None:
        self.action_space = gym.spaces.Discrete(3) if action_space is None else action_space

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[np.ndarray, dict[str, Any]]:
        super().reset(seed=seed)
        self._place, self._clock = self.np_random.normal(size=4), 0
        return self._place.astype(np.float32), {}

    def step(self, action: Any) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        self._clock += 1
        self._place = 0.8 * self._place + 0.3 * (np.mean(action) - 1.0) + 0.1 * self.np_random.normal(size=4)
        return self._place.astype(np.float32), float(self._place[0]), self._clock == 9, False, {}


class Push(Corridor):
    """The same, by a force."""

    def __init__(self) -> None:
        super().__init__(gym.spaces.Box(-1.0, 1.0, (2,), np.float32))


class Mazes(Corridor):
    """The same, with a Dict observation and one action that is illegal at a time."""

    observation_space = spaces.Dict({
        "place": Corridor.observation_space,
        "map": spaces.Box(0, 255, (1, 36, 36), np.uint8),
        "color": spaces.Discrete(5),
        "action_mask": spaces.MultiBinary(3),
    })  # fmt: skip

    def reset(self, **options: Any) -> tuple[Any, dict[str, Any]]:
        place, info = super().reset(**options)
        return self._seen(place), info

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        assert action != self._clock % 3, "an illegal action was taken"
        place, *rest = super().step(action)
        return self._seen(place), *rest

    def _seen(self, place: Any) -> dict[str, Any]:
        mask = (np.arange(3) != self._clock % 3).astype(np.int8)
        pixels = np.full((1, 36, 36), 20 * self._clock, np.uint8)
        return {"place": place, "map": pixels, "color": np.int64(self._clock % 5), "action_mask": mask}


def dataset(env: type[Corridor] = Corridor) -> tk.ReplayBuffer:
    """Make a buffer of 60 random rows in episodes of 6."""
    rng, ended = np.random.default_rng(0), np.arange(60) % 6 == 5
    obs, next_obs = (observations(env.observation_space, 60, seed) for seed in (0, 1))
    columns = {"obs": obs, "next_obs": next_obs, "action": rng.integers(3, size=60), "reward": rng.normal(size=60)}
    if env is Mazes:
        columns["action"] = obs["action_mask"].argmax(axis=1)
    return tk.ReplayBuffer.from_arrays(**columns, terminated=ended, truncated=np.zeros(60, np.bool_))


def tolerance_of(device: torch.device, precision: str = "float32") -> float:
    """Return how far numbers may be from the CPU's: the pretend device has its kernels, a GPU rounds otherwise."""
    if precision == "bf16":
        return 0.05
    return 1e-5 if device.type == "pretend" else 2e-3


# noise, actions, orders of rows
CONTINUOUS = {name for name, preset in presets.PRESETS.items() if preset.domains[0] == "continuous"}
DRAW_ON_THE_DEVICE = {"noisy_dqn", "rainbow", "iqn", "ppo", "recurrent_ppo", "ippo", "mappo", "a2c", "reinforce"}
DRAW_ON_THE_DEVICE |= CONTINUOUS


def draws_as_the_cpu(name: str, device: torch.device) -> bool:
    """Return whether a preset draws the CPU's numbers: the pretend device's generator does, a GPU's does not."""
    return device.type == "pretend" or name not in DRAW_ON_THE_DEVICE


def assert_equal_runs(there: Any, here: Any, tolerance: float) -> None:
    """Compare the numbers of two runs by name."""
    assert there.keys() == here.keys()
    for name in here:
        own = 10 * tolerance if name.endswith("grad_norm") else tolerance  # a sum over all weights
        np.testing.assert_allclose(there[name], here[name], rtol=own, atol=own, err_msg=name)


def assert_finite_runs(there: Any, here: Any) -> None:
    """Compare the names of the numbers of two runs that drew other numbers, each of which is finite."""
    assert there.keys() == here.keys()
    assert [name for name, number in there.items() if not np.isfinite(number).all()] == []


def assert_repeated(one: Any, other: Any, device: torch.device) -> None:
    """Compare what two runs on one device have: every bit, but on a GPU, whose kernels may sum in another order."""
    weights = ({path: weight.cpu() for path, weight in run["weights"].items()} for run in (one, other))
    assert_equal_runs(*weights, tolerance_of(device))
    if device.type == "pretend":
        assert_same(one, other)


def make(name: str, device: Any, env: type[Corridor] = Corridor, *, n_updates: int = N_UPDATES, **options: Any) -> Any:
    """Make a preset's trainer that takes some updates in one epoch, executed by torch."""
    common = {
        "seed": 1,
        "device": str(device),
        "verbose": False,
        "show_progress": False,
        "max_epoch": 1,
        "hidden": (16,),
    }
    preset: Any = presets.PRESETS[name]
    if preset.learns_from_data:
        trainer = preset(dataset(env), env, **common | {"update_per_epoch": n_updates, "batch_size": 8} | options)
        trainer.policy.engine = "torch"
        return trainer
    common |= {"engine": "torch", "n_envs": 2, "n_test_envs": 2, "episode_per_test": 2}
    if isinstance(preset, presets.OnpolicyPreset):
        common |= {"step_per_epoch": 16 * n_updates, "step_per_collect": 16, "repeat_per_collect": 1, "batch_size": 16}
        if name == "reinforce":  # learns from whole episodes
            common |= {"step_per_collect": None, "episode_per_collect": 2, "step_per_epoch": 18 * n_updates}
    else:
        common |= {"step_per_epoch": 18 + 2 * n_updates, "learning_starts": 20, "step_per_collect": 2, "batch_size": 8}
        common |= {"update_per_step": 0.5}
    return preset(Push if preset.domains[0] == "continuous" else env, **as_evaluated(common | options))
