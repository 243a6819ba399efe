"""Resets of networks, against a bias towards what was learned first."""

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from trainkit.core.errors import Checks, ConfigError
from trainkit.core.signatures import checked
from trainkit.policy.base import Policy
from trainkit.trainer.callbacks.base import Callback

if TYPE_CHECKING:
    from trainkit.trainer.base import Trainer


@checked
class NetworkResets(Callback):
    """Draws networks again, while the replay buffer stays (Nikishin et al., 2022, "The primacy bias").

    With many updates per step a network overfits to the first steps; one that is drawn again learns from the whole
    buffer. After each `every` updates the weights are drawn, target networks copy them, optimizers lose their state,
    and a learned temperature gets its initial value. For SAC the paper resets everything every 200,000 environment
    steps; the return falls at each reset, and should be above the former one soon after.

    The number of periods that have passed is logged as `custom/resets`, with the name of one of several policies.

    Args:
        every: updates from one reset to the next, of each policy.
        names: gradient steps whose networks are drawn, such as ["critic"]; None: all.
    """

    def __init__(self, every: int, names: Sequence[str] | None = None) -> None:
        with Checks("NetworkResets") as checks:
            checks.integer("every", every, low=1)
            is_list = isinstance(names, Sequence) and len(names) > 0 and all(isinstance(name, str) for name in names)
            rule = f".names must be a list of gradient steps such as ['critic'], got {names!r}"
            checks.require(names is None or (is_list and not isinstance(names, str)), rule)
        self.every, self.names = every, names
        self._n_periods: dict[str, int] = {}  # that have passed, by the names of learners

    def check(self, trainer: "Trainer") -> None:
        """Raise a `ConfigError` where a gradient step does not exist, of a policy that learns in the run."""
        for _, policy in _learners(trainer):
            known = list(policy.gradient_steps)
            unknown = [name for name in self.names or () if name not in known]
            if unknown:
                raise ConfigError(
                    f"NetworkResets.names must name gradient steps of {type(policy).__name__}, got {unknown[0]!r}: it "
                    f"has {known}"
                )
            for name in known if self.names is None else self.names:
                policy.drawable_parts(name)

    def on_train_start(self, trainer: "Trainer") -> None:
        for name, policy in _learners(trainer):
            self._n_periods.setdefault(name, policy.n_updates // self.every)

    def on_update_end(self, trainer: "Trainer") -> None:
        for name, policy in _learners(trainer):
            n_periods = policy.n_updates // self.every
            if n_periods > self._n_periods.get(name, 0):
                self._n_periods[name] = n_periods
                for step in policy.gradient_steps if self.names is None else self.names:
                    policy.reinitialize(step)
                trainer.log("resets" if name == "" else f"resets/{name}", n_periods, "last")

    def state_dict(self) -> dict[str, Any]:
        return {"n_periods": self._n_periods}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._n_periods = dict(state["n_periods"])


def _learners(trainer: "Trainer") -> Iterator[tuple[str, Policy]]:
    for learner in trainer.policy.learners(trainer.buffer, trainer):
        yield learner.name, learner.policy
