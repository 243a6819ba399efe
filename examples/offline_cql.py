"""Learn from rows that are there, without an environment: CQL and behavior cloning on a dataset made here.

    python examples/offline_cql.py

The dataset is 100,000 rows of CartPole: 70 % are of random play, 30 % of a DQN stopped half-way, at a return of 100 to
200. Behavior cloning does what most rows do; CQL finds out what is good in them.
"""

import numpy as np
import torch

import trainkit as tk

ENV = "CartPole-v1"


def judge(policy: tk.Policy, n_episode: int = 100) -> float:
    """Return the mean return of a policy that does not explore."""
    mean = tk.evaluate(policy, ENV, n_episode=n_episode, seed=99).returns.mean
    assert mean is not None  # the episodes were requested
    return mean


def half_way(seed: int) -> tk.Policy:
    """Train a DQN until it returns 100 to 200."""
    trainer = tk.presets.dqn(ENV, seed=seed, evaluation=None, max_epoch=200, step_per_epoch=250, verbose=False)
    with trainer:
        for result in trainer:
            if result.info.gradient_step and 100 <= judge(trainer.policy) <= 200:
                break
    return trainer.policy


def record(n_rows: int, seed: int) -> tk.ReplayBuffer:
    """Make the dataset and tell what its actors return."""
    buffer = tk.ReplayBuffer(n_rows)
    n_played = round(0.3 * n_rows)
    envs = tk.make_envs(ENV, 10, seed=seed)
    random, player = tk.RandomPolicy(envs.action_space, seed=seed), half_way(seed)
    for name, policy, n_step in (("random play", random, n_rows - n_played), ("a DQN half-way", player, n_played)):
        stats = tk.Collector(policy, envs, buffer).collect(n_step=n_step, explore=False)
        buffer.cut(np.arange(10))  # whoever comes next begins an episode of its own
        told = "none finished" if stats.returns.is_empty else f"{stats.returns.mean:.0f}"
        print(f"{stats.n_step:,} rows of {name}: {told}")
    envs.close()
    return buffer


def main(n_rows: int = 100_000, max_epoch: int = 5, update_per_epoch: int = 2_000, seed: int = 1) -> dict[str, float]:
    """Make the dataset, learn from it twice, and compare."""
    torch.set_num_threads(1)  # networks this small are fastest on one
    buffer = record(n_rows, seed)
    returns = {}
    for preset in (tk.presets.bc, tk.presets.cql):
        with preset(buffer, ENV, seed=seed, max_epoch=max_epoch, update_per_epoch=update_per_epoch) as trainer:
            trainer.run()
            returns[preset.name] = judge(trainer.policy)
    for name, mean in returns.items():
        print(f"{name}: {mean:.0f}")
    return returns


if __name__ == "__main__":
    main()
