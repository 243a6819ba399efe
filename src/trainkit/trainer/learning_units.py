"""The policies of a run that learn, each with its buffer and clock: one, or those of a `MultiAgentPolicy`."""

from collections.abc import Callable, Mapping
from typing import Any

from trainkit.core.protocols import HasLearningUnits, LearningUnit, StepClock, Trainee


def learning_units(policy: Any, buffer: Any, collector: StepClock) -> list[LearningUnit]:
    """Return the policies that learn now; the clock of a single one is the collector's."""
    if isinstance(policy, HasLearningUnits):
        return policy.learning_units(buffer)
    return [LearningUnit(name="", policy=policy, buffer=buffer, clock=collector)]


def learners_of(policy: Any) -> Mapping[str, Trainee]:
    """Return the policies that may learn, by the prefixes of their metrics."""
    return policy.members if isinstance(policy, HasLearningUnits) else {"": policy}


def numbering_of(policy: Any) -> Callable[[], dict[int, str]]:
    """Return the function that gives the names of the policies of a `MultiAgentPolicy` by number, now; none of others.

    A number is never given twice. What the policy is, which takes as long as a small network's forward pass, is asked
    once.
    """
    if isinstance(policy, HasLearningUnits):
        return lambda: {policy.number_of(name): name for name in policy.policies}
    return dict


def components_of(policy: Any) -> dict[str, tuple[Callable[[], Any], Callable[[Any], object]]]:
    """Return the components of a checkpoint that a policy has, each with how its state is read and restored."""
    if isinstance(policy, HasLearningUnits):
        return policy.components()
    return {"policy": (policy.training_state, policy.load_training_state)}
