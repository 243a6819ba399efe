"""TD3, TQC and the means of REDQ beside updates that are written as in their papers, for 300 updates."""

from typing import Any

import pytest

from tests.extensions.actor_critic.references import TD3, TQC, MeanOfTwo, Reference, drawn_rows, made, updated
from tests.helpers.engine import engines
from trainkit import ExpectedValue, QuantileValue, Target
from trainkit.policy import Deterministic, FirstCritic, MeanOfCritics, TruncatedQuantiles

N_UPDATES = 300
DELAYED = Target(every=2, unit="updates", tau=0.05)
MEMBERS: list[Any] = [
    pytest.param(
        TD3,
        {
            "distribution": Deterministic(),
            "value": ExpectedValue("mse"),
            "actor_reduction": FirstCritic(),
            "temperature": None,
            "actor_every": 2,
            "target": DELAYED,
            "actor_target": DELAYED,
        },
        id="td3",
    ),
    pytest.param(
        TQC,
        {
            "value": QuantileValue(5, reduction="mean"),
            "reduction": TruncatedQuantiles(2),
            "actor_reduction": MeanOfCritics(),
            "n_critics": 3,
        },
        id="tqc",
    ),
    pytest.param(MeanOfTwo, {"actor_reduction": MeanOfCritics(), "n_critics": 4}, id="mean"),
]


@pytest.mark.parametrize(("kind", "parts"), MEMBERS)
class TestBeside:
    @pytest.mark.parametrize("engine", engines("torch", "numpy"))
    def test_gradients_from_equal_weights(self, kind: type[Reference], parts: Any, engine: Any) -> None:
        policy = made(engine=engine, **parts)
        reference, largest = kind(policy, lr=1e-3, tau=0.05), 0.0
        for step in range(N_UPDATES):
            reference.take_weights(policy)
            batch, rows = drawn_rows(policy, step)
            gradients = updated(policy, batch, rows, step)
            reference.gradients.clear()
            reference.update(rows)
            assert reference.gradients.keys() <= gradients.keys()
            for name, expected in reference.gradients.items():
                size = 1.0 if name == "temperature" else float(expected.norm())  # a mean of numbers of both signs
                largest = max(largest, float((gradients[name] - expected).norm()) / size)
        assert 0 < largest < 1e-5
        assert policy.engine.name == engine

    def test_weights_running_free(self, kind: type[Reference], parts: Any) -> None:
        policy = made(**parts)
        reference = kind(policy, lr=1e-3, tau=0.05)
        before = reference.weights()
        for step in range(N_UPDATES):
            batch, rows = drawn_rows(policy, step)
            updated(policy, batch, rows, step)
            reference.update(rows)
        after = reference.weights()
        ours = kind(policy, lr=1e-3, tau=0.05).weights()
        for name, weights in after.items():
            assert float((ours[name] - weights).norm() / weights.norm()) < 1e-3
            assert float((weights - before[name]).norm() / weights.norm()) > 0.05  # it has learned something
