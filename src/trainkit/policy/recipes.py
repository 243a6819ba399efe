"""How a policy was made, in plain values: written into checkpoints, and read to make another like it."""

from collections.abc import Callable, Mapping
from functools import wraps
from typing import Any

from trainkit.core.parts import to_plain
from trainkit.core.spaces import space_to_plain

_OF_THIS_MACHINE = ("device", "seed", "engine", "act_on")

Recipe = dict[str, Any]  # {"class": a policy's, "arguments": of its `for_envs`, "unknown": those nobody can write down}


def remembering(for_envs: Any) -> Any:
    """Wrap a `for_envs` so that the policies it makes know how they were made."""
    make: Callable[..., Any] = for_envs.__func__

    @wraps(make)
    def made(cls: Any, envs: Any, **words: Any) -> Any:
        recipe = recipe_of(cls, words)  # before the words are taken apart
        policy = make(cls, envs, **words)
        policy.recipe = recipe
        return policy

    wrapped: Any = made
    return classmethod(wrapped)


def recipe_of(cls: type, words: Mapping[str, Any]) -> Recipe:
    """Write down how a policy is made by `cls.for_envs(envs, **words)`."""
    arguments: dict[str, Any] = {}
    unknown: dict[str, str] = {}
    for name, value in words.items():
        if name in _OF_THIS_MACHINE:
            continue
        try:
            arguments[name] = to_plain(value)
        except TypeError:
            unknown[name] = repr(value)
    return {"class": cls.__name__, "arguments": arguments, "unknown": unknown}


def about(policy: Any) -> dict[str, Any]:
    """Tell what a policy is, for a manifest."""
    spaces = {"observation_space": policy.observation_space, "action_space": policy.action_space}
    plain = {name: None if space is None else space_to_plain(space) for name, space in spaces.items()}
    return {"settings": {"policy": type(policy).__name__}, "spaces": plain, "policy": policy.recipe}
