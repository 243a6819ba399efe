"""TorchRL's side of replay's speed: its prioritised sampler, in C++; n-step returns are not measured.

Runs in an environment of its own, and so imports nothing of trainkit but the numbers of the work.
"""

import argparse
from importlib.metadata import version

import torch
from tensordict import TensorDict
from torchrl.data import LazyTensorStorage, TensorDictPrioritizedReplayBuffer, TensorDictReplayBuffer

from benchmarks import replay_work as work


def adds(asked: argparse.Namespace) -> dict[str, work.Play]:
    """Store vector steps."""
    steps = [
        TensorDict({name: torch.as_tensor(column) for name, column in step.items()}, batch_size=[work.N_ENVS])
        for step in work.steps()
    ]
    uniform = TensorDictReplayBuffer(storage=LazyTensorStorage(asked.rows))
    prioritised = TensorDictPrioritizedReplayBuffer(
        alpha=work.ALPHA, beta=work.BETA, storage=LazyTensorStorage(asked.rows)
    )
    return {
        work.ADD_UNIFORM: work.storing(uniform.extend, steps),
        work.ADD_PRIORITISED: work.storing(prioritised.extend, steps),
    }


def rounds(asked: argparse.Namespace) -> dict[str, work.Play]:
    """Draw, gather, write back."""
    buffer = TensorDictPrioritizedReplayBuffer(
        alpha=work.ALPHA, beta=work.BETA, storage=LazyTensorStorage(asked.rows), batch_size=asked.batch
    )
    rows = {name: torch.as_tensor(column) for name, column in work.columns(asked.rows).items()}
    buffer.extend(TensorDict(rows, batch_size=[asked.rows]))
    written = [torch.as_tensor(priority, dtype=torch.float32) for priority in work.priorities(asked.batch)]

    def play(i: int) -> None:
        batch = buffer.sample()
        batch["td_error"] = written[i]
        buffer.update_tensordict_priority(batch)

    return {work.OWN: play}


def main() -> None:
    """Do the work as often as is asked."""
    torch.set_num_threads(1)
    asked = work.options()
    work.answer((adds if asked.adds else rounds)(asked), version("torchrl"), asked)


if __name__ == "__main__":
    main()
