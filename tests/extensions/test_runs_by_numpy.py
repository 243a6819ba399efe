"""Training runs by numpy: nothing falls back to torch, and nothing is recorded again and again."""

from collections import Counter
from dataclasses import replace
from typing import Any

import pytest

from tests.digests.runs import RUNS, SEVERAL_POLICIES
from trainkit.extensions.numpy_engine.numpy_function import NumpyFunction

FAST = "rainbow", "bcq", "sac-learned-temperature", "ppo-box-normalized"
BY_TORCH = [name for name, run in RUNS.items() if run.engine == "torch" and name not in SEVERAL_POLICIES]


@pytest.mark.fast_cases(2)
@pytest.mark.parametrize(
    "name", [name if name in FAST else pytest.param(name, marks=pytest.mark.slow) for name in BY_TORCH]
)
def test_a_run_records_each_function_once_for_each_layout(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    counts: Counter[Any] = Counter()
    record = NumpyFunction._record

    def counted(function: NumpyFunction, *given: Any) -> Any:
        counts[function._name, given[3]] += 1  # its arrays' layout
        return record(function, *given)

    monkeypatch.setattr(NumpyFunction, "_record", counted)
    run = replace(RUNS[name], engine="auto")
    trainer = run.make(run.world(1))
    trainer.run()
    assert str(trainer.policy.engine) == "numpy (on the CPU)"
    n_recordings = 2 if "reinforce" in name else 1  # whose critic never learns: the rest is laid out without it
    assert max(counts.values()) == n_recordings
