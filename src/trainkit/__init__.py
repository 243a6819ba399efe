"""trainkit: reinforcement learning trainers that are iterators, in one process, on PyTorch.

The names of everyday use are here; the others in the namespaces `tk.nets`, `tk.envs`, `tk.datasets`, `tk.schedules`,
`tk.simulators`, `tk.callbacks`, `tk.errors`, `tk.engine`, `tk.loggers`, `tk.testing`, `tk.policy`, `tk.buffer`,
`tk.collector`, `tk.trainer` and `tk.zoo`.
"""

import contextlib
import importlib
import sys
from typing import Any

if "__all__" not in globals():  # else it is reloaded
    # An import that was interrupted leaves whole modules of packages that are not: theirs would be imported in another
    # order the next time, in circles.
    for _name in [name for name in sys.modules if name.startswith(f"{__name__}.")]:
        del sys.modules[_name]

from trainkit import (
    buffer,
    callbacks,
    collector,
    datasets,
    engine,
    envs,
    errors,
    loggers,
    nets,
    policy,
    schedules,
    simulators,
    trainer,
)
from trainkit.buffer import (
    Horizon,
    PrioritizedReplayBuffer,
    ReplayBuffer,
    RolloutBuffer,
    Transition,
    TransitionBatch,
)
from trainkit.callbacks import Callback, Checkpoint, on
from trainkit.collector import Collector
from trainkit.core.extensions import attach
from trainkit.core.names import class_hint
from trainkit.engine import Adam, Clip, TorchOptimizer
from trainkit.envs import Envs, check_env, make_envs
from trainkit.errors import ConfigError, SpaceMismatchError, TrainkitError
from trainkit.loggers import JsonlLogger
from trainkit.policy import (
    A2CPolicy,
    CategoricalValue,
    ColoredNoise,
    ConservativePenalty,
    DoubleBackup,
    DQNPolicy,
    EpsilonGreedy,
    ExpectedValue,
    EZGreedy,
    Greedy,
    HLGaussValue,
    ImplicitQuantileValue,
    MaxBackup,
    MunchausenBackup,
    Policy,
    PPOPolicy,
    QuantileValue,
    RandomPolicy,
    ReinforcePolicy,
    SACPolicy,
    SoftQ,
    Target,
    VDNBackup,
    load_policy,
)
from trainkit.schedules import Linear
from trainkit.trainer import (
    CollectStats,
    Evaluation,
    OfflineTrainer,
    OffpolicyTrainer,
    OnpolicyTrainer,
    Trainer,
    compare,
    evaluate,
    scalars,
)

__version__ = "0.2.0"

__all__ = [
    "A2CPolicy",
    "Adam",
    "Callback",
    "CategoricalValue",
    "Checkpoint",
    "Clip",
    "CollectStats",
    "Collector",
    "ColoredNoise",
    "ConfigError",
    "ConservativePenalty",
    "DQNPolicy",
    "DoubleBackup",
    "EZGreedy",
    "Envs",
    "EpsilonGreedy",
    "Evaluation",
    "ExpectedValue",
    "Greedy",
    "HLGaussValue",
    "Horizon",
    "ImplicitQuantileValue",
    "JsonlLogger",
    "Linear",
    "MaxBackup",
    "MunchausenBackup",
    "OfflineTrainer",
    "OffpolicyTrainer",
    "OnpolicyTrainer",
    "PPOPolicy",
    "Policy",
    "PrioritizedReplayBuffer",
    "QuantileValue",
    "RandomPolicy",
    "ReinforcePolicy",
    "ReplayBuffer",
    "RolloutBuffer",
    "SACPolicy",
    "SoftQ",
    "SpaceMismatchError",
    "Target",
    "TorchOptimizer",
    "Trainer",
    "TrainkitError",
    "Transition",
    "TransitionBatch",
    "VDNBackup",
    "buffer",
    "callbacks",
    "check_env",
    "collector",
    "compare",
    "datasets",
    "engine",
    "envs",
    "errors",
    "evaluate",
    "load_policy",
    "loggers",
    "make_envs",
    "nets",
    "on",
    "plot",
    "policy",
    "presets",
    "scalars",
    "schedules",
    "simulators",
    "testing",
    "trainer",
    "zoo",
]

__dir__, _of_extension = attach(__name__, __all__)


_ABOVE = ("plot", "presets", "testing", "zoo")  # the kernel; imported when they are first used


def __getattr__(name: str) -> Any:
    """Import what is imported when it is first used, a namespace or a name of an extension; else raise with a hint."""
    if name in _ABOVE:
        return importlib.import_module(f"{__name__}.{name}")
    with contextlib.suppress(AttributeError):
        return _of_extension(name)
    spaces = [importlib.import_module(f"{__name__}.{space}") for space in __all__ if _is_namespace(space)]
    known = {own: f"{space.__name__.removeprefix('trainkit.')}.{own}" for space in spaces for own in space.__all__}
    hint = "" if name.startswith("_") else class_hint(name, {**known, **{own: own for own in __all__}})
    if hint and sys._getframe(1).f_code.co_name == "_handle_fromlist":
        # `from trainkit import name` would replace an AttributeError by an error of its own, without the hint
        raise ImportError(f"cannot import name {name!r} from 'trainkit'{hint}", name=name)
    raise AttributeError(f"module 'trainkit' has no attribute {name!r}{hint}")


def _is_namespace(name: str) -> bool:
    return name in _ABOVE or f"{__name__}.{name}" in sys.modules
