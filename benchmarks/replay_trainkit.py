"""Our side of replay's speed."""

import numpy as np
import torch

import trainkit as tk
from benchmarks import replay_work as work
from trainkit.policy.device import to_device


def main() -> None:
    """Do the work and print its times."""
    torch.set_num_threads(1)
    asked = work.options()
    rows = work.columns(asked.rows)
    rows["terminated"] = rows.pop("done")
    horizon = tk.Horizon(asked.n_step, work.GAMMA)
    buffer = tk.PrioritizedReplayBuffer.from_arrays(**rows, alpha=work.ALPHA, beta=work.BETA, seed=1)
    written, rounds = work.priorities(asked.batch), work.priorities(asked.batch * work.PER_ROUND)

    def play(i: int) -> None:
        batch = buffer.sample(asked.batch, horizon=horizon)
        buffer.update_priorities(batch.slots, written[i])

    def play_round(i: int) -> None:
        batches = buffer.sample_round(work.PER_ROUND, asked.batch, horizon=horizon)
        buffer.update_priorities(np.concatenate([batch.slots for batch in batches]), rounds[i])

    uniform = tk.ReplayBuffer.from_arrays(**rows, seed=1)

    def to_tensors(i: int) -> None:
        batch = uniform.sample(asked.batch, horizon=horizon)
        to_device((batch.obs, batch.action, batch.reward, batch.discount, batch.next_obs), torch.device("cpu"))

    us = {
        "prioritised": work.microseconds(play),
        "prioritised, in rounds of 16": work.microseconds(play_round) / work.PER_ROUND,
        "uniform, to tensors": work.microseconds(to_tensors),
    }
    work.show(us, tk.__version__, asked)


if __name__ == "__main__":
    main()
