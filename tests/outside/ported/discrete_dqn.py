"""After examples/discrete/discrete_dqn.py of Tianshou 1.2; 2 epochs of 6,000 steps for 10 of 10,000.

Read in the quick start of the README of 1.2.0, which is the same script.
"""

from pathlib import Path

import gymnasium as gym

import trainkit as tk


def main(folder: Path) -> tk.trainer.RunInfo:
    task = "CartPole-v1"
    lr, epoch, batch_size = 1e-3, 2, 64
    train_num, test_num = 10, 20
    gamma, n_step, target_freq = 0.9, 3, 320
    buffer_size = 20_000
    eps_train, eps_test = 0.1, 0.05
    step_per_epoch, step_per_collect = 6_000, 10

    train_envs = tk.make_envs(task, train_num)
    test_envs = tk.make_envs(task, test_num)
    env = gym.make(task)
    policy = tk.DQNPolicy.for_envs(
        train_envs,
        hidden=[128, 128, 128],
        lr=lr,
        gamma=gamma,
        n_step=n_step,
        target=tk.Target(target_freq, unit="updates"),
        double=True,
        value=tk.ExpectedValue("mse"),
        max_grad_norm=None,
        exploration=tk.EpsilonGreedy(eps_train),
    )
    train_collector = tk.Collector(policy, train_envs, tk.ReplayBuffer(buffer_size))
    test_collector = tk.Collector(policy, test_envs)
    assert env.spec is not None
    threshold = env.spec.reward_threshold

    result = tk.OffpolicyTrainer(
        policy=policy,
        train_collector=train_collector,
        test_collector=test_collector,
        max_epoch=epoch,
        step_per_epoch=step_per_epoch,
        step_per_collect=step_per_collect,
        episode_per_test=test_num,
        batch_size=batch_size,
        update_per_step=1 / step_per_collect,
        evaluation=tk.Evaluation(exploration=tk.EpsilonGreedy(eps_test), at_start=True),
        stop_fn=lambda mean_rewards: threshold is not None and mean_rewards >= threshold,
        logger=folder / "dqn",
        seed=0,
    ).run()

    policy.save(folder / "policy")
    policy = tk.load_policy(folder / "policy")
    tk.Collector(policy, tk.make_envs(task, 1)).collect(n_episode=1)  # watch: render=1 / 35, render_mode="human"
    return result
