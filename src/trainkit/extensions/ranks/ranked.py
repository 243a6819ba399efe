"""A run of several ranks under torchrun: what each rank does apart from learning along the averaged gradient.

Every rank collects with its own environments and seeds and learns from its own buffer. Rank 0 evaluates, logs and
prints; all save their parts of a checkpoint. Ranks must take the same number of updates, so options by which that would
depend on a rank's own time or rows are rejected.
"""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from trainkit.collector import Collector
from trainkit.core import seeding
from trainkit.core.errors import Checks, ConfigError
from trainkit.core.folders import OwnsFolder
from trainkit.core.protocols import Learner, Seedable, StepCollector
from trainkit.extensions.ranks.ranks import Ranks
from trainkit.trainer.callbacks.base import Callback
from trainkit.trainer.callbacks.checkpointing import Checkpoint
from trainkit.trainer.interrupt import TERMINATE, DeferredInterrupt
from trainkit.trainer.options import TrainerOptions, callbacks_of, evaluation_of
from trainkit.trainer.run_processes import RunProcesses

_UNEVEN = "every step must give a row of each environment, so that ranks take the same number of updates"


def launched() -> RunProcesses | None:
    """Return the ranks that torchrun started; None for one process."""
    ranks = Ranks.launched()
    return None if ranks is None else RunRanks(ranks)


class RunRanks(RunProcesses):
    """One rank of a run of several."""

    stops_alone = False

    def __init__(self, ranks: Ranks) -> None:
        self.group, self.settings = ranks, {"n_ranks": ranks.n}

    def check_options(
        self,
        trainer: str,
        options: TrainerOptions,
        collector: StepCollector | None,
        episode_per_collect: int | None,
    ) -> None:
        """Raise a `ConfigError` for options by which ranks would take different numbers of updates."""
        with Checks(f"{trainer} under torchrun") as checks:
            remedy = "leave it out, or train in one process"
            for name in ("test_in_train", "max_epoch_seconds"):
                given: Mapping[str, object] = options
                checks.require(not given[name], f": {name} ends an epoch of one rank alone: {remedy}")
            is_fixed = episode_per_collect is None
            checks.require(is_fixed, ".episode_per_collect has as many steps as its episodes: give step_per_collect")
            for checkpoint in callbacks_of(options):
                is_timed = isinstance(checkpoint, Checkpoint) and checkpoint.unit == "seconds"
                checks.require(
                    not is_timed, ': Checkpoint(unit="seconds") saves ranks at different steps: give "epochs"'
                )
            if not isinstance(collector, Collector):
                return
            is_even = not (collector.envs.agents or collector.envs.may_lose_episodes)
            checks.require(is_even, f": {_UNEVEN}: give environments of one agent, without on_error")

    def check_collect(self, trainer: str, collector: StepCollector | None, n_step: int) -> None:
        """Raise a `ConfigError` after a collect in which environments gave no row, as with `wait_num`."""
        if isinstance(collector, Collector) and n_step % collector.envs.n:
            raise ConfigError(
                f"{trainer} under torchrun: {_UNEVEN}, got {n_step} rows of {collector.envs.n} environments: give "
                "make_envs no wait_num, and no vector environment that resets in steps of its own"
            )

    def options_of(self, options: TrainerOptions) -> TrainerOptions:
        """Return the options of a rank: those after rank 0 neither evaluate nor log nor print."""
        if self.group.rank == 0:
            return options
        evaluator = evaluation_of(options)
        if evaluator is not None:
            evaluator.collector.close()
        return {
            **options,
            "test_collector": None,
            "evaluation": None,
            "episode_per_test": None,
            "stop_fn": None,
            "save_best_fn": None,
            "test_fn": None,
            "logger": None,
            "verbose": False,
            "show_progress": False,
        }

    def callbacks_of(self, callbacks: Sequence[Callback]) -> list[Callback]:
        """Return the callbacks of a rank: those that warn or write to a folder are rank 0's, except checkpoints."""
        if self.group.rank == 0:
            return [*callbacks]
        warn = [one for one in callbacks if type(one).warnings is not Callback.warnings]
        write = [one for one in callbacks if isinstance(one, OwnsFolder) and not isinstance(one, Checkpoint)]
        return [one for one in callbacks if one not in [*warn, *write]]

    def join(
        self,
        trainer: str,
        root: int,
        parts: Mapping[str, Seedable | None],
        settings: Mapping[str, Any],
        learners: Sequence[Learner],
    ) -> None:
        """Seed all parts of a rank by its number, also those that have a seed, and give all ranks the same weights."""
        self._check_same(trainer, settings, learners)
        rank = self.group.rank
        own = root if rank == 0 else seeding.derive(root, f"rank{rank}")
        for name, part in parts.items():
            if part is None or (rank == 0 and part.is_seeded):
                continue
            part.seed(seeding.derive(own, name))
            if isinstance(part, Collector) and rank > 0:
                part.envs.seed(seeding.derive(own, name, "envs"))
        for learner in learners:
            if learner.policy.horizon.return_scale is not None:
                raise ConfigError(
                    f"{type(learner.policy).__name__}.horizon has reward='return_scale', whose running statistics the "
                    "ranks of torchrun do not share: leave it out, or train in one process"
                )
            learner.policy.join(self.group)

    def _check_same(self, trainer: str, settings: Mapping[str, Any], learners: Sequence[Learner]) -> None:
        """Raise a `ConfigError` on every rank where settings of the run, or shapes of weights, differ between ranks.

        Ranks that differ would wait for each other for ever, or exchange weights of other sizes.
        """
        own = {name: repr(value) for name, value in settings.items() if name != "seed"}
        for learner in learners:
            weights = learner.policy.get_weights()
            own |= {f"the shape of {learner.prefix}{name}": repr(tuple(array.shape)) for name, array in weights.items()}
        all_settings = self.group.gather(own)
        names = dict.fromkeys(name for settings in all_settings for name in settings)
        with Checks(f"{trainer} under torchrun") as checks:
            for name in names:
                values = [settings.get(name, "none") for settings in all_settings]
                if len({*values}) > 1:
                    shown = ", ".join(f"{value} on rank {rank}" for rank, value in enumerate(values))
                    checks.require(False, f": {name} is {shown}: start all ranks with the same settings")
                    return  # the others follow from it, mostly

    def agreed_reason(self, own: str | None, interrupt: DeferredInterrupt) -> str | None:
        """Return the reason of the first rank that stops; a SIGTERM ends all at the end of their epoch."""
        reasons = self.group.gather(TERMINATE if interrupt.take_termination() else own)
        return next((reason for reason in reasons if reason is not None), None)

    def write(self, folder: Path, write: Callable[[Path], Path]) -> Path:
        """Write each rank's part of a checkpoint, that of rank 0 last: its manifest completes the checkpoint."""
        if self.group.rank > 0:
            written = write(self.group.part(folder))
            self.group.gather(None)
            return written
        self.group.gather(None)
        return write(folder)
