"""What of a policy is saved, and comes back: for acting alone, or all that training goes on from."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from gymnasium import Space
from torch import Tensor, nn

from trainkit.checkpoint import load_checkpoint, load_tensors, save_checkpoint
from trainkit.policy.gradient_step import GradientStep
from trainkit.policy.recipes import about, remembering
from trainkit.policy.statistics import Statistics
from trainkit.policy.target import TargetNetwork
from trainkit.policy.weights import refuse_others


class Saved(nn.Module):
    """A policy's state, whose parts `Policy` makes."""

    observation_space: Space[Any] | None
    action_space: Space[Any] | None
    device: torch.device
    statistics: Statistics
    n_updates: int
    last_step: int
    rng: np.random.Generator
    generator: torch.Generator
    is_seeded: bool
    _n_updates_read: int
    _gradient_steps: dict[str, GradientStep]
    _targets: dict[str, TargetNetwork]

    recipe: Mapping[str, Any] | None = None

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        if "for_envs" in vars(cls):
            setattr(cls, "for_envs", remembering(vars(cls)["for_envs"]))  # noqa: B010 - there is none here

    def save(self, path: str | Path) -> Path:
        """Write what acting needs into a folder, for `load_policy`; what was saved there before is replaced."""
        state = {"weights": self.state_dict(), "n_updates": self.n_updates, "last_step": self.last_step}
        return save_checkpoint(path, {"policy": state}, about(self))

    def load_weights(self, weights: Mapping[str, Tensor] | str | Path) -> None:
        """Take over the weights of a policy of the same parameters, all or nothing.

        Args:
            weights: its `state_dict()`, or where it is: a checkpoint, or a file that `torch.save` wrote it to.

        Raises:
            CheckpointError: a parameter is missing, unknown or of another shape.
        """
        if isinstance(weights, Mapping):
            saved = weights
        elif Path(weights).is_file():
            saved = load_tensors(weights)
        else:
            saved = load_checkpoint(weights, ["policy"])["policy"]["weights"]
        refuse_others(type(self).__name__, self.state_dict(), saved)
        self.load_state_dict(saved)

    def streams_state(self) -> dict[str, Any]:
        """Return the state of the random streams."""
        return {
            "rng": self.rng.bit_generator.state,
            "noise": {"device": self.device.type, "state": self.generator.get_state()},
        }

    def load_streams_state(self, state: Mapping[str, Any]) -> None:
        """Take over saved random streams; noise saved on another kind of device goes on with this one's own."""
        self.rng.bit_generator.state = state["rng"]
        if state["noise"]["device"] == self.device.type:
            self.generator.set_state(state["noise"]["state"])

    def training_state(self) -> dict[str, Any]:
        """Return all that training goes on from: weights, moments, counters, random streams."""
        return {
            "weights": self.state_dict(),
            "optimizers": {name: one.state_dict() for name, one in self._gradient_steps.items()},
            "targets": {name: one.state_dict() for name, one in self._targets.items()},
            "n_updates": self.n_updates,
            "last_step": self.last_step,
            "streams": self.streams_state(),
            "statistics": self.statistics.state_dict(),
        }

    def load_training_state(self, state: Mapping[str, Any]) -> None:
        """Go on from a saved state of a policy made of the same parts."""
        self.load_weights(state["weights"])
        for name, step in self._gradient_steps.items():
            step.load_state_dict(state["optimizers"][name])
        for name, target in self._targets.items():
            target.load_state_dict(state["targets"][name])
        self.n_updates = self._n_updates_read = state["n_updates"]
        self.last_step = state["last_step"]
        self.load_streams_state(state["streams"])
        self.statistics.load_state_dict(state["statistics"])
        self.is_seeded = True
