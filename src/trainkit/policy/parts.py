"""Parts of a policy that take part in its learning."""

from typing import TYPE_CHECKING, Any

from trainkit.core.data import Batch

if TYPE_CHECKING:
    from trainkit.policy.base import Policy
    from trainkit.policy.update_result import PeriodicMeans


class LearningPart:
    """Base class of parts that act before or after the updates of a policy; by default they do nothing.

    Attributes:
        watched: means of metrics that it decides by; None where there are none.
    """

    watched: "PeriodicMeans | None" = None

    def before_updates(self, policy: "Policy", buffer: Any) -> None:
        """Adapt to the rows in a buffer before the first update; trainers call this through the policy."""

    def before_update(self, policy: "Policy", batch: Batch) -> None:
        """Adapt to a batch before the update that learns from it."""

    def after_update(self, policy: "Policy", batch: Batch) -> None:
        """Act on an update that was taken."""
