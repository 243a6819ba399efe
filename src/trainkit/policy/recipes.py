"""How a policy was made, in plain values: written into checkpoints, and read to make another like it.

Only parts of our own have a name here, and each is made of the arguments it was given: a file can ask for nothing else.
"""

from collections.abc import Callable, Mapping
from dataclasses import fields
from functools import wraps
from typing import Any

import numpy as np

from trainkit.data import Horizon
from trainkit.policy.backups import DoubleBackup, MaxBackup, MunchausenBackup
from trainkit.policy.exploration import EpsilonGreedy, Greedy, SoftQ
from trainkit.policy.gradient_step import Adam, Clip
from trainkit.policy.penalties import ConservativePenalty
from trainkit.policy.quantiles import ImplicitQuantileValue, QuantileValue
from trainkit.policy.target import Target
from trainkit.policy.values import CategoricalValue, ExpectedValue
from trainkit.scaling import ReturnScale
from trainkit.schedules import Constant, Piecewise
from trainkit.spaces import space_to_plain

_RECORDS: tuple[Any, ...] = (Adam, Clip, Constant, Horizon, Piecewise, Target)
# {part: {argument: the attribute that keeps it}}; a dataclass keeps each in the field of that name.
_PARTS: dict[type, dict[str, str]] = {
    **{part: {field.name: field.name for field in fields(part)} for part in _RECORDS},
    ExpectedValue: {"loss": "kind", "delta": "delta", "rescale": "rescale"},
    CategoricalValue: {"atoms": "width", "v_min": "v_min", "v_max": "v_max", "priority": "priority"},
    QuantileValue: {"quantiles": "width", "kappa": "kappa", "rescale": "rescale"},
    ImplicitQuantileValue: {
        "quantiles": "width",
        "target_quantiles": "target_width",
        "acting_quantiles": "acting_width",
        "kappa": "kappa",
        "rescale": "rescale",
    },
    MaxBackup: {},
    DoubleBackup: {},
    MunchausenBackup: {"temperature": "temperature", "alpha": "alpha", "lowest": "lowest"},
    ConservativePenalty: {"weight": "weight"},
    Greedy: {},
    EpsilonGreedy: {"epsilon": "epsilon", "per_env": "per_env"},
    SoftQ: {"temperature": "temperature"},
    ReturnScale: {"gamma": "gamma", "clip": "clip"},
}
_NAMED = {part.__name__: part for part in _PARTS}
_OF_THIS_MACHINE = ("device", "seed", "cuda_graph", "act_on")

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


def to_plain(value: Any) -> Any:
    """Describe an argument in values that JSON keeps; raise TypeError where it cannot be done."""
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    if isinstance(value, np.generic):
        return value.item()
    if isinstance(value, np.ndarray):
        return value.tolist()
    if isinstance(value, (list, tuple)):
        return [to_plain(child) for child in value]
    if type(value) not in _PARTS:
        raise TypeError(f"{value!r} is none of our own parts")
    kept = {name: getattr(value, attribute) for name, attribute in _PARTS[type(value)].items()}
    return {"part": type(value).__name__, "of": {name: to_plain(child) for name, child in kept.items()}}


def from_plain(plain: Any) -> Any:
    """Make what `to_plain` described; raise LookupError, TypeError or ValueError where it is no such thing."""
    if isinstance(plain, list):
        return tuple(from_plain(child) for child in plain)
    if isinstance(plain, dict):
        return _NAMED[plain["part"]](**{name: from_plain(child) for name, child in plain["of"].items()})
    return plain
