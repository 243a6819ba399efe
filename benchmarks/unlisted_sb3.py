"""Stable-Baselines3's side of `unlisted`: DQN or PPO with its defaults.

Runs in an environment of its own, and so imports nothing of trainkit but the numbers of the work.
"""

import argparse
import json
import time

import gymnasium
import numpy as np
import stable_baselines3
import torch
from gymnasium.spaces import Box
from gymnasium.wrappers import DtypeObservation, FlattenObservation

from benchmarks import unlisted_work as work

ALGORITHMS = {"dqn": stable_baselines3.DQN, "ppo": stable_baselines3.PPO}


def make(task: str):
    """Make an environment with observations that `MlpPolicy` accepts: grids and tuples as one vector of floats."""
    env = work.make(task)
    is_vector = isinstance(env.observation_space, Box) and len(env.observation_space.shape) == 1
    if is_vector or isinstance(env.observation_space, gymnasium.spaces.Discrete):
        return env
    return DtypeObservation(FlattenObservation(env), np.float32)


def main() -> None:
    """Learn, and print what came of it."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--algorithm", choices=ALGORITHMS, required=True)
    parser.add_argument("--task", choices=work.TASKS, required=True)
    parser.add_argument("--seed", type=int, required=True)
    options = parser.parse_args()
    torch.set_num_threads(1)
    began = time.process_time()
    model = ALGORITHMS[options.algorithm]("MlpPolicy", make(options.task), seed=options.seed, device="cpu")
    model.learn(work.STEPS)

    def act(obs):
        action = model.predict(obs, deterministic=True)[0]
        return action if action.ndim else action.item()  # FrozenLake reads its table by plain integers

    returns = work.play(make(options.task), act, options.seed)
    versions = {"stable-baselines3": stable_baselines3.__version__, "gymnasium": gymnasium.__version__}
    print(json.dumps({"returns": returns, "seconds": time.process_time() - began, "versions": versions}))


if __name__ == "__main__":
    main()
