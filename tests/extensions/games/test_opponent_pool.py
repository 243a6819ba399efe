"""Pools of opponents: who is drawn, when copies are added, what is counted, and how a run with one resumes."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import trainkit as tk
from tests.helpers.learning import assert_same
from tests.helpers.matrix_games import MatrixGame
from tests.helpers.pairs import Corridors
from trainkit.core.stats import CollectStats

Pool = tk.callbacks.OpponentPool


def run(pool: Any, game: Any = MatrixGame, **options: Any) -> tk.OffpolicyTrainer:
    envs = tk.make_envs(game, 2, seed=3)
    learner = tk.DQNPolicy.for_envs(envs, hidden=(4,), exploration=tk.EpsilonGreedy(0.5), device="cpu")
    policy = tk.MultiAgentPolicy({"main": learner}, pool)
    train = tk.Collector(policy, envs, tk.MultiAgentBuffer({"main": tk.ReplayBuffer(400)}))
    own: dict[str, Any] = {"max_epoch": 4, "step_per_epoch": 60, "batch_size": 8, "update_per_step": 0.25, "seed": 1}
    quiet: dict[str, Any] = {"verbose": False, "show_progress": False, "callbacks": [pool]}
    return tk.OffpolicyTrainer(policy, train, **own | quiet | options)


def count(pool: Any, *games: list[tuple[str, float]]) -> None:
    """Let a pool count games that have ended, of which the policy and the return of each agent are given."""
    for game in games:
        pool.load_state_dict(pool.state_dict() | {"games": {"0": game}})
        stopped = SimpleNamespace(policy=SimpleNamespace(clocks={"main": SimpleNamespace(env_step=0)}))
        pool.on_collect_end(stopped, CollectStats())


def test_copies_are_added_by_the_policys_clock_and_the_oldest_leave(tmp_path: Path) -> None:
    pool = Pool("main", size=2, add_every=30, folder=tmp_path)
    trainer = run(pool)
    trainer.run()
    clock = trainer.policy.clocks["main"].env_step
    assert 120 < clock < 180  # half of the rows, and those of games against itself
    assert len(pool.opponents) == 2
    assert [*trainer.policy.policies] == ["main", *pool.opponents]
    assert [int(name.rpartition("-")[2]) // 30 for name in pool.opponents] == [clock // 30 - 1, clock // 30]
    assert len(list(tmp_path.iterdir())) == clock // 30
    saved = tk.load_policy(tmp_path / pool.opponents[0])
    assert_same(saved.get_weights(), trainer.policy[pool.opponents[0]].get_weights())
    copied, own = (trainer.policy[name].get_weights() for name in (pool.opponents[0], "main"))
    assert any((copied[name] != own[name]).any() for name in own)
    assert trainer.policy.policies_to_train == ("main",)
    assert trainer.history["custom/pool/size"][-1] == 2


def test_a_policy_plays_one_side_and_one_opponent_the_others() -> None:
    pool = Pool("main", add_every=10)
    agents = run(pool, lambda: Corridors({"row": 0, "column": 1, "third": 2})).train_collector.envs.agents
    pool.opponents = ["main-10", "main-20"]
    sides: list[str] = []
    opponents: list[str] = []
    for seed in range(600):
        episode = tk.policy.GameEpisode(game=0, number=0, seed=seed)
        names = {agent: pool(agent, episode) for agent in agents}
        (own,) = [agent for agent, name in names.items() if name == "main"]
        (other,) = {name for name in names.values() if name != "main"}
        sides.append(own)
        opponents.append(other)
    for counts in (np.unique(sides, return_counts=True)[1] / 200, np.unique(opponents, return_counts=True)[1] / 300):
        np.testing.assert_allclose(counts, 1.0, atol=0.2)


@pytest.mark.parametrize(
    ("draw", "expected"), [("uniform", [0.5, 0.5]), ("latest", [0, 1]), ("hard", [1 / 10, 9 / 10])]
)
def test_opponents_are_drawn_with_these_probabilities(draw: Any, expected: list[float]) -> None:
    pool = Pool("main", add_every=10, draw=draw)
    pool.opponents = ["main-10", "main-20"]
    for _ in range(3):  # 3 of 4 games won against the first, 1 of 4 against the second
        count(pool, [("main", 1.0), ("main-10", 0.0)], [("main", 0.0), ("main-20", 2.0)])
    count(pool, [("main", 0.0), ("main-10", 1.0)], [("main", 9.0), ("main-20", 1.0)])
    assert [pool.win_rate(name) for name in pool.opponents] == [0.75, 0.25]
    np.testing.assert_allclose(pool.probabilities(), expected)


def test_a_copy_is_added_when_the_policy_wins_often_enough() -> None:
    pool = Pool("main", add_at_win_rate=0.6)
    trainer = run(pool, max_epoch=1)
    next(trainer)
    assert pool.opponents == ["main-0"]
    pool.load_state_dict(pool.state_dict() | {"recent": [1.0] * 60 + [0.0] * 40})
    pool.on_collect_end(trainer, trainer.info.last_test)
    assert len(pool.opponents) == 2
    assert pool.state_dict()["recent"] == []


def test_four_agents_with_equal_returns_draw() -> None:
    pool = Pool("main", add_every=30)
    count(pool, [("main", 0.1), *[("main-30", 0.1)] * 3])  # the computed mean of three is larger
    assert pool.win_rate("main-30") == 0.5


def test_a_run_with_a_pool_continues_with_the_same_bits(tmp_path: Path) -> None:
    whole = run(Pool("main", size=2, add_every=30, draw="hard"))
    for epoch, _, _ in whole:
        if epoch == 2:
            whole.save(tmp_path / "checkpoint")
    again = run(Pool("main", size=2, add_every=30, draw="hard"), resume_from=tmp_path / "checkpoint")
    again.run()
    assert_same(again.policy.training_state(), whole.policy.training_state())
    assert_same(again.buffer.state_dict(), whole.buffer.state_dict())


def test_frozen_copies_report_no_updates() -> None:
    pool = Pool("main", size=2, add_every=30)
    trainer = run(pool)
    tags = {tag for _, stats, _ in trainer for tag in tk.trainer.scalars(stats)}
    assert len(pool.opponents) == 2
    assert "update/main/loss" in tags
    assert [tag for tag in tags if tag.startswith("update/main-")] == []


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({}, "needs exactly one of add_every and add_at_win_rate"),
        ({"add_every": 5, "add_at_win_rate": 0.5}, "needs exactly one of"),
        ({"add_every": 5, "draw": "newest"}, "draw must be one of"),
    ],
)
def test_wrong_options_are_named(options: dict[str, Any], message: str) -> None:
    with pytest.raises(tk.ConfigError, match=message):
        Pool("main", **options)


def test_the_pool_must_be_the_mapping_of_its_policy() -> None:
    with pytest.raises(tk.ConfigError, match=r"policy_mapping=pool\), with the same pool as in callbacks"):
        run(Pool("main", add_every=5), callbacks=[Pool("main", add_every=5)])
    with pytest.raises(tk.ConfigError, match=r"policy_mapping gave 'mian' for agent 'row' .* did you mean 'main'"):
        run(Pool("mian", add_every=5))


def test_games_of_evaluations_do_not_count() -> None:
    pool = Pool("main", add_every=30, evaluate_against="random", draw="hard")
    envs = tk.make_envs(MatrixGame, 2, seed=3)
    learner = tk.DQNPolicy.for_envs(envs, hidden=(4,), exploration=tk.EpsilonGreedy(0.5), device="cpu")
    policy = tk.MultiAgentPolicy({"main": learner, "random": tk.RandomPolicy(envs.action_space)}, pool)
    train = tk.Collector(policy, envs, tk.MultiAgentBuffer({"main": tk.ReplayBuffer(400)}))
    test = tk.Collector(policy, tk.make_envs(MatrixGame, 2, seed=4))
    trainer = tk.OffpolicyTrainer(
        policy, train, test, max_epoch=2, step_per_epoch=60, batch_size=8, episode_per_test=4, callbacks=[pool], seed=1,
        verbose=False, show_progress=False,
    )  # fmt: skip
    trainer.run()
    assert trainer.info.n_test_episode > 0
    assert "random" not in pool.state_dict()["results"]
