"""After examples/mujoco/mujoco_ppo.py of Tianshou 1.2, on Pendulum-v1; 2 epochs of 2,048 steps for 100 of 30,000.

Read at a 1.x version; its calls were mapped to the signatures of 1.2.0.
"""

from pathlib import Path

import trainkit as tk


def main(folder: Path) -> tk.trainer.RunInfo:
    task, training_num, test_num = "Pendulum-v1", 8, 5
    epoch, step_per_epoch, step_per_collect = 2, 2_048, 2_048
    train_envs = tk.make_envs(task, training_num)
    test_envs = tk.make_envs(task, test_num)
    policy = tk.PPOPolicy.for_envs(
        train_envs,
        hidden=[64, 64],
        activation="tanh",
        shared=False,
        log_std=-0.5,
        normalize_obs=True,
        reward="return_scale",
        lr=[(0, 3e-4), (step_per_collect, 3e-4), (epoch * step_per_epoch + step_per_collect, 0.0)],
        gamma=0.99,
        lam=0.95,
        max_grad_norm=0.5,
        value_weight=0.25,
        entropy_weight=0.0,
        action_scaling=True,
        action_bound_method="clip",
        clip_ratio=0.2,
        clip_value=None,
        normalize_advantage=False,
    )
    train_collector = tk.Collector(policy, train_envs, tk.RolloutBuffer())
    test_collector = tk.Collector(policy, test_envs)
    return tk.OnpolicyTrainer(
        policy=policy,
        train_collector=train_collector,
        test_collector=test_collector,
        max_epoch=epoch,
        step_per_epoch=step_per_epoch,
        repeat_per_collect=10,
        episode_per_test=test_num,
        batch_size=64,
        step_per_collect=step_per_collect,
        save_best_fn=lambda policy: policy.save(folder / "best"),
        logger=folder / "ppo",
        evaluation=tk.Evaluation(explore=True, at_start=True),
        test_in_train=False,
        seed=0,
    ).run()
