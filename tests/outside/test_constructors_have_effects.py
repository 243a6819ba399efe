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

import gymnasium as gym
import numpy as np
import pytest
import torch
from gymnasium.spaces import Box, Discrete
from torch import nn
from typing_extensions import is_protocol

import trainkit as tk
from examples.two_agents import TwoPoles
from tests.helpers.matrix_games import MatrixGame
from tests.helpers.networks import drawn
from tests.outside.test_options_have_effects import (
    HOW_A_RUN_IS_EXECUTED,
    SPECIAL,
    Fails,
    dataset,
    failing,
    others,
    outcome,
)
from trainkit import nets
from trainkit.core.config import Part
from trainkit.core.signatures import matches, options_of
from trainkit.policy.stochastic import StochasticPolicy
from trainkit.policy.values import ReturnValue, SupportValue


class Build:
    """A constructor with one option changed, or none; a run calls it with the other arguments."""

    def __init__(self, constructor: Callable[..., Any], option: str = "", value: Any = None) -> None:
        self.constructor, self.option, self.value = constructor, option, value
        self.given: dict[str, Any] = {}

    def __call__(self, *args: Any, **options: Any) -> Any:
        self.given = options
        return self.constructor(*args, **options | ({self.option: self.value} if self.option else {}))


Run = Callable[[Build], Any]  # makes an object and uses it: returns a trainer, which is run, or what came out

QUIET: dict[str, Any] = {"verbose": False, "seed": 1, "log_every": 10, "max_epoch": 2}
ONLINE = QUIET | {"step_per_epoch": 40, "step_per_collect": 2}
REPLAY = ONLINE | {"batch_size": 8, "update_per_step": 0.5, "learning_starts": 8}
ROLLOUTS = ONLINE | {"step_per_collect": 20, "batch_size": 10, "repeat_per_collect": 2}
DATA = QUIET | {"update_per_epoch": 25, "batch_size": 8}


def envs(env: Any = "CartPole-v1", n: int = 2, **options: Any) -> tk.Envs:
    return tk.make_envs(env, n, **{"seed": 1, "max_episode_steps": 30} | options)


def q_learner(made: Any = None, **options: Any) -> Any:
    own: dict[str, Any] = {"hidden": (8,), "target": tk.Target(5), "device": "cpu", "n_step": 2}
    return tk.DQNPolicy.for_envs(made or envs(), **own | options)


def replayed(policy: Any, made: Any = None, buffer: Any = None, **options: Any) -> tk.Trainer:
    """Return a trainer that learns from steps that it replays."""
    train = tk.Collector(policy, made or envs(), tk.ReplayBuffer(100) if buffer is None else buffer)
    return tk.OffpolicyTrainer(policy, train, **REPLAY | options)


def on_rollouts(policy: Any, made: Any = None, **options: Any) -> tk.Trainer:
    train = tk.Collector(policy, made or envs(), tk.RolloutBuffer())
    return tk.OnpolicyTrainer(policy, train, **ROLLOUTS | options)


def from_data(policy: Any, made: Any = None, **options: Any) -> tk.Trainer:
    return tk.OfflineTrainer(policy, dataset(), **DATA | options)


def replayed_by(collector: Any) -> tk.Trainer:
    return tk.OffpolicyTrainer(collector.policy, collector, **REPLAY)


def with_tests(policy: Any, env: Any) -> dict[str, Any]:
    shown = {"env_kwargs": {"render_mode": "rgb_array"}} if env == "CartPole-v1" else {}
    return {"test_collector": tk.Collector(policy, envs(env, max_episode_steps=5, **shown)), "episode_per_test": 2}


# ---- runs in which options matter ----


def policy_in(learn: Callable[..., tk.Trainer], env: str = "CartPole-v1", tiny: bool = False, **options: Any) -> Run:
    """Return a run of a policy whose other arguments are those of `for_envs`."""

    def run(build: Build) -> tk.Trainer:
        kind: Any = build.constructor
        found: dict[str, Any] = {}

        class Recorded(kind):  # type: ignore[misc, valid-type]
            def __init__(self, *args: Any, **parts: Any) -> None:
                found.update({**dict(zip(inspect.signature(kind).parameters, args, strict=False)), **parts})
                super().__init__(*args, **parts)

        Recorded.for_envs(envs(env), hidden=(8,), device="cpu", seed=1, **options)
        if tiny:  # gradients below 1e-38
            found["optimizer"] = tk.TorchOptimizer(torch.optim.SGD, 1.0)
            for module in (own for own in found.values() if isinstance(own, nn.Module)):
                for parameter in module.parameters():
                    parameter.data.mul_(1e-40)
        return learn(build(**found), envs(env))

    return run


def part_of_q(option: str, *args: Any, prioritized: bool = False, **more: Any) -> Run:
    def run(build: Build) -> tk.Trainer:
        of_part = {name: own for name, own in more.items() if name in options_of(build.constructor)}
        of_policy = {name: own for name, own in more.items() if name not in of_part}
        buffer = tk.PrioritizedReplayBuffer(100) if prioritized else None
        return replayed(q_learner(**of_policy | {option: build(*args, **of_part)}), None, buffer)

    return run


def callback_in(learn: Callable[..., tk.Trainer], *args: Any, env: Any = "CartPole-v1", **options: Any) -> Run:
    def run(build: Build) -> tk.Trainer:
        policy = q_learner(envs(env))
        callbacks = build(*(own() if inspect.isfunction(own) else own for own in args), **options)
        return learn(policy, envs(env), callbacks=callbacks, **with_tests(policy, env))

    return run


def network(*args: Any, x: tuple[Any, ...], **options: Any) -> Run:
    """Return a run of a network: what it computes, and its weights."""

    def run(build: Build) -> Any:
        module = drawn(build(*args, **options))
        rest = {"noise": torch.ones(1, module.noise_size)} if getattr(module, "noise_size", 0) else {}
        state = [torch.zeros(2, module.state_size)] if isinstance(module, nets.Memory) else []
        return module(*x, *state, **rest), module.state_dict()

    return run


def memory(build: Build) -> Any:
    module = drawn(build(3))
    state = torch.zeros(2, module.state_size)
    for _ in range(40):
        outputs, state = module(VECTOR.unsqueeze(0), state)
    return outputs, state, module.state_dict()


def values(build: Build) -> Any:
    """Return action values of an untrained network."""
    policy = q_learner(value=build(), seed=1)
    return policy.action_values(np.linspace(-1, 1, 8, dtype=np.float32).reshape(2, 4))


def implicit(build: Build, **options: Any) -> Any:
    module = drawn(build((3,), 2, hidden=(4,), **options))
    noise = torch.ones(1, module.noise_size) if module.noise_size else None
    outputs = module(VECTOR, noise, None, torch.linspace(0.1, 0.9, 6).view(2, 3))
    return outputs, module.state_dict()


def stepped(made: tk.Envs, policy: Any = None) -> Any:
    """Return what a collector collects, and how its parts are described."""
    policy = policy or tk.RandomPolicy(made.action_space, seed=1)
    try:
        return collected(tk.Collector(policy, made, tk.ReplayBuffer(100), seed=1))
    finally:
        made.close()


def collected(collector: Any) -> Any:
    """Collect, and return the statistics, the rows and what the environments are said to be."""
    found: list[Any] = [repr(collector.envs), collector.envs.soft_horizon, collector.envs.made_with]
    for turn in range(12):
        stats = collector.collect(n_step=4, random=turn == 5)
        rows = collector.buffer.get(collector.collected_slots)
        found += [
            stats.episode_returns,
            stats.n_episode,
            stats.n_step,
            rows.obs,
            rows.action,
            rows.reward,
            rows.terminated,
        ]
        found += [rows.extras, len(collector.buffer)]
    return found


VECTOR = torch.linspace(-1, 3, 6).view(2, 3)
IMAGE = torch.linspace(0, 1, 2 * 3 * 40 * 40).view(2, 3, 40, 40)
GRID = torch.linspace(0, 1, 2 * 3 * 10 * 10).view(2, 3, 10, 10)
CRITIC_SEES = {"a": (3,), "b": (3,)}
TWO = {"a": VECTOR, "b": VECTOR}
BOX = Box(-2.0, 3.0, (2,))


def play(policy: Any, made: tk.Envs, buffer: Any = None, **options: Any) -> Any:
    return tk.OffpolicyTrainer(policy, tk.Collector(policy, made, buffer), **REPLAY | options)


def unseeded(build: Build) -> tuple[tk.Envs, Any]:
    made = tk.make_envs(TwoPoles, 2, seed=3)
    return made, build({name: tk.RandomPolicy(made.action_space) for name in ("left", "right")}, seed=1)


def agents(build: Build) -> Any:
    made = tk.make_envs(TwoPoles, 2, seed=3)
    policies = {name: tk.DQNPolicy.for_envs(made, hidden=(4,), device="cpu") for name in ("left", "right")}
    return replayed(build(policies), made, tk.MultiAgentBuffer({name: tk.ReplayBuffer(100) for name in policies}))


class Counts(tk.loggers.CsvLogger):
    """A logger that writes a line for each histogram."""

    def write_histograms(self, *args: Any, **options: Any) -> None:
        with (Path("log") / "counts.csv").open("a") as file:
            file.write("\n")


def pool(game: Any, **how: Any) -> Run:
    def run(build: Build) -> tk.Trainer:
        opponents = build("main", **how)
        made, test = (tk.make_envs(game, 2, seed=seed) for seed in (3, 4))
        learner = tk.DQNPolicy.for_envs(made, hidden=(4,), exploration=tk.EpsilonGreedy(0.5), device="cpu")
        policy: Any = tk.MultiAgentPolicy({"main": learner, "random": tk.RandomPolicy(made.action_space)}, opponents)
        buffer = tk.MultiAgentBuffer({"main": tk.ReplayBuffer(400)})
        more = {"test_collector": tk.Collector(policy, test), "episode_per_test": 4, "step_per_epoch": 300}
        return replayed(policy, made, buffer, callbacks=[opponents], **more)

    return run


def lockstep(build: Build) -> tk.Trainer:
    made = tk.make_envs(TwoPoles, 2, seed=3)
    policy = tk.DQNPolicy.for_envs(made, hidden=(4,), backup=tk.VDNBackup(), device="cpu")
    return replayed(policy, made, build(100, n_agents=2))


def vdn(build: Build) -> tk.Trainer:
    made = tk.make_envs(TwoPoles, 2, seed=3)
    policy = tk.DQNPolicy.for_envs(made, hidden=(4,), backup=build(), target=tk.Target(9), lr=0.1, device="cpu")
    return replayed(policy, made, tk.buffer.LockstepReplayBuffer(100, n_agents=2), update_per_step=2.0)


def evaluated(**options: Any) -> Run:
    def run(build: Build) -> tk.Trainer:
        policy = q_learner()
        return replayed(policy, evaluation=build(tk.Collector(policy, envs()), **options))

    return run


def logger_in(name: str) -> Run:
    """Return a run of a logger in the folder of another one."""

    def run(build: Build) -> tk.Trainer:
        with replayed(q_learner(), logger=build.constructor(name)) as first:
            first.run(epochs=1)
        return replayed(q_learner(), logger=build(name))

    return run


def processed(build: Build) -> Any:
    return stepped(envs(processors=[build()]))


def in_actors(build: Build) -> Any:
    made = envs(backend=build(2))
    collector = tk.Collector(q_learner(made), made, tk.ReplayBuffer(100))
    collector.collect(n_step=60)
    runner: Any = made.runner
    return collector.buffer, len(runner.actors), collector.acts_here, collector.max_lag


def simulated(build: Build) -> Any:
    simulator = build(2)
    collector = tk.simulators.TensorCollector(
        tk.PPOPolicy.for_envs(tk.simulators.TensorEnvs(simulator), seed=1, device="cpu"), simulator, seed=1
    )
    return [collector.collect(n_step=64).episode_lengths for _ in range(10)]


def events(build: Build) -> Any:
    seen: list[Any] = []

    def listen(event: str, calls: Any) -> None:
        seen.extend((event, own[0].in_evaluation, own[0].agent, own[0].policy) for own in calls)

    found = build(2, listen, ["on_episode_created", "on_episode_start"])
    found.created(np.arange(2))
    found.started(np.arange(2), np.zeros((2, 1)))
    found.deliver()
    return seen


def pendulums(build: Build) -> tk.Trainer:
    made = envs("Pendulum-v1")
    return replayed(tk.SACPolicy.for_envs(made, hidden=(8,), exploration=build(), device="cpu"), made)


@functools.cache
def logged() -> tk.ReplayBuffer:
    """Return rows with the probabilities of their actions."""
    made, buffer = envs(), tk.ReplayBuffer(200)
    policy = tk.RandomPolicy(made.action_space, seed=1, store_action_prob=True)
    tk.Collector(policy, made, buffer, seed=1).collect(n_step=200)
    return buffer


def fresh(**options: Any) -> Any:
    """Return a policy of the constructor itself."""
    network = nets.QNetwork((4,), 2, hidden=(8,))
    own: dict[str, Any] = {"target": tk.Target(5), "device": "cpu", "action_space": Discrete(2)}
    return tk.DQNPolicy(network, **own | options)


def scheduled(build: Build) -> tk.Trainer:
    return tk.presets.dqn(
        "CartPole-v1", zoo=False, hidden=(8,), lr=build(0.01, 0.0), n_envs=2, evaluation=None, **REPLAY
    )


def mixed(build: Build) -> tk.Trainer:
    return replayed(q_learner(), None, build({tk.ReplayBuffer(100): 0.5, dataset(): 0.5}))


def preprocessed(build: Build, **options: Any) -> Any:
    module = build(Box(-np.inf, np.inf, (3,)), **options)
    module.eval()
    if list(module.normalizers):
        module.observe(VECTOR)
    return module(100 * VECTOR)


def agents_in(build: Build) -> tk.Trainer:
    """Return a run of a policy for each agent."""
    made = tk.make_envs(TwoPoles, 2, seed=3)
    learners = {name: tk.DQNPolicy.for_envs(made, hidden=(4,), device="cpu") for name in ("a", "b")}
    policy = tk.MultiAgentPolicy(learners, lambda agent, game: "ab"[agent == "left"])
    return replayed(policy, made, build({name: tk.ReplayBuffer(20) for name in learners}))


def collector_of_tensors(build: Build) -> Any:
    simulator = tk.simulators.CartPole(2)
    policy = tk.PPOPolicy.for_envs(tk.simulators.TensorEnvs(simulator), hidden=(4,), seed=1, device="cpu")
    collector = build(policy, simulator, seed=3)
    return [collector.collect(n_step=64).episode_returns for _ in range(10)]


def streamed(build: Build) -> tk.Trainer:
    with replayed(q_learner(), callbacks=tk.callbacks.DatasetWriter("data")) as writer:
        writer.run()
    source = tk.datasets.stream_dataset("data", shuffle_rows=60)._sources
    return tk.OfflineTrainer(q_learner(), build(source, shuffle_rows=60), **DATA)


def images(build: Build) -> tk.Trainer:
    """Return a run of a buffer of stacked images."""
    made = envs(Pictures, stack=2)
    policy = tk.DQNPolicy.for_envs(made, head=(8,), encoder="small", device="cpu", target=tk.Target(5))
    return replayed(policy, made, build(60, stack=2), max_epoch=1)


class Pictures(gym.Env[Any, Any]):
    """Images of noise, ten steps long."""

    observation_space = Box(0, 255, (36, 36), np.uint8)
    action_space = Discrete(2)

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self._n = 0
        return self._obs(), {}

    def step(self, action: Any) -> Any:
        self._n += 1
        return (
            self._obs(),
            float(action),
            self._n == 10,
            False,
            {"lives": 3 - self._n // 4, "mask": [True, self._n < 5]},
        )

    def _obs(self) -> Any:
        return self.np_random.integers(0, 256, (36, 36)).astype(np.uint8)


def in_context(context: tk.envs.EnvContext) -> gym.Env[Any, Any]:
    """Return an environment that is shorter in evaluations."""
    return gym.wrappers.TimeLimit(Pictures(), 3 if context.in_evaluation else 9)


class FailsTwice(gym.Wrapper[Any, Any, Any, Any]):
    """An environment that fails in its third step, and again, where there are two."""

    n_steps = 0

    def step(self, action: Any) -> Any:
        self.n_steps += 1
        n_failed = len([*Path().glob("failed*")])
        if n_failed < 4 and self.n_steps == 3:
            Path(f"failed{n_failed}").touch()
            raise RuntimeError("of the environment")
        return self.env.step(action)


def made_envs(spec: Any = "CartPole-v1", **options: Any) -> Run:
    return lambda build: stepped(build(spec, 2, **options))


def trained(kind: str, **more: Any) -> Run:
    """Return a run of a trainer's constructor."""

    def run(build: Build) -> tk.Trainer:
        options, made = dict(more), envs()
        policy: Any = tk.PPOPolicy.for_envs(made, hidden=(8,), device="cpu") if kind == "rollouts" else q_learner(made)
        buffer = tk.RolloutBuffer() if kind == "rollouts" else tk.PrioritizedReplayBuffer(100)
        store = dataset() if kind == "data" else tk.Collector(policy, made, buffer)
        own = {"rollouts": ROLLOUTS, "data": DATA, "replayed": REPLAY}[kind] | {"episode_per_test": 2}
        own["test_collector"] = tk.Collector(policy, envs(**options.pop("of_tests", {})))
        if options.pop("resumed", False):
            with build.constructor(policy, store, **own) as first:
                first.run(epochs=1)
                options["resume_from"] = first.save("saved")
            return run_resumed(build, options)
        trainer: tk.Trainer = build(policy, store, **own | options)
        return trainer

    def run_resumed(build: Build, options: dict[str, Any]) -> tk.Trainer:
        return trained(kind, **options)(build)

    return run


def in_game(kind: Any, buffer: Callable[[], Any], own: dict[str, Any]) -> Run:
    """Return a run of a trainer's constructor in a game."""

    def run(build: Build) -> tk.Trainer:
        made = tk.make_envs(TwoPoles, 2, seed=3)
        learner = kind.for_envs(made, hidden=(4,), device="cpu")
        policy = tk.MultiAgentPolicy({"one": learner}, {"left": "one", "right": "one"})
        trainer: tk.Trainer = build(policy, tk.Collector(policy, made, tk.MultiAgentBuffer({"one": buffer()})), **own)
        return trainer

    return run


COMMON: list[dict[str, Any]] = [
    {},
    {"callbacks": tk.on(epoch_end=failing)},
    {"callbacks": tk.on(epoch_end=lambda trainer, result: trainer.log("threads", torch.get_num_threads()))},
    {"checkpoint": "checkpoints"},
    {"resumed": True},
    {"of_tests": {"wrappers": (Fails,), "on_error": "restart", "restart_delay_s": 0.0, "max_restarts": 100}},
]

DRAWN: list[Any] = [("CartPole-v1", False, None), ("Pendulum-v1", False, None), ("CartPole-v1", False, "gru")]
DRAWN += [("CartPole-v1", True, None)]
TORSO: dict[str, Any] = {"hidden": (4,)}
RUNS: dict[Any, list[Run]] = {
    # policies
    tk.DQNPolicy: [policy_in(replayed), policy_in(replayed, recurrent="gru"), policy_in(replayed, tiny=True)],
    tk.DiscreteBCQPolicy: [policy_in(from_data), policy_in(replayed), policy_in(from_data, tiny=True)],
    StochasticPolicy: [policy_in(on_rollouts, env, tiny, recurrent=memory) for env, tiny, memory in DRAWN],
    tk.BCPolicy: [
        policy_in(lambda *made: from_data(*made, callbacks=tk.callbacks.OffPolicyEvaluation(logged()))),
        policy_in(from_data, recurrent="gru", sequences=tk.Sequences(4, stored_state=False)),
        policy_in(from_data, tiny=True),
    ],
    tk.SACPolicy: [
        policy_in(replayed, "Pendulum-v1", tiny=True),
        policy_in(replayed, "Pendulum-v1"),
        policy_in(replayed, "Pendulum-v1", recurrent="gru"),
    ],
    tk.RandomPolicy: [lambda build: stepped(envs(), build(envs().action_space, seed=1))],
    tk.policy.ScriptedPolicy: [lambda build: stepped(envs(), build(lambda obs: np.zeros(len(obs), int)))],
    tk.MultiAgentPolicy: [agents, lambda build: stepped(*unseeded(build))],
    # parts
    ReturnValue: [part_of_q("value", exploration=tk.Greedy(), lr=0.1), values, part_of_q("value", prioritized=True)],
    SupportValue: [part_of_q("value"), part_of_q("value", prioritized=True)],
    tk.MunchausenBackup: [part_of_q("backup")],
    tk.VDNBackup: [vdn],
    tk.ConservativePenalty: [part_of_q("penalty")],
    tk.EpsilonGreedy: [part_of_q("exploration", 0.9)],
    tk.EZGreedy: [part_of_q("exploration", 0.9)],
    tk.ParameterNoise: [part_of_q("exploration", 0.1)],
    tk.SoftQ: [part_of_q("exploration")],
    tk.ColoredNoise: [pendulums],
    tk.Target: [part_of_q("target"), part_of_q("target", every=4)],
    tk.Clip: [part_of_q("clip", 0.01)],
    tk.Adam: [lambda build: replayed(fresh(optimizer=build()))],
    tk.TorchOptimizer: [lambda build: replayed(fresh(optimizer=build(torch.optim.Adam)))],
    tk.Horizon: [lambda build: replayed(fresh(horizon=build()))],
    tk.Sequences: [part_of_q("sequences", recurrent="gru", prioritized=True)],
    tk.buffer.ReturnScale: [part_of_q("reward")],
    tk.Linear: [scheduled],
    # buffers, collectors, trainers
    tk.ReplayBuffer: [lambda build: replayed(q_learner(), None, build(30)), images],
    tk.buffer.LockstepReplayBuffer: [lockstep],
    tk.MixedBuffer: [mixed],
    tk.MultiAgentBuffer: [agents_in],
    tk.Collector: [
        lambda build: collected(build(tk.RandomPolicy(Discrete(2), seed=1), envs(Pictures), tk.ReplayBuffer(100))),
        lambda build: replayed_by(build(q_learner(normalize_obs=True), envs(), tk.ReplayBuffer(100))),
    ],
    tk.datasets.StreamedDataset: [streamed],
    tk.OffpolicyTrainer: [
        *(trained("replayed", **more) for more in COMMON),
        in_game(tk.DQNPolicy, lambda: tk.ReplayBuffer(100), REPLAY),
    ],
    tk.OnpolicyTrainer: [
        *(trained("rollouts", **more) for more in COMMON),
        in_game(tk.PPOPolicy, tk.RolloutBuffer, ROLLOUTS),
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
    tk.callbacks.Diagnosis: [lambda build: replayed(q_learner(), callbacks=build())],
    tk.callbacks.Histograms: [lambda build: replayed(q_learner(), callbacks=build(), logger=Counts("log"))],
    tk.callbacks.DatasetWriter: [callback_in(replayed, "data")],
    tk.callbacks.TrackMemory: [callback_in(functools.partial(replayed, verbose=True, max_epoch=4))],
    tk.callbacks.OffPolicyEvaluation: [callback_in(replayed, lambda: logged())],
    tk.callbacks.OpponentPool: [pool(MatrixGame, add_every=10), pool(MatrixGame, add_at_win_rate=0.3)],
    tk.callbacks.TuneReport: [lambda build: replayed(q_learner(), callbacks=build())],
    tk.loggers.MlflowLogger: [lambda build: replayed(q_learner(), logger=build())],
    tk.loggers.WandbLogger: [lambda build: replayed(q_learner(), logger=build())],
    **{kind: [logger_in("log")] for kind in (tk.JsonlLogger, tk.loggers.CsvLogger, tk.loggers.TensorboardLogger)},
    # environments
    tk.make_envs: [
        made_envs(),
        made_envs(in_context),
        made_envs(Pictures),
        made_envs(wrappers=(FailsTwice,), on_error="restart", restart_delay_s=0.0),
        made_envs(backend=tk.envs.Actors(1)),
        made_envs(backend="async"),
    ],
    tk.envs.Actors: [in_actors],
    tk.envs.PreviousStep: [processed],
    tk.testing.FakeVectorEnv: [lambda build: stepped(tk.make_envs(build(BOX, Discrete(2), 2)))],
    tk.simulators.CartPole: [simulated],
    tk.simulators.Pendulum: [simulated],
    tk.simulators.TensorCollector: [collector_of_tensors],
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
    nets.Memory: [memory],
    nets.Preprocess: [preprocessed, lambda build: preprocessed(build, normalize=True)],
    nets.ActionScale: [lambda build: build(BOX).to_space(np.ones((2, 2), np.float32))],
    nets.SquashedGaussian: [
        lambda build: (lambda made: made.sample(torch.ones(2, made.width), None, torch.ones(2, 2)))(build(BOX))
    ],
    tk.engine.DeviceFrames: [lambda build: str(build().device)],
}


def public(namespace: ModuleType) -> Iterator[Any]:
    yield from (vars(namespace).get(name) for name in getattr(namespace, "__all__", ()))


def is_constructor(kind: Any) -> bool:
    """Return whether users construct objects of it: no record that a function returns, no protocol, no error."""
    if not inspect.isclass(kind):
        return kind is tk.make_envs
    is_record = (dataclasses.is_dataclass(kind) or hasattr(kind, "_fields")) and not issubclass(kind, Part)
    others = (tk.engine.Engine, tk.engine.GradientStep, tk.Envs, tk.Policy)  # made by policies, `make_envs`, subclasses
    return not (kind in others or is_record or is_protocol(kind) or issubclass(kind, BaseException))


def for_envs(learn: Callable[..., tk.Trainer], env: str = "CartPole-v1", **options: Any) -> Run:
    return lambda build: learn(build(envs(env), **{"hidden": (8,), "device": "cpu", "seed": 1} | options), envs(env))


# The method that makes a policy of its most common options, by its class.
FOR_ENVS: dict[Any, list[Run]] = {
    tk.DQNPolicy: [for_envs(replayed), for_envs(replayed, recurrent="gru"), for_envs(replayed, noisy=True)],
    tk.DiscreteBCQPolicy: [for_envs(from_data, target=tk.Target(5)), for_envs(from_data, noisy=True)],
    StochasticPolicy: [
        for_envs(on_rollouts),
        for_envs(on_rollouts, "Pendulum-v1"),
        for_envs(on_rollouts, recurrent="gru"),
    ],
    tk.BCPolicy: [
        for_envs(lambda *made: from_data(*made, callbacks=tk.callbacks.OffPolicyEvaluation(logged()))),
        for_envs(from_data, recurrent="gru", sequences=tk.Sequences(4, stored_state=False)),
    ],
    tk.SACPolicy: [for_envs(replayed, "Pendulum-v1"), for_envs(replayed, "Pendulum-v1", recurrent="gru")],
}


def constructors() -> list[Any]:
    """Return all public constructors; those of presets are those of `test_options_have_effects.py`."""
    names = [name for name in dir(tk) if name != "presets"]
    modules = [tk, *(own for own in map(vars(tk).get, names) if inspect.ismodule(own))]
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
UNTRIED = {"channels_last", "act_on", "frames", "where", "restart_delay_s", "step_timeout_s"}


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


# Other values where an annotation says too little; all of them are made anew, as a part belongs to one policy.
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
    lambda: tk.CategoricalValue(5, -1.0, 1.0),
    tk.DoubleBackup,
    tk.ConservativePenalty,
    lambda: tk.EpsilonGreedy(0.9),
    lambda: tk.ColoredNoise(1.0),
    lambda: tk.Target(2),
    lambda: tk.Clip(0.01),
    lambda: tk.Horizon(3, 0.5),
    lambda: tk.Sequences(2),
    lambda: tk.nets.SquashedGaussian(Box(-2.0, 2.0, (1,))),
    lambda: Box(-1.0, 1.0, (5,)),
    lambda: Discrete(2),
    lambda: envs("Pendulum-v1"),
    tk.engine.DeviceFrames,
    lambda: nn.Flatten(),
    lambda: {"x": 0.5},
    lambda: ("a",),
    lambda: frozenset({"weight"}),
    lambda: (0.5, 1.0),
]


def problems(chosen: list[tuple[Any, str]], capsys: Any, folder: Path) -> list[str]:
    known: dict[Any, Any] = {}
    return [f"{name_of(one)}({name}=)" for one, name in chosen if not has_effect(one, name, capsys, folder, known)]


def test_every_constructor_with_options_has_a_run() -> None:
    assert [name_of(own) for own in constructors() if options_with_a_default(own) and not runs_of(own)] == []


def test_a_random_twentieth_of_all_options_of_constructors_has_an_effect_or_is_rejected(
    capsys: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    every = cases()
    assert problems(random.Random().sample(every, len(every) // 20), capsys, tmp_path) == []


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
