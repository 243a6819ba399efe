"""Options without an effect: each option of each public constructor, changed once, changes something or is rejected.

Constructors and their options are found by introspection, and annotations give other values. What is new is tried in
the runs of the nearest base class here; a class that has none fails, until a run is listed in which its options matter.
"""

import dataclasses
import functools
import inspect
import random
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import torch
from gymnasium.spaces import Box, Discrete
from torch import nn
from typing_extensions import is_protocol

import trainkit as tk
from tests.helpers.of_extensions import files_of_extensions
from tests.outside.constructors import (
    BOX,
    COMMON,
    CRITIC_SEES,
    DRAWN,
    GRID,
    IMAGE,
    TORSO,
    TWO,
    VECTOR,
    Build,
    Counts,
    FailsTwice,
    FirstCritic,
    FixedGaussians,
    NormedNetworks,
    Pictures,
    Run,
    ZeroAhead,
    callback_in,
    collected,
    envs,
    evaluated,
    events,
    for_envs,
    fresh,
    from_data,
    images,
    implicit,
    in_context,
    logger_in,
    made_envs,
    network,
    on_rollouts,
    part_of_q,
    pendulums,
    policy_in,
    preprocessed,
    q_learner,
    replayed,
    replayed_by,
    scheduled,
    stepped,
    trained,
    values,
)
from tests.outside.outcomes import HOW_A_RUN_IS_EXECUTED, SPECIAL, others, outcome
from trainkit import nets
from trainkit.core.config import Part
from trainkit.core.signatures import matches, options_of
from trainkit.policy.stochastic import StochasticPolicy
from trainkit.policy.values import ReturnValue, SupportValue

RUNS: dict[Any, list[Run]] = {
    # policies
    tk.DQNPolicy: [policy_in(replayed), policy_in(replayed, recurrent="gru"), policy_in(replayed, tiny=True)],
    StochasticPolicy: [policy_in(on_rollouts, env, tiny, recurrent=memory) for env, tiny, memory in DRAWN],
    tk.BCPolicy: [policy_in(from_data, recurrent="gru", sequences=tk.Sequences(4, stored_state=False))],
    tk.ActorCriticPolicy: [
        policy_in(replayed, "Pendulum-v1", tiny=True),
        policy_in(replayed, "Pendulum-v1"),
        policy_in(replayed, "Pendulum-v1", recurrent="gru"),
    ],
    tk.RandomPolicy: [lambda build: stepped(envs(), build(envs().action_space, seed=1))],
    tk.policy.ScriptedPolicy: [lambda build: stepped(envs(), build(lambda obs: np.zeros(len(obs), int)))],
    # parts
    ReturnValue: [part_of_q("value", exploration=tk.Greedy(), lr=0.1), values, part_of_q("value", prioritized=True)],
    SupportValue: [part_of_q("value"), part_of_q("value", prioritized=True)],
    tk.MunchausenBackup: [part_of_q("backup")],
    tk.ConservativePenalty: [part_of_q("penalty")],
    tk.EpsilonGreedy: [part_of_q("exploration", 0.9)],
    tk.EZGreedy: [part_of_q("exploration", 0.9)],
    tk.SoftQ: [part_of_q("exploration")],
    tk.ColoredNoise: [pendulums],
    tk.Target: [part_of_q("target"), part_of_q("target", every=4)],
    tk.Clip: [part_of_q("clip", 0.01)],
    tk.Adam: [lambda build: replayed(fresh(optimizer=build()))],
    tk.TorchOptimizer: [lambda build: replayed(fresh(optimizer=build(torch.optim.Adam)))],
    tk.Horizon: [lambda build: replayed(fresh(horizon=build()))],
    tk.buffer.ReturnScale: [part_of_q("reward")],
    tk.Linear: [scheduled],
    # buffers, collectors, trainers
    tk.ReplayBuffer: [lambda build: replayed(q_learner(), None, build(30)), images],
    tk.Collector: [
        lambda build: collected(build(tk.RandomPolicy(Discrete(2), seed=1), envs(Pictures), tk.ReplayBuffer(100))),
        lambda build: replayed_by(build(q_learner(normalize_obs=True), envs(), tk.ReplayBuffer(100))),
    ],
    tk.OffpolicyTrainer: [
        *(trained("replayed", **more) for more in COMMON),
    ],
    tk.OnpolicyTrainer: [
        *(trained("rollouts", **more) for more in COMMON),
    ],
    tk.OfflineTrainer: [trained("data", **more) for more in COMMON],
    tk.Evaluation: [evaluated(), evaluated(duration=20, duration_unit="steps")],
    # callbacks, loggers
    tk.Checkpoint: [callback_in(replayed, "saved"), callback_in(replayed, "saved", every=7, unit="env_steps")],
    tk.callbacks.SaveEvery: [callback_in(replayed, "saved")],
    tk.callbacks.StopAt: [
        callback_in(replayed, env_step=70),
        callback_in(replayed, train_return_mean=1e6, train_episodes=2),
        callback_in(replayed, train_return_mean=1.0, train_episodes=2),
    ],
    tk.callbacks.LogInfo: [callback_in(replayed, "lives", env=Pictures)],
    tk.callbacks.RecordVideo: [callback_in(replayed, "video")],
    tk.callbacks.Histograms: [lambda build: replayed(q_learner(), callbacks=build(), logger=Counts("log"))],
    tk.callbacks.TrackMemory: [callback_in(functools.partial(replayed, verbose=True, max_epoch=4))],
    tk.loggers.MlflowLogger: [lambda build: replayed(q_learner(), logger=build())],
    tk.loggers.WandbLogger: [lambda build: replayed(q_learner(), logger=build())],
    **{kind: [logger_in("log")] for kind in (tk.JsonlLogger, tk.loggers.CsvLogger, tk.loggers.TensorboardLogger)},
    # environments
    tk.make_envs: [
        made_envs(),
        made_envs(in_context),
        made_envs(Pictures),
        made_envs(wrappers=(FailsTwice,), on_error="restart", restart_delay_s=0.0),
        made_envs(backend="async"),
    ],
    tk.testing.FakeVectorEnv: [lambda build: stepped(tk.make_envs(build(BOX, Discrete(2), 2)))],
    tk.collector.EpisodeEvents: [events],
    # networks
    nets.QNetwork: [network((3,), 2, x=(VECTOR,), **TORSO), network((3, 40, 40), 2, x=(IMAGE,), hidden=(), noisy=True)],
    nets.ImplicitQNetwork: [implicit, lambda build: implicit(build, noisy=True)],
    nets.ActorCriticNetwork: [network(CRITIC_SEES, 2, x=(TWO,), **TORSO)],
    nets.ActorNetwork: [network((3,), 2, x=(VECTOR,), **TORSO)],
    nets.CriticNetwork: [network((3,), 2, x=(VECTOR, torch.ones(2, 2)), **TORSO)],
    nets.MLP: [network([3, 4, 2], x=(VECTOR,)), network([3, 4, 2], x=(VECTOR,), noisy=True)],
    nets.NoisyLinear: [network(3, 2, x=(VECTOR,))],
    nets.ImpalaCNN: [network((3, 40, 40), x=(IMAGE,))],
    nets.NatureCNN: [network((3, 40, 40), x=(IMAGE,))],
    nets.SmallCNN: [network((3, 40, 40), x=(IMAGE,))],
    nets.MinAtarCNN: [network((3, 10, 10), x=(GRID,))],
    nets.Preprocess: [preprocessed, lambda build: preprocessed(build, normalize=True)],
    nets.ActionScale: [lambda build: build(BOX).to_space(np.ones((2, 2), np.float32))],
    nets.SquashedGaussian: [
        lambda build: (lambda made: made.sample(torch.ones(2, made.width), None, torch.ones(2, 2)))(build(BOX))
    ],
}


def public(namespace: ModuleType) -> Iterator[Any]:
    yield from (getattr(namespace, name) for name in namespace.__all__)


def is_constructor(kind: Any) -> bool:
    """Return whether users construct objects of it: no record that a function returns, no protocol, no error."""
    if not inspect.isclass(kind):
        return kind is tk.make_envs
    is_record = (dataclasses.is_dataclass(kind) or hasattr(kind, "_fields")) and not issubclass(kind, Part)
    others = (tk.engine.Engine, tk.engine.GradientStep, tk.Envs, tk.Policy)  # made by policies, `make_envs`, subclasses
    return not (kind in others or is_record or is_protocol(kind) or issubclass(kind, BaseException))


# The method that makes a policy of its most common options, by its class.
FOR_ENVS: dict[Any, list[Run]] = {
    tk.DQNPolicy: [for_envs(replayed), for_envs(replayed, recurrent="gru"), for_envs(replayed, noisy=True)],
    StochasticPolicy: [
        for_envs(on_rollouts),
        for_envs(on_rollouts, "Pendulum-v1"),
        for_envs(on_rollouts, recurrent="gru"),
    ],
    tk.BCPolicy: [for_envs(from_data, recurrent="gru", sequences=tk.Sequences(4, stored_state=False))],
    tk.ActorCriticPolicy: [for_envs(replayed, "Pendulum-v1"), for_envs(replayed, "Pendulum-v1", recurrent="gru")],
}


def constructors() -> list[Any]:
    """Return all public constructors; those of presets are those of `test_options_have_effects.py`."""
    members = [getattr(tk, name) for name in tk.__all__ if name != "presets"]
    modules = [tk, *filter(inspect.ismodule, members)]
    found = dict.fromkeys(kind for module in modules for kind in public(module) if is_constructor(kind))
    return [*found, *(kind.for_envs for kind in found if hasattr(kind, "for_envs"))]


def class_of(constructor: Any) -> Any:
    return constructor.__self__ if inspect.ismethod(constructor) else constructor


def name_of(constructor: Any) -> str:
    name = class_of(constructor).__name__
    return f"{name}.{constructor.__name__}" if inspect.ismethod(constructor) else name


def options_with_a_default(constructor: Any) -> dict[str, Any]:
    parameters = inspect.signature(constructor).parameters
    known = options_of(constructor).items()
    needed = {name for name, own in parameters.items() if own.default is own.empty}
    return {name: kind for name, kind in known if name not in needed}


def is_required(parameter: inspect.Parameter) -> bool:
    return parameter.default in (parameter.empty, ...)


def default_of(constructor: Any, option: str) -> Any:
    """Return an option's default, in the constructor of the class that has it; None where there is no such."""
    kind = class_of(constructor)
    bases = inspect.getmro(kind) if inspect.isclass(kind) else []
    members = (inspect.unwrap(vars(base)["__init__"]) for base in bases if "__init__" in vars(base))
    first = [] if inspect.isclass(constructor) else [constructor]
    found = (inspect.signature(own).parameters for own in (*first, *members))
    return next((own[option].default for own in found if option in own and not is_required(own[option])), None)


def runs_of(constructor: Any) -> list[Run]:
    """Return the runs of the nearest base class that has some."""
    kind = class_of(constructor)
    bases = inspect.getmro(kind) if inspect.isclass(kind) else [kind]
    runs = FOR_ENVS if inspect.ismethod(constructor) else RUNS
    return next((runs[base] for base in bases if base in runs), [])


def cases() -> list[tuple[Any, str]]:
    return [(constructor, option) for constructor in constructors() for option in tried_options(constructor)]


def tried_options(constructor: Any) -> list[str]:
    known = options_with_a_default(constructor)
    if inspect.ismethod(constructor):  # those that it forwards are the constructor's
        known = {name: own for name, own in known.items() if name not in options_of(class_of(constructor))}
    return [name for name in known if not {name, f"{constructor.__name__}.{name}"} & UNTRIED]


# The same results in another way, or after another time: the tests of their packages look at it.
UNTRIED = {"act_on", "frames", "where", "restart_delay_s", "step_timeout_s"}


def values_of(option: str, annotation: Any, current: list[Any]) -> list[Any]:
    """Return other values of an option: those named for it, else some that its annotation allows."""
    named = [own() for own in NAMED.get(option, ())] + ([SPECIAL[option]] if option in SPECIAL else [])
    found = [value for value in named if matches(value, annotation)]
    if not found:
        plain = [value for value in others("", annotation, current[0]) if value != "here"]
        pool = [] if any(not inspect.isfunction(value) for value in plain) else [own() for own in POOL]
        found = [value for value in (*plain, *pool) if matches(value, annotation)]
    return [value for value in (*(found or ["here"]), current[1]) if str(value) != str(current[0])]


def has_effect(constructor: Any, option: str, capsys: Any, folder: Path, known: dict[Any, Any]) -> bool:
    """Return whether another value of an option changes the outcome of any run, or each is rejected in each."""
    rejections: list[bool] = []
    for position, run in enumerate(runs_of(constructor)):
        build = Build(constructor)
        key = constructor, position, option in HOW_A_RUN_IS_EXECUTED
        if key not in known:
            known[key] = outcome(functools.partial(run, build), capsys, folder, option), build.given
        unchanged, given = known[key]
        if "pip install" in unchanged:
            return True
        assert not unchanged.startswith("rejected"), unchanged
        default = default_of(constructor, option)
        current = [given.get(option, default), default]
        for value in values_of(option, options_of(constructor)[option], current):
            changed = outcome(functools.partial(run, Build(constructor, option, value)), capsys, folder, option)
            is_rejected = changed.startswith("rejected") and "was received" not in changed
            if changed != unchanged and not is_rejected:
                return True
            if str(value) != str(default):  # which may have no effect
                rejections.append(is_rejected)
    return all(rejections) and bool(rejections)


# Other values where an annotation says too little; all of them are made again, as a part belongs to one policy.
NAMED: dict[str, tuple[Callable[[], Any], ...]] = {
    "extra_columns": (lambda: {"x": 0.5},),
    "optimizer": (lambda: tk.Adam(0.1),),
    "preprocess": (lambda: tk.nets.Preprocess(Box(-1, 1, (4,)), normalize=True),),
    "recurrent": (lambda: "gru",),
    "norm": (lambda: "rms",),
    "activation": (lambda: "elu",),
    "action_space": (lambda: Discrete(1),),
    "observe": (lambda: False, lambda: True),
    "add_at_win_rate": (lambda: 0.99,),
    "threshold": (lambda: 0.99,),
    "target_kl": (lambda: 1e-9,),
    "unit": (lambda: "updates",),
    "encoder": (lambda: lambda shape: nn.Linear(*shape, 4),),
    "auxiliary": (lambda: lambda features, rows: features.square().mean(dim=1),),
}
POOL: list[Callable[[], Any]] = [
    FirstCritic,
    ZeroAhead,
    FixedGaussians,
    NormedNetworks,
    lambda: tk.CategoricalValue(5, -1.0, 1.0),
    tk.DoubleBackup,
    tk.ConservativePenalty,
    lambda: tk.EpsilonGreedy(0.9),
    lambda: tk.ColoredNoise(1.0),
    lambda: tk.Target(2),
    lambda: tk.Clip(0.01),
    lambda: tk.Horizon(3, 0.5),
    lambda: tk.nets.SquashedGaussian(Box(-2.0, 2.0, (1,))),
    lambda: Box(-1.0, 1.0, (5,)),
    lambda: Discrete(2),
    lambda: envs("Pendulum-v1"),
    lambda: nn.Flatten(),
    lambda: {"x": 0.5},
    lambda: ("a",),
    lambda: frozenset({"weight"}),
    lambda: (0.5, 1.0),
]

# Extensions have RUNS, FOR_ENVS and POOL, further values of options, in the `examples.py` of their tests.
for _extension in files_of_extensions("examples").values():
    for _kind, _runs in getattr(_extension, "RUNS", {}).items():
        RUNS[_kind] = RUNS.get(_kind, []) + _runs
    for _kind, _runs in getattr(_extension, "FOR_ENVS", {}).items():
        FOR_ENVS[_kind] = FOR_ENVS.get(_kind, []) + _runs
    POOL += getattr(_extension, "POOL", [])


def problems(chosen: list[tuple[Any, str]], capsys: Any, folder: Path) -> list[str]:
    known: dict[Any, Any] = {}
    return [f"{name_of(one)}({name}=)" for one, name in chosen if not has_effect(one, name, capsys, folder, known)]


def test_every_constructor_with_options_has_a_run() -> None:
    assert [name_of(own) for own in constructors() if options_with_a_default(own) and not runs_of(own)] == []


def test_a_fortieth_of_all_options_of_constructors_has_an_effect_or_is_rejected(
    capsys: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    every = cases()
    assert problems(random.Random(0).sample(every, len(every) // 40), capsys, tmp_path) == []


@pytest.mark.slow
@pytest.mark.parametrize("constructor", constructors(), ids=name_of)
def test_every_option_of_a_constructor_has_an_effect_or_is_rejected(
    constructor: Any, capsys: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for run in runs_of(constructor) if tried_options(constructor) else ():
        _, one, other = (outcome(functools.partial(run, Build(constructor)), capsys, tmp_path) for _ in range(3))
        assert one == other, "two equal runs differ"  # the first may have shown what is shown once
    assert problems([(constructor, option) for option in tried_options(constructor)], capsys, tmp_path) == []


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (
            lambda: replayed(q_learner(), None, tk.ReplayBuffer(90, n_envs=3)),
            r"n_envs is 3, and rows of 2 environments",
        ),
        (
            lambda: replayed(q_learner(), None, tk.ReplayBuffer(90, stack=4)),
            r"stack is 4, .* have 1 frames: leave it out",
        ),
        (
            lambda: replayed(q_learner(), None, tk.ReplayBuffer(90, spaces=envs("Pendulum-v1"))),
            r"spaces are .*rows of obs",
        ),
        (lambda: tk.ReinforcePolicy.for_envs(envs(), lam=0.9), r"ReinforcePolicy\.lam has no effect"),
        (
            lambda: tk.PPOPolicy.for_envs(envs(), action_scaling=False),
            r"action_scaling has no effect: actions are Discrete",
        ),
        (lambda: nets.Preprocess(BOX, clip=5.0), r"Preprocess\.clip has no effect: normalize is False"),
        (lambda: from_data(q_learner(), callbacks=tk.on(policy_added=print)), r"on_policy_added is about collecting"),
    ],
)
def test_options_of_constructors_without_an_effect_are_named(make: Any, message: str) -> None:
    with pytest.raises(tk.ConfigError, match=message):
        make()
