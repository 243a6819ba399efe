"""Saving and loading of policies: how one was made, in plain values, its weights, and `load_policy`."""

import logging
import math
from collections.abc import Callable, Mapping, Sequence
from functools import wraps
from pathlib import Path
from types import NoneType
from typing import Any, Protocol, TypeVar, runtime_checkable

import numpy as np
import torch
from gymnasium import Space, spaces
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from trainkit.core import extensions
from trainkit.core.checkpoint import find_checkpoints, load_checkpoint, load_tensors, newest, read_manifest
from trainkit.core.config import UnknownClassError, from_plain, has_address, plain_call
from trainkit.core.errors import CheckpointError, Checks, ConfigError, reject_unknown
from trainkit.core.files import decoding
from trainkit.core.names import did_you_mean
from trainkit.core.signatures import checked, options_of
from trainkit.core.spaces import Spaces, space_to_plain
from trainkit.nets.encoders import named_encoder
from trainkit.nets.layers import named_activation

_log = logging.getLogger(__name__)

P = TypeVar("P", bound=nn.Module)
ForEnvs = TypeVar("ForEnvs", bound=Callable[..., Any])
KeyMap = Mapping[str, str | None] | Callable[[str], str | None]

_PARTS = (  # which may be assigned, and are options by the same names
    *("value", "backup", "penalty", "exploration"),
    *("reduction", "actor_reduction", "critic_pass", "target_entropy"),
)
_GIVES = {"backup": ("backup", "double")}  # options that give a part, if not only the one of its name
_PLAIN = (dict, list, str, int, float, NoneType)
_MACHINE_OPTIONS = ("device", "seed", "engine", "act_on")  # which a loaded policy chooses again
_BY_NAME: Mapping[str, Callable[[Any], Any]] = {"encoder": named_encoder, "activation": named_activation}


# ---- how a policy was made ----


def recorded(for_envs: ForEnvs) -> ForEnvs:
    """Record the arguments of a `for_envs` in the `config` of the policy it makes.

    A config is {"class": name, "arguments": {name: plain value}, "unknown": {name: repr of what has no plain value}},
    and "env": the name of the environments, if they have one.
    """

    @wraps(for_envs)
    def recording(cls: Any, envs: Any, **options: Any) -> Any:
        config = config_of(cls, options)  # before the options are used
        policy = for_envs(cls, envs, **options)
        name = getattr(envs, "name", None)
        policy.config = config | ({"env": name} if isinstance(name, str) else {})
        policy._parts_made, policy._parts_named = _parts_of(policy), set()
        return policy

    unchanged: Any = recording  # for type checkers: it has the same signature
    function: ForEnvs = unchanged
    return function


def config_of(cls: type, options: Mapping[str, Any]) -> dict[str, Any]:
    """Return the config of a policy made by `cls.for_envs(envs, **options)`."""
    kept = {name: own for name, own in options.items() if name not in _MACHINE_OPTIONS}
    named = {name: by_name(kept[name]) for name, by_name in _BY_NAME.items() if name in kept}
    return {"class": cls.__name__, **extensions.named(cls), **plain_call({**kept, **named})}


@runtime_checkable
class Recorded(Protocol):
    """A policy that `for_envs` made: with its parts then, and the names of those that a warning says are not saved."""

    _parts_made: Mapping[str, Any]
    _parts_named: set[str]


def _parts_of(policy: Any) -> dict[str, Any]:
    """Return the parts of a policy that may be assigned, as plain values; of others the objects themselves."""
    parts: dict[str, Any] = {name: getattr(policy, name) for name in _PARTS if hasattr(policy, name)}
    return {**parts, **plain_call(parts)["arguments"]}


def current_config(policy: Any) -> Mapping[str, Any] | None:
    """Return the config of a policy as it is now: with parts that were assigned after it was made.

    A part that is not trainkit's is among the "unknown", and a warning says that it is not saved.
    """
    config: Mapping[str, Any] | None = policy.config
    if config is None or not isinstance(policy, Recorded):
        return config
    options = options_of(getattr(type(policy), "for_envs"))  # noqa: B009  # it made the policy
    arguments, unknown = dict(config["arguments"]), dict(config["unknown"])
    for name, part in _parts_of(policy).items():
        made = policy._parts_made[name]
        is_plain = isinstance(part, _PLAIN)
        if name not in options or part is made or (is_plain and isinstance(made, _PLAIN) and part == made):
            continue
        for given in _GIVES.get(name, (name,)):
            arguments.pop(given, None)
            unknown.pop(given, None)
        if is_plain:
            arguments[name] = part
        else:
            unknown[name] = repr(part)
            level = logging.DEBUG if name in policy._parts_named else logging.WARNING
            policy._parts_named.add(name)
            message = (
                "%s.%s was replaced by %r, which is not trainkit's, and is not saved: give it to load_policy, %s=..."
            )
            _log.log(level, message, type(policy).__name__, name, part, name)
    return {**config, "arguments": arguments, "unknown": unknown}


def about_policy(policy: Any) -> dict[str, Any]:
    """Return a policy's class, spaces and configs, for a manifest."""
    configs = {"policy": current_config(policy), "policies": policy.configs}
    return {"settings": {"policy": type(policy).__name__}, "spaces": plain_spaces(policy), **configs}


def plain_spaces(policy: Any) -> dict[str, Any]:
    """Describe a policy's spaces in JSON-compatible values; None where they are not known."""
    own = {"observation_space": policy.observation_space, "action_space": policy.action_space}
    return {name: None if space is None else space_to_plain(space) for name, space in own.items()}


def acting_state(policy: Any) -> dict[str, Any]:
    """Return everything that acting needs, as `load_policy` reads it."""
    counters = {"n_updates": policy.n_updates, "last_step": policy.last_step}
    return {"weights": policy.state_dict(), **counters, **action_units(policy)}


# ---- units of actions ----


def action_units(policy: Any) -> dict[str, bool]:
    """Return an entry for checkpoints: whether a policy scales actions; empty if its actions have no units."""
    scale = policy._action_scale
    return {} if scale is None else {"action_scaling": scale.scaling}


def check_action_units(policy: Any, state: Mapping[str, Any]) -> None:
    """Raise `CheckpointError` if saved weights give actions in other units than a policy's."""
    scale = policy._action_scale
    if scale is None:
        return
    saved = state.get("action_scaling", scale.scaling)  # a user's policy may have been saved before it had a scale
    if scale.scaling is not saved:
        raise CheckpointError(
            f"{type(policy).__name__}.action_scaling is {scale.scaling}, but the checkpoint's weights "
            f"were trained with action_scaling={saved}: make the policy (or call the preset) with "
            f"action_scaling={saved}"
        )


# ---- weights ----


def load_weights(
    policy: nn.Module,
    weights: Mapping[str, Any] | str | Path,
    networks: Sequence[tuple[nn.Module, nn.Module]],
    *,
    strict: bool = True,
    key_map: KeyMap | None = None,
) -> dict[str, str]:
    """Load weights into a policy, as `Policy.load_weights` says; `networks` are (online, target) pairs."""
    if not isinstance(weights, Mapping):
        with decoding(weights, "weights"):
            return load_weights(policy, _read_weights(Path(weights)), networks, strict=strict, key_map=key_map)
    name = type(policy).__name__
    if key_map is not None:
        weights = _renamed(f"{name}.load_weights", weights, key_map)
    matching, mismatches = _matched(policy.state_dict(), _with_targets(policy, weights, networks))
    if mismatches and (strict or not matching):
        lines = "\n".join(f"  {key}: {why}" for key, why in mismatches.items())
        remedy = ""
        if "value.support" in mismatches and "value.support" not in weights:
            value = type(getattr(policy, "value", None)).__name__
            remedy = f"\ngive {value} the v_min and v_max that they were trained with: theirs did not change"
        raise CheckpointError(f"{name} has other parameters than those given:\n{lines}{remedy}")
    policy.load_state_dict(matching, strict=False)  # what is missing is among the mismatches
    return mismatches


def _read_weights(path: Path) -> Mapping[str, Any]:
    """Read the weights of a checkpoint, of the newest one in a folder, or those of a file by their names."""
    if not path.is_file():
        checkpoints = find_checkpoints(path)  # as `load_policy` finds them
        place = checkpoints[0] if checkpoints else path  # reading which reports what is wrong
        saved: Mapping[str, Any] = load_checkpoint(place, ["policy"])["policy"]["weights"]
        return saved
    found = load_tensors(path)
    if not (isinstance(found, Mapping) and any(isinstance(weight, Tensor) for weight in found.values())):
        inside = f"{list(found)[:9]}" if isinstance(found, Mapping) else f"a {type(found).__name__}"
        raise CheckpointError(
            f"{path} must hold tensors by name, got {inside}: read it with torch.load(path, weights_only=True) and "
            "give load_weights the state_dict in it"
        )
    return found


def _renamed(owner: str, given: Mapping[str, Any], key_map: KeyMap) -> dict[str, Any]:
    """Return weights by trainkit's names, without those mapped to None; unmapped names stay.

    Raises:
        ConfigError: `key_map` maps a name that is not given, two names to one, or a name to no string.
    """
    source: dict[str, str] = {}
    with Checks(f"{owner}.key_map") as checks:
        is_map = isinstance(key_map, Mapping)
        checks.require(is_map or callable(key_map), f" must be a dict or a function, got {key_map!r}")
        checks.done()
        for name in key_map if isinstance(key_map, Mapping) else ():
            checks.require(name in given, f" names {name!r}, which is not given{did_you_mean(name, given)}")
        for name in given:
            own = key_map.get(name, name) if isinstance(key_map, Mapping) else key_map(name)
            if own is None:
                continue
            if checks.require(isinstance(own, str), f" must give a name or None, got {own!r} for {name!r}"):
                first = source.setdefault(own, name)
                checks.require(first is name, f" gives both {first!r} and {name!r} the name {own!r}: leave one out")
    return {own: given[name] for own, name in source.items()}


def _with_targets(
    policy: nn.Module, given: Mapping[str, Any], networks: Sequence[tuple[nn.Module, nn.Module]]
) -> dict[str, Any]:
    """Return weights in which target networks without any weights are copies of their online networks."""
    names = {module: name for name, module in policy.named_modules()}
    weights = dict(given)
    for online, target in networks:
        if online not in names or target not in names:
            continue  # not an attribute of the policy, so not among its weights
        source, own = f"{names[online]}.", f"{names[target]}."
        if not any(name.startswith(own) for name in given):
            weights |= {own + n.removeprefix(source): weight for n, weight in given.items() if n.startswith(source)}
    return weights


def _matched(own: Mapping[str, Tensor], given: Mapping[str, Any]) -> tuple[dict[str, Tensor], dict[str, str]]:
    """Return (the given weights that fit `own`, as tensors; {name: why} of those that do not)."""
    matching: dict[str, Tensor] = {}
    mismatches = {name: f"{list(tensor.shape)} here, none given" for name, tensor in own.items() if name not in given}
    for name, weight in given.items():
        if (tensor := _as_tensor(weight)) is None:
            mismatches[name] = f"an array of numbers is needed, a {type(weight).__name__} given"
        elif name not in own:
            mismatches[name] = f"none here, {list(tensor.shape)} given"
        elif (why := _mismatch(own[name], tensor)) is not None:
            mismatches[name] = why
        else:
            matching[name] = tensor
    return matching, mismatches


def _mismatch(own: Tensor, given: Tensor) -> str | None:
    """Return why a weight cannot be loaded, None if it can; elements may be infinite only if they are in `own`."""
    if own.shape != given.shape:
        return f"{list(own.shape)} here, {list(given.shape)} given"
    if not torch.can_cast(given.dtype, own.dtype):
        here, there = (str(tensor.dtype).removeprefix("torch.") for tensor in (own, given))
        return f"{here} here, {there} given"
    is_lost = ~given.to(own).isfinite() & own.isfinite()  # in our dtype: float32 cannot hold 1e300
    return f"{int(is_lost.sum())} of {is_lost.numel()} numbers given are not finite" if is_lost.any() else None


def _as_tensor(weight: Any) -> Tensor | None:
    """Return a tensor unchanged, an array as a new tensor, and None for anything else."""
    if isinstance(weight, Tensor):
        return weight.detach()
    try:
        array = np.array(weight)
        return torch.from_numpy(array.astype(array.dtype.newbyteorder("="), copy=False))
    except (TypeError, ValueError):
        return None


def as_array(tensor: Tensor) -> np.ndarray[Any, Any]:
    """Copy a tensor into an array; bfloat16, which numpy lacks, becomes float32 without loss."""
    plain = tensor.float() if tensor.dtype == torch.bfloat16 else tensor
    return np.array(plain.numpy(force=True))


# ---- a policy from a checkpoint ----

# Arguments that greedy actions do not depend on.
_LEARNING_OPTIONS = (
    *("lr", "adam_eps", "max_grad_norm", "optimizer", "critic_optimizer", "temperature_optimizer", "clip", "target"),
    *("imitation_optimizer", "reward", "horizon", "backup", "penalty", "exploration", "temperature", "tau"),
    *("clip_ratio", "entropy_weight", "auxiliary"),
)


@checked
def load_policy(
    path: str | Path,
    *,
    name: str | None = None,
    policy: P | None = None,
    device: str = "auto",
    max_bytes: int | None = None,
    **arguments: Any,
) -> Any:
    """Return the policy of a checkpoint, of the newest one in a folder or of a run, or of a folder of `policy.save`.

    Args:
        path: of the folder: of `policy.save`, a checkpoint, what `checkpoint=` names, or a run of `trainkit train` or
            `tk.run`.
        name: of the policy, where the checkpoint has those of a `MultiAgentPolicy`.
        policy: a new policy to load the weights into, for those that `for_envs` did not make, or made of parts that
            are not trainkit's, such as a network of yours.
        device: as in `Policy`; not used with `policy`.
        max_bytes: largest size of the weights' file; None is half of the free memory.
        arguments: of `for_envs`, for those that the file cannot hold, such as `encoder=MyEncoder`.

    Raises:
        CheckpointError: it is damaged, it has no config of the policy, or `policy` has other parameters.
        ConfigError: `for_envs` has no such argument, or both a policy and arguments are given.
    """
    folder = newest(path)
    component = _component(folder, name)
    state = load_checkpoint(folder, [component], max_bytes=max_bytes).get(component)
    if state is None:
        raise CheckpointError(f"{folder} was saved without a policy: name another checkpoint")
    if policy is not None and arguments:
        raise ConfigError(f"load_policy was given both policy and {', '.join(arguments)}: give one")
    loaded: Any = _made(folder, name, device, state, arguments) if policy is None else policy
    with decoding(folder, "a policy"):
        counters = [state[name] for name in ("n_updates", "last_step")]
        if any(type(count) is not int or count < 0 for count in counters):
            raise ValueError(f"its counters are {counters!r:.80}")
        check_action_units(loaded, state)
        weights = state["weights"]
        if policy is None and loaded.auxiliary is None:  # whose parameters acting does not need
            weights = {name: weight for name, weight in weights.items() if not name.startswith("auxiliary.")}
        loaded.load_weights(weights)
        loaded.n_updates, loaded.last_step = counters
    return loaded


def _component(folder: Path, name: str | None) -> str:
    """Return the component of a checkpoint that has a policy; raise for a name that it does not have."""
    names = [own.removeprefix("policy/") for own in read_manifest(folder)["components"] if own.startswith("policy/")]
    if name is None and names:
        raise CheckpointError(
            f"{folder} has the policies {names}: load one by its name, load_policy(..., name={names[0]!r})"
        )
    if name is not None and name not in names:
        known = f"only {names}" if names else "but one policy without a name"
        raise CheckpointError(f"{folder} has no policy {name!r}, {known}{did_you_mean(name, names)}")
    return "policy" if name is None else f"policy/{name}"


def _before_scaling(options: Mapping[str, Any], action_space: Space[Any]) -> dict[str, Any]:
    """Return the current arguments of a policy that was saved before actions were scaled."""
    now = {name: value for name, value in options.items() if name != "squash"}
    if options.get("squash"):
        return now | {"action_bound_method": "tanh"}
    return now | ({"action_scaling": False} if isinstance(action_space, spaces.Box) else {})


def _made(folder: Path, name: str | None, device: str, state: Mapping[str, Any], arguments: Mapping[str, Any]) -> Any:
    """Make a policy by the config of the saved one, whose state is `state`, and arguments that override it."""
    manifest = read_manifest(folder)
    give = f"make one like it and give it: load_policy({str(folder)!r}, policy=...)"
    with decoding(folder, "a policy's config", remedy=f"it does not say how its policy was made; {give}"):
        config = manifest.get("policy") if name is None else manifest.get("policies", {}).get(name)
        kind = None if config is None else _exported_policy(str(config.get("class")), config.get("extension"))
    if config is None or kind is None:
        raise CheckpointError(
            f"{folder} does not say how its policy was made, as no `for_envs` of trainkit made it: {give}"
        )
    remedy = f"it does not say how its policy was made; {give}"
    with decoding(folder, "a policy's config", remedy=remedy):
        reject_unknown("load_policy", arguments, [*options_of(load_policy), *options_of(kind.for_envs)])
        unknown = {name: value for name, value in dict(config["unknown"]).items() if name not in arguments}
        lost = {name: value for name, value in unknown.items() if name not in _LEARNING_OPTIONS}
        if lost:
            what = ", ".join(f"{name}={value}" for name, value in lost.items())
            how = ", ".join(f"{name}=..." for name in lost)
            register = "; nets.register_encoder gives an encoder a name for files" if "encoder" in lost else ""
            raise CheckpointError(
                f"{folder} cannot restore {what} of its policy, which is not trainkit's: give it to "
                f"load_policy({str(folder)!r}, {how}), or a policy made like it, load_policy(..., policy=...){register}"
            )
        if unknown:
            _log.warning("%s cannot say what %s of its policy was: made without", folder, ", ".join(unknown))
        for other, text in config["unknown"].items():
            if other in arguments and repr(arguments[other]) != text and not has_address(text):
                _log.warning("%s had %s=%s, and gets %r", folder, other, text, arguments[other])
        saved = config.get("spaces", manifest["spaces"])  # one of several policies has its own
        own_spaces = Spaces.from_plain([saved["observation_space"], saved["action_space"]])
        n_saved = manifest["components"][_component(folder, name)]["bytes"]  # at least the number of weights
        with _AllocationLimit(str(folder), _MAX_RATIO * n_saved + _FREE_ELEMENTS):
            try:
                plain = {name: own for name, own in config["arguments"].items() if name not in ("compile", *arguments)}
                options = _options(folder, plain)
                if "action_scaling" in options_of(kind.for_envs) and "action_scaling" not in state:
                    options = _before_scaling(options, own_spaces.action_space)
                made = kind.for_envs(own_spaces, device=device, **{**options, **arguments})
            except ConfigError as error:
                raise CheckpointError(f"{folder} does not say how its policy was made ({error}): {give}") from error
        if isinstance(name := config.get("env"), str):
            made.config = made.config | {"env": name}
        return made


def _options(folder: Path, plain: Mapping[str, Any]) -> dict[str, Any]:
    """Return the arguments of a config, without those of learning whose classes are not imported."""
    options: dict[str, Any] = {}
    for name, own in plain.items():
        try:
            options[name] = from_plain(own)
        except UnknownClassError as error:
            if name not in _LEARNING_OPTIONS:
                raise
            _log.warning("%s: %s was of %s, which is not imported: made without", folder, name, error)
    return options


def _exported_policy(name: str, extension: object) -> Any:
    """Return the policy with a `for_envs` that the package exports by this name; None if there is none."""
    extensions.require(extension, f"the policy {name}")
    kind = extensions.exported(name, "trainkit.policy")
    return kind if isinstance(kind, type) and hasattr(kind, "for_envs") else None


# Elements that may be allocated while a policy is made: several times those saved (weights, gradients, moments).
_MAX_RATIO, _FREE_ELEMENTS = 16, 2**22
_FACTORIES: dict[Any, Callable[..., float]] = {
    **dict.fromkeys(
        (torch.empty, torch.zeros, torch.ones, torch.rand, torch.randn),
        lambda *size, **how: _count(how.get("size", size)),
    ),
    torch.full: lambda size, *_, **__: _count(size),
    torch.eye: lambda n, m=None, **_: n * (n if m is None else m),
    torch.linspace: lambda start, end, steps, **_: steps,
    torch.arange: lambda *bounds, **_: _length(*bounds),
}


class _AllocationLimit(TorchFunctionMode):
    """Limit on the elements of all tensors made, which a damaged config exceeds; raises before they are allocated."""

    def __init__(self, folder: str, limit: int) -> None:
        super().__init__()
        self._folder, self._left = folder, limit

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        count = _FACTORIES.get(func)
        if count is not None:
            self._left -= int(count(*args, **(kwargs or {})))
            if self._left < 0:
                raise CheckpointError(
                    f"{self._folder} describes a policy with many more parameters than the weights saved in it: it is "
                    "damaged, take an older one"
                )
        return func(*args, **(kwargs or {}))


def _count(size: Any) -> int:
    """Return the number of elements of a size that is given as integers or as one tuple."""
    flat = size[0] if len(size) == 1 and not isinstance(size[0], int) else size
    return math.prod(flat)


def _length(*bounds: float) -> float:
    start, end, step = {1: (0, *bounds, 1), 2: (*bounds, 1)}.get(len(bounds), bounds)
    return (end - start) / step
