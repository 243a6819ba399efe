"""Games of turns and dict games, written by hand, with the log that a slow reference needs."""

from typing import Any

import gymnasium as gym
import numpy as np

from trainkit.core.data import ACTION_MASK

LINES = [(0, 1, 2), (3, 4, 5), (6, 7, 8), (0, 3, 6), (1, 4, 7), (2, 5, 8), (0, 4, 8), (2, 4, 6)]


class TurnsBase:
    """PettingZoo's turn-based API, as its own base class has it."""

    possible_agents: list[str]

    def start(self) -> None:
        self.agents = list(self.possible_agents)
        self.rewards = dict.fromkeys(self.agents, 0.0)
        self._cumulative_rewards = dict.fromkeys(self.agents, 0.0)
        self.terminations = dict.fromkeys(self.agents, False)
        self.truncations = dict.fromkeys(self.agents, False)
        self.infos: dict[str, dict[str, Any]] = {name: {} for name in self.agents}
        self.agent_selection, self.last_mover = (
            self.agents[0],
            self.agents[-1],
        )  # an attribute that outlives a game does not resume

    def agent_iter(self) -> Any:
        while self.agents:
            yield self.agent_selection

    def observe(self, agent: str) -> Any:
        raise NotImplementedError

    def last(self) -> Any:
        agent = self.agent_selection
        flags = self.terminations[agent], self.truncations[agent]
        return self.observe(agent), self._cumulative_rewards[agent], *flags, self.infos[agent]

    def take_out_dead(self, action: Any) -> bool:
        """Remove the selected agent if its episode has ended, and select the next; return whether it had."""
        agent = self.agent_selection
        if not (self.terminations[agent] or self.truncations[agent]):
            return False
        assert action is None, "an agent that has ended makes no move"
        self.agents.remove(agent)
        self.select(self.last_mover)
        return True

    def select(self, after: str) -> None:
        """Select the agents that have ended first, then the next in turn."""
        self.last_mover = after
        ended = [name for name in self.agents if self.terminations[name] or self.truncations[name]]
        order = self.possible_agents
        turn = [order[(order.index(after) + 1 + i) % len(order)] for i in range(len(order))]
        alive = [name for name in turn if name in self.agents]
        self.agent_selection = (ended or alive or [after])[0]

    def pay(self, mover: str, gains: dict[str, float]) -> None:
        """Pay agents in a move, as PettingZoo accumulates rewards."""
        self._cumulative_rewards[mover] = 0.0
        for name in self.agents:
            self.rewards[name] = gains.get(name, 0.0)
            self._cumulative_rewards[name] += self.rewards[name]


class TicTacToe(TurnsBase):
    """Tic-tac-toe of two agents; a move on square s also pays its player 0.5 and the other one s/16.

    Attributes:
        log: of each game: the moves (player, board before, square), and the winner or None.
    """

    metadata: dict[str, Any] = {"render_modes": ["rgb_array"], "is_parallelizable": False}  # noqa: RUF012
    render_mode = "rgb_array"

    def __init__(self) -> None:
        self.possible_agents = ["cross", "nought"]
        self.log: list[tuple[list[tuple[int, list[int], int]], int | None]] = []
        self.n_closed = 0

    def observation_space(self, agent: str) -> gym.Space[Any]:
        board = gym.spaces.Box(-1, 1, (9,), np.int8)
        return gym.spaces.Dict({"board": board, ACTION_MASK: gym.spaces.MultiBinary(9)})

    def action_space(self, agent: str) -> gym.Space[Any]:
        return gym.spaces.Discrete(9)

    def reset(self, seed: int | None = None, options: Any = None) -> None:
        self.start()
        self.board = [0] * 9
        self.moves: list[tuple[int, list[int], int]] = []
        self.log.append((self.moves, None))

    def observe(self, agent: str) -> Any:
        sign = 1 if agent == "cross" else -1
        mask = np.array([square == 0 for square in self.board], np.int8)
        if agent != self.agent_selection:
            mask[:] = 0
        return {"board": np.array([sign * square for square in self.board], np.int8), ACTION_MASK: mask}

    def step(self, action: Any) -> None:
        if self.take_out_dead(action):
            return
        mover = self.agent_selection
        player = self.possible_agents.index(mover)
        assert self.board[action] == 0, "the square is taken"
        self.moves.append((player, list(self.board), int(action)))
        self.board[action] = (1, -1)[player]
        other = self.possible_agents[1 - player]
        gains = {mover: 0.5, other: int(action) / 16}
        has_won = any(all(self.board[square] == (1, -1)[player] for square in line) for line in LINES)
        if has_won:
            self.log[-1] = (self.moves, player)
            gains = {mover: gains[mover] + 100.0, other: gains[other] - 100.0}
        if has_won or 0 not in self.board:
            self.terminations = dict.fromkeys(self.agents, True)
        self.pay(mover, gains)
        self.select(mover)

    def render(self) -> Any:
        return np.zeros((4, 4, 3), np.uint8)

    def close(self) -> None:
        self.n_closed += 1


class Elimination(TurnsBase):
    """Three agents in turn for 3 rounds; "b" is out after round 2, and all are truncated after round 3.

    The k-th move of the game pays its player 10**k and each other agent in the game 2 * 10**k.
    """

    def __init__(self) -> None:
        self.possible_agents = ["a", "b", "c"]

    def observation_space(self, agent: str) -> gym.Space[Any]:
        return gym.spaces.Box(0, 100, (2,), np.float32)

    def action_space(self, agent: str) -> gym.Space[Any]:
        return gym.spaces.Discrete(2)

    def reset(self, seed: int | None = None, options: Any = None) -> None:
        self.start()
        self.move = 0

    def observe(self, agent: str) -> Any:
        return np.array([self.possible_agents.index(agent), self.move], np.float32)

    def step(self, action: Any) -> None:
        if self.take_out_dead(action):
            return
        mover, amount = self.agent_selection, 10.0**self.move
        self.pay(mover, {name: amount if name == mover else 2 * amount for name in self.agents})
        self.move += 1
        if self.move == 6:  # after c's second move
            self.terminations["b"] = True
        if self.move == 8:  # a, c moved once more
            self.truncations = dict.fromkeys(self.truncations, True)
        self.select(mover)


class Meetings:
    """A dict game with RLlib's API: agent 0 is observed in every step, agent 1 in every third, agent 2 leaves early.

    Step k pays 10**k to every agent, observed or not. No one is observed in step 4. It ends after 6 steps, for all,
    without last observations for agent 1.
    """

    def __init__(self, *, is_truncated: bool = False) -> None:
        self.possible_agents = self.agents = [0, 1, 2]
        self.observation_spaces = {agent: gym.spaces.Box(-1, 10, (2,), np.float32) for agent in self.agents}
        self.action_spaces = {agent: gym.spaces.Discrete(4) for agent in self.agents}
        self.is_truncated = is_truncated
        self.actions: list[dict[int, int]] = []

    def _see(self, agents: list[int]) -> dict[int, Any]:
        return {agent: np.array([agent, self.time], np.float32) for agent in agents}

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        self.time = 0
        return self._see([0, 1, 2]), {0: {"first": 1}, "__common__": {"weather": "fine"}}

    def step(self, actions: dict[int, Any]) -> Any:
        self.actions.append({agent: int(action) for agent, action in actions.items()})
        rewards = dict.fromkeys((0, 1, 2), 10.0**self.time)
        self.time += 1
        seen = {1: [0], 2: [0, 2], 3: [0, 1], 4: [], 5: [0], 6: [0]}[self.time]
        ended = {2: self.time >= 2}
        flags = {"__all__": self.time == 6 and not self.is_truncated}, {"__all__": self.time == 6 and self.is_truncated}
        return self._see(seen), rewards, {**flags[0], **ended}, flags[1], {"__common__": {"weather": "wet"}}


class Interview:
    """A parallel game of agents with different spaces: one asks, one answers, one listens to both, for 4 steps.

    Observations are [agent, step, ...] in arrays of different shapes. The one who answers has a mask that allows the
    step's number modulo 3.
    """

    possible_agents = ("asks", "answers", "listens")

    def __init__(self, kind: str = "discrete") -> None:
        self.kind = kind
        self.agents = list(self.possible_agents)
        self.received: list[dict[str, Any]] = []

    def observation_space(self, agent: str) -> gym.Space[Any]:
        if agent == "answers":
            question = gym.spaces.Box(-1, 9, (3,), np.float32)
            return gym.spaces.Dict({"question": question, ACTION_MASK: gym.spaces.MultiBinary(3)})
        shape = (2,) if agent == "asks" else (2, 2)
        return gym.spaces.Box(-1, 9, shape, np.float32)

    def action_space(self, agent: str) -> gym.Space[Any]:
        if self.kind == "box":
            return gym.spaces.Box(-1, 1, {"asks": (2,), "answers": (1,), "listens": (2, 2)}[agent], np.float32)
        if self.kind == "mixed" and agent == "asks":
            return gym.spaces.Box(-1, 1, (1,), np.float32)
        return gym.spaces.Discrete({"asks": 2, "answers": 3, "listens": 5}[agent], start=7 * (agent == "listens"))

    def see(self, agent: str) -> Any:
        here = [self.possible_agents.index(agent), self.time]
        if agent == "answers":
            mask = np.arange(3) == self.time % 3
            return {"question": np.array([*here, 5], np.float32), ACTION_MASK: mask.astype(np.int8)}
        return np.array(here if agent == "asks" else [here, here], np.float32)

    def reset(self, seed: int | None = None, options: Any = None) -> Any:
        self.time, self.agents = 0, list(self.possible_agents)
        return {agent: self.see(agent) for agent in self.agents}, {}

    def step(self, actions: dict[str, Any]) -> Any:
        self.received.append(dict(actions))
        self.time += 1
        agents, is_over = self.agents, self.time == 4
        self.agents = [] if is_over else agents
        rewards, flags = dict.fromkeys(agents, 1.0), (dict.fromkeys(agents, is_over), dict.fromkeys(agents, False))
        return {agent: self.see(agent) for agent in agents}, rewards, *flags, {}
