"""When a recorded program is compared with the policy that it acts for."""

import pytest

from tests.trainer.test_replaced_in_runs import Run
from trainkit.engine.changes import Changes


def test_within_an_epoch_a_policy_is_looked_at_when_code_has_run(monkeypatch: pytest.MonkeyPatch) -> None:
    looks: list[int] = []
    differs = Changes._differs
    monkeypatch.setattr(Changes, "_differs", lambda self: looks.append(1) or differs(self))
    run = Run(length=20)
    run.collector.collect(n_step=300)  # after the comparisons at 4, 8, 16 ... 256
    looks.clear()
    run.collector.collect(n_step=100)
    assert len(looks) == 100 // 20
