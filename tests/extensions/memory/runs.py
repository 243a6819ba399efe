"""Runs of memory in which options of constructors matter."""

from typing import Any

import torch

import trainkit as tk
from tests.helpers.networks import drawn
from tests.outside.constructors import VECTOR, Build, Run, part_of_q
from trainkit import nets


def memory(build: Build) -> Any:
    module = drawn(build(3))
    state = torch.zeros(2, module.state_size)
    for _ in range(40):
        outputs, state = module(VECTOR.unsqueeze(0), state)
    return outputs, state, module.state_dict()


POOL = [lambda: tk.Sequences(2)]  # other values of options
RUNS: dict[Any, list[Run]] = {
    nets.Memory: [memory],
    tk.Sequences: [part_of_q("sequences", recurrent="gru", prioritized=True)],
}
