"""Our side of learning at the same settings: public parts, put together by hand."""

import argparse
import functools
import json
import time
from typing import Any

import gymnasium
import numpy as np
import torch

import trainkit as tk
from benchmarks import same_work as work


class OneCoin(tk.EpsilonGreedy):
    """Toss one coin per vector step, as Stable-Baselines3 does: all environments act at random together, or none."""

    def choose(self, q: Any, legal: Any, *, step: int, rng: np.random.Generator, **others: Any) -> Any:
        if rng.random() < float(self.epsilon(step)):
            return rng.integers(q.shape[1], size=len(q))
        return q.argmax(axis=1)


def make_trainer(
    pairing: work.Pairing, asked: work.Settings, task: str, seed: int
) -> tuple[tk.OffpolicyTrainer, tk.DQNPolicy]:
    """Compose the trainer, whose epochs end where the judge is due."""
    is_in_updates = pairing.target_unit == "updates"
    coins = OneCoin if pairing.has_one_coin else tk.EpsilonGreedy
    envs = tk.make_envs(functools.partial(work.make, task), work.N_ENVS)
    policy = tk.DQNPolicy.for_envs(
        envs,
        hidden=work.HIDDEN,
        value=tk.ExpectedValue("huber") if asked.quantiles is None else tk.QuantileValue(asked.quantiles),
        n_step=1,
        gamma=asked.gamma,
        double=False,
        optimizer=tk.Adam(asked.lr, eps=work.ADAM_EPS),
        max_grad_norm=pairing.max_grad_norm,
        exploration=coins.linear(*work.EPSILON, asked.epsilon_steps),
        target=tk.Target(asked.target_every_updates, "updates") if is_in_updates else tk.Target(asked.target_every),
        device="cpu",
    )
    trainer = tk.OffpolicyTrainer(
        policy,
        tk.Collector(policy, envs, tk.ReplayBuffer(asked.capacity)),
        max_epoch=asked.steps // asked.every,
        step_per_epoch=asked.every,
        step_per_collect=work.N_ENVS,
        update_per_step=asked.updates_per_round / work.N_ENVS,
        batch_size=asked.batch,
        learning_starts=asked.learning_starts,
        warmup="random",
        verbose=False,
        show_progress=False,
        seed=seed,
    )
    return trainer, policy


def main() -> None:
    """Learn, and print what came of it."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--pairing", choices=work.PAIRINGS, required=True)
    parser.add_argument("--task", choices=work.TASKS, required=True)
    parser.add_argument("--seed", type=int, required=True)
    options = parser.parse_args()
    torch.set_num_threads(1)
    judge = work.Judge(options.task, options.seed)
    began = time.perf_counter()
    trainer, policy = make_trainer(
        work.PAIRINGS[options.pairing], work.settings(options.pairing, options.task), options.task, options.seed
    )
    for _ in trainer:
        judge.play(policy.predict)
    seconds = time.perf_counter() - began - judge.seconds
    done = {
        "env_steps": trainer.env_step,
        "updates": trainer.gradient_step,
        "parameters": sum(parameter.numel() for parameter in policy.network.parameters()),
        "threads": torch.get_num_threads(),
    }
    versions = {"trainkit": tk.__version__, "torch": torch.__version__, "gymnasium": gymnasium.__version__}
    print(json.dumps({"returns": judge.returns, "seconds": seconds, "done": done, "versions": versions}))


if __name__ == "__main__":
    main()
