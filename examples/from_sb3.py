"""A PPO script of Stable-Baselines3, ported: docs/howto/port_sb3.md shows what changed."""

import torch

import trainkit as tk

train_envs = tk.make_envs("CartPole-v1", 8)
test_envs = tk.make_envs("CartPole-v1", 8)
policy = tk.PPOPolicy.for_envs(
    train_envs,
    gamma=0.98,
    lam=0.8,
    entropy_weight=0.0,
    lr=[(0, 1e-3), (50_000, 0.0)],
    clip_ratio=[(0, 0.2), (50_000, 0.0)],
    hidden=[64, 64],
)
trainer = tk.OnpolicyTrainer(
    policy,
    tk.Collector(policy, train_envs, tk.RolloutBuffer()),
    step_per_collect=8 * 32,
    batch_size=256,
    repeat_per_collect=20,
    max_epoch=10,
    step_per_epoch=5_000,
    test_collector=tk.Collector(policy, test_envs),
    episode_per_test=20,
    save_best_fn=lambda policy: torch.save(policy.state_dict(), "best.pt"),
    logger="runs/ppo",
    seed=1,
)
trainer.run()
returns = tk.evaluate(policy, "CartPole-v1", n_episode=20, seed=2).returns
print(returns.mean, returns.std)
trainer.save("ppo_cartpole")
action = policy.predict([0.0, 0.1, 0.0, -0.1])
