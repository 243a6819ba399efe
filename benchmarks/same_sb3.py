"""Stable-Baselines3's side of learning at the same settings: its DQN, and sb3-contrib's QRDQN.

Runs in an environment of its own, and so imports nothing of trainkit but the numbers of the work.
"""

import argparse
import json
import time

import gymnasium as gym
import sb3_contrib
import stable_baselines3
import torch
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.vec_env import DummyVecEnv

from benchmarks import same_work as work


class Evaluations(BaseCallback):
    """Call the judge between a round of updates and the next step."""

    def __init__(self, judge, every) -> None:
        super().__init__()
        self.judge, self.every = judge, every

    def _on_step(self) -> bool:
        return True

    def _on_rollout_start(self) -> None:
        if self.num_timesteps and self.num_timesteps % self.every == 0:
            self.play()

    def _on_training_end(self) -> None:
        self.play()

    def play(self) -> None:
        self.judge.play(lambda obs: self.model.predict(obs, deterministic=True)[0])


def main() -> None:
    """Learn, and print what came of it."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--pairing", choices=["dqn-sb3", "qrdqn-sb3"], required=True)
    parser.add_argument("--task", choices=work.TASKS, required=True)
    parser.add_argument("--seed", type=int, required=True)
    options = parser.parse_args()
    pairing, asked = work.PAIRINGS[options.pairing], work.settings(options.pairing, options.task)
    torch.set_num_threads(1)
    judge = work.Judge(options.task, options.seed)
    began = time.perf_counter()
    learner = stable_baselines3.DQN if asked.quantiles is None else sb3_contrib.QRDQN
    own = {} if asked.quantiles is None else {"n_quantiles": asked.quantiles}
    adam = {"optimizer_class": torch.optim.Adam, "optimizer_kwargs": {"eps": work.ADAM_EPS}}
    model = learner(
        "MlpPolicy",
        DummyVecEnv([lambda: work.make(options.task) for _ in range(work.N_ENVS)]),
        learning_rate=asked.lr,
        buffer_size=asked.capacity,
        learning_starts=asked.learning_starts,
        batch_size=asked.batch,
        tau=1.0,
        gamma=asked.gamma,
        train_freq=1,  # vector steps
        gradient_steps=asked.updates_per_round,
        target_update_interval=asked.target_every,
        exploration_fraction=asked.epsilon_steps / asked.steps,
        exploration_initial_eps=work.EPSILON[0],
        exploration_final_eps=work.EPSILON[1],
        max_grad_norm=pairing.max_grad_norm,
        policy_kwargs={"net_arch": list(work.HIDDEN), "activation_fn": torch.nn.ReLU, **adam, **own},
        seed=options.seed,
        device="cpu",
    )
    model.learn(asked.steps, callback=Evaluations(judge, asked.every))
    seconds = time.perf_counter() - began - judge.seconds
    online = model.policy.q_net if asked.quantiles is None else model.policy.quantile_net
    done = {
        "env_steps": model.num_timesteps,
        "updates": model._n_updates,
        "parameters": sum(parameter.numel() for parameter in online.parameters()),
        "threads": torch.get_num_threads(),
    }
    peer = stable_baselines3 if asked.quantiles is None else sb3_contrib
    versions = {pairing.peer: peer.__version__, "torch": torch.__version__, "gymnasium": gym.__version__}
    print(json.dumps({"returns": judge.returns, "seconds": seconds, "done": done, "versions": versions}))


if __name__ == "__main__":
    main()
