"""What of a policy is saved, and comes back: for acting alone, or all that training goes on from."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from gymnasium import Space
from numpy.typing import NDArray
from torch import Tensor, nn

from trainkit.core.checkpoint import load_checkpoint, load_tensors, save_checkpoint
from trainkit.core.errors import CheckpointError
from trainkit.core.reading import decoding
from trainkit.engine.engine import Engine
from trainkit.engine.gradient_step import GradientStep
from trainkit.nets.action_scale import ActionScale
from trainkit.nets.distributions import SquashedGaussian
from trainkit.policy.handover import KeyMap, as_array, parted, renamed
from trainkit.policy.recipes import about, remembering
from trainkit.policy.statistics import Statistics
from trainkit.policy.target import TargetNetwork


class Saved(nn.Module):
    """A policy's state, whose parts `Policy` makes."""

    observation_space: Space[Any] | None
    action_space: Space[Any] | None
    action_scale: ActionScale | None
    device: torch.device
    statistics: Statistics
    n_updates: int
    last_step: int
    rng: np.random.Generator
    generator: torch.Generator
    is_seeded: bool
    _engine: Engine
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
        return save_checkpoint(path, {"policy": state | self._units_state()}, about(self))

    def get_weights(self) -> dict[str, NDArray[Any]]:
        """Return copies of all weights by name, those of targets and running statistics among them."""
        return {name: as_array(tensor) for name, tensor in self.state_dict().items()}

    def set_weights(self, weights: Mapping[str, NDArray[Any]]) -> None:
        """Take over copies of what `get_weights` of a policy of the same parameters returned, all or nothing.

        Raises:
            CheckpointError: as `load_weights`.
        """
        self.load_weights(weights)

    def load_weights(
        self,
        weights: Mapping[str, Tensor | NDArray[Any]] | str | Path,
        *,
        strict: bool = True,
        key_map: KeyMap | None = None,
    ) -> dict[str, str]:
        """Take over the weights of a policy of the same parameters, all or nothing.

        A target network of which they have nothing becomes a copy of what its online network is given.

        Args:
            weights: its `state_dict()`, or where it is: a checkpoint, a file that `torch.save` wrote it to, or a
                `.safetensors` file.
            strict: refuse all of them where one does not fit; if not, those that fit are taken over.
            key_map: from the names there to ours, a dict or a function; None leaves one out, and what a dict does not
                name keeps its own.

        Returns:
            {name: why} of what did not fit and stays as it was; empty where `strict`.

        Raises:
            CheckpointError: one is missing, unknown, of another shape or not finite; or none fits.
            ConfigError: `key_map` does not map the names there.
            MissingExtraError: safetensors is not installed.
        """
        if not isinstance(weights, Mapping):
            with decoding(weights, "weights"):
                return self.load_weights(_read_weights(Path(weights)), strict=strict, key_map=key_map)
        given: Mapping[str, Any] = weights
        if key_map is not None:
            given = renamed(f"{type(self).__name__}.load_weights", given, key_map)
        return self._take_over(self._with_targets(given), strict=strict)

    def _with_targets(self, given: Mapping[str, Any]) -> dict[str, Any]:
        """Return weights with those of targets that are missing altogether: what their online networks are given."""
        names = {module: name for name, module in self.named_modules()}
        whole = dict(given)
        for target in self._targets.values():
            if target.network not in names or target.online not in names:
                continue  # they are nobody's attribute, so none of our weights
            own, online = (f"{names[module]}." for module in (target.network, target.online))
            if not any(name.startswith(own) for name in given):
                theirs = {name: weight for name, weight in given.items() if name.startswith(online)}
                whole |= {own + name.removeprefix(online): weight for name, weight in theirs.items()}
        return whole

    def _take_over(self, given: Mapping[str, Any], *, strict: bool = True) -> dict[str, str]:
        fits, misfits = parted(self.state_dict(), given)
        if misfits and (strict or not fits):
            told = "\n".join(f"  {name}: {why}" for name, why in misfits.items())
            raise CheckpointError(f"{type(self).__name__} has other parameters than those given:\n{told}")
        self.load_state_dict(fits, strict=False)  # all that is missing was told
        return misfits

    def check_units(self, state: Mapping[str, Any]) -> None:
        """Raise `CheckpointError` where a saved policy's weights give actions in other units than this policy's."""
        if self.action_scale is None:
            return
        # Before actions were scaled, those of a normal distribution were in the units of the space.
        was_scaled = isinstance(getattr(self, "distribution", None), SquashedGaussian)
        saved = state.get("action_scaling", was_scaled)
        if self.action_scale.scaling is not saved:
            raise CheckpointError(
                f"{type(self).__name__}.action_scaling is {self.action_scale.scaling}, but the checkpoint's weights "
                f"were trained with action_scaling={saved}: make the policy (or call the preset) with "
                f"action_scaling={saved}"
            )

    def _units_state(self) -> dict[str, bool]:
        return {} if self.action_scale is None else {"action_scaling": self.action_scale.scaling}

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
        return self._units_state() | {
            "weights": self.state_dict(),
            "optimizers": {name: one.state_dict() for name, one in self._gradient_steps.items()},
            "targets": {name: one.state_dict() for name, one in self._targets.items()},
            "n_updates": self.n_updates,
            "last_step": self.last_step,
            "streams": self.streams_state(),
            "statistics": self.statistics.state_dict(),
            "engine": self._engine.state_dict(),
        }

    def load_training_state(self, state: Mapping[str, Any]) -> None:
        """Continue from a saved state of a policy made of the same parts."""
        self.check_units(state)
        self._take_over(state["weights"])
        for name, step in self._gradient_steps.items():
            step.load_state_dict(state["optimizers"][name])
        for name, target in self._targets.items():
            target.load_state_dict(state["targets"][name])
        self.n_updates = self._n_updates_read = state["n_updates"]
        self.last_step = state["last_step"]
        self.load_streams_state(state["streams"])
        self.statistics.load_state_dict(state["statistics"])
        if "engine" in state:  # else older than engines
            self._engine.load_state_dict(state["engine"])
        self.is_seeded = True


def _read_weights(path: Path) -> Mapping[str, Any]:
    """Read the weights of a checkpoint, or those of a file by their names."""
    if not path.is_file():
        saved: Mapping[str, Any] = load_checkpoint(path, ["policy"])["policy"]["weights"]
        return saved
    found = load_tensors(path)
    if not (isinstance(found, Mapping) and any(isinstance(weight, Tensor) for weight in found.values())):
        inside = f"{list(found)[:9]}" if isinstance(found, Mapping) else f"a {type(found).__name__}"
        raise CheckpointError(
            f"{path} must hold tensors by name, got {inside}: read it with torch.load(path, weights_only=True) and "
            "give load_weights the state_dict in it"
        )
    return found
