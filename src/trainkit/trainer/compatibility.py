"""The parts of a run: whether they fit together, and a seed for each that has none."""

import logging
from collections.abc import Mapping, Sequence

from trainkit.collector import Collector
from trainkit.core import seeding
from trainkit.core.errors import ConfigError, nearest
from trainkit.core.protocols import Seedable, Trainee

_log = logging.getLogger(__name__)

_LEARNER = (
    "observation_space",
    "action_space",
    "horizon",
    "columns",
    "n_updates",
    "check_divergence",
    "read_metrics",
    "training_state",
    "load_training_state",
)


def refuse_misfits(
    trainer: str, policy: object, learns_by: str, train: Collector | None, test: Collector | None
) -> None:
    """Refuse a policy that cannot learn so, and collectors that do not share it."""
    own = getattr(policy, "learns_by", {learns_by})
    missing = [name for name in (learns_by, *_LEARNER) if not hasattr(policy, name) or name in {learns_by} - own]
    if missing:
        raise ConfigError(f"{trainer}.policy must learn, but {type(policy).__name__} has no {', '.join(missing)}")
    for name, collector in (("train_collector", train), ("test_collector", test)):
        if collector is not None and collector.policy is not policy:
            raise ConfigError(f"{trainer}.{name} acts with another policy than the trainer's: give both the same")
    if train is None or test is None:
        return
    own, theirs = ((c.envs.observation_space, c.envs.action_space) for c in (train, test))
    if own != theirs:
        raise ConfigError(f"{trainer}: training environments have spaces {own}, evaluation's {theirs}")


def check_columns(trainer: str, policy: Trainee, known: Sequence[str]) -> None:
    """Raise a `ConfigError` where the policy's updates read columns that the buffer does not have."""
    columns = policy.columns
    subject = f"{trainer}.policy: {type(policy).__name__}.columns"
    if isinstance(columns, str) or not all(isinstance(name, str) for name in columns):
        raise ConfigError(f"{subject} must be a sequence of names such as ('t', 'log_prob'), got {columns!r}")
    for name in columns:
        if name not in known:
            raise ConfigError(
                f"{subject} names {name!r}, which the buffer does not have, only {list(known)}: store it by the "
                f"policy's extras_spec or Collector(extra_columns=){nearest(name, known)}"
            )


def fill_seeds(root: int, parts: Mapping[str, Seedable | None]) -> None:
    """Give every part that has no seed a stream of the root, by its name."""
    for name, part in parts.items():
        if part is None or part.is_seeded:
            continue
        if isinstance(part, Collector) and part.buffer is not None and part.env_step > 0 and not part.envs.is_seeded:
            _log.warning(
                "the training collector made %d steps before the trainer's seed could reach its environments: "
                "give make_envs a seed to repeat them",
                part.env_step,
            )
        part.seed(seeding.derive(root, name))
