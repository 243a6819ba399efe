"""Results of the zoo: fresh seeds only, a finished seed once, an interrupted one to the same bits."""

import json
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import trainkit as tk
from trainkit import zoo
from trainkit.policy import base as policy_base
from trainkit.zoo import results

SETTINGS = {"max_epoch": 2, "step_per_epoch": 64, "n_envs": 2, "step_per_collect": 2, "learning_starts": 16}
SETTINGS |= {"batch_size": 8, "n_test_envs": 1, "episode_per_test": 2}
HEAD = 'source = "a test"  # kept\ntuning_seeds = [102]\nepisodes = 3\n'


def write(folder: Path, *, head: str = HEAD, hidden: str = "[8]") -> Path:
    """Write an entry for a very short run of DQN."""
    path = folder / "dqn" / "CartPole-v1.toml"
    path.parent.mkdir(parents=True, exist_ok=True)
    settings = "".join(f"{name} = {value}\n" for name, value in SETTINGS.items())
    path.write_text(f"{head}\n[settings]\nhidden = {hidden}  # kept, too\n{settings}")
    return path


def train(folder: Path, **options: Any) -> zoo.ZooEntry:
    return zoo.train("dqn", "CartPole-v1", folder=folder, runs=folder / "runs", **options)


def outcomes(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(path.read_text()) for path in sorted(folder.rglob("outcome.json"))]


def test_a_result_is_written_below_the_settings_which_stay_as_they_are(tmp_path: Path) -> None:
    path = write(tmp_path)
    above = path.read_text()
    entry = train(tmp_path, seeds=3, weights="median")
    assert path.read_text().startswith(above)
    result = entry.result
    assert result is not None
    assert result.seeds == (101, 103, 104)  # 102 is a tuning seed
    assert result.settings == entry.digest
    assert result.mean == pytest.approx(np.mean(result.returns), rel=1e-5)
    assert result.low <= result.mean <= result.high
    assert [step for step, _ in result.curve] == [64, 128] == [64, result.steps]
    assert result.command == f"trainkit zoo train dqn CartPole-v1 --seed-list 101 103 104 --folder {tmp_path}"
    assert 9 <= result.random <= 60
    median = sorted(result.returns)[1]
    assert result.returns[result.seeds.index(result.weights_seed or 0)] == median
    policy = zoo.load("dqn", "CartPole-v1", device="cpu", folder=tmp_path)
    assert isinstance(policy, tk.DQNPolicy)
    assert policy.network.encoder.n_features == 8


def test_a_finished_seed_is_not_run_again_unless_the_settings_changed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(tmp_path)
    first = train(tmp_path, seeds=[101])
    monkeypatch.setattr(results, "PRESETS", {})  # nothing can be trained
    assert train(tmp_path, seeds=[101]).result == first.result
    write(tmp_path, hidden="[9]")
    with pytest.raises(KeyError):
        train(tmp_path, seeds=[101])


def test_an_interrupted_seed_resumes_to_the_same_outcome(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Interrupting(tk.Checkpoint):
        def on_epoch_reported(self, trainer: Any, result: Any) -> None:
            super().on_epoch_reported(trainer, result)
            time.sleep(2.0)
            raise KeyboardInterrupt

    for name in ("whole", "interrupted"):
        write(tmp_path / name)
    train(tmp_path / "whole", seeds=[101])
    monkeypatch.setattr(results, "Checkpoint", Interrupting)
    with pytest.raises(KeyboardInterrupt):
        train(tmp_path / "interrupted", seeds=[101])
    monkeypatch.undo()
    assert outcomes(tmp_path / "interrupted") == []
    train(tmp_path / "interrupted", seeds=[101])
    (whole,), (resumed,) = outcomes(tmp_path / "whole"), outcomes(tmp_path / "interrupted")
    assert {**whole, "seconds": 0} == {**resumed, "seconds": 0}
    assert resumed["seconds"] > 2.0  # those before the interruption count


def test_what_each_seed_does_is_printed_on_request(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write(tmp_path)
    result = train(tmp_path, seeds=[101, 103]).result
    assert capsys.readouterr().out == ""
    assert train(tmp_path, seeds=[101, 104], verbose=True).result is not None
    finished, began, *epochs, _, ended = capsys.readouterr().out.splitlines()
    assert result is not None
    returned = f"dqn/CartPole-v1, seed 101: mean return {result.returns[0]:g} of 3 greedy episodes, "
    assert finished.startswith(returned)
    assert began == "dqn/CartPole-v1, seed 104:"
    assert [line.split(" | ")[0] for line in epochs] == ["epoch 1", "epoch 2"]
    assert ended.startswith("dqn/CartPole-v1, seed 104: mean return ")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"seeds": [101, 102]}, r"dqn/CartPole-v1 were chosen on seeds 102, .* got 102: name fresh ones"),
        ({"seeds": [101, 101]}, r"zoo.train.seeds must be one or more different seeds, got \[101, 101\]"),
        ({"seeds": 0}, r"zoo.train.seeds must be a whole number >= 1, got 0"),
        ({"jobs": 0}, r"zoo.train.jobs must be a whole number >= 1, got 0"),
    ],
)
def test_tuning_seeds_and_other_mistakes_are_rejected_before_anything_runs(
    tmp_path: Path, options: Any, message: str
) -> None:
    path = write(tmp_path)
    before = path.read_text()
    with pytest.raises(tk.ConfigError, match=message):
        train(tmp_path, **options)
    assert path.read_text() == before
    assert not (tmp_path / "runs").exists()


def test_weights_that_are_too_large_are_not_shipped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(results, "LARGEST_WEIGHTS", 100)
    path = write(tmp_path)
    with pytest.raises(tk.ConfigError, match=r"dqn/CartPole-v1 has [\d,]+ bytes, more than the 100 of a shipped one"):
        train(tmp_path, seeds=[101], weights="best")
    assert not zoo.entry("dqn", "CartPole-v1", folder=tmp_path).weights.exists()
    assert "[result]" not in path.read_text()


@pytest.mark.slow  # each process imports torch
def test_seeds_in_processes_give_the_same_outcomes(tmp_path: Path) -> None:
    for name in ("one", "two"):
        write(tmp_path / name)
    one, two = (train(tmp_path / name, seeds=2, jobs=jobs).result for name, jobs in (("one", 1), ("two", 2)))
    assert one is not None
    assert two is not None
    assert (one.returns, one.curve) == (two.returns, two.curve)


# ---- compact policies ----


@pytest.mark.parametrize("name", ["rainbow", "sac", "ppo"])
def test_a_compact_policy_is_smaller_and_acts_alike(tmp_path: Path, name: str) -> None:
    env = "Pendulum-v1" if name == "sac" else "CartPole-v1"
    hidden = (32, 32)
    policy = tk.presets.PRESETS[name](env, seed=1, hidden=hidden, device="cpu", evaluation=None, verbose=False).policy
    assert isinstance(policy, policy_base.Policy)
    sizes = []
    for compact in (False, True):
        folder = policy.save(tmp_path / str(compact), compact=compact)
        sizes.append(sum(path.stat().st_size for path in folder.glob("*.pt")))
    assert sizes[1] < 0.75 * sizes[0]
    loaded = tk.load_policy(tmp_path / "True", device="cpu")
    obs = np.random.default_rng(0).normal(size=(64, *policy.observation_space.shape)).astype(np.float32)
    same = np.isclose(loaded.act(obs).action, policy.act(obs).action, atol=0.01)
    assert same.mean() > 0.95


def test_an_entry_without_weights_in_a_folder_of_ones_own_is_trained_by_a_command(tmp_path: Path) -> None:
    write(tmp_path)
    with pytest.raises(
        tk.ConfigError, match=r"train it with `trainkit zoo train dqn CartPole-v1 --weights median --fol"
    ):
        zoo.load("dqn", "CartPole-v1", folder=tmp_path)
