"""Calls of memory that work, for the table of all public calls."""

from pathlib import Path

import trainkit as tk
from tests.faults.makers import Call, arrays

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
