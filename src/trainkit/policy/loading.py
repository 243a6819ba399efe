"""A policy back from a file, to act: without an environment, a buffer or a trainer."""

import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeVar

from trainkit.checkpoint import find_checkpoints, load_checkpoint, read_manifest
from trainkit.errors import CheckpointError, ConfigError
from trainkit.policy.base import Policy
from trainkit.policy.bc import BCPolicy
from trainkit.policy.bcq import DiscreteBCQPolicy
from trainkit.policy.dqn import DQNPolicy
from trainkit.policy.ppo import A2CPolicy, PPOPolicy, ReinforcePolicy
from trainkit.policy.recipes import from_plain
from trainkit.policy.sac import SACPolicy
from trainkit.spaces import Spaces

_log = logging.getLogger(__name__)

P = TypeVar("P", bound=Policy)

_MADE: dict[str, Any] = {
    made.__name__: made
    for made in (A2CPolicy, BCPolicy, DQNPolicy, DiscreteBCQPolicy, PPOPolicy, ReinforcePolicy, SACPolicy)
}
# Arguments of learning: acting without exploring is the same whatever they were.
_OF_LEARNING = (
    *("lr", "adam_eps", "max_grad_norm", "optimizer", "critic_optimizer", "temperature_optimizer", "clip", "target"),
    *("imitation_optimizer", "reward", "horizon", "backup", "penalty", "exploration", "temperature", "tau"),
    *("clip_ratio", "entropy_weight"),
)


def load_policy(path: str | Path, *, policy: P | None = None, device: str = "auto") -> Any:
    """Return the policy of a checkpoint, of a folder of them the newest, or of what `policy.save` wrote.

    Args:
        path: of the folder.
        policy: a fresh one to give the weights to, for policies that `for_envs` did not make, or not of our own parts
            alone, such as one with a network of yours.
        device: as in `Policy`, where none was given.

    Raises:
        CheckpointError: it is damaged, it does not say how the policy was made, or `policy` has other parameters.
    """
    found = find_checkpoints(path)
    if not found:
        raise CheckpointError(f"{path} holds no readable checkpoint: name a folder that a run or a policy was saved to")
    state = load_checkpoint(found[0], ["policy"]).get("policy")
    if state is None:
        raise CheckpointError(f"{found[0]} was saved without a policy: name another checkpoint")
    made: Any = _made(found[0], device) if policy is None else policy
    made.load_weights(state["weights"])
    made.n_updates, made.last_step = state["n_updates"], state["last_step"]
    return made


def _made(folder: Path, device: str) -> Any:
    """Make a policy as the one saved was made."""
    manifest = read_manifest(folder)
    recipe = manifest.get("policy")
    give = f"make one like it and give it: load_policy({str(folder)!r}, policy=...)"
    if recipe is None or recipe["class"] not in _MADE:
        raise CheckpointError(f"{folder} does not say how its policy was made, which was not by our `for_envs`: {give}")
    unknown: Mapping[str, str] = recipe["unknown"]
    lost = [f"{name}={told}" for name, told in unknown.items() if name not in _OF_LEARNING]
    if lost:
        raise CheckpointError(f"{folder} cannot say what {', '.join(lost)} of its policy was: {give}")
    if unknown:
        _log.warning("%s cannot say what %s of its policy was: made without", folder, ", ".join(unknown))
    try:
        spaces = Spaces.from_plain([manifest["spaces"]["observation_space"], manifest["spaces"]["action_space"]])
        words = {name: from_plain(plain) for name, plain in recipe["arguments"].items()}
        return _MADE[recipe["class"]].for_envs(spaces, device=device, **words)
    except (LookupError, TypeError, ValueError, AttributeError, ConfigError) as error:
        raise CheckpointError(f"{folder} does not say how its policy was made ({error}): {give}") from error
