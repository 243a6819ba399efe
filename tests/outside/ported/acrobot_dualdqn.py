"""After examples/box2d/acrobot_dualdqn.py of Tianshou 1.2; 2 epochs of 3,000 steps for 10 of 100,000.

Read at a 1.x version; its calls were mapped to the signatures of 1.2.0.
"""

from pathlib import Path

import gymnasium as gym
import torch

import trainkit as tk


def main(folder: Path) -> tk.trainer.RunInfo:
    task = "Acrobot-v1"
    eps_train, eps_test = 0.5, 0.05
    training_num, test_num, batch_size = 10, 10, 64

    env = gym.make(task)
    train_envs = tk.make_envs(task, training_num)
    test_envs = tk.make_envs(task, test_num)
    policy = tk.DQNPolicy.for_envs(
        train_envs,
        hidden=[128],
        dueling=True,
        head=[128, 128],
        lr=1e-3,
        gamma=0.95,
        n_step=3,
        target=tk.Target(320, unit="updates"),
        double=True,
        value=tk.ExpectedValue("mse"),
        max_grad_norm=None,
        exploration=tk.EpsilonGreedy([(0, eps_train), (100_000, eps_train), (500_000, 0.5 * eps_train)]),
    )
    train_collector = tk.Collector(policy, train_envs, tk.ReplayBuffer(20_000))
    test_collector = tk.Collector(policy, test_envs)

    def save_best_fn(policy: tk.Policy) -> None:
        torch.save(policy.state_dict(), folder / "policy.pth")

    def stop_fn(mean_rewards: float) -> bool:
        assert env.spec is not None
        return env.spec.reward_threshold is not None and mean_rewards >= env.spec.reward_threshold

    return tk.OffpolicyTrainer(
        policy=policy,
        train_collector=train_collector,
        test_collector=test_collector,
        max_epoch=2,
        step_per_epoch=3_000,
        step_per_collect=100,
        episode_per_test=test_num,
        batch_size=batch_size,
        update_per_step=0.01,
        learning_starts=batch_size * training_num,
        evaluation=tk.Evaluation(exploration=tk.EpsilonGreedy(eps_test), at_start=True),
        stop_fn=stop_fn,
        save_best_fn=save_best_fn,
        logger=folder / "dqn",
        test_in_train=True,
        seed=0,
    ).run()
