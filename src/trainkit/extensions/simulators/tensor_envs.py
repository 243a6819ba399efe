"""A simulator's environments as their collector uses them: with one owner, every tensor checked."""

from typing import Any, NamedTuple

import numpy as np
import torch
from gymnasium import spaces
from torch import Tensor

from trainkit.core import tree
from trainkit.core.data import Obs
from trainkit.core.errors import BadEnvDataError, Checks, ConfigError
from trainkit.core.protocols import Stateful
from trainkit.core.spaces import array_specs, check_spaces
from trainkit.engine.device import resolve_device
from trainkit.envs.ownership import claim_environment, free_environments
from trainkit.extensions.simulators.simulator import Simulator

_MEMBERS = ("n", "device", "observation_space", "action_space", "reset", "step")


class TensorStep(NamedTuple):
    """The outcome of one vector step, on the device."""

    obs: Obs  # [N, ...], to act on next
    reward: Tensor  # [N]
    terminated: Tensor  # [N], bool
    truncated: Tensor  # [N], bool
    final_obs: Obs  # [N, ...], true where an episode ended

    @property
    def over(self) -> Tensor:
        """Where an episode ended, [N]."""
        return self.terminated | self.truncated


class TensorEnvs:
    """The environments of a simulator, which belong to this object until it is released.

    Attributes:
        simulator: as given.
        n: number of environments.
        device: of all tensors.
        observation_space, action_space: of one environment.
        stateful: the simulator, if its state can be saved, else None.
    """

    takes_options = False  # they reset themselves

    def __init__(self, simulator: Simulator) -> None:
        self.name = name = type(simulator).__name__
        missing = [member for member in _MEMBERS if not hasattr(simulator, member)]
        if missing:
            raise ConfigError(
                f"{name} is not a simulator, as it has no {', '.join(missing)}: see trainkit.simulators.Simulator"
            )
        self.simulator = simulator
        self.observation_space, self.action_space = simulator.observation_space, simulator.action_space
        with Checks(name) as checks:
            checks.integer("n", simulator.n, low=1)
            with checks.gather():
                check_spaces(self.observation_space, self.action_space)
            checks.require(
                isinstance(self.action_space, (spaces.Box, spaces.MultiDiscrete, spaces.MultiBinary))
                or (isinstance(self.action_space, spaces.Discrete) and self.action_space.start == 0),
                ".action_space must be a Box, MultiDiscrete, MultiBinary or a Discrete that starts at 0, got "
                f"{self.action_space}: declare one of them, and convert actions in `step`",
            )
        self.n, self.device = int(simulator.n), resolve_device(simulator.device)
        self.made_with: dict[str, Any] = {"n": repr(self.n)}
        self.stateful = simulator if isinstance(simulator, Stateful) else None
        self._obs_leaves = {  # shape and dtype by path
            path: ((self.n, *spec.shape), torch.as_tensor(np.empty(0, spec.dtype)).dtype)
            for path, spec in tree.named_leaves(array_specs(self.observation_space))
        }
        self.is_closed = False
        self.claim()

    def __repr__(self) -> str:
        return f"TensorEnvs({self.name}, n={self.n}, device={str(self.device)!r})"

    def reset(self, seed: int) -> Obs:
        """Reset every environment and return the observations [N, ...].

        Raises:
            BadEnvDataError: as `step`.
        """
        obs = self.simulator.reset(seed)
        self._check_obs("reset", "obs", obs)
        return obs

    def step(self, action: Tensor) -> TensorStep:
        """Step every environment.

        Raises:
            BadEnvDataError: a tensor has another shape, dtype or device than a `Simulator` must return.
        """
        result: object = self.simulator.step(action)
        if not isinstance(result, tuple) or len(result) != len(TensorStep._fields):
            got = f"{len(result)} values" if isinstance(result, tuple) else type(result).__name__
            raise BadEnvDataError(f"{self.name}.step must return ({', '.join(TensorStep._fields)}), got {got}")
        step = TensorStep(*result)
        self._check_obs("step", "obs", step.obs)
        self._check_obs("step", "final_obs", step.final_obs)
        self._check("step", "reward", step.reward, (self.n,), torch.float32)
        self._check("step", "terminated", step.terminated, (self.n,), torch.bool)
        self._check("step", "truncated", step.truncated, (self.n,), torch.bool)
        return step

    def claim(self) -> None:
        """Become the simulator's only user.

        Raises:
            ConfigError: it is closed, or another has it.
        """
        if self.is_closed:
            raise ConfigError(f"{self.name} is closed: make another simulator, and a collector for it")
        self.release()
        try:
            claim_environment(self.simulator, self)
        except ConfigError:
            raise ConfigError(
                f"{self.name} already belongs to a collector or a SimulatorVectorEnv: make another simulator, or "
                "release() that collector, or close what else uses it"
            ) from None

    def release(self) -> None:
        """Let another owner use the simulator."""
        free_environments([self.simulator], self)

    def close(self) -> None:
        """Release the simulator, and close it if it has a `close`."""
        self.release()
        self.is_closed = True
        close = getattr(self.simulator, "close", None)
        if close is not None:
            close()

    def _check_obs(self, method: str, what: str, obs: Obs) -> None:
        leaves = dict(tree.named_leaves(obs))
        if leaves.keys() != self._obs_leaves.keys():
            raise BadEnvDataError(
                f"{self.name}.{method} must return {what} nested as its observation_space, with the leaves "
                f"{list(self._obs_leaves)}, got {list(leaves)}"
            )
        for path, leaf in leaves.items():
            self._check(method, f"{what}[{path}]" if path else what, leaf, *self._obs_leaves[path])

    def _check(self, method: str, what: str, leaf: object, shape: tuple[int, ...], dtype: torch.dtype) -> None:
        got = type(leaf).__name__
        if isinstance(leaf, Tensor):
            if leaf.shape == shape and leaf.dtype == dtype and leaf.device == self.device:
                return
            got = _in_words(leaf.shape, leaf.dtype, leaf.device)
        raise BadEnvDataError(
            f"{self.name}.{method} must return {what} as a tensor {_in_words(shape, dtype, self.device)}, got {got}"
        )


def _in_words(shape: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> str:
    return f"{str(dtype).removeprefix('torch.')}{list(shape)} on {device}"
