"""After examples/mujoco/mujoco_sac.py of Tianshou 1.2, on Pendulum-v1; 2 epochs of 200 steps for 200 of 5,000.

Read at a 1.x version; its calls were mapped to the signatures of 1.2.0.
"""

from pathlib import Path

import torch

import trainkit as tk


def main(folder: Path) -> tk.trainer.RunInfo:
    task, test_num = "Pendulum-v1", 5
    train_envs = tk.make_envs(task, 1)
    test_envs = tk.make_envs(task, test_num)
    policy = tk.SACPolicy.for_envs(
        train_envs,
        hidden=[64, 64],
        lr=1e-3,
        critic_optimizer=tk.Adam(1e-3),
        tau=0.005,
        gamma=0.99,
        temperature="auto",  # --auto-alpha
        temperature_optimizer=tk.Adam(3e-4),
        initial_temperature=1.0,
        n_step=1,
        max_grad_norm=None,
    )
    train_collector = tk.Collector(policy, train_envs, tk.ReplayBuffer(1_000_000))
    test_collector = tk.Collector(policy, test_envs)

    def save_best_fn(policy: tk.Policy) -> None:
        torch.save(policy.state_dict(), folder / "policy.pth")

    return tk.OffpolicyTrainer(
        policy=policy,
        train_collector=train_collector,
        test_collector=test_collector,
        max_epoch=2,
        step_per_epoch=200,
        step_per_collect=1,
        episode_per_test=test_num,
        batch_size=64,
        save_best_fn=save_best_fn,
        logger=folder / "sac",
        update_per_step=1,
        learning_starts=250,
        warmup="random",
        evaluation=tk.Evaluation(at_start=True),
        test_in_train=False,
        seed=0,
    ).run()
