"""Names and options of trainkit 0.1 that were replaced: until 0.3 they work with a `DeprecationWarning`.

`MOVED`, `REPLACED_OPTIONS` and `RENAMED` are the only lists: modules' `__getattr__`, checked calls, classes,
docs/from_0_1.md and the tests use them.
"""

import importlib
import sys
import warnings
from collections.abc import Callable, Container
from types import ModuleType
from typing import Any, TypeVar

from trainkit.core.errors import ConfigError
from trainkit.core.names import CLASSES_ELSEWHERE, NOT_HERE, class_hint

Kind = TypeVar("Kind", bound=type)

_ERRORS = (
    "BadEnvDataError BusyError CheckpointError DeviceError DivergedError EmptyBufferError EnvError MissingExtraError "
    "MissingRowError NoLegalActionError PriorityError"
)
_NETS = (
    "ActorCriticNetwork ActorNetwork CriticNetwork ImplicitQNetwork MLP NatureCNN NoisyLinear Prediction Preprocess "
    "QNetwork SquashedGaussian"
)
_CALLBACKS = "Curriculum DatasetWriter Histograms History LogInfo RecordVideo SaveBest SaveEvery StopAt"
_ENVS = "DiscretizeActions EnvContext Finding Flatten MapActions MapObs PreviousStep Processor TimeFeature"
_STATISTICS = "EpochStats RunInfo Summary TimeStats"
_ESTIMATES = "Estimate importance_sampling weighted_importance_sampling"

_TABLE: dict[str, dict[str, str]] = {  # {old module: {new module: names}}
    "trainkit": {
        "trainkit.buffer": "MinTree ReturnScale Rollout SumTree buffer_from_config",
        "trainkit.callbacks": _CALLBACKS,
        "trainkit.collector": "Episode",
        "trainkit.datasets": f"{_ESTIMATES} from_minari",
        "trainkit.engine": "DeviceFrames Engine Loss TensorBatch",
        "trainkit.envs": f"{_ENVS} ActionStructure flat_actions",
        "trainkit.errors": _ERRORS,
        "trainkit.loggers": "TensorboardLogger",
        "trainkit.nets": f"{_NETS} ActionScale",
        "trainkit.policy": "ActOutput UpdateResult discounted_returns gae",
        "trainkit.schedules": "Constant Piecewise Schedule",
        "trainkit.trainer": f"{_STATISTICS} EpochResult inspect_checkpoint run_with_restart",
    },
    "trainkit.buffer": {"trainkit.datasets": "from_minari load_dataset"},
    "trainkit.collector": {"trainkit.envs": f"{_ENVS} Envs check_env make_envs"},
    "trainkit.policy": {
        "trainkit.engine": "Adam Clip DeviceFrames GradientStep TensorBatch",
        "trainkit.nets": _NETS,
    },
    "trainkit.trainer": {"trainkit.datasets": _ESTIMATES},
    "trainkit.checkpoint": {
        "trainkit.trainer": "inspect_checkpoint",
        "trainkit.core.checkpoint": "find_checkpoints load_checkpoint load_tensors save_checkpoint",
    },
    "trainkit.comparing": {"trainkit.plot.comparing": "Difference Interval difference interval iqm"},
    "trainkit.data": {
        "trainkit": "Horizon Transition TransitionBatch",
        "trainkit.buffer": "Rollout",
        "trainkit.policy": "ActOutput",
        "trainkit.trainer": "EpochResult",
        "trainkit.core.data": "ArraySpec Frames Lookup RecordedEpisode RowSpec",
    },
    "trainkit.logger": {"trainkit.loggers": "JsonlLogger TensorboardLogger"},
    "trainkit.presets.atari": {"trainkit.presets.base": "ATARI_ENVS"},
    "trainkit.protocols": {
        "trainkit.buffer": "Buffer Dataset RoundBuffer",
        "trainkit.envs": "EnvSpaces",
        "trainkit.loggers": "HistogramLogger Logger PurgingLogger",
        "trainkit.trainer": "Learner RolloutLearner Trainee",
        "trainkit.core.protocols": "FrameStore Policy Recorder Seedable Stateful Store UpdateResult",
    },
    "trainkit.runs": {"trainkit.loggers": "RunFolder find_runs"},
    "trainkit.scaling": {"trainkit.buffer": "ReturnScale"},
    "trainkit.seeding": {"trainkit.core.seeding": "derive episode_seed fresh_root generator"},
    "trainkit.stats": {"trainkit": "CollectStats scalars", "trainkit.trainer": _STATISTICS},
}
MOVED: dict[str, dict[str, str]] = {  # {old module: {name: new module}}
    old: {name: new for new, names in places.items() for name in names.split()} for old, places in _TABLE.items()
}


REPLACED_OPTIONS: dict[str, tuple[str, dict[bool | str, str | None] | None]] = {
    # {old option: (new option, {old value: new value})}; a new value None leaves the option out; None keeps all values
    "compile": ("engine", {True: "compile", False: None, "auto": None}),
    "cuda_graph": ("engine", {True: "cuda_graph", False: None}),
    "act_on": ("act_on", {"device": "policy", "auto": None}),
    "threads": ("threads", {"auto": None}),
    "squash": ("action_bound_method", {True: "tanh", False: None}),
    "n_places": ("n_dimensions", None),
    "goal": ("target_return", None),
    "shares": ("proportions", None),
    "faulty": ("failed_episodes", None),
}

RENAMED: dict[str, dict[str, str]] = {  # {class: {old member: new member}}
    "Callback": {"hears": "receives"},
    "Estimate": {"behaviour": "behavior", "n_left_out": "n_skipped"},
    "MixedBuffer": {"shares": "proportions"},
    "Policy": {"minimise": "minimize", "study": "fit_statistics"},
    "Prediction": {"numbers": "outputs"},
    "RunFolder": {"tells": "has_logged"},
    "SACPolicy": {"learnt_temperature": "learned_temperature"},
    "Value": {"goal": "target"},
}


def replace_options(subject: str, options: dict[str, Any], known: Container[str]) -> dict[str, Any]:
    """Return a call's options with those of 0.1 replaced; a warning names the replacement."""
    current = dict(options)
    for old, (new, values) in REPLACED_OPTIONS.items():
        if old not in options or new not in known:
            continue
        value = options[old]
        if values is not None:
            if not isinstance(value, (bool, str)) or value not in values:
                continue
            value = values[value]
        del current[old]
        remedy = "leave it out" if value is None else f"give {new}={value!r}"
        if value is not None:
            current[new] = value
        message = f"{subject}: {old}={options[old]!r} was replaced and will be removed in trainkit 0.3: {remedy}"
        warnings.warn(message, DeprecationWarning, stacklevel=3)
    return current


def former_names(module: str, *, lazy: Container[str] = ()) -> Callable[[str], object]:
    """Return the `__getattr__` of a module: names that moved, else an error with the nearest name.

    Args:
        module: its name.
        lazy: its modules that are imported when they are first used.
    """

    def get(name: str) -> object:
        if name in lazy:
            return importlib.import_module(f"{module}.{name}")
        new = MOVED.get(module, {}).get(name)
        if new is not None:
            message = f"{module}.{name} is now {new}.{name}: the old name will be removed in trainkit 0.3"
            warnings.warn(message, DeprecationWarning, stacklevel=2)
            return getattr(importlib.import_module(new), name)
        if f"{module}.{name}" in MOVED:
            return sys.modules[f"{module}.{name}"]
        hint = "" if name.startswith("_") else class_hint(name, _attributes())
        is_class = module in MOVED and "__file__" not in vars(sys.modules[module])  # a former module has no others
        is_class = is_class or name in CLASSES_ELSEWHERE or name in NOT_HERE
        if hint and is_class and sys._getframe(1).f_code.co_name == "_handle_fromlist":
            # `from module import name` would replace an AttributeError by an error of its own, without the hint
            raise ImportError(f"cannot import name {name!r} from {module!r}{hint}", name=name)
        raise AttributeError(f"module {module!r} has no attribute {name!r}{hint}")

    return get


class _FormerMember:
    """A member of a class under its former name, which warns and returns the new one."""

    def __init__(self, path: str, new: str) -> None:
        self._path, self._new = path, new

    def __get__(self, instance: object, owner: type) -> Any:
        if instance is None:
            return self
        message = f"{self._path} is now {self._new}: the old name will be removed in trainkit 0.3"
        warnings.warn(message, DeprecationWarning, stacklevel=2)
        return getattr(instance, self._new)


def former_members(name: str) -> Callable[[Kind], Kind]:
    """Return a decorator of classes that adds the members of `RENAMED[name]` under their former names."""

    def add(kind: Kind) -> Kind:
        for old, new in RENAMED[name].items():
            setattr(kind, old, _FormerMember(f"{name}.{old}", new))
        return kind

    return add


def check_overrides(name: str, kind: type) -> None:
    """Raise `ConfigError` for a class that defines a member of `RENAMED[name]` only under its former name."""
    for old, new in RENAMED[name].items():
        owner = next((base for base in kind.__mro__ if old in vars(base)), None)
        if owner is not None and new not in vars(owner) and not isinstance(vars(owner)[old], _FormerMember):
            raise ConfigError(f"{kind.__name__} defines {old}, which is {new} since trainkit 0.2: rename it")


def _attributes() -> dict[str, str]:
    """Return {name: attribute} of all public names of `trainkit` and its namespaces."""
    moved = {name: f"{new}.{name}".removeprefix("trainkit.") for name, new in MOVED["trainkit"].items()}
    return {**{name: name for name in sys.modules["trainkit"].__all__}, **moved}


def add_former_modules() -> None:
    """Keep former modules such as `trainkit.logger` importable, for their names in `MOVED`."""
    for name in MOVED.keys() - sys.modules.keys():
        former = ModuleType(name, "A module of trainkit 0.1, whose names moved.")
        vars(former)["__getattr__"] = former_names(name)
        vars(former)["__path__"] = []  # so that `from name import x` asks it before it fails
        sys.modules[name] = former
