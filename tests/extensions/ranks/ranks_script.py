"""What the tests of ranks run under torchrun: `torchrun ... ranks_script.py gradients|train|weights ARGUMENTS`."""

import hashlib
import json
import os
import sys
from pathlib import Path
from typing import Any

import torch

import trainkit as tk
from trainkit.core import tree
from trainkit.engine.device import to_device
from trainkit.engine.engine import Engine
from trainkit.engine.gradient_step import GradientStep
from trainkit.extensions.ranks.ranks import Ranks

RANK = int(os.environ["RANK"])


def make_trainer(name: str, **options: Any) -> tk.Trainer:
    """Return a small run of a preset; ranks share its seed."""
    if name == "ppo":
        of_kind: dict[str, Any] = {"step_per_epoch": 1_024, "step_per_collect": 256, "batch_size": 32}
        of_kind["normalize_obs"] = True
    else:
        of_kind = {"step_per_epoch": 256, "learning_starts": 64, "batch_size": 16, "update_per_step": 1.0}
    env = "Pendulum-v1" if name in ("sac", "crossq") else "CartPole-v1"
    given = {"seed": 3, "hidden": (32,), "zoo": False, "max_epoch": 2, "verbose": False, "evaluation": None}
    trainer: tk.Trainer = tk.presets.PRESETS[name](env, **{**given, **of_kind, **options})
    return trainer


def digest(policy: Any) -> str:
    """Return a digest of all weights."""
    hashed = hashlib.sha256()
    for _, weight in sorted(policy.get_weights().items()):
        hashed.update(weight.tobytes())
    return hashed.hexdigest()


class Comparison:
    """Compares each averaged gradient with that of one process for the rows of all ranks, and the ranks' weights."""

    def __init__(self) -> None:
        self.errors: list[float] = []
        self.n_different = 0
        self._expected: torch.Tensor | None = None
        minimize, average = Engine.minimize, Ranks.average
        comparison = self

        def compared(engine: Engine, gradient_step: GradientStep, *given: Any, **options: Any) -> Any:
            comparison.expect(engine, gradient_step, *given)
            return minimize(engine, gradient_step, *given, **options)

        def checked(ranks: Ranks, groups: Any, loss: Any) -> None:
            average(ranks, groups, loss)
            if comparison._expected is not None:
                averaged = torch.cat([group.joined_gradients() for group in groups]).double()
                difference = torch.linalg.vector_norm(averaged - comparison._expected)
                comparison.errors.append(float(difference / torch.linalg.vector_norm(comparison._expected)))
                comparison._expected = None

        Engine.minimize, Ranks.average = compared, checked  # type: ignore[method-assign]

    def expect(self, engine: Engine, gradient_step: GradientStep, objective: Any, given: Any) -> None:
        """Compute the gradient of the mean loss over the rows of all ranks by torch, in one process."""
        ranks = gradient_step.process_group
        assert isinstance(ranks, Ranks)
        plain = tree.map_tree(lambda leaf: leaf.detach() if isinstance(leaf, torch.Tensor) else leaf, given)
        everyone = ranks.gather((plain, digest(gradient_step.module_weights)))
        self.n_different += len({weights for _, weights in everyone}) > 1
        if ranks.rank > 0 or not gradient_step.groups:  # the first step lays the parameters out
            return
        members = [parameter for group in gradient_step.groups for parameter in group.members]
        total = torch.zeros(())
        for theirs, _ in everyone:
            total = total + objective(objective.rows(to_device(theirs, torch.device("cpu"))))["loss"] / ranks.n
        gradients = torch.autograd.grad(total, members, allow_unused=True)
        pieces = [torch.zeros_like(p) if g is None else g for p, g in zip(members, gradients, strict=True)]
        self._expected = torch.cat([piece.reshape(-1) for piece in pieces]).double()


class _Weights:
    """The weights of a gradient step's module, as `digest` reads them."""

    def __init__(self, module: torch.nn.Module) -> None:
        self._module = module

    def get_weights(self) -> dict[str, Any]:
        return {name: tensor.detach().numpy() for name, tensor in self._module.state_dict().items()}


GradientStep.module_weights = property(lambda own: _Weights(own.module))  # type: ignore[attr-defined]


def compare_gradients(name: str, n_updates: int) -> dict[str, Any]:
    """Train, and return the largest relative difference of a gradient."""
    comparison = Comparison()
    trainer = make_trainer(name, max_epoch=100, engine="torch")  # as what it is compared with
    with trainer:
        while trainer.gradient_step < n_updates:
            next(trainer)
    return {
        "n_updates": trainer.gradient_step,
        "n_compared": len(comparison.errors),
        "largest": max(comparison.errors, default=None),
        "n_different": comparison.n_different,
    }


def train(name: str, folder: str, max_env_step: int) -> dict[str, Any]:
    """Train with checkpoints up to the epoch with a step, and return where the run stands."""
    options = {"checkpoint": folder, "resume_from": "auto", "max_epoch": 3, "max_env_step": max_env_step}
    with make_trainer(name, **options) as trainer:
        info = trainer.run()
        return {"n_updates": info.gradient_step, "n_episode": info.n_episode, "stop_reason": info.stop_reason}


def weights(name: str, options: str) -> dict[str, Any]:
    """Train with options, and with resets after so many updates, and return a digest of the weights and statistics."""
    given: dict[str, Any] = json.loads(options)
    if "resets" in given:
        given["callbacks"] = tk.callbacks.NetworkResets(given.pop("resets"))
    with make_trainer(name, max_epoch=1, step_per_epoch=128, **given) as trainer:
        trainer.run()
        return {"n_updates": trainer.gradient_step, "digest": digest(trainer.policy)}


if __name__ == "__main__":
    job, out, name, *rest = sys.argv[1:]
    jobs = {"gradients": lambda: compare_gradients(name, int(rest[0]))}
    jobs["train"] = lambda: train(name, rest[0], int(rest[1]))
    jobs["weights"] = lambda: weights(name, rest[0])
    last = jobs[job]()
    Path(f"{out}.{RANK}").write_text(json.dumps(last))
