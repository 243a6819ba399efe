"""Our side: collect, update and the whole loop."""

from pathlib import Path
from typing import Any, get_args

import gymnasium as gym
from gymnasium.vector import AutoresetMode

import trainkit as tk
from benchmarks import side
from benchmarks.work import ATOMS, GAMMA, LR, RETURNS, Work
from trainkit.engine import EngineName
from trainkit.presets.base import ATARI_ENVS

QUIET: dict[str, Any] = {"verbose": False, "show_progress": False}


def make_envs(work: Work) -> tk.Envs:
    """Make the environments: an id's own vector environment, or gymnasium's loop over single ones."""
    if work.sees_images:
        return tk.make_envs(work.env, work.n_envs, **ATARI_ENVS, seed=1)
    sync = {"vectorization_mode": "sync", "vector_kwargs": {"autoreset_mode": AutoresetMode.DISABLED}}
    return tk.make_envs(gym.make_vec(work.env, work.n_envs, **({} if work.has_own_vector_env else sync)), seed=1)


def make_policy(work: Work, envs: tk.Envs, **options: Any) -> tk.DQNPolicy | tk.SACPolicy:
    """Make the learner."""
    options |= {"gamma": GAMMA, "n_step": work.n_step, "lr": LR, "device": "cpu", "seed": 1}
    if work.learner == "sac":
        return tk.SACPolicy.for_envs(envs, hidden=work.hidden, **options)
    if work.learner == "rainbow":
        options |= {"value": tk.CategoricalValue(ATOMS, *RETURNS), "dueling": True, "noisy": True}
    else:
        options["value"] = tk.ExpectedValue(work.loss)
    return tk.DQNPolicy.for_envs(
        envs,
        **({"head": work.hidden} if work.sees_images else {"hidden": work.hidden}),
        double=work.double,
        max_grad_norm=work.clip,
        exploration=tk.EpsilonGreedy(work.epsilon),
        target=tk.Target(work.target_every, unit="updates"),
        **options,
    )


class Ours:
    """trainkit, by its public parts."""

    version = tk.__version__

    def __init__(self, work: Work, **options: Any) -> None:
        if not Path(tk.__file__).is_relative_to(Path(__file__).parents[1]):
            raise SystemExit(f"{tk.__file__} is not of the tree that these benchmarks are of: set PYTHONPATH=src")
        self._work = work
        self._envs = make_envs(work)
        self._policy = make_policy(work, self._envs, **options)
        kind = tk.PrioritizedReplayBuffer if work.prioritized else tk.ReplayBuffer
        self._collector = tk.Collector(self._policy, self._envs, kind(work.capacity, seed=1))

    def collect(self, n_steps: int) -> int:
        return self._evened(self._collector.collect(n_step=n_steps).n_step, n_steps)

    def update(self) -> None:
        buffer = self._collector.buffer
        batch = buffer.sample(self._work.batch, horizon=self._policy.horizon)
        result = self._policy.update(batch, step=self._collector.env_step)
        if self._work.prioritized:
            buffer.update_priorities(batch.slots, result.read_priority())

    def loop(self, n_steps: int) -> int:
        per_round = self._work.per_round
        rounds = {"refresh_priorities": "round", "updates_per_round": per_round} if per_round > 1 else {}
        before = self._collector.env_step
        tk.OffpolicyTrainer(
            self._policy,
            self._collector,
            max_epoch=1,
            step_per_epoch=n_steps,
            step_per_collect=self._work.n_envs * per_round,
            update_per_step=1 / self._work.n_envs,
            batch_size=self._work.batch,
            **rounds,
            **QUIET,
        ).run()
        return self._evened(self._collector.env_step - before, n_steps)

    def _evened(self, n_rows: int, n_steps: int) -> int:
        """Ask for what a block went over, which takes no step: so the next one begins even."""
        if n_rows > n_steps:
            self._collector.collect(n_step=n_rows - n_steps)
        return n_rows

    def n_updates(self) -> int:
        return self._policy.n_updates

    def told(self) -> dict[str, Any]:
        policy, horizon = self._policy, self._policy.horizon
        learnt = [policy.actor, policy.critics] if isinstance(policy, tk.SACPolicy) else [policy.network]
        return {
            "env": self._envs.name,
            "envs": self._envs.n,
            "gamma": horizon.gamma,
            "n_step": horizon.n_step,
            "parameters": sum(parameter.numel() for module in learnt for parameter in module.parameters()),
        }


def main() -> None:
    """Do the work and print its rates."""
    parser = side.options()
    parser.add_argument("--engine", choices=get_args(EngineName), default="auto")
    asked = parser.parse_args()
    side.play(lambda work: Ours(work, engine=asked.engine), asked)


if __name__ == "__main__":
    main()
