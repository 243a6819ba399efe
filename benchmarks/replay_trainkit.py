"""Our side of replay's speed."""

import argparse

import numpy as np
import torch

import trainkit as tk
from benchmarks import replay_work as work
from trainkit.core.data import Transition
from trainkit.engine.device import to_device


def adds(asked: argparse.Namespace) -> dict[str, work.Play]:
    """Store vector steps; tree writes are saved up for the next draw, or until 128 steps wait."""
    never = np.zeros(work.N_ENVS, np.bool_)
    steps = [
        Transition(
            obs=step["obs"],
            action=step["action"],
            reward=step["reward"],
            next_obs=step["next_obs"],
            terminated=step["done"],
            truncated=never,
            env_ids=np.arange(work.N_ENVS),
            extras={},
        )
        for step in work.steps()
    ]
    uniform = tk.ReplayBuffer(asked.rows, seed=1)
    prioritised = tk.PrioritizedReplayBuffer(asked.rows, alpha=work.ALPHA, beta=work.BETA, seed=1)
    return {
        work.ADD_UNIFORM: work.storing(uniform.add, steps),
        work.ADD_PRIORITISED: work.storing(prioritised.add, steps),
    }


def rounds(asked: argparse.Namespace) -> dict[str, work.Play]:
    """Draw, gather, write back."""
    rows = work.columns(asked.rows)
    rows["terminated"] = rows.pop("done")
    horizon = tk.Horizon(asked.n_step, work.GAMMA)
    buffer = tk.PrioritizedReplayBuffer.from_arrays(**rows, alpha=work.ALPHA, beta=work.BETA, seed=1)
    written, written_at_once = work.priorities(asked.batch), work.priorities(asked.batch * work.PER_ROUND)

    def play(i: int) -> None:
        batch = buffer.sample(asked.batch, horizon=horizon)
        buffer.update_priorities(batch.slots, written[i])

    def play_round(i: int) -> None:
        batches = buffer.sample_round(work.PER_ROUND, asked.batch, horizon=horizon)
        buffer.update_priorities(np.concatenate([batch.slots for batch in batches]), written_at_once[i])

    uniform = tk.ReplayBuffer.from_arrays(**rows, seed=1)

    def to_tensors(i: int) -> None:
        batch = uniform.sample(asked.batch, horizon=horizon)
        to_device((batch.obs, batch.action, batch.reward, batch.discount, batch.next_obs), torch.device("cpu"))

    return {
        work.OWN: play,
        work.IN_ROUNDS: play_round,
        work.UNIFORM: to_tensors,
    }


def main() -> None:
    """Do the work as often as is asked."""
    torch.set_num_threads(1)
    asked = work.options()
    work.answer((adds if asked.adds else rounds)(asked), tk.__version__, asked)


if __name__ == "__main__":
    main()
