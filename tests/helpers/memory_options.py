"""The options of a memory that presets have: another value of each, and where a trainer's policy has it."""

from collections.abc import Callable, Mapping
from typing import Any

from tests.helpers.network_options import has
from trainkit import Sequences, nets

SEQUENCES = Sequences(7, 0)
OF_A_MEMORY: Mapping[str, tuple[Any, Callable[[Any], Any]]] = {
    "recurrent": ("gru", lambda trainer: "gru" if has(nets.GRU)(trainer) else None),
    "sequences": (SEQUENCES, lambda trainer: trainer.policy.sequences),
}
MEMORY_NEEDS = {"sequences": {"recurrent": "lstm"}}
