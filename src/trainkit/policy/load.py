"""`load_policy`: a policy from a checkpoint, to act without environments, buffer or trainer."""

import logging
import math
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeVar

import torch
from gymnasium import Space, spaces
from torch.overrides import TorchFunctionMode

from trainkit.core.checkpoint import find_checkpoints, load_checkpoint, read_manifest
from trainkit.core.errors import CheckpointError, ConfigError
from trainkit.core.files import decoding
from trainkit.core.signatures import checked, from_plain
from trainkit.core.spaces import Spaces
from trainkit.policy.base import Policy
from trainkit.policy.bc import BCPolicy
from trainkit.policy.on_policy import OnpolicyPolicy
from trainkit.policy.persistence import check_action_units

_log = logging.getLogger(__name__)

P = TypeVar("P", bound=Policy)

# Arguments that greedy actions do not depend on.
_LEARNING_OPTIONS = (
    *("lr", "adam_eps", "max_grad_norm", "optimizer", "critic_optimizer", "temperature_optimizer", "clip", "target"),
    *("imitation_optimizer", "reward", "horizon", "backup", "penalty", "exploration", "temperature", "tau"),
    *("clip_ratio", "entropy_weight"),
)


@checked
def load_policy(
    path: str | Path, *, policy: P | None = None, device: str = "auto", max_bytes: int | None = None
) -> Any:
    """Return the policy of a checkpoint, of the newest one in a folder, or of what `policy.save` wrote.

    Args:
        path: of the folder.
        policy: a new policy to load the weights into, for those that `for_envs` did not make, or made of parts that
            are not trainkit's, such as a network of yours.
        device: as in `Policy`; not used with `policy`.
        max_bytes: largest size of the weights' file; None is half of the free memory.

    Raises:
        CheckpointError: it is damaged, it has no recipe of the policy, or `policy` has other parameters.
    """
    found = find_checkpoints(path)
    if not found:
        raise CheckpointError(f"{path} holds no readable checkpoint: name a folder that a run or a policy was saved to")
    state = load_checkpoint(found[0], ["policy"], max_bytes=max_bytes).get("policy")
    if state is None:
        raise CheckpointError(f"{found[0]} was saved without a policy: name another checkpoint")
    loaded: Any = _made(found[0], device, state) if policy is None else policy
    with decoding(found[0], "a policy"):
        counters = [state[name] for name in ("n_updates", "last_step")]
        if any(type(count) is not int or count < 0 for count in counters):
            raise ValueError(f"its counters are {counters!r:.80}")
        check_action_units(loaded, state)
        loaded.load_weights(state["weights"])
        loaded.n_updates, loaded.last_step = counters
    return loaded


def _before_scaling(options: Mapping[str, Any], action_space: Space[Any]) -> dict[str, Any]:
    """Return the arguments of a policy saved before actions were scaled by today's names."""
    now = {name: value for name, value in options.items() if name != "squash"}
    if options.get("squash"):
        return now | {"action_bound_method": "tanh"}
    return now | ({"action_scaling": False} if isinstance(action_space, spaces.Box) else {})


def _made(folder: Path, device: str, state: Mapping[str, Any]) -> Any:
    """Make a policy by the recipe of the saved one, whose state is `state`."""
    manifest = read_manifest(folder)
    recipe = manifest.get("policy")
    give = f"make one like it and give it: load_policy({str(folder)!r}, policy=...)"
    kind = None if recipe is None else _exported_policies().get(str(recipe.get("class")))
    if recipe is None or kind is None:
        raise CheckpointError(f"{folder} does not say how its policy was made, which was not by our `for_envs`: {give}")
    remedy = f"it does not say how its policy was made; {give}"
    with decoding(folder, "a policy's recipe", remedy=remedy):
        unknown: Mapping[str, str] = dict(recipe["unknown"])
        lost = [f"{name}={value}" for name, value in unknown.items() if name not in _LEARNING_OPTIONS]
        if lost:
            raise CheckpointError(f"{folder} cannot say what {', '.join(lost)} of its policy was: {give}")
        if unknown:
            _log.warning("%s cannot say what %s of its policy was: made without", folder, ", ".join(unknown))
        own_spaces = Spaces.from_plain([manifest["spaces"]["observation_space"], manifest["spaces"]["action_space"]])
        n_saved = manifest["components"]["policy"]["bytes"]  # at least the number of weights
        with _AllocationLimit(str(folder), _MAX_RATIO * n_saved + _FREE_ELEMENTS):
            try:
                options = {name: from_plain(plain) for name, plain in recipe["arguments"].items() if name != "compile"}
                if issubclass(kind, (OnpolicyPolicy, BCPolicy)) and "action_scaling" not in state:
                    options = _before_scaling(options, own_spaces.action_space)
                return kind.for_envs(own_spaces, device=device, **options)
            except ConfigError as error:
                raise CheckpointError(f"{folder} does not say how its policy was made ({error}): {give}") from error


def _exported_policies() -> dict[str, Any]:
    """Return the policies with a `for_envs` that the package exports, by their classes' names."""
    kinds = {name: kind for name, kind in vars(sys.modules["trainkit.policy"]).items() if isinstance(kind, type)}
    return {name: kind for name, kind in kinds.items() if issubclass(kind, Policy) and hasattr(kind, "for_envs")}


# Elements that may be allocated while a policy is made: several times those saved (weights, gradients, moments).
_MAX_RATIO, _FREE_ELEMENTS = 16, 2**22
_FACTORIES: dict[Any, Callable[..., float]] = {
    **dict.fromkeys(
        (torch.empty, torch.zeros, torch.ones, torch.rand, torch.randn),
        lambda *size, **how: _count(how.get("size", size)),
    ),
    torch.full: lambda size, *_, **__: _count(size),
    torch.eye: lambda n, m=None, **_: n * (n if m is None else m),
    torch.linspace: lambda start, end, steps, **_: steps,
    torch.arange: lambda *bounds, **_: _length(*bounds),
}


class _AllocationLimit(TorchFunctionMode):
    """Limit on the elements of all tensors made, which a damaged recipe exceeds; raises before they are allocated."""

    def __init__(self, folder: str, limit: int) -> None:
        super().__init__()
        self._folder, self._left = folder, limit

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        count = _FACTORIES.get(func)
        if count is not None:
            self._left -= int(count(*args, **(kwargs or {})))
            if self._left < 0:
                raise CheckpointError(
                    f"{self._folder} describes a policy with many more parameters than the weights saved in it: it is "
                    "damaged, take an older one"
                )
        return func(*args, **(kwargs or {}))


def _count(size: Any) -> int:
    """Return the number of elements of a size that is given as integers or as one tuple."""
    flat = size[0] if len(size) == 1 and not isinstance(size[0], int) else size
    return math.prod(flat)


def _length(*bounds: float) -> float:
    start, end, step = {1: (0, *bounds, 1), 2: (*bounds, 1)}.get(len(bounds), bounds)
    return (end - start) / step
