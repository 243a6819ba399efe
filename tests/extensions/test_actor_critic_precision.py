"""Actor-critics whose networks multiply in bfloat16."""

from typing import Any

import numpy as np
import pytest

import trainkit as tk
from tests.helpers.learning import FOUR_NUMBERS, Spaces
from tests.helpers.sac import PUSH, rows
from trainkit import policy

NORMED: dict[str, Any] = {"critic_pass": policy.JointPass()}
PARTS: dict[str, dict[str, Any]] = {
    "crossq": NORMED | {"networks": policy.BatchNormNetworks(warm_up=2), "target": "none"},
    "xqc": NORMED | {"networks": policy.BatchNormNetworks(norm_first=True, warm_up=2, on_sphere=True)},
    "droq": {"networks": policy.DropoutNetworks(dropout=0.1)},
    "td3": {"distribution": policy.Deterministic(0.1), "temperature": None, "value": tk.ExpectedValue("mse")},
    "tqc": {"value": tk.QuantileValue(5), "reduction": policy.TruncatedQuantiles(1)},
}


def made(parts: dict[str, Any], precision: str) -> Any:
    how: dict[str, Any] = {"hidden": (16, 16), "device": "cpu", "engine": "torch", "seed": 0, "precision": precision}
    return tk.ActorCriticPolicy.for_envs(Spaces(FOUR_NUMBERS, PUSH), **parts | how)


@pytest.mark.parametrize("name", PARTS)
def test_learns_nearly_the_same_in_bf16_and_not_the_same(name: str) -> None:
    rough, exact = (made(PARTS[name], precision) for precision in ("bf16", "float32"))
    for step in range(6):
        one, other = (own.update(rows(32, seed=step), step=step).read_priority() for own in (rough, exact))
        assert one.dtype == np.float32
        assert 0 < np.linalg.norm(one - other) <= 0.05 * np.linalg.norm(other)


def test_the_statistics_of_batches_are_float32() -> None:
    rough, exact = (made(PARTS["crossq"], precision) for precision in ("bf16", "float32"))
    for own in (rough, exact):
        own.update(rows(32), step=0)
    inputs, expected = (own.critics.body.norms[0] for own in (rough, exact))
    observed = np.s_[..., :4]  # before any product, unlike the next actions
    np.testing.assert_array_equal(inputs.running_mean[observed], expected.running_mean[observed])
    np.testing.assert_array_equal(inputs.running_var[observed], expected.running_var[observed])
