"""After examples/offline/atari_cql.py of Tianshou 1.2, with a game of 40 x 40 frames; 2 epochs of 5 updates.

Read at a 1.x version; its calls were mapped to the signatures of 1.2.0.
"""

from pathlib import Path

import trainkit as tk
from tests.outside.ported.catch import Catch


def main(folder: Path) -> tk.trainer.RunInfo:
    test_num, eps_test = 5, 0.001
    test_envs = tk.make_envs(Catch, test_num, stack=4)
    policy = tk.DQNPolicy.for_envs(
        test_envs,
        encoder="nature",
        value=tk.QuantileValue(200),
        penalty=tk.ConservativePenalty(10.0),
        lr=0.0001,
        gamma=0.99,
        n_step=1,
        target=tk.Target(500, unit="updates"),
        double=True,
        max_grad_norm=None,
    )
    expert = folder / "expert.npz"
    assert expert.exists(), "Please run atari_dqn.py first to get expert's data buffer."
    buffer = tk.ReplayBuffer.load(expert)
    test_collector = tk.Collector(policy, test_envs)
    return tk.OfflineTrainer(
        policy=policy,
        buffer=buffer,
        test_collector=test_collector,
        max_epoch=2,
        update_per_epoch=5,
        episode_per_test=test_num,
        batch_size=32,
        evaluation=tk.Evaluation(exploration=tk.EpsilonGreedy(eps_test), at_start=True),
        save_best_fn=lambda policy: policy.save(folder / "best"),
        logger=folder / "cql",
        seed=0,
    ).run()
