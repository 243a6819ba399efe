"""Training runs of every algorithm by numpy: nothing falls back to torch, and nothing is recorded again and again."""

from collections import Counter
from typing import Any

import pytest

from tests import digests
from trainkit.engine.numpy_function import NumpyFunction

FAST = "rainbow", "bcq", "sac-learned-temperature", "ppo-box-normalized"


@pytest.mark.fast_cases(2)
@pytest.mark.parametrize(
    "name", [name if name in FAST else pytest.param(name, marks=pytest.mark.slow) for name in digests.RUNS]
)
def test_a_run_is_recorded_at_its_start_alone(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(digests, "torch_only", lambda policy: policy)
    counts: Counter[Any] = Counter()
    record = NumpyFunction._record

    def counted(function: NumpyFunction, *given: Any) -> Any:
        counts[function._name, given[3]] += 1  # its arrays' layout
        return record(function, *given)

    monkeypatch.setattr(NumpyFunction, "_record", counted)
    trainer = digests.RUNS[name](1).trainer
    trainer.run()
    assert str(trainer.policy.engine) == "numpy (on the CPU)"
    assert max(counts.values()) <= 2  # again where the first update has laid parameters out elsewhere
