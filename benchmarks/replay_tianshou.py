"""Tianshou's side of replay's speed; n-step returns, which its policies compute on read, with the value 0 after them.

Runs in an environment of its own, and so imports nothing of trainkit but the numbers of the work.
"""

import argparse
import warnings

warnings.filterwarnings("ignore")

import numpy as np  # noqa: E402  # after the warnings it raises
import torch  # noqa: E402
from tianshou import __version__  # noqa: E402
from tianshou.data import (  # noqa: E402
    Batch,
    PrioritizedReplayBuffer,
    PrioritizedVectorReplayBuffer,
    VectorReplayBuffer,
)
from tianshou.policy import BasePolicy  # noqa: E402

from benchmarks import replay_work as work  # noqa: E402


def adds(asked: argparse.Namespace) -> dict[str, work.Play]:
    """Store vector steps."""
    never, envs = np.zeros(work.N_ENVS, bool), np.arange(work.N_ENVS)
    steps = [
        Batch(
            obs=step["obs"],
            act=step["action"],
            rew=step["reward"].astype(np.float64),
            terminated=step["done"],
            truncated=never,
            done=step["done"],
            obs_next=step["next_obs"],
            info=Batch(),
        )
        for step in work.steps()
    ]
    uniform = VectorReplayBuffer(asked.rows, work.N_ENVS)
    prioritised = PrioritizedVectorReplayBuffer(asked.rows, work.N_ENVS, alpha=work.ALPHA, beta=work.BETA)
    return {
        work.ADD_UNIFORM: work.storing(lambda step: uniform.add(step, envs), steps),
        work.ADD_PRIORITISED: work.storing(lambda step: prioritised.add(step, envs), steps),
    }


def rounds(asked: argparse.Namespace) -> dict[str, work.Play]:
    """Draw, compute returns, write back."""
    buffer = PrioritizedReplayBuffer(asked.rows, alpha=work.ALPHA, beta=work.BETA)
    rows = work.columns(asked.rows)
    never = np.zeros(asked.rows, bool)
    # Row by row a million would take a minute; this is what its `add` leaves behind.
    buffer.set_batch(
        Batch(
            obs=rows["obs"],
            act=rows["action"],
            rew=rows["reward"].astype(np.float64),
            terminated=rows["done"],
            truncated=never,
            done=rows["done"],
            obs_next=rows["next_obs"],
            info=Batch(),
        )
    )
    buffer._size = asked.rows
    buffer.init_weight(np.arange(asked.rows))
    written = work.priorities(asked.batch)

    def nothing(buffer: PrioritizedReplayBuffer, indices: np.ndarray) -> torch.Tensor:
        return torch.zeros(len(indices), 1)

    def play(i: int) -> None:
        batch, indices = buffer.sample(asked.batch)
        if asked.n_step > 1:
            BasePolicy.compute_nstep_return(batch, buffer, indices, nothing, work.GAMMA, asked.n_step)
        buffer.update_weight(indices, written[i])

    return {work.OWN: play}


def main() -> None:
    """Do the work as often as is asked."""
    torch.set_num_threads(1)
    asked = work.options()
    work.answer((adds if asked.adds else rounds)(asked), __version__, asked)


if __name__ == "__main__":
    main()
