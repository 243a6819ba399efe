"""Our side of `peers`, by the public parts: engine and flushed denormals are the defaults."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Protocol

import torch

import trainkit as tk
from benchmarks.pages import ROOT
from benchmarks.sides import side
from benchmarks.sides.work import (
    ADAM_EPS,
    ALPHA,
    ATOMS,
    BETA,
    CLIP_RATIO,
    CONTINUOUS,
    DELAY,
    DROPPED,
    EPOCHS,
    IMAGES,
    LAMBDA,
    NOISE,
    QUANTILES,
    RETURNS,
    ROLLOUT_STEPS,
    TAU,
    VALUE_WEIGHT,
    Work,
    make_env,
)

QUIET: dict[str, Any] = {"verbose": False, "show_progress": False}


class Trains(Protocol):
    """A trainer as far as it is used here."""

    def run(self) -> object:
        """Train to the end."""


def make_policy(work: Work, envs: tk.Envs, **options: Any) -> Any:
    """Make the learner."""
    options |= {"gamma": work.gamma, "lr": work.lr, "max_grad_norm": work.clip, "device": "cpu", "seed": 1}
    if work.learner == "sac":
        return tk.SACPolicy.for_envs(envs, hidden=work.hidden, tau=TAU, **options)
    if work.learner == "td3":
        target = tk.Target(DELAY, unit="updates", tau=TAU)
        td3: dict[str, Any] = {"distribution": tk.policy.Deterministic(NOISE), "value": tk.ExpectedValue("mse")}
        td3 |= {"actor_reduction": tk.policy.FirstCritic(), "temperature": None, "actor_every": DELAY}
        td3 |= {"target": target, "actor_target": target}
        return tk.ActorCriticPolicy.for_envs(envs, hidden=work.hidden, **td3, **options)
    if work.learner == "tqc":
        tqc: dict[str, Any] = {"value": tk.QuantileValue(QUANTILES, reduction="mean"), "tau": TAU}
        tqc |= {"reduction": tk.policy.TruncatedQuantiles(DROPPED), "actor_reduction": tk.policy.MeanOfCritics()}
        return tk.ActorCriticPolicy.for_envs(envs, hidden=work.hidden, **tqc, **options)
    if work.learner == "ppo":
        ppo = {"lam": LAMBDA, "clip_ratio": CLIP_RATIO, "value_weight": VALUE_WEIGHT, "entropy_weight": 0.0}
        return tk.PPOPolicy.for_envs(envs, hidden=work.hidden, adam_eps=ADAM_EPS, **ppo, **options)
    options |= {"n_step": work.n_step, "double": work.double}
    options["target"] = tk.Target(work.target_every, unit="updates")
    if work.learner == "rainbow":
        rainbow = {"value": tk.CategoricalValue(ATOMS, *RETURNS), "dueling": True, "noisy": True}
        return tk.DQNPolicy.for_envs(envs, hidden=work.hidden, **rainbow, **options)
    options |= {"value": tk.ExpectedValue(work.loss), "exploration": tk.EpsilonGreedy(work.epsilon)}
    if not work.convolutions:
        return tk.DQNPolicy.for_envs(envs, hidden=work.hidden, **options)
    clip, horizon = tk.Clip(options.pop("max_grad_norm")), tk.Horizon(options.pop("n_step"), options.pop("gamma"))
    options |= {"clip": clip, "horizon": horizon, "optimizer": tk.Adam(options.pop("lr"))}
    del options["double"]
    return tk.DQNPolicy(side.Images(side.network(work)), action_space=envs.action_space, **options)


class Ours:
    """trainkit with a workload."""

    def __init__(self, work: Work, **options: Any) -> None:
        self.work = work
        ids = [lambda: make_env(work)] * work.n_envs if work.env == IMAGES else work.env
        self._envs = tk.make_envs(ids, seed=1) if work.env == IMAGES else tk.make_envs(ids, work.n_envs, seed=1)
        self.policy = make_policy(work, self._envs, **options)
        self.collector = tk.Collector(self.policy, self._envs, self._buffer())

    def _buffer(self) -> Any:
        if self.work.learner == "ppo":
            return tk.RolloutBuffer()
        if self.work.prioritized:
            return tk.PrioritizedReplayBuffer(self.work.capacity, alpha=ALPHA, beta=BETA, seed=1)
        return tk.ReplayBuffer(self.work.capacity, seed=1)

    def collect(self, n_steps: int) -> int:
        n_collected = self.collector.collect(n_step=n_steps).n_step
        if self.work.learner == "ppo":
            self.collector.buffer.clear()
        return n_collected

    def update(self) -> None:
        """Sample a batch and learn from it, for benchmarks that measure updates alone."""
        buffer = self.collector.buffer
        batch = buffer.sample(self.work.batch, horizon=self.policy.horizon)
        result = self.policy.update(batch, step=self.collector.env_step)
        if self.work.prioritized:
            buffer.update_priorities(batch.slots, result.read_priority())

    def loop(self, n_steps: int) -> int:
        before = self.collector.env_step
        self._trainer(n_steps).run()
        return self.collector.env_step - before

    def _trainer(self, n_steps: int) -> Trains:
        work, common = self.work, {"max_epoch": 1, "step_per_epoch": n_steps, "batch_size": self.work.batch, **QUIET}
        if work.learner == "ppo":
            rollout = {"step_per_collect": work.n_envs * ROLLOUT_STEPS, "repeat_per_collect": EPOCHS}
            return tk.OnpolicyTrainer(self.policy, self.collector, **rollout, **common)
        ratio = {"step_per_collect": work.steps_per_update, "update_per_step": 1 / work.steps_per_update}
        return tk.OffpolicyTrainer(self.policy, self.collector, **ratio, **common)

    def n_updates(self) -> int:
        n_updates: int = self.policy.n_updates
        return n_updates

    @contextmanager
    def count_calls(self) -> Iterator[list[int]]:
        engine, count = self.policy.engine, [0]
        call = engine.call

        def counted(name: str, *arguments: Any, **options: Any) -> Any:
            count[0] += name in ("q_values", "act")
            return call(name, *arguments, **options)

        engine.call = counted
        yield count
        del engine.call

    def settings(self) -> dict[str, Any]:
        policy = self.policy
        trained = [policy.network] if self.work.learner not in CONTINUOUS else [policy.actor, policy.critics]
        return {
            "env": self.work.env if self.work.env == IMAGES else self._envs.name,
            "envs": self._envs.n,
            "gamma": policy.horizon.gamma,
            "parameters": side.count_parameters(*trained),
        }


if __name__ == "__main__":
    side.options().parse_args()
    if not Path(tk.__file__).is_relative_to(ROOT):
        raise SystemExit(f"{tk.__file__} is not of the tree that these benchmarks are of: set PYTHONPATH=src")
    torch.set_num_threads(1)
    side.serve(Ours, tk.__version__)
