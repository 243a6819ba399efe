"""The record of a run has every effective setting, of the user's own parts too, and goes to every logger."""

import inspect
import json
import subprocess
from pathlib import Path
from typing import Any

import pytest
import torch
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from tensorboard.plugins.hparams import plugin_data_pb2

import trainkit as tk
from trainkit.loggers.runs import RunFolder

TINY: dict[str, Any] = {
    "max_epoch": 1, "step_per_epoch": 100, "learning_starts": 50, "batch_size": 8, "hidden": (8,), "n_envs": 2,
    "n_test_envs": 1, "episode_per_test": 1, "device": "cpu", "verbose": False,
}  # fmt: skip


class Soft:
    """A user's own backup."""

    def __init__(self, temperature: float) -> None:
        self.temperature = temperature

    def __call__(self, online: Any, target: Any, batch: Any, value: Any) -> tuple[torch.Tensor, torch.Tensor]:
        q = target(batch.next_obs, batch.next_legal).outputs
        return self.temperature * torch.logsumexp(q / self.temperature, dim=1), batch.reward


class Scale(torch.nn.Module):
    """Action values that need no random weights."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = torch.nn.Parameter(torch.ones(3))

    def forward(self, obs: torch.Tensor) -> torch.Tensor:
        return obs[:, :2] * self.scale[:2]


class Patience(tk.Callback):
    def __init__(self, epochs: int) -> None:
        self._epochs = epochs


def made_by_hand(**options: Any) -> tk.OffpolicyTrainer[Any]:
    envs = tk.make_envs("CartPole-v1", 2, env_kwargs={"sutton_barto_reward": True}, max_episode_steps=30)
    policy = tk.DQNPolicy(
        Scale(), backup=Soft(0.1), optimizer=tk.Adam(0.25, weight_decay=0.5),
        horizon=tk.Horizon(3, 0.9), action_space=envs.action_space, device="cpu",
    )  # fmt: skip
    buffer = tk.PrioritizedReplayBuffer(500, alpha=0.7, beta=[(0, 0.4), (100, 1.0)])
    train = tk.Collector(policy, envs, buffer)
    return tk.OffpolicyTrainer(
        policy, train, max_epoch=1, step_per_epoch=60, batch_size=8, seed=1, verbose=False, **options
    )


def test_a_presets_run_is_described_by_the_names_that_the_preset_has() -> None:
    trainer = tk.presets.rainbow("CartPole-v1", seed=3, lr=1e-3, n_step=4, buffer={"alpha": 0.7}, **TINY)
    record = trainer.describe()
    assert trainer.settings().items() <= record.items()
    expected = {
        "preset": "rainbow", "env": "CartPole-v1", "seed": 3, "batch_size": 8, "log_every": 1_000,
        "policy": "DQNPolicy", "policy/lr": 1e-3, "policy/n_step": 4, "policy/hidden": [8], "policy/noisy": 0.1,
        "policy/backup": "DoubleBackup", "policy/value": "CategoricalValue", "policy/value/atoms": 51,
        "policy/exploration": "Greedy", "policy/optimizer": "Adam", "policy/optimizer/eps": 1.5e-4,
        "policy/target/every": 50, "policy/engine": "auto", "policy/device": "cpu", "policy/clip/limit": 10.0,
        "buffer/alpha": 0.7, "buffer/beta": [[0, 0.4], [100, 1.0]], "buffer/capacity": 100_000,
        "evaluation/duration": 1, "evaluation/n_envs": 1, "env/stack": 1, "env/max_episode_steps": 500,
        "versions/torch": torch.__version__, "machine/threads": torch.get_num_threads(),
    }  # fmt: skip
    assert {name: record.get(name) for name in expected} == expected
    assert record["policy/parameters"] == sum(one.numel() for one in trainer.policy.network.parameters())
    assert json.loads(json.dumps(record)) == record
    trainer.close()


def test_parts_of_the_users_own_are_described_like_ours() -> None:
    record = made_by_hand(callbacks=[Patience(4), tk.on(epoch_end=print)]).describe()
    expected = {
        "preset": None, "policy/n_step": 3, "policy/gamma": 0.9, "policy/backup": "Soft",
        "policy/backup/temperature": 0.1, "policy/optimizer/weight_decay": 0.5, "policy/lr": 0.25, "buffer/alpha": 0.7,
        "env/env_kwargs/sutton_barto_reward": True, "env/on_error": "raise",
        "env/max_episode_steps": 30, "callbacks/Patience/epochs": 4, "on_epoch_end": "builtins.print",
        "policy/layers": "Scale[3]", "policy/parameters": 3,
    }  # fmt: skip
    assert {name: record.get(name) for name in expected} == expected


def test_environments_are_described_by_the_options_of_make_envs() -> None:
    envs = tk.make_envs(
        "CartPole-v1", 2, backend="async", wait_num=1, stack=2, environment_variables={"TOKEN": "secret"},
    )  # fmt: skip
    trainer = tk.OffpolicyTrainer(
        policy := tk.DQNPolicy.for_envs(envs, hidden=(4,)), tk.Collector(policy, envs, tk.ReplayBuffer(50)),
        max_epoch=1, step_per_epoch=10, batch_size=4, seed=1, verbose=False,
    )  # fmt: skip
    record = {name: value for name, value in trainer.describe().items() if name.startswith("env/")}
    trainer.close()
    options = {name.split("/")[1] for name in record}
    assert options == {*inspect.signature(tk.make_envs).parameters} - {"spec", "n", "seed", "env_kwargs"}
    expected = {
        "env/backend": "async", "env/wait_num": 1, "env/stack": 2, "env/environment_variables": ["TOKEN"],
    }  # fmt: skip
    assert {name: record[name] for name in expected} == expected
    assert "secret" not in str(record)


def test_several_gradient_steps_have_their_own_names() -> None:
    trainer = tk.presets.sac("Pendulum-v1", lr=1e-3, **{**TINY, "n_envs": 1})
    record = trainer.describe()
    names = ["policy/lr", "policy/critic/optimizer/lr", "policy/actor/optimizer/lr", "policy/temperature/parameters"]
    assert [record[name] for name in names] == [1e-3, 1e-3, 1e-3, 1]
    assert record["policy/target/tau"] == record["policy/tau"] == 0.005
    trainer.close()


def test_runs_of_on_policy_trainers_are_described() -> None:
    given = {name: TINY[name] for name in ("n_envs", "hidden", "device", "verbose")}
    trainer = tk.presets.ppo("CartPole-v1", clip_ratio=0.3, **given)
    expected = {"policy/clip_ratio": 0.3, "buffer": "RolloutBuffer", "repeat_per_collect": 20}
    record = trainer.describe()
    assert {name: record.get(name) for name in expected} == expected
    trainer.close()


def test_two_runs_that_differ_in_lr_differ_there_alone_and_in_every_log(tmp_path: Path) -> None:
    records = []
    for lr in (1e-3, 2e-3):
        folder = tmp_path / str(lr)
        loggers = [tk.loggers.TensorboardLogger(folder / "events"), tk.JsonlLogger(folder)]
        with tk.presets.dqn("CartPole-v1", seed=1, lr=lr, logger=loggers, **TINY) as trainer:
            trainer.run()
        settings = dict(RunFolder.read(folder).settings)
        assert settings == trainer.describe() | {name: value for name, value in settings.items() if "git/" in name}
        reader = EventAccumulator(str(folder / "events"))
        reader.Reload()
        (content,) = reader.PluginTagToContent("hparams").values()
        given = plugin_data_pb2.HParamsPluginData.FromString(content).session_start_info.hparams
        hparams = {name: getattr(value, value.WhichOneof("kind")) for name, value in given.items()}
        assert hparams["policy/lr"] == lr
        assert hparams["policy/hidden"] == "[8]"
        assert hparams.keys() == {name for name, value in settings.items() if value is not None}
        assert "test/returns/mean" in reader.Tags()["scalars"]
        records.append(settings)
    one, other = records
    assert {name for name in one if one[name] != other[name] and "git/" not in name} == {
        "policy/lr", "policy/optimizer/lr",
    }  # fmt: skip


def test_the_users_repository_is_recorded_with_its_changes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def git(*words: str) -> str:
        who = ["-c", "user.name=a", "-c", "user.email=a@b.c"]
        return subprocess.run(["git", *who, *words], check=True, capture_output=True, text=True).stdout.strip()

    trainer = made_by_hand()
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(tmp_path.parent))
    assert "git/commit" not in trainer.describe()
    git("init", "-q")
    (tmp_path / "own.py").write_text("a = 1\n")
    git("add", ".")
    git("commit", "-qm", "First")
    record = trainer.describe()
    assert (record["git/commit"], record["git/dirty"]) == (git("rev-parse", "HEAD"), False)
    trainer.save("saved")
    assert tk.trainer.inspect_checkpoint("saved")["git"] == {"commit": git("rev-parse", "HEAD"), "dirty": False}
    (tmp_path / "own.py").write_text("a = 2\n")
    assert trainer.describe()["git/dirty"] is True
    monkeypatch.setenv("PATH", "")
    assert "git/commit" not in trainer.describe()


@pytest.mark.parametrize(
    ("preset", "env", "options", "name"),
    [
        ("ppo", "Pendulum-v1", {"action_scaling": False}, "action_scaling"),
        ("dqn", "CartPole-v1", {"store_action_prob": True}, "store_action_prob"),
        ("sac", "Pendulum-v1", {"initial_temperature": 0.5}, "initial_temperature"),
    ],
)
def test_an_option_that_is_fixed_at_construction_is_on_record(
    preset: str, env: str, options: dict[str, Any], name: str
) -> None:
    with tk.presets.PRESETS[preset](env, seed=1, hidden=(4,), verbose=False, **options) as trainer:
        assert trainer.describe()[f"policy/{name}"] == options[name]
