"""The callback that applies the rules at the end of every epoch."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from trainkit.core.errors import Checks
from trainkit.core.signatures import checked
from trainkit.extensions.diagnosis.rules import DIAGNOSIS_RULES, Rule
from trainkit.trainer.callbacks.base import Callback

if TYPE_CHECKING:
    from trainkit.trainer.base import Trainer


@checked
class Diagnosis(Callback):
    """Warn where a run does not learn, in the epoch's line, with the remedy.

    Args:
        rules: functions of the trainer that return a finding or None, called in this order at the end of every epoch;
            each name is the warning's. None applies none, which switches off what a preset adds.
    """

    def __init__(self, rules: Sequence[Rule] | None = DIAGNOSIS_RULES) -> None:
        with Checks(type(self).__name__) as checks:
            named = rules is None or isinstance(rules, Sequence)
            named = named and all(callable(rule) and hasattr(rule, "__name__") for rule in rules or ())
            expected = "a sequence of named functions trainer -> str or None, as trainer.DIAGNOSIS_RULES, or None"
            if checks.require(named, f".rules must be {expected}, got {rules!r}"):
                names = [rule.__name__ for rule in rules or ()]
                twice = sorted({name for name in names if names.count(name) > 1})
                checks.require(not twice, f".rules has two rules of one name, {', '.join(twice)}: rename one")
        self.rules = tuple(rules or ())

    def warnings(self, trainer: "Trainer") -> dict[str, str]:
        """Return what the rules found, by their names."""
        found = {}
        for rule in self.rules:
            try:
                message = rule(trainer)
            except Exception as error:
                error.add_note(f"raised by the rule {rule.__name__} of {type(self).__name__}")
                raise
            if message is not None:
                found[rule.__name__] = message
        return found
