"""The state of a game as a leaf of observations, in each of the three APIs."""

from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest

import trainkit as tk
from tests.helpers.doubles import Ledger, Still
from tests.helpers.pairs import LENGTH, Corridors, SeenCorridors
from tests.helpers.turns import Meetings, TicTacToe
from trainkit import presets
from trainkit.cli.commands import main


class SeenTicTacToe(TicTacToe):
    """Tic-tac-toe whose state is the number of moves."""

    state_space = gym.spaces.Box(0, 9, (1,), np.float32)

    def __init__(self) -> None:
        super().__init__()
        self.n_moves = 0

    def reset(self, seed: Any = None, options: Any = None) -> None:
        super().reset(seed=seed, options=options)
        self.n_moves = 0

    def step(self, action: Any) -> None:
        super().step(action)
        self.n_moves += action is not None

    def state(self) -> Any:
        return np.array([self.n_moves], np.float32)


def test_all_agents_of_a_parallel_game_observe_the_state() -> None:
    envs = tk.make_envs(lambda: SeenCorridors({"left": 0, "right": 1}), 2, wrappers=[tk.envs.ObserveState], seed=1)
    policy = tk.RandomPolicy(envs.action_space, seed=0)
    buffer = tk.ReplayBuffer(100)
    tk.Collector(policy, envs, buffer).collect(n_step=4 * LENGTH)
    rows = buffer.sample(48, horizon=tk.Horizon(1, 0.9), columns=("env_id",))
    own, state = rows.obs["obs"], rows.obs["state"]
    agent = rows.extras["env_id"] % 2
    np.testing.assert_array_equal(state[np.arange(48), agent], own[:, 0])
    np.testing.assert_array_equal(rows.next_obs["state"][:, 2], rows.next_obs["obs"][:, 1])
    np.testing.assert_array_equal(rows.next_obs["state"][:, 2], state[:, 2] + 1)


def test_turns_are_observed_with_the_state_and_the_mask_stays() -> None:
    envs = tk.make_envs(SeenTicTacToe, 2, wrappers=[tk.envs.ObserveState], seed=1)
    assert {"state", "action_mask"} < set(envs.observation_space.spaces)  # type: ignore[attr-defined]  # of a Dict
    buffer = tk.ReplayBuffer(200)
    stats = tk.Collector(tk.RandomPolicy(envs.action_space, seed=0), envs, buffer).collect(n_episode=4)
    rows = buffer.sample(100, horizon=tk.Horizon(1, 0.9), columns=("env_id",))
    np.testing.assert_array_equal(rows.obs["state"][:, 0] % 2, rows.extras["env_id"] % 2)
    assert rows.next_obs["state"].max() == max(stats.episode_lengths)
    plain, seen = (
        [finding.what for finding in tk.envs.check_env(make) if finding.level != "note"]
        for make in (SeenTicTacToe, lambda: tk.envs.ObserveState(SeenTicTacToe()))
    )
    assert seen == plain


class SeenMeetings(Meetings):
    """Meetings whose state is the time."""

    state_space = gym.spaces.Box(0, 6, (1,), np.float32)

    def state(self) -> Any:
        return np.array([self.time], np.float32)


@pytest.mark.parametrize("groups", [{}, {"team": [0, 1, 2]}])
def test_agents_and_groups_of_a_dict_game_observe_the_state(groups: dict[str, list[int]]) -> None:
    wrappers: Any = [tk.envs.group_agents(groups)] if groups else []
    envs, ledger = tk.make_envs(SeenMeetings, wrappers=[*wrappers, tk.envs.ObserveState]), Ledger()
    policy = Still([0, 0, 0] if groups else 0)
    tk.Collector(policy, envs, ledger).collect(n_episode=1)
    rows = ledger.rows()
    first = rows.env_ids == 0
    assert rows.obs["state"][first, 0].tolist() == [0, 1, 2, 3, 5]
    assert rows.next_obs["state"][first, 0].tolist() == [1, 2, 3, 5, 6]
    assert rows.terminated[first].tolist() == [False] * 4 + [True]


def test_a_game_without_a_state_is_rejected() -> None:
    with pytest.raises(tk.ConfigError, match=r"ObserveState needs a game with state\(\) and a state_space"):
        tk.make_envs(lambda: Corridors({"left": 0}), wrappers=[tk.envs.ObserveState])


def test_the_critic_of_mappo_sees_the_state_and_that_of_ippo_does_not() -> None:
    def make() -> SeenCorridors:
        return SeenCorridors({"left": 0, "right": 1})

    options: dict[str, Any] = {"n_envs": 2, "step_per_collect": 32, "step_per_epoch": 64, "max_epoch": 2, "seed": 1}
    options |= {"n_test_envs": 2, "episode_per_test": 2, "device": "cpu", "verbose": False}
    with presets.mappo(make, **options) as trainer:
        trainer.run()
        assert trainer.policy.network.critic_torso.body.layers[0].in_features == 2 + 3
        assert trainer.policy.network.actor_torso.body.layers[0].in_features == 2
    assert presets.ippo(make, **options).policy.network.critic_only == frozenset()
    assert presets.mappo("CartPole-v1", **options).policy.network.critic_only == frozenset()  # no game
    with pytest.raises(tk.ConfigError, match=r"ObserveState needs a game with state\(\) and a state_space"):
        presets.mappo(lambda: Corridors({"left": 0, "right": 1}), **options)


def test_the_command_evaluates_a_run_of_mappo_with_the_state(tmp_path: Path, capsys: Any) -> None:
    game = f"{SeenTicTacToe.__module__}.{SeenTicTacToe.__qualname__}"
    small = ("max_epoch=1", "step_per_epoch=64", "n_envs=2", "step_per_collect=32", "batch_size=16", "n_test_envs=1")
    sizes = [word for one in (*small, "episode_per_test=1") for word in ("--set", one)]
    assert main(["train", "mappo", game, "--logdir", str(tmp_path), "--name", "run", "--quiet", *sizes]) == 0
    assert main(["eval", str(tmp_path / "run" / "seed1"), "--env", game, "--episodes", "2"]) == 0
    assert "return  mean" in capsys.readouterr().out
