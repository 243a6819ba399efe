"""After examples/atari/atari_rainbow.py of Tianshou 1.2, with a game of 40 x 40 frames; 1 epoch of 300 steps.

Read at a 2.x version; its calls were mapped to the signatures of 1.2.0.
"""

from pathlib import Path

import trainkit as tk
from tests.outside.ported.catch import Catch


def main(folder: Path) -> tk.trainer.RunInfo:
    eps_train, eps_train_final, eps_test = 1.0, 0.05, 0.005
    training_num, test_num, batch_size, frames_stack = 4, 5, 32, 4

    train_envs = tk.make_envs(Catch, training_num, stack=frames_stack)
    test_envs = tk.make_envs(Catch, test_num, stack=frames_stack)
    policy = tk.DQNPolicy.for_envs(
        train_envs,
        encoder="nature",
        dueling=True,
        noisy=0.1,
        double=True,
        value=tk.CategoricalValue(51, v_min=-10.0, v_max=10.0),
        lr=0.0000625,
        gamma=0.99,
        n_step=3,
        target=tk.Target(500, unit="updates"),
        max_grad_norm=None,
        exploration=tk.EpsilonGreedy([(0, eps_train), (1_000_000, eps_train_final)]),
    )
    buffer = tk.PrioritizedReplayBuffer(100_000, alpha=0.5, beta=[(0, 0.4), (5_000_000, 1.0)])
    train_collector = tk.Collector(policy, train_envs, buffer)
    test_collector = tk.Collector(policy, test_envs)

    return tk.OffpolicyTrainer(
        policy=policy,
        train_collector=train_collector,
        test_collector=test_collector,
        max_epoch=1,
        step_per_epoch=300,
        step_per_collect=10,
        episode_per_test=test_num,
        batch_size=batch_size,
        update_per_step=0.1,
        learning_starts=batch_size * training_num,
        evaluation=tk.Evaluation(exploration=tk.EpsilonGreedy(eps_test), at_start=True),
        save_best_fn=lambda policy: policy.save(folder / "best"),
        logger=folder / "rainbow",
        test_in_train=False,
        seed=0,
    ).run()
