"""CartPole and Pendulum as simulators: the equations of gymnasium's environments for N states at once."""

import math
from abc import ABC, abstractmethod
from typing import Any

import numpy as np
import torch
from gymnasium import spaces
from torch import Tensor

from trainkit.core.errors import Checks
from trainkit.core.signatures import checked
from trainkit.engine.device import resolve_device


class ClassicControl(ABC):
    """N copies of a system with two or more numbers of state, on any torch device; see `Simulator`.

    Args:
        n: number of environments.
        device: of all tensors.
        max_episode_steps: after which an episode is truncated.
    """

    observation_space: spaces.Space[Any]
    action_space: spaces.Space[Any]

    def __init__(self, n: int, *, device: str | torch.device = "cpu", max_episode_steps: int) -> None:
        with Checks(type(self).__name__) as checks:
            checks.integer("n", n, low=1)
            checks.integer("max_episode_steps", max_episode_steps, low=1)
        self.n, self.device, self.max_episode_steps = n, resolve_device(device), max_episode_steps
        self._generator = torch.Generator(self.device)
        self.reset(0)

    def reset(self, seed: int) -> Tensor:
        """Reset every environment and the random stream; return the observations [N, ...]."""
        self._generator.manual_seed(seed)
        self._state = self._drawn()
        self._elapsed = torch.zeros(self.n, dtype=torch.int64, device=self.device)  # steps of each episode
        return self._observed(self._state)

    def step(self, action: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
        """Step every environment; see `Simulator.step`."""
        state, reward, terminated = self._advanced(self._state, action)
        self._elapsed = self._elapsed + 1
        truncated = self._elapsed >= self.max_episode_steps
        over = terminated | truncated
        self._elapsed = self._elapsed.masked_fill(over, 0)
        self._state = torch.where(over.unsqueeze(1), self._drawn(), state)
        return self._observed(self._state), reward, terminated, truncated, self._observed(state)

    def state_dict(self) -> dict[str, Tensor]:
        """Return the states, the elapsed steps and the random stream."""
        return {"state": self._state, "elapsed": self._elapsed, "generator": self._generator.get_state()}

    def load_state_dict(self, state: dict[str, Tensor]) -> None:
        """Continue from a saved state."""
        self._state, self._elapsed = state["state"].to(self.device), state["elapsed"].to(self.device)
        self._generator.set_state(state["generator"])

    def _uniform(self, *high: float) -> Tensor:
        """Draw states [N, S], each number between -high and high."""
        drawn = torch.rand((self.n, len(high)), generator=self._generator, device=self.device, dtype=torch.float32)
        return torch.stack([(2.0 * column - 1.0) * one for column, one in zip(drawn.unbind(1), high, strict=True)], 1)

    @abstractmethod
    def _drawn(self) -> Tensor:
        """Draw initial states [N, S]."""

    @abstractmethod
    def _advanced(self, state: Tensor, action: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return the next states [N, S], rewards [N], and which episodes terminated [N]."""

    @abstractmethod
    def _observed(self, state: Tensor) -> Tensor:
        """Return the observations [N, F] of states."""


@checked
class CartPole(ClassicControl):
    """gymnasium's CartPole-v1 (Barto, Sutton and Anderson, 1983) for N environments.

    The state is the cart's position and velocity, the pole's angle and angular velocity; Euler steps of 0.02 s. The
    reward is 1 per step, until the cart leaves +-2.4 or the pole +-12 degrees.
    """

    action_space = spaces.Discrete(2)

    def __init__(self, n: int, *, device: str | torch.device = "cpu", max_episode_steps: int = 500) -> None:
        bounds = np.array([4.8, np.inf, math.radians(24), np.inf], np.float32)
        self.observation_space = spaces.Box(-bounds, bounds)
        super().__init__(n, device=device, max_episode_steps=max_episode_steps)

    def _drawn(self) -> Tensor:
        return self._uniform(0.05, 0.05, 0.05, 0.05)

    def _advanced(self, state: Tensor, action: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        x, x_dot, theta, theta_dot = state.unbind(1)
        force = 20.0 * action - 10.0
        cos, sin = theta.cos(), theta.sin()
        pushed = (force + 0.05 * theta_dot.square() * sin) / 1.1  # 0.05: mass of the pole times half its length
        theta_acc = (9.8 * sin - cos * pushed) / (0.5 * (4.0 / 3.0 - 0.1 * cos.square() / 1.1))
        x_acc = pushed - 0.05 * theta_acc * cos / 1.1
        tau = 0.02
        moved = torch.stack(
            [x + tau * x_dot, x_dot + tau * x_acc, theta + tau * theta_dot, theta_dot + tau * theta_acc], 1
        )
        terminated = (moved[:, 0].abs() > 2.4) | (moved[:, 2].abs() > math.radians(12))
        return moved, torch.ones_like(x), terminated

    def _observed(self, state: Tensor) -> Tensor:
        return state


@checked
class Pendulum(ClassicControl):
    """gymnasium's Pendulum-v1 for N environments: swing up a pendulum by a torque of at most 2.

    The state is angle and angular velocity; steps of 0.05 s; the reward is minus a cost of angle, velocity and torque.
    """

    def __init__(self, n: int, *, device: str | torch.device = "cpu", max_episode_steps: int = 200) -> None:
        high = np.array([1.0, 1.0, 8.0], np.float32)
        self.observation_space = spaces.Box(-high, high)
        self.action_space = spaces.Box(-2.0, 2.0, (1,), np.float32)
        super().__init__(n, device=device, max_episode_steps=max_episode_steps)

    def _drawn(self) -> Tensor:
        return self._uniform(math.pi, 1.0)

    def _advanced(self, state: Tensor, action: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        theta, theta_dot = state.unbind(1)
        torque = action[:, 0].clamp(-2.0, 2.0)
        angle = torch.remainder(theta + math.pi, 2.0 * math.pi) - math.pi
        cost = angle.square() + 0.1 * theta_dot.square() + 0.001 * torque.square()
        theta_dot = (theta_dot + (15.0 * theta.sin() + 3.0 * torque) * 0.05).clamp(-8.0, 8.0)
        moved = torch.stack([theta + 0.05 * theta_dot, theta_dot], dim=1)
        return moved, -cost, torch.zeros(self.n, dtype=torch.bool, device=self.device)

    def _observed(self, state: Tensor) -> Tensor:
        theta, theta_dot = state.unbind(1)
        return torch.stack([theta.cos(), theta.sin(), theta_dot], dim=1)
