"""Print our rates as multiples of a calibration loop, so that a slow-down shows on any machine.

    python -m benchmarks.quick [--runs 3]

The calibration is a fixed loop of small numpy and torch calls; a rate divided by its rate hardly depends on the
machine.
"""

import argparse
import statistics
import time

import numpy as np
import torch

import trainkit as tk
from benchmarks import work


def calibration() -> float:
    """Return loops per second of small calls like those of a vector step and an update."""
    rng = np.random.default_rng(0)
    column, weights = np.zeros((1_000, 4), np.float32), torch.zeros(128, 128)
    rows = torch.zeros(work.BATCH, 128)
    n_loops = 3_000
    began = time.perf_counter()
    for _ in range(n_loops):
        index = rng.integers(1_000, size=work.BATCH)
        column[index[:8]] = column[index].sum(axis=0)
        rows = torch.relu(rows @ weights)
    return n_loops / (time.perf_counter() - began)


def rates(prioritized: bool) -> dict[str, float]:
    """Return steps and updates per second of collect, update and the whole loop."""
    envs = tk.make_envs("CartPole-v1", work.N_ENVS, seed=1)
    policy = tk.DQNPolicy.for_envs(
        envs,
        hidden=work.HIDDEN,
        n_step=3,
        double=True,
        exploration=tk.EpsilonGreedy(work.EPSILON),
        device="cpu",
        seed=1,
    )
    kind = tk.PrioritizedReplayBuffer if prioritized else tk.ReplayBuffer
    collector = tk.Collector(policy, envs, kind(work.CAPACITY, seed=1))
    collector.collect(n_step=work.WARMUP_STEPS)
    stats = collector.collect(n_step=work.COLLECT_STEPS)
    began = time.perf_counter()
    for _ in range(work.UPDATES):
        batch = collector.buffer.sample(work.BATCH, horizon=policy.horizon)
        collector.buffer.update_priorities(batch.slots, policy.update(batch, step=0).read_priority())
    updates = work.UPDATES / (time.perf_counter() - began)
    trainer = tk.OffpolicyTrainer(
        policy,
        collector,
        max_epoch=1,
        step_per_epoch=work.LOOP_STEPS,
        step_per_collect=work.N_ENVS,
        update_per_step=1 / work.N_ENVS,
        batch_size=work.BATCH,
        verbose=False,
        show_progress=False,
    )
    loop = next(trainer).stats.time.steps_per_second
    return {"collect steps/s": stats.n_step / stats.seconds, "updates/s": updates, "loop steps/s": loop}


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=3)
    n_runs = parser.parse_args().runs
    torch.set_num_threads(1)
    base = statistics.median(calibration() for _ in range(n_runs))
    print(f"calibration: {base:,.0f} loops/s\n")
    print(f"{'':12s}{'work':18s}{'rate':>10s}{'per calibration loop':>24s}")
    for prioritized in (False, True):
        runs = [rates(prioritized) for _ in range(n_runs)]
        for name in runs[0]:
            rate = statistics.median(run[name] for run in runs)
            print(f"{'prioritised' if prioritized else 'uniform':12s}{name:18s}{rate:10,.0f}{rate / base:24.3f}")


if __name__ == "__main__":
    main()
