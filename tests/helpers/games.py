"""A game of several agents whose observations say whose they are and when: who is there follows from a plan.

A plan says of each agent from when to when it is in the game, and how it leaves: "terminated", "truncated", "both",
or "gone", without a word. An agent that is there from 2 to 4 is seen first at 2, acts
at 2 and 3, and is seen last at 4.
"""

from typing import Any

import gymnasium as gym
import numpy as np

from tests.helpers.tagged import N_ACTIONS
from trainkit.core.data import Transition

Plan = dict[str, list[tuple[int, int, str]]]
AGENTS = ["left", "right", "third"]
PLANS: list[Plan] = [
    {"left": [(0, 3, "terminated")], "right": [(0, 5, "truncated")], "third": [(0, 5, "terminated")]},  # one early
    {"left": [(0, 4, "terminated")], "right": [(0, 4, "both")], "third": [(0, 4, "truncated")]},  # all at once
    {"left": [(0, 6, "truncated")], "right": [(0, 6, "truncated")], "third": [(0, 6, "truncated")]},  # out of time
    {"left": [(0, 7, "gone")], "right": [(2, 4, "terminated"), (5, 7, "gone")], "third": [(1, 2, "truncated")]},  # late
    {"right": [(0, 1, "terminated")]},  # the others take no part
    {"left": [(0, 2, "both")], "third": [(0, 2, "gone"), (4, 5, "terminated")], "right": [(1, 5, "truncated")]},  # back
]


def plan_of(game: int, episode: int) -> Plan:
    """Return the plan of an episode: not two neighbours have the same."""
    return PLANS[(2 * game + episode) % len(PLANS)]


def length(game: int, episode: int) -> int:
    """Return how many steps a game has."""
    return max(end for stints in plan_of(game, episode).values() for _, end, _ in stints)


def reward(game: int, agent: int, episode: int, step: int) -> float:
    """Return a number for each step of each agent."""
    return 1.0 + step + 8 * agent + 32 * episode + 4096 * game


class TaggedGame:
    """A parallel environment that lives by the plans, and keeps a log: {(episode, agent, step): action}.

    One that haunts continues telling of agents who left: the dead stay dead, and among its agents; those gone without a
    word look as if nothing was.
    """

    def __init__(self, game: int, *, haunts: bool = False) -> None:
        self.haunts = haunts
        self.left: dict[str, str] = {}  # {agent: how}, of those who left
        self.n_calls = 0
        self.possible_agents = list(AGENTS)
        self.agents: list[str] = []
        self.game, self.episode, self.step_now = game, -1, 0
        self.log: dict[tuple[int, int, int], int] = {}
        self.seeds: list[Any] = []
        self.options: list[Any] = []
        self.n_closed = 0

    def observation_space(self, agent: str) -> gym.Space[Any]:
        return gym.spaces.Box(-1, 2**20, (5,), np.float32)

    def action_space(self, agent: str) -> gym.Space[Any]:
        return gym.spaces.Discrete(N_ACTIONS)

    def reset(self, seed: int | None = None, options: Any = None) -> tuple[dict[str, Any], dict[str, Any]]:
        self.seeds.append(seed)
        self.options.append(options)
        self.episode += 1
        self.step_now = 0
        self.left = {}
        self.agents = [name for name in AGENTS if self._stint(name) is not None]
        return {name: self._see(name) for name in self.agents}, {name: self._tell(name) for name in self.agents}

    def step(self, actions: dict[str, Any]) -> tuple[dict[str, Any], ...]:
        acting = [name for name in AGENTS if self._stint(name) is not None]
        assert sorted(actions) == sorted(acting), "who is in the game acts, nobody else"
        ends: dict[str, str] = {}
        for name, action in actions.items():
            self.log[self.episode, AGENTS.index(name), self.step_now] = int(action)
            stint = self._stint(name)
            assert stint is not None
            if stint[1] == self.step_now + 1:
                ends[name] = stint[2]
        gains = {name: reward(self.game, AGENTS.index(name), self.episode, self.step_now) for name in actions}
        self.step_now += 1
        self.agents = [name for name in AGENTS if self._stint(name) is not None]
        if self.haunts:
            self.left = {name: how for name, how in {**self.left, **ends}.items() if name not in self.agents}
            ends = dict(self.left)
            self.agents += [name for name, how in ends.items() if how != "gone"]
        seen = {*actions, *self.agents, *ends}
        return (
            {name: self._see(name) for name in seen},
            gains,
            {name: ends.get(name) in ("terminated", "both") for name in seen},
            {name: ends.get(name) in ("truncated", "both") for name in seen},
            {name: self._tell(name) for name in seen},
        )

    def level(self, add: int) -> int:
        self.n_calls += 1
        return 10 * self.game + add

    def close(self) -> None:
        self.n_closed += 1

    def _stint(self, name: str) -> tuple[int, int, str] | None:
        stints = plan_of(self.game, self.episode).get(name, [])
        return next((one for one in stints if one[0] <= self.step_now < one[1]), None)

    def _see(self, name: str) -> Any:
        agent = AGENTS.index(name)
        action = self.log.get((self.episode, agent, self.step_now - 1), -1)
        return np.array([self.game, agent, self.episode, self.step_now, action], np.float32)

    def _tell(self, name: str) -> dict[str, Any]:
        return {"legal": np.array([1, AGENTS.index(name) == 0, 1], np.int8)}


Row = tuple[list[int], int, float, list[int], bool, bool]  # before, action, reward, after, terminated, truncated


def rows_of(game: int, episode: int, log: dict[tuple[int, int, int], int]) -> dict[int, list[Row]]:
    """Return all rows of a game, {row: in order}, one stint of one agent after the other: the slow truth."""
    found: dict[int, list[Row]] = {}
    for name, stints in plan_of(game, episode).items():
        agent = AGENTS.index(name)
        rows = found.setdefault(game * len(AGENTS) + agent, [])
        for start, end, how in stints:
            for step in range(start, end):
                action = log[episode, agent, step]
                before = [game, agent, episode, step, log.get((episode, agent, step - 1), -1)]
                after = [game, agent, episode, step + 1, action]
                is_last = step + 1 == end
                terminated = is_last and how in ("terminated", "both")
                truncated = is_last and how in ("truncated", "both", "gone")
                rows.append((before, action, reward(game, agent, episode, step), after, terminated, truncated))
    return found


def stored(rows: Transition, n_rows: int) -> dict[int, list[Row]]:
    """Return what was stored of each row, in order, as the truth has it."""
    columns = [
        rows.obs.astype(int),
        rows.action,
        rows.reward,
        rows.next_obs.astype(int),
        rows.terminated,
        rows.truncated,
    ]
    found: dict[int, list[Row]] = {env_id: [] for env_id in range(n_rows)}
    for env_id, *row in zip(rows.env_ids.tolist(), *(column.tolist() for column in columns), strict=True):
        found[env_id].append(tuple(row))  # type: ignore[arg-type]  # in the order of a Row
    return found
