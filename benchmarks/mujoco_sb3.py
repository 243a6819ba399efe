"""Stable-Baselines3's side of learning in MuJoCo: its PPO under its VecNormalize, and its SAC.

Runs in an environment of its own, and so imports nothing of trainkit but the numbers of the work.
"""

import argparse
import json
import time

import gymnasium as gym
import mujoco
import stable_baselines3
import torch
from stable_baselines3 import PPO, SAC
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.vec_env import DummyVecEnv, VecNormalize

from benchmarks import mujoco_work as work


class Evaluations(BaseCallback):
    """Call the judge between learning and the next step."""

    def __init__(self, judge, steps, normalise) -> None:
        super().__init__()
        self.judge, self.steps, self.normalise = judge, steps, normalise

    def _on_step(self) -> bool:
        return True

    def _on_rollout_start(self) -> None:
        if self.num_timesteps in self.steps:
            self.play()

    def _on_training_end(self) -> None:
        self.play()

    def play(self) -> None:
        self.judge.play(lambda obs: self.model.predict(self.normalise(obs), deterministic=True)[0])


def make_ppo(envs, seed: int) -> PPO:
    """Make PPO as the table has it."""
    ppo = work.PPO
    return PPO(
        "MlpPolicy",
        envs,
        learning_rate=ppo["Adam: lr"],
        n_steps=ppo["steps per rollout"],
        batch_size=ppo["batch"],
        n_epochs=ppo["epochs over each rollout"],
        gamma=ppo["gamma"],
        gae_lambda=ppo["lambda"],
        clip_range=ppo["ratio clipped at"],
        vf_coef=ppo["value weight"],
        ent_coef=ppo["entropy weight"],
        max_grad_norm=ppo["gradients' norm clipped at"],
        policy_kwargs={
            "net_arch": ppo["hidden layers, tanh, for actor and critic each"],
            "activation_fn": torch.nn.Tanh,
            "log_std_init": ppo["first log of the deviation, a parameter per action"],
            "optimizer_kwargs": {"eps": ppo["Adam: eps"]},
        },
        seed=seed,
        device="cpu",
    )


def make_sac(envs, seed: int) -> SAC:
    """Make SAC as the table has it."""
    sac = work.SAC
    return SAC(
        "MlpPolicy",
        envs,
        learning_rate=sac["Adam: lr, of actor, critics and temperature"],
        buffer_size=sac["replay capacity, uniform (the peer's default: 1,000,000)"],
        learning_starts=sac["random steps before learning (the peer's default: 100)"],
        batch_size=sac["batch"],
        tau=sac["tau, every update"],
        gamma=sac["gamma, 1-step"],
        train_freq=1,
        gradient_steps=sac["updates per environment step"],
        ent_coef="auto_1.0",
        target_entropy=-float(envs.action_space.shape[0]),
        policy_kwargs={
            "net_arch": sac["hidden layers, relu"],
            "activation_fn": torch.nn.ReLU,
            "optimizer_kwargs": {"eps": sac["Adam: eps"]},
        },
        seed=seed,
        device="cpu",
    )


def main() -> None:
    """Learn, and print what came of it."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--algorithm", choices=work.ALGORITHMS, required=True)
    parser.add_argument("--task", choices=work.SIZES, required=True)
    parser.add_argument("--seed", type=int, required=True)
    options = parser.parse_args()
    torch.set_num_threads(1)
    judge = work.Judge(options.task, options.seed)
    began = time.process_time()
    envs = DummyVecEnv([lambda: gym.make(options.task)])
    is_ppo = options.algorithm == "ppo"
    if is_ppo:
        envs = VecNormalize(envs, clip_obs=10.0, clip_reward=10.0, gamma=work.PPO["gamma"])
    model = (make_ppo if is_ppo else make_sac)(envs, options.seed)
    normalise = envs.normalize_obs if is_ppo else lambda obs: obs
    steps = set(work.judged_at(options.algorithm))
    model.learn(work.STEPS[options.algorithm], callback=Evaluations(judge, steps, normalise))
    seconds = time.process_time() - began - judge.seconds
    policy = model.policy
    moved = list(policy.parameters()) if is_ppo else [*policy.actor.parameters(), *policy.critic.parameters()]
    optimizer = policy.optimizer if is_ppo else policy.critic.optimizer
    done = {
        "env_steps": model.num_timesteps,
        "updates": int(next(iter(optimizer.state.values()))["step"]),
        "parameters": sum(parameter.numel() for parameter in moved),
        "threads": torch.get_num_threads(),
    }
    versions = {
        "stable-baselines3": stable_baselines3.__version__,
        "torch": torch.__version__,
        "gymnasium": gym.__version__,
        "mujoco": mujoco.__version__,
    }
    print(json.dumps({"returns": judge.returns, "seconds": seconds, "done": done, "versions": versions}))


if __name__ == "__main__":
    main()
