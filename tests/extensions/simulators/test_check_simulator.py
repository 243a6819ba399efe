"""The check of simulators finds what would spoil learning, and says what to do."""

from typing import Any

import gymnasium as gym
import pytest
import torch

import trainkit as tk
from trainkit.simulators import CartPole, check_simulator


class Unseeded(CartPole):
    n_resets = 0

    def reset(self, seed: int) -> Any:
        self.n_resets += 1
        return super().reset(seed + self.n_resets)


class Late(CartPole):
    def step(self, action: Any) -> Any:
        obs, *rest, _ = super().step(action)
        return obs, *rest, obs


class Endless(CartPole):
    def step(self, action: Any) -> Any:
        obs, reward, _, _, final_obs = super().step(action)
        never = torch.zeros(self.n, dtype=torch.bool)
        return obs, reward, never, never, final_obs


class Overflowing(CartPole):
    def step(self, action: Any) -> Any:
        obs, reward, *rest = super().step(action)
        return obs, reward / 0.0, *rest


class Forgetful(CartPole):
    def state_dict(self) -> dict[str, Any]:
        return super().state_dict() | {"state": torch.zeros(self.n, 4)}


class Stateless:
    def __init__(self, n: int) -> None:
        inner = CartPole(n)
        self.n, self.device, self.reset, self.step = n, inner.device, inner.reset, inner.step
        self.observation_space, self.action_space = inner.observation_space, inner.action_space


class FloatFlags(CartPole):
    def step(self, action: Any) -> Any:
        obs, reward, terminated, *rest = super().step(action)
        return obs, reward, terminated.float(), *rest


@pytest.mark.parametrize(
    ("kind", "level", "what"),
    [
        (Unseeded, "warning", "differs after two resets with the same seed"),
        (Late, "error", "returns the observation after the reset as final_obs"),
        (Endless, "warning", "ended no episode within 80 steps"),
        (Overflowing, "error", "returns reward that is not finite"),
        (Forgetful, "error", "continues in another way after load_state_dict"),
        (Stateless, "note", "has no state_dict and load_state_dict"),
        (FloatFlags, "error", "must return terminated as a tensor bool[4] on cpu, got float32[4] on cpu"),
    ],
)
def test_each_mistake_is_found(kind: Any, level: str, what: str) -> None:
    found = check_simulator(kind(4), n_steps=80)
    assert [one.level for one in found] == [level], found
    assert what in found[0].what


def test_a_simulator_in_use_is_not_stepped() -> None:
    simulator = CartPole(2)
    collector = tk.simulators.TensorCollector(tk.PPOPolicy.for_envs(simulator, device="cpu"), simulator)
    with pytest.raises(tk.ConfigError, match="CartPole already belongs to a collector"):
        check_simulator(simulator)
    collector.release()
    assert check_simulator(simulator) == []


def test_an_action_space_that_starts_at_1_is_rejected() -> None:
    simulator = CartPole(2)
    simulator.action_space = gym.spaces.Discrete(2, start=1)
    with pytest.raises(tk.ConfigError, match=r"CartPole.action_space must be a Box, .* or a Discrete that starts at 0"):
        check_simulator(simulator)
