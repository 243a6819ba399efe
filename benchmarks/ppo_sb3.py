"""Stable-Baselines3's side of PPO's speed, on its DummyVecEnv, a bare loop over environments.

Runs in an environment of its own, and so imports nothing of trainkit but the numbers of the work.
"""

import argparse
import json
import time

import gymnasium as gym
import stable_baselines3
import torch
from stable_baselines3 import PPO
from stable_baselines3.common.vec_env import DummyVecEnv

from benchmarks import ppo_work as work


class Counted(DummyVecEnv):
    """Count the episodes that ended."""

    n_episode = 0

    def step_wait(self):
        result = super().step_wait()
        self.n_episode += int(result[2].sum())
        return result


def main() -> None:
    """Do the work and print its rates."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--lr", type=float, required=True)
    parser.add_argument("--seed", type=int, required=True)
    options = parser.parse_args()
    torch.set_num_threads(1)
    envs = Counted([lambda: gym.make(work.TASK) for _ in range(work.N_ENVS)])
    model = PPO(
        "MlpPolicy",
        envs,
        learning_rate=options.lr,
        n_steps=work.N_STEPS,
        batch_size=work.BATCH,
        n_epochs=work.EPOCHS,
        gamma=work.GAMMA,
        gae_lambda=work.LAM,
        clip_range=work.CLIP_RATIO,
        vf_coef=work.VALUE_WEIGHT,
        ent_coef=work.ENTROPY_WEIGHT,
        max_grad_norm=work.MAX_GRAD_NORM,
        policy_kwargs={
            "net_arch": list(work.HIDDEN),
            "activation_fn": torch.nn.Tanh,
            "optimizer_class": torch.optim.Adam,
            "optimizer_kwargs": {"eps": work.ADAM_EPS},
        },
        seed=options.seed,
        device="cpu",
    )
    learning = 0.0  # seconds
    train = model.train

    def timed() -> None:
        nonlocal learning
        began = time.process_time()
        train()
        learning += time.process_time() - began

    model.train = timed
    model.learn(work.WARMUP_ROLLOUTS * work.ROLLOUT, log_interval=None)
    learning, before, began_step, envs.n_episode = 0.0, n_taken(model), model.num_timesteps, 0
    began = time.process_time()
    model.learn(work.ROLLOUTS * work.ROLLOUT, log_interval=None, reset_num_timesteps=False)
    seconds = time.process_time() - began
    rows, minibatches = model.num_timesteps - began_step, n_taken(model) - before
    done = {
        "rows": rows,
        "minibatches": minibatches,
        "parameters": sum(parameter.numel() for parameter in model.policy.parameters()),
        "threads": torch.get_num_threads(),
    }
    rates = {
        "collect steps/s": rows / (seconds - learning),
        "minibatches/s": minibatches / learning,
        "loop steps/s": rows / seconds,
    }
    shown = {"rates": rates, "done": done, "episodes": envs.n_episode, "version": stable_baselines3.__version__}
    print(json.dumps(shown))


def n_taken(model: PPO) -> int:
    """Return how many steps Adam has taken."""
    return int(next(iter(model.policy.optimizer.state.values()))["step"])


if __name__ == "__main__":
    main()
