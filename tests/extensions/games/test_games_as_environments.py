"""What holds for environments holds for games of several agents: spaces, owners, overlapped work, limits, actions."""

from functools import partial
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium import spaces

import trainkit as tk
from tests.helpers.doubles import Ledger, Player, Still
from tests.helpers.games import AGENTS, TaggedGame
from tests.helpers.nested_actions import CHOICES
from trainkit.collector import Collector
from trainkit.core.errors import ConfigError
from trainkit.envs import make_envs


def test_the_agents_of_a_game_have_given_spaces() -> None:
    space = gym.spaces.Box(-9, 2**20, (5,), np.float32)
    envs = make_envs(partial(TaggedGame, 0), observation_space=space, action_space=gym.spaces.Discrete(2))
    assert (envs.observation_space, envs.action_space) == (space, gym.spaces.Discrete(2))
    assert Collector(Still(), envs).collect(n_step=20).n_step >= 20
    with pytest.raises(ConfigError, match="is not within"):
        make_envs(partial(TaggedGame, 0), action_space=gym.spaces.Discrete(99))
    envs.close()


def test_one_game_is_not_for_two_envs() -> None:
    game = TaggedGame(0)
    first = make_envs(lambda: game)
    with pytest.raises(ConfigError, match=r"env 0, .*TaggedGame.* already belongs to another Envs"):
        make_envs(lambda: game)
    del first
    make_envs(lambda: game)  # collected as garbage, in spite of cycles


def test_games_of_several_agents_are_stepped_after_the_work() -> None:
    collector = Collector(Player(), make_envs([lambda: TaggedGame(0)]), tk.ReplayBuffer(100))
    done: list[int] = []
    collector.overlap = lambda: done.append(collector.env_step)
    collector.collect(n_step=4)
    assert done[0] == 0
    assert len(done) == len(set(done)) >= 2


def test_a_game_is_truncated_as_a_whole() -> None:
    ledger = Ledger()
    collector = Collector(Player(), make_envs([partial(TaggedGame, game) for game in range(2)]), ledger)
    stats = collector.collect(n_episode=8, max_episode_steps=3)
    assert (stats.n_episode, stats.lengths.max) == (8, 3)
    assert stats.n_cut_episodes > 0
    rows = ledger.rows()
    assert (rows.next_obs[:, 3] <= 3).all()
    last = rows.next_obs[:, 3] == 3
    assert (rows.terminated | rows.truncated)[last].all()
    assert set(stats.agents) == set(AGENTS)


def test_agents_of_a_game_take_nested_actions() -> None:
    class Game:
        possible_agents = ["x", "y"]  # noqa: RUF012  # PettingZoo's way
        metadata: dict[str, Any] = {}  # noqa: RUF012

        def observation_space(self, agent: str) -> Any:
            return spaces.Box(0, 1, (2,), np.float32)

        def action_space(self, agent: str) -> Any:
            return CHOICES

        def reset(self, seed: int | None = None, options: Any = None) -> Any:
            self.agents = list(self.possible_agents)
            return {name: np.zeros(2, np.float32) for name in self.agents}, {name: {} for name in self.agents}

        def step(self, actions: dict[str, Any]) -> Any:
            assert all(CHOICES.contains(action) for action in actions.values()), actions
            names = self.agents
            none = dict.fromkeys(names, False)
            obs = {name: np.zeros(2, np.float32) for name in names}
            return obs, dict.fromkeys(names, 1.0), none, dict.fromkeys(names, False), {name: {} for name in names}

        def close(self) -> None:
            """Keep nothing open."""

    envs = tk.make_envs(Game, 2)
    policy = tk.PPOPolicy.for_envs(envs, hidden=(4,), seed=1)
    assert tk.Collector(policy, envs, tk.RolloutBuffer()).collect(n_step=16).n_step == 16
