"""The settings of a policy, for the record of a run: what `for_envs` was given, its parts, networks and optimizers."""

import inspect
from collections.abc import Callable
from typing import TYPE_CHECKING

from torch import nn

from trainkit.core.config import Plain, flatten, from_plain
from trainkit.core.signatures import options_of

if TYPE_CHECKING:
    from trainkit.policy.base import Policy
    from trainkit.policy.learning import Learning

_ELSEWHERE = ("seed", "horizon", "target", "optimizer", "clip", "engine", "device")  # described under other names
_BY_PARTS = ("double", "max_grad_norm", "lr", "adam_eps")  # of `for_envs`, which its parts may replace


def settings_of(policy: "Policy", learning: "Learning") -> dict[str, Plain]:
    """Return every setting of a policy as plain values, such as {"lr": 0.001, "backup": "DoubleBackup"}.

    What the policy consists of now replaces what it was made of.
    """
    parts: dict[str, Plain] = {}
    for name in options_of(type(policy)):
        if name not in _ELSEWHERE and hasattr(policy, name):
            parts |= flatten(name, getattr(policy, name))
    return {
        **_arguments_of_for_envs(policy),
        **parts,
        **flatten("", policy.horizon.arguments()),
        **_of_learning(learning),
        "device": str(policy.device),
        "engine": policy.engine.wanted,
        "on_nan": policy.on_nan,
    }


def _arguments_of_for_envs(policy: "Policy") -> dict[str, Plain]:
    """Return the arguments of the `for_envs` that made a policy, with its defaults; empty if none did."""
    if policy.config is None:
        return {}
    for_envs: Callable[..., object] = getattr(type(policy), "for_envs")  # noqa: B009  # not every policy has one
    parameters = inspect.signature(for_envs).parameters.values()
    options = {one.name: _default_of(type(policy), one) for one in parameters if one.kind is one.KEYWORD_ONLY}
    options |= {name: from_plain(own) for name, own in policy.config["arguments"].items()} | policy.config["unknown"]
    described = (name for name in options_of(type(policy)) if hasattr(policy, name))
    others = {*described, *_ELSEWHERE, *_BY_PARTS}
    return flatten("", {name: own for name, own in options.items() if name not in others})


def _default_of(kind: type, parameter: inspect.Parameter) -> object:
    """Return the default of an argument of `for_envs`, of one that it passes on that of the constructor that has it."""
    if parameter.default is not ...:
        return parameter.default
    made_by = (inspect.unwrap(vars(base)["__init__"]) for base in kind.__mro__ if "__init__" in vars(base))
    known = (inspect.signature(own).parameters.get(parameter.name) for own in made_by)
    found = (one.default for one in known if one is not None and one.default not in (one.empty, ...))
    return next(found, None)  # an argument without a default is given


def _of_learning(learning: "Learning") -> dict[str, Plain]:
    """Return the optimizers, clips, networks and targets, those of an only gradient step without its name.

    "lr" is the learning rate of all optimizers, where it is the same.
    """
    flat: dict[str, Plain] = {}
    rates = [flatten("lr", getattr(step.optimizer, "lr", None)) for step in learning.gradient_steps.values()]
    if rates and all(rate == rates[0] for rate in rates):
        flat |= rates[0]
    for name, step in learning.gradient_steps.items():
        prefix = "" if len(learning.gradient_steps) == 1 else f"{name}/"
        parts = {**flatten("optimizer", step.optimizer), **flatten("clip", step.clip)}
        flat |= {f"{prefix}{path}": own for path, own in parts.items()}
        flat[f"{prefix}layers"] = ", ".join(_layers(step.module))
        flat[f"{prefix}parameters"] = sum(one.numel() for one in step.module.parameters() if one.requires_grad)
    for name, target in learning.targets.items():
        flat |= flatten("target" if len(learning.targets) == 1 else f"{name}/target", target.spec)
    return flat


def _layers(module: nn.Module) -> list[str]:
    """Return the modules that have parameters of their own, as torch writes them, or with the largest one's shape."""
    layers = []
    for one in module.modules():
        own = list(one.parameters(recurse=False))
        if own:
            shape = list(max(own, key=lambda parameter: parameter.numel()).shape)
            layers.append(" ".join(repr(one).split()) if one.extra_repr() else f"{type(one).__name__}{shape}")
    return layers
