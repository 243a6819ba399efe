"""Assignments after construction: every public attribute that is assigned has an effect, or raises with the remedy.

Attributes are found by introspection, so that a new one is tested without being listed here.
"""

import copy
import inspect
import random
import re
from collections.abc import Callable, Iterator
from typing import Any, ClassVar, get_origin
from weakref import WeakKeyDictionary

import numpy as np
import pytest
import torch
from torch import nn

import trainkit as tk
from tests.outside.outcomes import digest
from trainkit.collector.events import EpisodeEvents
from trainkit.core.data import Horizon
from trainkit.core.schedules import Schedule
from trainkit.core.signatures import options_of
from trainkit.trainer.callbacks.base import Callback


class Constant(nn.Module):
    """Features [B, ...] -> mean 1 and log standard deviation 1 of one dimension."""

    def forward(self, features: Any) -> torch.Tensor:
        return torch.ones(len(features), 2)


class First(tk.policy.CriticReduction):
    """The outputs of the first critic."""

    def __call__(self, outputs: Any, value: Any, drawn: Any = None) -> Any:
        return outputs[:, 0]


TINY: dict[str, Any] = {"device": "cpu", "verbose": False, "evaluation": None, "hidden": (8,), "seed": 1, "zoo": False}
TINY |= {"n_envs": 2, "max_epoch": 3, "step_per_epoch": 40}
REPLAY = TINY | {"step_per_collect": 2, "batch_size": 8, "learning_starts": 8, "target_every": 10}


class Batches(Callback):
    """Record the columns of all batches, by trainer."""

    of: ClassVar[WeakKeyDictionary[tk.Trainer, list[Any]]] = WeakKeyDictionary()

    def on_train_batch(self, trainer: tk.Trainer, batch: Any) -> None:
        self.of.setdefault(trainer, []).append((len(batch.reward), sorted(batch.extras)))


def replayed(**options: Any) -> tk.Trainer:
    callbacks = Batches()
    return tk.presets.dqn("CartPole-v1", **REPLAY | {"update_per_step": 0.5, "callbacks": callbacks} | options)


def offline() -> tk.Trainer:
    envs = tk.make_envs("CartPole-v1", 2, seed=1)
    buffer = tk.ReplayBuffer(200, spaces=envs)
    policy = tk.policy.RandomPolicy(envs.action_space, seed=1)
    tk.Collector(policy, envs, buffer).collect(n_step=100)
    learner = tk.DQNPolicy.for_envs(buffer, hidden=(8,), device="cpu", penalty=tk.ConservativePenalty(0.5))
    options: dict[str, Any] = {"max_epoch": 3, "update_per_epoch": 10, "batch_size": 8, "verbose": False, "seed": 1}
    return tk.OfflineTrainer(learner, buffer, callbacks=Batches(), **options)


RUNS: dict[str, Callable[[], tk.Trainer]] = {
    "dqn": replayed,
    "prioritized": lambda: replayed(buffer="prioritized", value=tk.QuantileValue(5), backup="double"),
    "munchausen": lambda: replayed(backup="munchausen", exploration=tk.EZGreedy(0.5, mu=2.0, max_repeat=100)),
    "c51": lambda: replayed(value="categorical", exploration=tk.SoftQ(0.5)),
    "iqn": lambda: replayed(
        value=tk.ImplicitQuantileValue(4, target_quantiles=4), network={"noisy": True}, epsilon=None
    ),
    "noise": lambda: replayed(exploration=tk.ParameterNoise(0.1), n_step=2),
    "ppo": lambda: tk.presets.ppo("CartPole-v1", step_per_collect=20, batch_size=10, callbacks=Batches(), **TINY),
    "ppo_box": lambda: tk.presets.ppo("Pendulum-v1", step_per_collect=20, callbacks=Batches(), **TINY),
    "a2c": lambda: tk.presets.a2c("CartPole-v1", step_per_collect=20, callbacks=Batches(), **TINY),
    "sac": lambda: tk.presets.sac(
        "Pendulum-v1",
        exploration=tk.ColoredNoise(length=20),
        callbacks=Batches(),
        **{name: own for name, own in REPLAY.items() if name != "target_every"},
    ),
    "offline": offline,
}

PARTS: dict[str, Callable[[Any], Any]] = {
    "trainer": lambda trainer: trainer,
    "policy": lambda trainer: trainer.policy,
    "buffer": lambda trainer: trainer.buffer,
    "train_collector": lambda trainer: trainer.train_collector,
    **{
        name: lambda trainer, name=name: getattr(trainer.policy, name, None)
        for name in ("exploration", "value", "backup", "penalty", "reduction")
    },
}


def public_attributes(part: object) -> list[str]:
    """Name the attributes of an object that a user can assign: those of its class, but methods, and its own."""
    kind = type(part)
    constants = {
        name
        for base in kind.__mro__
        for name, annotation in vars(base).get("__annotations__", {}).items()
        if annotation is ClassVar or get_origin(annotation) is ClassVar
    }
    own = {*vars(part), *getattr(part, "_modules", {}), *getattr(part, "_buffers", {})}
    for name in dir(kind):
        member = inspect.getattr_static(kind, name)
        if not (callable(member) or isinstance(member, (classmethod, staticmethod))):
            own.add(name)
    of_torch = {*dir(nn.Module), *vars(nn.Module()), "training"} if isinstance(part, nn.Module) else set()
    return sorted(name for name in own - constants - of_torch if not name.startswith("_"))


def cases() -> Iterator[tuple[str, str, str]]:
    """Yield (run, part, attribute), an attribute of a class once."""
    known: set[tuple[type, str]] = set()
    for run, make in RUNS.items():
        with make() as trainer:
            for part, find in PARTS.items():
                found = find(trainer)
                for name in () if found is None else public_attributes(found):
                    if (type(found), name) not in known:
                        known.add((type(found), name))
                        yield run, part, name


def another(name: str, value: Any) -> Any:
    """Return another value of the same kind as an attribute's."""
    special: dict[str, Any] = {
        "between_steps": None if callable(value) else raising,
        "overlap": raising,
        "events": EpisodeEvents(2, raising, ["on_episode_start", "on_episode_end", "on_episode_step"]),
        "recorders": [Raising()],
        "penalty": tk.ConservativePenalty(0.75),
        "reduction": "mean" if isinstance(value, str) else First(),
        "actor_reduction": First(),
        "critic_pass": raising,
        "target_actor": Constant(),  # where there is none
        "backup": tk.DoubleBackup() if isinstance(value, tk.MaxBackup) else tk.MaxBackup(),
        "exploration": tk.EpsilonGreedy(0.77) if hasattr(value, "choose") else tk.ColoredNoise(0.5),
        "value": tk.ExpectedValue("huber", delta=0.01),
        "horizon": Horizon(1, 0.5),
        "columns": ("t",),
        "rng": np.random.default_rng(99),
        "generator": torch.Generator().manual_seed(99),
        "kind": "huber" if str(value) == "mse" else "mse",
        "priority": "ce",
        "per_env": [0.1, 0.9],
        "rescale": 0.5,
        "clip_value": 1e-3,
        "target_kl": 1e-9,
        "max_epoch": 2,
        "batch_size": 4,
        "config": {"preset": "other", "domain": "x", "arguments": {}, "unknown": {}},
    }
    if name in special:
        return special[name]
    if isinstance(value, bool):
        return not value
    if isinstance(value, int):
        return value + 1
    if isinstance(value, float):
        return 0.5 * value if value else 0.125
    if isinstance(value, str):
        return value + "x"
    if isinstance(value, nn.Module):
        changed = copy.deepcopy(value)
        with torch.no_grad():
            for parameter in changed.parameters():
                parameter.add_(0.25)
        return changed
    if isinstance(value, (torch.Tensor, np.ndarray)):
        return value + 1
    if isinstance(value, Schedule) and not isinstance(value, type):
        return 0.123
    return object()


def raising(*_: object) -> None:
    raise tk.ConfigError("was received: remove it")


class Raising:
    """A recorder that shows that it is one."""

    def add(self, transition: Any) -> None:
        raising()

    cut = drop = add


def state_of(trainer: Any) -> str:
    """Return a digest of everything that a run continues from, and of what has been recorded."""
    policy, buffer, collector = trainer.policy, trainer.buffer, trainer.train_collector
    slots = np.arange(0) if collector is None else collector.collected_slots
    obs = np.zeros((4, *policy.observation_space.shape), np.float32)
    extra = policy.act(obs, step=policy.last_step, explore=True)
    state = trainer.state_dict()
    counts = {name: state[name] for name in ("epoch", "seed", "stop_reason", "steps_per_epoch", "warnings")}
    timed = re.compile("second|durations|_ms$|^system/|^time/")
    history = [{name: own for name, own in row.items() if not timed.search(name)} for row in trainer.history]
    return digest(
        policy.training_state(),
        {} if collector is None else buffer.metrics(trainer.clock),
        len(buffer),
        slots,
        counts,
        Batches.of.get(trainer, []),
        history,
        str(extra),
        *(None if config is None else config["arguments"] for config in (trainer.config, policy.config)),
        policy.explore_metrics(trainer.clock),
        torch.get_num_threads(),
    )


def outcome_of(run: str, assign: Callable[[Any], None]) -> str:
    """Train an epoch, assign, and train the rest; return a digest of the states after the assignment."""
    n_threads = torch.get_num_threads()
    try:
        with RUNS[run]() as trainer:
            next(trainer)
            assign(trainer)
            after = state_of(trainer)
            trainer.run()
            return after + state_of(trainer)
    finally:
        torch.set_num_threads(n_threads)


REMEDIES = ("(", " = ", "=...", "needs", "give", "assign", "make", "read-only", "load", "must be", "remove")


def problem_of(run: str, part: str, name: str, unchanged: str) -> str | None:
    """Return what is wrong with the assignment of an attribute, None where it has an effect or raises with a remedy."""
    value: list[Any] = []

    def assign(trainer: Any) -> None:
        found = PARTS[part](trainer)
        try:
            current = getattr(found, name)
        except AttributeError:
            current = None
        value.append(another(name, current))
        setattr(found, name, value[0])

    try:
        after = outcome_of(run, assign)
    except tk.TrainkitError as error:
        return None if any(remedy in str(error) for remedy in REMEDIES) else f"no remedy: {error}"
    except Exception as error:  # noqa: BLE001  # what is looked for
        return f"{type(error).__name__}: {error}"
    return f"no effect of {value[0]!r}" if after == unchanged else None


def problems(chosen: list[tuple[str, str, str]]) -> list[str]:
    unchanged = {run: outcome_of(run, lambda trainer: None) for run in {run for run, _, _ in chosen}}
    found = {case: problem_of(*case, unchanged[case[0]]) for case in chosen}
    return [f"{'.'.join(case)}: {problem}" for case, problem in found.items() if problem is not None]


def test_runs_without_an_assignment_are_equal() -> None:
    assert all(outcome_of(run, lambda _: None) == outcome_of(run, lambda _: None) for run in ("dqn", "ppo_box"))


def test_a_twentieth_of_all_assignments_has_an_effect_or_raises() -> None:
    every = [*cases()]
    assert problems(random.Random(0).sample(every, len(every) // 20)) == []


@pytest.mark.slow
def test_every_assignment_has_an_effect_or_raises() -> None:
    assert problems([*cases()]) == []


# ---- what users assign ----


def test_a_constant_takes_the_place_of_a_schedule_of_exploration() -> None:
    with replayed() as trainer:
        next(trainer)
        trainer.policy.exploration.epsilon = 0.1
        assert trainer.policy.explore_metrics(10_000) == {"epsilon": 0.1}
        trainer.policy.exploration.epsilon = [(0, 1.0), (100, 0.5)]
        assert trainer.policy.exploration.epsilon(50) == 0.75
        trainer.run()


def test_settings_of_the_loop_apply_from_the_next_step_on() -> None:
    with replayed(buffer="prioritized", max_epoch=2) as trainer:
        next(trainer)
        n_updates = trainer.gradient_step
        trainer.update_per_step, trainer.step_per_epoch, trainer.batch_size = 1.0, 80, 4
        trainer.policy.lr, trainer.policy.gamma, trainer.policy.n_step = 1e-5, 0.5, 3
        trainer.buffer.beta = 0.7
        _, stats, info = next(trainer)

    assert info.env_step == 120
    assert info.gradient_step - n_updates == 80
    assert stats.update["lr"] == pytest.approx(1e-5)
    assert trainer.buffer.metrics(info.env_step)["beta"] == 0.7
    assert trainer.policy.horizon == Horizon(3, 0.5)
    assert trainer.training_intensity == 4.0
    assert trainer.settings()["batch_size"] == 4


@pytest.mark.parametrize(
    ("assign", "message"),
    [
        (lambda t: setattr(t, "policy", None), r"OffpolicyTrainer\.policy cannot be assigned.*constr"),
        (
            lambda t: setattr(t, "env_step", 0),
            r"OffpolicyTrainer\.env_step cannot be assigned.*reset\(reset_collectors",
        ),
        (lambda t: setattr(t, "log_every", 5), r"OffpolicyTrainer\.log_every.*constr"),
        (lambda t: setattr(t, "lr", 1e-4), r"OffpolicyTrainer\.lr would have no effect: policy\.lr"),
        (lambda t: setattr(t, "batch_size", 0), r"OffpolicyTrainer\.batch_size must be a whole number >= 1, got 0"),
        (lambda t: setattr(t, "batch_size", 10**6), r"larger than the buffer's capacity"),
        (lambda t: setattr(t, "learning_starts", 99), r"learning_starts 8 are over"),
        (lambda t: setattr(t, "episode_per_collect", 2), r"has no effect, as collects are counted by steps"),
        (lambda t: setattr(t.policy, "epsilon", 0.1), r"DQNPolicy\.epsilon would have no effect: policy\.exploration"),
        (lambda t: setattr(t.policy, "gamma", 2.0), r"Horizon\.gamma must be in \[0, 1\], got 2\.0"),
        (lambda t: setattr(t.policy, "device", "cuda"), r"DQNPolicy\.device cannot be assigned"),
        (lambda t: setattr(t.policy.exploration, "eps", 0.1), r"EpsilonGreedy\.eps would have no effect: exploration"),
        (lambda t: setattr(t.policy.exploration, "epsilon", 2.0), r"EpsilonGreedy\.epsilon must be in \[0, 1\]"),
        (
            lambda t: setattr(t.buffer, "capacity", 9),
            r"ReplayBuffer\.capacity cannot be assigned.*ReplayBuffer\(\.\.\.",
        ),
        (lambda t: setattr(t.train_collector, "envs", None), r"Collector\.envs cannot be assigned"),
        (
            lambda t: setattr(t, "clip_ratio", 0.1),
            r"OffpolicyTrainer\.clip_ratio would have no effect: policy\.clip_ratio",
        ),
        (
            lambda t: setattr(t, "exploration", None),
            r"OffpolicyTrainer\.exploration would have no effect: policy\.expl",
        ),
        (
            lambda t: setattr(t, "optimizer", None),
            r"OffpolicyTrainer\.optimizer would have no effect: it is the policy's",
        ),
        (
            lambda t: setattr(t.policy, "target_every", 5),
            r"DQNPolicy\.target_every would have no effect: .*target=Target",
        ),
        (lambda t: setattr(tk.Greedy(), "epsilon", 0.1), r"Greedy\.epsilon would have no effect: .*EpsilonGreedy"),
        (lambda t: setattr(t.policy, "clip", tk.Clip(0.1)), r"DQNPolicy\.clip would have no effect: .* construction"),
        (lambda t: setattr(t.policy, "target", tk.Target(5)), r"DQNPolicy\.target would have no effect"),
        (lambda t: setattr(t.policy, "reward", 0.1), r"DQNPolicy\.reward would have no effect"),
        (lambda t: setattr(t.policy, "double", True), r"DQNPolicy\.double cannot be .*policy\.backup = DoubleBackup"),
        (lambda t: setattr(t.policy, "hidden", (64,)), r"DQNPolicy\.hidden would have no effect: .* construction"),
        (lambda t: setattr(t.policy, "exploration", 0.1), r"DQNPolicy\.exploration must be .*Exploration.*, got 0\.1"),
    ],
)
def test_what_cannot_be_assigned_names_the_remedy(assign: Callable[[Any], None], message: str) -> None:
    with replayed() as trainer:
        next(trainer)
        with pytest.raises(tk.ConfigError, match=message):
            assign(trainer)


@pytest.mark.parametrize("run", RUNS)
def test_options_of_constructors_are_attributes_or_cannot_be_assigned(run: str) -> None:
    with RUNS[run]() as trainer:
        for part in (trainer, trainer.policy, trainer.buffer, trainer.train_collector):
            kind: Any = type(part)
            options = set() if part is None else {*options_of(kind), *options_of(getattr(kind, "for_envs", kind))}
            for name in sorted(options - {"envs"}):
                assert hasattr(kind, name) or name in dir(part), f"{kind.__name__}.{name}"


def test_a_network_that_updates_do_not_move_is_named_where_the_epoch_starts() -> None:
    with replayed() as trainer:
        next(trainer)
        trainer.policy.network = copy.deepcopy(trainer.policy.network)
        with pytest.raises(
            tk.ConfigError, match=r"the module of network is none of the policy's any more.*load_weights"
        ):
            next(trainer)


def test_a_torch_schedulers_learning_rate_can_be_replaced() -> None:
    schedulers: Any = torch.optim.lr_scheduler
    with replayed(lr=lambda optimizer: schedulers.ExponentialLR(optimizer, 0.5)) as trainer:
        next(trainer)
        trainer.policy.lr = 1e-4
        _, stats, _ = next(trainer)
    assert stats.update["lr"] == pytest.approx(1e-4)
    assert trainer.describe()["policy/lr"] == 1e-4


def test_an_error_within_a_property_is_not_hidden_by_a_hint() -> None:
    class Own(tk.OffpolicyTrainer):
        @property
        def clock(self) -> int:
            return self.policy.n_updatez  # type: ignore[no-any-return]  # on purpose

    with replayed() as trainer:
        trainer.__class__ = Own
        with pytest.raises(AttributeError, match="'DQNPolicy' object has no attribute 'n_updatez'"):
            _ = trainer.clock
        with pytest.raises(AttributeError, match=r"has no attribute 'num_timesteps': docs/migration"):
            _ = trainer.num_timesteps  # type: ignore[attr-defined]


def test_read_only_attributes_are_properties_in_help() -> None:
    assert isinstance(inspect.getattr_static(tk.ReplayBuffer, "capacity"), property)
    assert tk.ReplayBuffer.capacity.__doc__ == "Transitions in all."
    assert not any("__setattr__" in vars(kind) for kind in (tk.Trainer, tk.Policy, tk.ReplayBuffer, tk.Collector))
