"""A simulator as a gymnasium vector environment of arrays: for replay buffers, evaluations and everything else."""

from typing import Any

from gymnasium.vector import AutoresetMode, VectorEnv
from gymnasium.vector.utils import batch_space
from numpy.typing import NDArray
from torch import Tensor

from trainkit.core import tree
from trainkit.core.signatures import checked
from trainkit.engine.device import to_arrays, to_device
from trainkit.extensions.simulators.simulator import Simulator
from trainkit.extensions.simulators.tensor_envs import TensorEnvs


@checked
class SimulatorVectorEnv(VectorEnv[Any, Any, Any]):
    """Copy every step of a simulator to arrays: one wait for its device per vector step.

    `make_envs` accepts it, and so does what takes the result: `Collector` with any policy and buffer, evaluation.

    Args:
        simulator: belongs to this object until it is closed or garbage collected.
    """

    def __init__(self, simulator: Simulator) -> None:
        self._envs = envs = TensorEnvs(simulator)
        self.metadata = {"autoreset_mode": AutoresetMode.SAME_STEP}
        self.num_envs = envs.n
        self.single_observation_space, self.single_action_space = envs.observation_space, envs.action_space
        self.observation_space = batch_space(envs.observation_space, envs.n)
        self.action_space = batch_space(envs.action_space, envs.n)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """Reset every environment; without a seed the simulator's next episodes are those of seed 0."""
        return _arrays_of(self._envs.reset(0 if seed is None else seed)), {}

    def step(self, actions: NDArray[Any]) -> tuple[Any, Any, Any, Any, dict[str, Any]]:
        """Step every environment; `final_obs` is in the info where an episode ended."""
        step = self._envs.step(to_device(actions, self._envs.device))
        obs, reward, terminated, truncated, final_obs = _arrays_of(step)
        return obs, reward, terminated, truncated, {"final_obs": final_obs, "_final_obs": terminated | truncated}

    def close_extras(self, **kwargs: Any) -> None:
        """Close the simulator."""
        self._envs.close()


def as_vector_env(spec: object) -> SimulatorVectorEnv | None:
    """Return the environments of arrays that a simulator is made into; None for what is no simulator."""
    return SimulatorVectorEnv(spec) if isinstance(spec, Simulator) else None


def _arrays_of(tensors: Any) -> Any:
    """Return a tree of tensors as arrays, after one wait for their device."""
    leaves: dict[str, Tensor] = {}

    def named(leaf: Tensor) -> str:
        name = str(len(leaves))
        leaves[name] = leaf
        return name

    names = tree.map_tree(named, tensors)
    return tree.map_tree(to_arrays(leaves).__getitem__, names)
