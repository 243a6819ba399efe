"""Runs of several policies: they equal single runs, frozen ones stay, and resumed runs continue with the same bits."""

from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest

import trainkit as tk
from tests.extensions.games.two_policies import (
    BOTH,
    N_GAMES,
    RIVALS,
    check_that_an_interrupted_run_continues,
    check_that_two_policies_equal_two_single_runs,
    dqn,
    games,
    off_policy,
    replay,
    state_of,
    two_policies,
)
from tests.helpers.learning import assert_same
from tests.helpers.pairs import Corridors


def filled(envs: tk.Envs) -> tk.ReplayBuffer:
    buffer = tk.ReplayBuffer(90)
    tk.Collector(tk.RandomPolicy(envs.action_space), envs, buffer).collect(n_step=12)
    return buffer


class Alone(gym.Env[Any, Any]):
    """The walk's spaces, for one agent."""

    observation_space, action_space = Corridors(BOTH).observation_space(""), Corridors(BOTH).action_space("")


def test_two_policies_that_never_meet_equal_two_single_runs() -> None:
    check_that_two_policies_equal_two_single_runs({}, RIVALS)


def test_each_policy_has_its_own_clock_ratio_and_statistics() -> None:
    trainer = two_policies(lambda agent, episode: "main" if agent == "left" or episode.game else "rival")
    results = [stats for _, stats, _ in trainer]
    clocks = {name: clock.env_step for name, clock in trainer.policy.clocks.items()}
    assert sum(clocks.values()) == trainer.env_step == 180
    assert clocks["main"] == 5 * clocks["rival"]
    assert trainer.policy["rival"].n_updates == pytest.approx(0.3 * (clocks["rival"] - 20), abs=1)
    assert trainer.policy["main"].n_updates == pytest.approx(0.3 * (clocks["main"] - 20), abs=2)
    last = results[-1]
    assert sum(stats.train.policies["main"].n_step for stats in results) == clocks["main"]
    assert (
        sum(stats.train.agents["left"].n_step for stats in results) == trainer.train_collector.agent_steps["left"] == 90
    )
    assert last["update/main/replay_ratio"] == pytest.approx(0.3 * 8, rel=0.1)
    assert last["update/main/loss"] is not None
    assert last["update/main/smoothed_loss"] is not None
    assert last["explore/rival/epsilon"] == trainer.policy["rival"].explore_metrics(clocks["rival"])["epsilon"]
    assert last["buffer/main/beta"] == pytest.approx(0.4 + 0.6 * min(clocks["main"], 100) / 100)
    assert last["train/policies/main/returns/mean"] is not None
    assert last["train/agents/right/returns/mean"] is not None


def test_a_frozen_policy_keeps_its_bits() -> None:
    trainer = two_policies()
    trainer.policy.policies_to_train = ("main",)
    before = trainer.policy["rival"].get_weights()
    trainer.run()
    assert_same(trainer.policy["rival"].get_weights(), before)
    assert trainer.policy["rival"].n_updates == 0 < trainer.policy["main"].n_updates


def test_no_policy_learns_until_one_is_named() -> None:
    trainer = two_policies(max_epoch=1)
    trainer.policy.policies_to_train = ()
    trainer.run()
    assert trainer.env_step >= 60
    assert trainer.policy.n_updates == 0
    assert "no_updates" not in trainer.info.warnings
    trainer.policy.policies_to_train = ("rival",)
    trainer.run(epochs=1)
    assert trainer.policy["main"].n_updates == 0 < trainer.policy["rival"].n_updates


@pytest.mark.slow
def test_a_frozen_policy_keeps_its_bits_for_10_000_steps() -> None:
    trainer = two_policies(step_per_epoch=10_000, max_epoch=1, update_per_step=0.1)
    trainer.policy.policies_to_train = ("main",)
    before = trainer.policy["rival"].training_state()["weights"]
    before = {name: weight.clone() for name, weight in before.items()}
    trainer.run()
    assert trainer.env_step >= 10_000
    assert_same(trainer.policy["rival"].training_state()["weights"], before)


def test_an_interrupted_run_continues_with_the_same_bits_after_another_policy_was_frozen(tmp_path: Path) -> None:
    check_that_an_interrupted_run_continues(({}, {}), tmp_path)


def test_a_save_in_the_epoch_in_which_a_policy_is_frozen_resumes_with_the_same_bits(tmp_path: Path) -> None:
    def frozen_at(n_updates: int, folder: Path | None) -> tk.OffpolicyTrainer:
        def on_update_end(trainer: tk.Trainer) -> None:
            if trainer.gradient_step == n_updates:  # from the next epoch on
                trainer.policy.policies_to_train = ("main",)
            if trainer.gradient_step == n_updates + 4 and folder is not None:
                trainer.save(folder)

        options: dict[str, Any] = {} if folder is not None else {"resume_from": tmp_path / "saved"}
        return two_policies(callbacks=tk.on(update_end=on_update_end), **options)

    whole = frozen_at(8, tmp_path / "saved")
    results = [stats.update for _, stats, _ in whole]
    resumed = frozen_at(8, None)
    again = [stats.update for _, stats, _ in resumed]
    assert_same(state_of(resumed), state_of(whole))
    assert again[1:] == results[1 - len(again) :]  # the first lacks the collects before the save


def test_policies_are_components_of_a_checkpoint(tmp_path: Path) -> None:
    trainer = two_policies()
    trainer.run()
    trainer.save(tmp_path / "run", exclude=["buffer"])
    loaded = tk.load_policy(tmp_path / "run", name="rival")
    assert_same(loaded.get_weights(), trainer.policy["rival"].get_weights())
    with pytest.raises(tk.errors.CheckpointError, match=r"has the policies \['main', 'rival'\]: load one by its name"):
        tk.load_policy(tmp_path / "run")
    with pytest.raises(tk.errors.CheckpointError, match=r"has no policy 'rivl', only .* did you mean 'rival'"):
        tk.load_policy(tmp_path / "run", name="rivl")
    other = two_policies()
    other.load(tmp_path / "run", include=["policy/rival"])
    assert_same(other.policy["rival"].get_weights(), loaded.get_weights())
    assert other.policy["main"].n_updates == 0
    trainer.policy.save(tmp_path / "policies")
    assert_same(tk.load_policy(tmp_path / "policies", name="main").get_weights(), trainer.policy["main"].get_weights())


def test_ppo_policies_learn_from_their_own_rollouts_as_single_ones_do() -> None:
    def ppo(envs: tk.Envs, seed: int) -> tk.PPOPolicy:
        return tk.PPOPolicy.for_envs(envs, hidden=(8,), seed=seed, device="cpu", normalize_obs=True)

    def trainer(policy: Any, envs: tk.Envs, buffer: Any, n_step: int) -> tk.OnpolicyTrainer:
        train = tk.Collector(policy, envs, buffer)
        how: dict[str, Any] = {"step_per_epoch": 2 * n_step, "step_per_collect": n_step, "repeat_per_collect": 2}
        quiet: dict[str, Any] = {"verbose": False, "show_progress": False, "seed": 7}
        return tk.OnpolicyTrainer(policy, train, max_epoch=2, batch_size=20, **how, **quiet)

    envs = games()
    policy = tk.MultiAgentPolicy({"main": ppo(envs, 1), "rival": ppo(envs, 2)}, {"left": "main", "right": "rival"})
    both = tk.MultiAgentBuffer({"main": tk.RolloutBuffer(), "rival": tk.RolloutBuffer()})
    trainer(policy, envs, both, 96).run()
    for number, name in enumerate(["main", "rival"]):
        own_envs = games({name: number})
        single = ppo(own_envs, number + 1)
        trainer(single, own_envs, tk.RolloutBuffer(), 48).run()
        assert_same(policy[name].training_state(), single.training_state())


def test_an_exception_before_a_policy_learns_has_no_other_learn_twice_from_its_rollout() -> None:
    def trained(*, fails: bool) -> tk.MultiAgentPolicy:
        def fail_once(trainer: tk.Trainer, rollout: Any) -> None:
            if fails and trainer.learning == "rival" and not failed:
                failed.append(trainer.learning)
                raise OSError("mine")

        failed: list[str] = []
        envs = games()
        policies = {name: tk.PPOPolicy.for_envs(envs, hidden=(8,), seed=1, device="cpu") for name in ("main", "rival")}
        policy = tk.MultiAgentPolicy(policies, {"left": "main", "right": "rival"})
        buffer = tk.MultiAgentBuffer({name: tk.RolloutBuffer() for name in policies})
        options: dict[str, Any] = {"step_per_collect": 48, "verbose": False, "show_progress": False, "seed": 7}
        trainer = tk.OnpolicyTrainer(
            policy,
            tk.Collector(policy, envs, buffer),
            max_epoch=2,
            step_per_epoch=96,
            callbacks=tk.on(train_batch=fail_once),
            **options,
        )
        if fails:
            with pytest.raises(OSError, match="mine"):
                trainer.run()
        trainer.run()
        return policy

    undisturbed, disturbed = trained(fails=False), trained(fails=True)
    for name in ("main", "rival"):
        assert disturbed[name].n_updates == undisturbed[name].n_updates > 0
        assert_same(disturbed[name].training_state(), undisturbed[name].training_state())


def test_policies_are_added_and_removed_while_games_in_progress_keep_theirs() -> None:
    added: list[tuple[int, str]] = []
    trainer = two_policies(
        max_epoch=4,
        step_per_epoch=66,  # epochs end in the middle of games
        callbacks=tk.on(policy_added=lambda trainer, name: added.append((trainer.epoch, name))),
    )
    policy = trainer.policy
    played: list[set[str]] = []
    for epoch, stats, _ in trainer:
        played.append(set(stats.train.policies))
        if epoch == 1:
            policy.add_policy("new", dqn(games(), seed=9), policy_mapping={"left": "main", "right": "new"}, train=True)
            trainer.buffer.add_buffer("new", replay(3))
        if epoch == 2:
            policy.remove_policy("rival")
            trainer.buffer.remove_buffer("rival")
    assert played == [{"main", "rival"}, {"main", "rival", "new"}, {"main", "new"}, {"main", "new"}]
    assert added == [(1, "main"), (1, "rival"), (2, "new")]
    assert policy["new"].n_updates > 0
    assert stats["update/new/loss"] is not None


def test_a_trained_policy_that_joins_a_run_reports_its_later_updates_alone() -> None:
    taught = two_policies(max_epoch=1)
    taught.run()
    main = taught.policy["main"]
    n_before = main.n_updates
    envs = games()
    policy = tk.MultiAgentPolicy({"rival": dqn(envs)}, lambda agent, episode: "rival")
    trainer = off_policy(policy, envs, tk.MultiAgentBuffer({"rival": tk.ReplayBuffer(400)}, all_rows=True), max_epoch=2)
    next(trainer)
    policy.add_policy("main", main, train=True, policy_mapping={"left": "main", "right": "rival"})
    trainer.buffer.add_buffer("main", replay())
    _, stats, _ = next(trainer)
    n_own = main.n_updates - n_before
    assert n_own > 0
    followed = stats.update["main/target_followed"]
    assert stats.update["main/target_updates"] == round(followed * n_own)


def test_an_evaluation_against_random_actions_repeats_and_does_not_change_training() -> None:
    def trained(evaluates: bool) -> Any:
        envs = games()
        rival = tk.RandomPolicy(Alone.action_space, seed=3)
        policy = tk.MultiAgentPolicy({"main": dqn(envs, seed=1), "rival": rival}, {"left": "main", "right": "rival"})
        test = {"test_collector": tk.Collector(policy, games()), "episode_per_test": 4} if evaluates else {}
        trainer = off_policy(policy, envs, tk.MultiAgentBuffer({"main": replay()}), **test)
        trainer.run()
        return trainer

    alone, evaluated = trained(evaluates=False), trained(evaluates=True)
    assert_same(alone.policy["main"].training_state(), evaluated.policy["main"].training_state())
    assert_same(alone.policy["rival"].streams_state(), evaluated.policy["rival"].streams_state())
    plays = [tk.Evaluation(tk.Collector(evaluated.policy, games()), seed=5).run(0).returns.mean for _ in range(2)]
    assert plays[0] == plays[1]


@pytest.mark.parametrize("goal", [[5, 6], [[5, 6]] * 42], ids=["one row for all", "a row each"])
def test_columns_of_all_policies_are_rewritten_by_one_call(goal: Any) -> None:
    envs = games()
    policy = tk.MultiAgentPolicy({"main": dqn(envs), "rival": dqn(envs)}, {"left": "main", "right": "rival"})
    buffer = tk.MultiAgentBuffer({"main": replay(), "rival": tk.RolloutBuffer()})
    train = tk.Collector(policy, envs, buffer, extra_columns={"goal": np.zeros(2)})
    train.collect(n_step=42)
    slots = train.collected_slots
    buffer.rewrite(slots, reward=np.arange(42), goal=goal)
    for number, name in enumerate(["main", "rival"]):
        own = slots % 2**15 == number
        rows = buffer[name].get(slots[own] // 2**15)
        assert rows.reward.tolist() == np.flatnonzero(own).tolist()
        assert (rows.extras["goal"] == [5, 6]).all()
    assert buffer.is_stored(slots[0]).tolist() == [True]


def test_a_random_mapping_draws_the_same_for_all_agents_of_a_game() -> None:
    def change_sides(agent: str, episode: tk.policy.GameEpisode) -> str:
        first, second = episode.rng.permutation(["main", "rival"])
        return str(first if agent == "left" else second)

    envs = games()
    policies = {name: tk.RandomPolicy(envs.action_space) for name in ("main", "rival")}
    collector = tk.Collector(tk.MultiAgentPolicy(policies, change_sides), envs)
    pairs = set()
    for _ in range(30):
        collector.collect(n_step=2 * N_GAMES)
        names = [collector.player(row) for row in range(2 * N_GAMES)]
        pairs |= {*zip(names[::2], names[1::2], strict=True)}
    assert pairs == {("main", "rival"), ("rival", "main")}


def test_steps_of_games_count_once_where_the_clock_counts_env_steps() -> None:
    """Two agents act in every step of a game, and each has its policy."""
    envs = games()
    policy = tk.MultiAgentPolicy({"main": dqn(envs), "rival": dqn(envs)}, {"left": "main", "right": "rival"})
    buffer = tk.MultiAgentBuffer({"main": replay(), "rival": tk.ReplayBuffer(90)})
    train = tk.Collector(policy, envs, buffer, count_steps_by="env_steps")
    seen: list[tuple[int, int]] = []  # (vector steps, rows) of each collect
    options: dict[str, Any] = {"max_epoch": 1, "step_per_epoch": 60, "step_per_collect": 3, "batch_size": 8}
    options |= {"update_per_step": 0.5, "learning_starts": 20, "verbose": False, "show_progress": False, "seed": 7}
    trainer = tk.OffpolicyTrainer(
        policy,
        train,
        callbacks=tk.on(collect_end=lambda trainer, stats: seen.append((stats.n_vector_step, stats.n_step))),
        **options,
    )
    trainer.run()
    assert [n for n, _ in seen] == [1] * 20  # a vector step of 3 games is 3 steps
    assert trainer.env_step == 60
    assert [rows for _, rows in seen] == [6] * 20
    for name in ("main", "rival"):
        learned_steps = policy.clocks[name].env_step - 18  # from the collect that reaches 20
        assert policy[name].n_updates == learned_steps // 2


def test_one_policy_counts_rows_or_steps_of_games() -> None:
    steps: dict[str, int] = {}
    for unit in ("agent_steps", "env_steps"):
        envs = games()
        policy: Any = dqn(envs)
        train = tk.Collector(policy, envs, tk.ReplayBuffer(90), count_steps_by=unit)
        assert train.collect(n_step=N_GAMES * 4).n_vector_step == (4 if unit == "env_steps" else 2)
        steps[unit] = train.env_step
    assert steps == {"agent_steps": N_GAMES * 4, "env_steps": N_GAMES * 4}
    with pytest.raises(tk.ConfigError, match=r"count_steps_by is for games of several agents: leave it out"):
        tk.Collector(policy, tk.make_envs("CartPole-v1"), count_steps_by="env_steps")


def test_policies_that_do_not_learn_need_no_buffer() -> None:
    envs = games()
    policy = tk.MultiAgentPolicy(
        {"main": dqn(envs), "rest": tk.RandomPolicy(envs.action_space)}, {"left": "main", "right": "rest"}
    )
    assert policy.policies_to_train == ("main",)
    trainer = off_policy(policy, envs, tk.MultiAgentBuffer({"main": replay()}))
    trainer.run()
    assert len(trainer.buffer) == 90
    assert policy.clocks["rest"].env_step == 90


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (
            lambda envs, one: tk.Collector(one, tk.make_envs(Alone)),
            r"MultiAgentPolicy plays games of several agents, and Alone has one: give the collector one of its "
            r"policies, such as policy\['main'\]",
        ),
        (
            lambda envs, one: off_policy(one, envs, tk.ReplayBuffer(99)),
            r"MultiAgentPolicy learns from a buffer for each policy, got ReplayBuffer.*: Collector\(policy, envs, "
            r"MultiAgentBuffer\(\{name: buffer\}\)\)",
        ),
        (
            lambda envs, one: tk.OfflineTrainer(one, filled(envs), max_epoch=1, update_per_epoch=1, batch_size=1),
            r"MultiAgentPolicy learns from a buffer for each policy, got ReplayBuffer",
        ),
        (
            lambda envs, one: off_policy(one, envs, tk.MultiAgentBuffer({"main": replay()})),
            r"MultiAgentPolicy trains 'rival', and the buffers are of \['main'\]: give MultiAgentBuffer one for it",
        ),
        (
            lambda envs, one: tk.Collector(one["main"], envs, tk.MultiAgentBuffer({"main": replay()})),
            r"MultiAgentBuffer stores the rows of a MultiAgentPolicy",
        ),
        (
            lambda envs, one: setattr(one, "policies_to_train", "main"),
            r"policies_to_train must be a sequence of names, got 'main': give \('main',\)",
        ),
        (
            lambda envs, one: (
                setattr(one, "policy_mapping", {"left": "mian", "right": "rival"}),
                tk.Collector(one, envs),
            ),
            r"policy_mapping gave 'mian' for agent 'left' of game 0, and the policies are \['main', 'rival'\].*"
            r"did you mean 'main'",
        ),
        (lambda envs, one: one.act(np.zeros((1, 2))), r"acts in the games of a collector"),
        (lambda envs, one: one["mian"], r"has no policy 'mian', only \['main', 'rival'\], did you mean 'main'"),
        (
            lambda envs, one: tk.MultiAgentPolicy({"a": one["main"], "b": one["main"]}),
            r"'b' and 'a' are the same object: to share a policy",
        ),
    ],
)
def test_errors_name_the_remedy(make: Any, message: str) -> None:
    envs = games()
    one = tk.MultiAgentPolicy({"main": dqn(envs), "rival": dqn(envs)}, {"left": "main", "right": "rival"})
    with pytest.raises(tk.ConfigError, match=message):
        make(envs, one)


def test_it_predicts_for_the_agents_of_a_game() -> None:
    trainer = two_policies()
    obs = {"left": np.zeros(2, np.float32), "right": np.ones(2, np.float32)}
    own = {"left": trainer.policy["main"], "right": trainer.policy["rival"]}
    assert trainer.policy.predict(obs) == {agent: own[agent].predict(obs[agent]) for agent in obs}
    assert trainer.policy.predict(obs, policies={"left": "rival"})["left"] == own["right"].predict(obs["left"])


class Unequal(Corridors):
    """Corridors whose right agent also observes its place squared, and has a third action, a step right."""

    def observation_space(self, agent: str) -> gym.Space[Any]:
        return super().observation_space(agent) if agent == "left" else gym.spaces.Box(-3000, 3000, (3,), np.float32)

    def action_space(self, agent: str) -> gym.Space[Any]:
        return gym.spaces.Discrete(2 if agent == "left" else 3)

    def _obs(self) -> dict[str, Any]:
        obs: dict[str, Any] = super()._obs()
        return {**obs, "right": np.append(obs["right"], obs["right"][:1] ** 2).astype(np.float32)}


def test_policies_are_saved_and_loaded_before_any_collector_has_them(tmp_path: Path) -> None:
    views = tk.make_envs(lambda: Unequal(BOTH), 1).agent_views
    policy = tk.MultiAgentPolicy({"main": dqn(views["left"]), "rival": dqn(views["right"])})
    policy.save(tmp_path)
    loaded = tk.load_policy(tmp_path, name="rival")
    assert_same(loaded.get_weights(), policy["rival"].get_weights())


def test_a_policy_sees_its_agents_own_spaces(tmp_path: Path) -> None:
    envs = tk.make_envs(lambda: Unequal(BOTH), N_GAMES, seed=5)
    views = envs.agent_views
    policy = tk.MultiAgentPolicy(
        {"main": dqn(views["left"]), "rival": dqn(views["right"])}, {"left": "main", "right": "rival"}
    )
    trainer = off_policy(policy, envs, tk.MultiAgentBuffer({"main": replay(), "rival": replay()}))
    trainer.run()
    rows = trainer.buffer["rival"][:]
    assert rows.obs.shape == (90, 3)
    np.testing.assert_allclose(rows.obs[:, 2], rows.obs[:, 0] ** 2, rtol=1e-5)
    assert set(rows.action.tolist()) == {0, 1, 2}
    assert trainer.buffer["main"][:].obs.shape == (90, 2)
    assert set(trainer.buffer["main"][:].action.tolist()) == {0, 1}
    assert policy["rival"].n_updates > 0
    trainer.save(tmp_path / "run", exclude=["buffer"])
    policy.save(tmp_path / "policies")
    for folder in ("run", "policies"):
        loaded = tk.load_policy(tmp_path / folder, name="rival")
        assert loaded.observation_space == views["right"].observation_space
        assert_same(loaded.get_weights(), policy["rival"].get_weights())
    wrong = tk.MultiAgentPolicy({"main": dqn(views["left"])}, {"left": "main", "right": "main"})
    with pytest.raises(tk.SpaceMismatchError, match=r"DQNPolicy.observation_space is Box\(.*, \(2,\), float32\)"):
        tk.Collector(wrong, tk.make_envs(lambda: Unequal(BOTH), 1))


def test_a_run_in_which_no_policy_learns_needs_no_buffer() -> None:
    envs = games()
    policy = tk.MultiAgentPolicy({"main": dqn(envs)}, lambda agent, episode: "main", policies_to_train=[])
    train = tk.Collector(policy, envs, tk.MultiAgentBuffer({}))
    with tk.OffpolicyTrainer(policy, train, max_epoch=1, step_per_epoch=20, batch_size=4, verbose=False) as trainer:
        info = trainer.run()
    assert info.env_step >= 20
    assert info.gradient_step == 0
    with pytest.raises(tk.ConfigError, match=r"needs a buffer for each policy that learns, \{name: buffer\}, got \[\]"):
        tk.MultiAgentBuffer([])  # type: ignore[arg-type]  # the mistake itself
