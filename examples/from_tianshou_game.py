"""A learner in Tianshou's tic-tac-toe, ported: docs/howto/port_multi_agent.md shows what changed."""

import trainkit as tk

train_envs = tk.make_envs("pettingzoo/classic/tictactoe_v3", 10)
test_envs = tk.make_envs("pettingzoo/classic/tictactoe_v3", 10)
learner = tk.DQNPolicy.for_envs(
    train_envs,
    hidden=(128, 128),
    lr=1e-4,
    gamma=0.9,
    n_step=3,
    target=tk.Target(every=320, unit="updates"),
    exploration=tk.EpsilonGreedy(0.1),
)
policy = tk.MultiAgentPolicy({"player_1": tk.RandomPolicy(train_envs.action_space), "player_2": learner})
train = tk.Collector(policy, train_envs, tk.MultiAgentBuffer({"player_2": tk.ReplayBuffer(20_000)}))
test = tk.Collector(policy, test_envs)
tk.OffpolicyTrainer(
    policy,
    train,
    test,
    max_epoch=2,
    step_per_epoch=1_000,
    step_per_collect=50,
    episode_per_test=10,
    batch_size=64,
    update_per_step=0.1,
    reward_metric=lambda returns: returns[:, 1],
).run()
