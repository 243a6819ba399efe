"""After rllib/examples/_old_api_stack/replay_buffer_api.py of ray 2.60.0; 2 runners for 4, 400 steps for 50,000."""

import functools
from pathlib import Path

import trainkit as tk


def main(folder: Path) -> tk.trainer.RunInfo:
    config = tk.presets.dqn.config(
        "CartPole-v1",
        zoo=False,
        n_envs=2,
        env_options={"backend": tk.envs.Actors(2)},
        recurrent=functools.partial(tk.nets.LSTM, n_features=64),
        sequences=tk.Sequences(20, burn_in=20, stored_state=False),
        capacity=50_000,
        buffer={"type": "PrioritizedReplayBuffer", "alpha": 0.5},
        max_epoch=1,
        max_env_step=100_000,
        # RLlib's defaults, in small
        step_per_epoch=400,
        learning_starts=300,
        step_per_collect=4,
        update_per_step=0.1,
        batch_size=16,
        epsilon=[(0, 1.0), (10_000, 0.05)],
        target_every=500,
        lr=5e-4,
        episode_per_test=2,
        n_test_envs=2,
        seed=0,
        logger=folder / "dqn",
    )
    trainer = config.build()
    return trainer.run()
