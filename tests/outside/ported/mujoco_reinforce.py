"""After examples/mujoco/mujoco_reinforce.py of Tianshou 1.2, on Pendulum-v1; 2 epochs of 2,048 steps.

Read at a 1.x version; its calls were mapped to the signatures of 1.2.0.
"""

from pathlib import Path

import trainkit as tk


def main(folder: Path) -> tk.trainer.RunInfo:
    task, training_num, test_num = "Pendulum-v1", 10, 5
    epoch, step_per_epoch, step_per_collect = 2, 2_048, 2_048
    train_envs = tk.make_envs(task, training_num)
    test_envs = tk.make_envs(task, test_num)
    policy = tk.ReinforcePolicy.for_envs(
        train_envs,
        hidden=[64, 64],
        activation="tanh",
        log_std=-0.5,
        normalize_obs=True,
        reward="return_scale",
        lr=[(0, 1e-3), (step_per_collect, 1e-3), (epoch * step_per_epoch + step_per_collect, 0.0)],
        gamma=0.99,
        action_scaling=True,
        action_bound_method="tanh",
        max_grad_norm=None,
    )
    train_collector = tk.Collector(policy, train_envs, tk.RolloutBuffer())
    test_collector = tk.Collector(policy, test_envs)
    return tk.OnpolicyTrainer(
        policy=policy,
        train_collector=train_collector,
        test_collector=test_collector,
        max_epoch=epoch,
        step_per_epoch=step_per_epoch,
        repeat_per_collect=1,
        episode_per_test=test_num,
        batch_size=None,
        step_per_collect=step_per_collect,
        save_best_fn=lambda policy: policy.save(folder / "best"),
        logger=folder / "reinforce",
        evaluation=tk.Evaluation(explore=True, at_start=True),
        test_in_train=False,
        seed=0,
    ).run()
