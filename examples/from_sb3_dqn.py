"""A DQN script of Stable-Baselines3 with callbacks, ported; the remarks are its names."""

import trainkit as tk

N, TOTAL = 4, 8_192  # n_envs, total_timesteps


class LogEpsilon(tk.Callback):
    """Log epsilon by BaseCallback._on_step."""

    episodes = "training"

    def on_episode_step(self, trainer: tk.Trainer, episode: tk.collector.Episode) -> None:
        if episode.env_id == 0:  # once per vector step; num_timesteps is trainer.env_step
            trainer.log("eps", trainer.policy.exploration.epsilon(trainer.env_step), "last")  # custom/eps


envs = tk.make_envs("CartPole-v1", N)
policy = tk.DQNPolicy.for_envs(
    envs,
    hidden=(256, 256),  # net_arch
    lr=2.3e-3,  # learning_rate
    gamma=0.99,
    target=tk.Target(every=10, unit="env_steps"),  # target_update_interval
    exploration=tk.EpsilonGreedy.linear(1.0, 0.04, int(0.16 * TOTAL)),  # exploration_fraction, exploration_final_eps
)
trainer = tk.OffpolicyTrainer(
    policy,
    tk.Collector(policy, envs, tk.ReplayBuffer(100_000)),  # buffer_size
    batch_size=64,
    learning_starts=1_000,
    warmup="random",
    step_per_collect=N * 256,
    update_per_step=128 / (N * 256),  # train_freq=256, gradient_steps=128
    max_epoch=2,
    step_per_epoch=TOTAL // 2,
    evaluation=tk.Evaluation(  # EvalCallback(eval_freq=1_024)
        tk.Collector(policy, tk.make_envs("CartPole-v1", 1)), duration=5, every=N * 1_024, unit="env_steps"
    ),
    save_best_fn=lambda policy: policy.save("best"),  # best_model_save_path
    checkpoint=tk.Checkpoint("ckpt", every=N * 1_024, unit="env_steps", keep_last=10),  # CheckpointCallback(1_024)
    callbacks=[LogEpsilon()],
    logger="tb",  # tensorboard_log
    seed=0,
)
trainer.run()  # learn
trainer.save("dqn")  # save
action = tk.load_policy("dqn").predict([0.0, 0.1, 0.0, -0.1])  # load, predict
