"""Engines and precisions set between two updates of a policy are those of the next one, or an error."""

from typing import Any

import pytest
import torch

from tests.helpers.learning import batch_of, made, parameters_of
from trainkit import ConfigError
from trainkit.extensions.compile import compiling


def learned(*engines: Any) -> dict[str, torch.Tensor]:
    policy = made(dueling=True, noisy=True, lr=[(0, 1e-2), (6, 1e-3)])
    for step in range(6):
        policy.engine = engines[step % len(engines)]
        policy.update(batch_of(16, seed=step), step=step)
        assert policy.engine.name == engines[step % len(engines)]
    return parameters_of(policy)


@pytest.mark.parametrize(
    "engines",
    [
        ("torch", "numpy"),
        pytest.param(("torch", "compile"), marks=pytest.mark.slow),
        ("numpy", "compile", "torch"),
    ],
)
@pytest.mark.usefixtures("traced")
def test_engines_take_turns(engines: tuple[str, ...], monkeypatch: pytest.MonkeyPatch) -> None:
    graphs: list[Any] = []
    call = compiling.LossGraph.__call__

    def noted(graph: Any, *given: Any) -> Any:
        graphs.append(graph)
        return call(graph, *given)

    monkeypatch.setattr(compiling.LossGraph, "__call__", noted)
    torch.testing.assert_close(learned(*engines), learned("torch"), atol=1e-5, rtol=1e-4)
    assert bool(graphs) is ("compile" in engines)


def test_numpy_rejects_bf16() -> None:
    with pytest.raises(ConfigError, match=r"DQNPolicy\.engine 'numpy' has no precision 'bf16': use 'auto'"):
        made(precision="bf16", engine="numpy")
    policy = made(engine="numpy")
    with pytest.raises(ConfigError, match="has no precision 'bf16'"):
        policy.precision = "bf16"
    assert policy.precision == "float32"
    policy = made(engine="auto")
    policy.precision = "bf16"
    assert str(policy.engine) == "torch (numpy has no precision 'bf16')"
