"""The examples run, and those that promise to be short are."""

import ast
import runpy
import subprocess
import sys
import time
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

import trainkit as tk
from tests.helpers.pages import ROOT

EXAMPLES = ROOT / "examples"


def test_examples_use_public_names_only() -> None:
    for path in EXAMPLES.glob("*.py"):
        nodes = list(ast.walk(ast.parse(path.read_text())))
        imported = {alias.name for node in nodes if isinstance(node, ast.Import) for alias in node.names}
        sources = {node.module or "" for node in nodes if isinstance(node, ast.ImportFrom)}
        used = {node.attr for node in nodes if isinstance(node, ast.Attribute) and ast.unparse(node.value) == "tk"}
        assert "trainkit" in imported, path
        assert [module for module in sources if module.startswith("trainkit")] == [], path
        assert used <= set(tk.__all__), path


def test_td3_is_short() -> None:
    assert len((EXAMPLES / "td3.py").read_text().splitlines()) <= 80


class TestOwnAlgorithm:
    @pytest.mark.parametrize("name", ["AdvantageLearning", "SoftActorCritic"])
    def test_each_takes_less_than_60_lines(self, name: str) -> None:
        tree = ast.parse((EXAMPLES / "own_algorithm.py").read_text())
        (node,) = (node for node in tree.body if isinstance(node, ast.ClassDef) and node.name == name)
        assert node.end_lineno is not None
        assert node.end_lineno - node.lineno + 1 < 60

    def test_advantage_learning_rewards_by_the_gap(self) -> None:
        own = import_module("examples.own_algorithm")
        envs = tk.make_envs("CartPole-v1", 2)
        policy = tk.DQNPolicy.for_envs(envs, hidden=(8,), backup=own.AdvantageLearning(), seed=1, device="cpu")
        trainer = tiny(policy, envs)
        assert trainer.run().gradient_step > 0

    def test_the_actor_critic_trains_saves_and_resumes(self, tmp_path: Path) -> None:
        own = import_module("examples.own_algorithm")

        def trainer(**more: Any) -> tk.OffpolicyTrainer:
            envs = tk.make_envs("CartPole-v1", 2)
            return tiny(own.SoftActorCritic(envs), envs, checkpoint=tmp_path, **more)

        first = trainer()
        result = next(first)
        assert result.stats["update/critic_loss"] is not None
        assert result.stats["update/actor_grad_norm"] is not None
        again = trainer(resume_from=tmp_path)
        assert again.policy.n_updates == first.policy.n_updates > 0
        mine, theirs = (one.policy.training_state()["weights"] for one in (again, first))
        assert all((mine[name] == theirs[name]).all() for name in theirs)
        assert [epoch for epoch, _, _ in again] == [2]

    def test_one_seed_decides_all_of_the_actor_critic(self) -> None:
        own = import_module("examples.own_algorithm")
        runs = []
        for seed in (1, 1, 2):
            envs = tk.make_envs("CartPole-v1", 2)
            one = tiny(own.SoftActorCritic(envs), envs, seed=seed)
            one.run()
            runs.append([weights.tolist() for weights in one.policy.training_state()["weights"].values()])
        assert runs[0] == runs[1] != runs[2]

    @pytest.mark.slow
    def test_both_learn(self, capsys: pytest.CaptureFixture[str]) -> None:
        import_module("examples.own_algorithm").main()
        output = [line for line in capsys.readouterr().out.splitlines() if not line.startswith(("epoch", "ended"))]
        assert [line.split(":")[0] for line in output] == ["advantage learning", "soft actor-critic"]
        assert min(float(line.split(":")[1]) for line in output) >= 400  # random play: 20


def tiny(policy: Any, envs: tk.Envs, **more: Any) -> tk.OffpolicyTrainer:
    """Make a trainer for some hundredths of a second."""
    options: dict[str, Any] = {"max_epoch": 2, "step_per_epoch": 40, "batch_size": 8, "seed": 1, "verbose": False}
    return tk.OffpolicyTrainer(policy, tk.Collector(policy, envs, tk.ReplayBuffer(200)), **options | more)


@pytest.mark.slow
@pytest.mark.parametrize("lives", [[], ["--lives"]], ids=["whole games", "lives"])
def test_rainbow_runs_on_pong_and_breakout(lives: list[str], tmp_path: Path) -> None:
    pytest.importorskip("ale_py", reason="the extra `atari` is not installed")
    game = ["--game", "ALE/Breakout-v5" if lives else "ALE/Pong-v5", *lives]
    small = ["--steps", "2400", "--epochs", "2", "--capacity", "3000", "--learning-starts", "1600"]
    where = ["--device", "cpu", "--logdir", str(tmp_path / "run"), "--test-episodes", "2"]
    info = import_module("examples.rainbow_atari").main([*game, *small, *where])
    assert (info.epoch, info.env_step) == (2, 2400)
    assert info.gradient_step == 202  # a quarter of an update per step, from the 8 steps on that reach the start
    assert info.last_test.n_episode == 2


def test_offline_cql_records_learns_twice_and_compares(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    example = import_module("examples.offline_cql")
    space = tk.make_envs("CartPole-v1").action_space
    monkeypatch.setattr(example, "half_way", lambda seed: tk.RandomPolicy(space, seed=seed))
    returns = example.main(n_rows=1_000, max_epoch=1, update_per_epoch=20)
    output = capsys.readouterr().out
    assert "700 rows of random play" in output
    assert "300 rows of a DQN half-way" in output
    assert set(returns) == {"bc", "cql"}
    assert all(mean > 0 for mean in returns.values())


SLOW_SCRIPTS = [pytest.param(name, marks=pytest.mark.slow) for name in ("from_tianshou", "from_rllib", "from_sb3")]


@pytest.mark.parametrize("name", [*SLOW_SCRIPTS, "from_sb3_dqn", "from_rllib_game", "from_tianshou_game"])
def test_a_script_ported_from_another_library_runs(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    runpy.run_path(str(EXAMPLES / f"{name}.py"))


def test_a_table_is_a_dataset() -> None:
    assert import_module("examples.own_dataset").main(max_epoch=1, update_per_epoch=5).gradient_step == 5


def test_a_policy_for_the_inventory_is_compared_with_the_rule() -> None:
    found = import_module("examples.inventory").main(max_epoch=1, n_episode=4)
    low, high = found.interval
    assert low < high


def test_ppo_trains_in_a_simulator(capsys: pytest.CaptureFixture[str]) -> None:
    returns = import_module("examples.ppo_simulator").main(n=64, max_epoch=2).returns
    assert returns.count == 100
    assert "epoch 2 | 2,048 steps" in capsys.readouterr().out


class TestTwoAgents:
    def test_both_ways_train_and_report_each_agent(self) -> None:
        example = import_module("examples.two_agents")
        for make, n_steps in ((example.by_dqn, 1_040), (example.by_ppo, 512)):
            with make(max_epoch=1, step_per_epoch=n_steps, verbose=False) as trainer:
                _, stats, info = next(trainer)
            assert info.env_step >= n_steps
            assert stats["train/agents/left/returns/mean"] > 5
            assert stats.test.agents.keys() == {"left", "right"}
            assert stats.test.n_episode == 20

    @pytest.mark.parametrize("way", ["by_dqn", "by_ppo"])
    def test_a_run_of_games_that_was_saved_is_the_run_that_never_stopped(self, way: str, tmp_path: Path) -> None:
        example = import_module("examples.two_agents")
        short: dict[str, Any] = {"max_epoch": 2, "step_per_epoch": 260, "verbose": False}
        with getattr(example, way)(**short) as straight:
            next(straight)
            straight.save(tmp_path / "run")
            next(straight)
        with getattr(example, way)(**short, resume_from=tmp_path / "run") as resumed:
            assert resumed.run().epoch == 2
        weights = [one.policy.training_state()["weights"] for one in (straight, resumed)]
        assert all((weights[0][name] == weights[1][name]).all() for name in weights[0])

    @pytest.mark.slow
    @pytest.mark.parametrize("way", ["by_dqn", "by_ppo"])
    def test_both_ways_reach_95_percent_of_the_most_there_is(self, way: str) -> None:
        example = import_module("examples.two_agents")
        with getattr(example, way)(seed=4, verbose=False) as trainer:
            trainer.run()
            played = tk.evaluate(trainer.policy, example.TwoPoles, n_episode=50, seed=7)
        assert played.returns.mean >= 475  # of 500; random play: 22


class TestLeague:
    def test_copies_of_all_roles_join_and_a_resumed_league_is_the_one_that_never_stopped(self, tmp_path: Path) -> None:
        make: Any = import_module("examples.league").make_trainer
        short: dict[str, Any] = {"every": 100, "max_epoch": 2, "step_per_epoch": 512, "verbose": False}
        with make(**short) as straight:
            next(straight)
            straight.save(tmp_path / "run")
            next(straight)
        assert {
            f"{role}-1" for role in ("main", "main_exploiter", "league_exploiter")
        } <= straight.policy.policies.keys()
        with make(**short, resume_from=tmp_path / "run") as resumed:
            resumed.run()
        assert resumed.policy.policies.keys() == straight.policy.policies.keys()
        weights = [trainer.policy["main_exploiter"].get_weights() for trainer in (straight, resumed)]
        assert all((weights[0][name] == weights[1][name]).all() for name in weights[0])

    def test_who_plays_whom_follows_the_roles(self) -> None:
        league = import_module("examples.league").League(every=10)
        league.past = ["main-1", "main_exploiter-1"]
        pairs: dict[str, set[str]] = {}
        for seed in range(300):
            episode = {"game": 0, "number": seed, "seed": seed}
            pair = [league(agent, tk.policy.GameEpisode(**episode)) for agent in ("left", "right")]
            for own, other in (pair, pair[::-1]):
                pairs.setdefault(own, set()).add(other)
        assert pairs["main_exploiter"] == {"main"}
        assert pairs["league_exploiter"] == {"main-1", "main_exploiter-1"}
        assert pairs["main"] == {"main", "main_exploiter", "main-1", "main_exploiter-1"}


@pytest.mark.slow
def test_a_study_that_was_killed_resumes_the_trial_that_ran(tmp_path: Path) -> None:
    optuna = pytest.importorskip("optuna", reason="the extra `tune` is not installed")
    folder = tmp_path / "tune"
    words = ["--folder", folder, "--trials", "6", "--steps", "4000", "--epochs", "4", "--heartbeat", "1"]
    command = [sys.executable, EXAMPLES / "tune_optuna.py", *map(str, words)]

    first = subprocess.Popen(command)
    while not any((folder / "trial_1").glob("save-*/manifest.json")):  # the second trial has ended its first epoch
        assert first.poll() is None, "it ended before it could be killed"
        time.sleep(0.02)
    first.kill()
    first.wait()
    stored = {"study_name": "dqn", "storage": f"sqlite:///{folder / 'study.db'}"}
    assert [trial.state.name for trial in optuna.load_study(**stored).trials][:2] == ["COMPLETE", "RUNNING"]
    time.sleep(4)  # until its heart has missed three beats
    second = subprocess.run(command, capture_output=True, text=True, check=False)
    assert second.returncode == 0, second.stderr

    trials = optuna.load_study(**stored).trials
    (dead,) = (trial for trial in trials if trial.state.name == "FAIL")
    (heir,) = (trial for trial in trials if trial.user_attrs.get("goes_on_from") == dead.number)
    assert heir.params == dead.params
    assert heir.state.name in ("COMPLETE", "PRUNED")
    assert min(heir.intermediate_values) > 1_000  # its first epoch was trained by the dead one
    states = [trial.state.name for trial in trials]
    assert states.count("COMPLETE") + states.count("PRUNED") == 6
    assert "PRUNED" in states
    assert "6 trials" in second.stdout
