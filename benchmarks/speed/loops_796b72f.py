"""The side of `loops` of commit 796b72f, the last one before optional features came into the package.

It has no such side itself, and its parts keep the names and options that they had.
"""

from typing import Any

import trainkit as tk
from benchmarks.sides.work import (
    ADAM_EPS,
    ALPHA,
    ATOMS,
    BETA,
    CLIP_RATIO,
    EPOCHS,
    LAMBDA,
    RETURNS,
    ROLLOUT_STEPS,
    TAU,
    VALUE_WEIGHT,
    Work,
)
from benchmarks.speed.loops_work import serve, shared_loops


def make_policy(work: Work, envs: Any) -> Any:
    """Make the learner."""
    options: dict[str, Any] = {"gamma": work.gamma, "lr": work.lr, "max_grad_norm": work.clip, "hidden": work.hidden}
    options |= {"device": "cpu", "seed": 1}
    if work.learner == "sac":
        return tk.SACPolicy.for_envs(envs, tau=TAU, **options)
    if work.learner == "ppo":
        ppo = {"lam": LAMBDA, "clip_ratio": CLIP_RATIO, "value_weight": VALUE_WEIGHT, "entropy_weight": 0.0}
        return tk.PPOPolicy.for_envs(envs, adam_eps=ADAM_EPS, **ppo, **options)
    options |= {"n_step": work.n_step, "double": work.double}
    options["target"] = tk.Target(work.target_every, unit="updates")
    if work.learner == "rainbow":
        return tk.DQNPolicy.for_envs(
            envs, value=tk.CategoricalValue(ATOMS, *RETURNS), dueling=True, noisy=True, **options
        )
    value, exploration = tk.ExpectedValue(work.loss), tk.EpsilonGreedy(work.epsilon)
    return tk.DQNPolicy.for_envs(envs, value=value, exploration=exploration, **options)


def make_buffer(work: Work) -> Any:
    """Make what the collector fills."""
    if work.learner == "ppo":
        return tk.RolloutBuffer()
    if work.prioritized:
        return tk.PrioritizedReplayBuffer(work.capacity, alpha=ALPHA, beta=BETA, seed=1)
    return tk.ReplayBuffer(work.capacity, seed=1)


class Theirs:
    """The package of that commit with a workload."""

    def __init__(self, work: Work) -> None:
        envs = tk.make_envs(work.env, work.n_envs, seed=1)
        self._work, self._policy = work, make_policy(work, envs)
        self.collector = tk.Collector(self._policy, envs, make_buffer(work))

    def collect(self, n_steps: int) -> None:
        """Step, act and store without updates."""
        self.collector.collect(n_step=n_steps)
        if self._work.learner == "ppo":
            self.collector.buffer.clear()

    def loop(self, n_steps: int) -> None:
        """Train for one epoch."""
        work = self._work
        options: dict[str, Any] = {"max_epoch": 1, "step_per_epoch": n_steps, "batch_size": work.batch}
        options |= {"verbose": False, "show_progress": False}
        if work.learner == "ppo":
            options |= {"step_per_collect": work.n_envs * ROLLOUT_STEPS, "repeat_per_collect": EPOCHS}
            tk.OnpolicyTrainer(self._policy, self.collector, **options).run()
        else:
            options |= {"step_per_collect": work.steps_per_update, "update_per_step": 1 / work.steps_per_update}
            tk.OffpolicyTrainer(self._policy, self.collector, **options).run()

    def n_updates(self) -> int:
        """Count the optimizer steps so far."""
        n_updates: int = self._policy.n_updates
        return n_updates


if __name__ == "__main__":
    serve(shared_loops(Theirs), tk.__file__)
