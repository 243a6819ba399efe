"""Names and options of trainkit 0.1 that were replaced: until 0.3 they work with a `DeprecationWarning`.

`MOVED` and `REPLACED_OPTIONS` are the only lists: modules' `__getattr__`, checked calls, docs/from_0_1.md and the tests
use them.
"""

import importlib
import sys
import warnings
from collections.abc import Callable, Container
from types import ModuleType
from typing import Any

from trainkit.core.names import class_hint

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


REPLACED_OPTIONS: dict[str, tuple[str, dict[bool | str, str | None]]] = {
    # {old option: (new option, {old value: new value})}; None leaves the option out
    "compile": ("engine", {True: "compile", False: None, "auto": None}),
    "cuda_graph": ("engine", {True: "cuda_graph", False: None}),
    "act_on": ("act_on", {"device": "policy", "auto": None}),
    "threads": ("threads", {"auto": None}),
    "squash": ("action_bound_method", {True: "tanh", False: None}),
}


def replace_options(subject: str, options: dict[str, Any], known: Container[str]) -> dict[str, Any]:
    """Return a call's options with those of 0.1 replaced; a warning names what to write."""
    current = dict(options)
    for old, (new, values) in REPLACED_OPTIONS.items():
        value = options.get(old)
        if new not in known or not isinstance(value, (bool, str)) or value not in values:
            continue
        del current[old]
        remedy = "leave it out" if values[value] is None else f"give {new}={values[value]!r}"
        if values[value] is not None:
            current[new] = values[value]
        message = f"{subject}: {old}={value!r} was replaced and will be removed in trainkit 0.3: {remedy}"
        warnings.warn(message, DeprecationWarning, stacklevel=3)
    return current


def former_names(module: str) -> Callable[[str], object]:
    """Return the `__getattr__` of a module: the new place of a name that moved, else a hint to the nearest name."""

    def get(name: str) -> object:
        new = MOVED.get(module, {}).get(name)
        if new is not None:
            message = f"{module}.{name} is now {new}.{name}: the old name will be removed in trainkit 0.3"
            warnings.warn(message, DeprecationWarning, stacklevel=2)
            return getattr(importlib.import_module(new), name)
        if f"{module}.{name}" in MOVED:
            return sys.modules[f"{module}.{name}"]
        hint = "" if name.startswith("_") else class_hint(name, _attributes())
        raise AttributeError(f"module {module!r} has no attribute {name!r}{hint}")

    return get


def _attributes() -> dict[str, str]:
    """Return {name: attribute of `trainkit`} of its own names and those in its namespaces."""
    moved = {name: f"{new}.{name}".removeprefix("trainkit.") for name, new in MOVED["trainkit"].items()}
    return {**{name: name for name in sys.modules["trainkit"].__all__}, **moved}


def add_former_modules() -> None:
    """Keep modules that no longer exist importable, such as `trainkit.logger`, for their names in `MOVED`."""
    for name in MOVED.keys() - sys.modules.keys():
        former = ModuleType(name, "A module of trainkit 0.1, whose names moved.")
        vars(former)["__getattr__"] = former_names(name)
        sys.modules[name] = former
