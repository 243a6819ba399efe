"""Runs in which options of constructors matter: what the tables of `test_constructors_have_effects.py` are made of."""

import inspect
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import torch
from gymnasium.spaces import Box, Discrete
from torch import nn

import trainkit as tk
from tests.helpers.networks import drawn
from tests.outside.outcomes import Fails, dataset, failing
from trainkit import nets
from trainkit.core.signatures import options_of


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
        return module(*x, **rest), module.state_dict()

    return run


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


class Counts(tk.loggers.CsvLogger):
    """A logger that writes a line for each histogram."""

    def write_histograms(self, *args: Any, **options: Any) -> None:
        with (Path("log") / "counts.csv").open("a") as file:
            file.write("\n")


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


class FirstCritic(tk.policy.CriticReduction):
    """The outputs of the first critic."""

    def __call__(self, outputs: Any, value: Any, drawn: Any = None) -> Any:
        return outputs[:, 0]


class ZeroAhead(tk.policy.SeparatePasses):
    """Call the critics, and expect nothing from the next steps."""

    def __call__(self, *given: Any) -> tuple[Any, Any]:
        outputs, after = super().__call__(*given)
        return outputs, torch.zeros_like(after)


class FixedGaussians:
    """Squashed normal distributions whose standard deviations are parameters."""

    def __call__(self, space: Any) -> Any:
        made = tk.nets.SquashedGaussian(space, log_std=None)
        made.draw_noise = lambda n_rows, generator: torch.zeros(n_rows, made.n_dimensions)  # type: ignore[method-assign]
        return made


class NormedNetworks:
    """Networks with layer normalization."""

    def actor(self, shapes: Any, width: int, **layers: Any) -> Any:
        return nets.ActorNetwork(shapes, width, **layers | {"norm": "layer"})

    def critics(self, shapes: Any, n_dimensions: int, **layers: Any) -> Any:
        return nets.CriticNetwork(shapes, n_dimensions, **layers | {"norm": "layer"})


def fresh(**options: Any) -> Any:
    """Return a policy of the constructor itself."""
    network = nets.QNetwork((4,), 2, hidden=(8,))
    own: dict[str, Any] = {"target": tk.Target(5), "device": "cpu", "action_space": Discrete(2)}
    return tk.DQNPolicy(network, **own | options)


def scheduled(build: Build) -> tk.Trainer:
    return tk.presets.dqn(
        "CartPole-v1", zoo=False, hidden=(8,), lr=build(0.01, 0.0), n_envs=2, evaluation=None, **REPLAY
    )


def preprocessed(build: Build, **options: Any) -> Any:
    module = build(Box(-np.inf, np.inf, (3,)), **options)
    module.eval()
    if list(module.normalizers):
        module.observe(VECTOR)
    return module(100 * VECTOR)


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


def for_envs(learn: Callable[..., tk.Trainer], env: str = "CartPole-v1", **options: Any) -> Run:
    return lambda build: learn(build(envs(env), **{"hidden": (8,), "device": "cpu", "seed": 1} | options), envs(env))
