"""What a factory may know about the environment it makes: which of how many, for what."""

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from trainkit.core import seeding


@dataclass(frozen=True, slots=True, kw_only=True)
class EnvContext:
    """Tell a factory which environment it makes; one made anew after a fault gets the same again.

    Attributes:
        index: of the environment, from 0.
        n_envs: how many there are.
        seed: for what the factory itself draws, a stream of its own, derived from `make_envs(seed=)`. None where
            that was given none: environments are made before a trainer's seed is known. Episodes are seeded all
            the same, by their resets.
        in_evaluation: whether they are for evaluation, where rewards are not shaped nor tasks made easier.
    """

    index: int
    n_envs: int
    seed: int | None
    in_evaluation: bool

    @classmethod
    def all_of(cls, n_envs: int, root: int | None, *, in_evaluation: bool) -> "list[EnvContext]":
        """Return one per environment."""
        return [
            cls(
                index=index,
                n_envs=n_envs,
                seed=None if root is None else seeding.derive(root, "context", index),
                in_evaluation=in_evaluation,
            )
            for index in range(n_envs)
        ]


def takes_context(factory: Callable[..., Any], given: Mapping[str, Any]) -> bool:
    """Whether a factory wants to be told: it has one positional parameter without a default, and no class is one.

    Args:
        factory: makes an environment.
        given: arguments it gets by name.
    """
    if inspect.isclass(factory):
        return False
    try:
        parameters = inspect.signature(factory).parameters.values()
    except (TypeError, ValueError):  # something built in, whose arguments nobody knows
        return False
    positional = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    open_ones = [
        parameter
        for parameter in parameters
        if parameter.kind in positional and parameter.default is inspect.Parameter.empty and parameter.name not in given
    ]
    return len(open_ones) == 1
