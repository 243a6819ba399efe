"""Stable-Baselines3's side: collect, update and the whole loop, on its DummyVecEnv, a bare loop over environments.

Runs in an environment of its own, and so imports nothing of trainkit but the numbers of the work.
"""

import argparse
import importlib.util
import json
import time
from pathlib import Path

import gymnasium as gym
import stable_baselines3
import torch
from stable_baselines3 import DQN
from stable_baselines3.common.vec_env import DummyVecEnv

spec = importlib.util.spec_from_file_location("work", Path(__file__).with_name("work.py"))
work = importlib.util.module_from_spec(spec)
spec.loader.exec_module(work)


def main() -> None:
    """Do the work and print its rates."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("learner", choices=["huber"])
    parser.add_argument("--hidden", type=int, nargs="+", default=list(work.HIDDEN))
    options = parser.parse_args()
    torch.set_num_threads(1)
    envs = DummyVecEnv([lambda: gym.make("CartPole-v1") for _ in range(work.N_ENVS)])

    def made(learning_starts: int) -> DQN:
        return DQN(
            "MlpPolicy",
            envs,
            learning_rate=work.LR,
            buffer_size=work.CAPACITY,
            learning_starts=learning_starts,
            batch_size=work.BATCH,
            gamma=work.GAMMA,
            train_freq=1,
            gradient_steps=1,
            target_update_interval=work.TARGET_EVERY * work.N_ENVS,
            exploration_initial_eps=work.EPSILON,
            exploration_final_eps=work.EPSILON,
            max_grad_norm=work.LEARNERS[options.learner]["clip"],
            policy_kwargs={"net_arch": options.hidden},
            device="cpu",
            seed=1,
        )

    collecting = made(learning_starts=10**9)  # which draws actions from the space, without a network
    collecting.learn(work.WARMUP_STEPS, log_interval=None)
    began = time.process_time()
    collecting.learn(work.COLLECT_STEPS, log_interval=None, reset_num_timesteps=False)
    collect = work.COLLECT_STEPS / (time.process_time() - began)
    collected = collecting.num_timesteps - work.WARMUP_STEPS

    model = made(learning_starts=0)
    model.learn(work.WARMUP_STEPS, log_interval=None)
    before = model._n_updates
    began = time.process_time()
    for _ in range(work.UPDATES):
        model.train(gradient_steps=1, batch_size=work.BATCH)
    updates = work.UPDATES / (time.process_time() - began)
    n_updates = model._n_updates - before
    before = model._n_updates
    began = time.process_time()
    model.learn(work.LOOP_STEPS, log_interval=None, reset_num_timesteps=False)
    loop = work.LOOP_STEPS / (time.process_time() - began)
    done = {
        "collected": collected,
        "updates": n_updates,
        "loop_updates": model._n_updates - before,
        "parameters": sum(parameter.numel() for parameter in model.q_net.parameters()),
        "threads": torch.get_num_threads(),
    }
    rates = {"collect steps/s": collect, "updates/s": updates, "loop steps/s": loop}
    print(json.dumps({"rates": rates, "done": done, "version": stable_baselines3.__version__}))


if __name__ == "__main__":
    main()
