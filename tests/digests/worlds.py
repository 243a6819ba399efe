"""Small environments and games whose episodes are recorded on tapes, and a simulator."""

from collections.abc import Iterator, Mapping
from typing import Any, Literal

import gymnasium as gym
import numpy as np
import torch
from gymnasium import spaces

import trainkit as tk
from tests.helpers.turns import TicTacToe

ObsForm = Literal["vector", "masked", "dict", "grid"]


class Tape:
    """The observations and actions of one environment, episode by episode.

    An episode that a reset ends before its end leaves nothing, and neither does an environment in another process.
    """

    def __init__(self) -> None:
        self._over: list[bytes] = []
        self._open = bytearray()

    def begin(self) -> None:
        """Start an episode; discard one that is open."""
        self._open.clear()

    def add(self, *values: Any) -> None:
        """Record observations or actions of the running episode: arrays, numbers, or trees of them."""
        for value in values:
            for leaf in leaves(value):
                self._open += np.asarray(leaf).tobytes()

    def end(self) -> None:
        """End the running episode."""
        self._over.append(bytes(self._open))
        self._open.clear()

    def prepend(self, before: "Tape") -> None:
        """Add the episodes that were over when the run was saved; the one that was open is played again here."""
        self._over[:0] = before._over

    def read(self) -> bytes:
        """Return everything recorded, the open episode last."""
        return b"".join([*self._over, self._open])


def leaves(tree: Any) -> Iterator[Any]:
    """Yield the leaves of an observation or action, those of a dict in the order of their names."""
    if isinstance(tree, Mapping):
        for name in sorted(tree):
            yield from leaves(tree[name])
    elif isinstance(tree, tuple):
        for child in tree:
            yield from leaves(child)
    else:
        yield tree


class Drift(gym.Env[Any, Any]):
    """Push a point that drifts by the episode's seed; an episode ends 3 from the center, or after 11 steps.

    The components of an action are pushes along the two axes in turn: numbers of a Box, and choices less 1. An
    observation is a vector of 4 numbers, the same with some pushes outwards illegal ("masked"), a dict with a discrete
    leaf, or a grid with the point on it.
    """

    def __init__(self, action_space: spaces.Space[Any], tape: Tape, form: ObsForm = "vector") -> None:
        self.action_space = action_space
        vector = spaces.Box(-20.0, 20.0, (4,), np.float32)
        place = spaces.Box(-20.0, 20.0, (2,), np.float32)
        self.observation_space = {
            "vector": vector,
            "masked": spaces.Dict({"obs": vector, "action_mask": spaces.MultiBinary(3)}),
            "dict": spaces.Dict({"place": place, "clock": spaces.Discrete(12), "noise": spaces.Box(-9, 9, (1,))}),
            "grid": spaces.Box(0, 1, (2, 6, 6), np.float32),
        }[form]
        self._form, self._tape = form, tape

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self._place, self._clock = self.np_random.uniform(-1.0, 1.0, 2), 0
        self._tape.begin()
        return self._obs(), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self._tape.add(action)
        self._place += 0.5 * np.resize(pushes(self.action_space, action), 2)
        self._place += self.np_random.normal(0.0, 0.2, 2)
        self._clock += 1
        distance = float(np.abs(self._place).max())
        terminated, truncated = distance > 3.0, self._clock >= 11
        obs = self._obs()
        if terminated or truncated:
            self._tape.end()
        return obs, 1.0 - distance, terminated, truncated, {}

    def _obs(self) -> Any:
        vector = np.array([*self._place, self._clock / 11, self.np_random.normal()], np.float32)
        self._tape.add(vector)
        if self._form == "masked":
            mask = np.array([self._place[0] > -2.0, True, self._place[0] < 2.0], np.int8)
            return {"obs": vector, "action_mask": mask}
        if self._form == "dict":
            return {"place": vector[:2], "clock": self._clock, "noise": vector[3:]}
        if self._form == "grid":
            grid = np.zeros((2, 6, 6), np.float32)
            grid[(0, *np.clip(self._place + 3.0, 0, 5).astype(int))] = 1.0
            grid[1] = vector[2]
            return grid
        return vector


def pushes(space: spaces.Space[Any], action: Any) -> np.ndarray[Any, np.dtype[np.float64]]:
    """Return the components of an action as numbers around 0."""
    if isinstance(space, spaces.Dict):
        return np.concatenate([pushes(own, action[name]) for name, own in sorted(space.items())])
    if isinstance(space, spaces.Tuple):
        return np.concatenate([pushes(own, part) for own, part in zip(space, action, strict=True)])
    numbers = np.asarray(action, np.float64).ravel()
    return numbers if isinstance(space, spaces.Box) else numbers - 1.0


class ClippedReward(tk.envs.Processor):
    """Add the reward, clipped to -1 and 1, to a vector, and log it."""

    def bind(
        self, observation_space: spaces.Space[Any], action_space: spaces.Space[Any], n: int
    ) -> tuple[spaces.Space[Any], spaces.Space[Any]]:
        return spaces.Box(-20.0, 20.0, (5,), np.float32), action_space

    def begin(self, obs: Any, env_ids: Any) -> Any:
        return np.concatenate([obs, np.zeros((len(obs), 1), np.float32)], axis=1)

    def observe(self, obs: Any, action: Any, reward: Any, env_ids: Any) -> Any:
        clipped = np.clip(reward, -1.0, 1.0).astype(np.float32)
        self.log("clipped", clipped)
        return np.concatenate([obs, clipped[:, None]], axis=1)


class Chase:
    """A game of simultaneous moves: a fox chases a hare on a line that shakes, until it has it, or for 9 steps."""

    possible_agents = ("fox", "hare")
    state_space = spaces.Box(-20.0, 20.0, (3,), np.float32)

    def __init__(self, tape: Tape) -> None:
        self.agents: list[str] = []
        self._tape = tape

    def observation_space(self, agent: str) -> spaces.Space[Any]:
        return spaces.Box(-20.0, 20.0, (3,), np.float32)

    def action_space(self, agent: str) -> spaces.Space[Any]:
        return spaces.Discrete(3)

    def reset(self, seed: int | None = None, options: Any = None) -> tuple[dict[str, Any], dict[str, Any]]:
        self.agents, self._clock = list(self.possible_agents), 0
        self._random = np.random.default_rng(seed)
        self._places = self._random.uniform(-2.0, 2.0, 2)
        self._tape.begin()
        return self._obs(), {name: {} for name in self.agents}

    def step(self, actions: dict[str, Any]) -> tuple[dict[str, Any], ...]:
        self._tape.add(actions)
        self._places += [0.7 * (int(actions["fox"]) - 1), 0.5 * (int(actions["hare"]) - 1)]
        self._places += self._random.normal(0.0, 0.1, 2)
        self._clock += 1
        distance = float(abs(self._places[0] - self._places[1]))
        caught, late = distance < 0.3, self._clock >= 9
        obs = self._obs()
        if caught or late:
            self._tape.end()
            self.agents = []
        ends, cuts = dict.fromkeys(actions, caught), dict.fromkeys(actions, late)
        return obs, {"fox": -distance, "hare": distance}, ends, cuts, {name: {} for name in actions}

    def state(self) -> Any:
        return np.array([*self._places, self._clock], np.float32)

    def _obs(self) -> dict[str, Any]:
        fox, hare = np.clip(self._places, -20.0, 20.0).astype(np.float32)
        clock = np.float32(self._clock / 9)
        obs = {"fox": np.array([fox, hare, clock]), "hare": np.array([hare, fox, clock])}
        self._tape.add(obs)
        return obs


class Squares(TicTacToe):
    """Tic-tac-toe, a game of turns."""

    def __init__(self, tape: Tape) -> None:
        super().__init__()
        self._tape = tape

    def reset(self, seed: int | None = None, options: Any = None) -> None:
        self.log.clear()  # of former games, which a resumed run lacks
        super().reset(seed, options)
        self._tape.begin()

    def step(self, action: Any) -> None:
        was_over = any(self.terminations.values())
        super().step(action)
        if not was_over:
            self._tape.add(np.asarray(action), np.array(self.board))
            if any(self.terminations.values()):
                self._tape.end()


class TapedPendulum(tk.simulators.Pendulum):
    """A simulator; every step of all its environments is an episode on the tape, as a resumed run repeats none."""

    def __init__(self, n: int, tape: Tape) -> None:
        self._tape = tape
        super().__init__(n, max_episode_steps=15)

    def step(self, action: torch.Tensor) -> Any:
        result = super().step(action)
        self._tape.add(action.numpy(), *(column.numpy() for column in result))
        self._tape.end()
        return result
