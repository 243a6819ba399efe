"""What every policy is: a module that acts on observations, with generators and a device of its own."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from gymnasium import Space
from numpy.typing import NDArray
from torch import Tensor, nn

from trainkit import seeding, tree
from trainkit.data import ActOutput, ArraySpec, Obs
from trainkit.errors import CheckpointError, ConfigError, SpaceMismatchError
from trainkit.policy.device import resolve_device
from trainkit.spaces import array_specs


@dataclass(frozen=True, slots=True)
class UpdateResult:
    """What an update leaves on the device."""

    priority: Tensor | None  # [B]

    def read_priority(self) -> NDArray[np.float32] | None:
        """Wait for the device and return the priorities [B], None where the learner has none."""
        return None if self.priority is None else self.priority.cpu().numpy()


class Meter:
    """Means of named scalars, summed where they are, on the device or as plain numbers, and read once in a while."""

    def __init__(self) -> None:
        self._names: tuple[str, ...] = ()
        self._sum: Tensor | None = None
        self._plain: dict[str, float] = {}
        self._count = 0

    def add(self, metrics: Mapping[str, Tensor], **numbers: float) -> None:
        """Add one update's scalars and plain numbers, always of the same names."""
        for name, number in numbers.items():
            self._plain[name] = self._plain.get(name, 0.0) + number
        values = torch.stack(list(metrics.values()))
        if self._sum is None:
            self._names, self._sum = tuple(metrics), values
        else:
            self._sum += values
        self._count += 1

    def read(self) -> dict[str, float]:
        """Wait for the device, return the means since the last read, and begin anew; empty after no update."""
        if self._sum is None:
            return {}
        means: list[float] = (self._sum / self._count).tolist()
        plain = {name: total / self._count for name, total in self._plain.items()}
        self._sum, self._plain, self._count = None, {}, 0
        return {**dict(zip(self._names, means, strict=True)), **plain}


class Policy(nn.Module):
    """Base of the policies: spaces, device, random streams, and `predict`.

    A subclass gives `act`, and `update` or `learn`. Acting is in eval mode, updating in train mode; noise follows
    `explore`, never the mode.
    """

    def __init__(
        self,
        *,
        observation_space: Space[Any] | None = None,
        action_space: Space[Any] | None = None,
        device: str | torch.device = "auto",
        seed: int | None = None,
    ) -> None:
        super().__init__()
        self.observation_space = observation_space
        self.action_space = action_space
        self.device = resolve_device(device)
        self.is_seeded = False
        self.start_streams(seeding.fresh_root() if seed is None else seed)
        self.last_step = 0  # the environment step of the last update, where schedules are read outside of training
        self.is_seeded = seed is not None

    @property
    def extras_spec(self) -> Mapping[str, ArraySpec]:
        """Columns that `act` gives with each action, to be stored; none unless a subclass says so."""
        return {}

    def act(
        self,
        obs: Obs,
        *,
        step: int = 0,
        explore: bool = False,
        state: Any = None,
        starts: NDArray[np.bool_] | None = None,
        env_ids: NDArray[np.intp] | None = None,
    ) -> ActOutput:
        """Choose actions [K, ...] for observations [K, ...].

        Args:
            obs: raw observations, as the environments gave them.
            step: the environment step, for schedules.
            explore: whether to explore; if not, nothing random is drawn.
            state: what the last call returned, None at first.
            starts: [K], whose episode begins here.
            env_ids: [K], which environments these rows are.
        """
        raise TypeError(f"{type(self).__name__} must define act")

    def predict(self, obs: Obs, *, explore: bool = False) -> NDArray[Any]:
        """Choose an action for one observation, or actions [K, ...] for K of them."""
        if self.observation_space is None:
            raise ConfigError(f"{type(self).__name__}.predict needs an observation_space: give one at construction")
        specs = array_specs(self.observation_space)
        rows = tree.map_tree(lambda spec, leaf: np.asarray(leaf, spec.dtype), specs, obs)
        is_one = tree.first_leaf(rows).ndim == len(tree.first_leaf(specs).shape)
        if is_one:
            rows = tree.map_tree(lambda leaf: leaf[None], rows)
        action = self.act(rows, step=self.last_step, explore=explore).action
        return action[0] if is_one else action

    def check_spaces(self, observation_space: Space[Any], action_space: Space[Any]) -> None:
        """Refuse environments whose spaces are not those the policy was made for; take over what it was not told."""
        self._refuse_other_spaces(observation_space, action_space)
        self.observation_space, self.action_space = observation_space, action_space

    def _refuse_other_spaces(self, observation_space: Space[Any], action_space: Space[Any]) -> None:
        pairs = {
            "observation_space": (self.observation_space, observation_space),
            "action_space": (self.action_space, action_space),
        }
        wrong = [
            f"{type(self).__name__}.{name} is {own}, the environments' is {theirs}: make one fit the other"
            for name, (own, theirs) in pairs.items()
            if own is not None and own != theirs
        ]
        if wrong:
            raise SpaceMismatchError("\n".join(wrong))

    def seed(self, root: int) -> None:
        """Start every random stream anew from a root seed."""
        self.start_streams(root)
        self.is_seeded = True

    def start_streams(self, root: int) -> None:
        """Start the random streams anew from a root seed, and nothing else."""
        self._rng = seeding.generator(root, "policy", "explore")
        self._noise = torch.Generator(self.device).manual_seed(seeding.derive(root, "policy", "noise"))

    def load_weights(self, weights: Mapping[str, Tensor]) -> None:
        """Take over what `state_dict` of a module of the same parameters returned, all or nothing.

        Raises:
            CheckpointError: a parameter is missing, unknown or of another shape.
        """
        own = {name: list(tensor.shape) for name, tensor in self.state_dict().items()}
        saved = {name: list(tensor.shape) for name, tensor in weights.items()}
        names = [name for name in own | saved if own.get(name) != saved.get(name)]
        wrong = [f"  {name}: {own.get(name, 'none')} here, {saved.get(name, 'none')} saved" for name in names]
        if wrong:
            told = "\n".join(wrong)
            raise CheckpointError(f"{type(self).__name__} has other parameters than the ones saved:\n{told}")
        self.load_state_dict(weights)

    def streams_state(self) -> dict[str, Any]:
        """Return the state of the random streams."""
        noise = {"device": self.device.type, "state": self._noise.get_state()}
        return {"rng": self._rng.bit_generator.state, "noise": noise}

    def load_streams_state(self, state: Mapping[str, Any]) -> None:
        """Take over saved random streams; noise saved on another kind of device goes on with this one's own."""
        self._rng.bit_generator.state = state["rng"]
        if state["noise"]["device"] == self.device.type:
            self._noise.set_state(state["noise"]["state"])
