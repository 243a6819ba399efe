"""Evaluation: the same episodes every time, fixed quotas, no exploring, environments of its own."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gymnasium.envs.classic_control.cartpole import CartPoleEnv

import trainkit as tk
from tests.trainer.toys import GOAL, LIMIT, Walk, leaves, make_policy, make_trainer
from trainkit.trainer.film import Filmed


class Seeds(Walk):
    """Write down the seeds of all episodes."""

    def __init__(self, seen: list[int | None]) -> None:
        super().__init__()
        self.seen = seen

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        self.seen.append(seed)
        return super().reset(seed=seed)


def evaluation(seen: list[int | None] | None = None, **options: Any) -> tk.Evaluation:
    envs = tk.make_envs(lambda: Seeds([] if seen is None else seen), 2)
    return tk.Evaluation(tk.Collector(make_policy(envs, seed=1), envs), **{"duration": 3, "seed": 5} | options)


def test_every_evaluation_plays_the_same_episodes_and_fresh_ones_play_others() -> None:
    seen: list[int | None] = []
    evaluator = evaluation(seen)
    for fresh in (None, None, 0, 1, None):
        evaluator.run(0, fresh=fresh)
    first, second, fresh_0, fresh_1, again = np.reshape(seen, (5, 3)).tolist()
    assert first == second == again
    assert len({*first, *fresh_0, *fresh_1}) == 9


def test_the_same_root_means_the_same_episodes() -> None:
    seen: list[list[int | None]] = [[], [], []]
    for episodes, root in zip(seen, (5, 5, 6), strict=True):
        evaluation(episodes, seed=root).run(0)
    assert seen[0] == seen[1] != seen[2]


def test_duration_is_the_number_of_episodes() -> None:
    stats = evaluation(duration=7).run(0)
    assert stats.n_episode == 7
    assert stats.lengths.max <= LIMIT
    assert stats.lengths.min >= GOAL - 1


@pytest.mark.parametrize("explore", [False, True])
def test_the_policy_explores_only_on_request_and_sees_the_training_clock(explore: bool) -> None:
    requested = []

    class Reported(tk.EpsilonGreedy):
        def choose(self, q: Any, legal: Any, *, step: int, **others: Any) -> Any:
            requested.append(step)
            return super().choose(q, legal, step=step, **others)

    evaluator = evaluation(explore=explore)
    evaluator.collector.policy.exploration = Reported(0.5)  # type: ignore[attr-defined]
    evaluator.run(77)
    assert set(requested) == ({77} if explore else set())


def test_an_exploring_evaluation_plays_the_same_each_time_and_leaves_training_as_it_was() -> None:
    evaluator = evaluation(explore=True)
    policy = evaluator.collector.policy
    one = evaluator.run(0)
    policy.start_streams(99)  # as training moves them on
    before = dict(leaves(policy.streams_state()))
    two, other = evaluator.run(0), evaluator.run(0, fresh=1)
    assert (one.returns, one.lengths) == (two.returns, two.lengths) != (other.returns, other.lengths)
    assert dict(leaves(policy.streams_state())) == before


def test_an_interrupted_exploring_evaluation_continues_with_the_same_draws() -> None:
    def interrupt() -> None:
        if halved.collector.env_step == 4:
            halved.collector.between_steps = None
            raise KeyboardInterrupt

    whole, halved = evaluation(explore=True, duration=9), evaluation(explore=True, duration=9)
    before = dict(leaves(halved.collector.policy.streams_state()))
    halved.collector.between_steps = interrupt
    with pytest.raises(KeyboardInterrupt):
        halved.run(0)
    assert dict(leaves(halved.collector.policy.streams_state())) == before
    expected, stats = whole.run(0), halved.run(0)
    assert (stats.returns, stats.lengths, stats.n_step) == (expected.returns, expected.lengths, expected.n_step)


def test_an_interrupted_evaluation_continues_unless_its_collector_was_used() -> None:
    def interrupt() -> None:
        if collector.env_step == 4:
            raise KeyboardInterrupt

    whole, halved = evaluation(), evaluation()
    collector = halved.collector
    collector.between_steps = interrupt
    with pytest.raises(KeyboardInterrupt):
        halved.run(0)
    assert halved.is_interrupted
    collector.between_steps = None
    expected = whole.run(0)
    stats = halved.run(0)
    assert (stats.n_step, stats.returns, stats.lengths) == (expected.n_step, expected.returns, expected.lengths)
    assert not halved.is_interrupted

    halved = evaluation()
    halved.collector.between_steps = lambda: interrupt()
    collector = halved.collector
    with pytest.raises(KeyboardInterrupt):
        collector.collect(n_episode=50)
    collector.between_steps = None
    assert not halved.is_interrupted
    assert halved.run(0).n_episode == 3


@pytest.mark.parametrize("option", ["duration", "every", "seed"])
def test_numbers_that_cannot_work_are_refused(option: str) -> None:
    with pytest.raises(tk.ConfigError, match=f"Evaluation.{option} must be a whole number >= [01], got -1"):
        evaluation(**{option: -1})


def test_what_is_no_collector_is_refused() -> None:
    policy = make_policy(tk.make_envs(Walk))
    with pytest.raises(tk.ConfigError, match=r"Evaluation\.collector must be a Collector or None, got DQNPolicy"):
        tk.Evaluation(policy)  # type: ignore[arg-type]


def test_a_test_collector_with_a_buffer_is_refused() -> None:
    envs = tk.make_envs(Walk)
    collector = tk.Collector(make_policy(envs), envs, tk.ReplayBuffer(9))
    with pytest.raises(tk.ConfigError, match="must have no buffer: an evaluation stores nothing"):
        make_trainer(test_collector=collector)


# ---- evaluate ----


def test_evaluate_lets_any_policy_play_episodes_that_a_seed_repeats() -> None:
    envs = tk.make_envs(Walk)
    policy = make_policy(envs, seed=1)
    one, two, other = (tk.evaluate(policy, Walk, n_episode=20, seed=seed) for seed in (2, 2, 3))
    assert one.n_episode == 20
    assert (one.lengths, one.returns) == (two.lengths, two.returns)
    assert one.lengths != other.lengths
    free = [tk.evaluate(policy, Walk, n_episode=20).lengths for _ in range(3)]
    assert len({str(lengths) for lengths in free}) > 1


def test_evaluate_makes_at_most_one_environment_per_episode_and_closes_them() -> None:
    closed = []

    class Closing(Walk):
        def close(self) -> None:
            closed.append(self)

    policy = make_policy(tk.make_envs(Walk))
    for n_episode, n_envs, expected in ((3, None, 3), (40, None, 16), (5, 2, 2)):
        tk.evaluate(policy, Closing, n_episode=n_episode, n_envs=n_envs)
        assert len(closed) == expected
        closed.clear()
    with pytest.raises(tk.ConfigError):
        tk.evaluate(policy, Closing, n_episode=0, n_envs=3)
    assert closed == []  # none was made


def test_evaluate_passes_options_on_to_make_envs() -> None:
    policy = make_policy(tk.make_envs(Walk))
    stats = tk.evaluate(policy, Walk, n_episode=4, max_episode_steps=2)
    assert stats.lengths.max == 2


def test_videos_show_every_episode_also_those_that_are_cut(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    pytest.importorskip("imageio_ffmpeg", reason="needs trainkit-rl[video]")
    pytest.importorskip("pygame", reason="needs pygame-ce")
    for number, env in enumerate(("CartPole-v1", CartPoleEnv)):
        envs = tk.make_envs("CartPole-v1", 1)
        policy = tk.RandomPolicy(envs.action_space, seed=1)
        found = tk.evaluate(policy, env, n_episode=2, seed=3, max_episode_steps=9, video=f"videos{number}")
        names = sorted(file.name for file in (tmp_path / f"videos{number}").iterdir())
        assert names == ["episode-000.mp4", "episode-001.mp4"]
        assert (
            found.episode_lengths
            == tk.evaluate(policy, env, n_episode=2, n_envs=1, seed=3, max_episode_steps=9).episode_lengths
        )
        with pytest.raises(tk.ConfigError, match="makes its environment"):
            tk.evaluate(policy, envs, video="videos")


def test_videos_of_games_are_of_runs(tmp_path: Path) -> None:
    pytest.importorskip("imageio_ffmpeg", reason="needs trainkit-rl[video]")
    with pytest.raises(tk.ConfigError, match="RecordVideo"):
        Filmed(object(), tmp_path)  # type: ignore[arg-type]


def test_evaluations_compare_returns_with_predictions_at_the_start() -> None:
    trainer = make_trainer(test=True, policy={"value": tk.ExpectedValue(), "n_step": 1, "gamma": 0.5})
    *_, (_, stats, _) = trainer
    start = np.zeros((1, 2), np.float32)
    (ordered,) = np.sort(trainer.policy.action_values(start))
    assert stats.test.start_values.mean == pytest.approx(ordered[-1])  # of all episodes: they start alike
    assert stats.test.start_values.count == stats.test.discounted_returns.count == 3
    assert stats.test.action_gaps.mean == pytest.approx(ordered[-1] - ordered[-2])
    assert 0.5 <= (stats.test.top_action_share or 0) <= 1
    assert stats.train.start_values.is_empty
    assert trainer.test_collector is not None
    assert trainer.test_collector.recorders == []  # of evaluations alone
    again = make_trainer(evaluation=lambda play: {"score": play(n_episode=2).returns.mean})
    assert next(again).stats.test.start_values.is_empty  # its episodes may explore
