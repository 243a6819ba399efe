"""A package outside of the tree adds a policy, a preset, a backend and a callback by public names alone."""

import ast
import importlib
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import trainkit as tk

PACKAGE = Path(__file__).parent / "package"
FILES = sorted((PACKAGE / "plainq").glob("*.py"))


@pytest.fixture
def plainq(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    monkeypatch.syspath_prepend(str(PACKAGE))
    yield importlib.import_module("plainq")
    for name in [name for name in sys.modules if name.partition(".")[0] == "plainq"]:
        del sys.modules[name]


@pytest.mark.parametrize("file", FILES, ids=lambda file: str(file.stem))
def test_it_uses_public_names_alone(file: Path) -> None:
    tree = ast.parse(file.read_text())
    imported = {one.name for node in ast.walk(tree) if isinstance(node, ast.Import) for one in node.names}
    imported |= {str(node.module) for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)}
    assert not {name for name in imported if name.startswith("trainkit.")}
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and ast.unparse(node).startswith("tk."):
            owner: Any = tk
            for name in ast.unparse(node).split(".")[1:]:
                assert name in getattr(owner, "__all__", [name]), ast.unparse(node)
                owner = getattr(owner, name)


def test_its_preset_trains_its_policy_in_its_backend_with_its_callback(plainq: Any, tmp_path: Path) -> None:
    how: dict[str, Any] = {"seed": 1, "max_epoch": 2, "step_per_epoch": 400, "learning_starts": 100, "verbose": False}
    how |= {"env_options": {"processors": [plainq.ScaleReward(0.25)]}, "episode_per_test": 2}
    best = plainq.BestReturn()
    trainer = plainq.plainq("CartPole-v1", callbacks=[best], checkpoint=tmp_path / "run", **how)
    with trainer:
        results = list(trainer)
    assert [result.epoch for result in results] == [1, 2]
    lengths, returns = results[-1].stats.train.lengths, results[-1].stats.train.returns
    assert returns.max == best.best == 0.25 * lengths.max
    assert results[-1].stats.update["target_mean"] > 0
    assert {row.item() for row in trainer.buffer.sample(64, horizon=tk.Horizon()).reward} == {0.25}
    again = plainq.plainq("CartPole-v1", callbacks=[later := plainq.BestReturn()], resume_from=tmp_path / "run", **how)
    with again:
        assert (again.epoch, later.best) == (2, best.best)


def test_its_preset_is_described_and_checked_as_ours(plainq: Any) -> None:
    assert repr(plainq.plainq) == "presets.plainq"
    assert plainq.plainq.settings()["lr"] == 1e-3
    with pytest.raises(tk.ConfigError, match="did you mean 'batch_size'"):
        plainq.plainq("CartPole-v1", batchsize=3)


def test_its_policy_is_saved_and_loaded_into_one_like_it(plainq: Any, tmp_path: Path) -> None:
    envs = tk.make_envs("CartPole-v1", 2, seed=1)
    policies = [plainq.PlainQ(envs, seed=seed) for seed in (1, 2)]
    obs = envs.reset()
    policies[0].save(tmp_path / "policy")
    tk.load_policy(tmp_path / "policy", policy=policies[1])
    one, other = (policy.get_weights() for policy in policies)
    assert all((one[name] == other[name]).all() for name in one)
    assert policies[0].act(obs).action.tolist() == policies[1].act(obs).action.tolist()
