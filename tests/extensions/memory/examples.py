"""Examples of memory: calls that work, and runs in which options matter, for tests of all public names."""

from pathlib import Path
from typing import Any

import torch

import trainkit as tk
from tests.faults.makers import Call, arrays
from tests.helpers.networks import drawn
from tests.outside.constructors import VECTOR, Build, Run, part_of_q
from trainkit import nets

NOT_CALLED = {"Memory", "SequenceBatch"}  # a base, and a record


def calls(folder: Path) -> dict[str, Call]:
    return {
        "CausalTransformer": Call(tk.nets.CausalTransformer, {"n_inputs": 4}),
        "GRU": Call(tk.nets.GRU, {"n_inputs": 3}),
        "LSTM": Call(tk.nets.LSTM, {"n_inputs": 3}),
        "Sequences": Call(tk.Sequences, {}),
        "sample_sequences": Call(
            tk.buffer.sample_sequences,
            {"buffer": tk.ReplayBuffer.from_arrays(**arrays()), "batch_size": 2, "length": 3, "horizon": tk.Horizon()},
        ),
    }


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
