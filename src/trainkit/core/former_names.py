"""Names of trainkit 0.1 that moved: they work until 0.3 with a `DeprecationWarning` that names the new place.

`MOVED` is the only list: modules' `__getattr__`, docs/from_0_1.md and the tests use it.
"""

import importlib
import sys
import warnings
from collections.abc import Callable
from types import ModuleType

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
