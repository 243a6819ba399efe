"""Our side of PPO's speed."""

import argparse
import json
import time
from typing import get_args

import torch

import trainkit as tk
from benchmarks import ppo_work as work
from trainkit.engine import EngineName


def main() -> None:
    """Do the work and print its rates."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--lr", type=float, required=True)
    parser.add_argument("--seed", type=int, required=True)
    parser.add_argument("--engine", choices=get_args(EngineName), default="auto")
    options = parser.parse_args()
    torch.set_num_threads(1)
    envs = tk.make_envs(work.TASK, work.N_ENVS, seed=options.seed)
    policy = tk.PPOPolicy.for_envs(
        envs,
        hidden=work.HIDDEN,
        gamma=work.GAMMA,
        lam=work.LAM,
        clip_ratio=work.CLIP_RATIO,
        value_weight=work.VALUE_WEIGHT,
        entropy_weight=work.ENTROPY_WEIGHT,
        lr=options.lr,
        adam_eps=work.ADAM_EPS,
        max_grad_norm=work.MAX_GRAD_NORM,
        device="cpu",
        seed=options.seed,
        engine=options.engine,
    )
    collector = tk.Collector(policy, envs, tk.RolloutBuffer())

    def trainer(n_rollouts: int) -> tk.OnpolicyTrainer:
        return tk.OnpolicyTrainer(
            policy,
            collector,
            max_epoch=1,
            step_per_epoch=n_rollouts * work.ROLLOUT,
            step_per_collect=work.ROLLOUT,
            repeat_per_collect=work.EPOCHS,
            batch_size=work.BATCH,
            verbose=False,
            show_progress=False,
        )

    trainer(work.WARMUP_ROLLOUTS).run()
    before, began_step, episodes = policy.n_updates, collector.env_step, collector.n_episode
    measured = trainer(work.ROLLOUTS)
    began = time.process_time()
    shares = next(measured).stats.time
    seconds = time.process_time() - began
    rows, minibatches = collector.env_step - began_step, policy.n_updates - before
    done = {
        "rows": rows,
        "minibatches": minibatches,
        "parameters": sum(parameter.numel() for parameter in policy.parameters()),
        "threads": torch.get_num_threads(),
    }
    rates = {
        "collect steps/s": rows / (shares.collect * seconds),
        "minibatches/s": minibatches / (shares.update * seconds),
        "loop steps/s": rows / seconds,
    }
    shown = {"rates": rates, "done": done, "episodes": collector.n_episode - episodes, "version": tk.__version__}
    print(json.dumps(shown))


if __name__ == "__main__":
    main()
