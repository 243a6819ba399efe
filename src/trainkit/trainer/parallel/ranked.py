"""A run of several ranks under torchrun: what each rank does apart from learning along the averaged gradient.

Every rank collects with its own environments and seeds and learns from its own buffer. Rank 0 evaluates, logs and
prints; all save their parts of a checkpoint. Ranks must take the same number of updates, so options by which that would
depend on a rank's own time or rows are rejected.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from trainkit.collector import Collector
from trainkit.core import seeding
from trainkit.core.errors import Checks, ConfigError
from trainkit.core.folders import OwnsFolder
from trainkit.core.protocols import Learner, Seedable
from trainkit.engine.ranks import Ranks
from trainkit.simulators import TensorCollector
from trainkit.trainer.callbacks.base import Callback
from trainkit.trainer.callbacks.checkpointing import Checkpoint
from trainkit.trainer.options import Options


def check_ranks(
    trainer: str, options: Options, collector: Collector | TensorCollector | None, episode_per_collect: int | None
) -> None:
    """Raise a `ConfigError` for a run in which ranks would take different numbers of updates, as far as is known."""
    with Checks(f"{trainer} under torchrun") as checks:
        remedy = "leave it out, or train in one process"
        for name in ("test_in_train", "max_epoch_seconds"):
            checks.require(not getattr(options, name), f": {name} ends an epoch of one rank alone: {remedy}")
        is_fixed = episode_per_collect is None
        checks.require(is_fixed, ".episode_per_collect has as many steps as its episodes: give step_per_collect")
        for checkpoint in options.all_callbacks():
            is_timed = isinstance(checkpoint, Checkpoint) and checkpoint.unit == "seconds"
            checks.require(not is_timed, ': Checkpoint(unit="seconds") saves ranks at different steps: give "epochs"')
        if not isinstance(collector, Collector):
            return
        is_even = not (collector.envs.agents or collector.envs.restarts.are_enabled)
        checks.require(is_even, f": {_UNEVEN}: give environments of one agent, without on_error")


_UNEVEN = "every step must give a row of each environment, so that ranks take the same number of updates"


def check_even(trainer: str, collector: Collector | TensorCollector | None, n_step: int) -> None:
    """Raise a `ConfigError` after a collect in which environments gave no row, as with `wait_num`."""
    if isinstance(collector, Collector) and n_step % collector.envs.n:
        raise ConfigError(
            f"{trainer} under torchrun: {_UNEVEN}, got {n_step} rows of {collector.envs.n} environments: give "
            "make_envs no wait_num, and no vector environment that resets in steps of its own"
        )


def check_same(trainer: str, ranks: Ranks, settings: Mapping[str, Any], learners: Sequence[Learner]) -> None:
    """Raise a `ConfigError` on every rank where settings of the run, or shapes of weights, differ between ranks.

    Ranks that differ would wait for each other for ever, or exchange weights of other sizes.
    """
    own = {name: repr(value) for name, value in settings.items() if name != "seed"}
    for learner in learners:
        weights = learner.policy.get_weights()
        own |= {f"the shape of {learner.prefix}{name}": repr(tuple(array.shape)) for name, array in weights.items()}
    all_settings = ranks.gather(own)
    names = dict.fromkeys(name for settings in all_settings for name in settings)
    with Checks(f"{trainer} under torchrun") as checks:
        for name in names:
            values = [settings.get(name, "none") for settings in all_settings]
            if len({*values}) > 1:
                shown = ", ".join(f"{value} on rank {rank}" for rank, value in enumerate(values))
                checks.require(False, f": {name} is {shown}: start all ranks with the same settings")
                return  # the others follow from it, mostly


def options_of_rank(ranks: Ranks, options: Options) -> Options:
    """Return the options of a rank: those after rank 0 neither evaluate nor log nor print."""
    if ranks.rank == 0:
        return options
    evaluator = options.evaluator()
    if evaluator is not None:
        evaluator.collector.close()
    return replace(
        options,
        test_collector=None,
        evaluation=None,
        episode_per_test=None,
        stop_fn=None,
        save_best_fn=None,
        test_fn=None,
        logger=None,
        verbose=False,
        show_progress=False,
        diagnosis=None,
    )


def callbacks_of_rank(ranks: Ranks, callbacks: Sequence[Callback]) -> list[Callback]:
    """Return the callbacks of a rank: those that write to a folder are those of rank 0, except checkpoints."""
    return [
        one for one in callbacks if ranks.rank == 0 or isinstance(one, Checkpoint) or not isinstance(one, OwnsFolder)
    ]


def join_ranks(ranks: Ranks, root: int, parts: Mapping[str, Seedable | None], learners: Sequence[Learner]) -> None:
    """Seed all parts of a rank by its number, also those that have a seed, and give all ranks the same weights."""
    own = root if ranks.rank == 0 else seeding.derive(root, f"rank{ranks.rank}")
    for name, part in parts.items():
        if part is None or (ranks.rank == 0 and part.is_seeded):
            continue
        part.seed(seeding.derive(own, name))
        if isinstance(part, Collector) and ranks.rank > 0:
            part.envs.seed(seeding.derive(own, name, "envs"))
    for learner in learners:
        learner.policy.join(ranks)


def write_parts(ranks: Ranks, folder: Path, write: Callable[[Path], Path]) -> Path:
    """Write each rank's part of a checkpoint, that of rank 0 last: its manifest completes the checkpoint."""
    if ranks.rank > 0:
        written = write(ranks.part(folder))
        ranks.gather(None)
        return written
    ranks.gather(None)
    return write(folder)
