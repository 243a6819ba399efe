"""After examples/box2d/lunarlander_dqn.py of Tianshou 1.2, on CartPole-v1 (without Box2D); 2 epochs of 800 steps.

Read at a 0.x version; its calls were mapped to the signatures of 1.2.0.
"""

from pathlib import Path

import gymnasium as gym
import torch

import trainkit as tk


def main(folder: Path) -> tk.trainer.RunInfo:
    task = "CartPole-v1"
    eps_train, eps_test = 0.73, 0.01
    training_num, test_num, batch_size = 16, 8, 128

    env = gym.make(task)
    train_envs = tk.make_envs(task, training_num)
    test_envs = tk.make_envs(task, test_num, backend="async")
    policy = tk.DQNPolicy.for_envs(
        train_envs,
        hidden=[128, 128],
        dueling=True,
        head=[128, 128],
        lr=0.013,
        gamma=0.99,
        n_step=4,
        target=tk.Target(500, unit="updates"),
        double=True,
        value=tk.ExpectedValue("mse"),
        max_grad_norm=None,
        exploration=tk.EpsilonGreedy(lambda env_step: max(eps_train * (1 - 5e-6) ** env_step, eps_test)),
    )
    train_collector = tk.Collector(policy, train_envs, tk.ReplayBuffer(100_000))
    test_collector = tk.Collector(policy, test_envs)

    def save_best_fn(policy: tk.Policy) -> None:
        torch.save(policy.state_dict(), folder / "policy.pth")

    def stop_fn(mean_rewards: float) -> bool:
        assert env.spec is not None
        return env.spec.reward_threshold is not None and mean_rewards >= env.spec.reward_threshold

    result = tk.OffpolicyTrainer(
        policy=policy,
        train_collector=train_collector,
        test_collector=test_collector,
        max_epoch=2,
        step_per_epoch=800,
        step_per_collect=16,
        episode_per_test=test_num,
        batch_size=batch_size,
        update_per_step=0.0625,
        learning_starts=batch_size * training_num // 10,
        evaluation=tk.Evaluation(exploration=tk.EpsilonGreedy(eps_test), at_start=True),
        stop_fn=stop_fn,
        save_best_fn=save_best_fn,
        logger=folder / "dqn",
        test_in_train=False,
        seed=0,
    ).run()
    policy.load_state_dict(torch.load(folder / "policy.pth", weights_only=True))
    test_collector.collect(n_episode=test_num)
    return result
