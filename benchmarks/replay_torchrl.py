"""TorchRL's side of replay's speed: its prioritised sampler, in C++; n-step returns are not measured.

Runs in an environment of its own, and so imports nothing of trainkit but the numbers of the work.
"""

from importlib.metadata import version

import torch
from tensordict import TensorDict
from torchrl.data import LazyTensorStorage, TensorDictPrioritizedReplayBuffer

from benchmarks import replay_work as work


def main() -> None:
    """Do the work and print its times."""
    torch.set_num_threads(1)
    asked = work.options()
    buffer = TensorDictPrioritizedReplayBuffer(
        alpha=work.ALPHA, beta=work.BETA, storage=LazyTensorStorage(asked.rows), batch_size=asked.batch
    )
    rows = {name: torch.as_tensor(column) for name, column in work.columns(asked.rows).items()}
    buffer.extend(TensorDict(rows, batch_size=[asked.rows]))
    written = [torch.as_tensor(priority) for priority in work.priorities(asked.batch)]

    def play(i: int) -> None:
        batch = buffer.sample()
        batch["td_error"] = written[i]
        buffer.update_tensordict_priority(batch)

    work.show({"prioritised": work.microseconds(play)}, version("torchrl"), asked)


if __name__ == "__main__":
    main()
