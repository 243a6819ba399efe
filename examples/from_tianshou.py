"""A DQN script of Tianshou 1.2, ported: docs/howto/port_tianshou.md shows what changed."""

import torch

import trainkit as tk

train_envs = tk.make_envs("CartPole-v1", 8)
test_envs = tk.make_envs("CartPole-v1", 8)
policy = tk.DQNPolicy.for_envs(
    train_envs,
    hidden=[128, 128],
    lr=1e-3,
    gamma=0.98,
    n_step=3,
    target=tk.Target(every=50, unit="updates"),
    double=True,
    value=tk.ExpectedValue("mse"),
    max_grad_norm=None,
    exploration=tk.EpsilonGreedy([(0, 1.0), (5_000, 0.05)]),
)
buffer = tk.PrioritizedReplayBuffer(20_000, alpha=0.6, beta=0.4)
train_collector = tk.Collector(policy, train_envs, buffer)
test_collector = tk.Collector(policy, test_envs)

trainer = tk.OffpolicyTrainer(
    policy=policy,
    train_collector=train_collector,
    test_collector=test_collector,
    max_epoch=10,
    step_per_epoch=2_000,
    step_per_collect=8,
    update_per_step=0.25,
    batch_size=64,
    episode_per_test=20,
    stop_fn=lambda score: score >= 475,
    save_best_fn=lambda policy: torch.save(policy.state_dict(), "best.pt"),
    logger="runs/dqn",
    seed=1,
)
result = trainer.run()
print(result.best_score, result.seconds)
