"""Presets by CUDA graphs on the pretend device: runs, evaluations and priorities are those of torch."""

from typing import Any

import numpy as np
import pytest
import torch

from tests.accelerator.runs import make
from tests.helpers.engine import engines
from tests.helpers.learning import assert_same, batch_of, made
from tests.helpers.tape import TapeCapture
from tests.pretend import PretendDevice
from trainkit import CategoricalValue, presets
from trainkit.policy import support

LONG = {"update_per_step": 2.0, "updates_per_round": 4}
ORDERS: list[Any] = [
    pytest.param("dqn", {"refresh_priorities": "round", **LONG}, id="round"),
    pytest.param("dqn", {"refresh_priorities": "late"}, id="late"),
    pytest.param("rainbow", {"refresh_priorities": "late", "overlap": True}, id="late overlap"),
]
EVERY = [pytest.param(name, {}, id=name, marks=pytest.mark.accelerator) for name in presets.PRESETS]


@pytest.mark.usefixtures("taped")
@pytest.mark.parametrize(("name", "options"), [*ORDERS, *EVERY])
def test_a_run_by_graphs_is_that_of_torch(name: str, options: Any, pretend: PretendDevice) -> None:
    runs = []
    for engine in ("auto", "torch"):
        own = options | ({"buffer": "prioritized"} if "refresh_priorities" in options else {})
        with make(name, pretend.device, n_updates=9, **own) as trainer:
            trainer.policy.engine = engine
            (epoch,) = list(trainer)
        priorities = trainer.buffer.sample(256, horizon=trainer.policy.horizon).weight if "prioritized" in own else None
        runs.append((epoch.stats, trainer.policy, priorities))
    (mine, policy, weight), (theirs, plain, expected) = runs
    assert (policy.engine.name, plain.engine.name) == ("cuda_graph", "torch")
    assert policy.engine._graphs["update", ""].n_recordings > 0 or name == "reinforce"  # whose rollouts differ in size
    for path, tensor in plain.get_weights().items():
        np.testing.assert_allclose(policy.get_weights()[path], tensor, rtol=1e-4, atol=1e-5, err_msg=path)
    for key, number in theirs.update.items():
        np.testing.assert_allclose(mine.update[key], number, rtol=1e-3, atol=1e-4, err_msg=key)
    if expected is not None:
        np.testing.assert_allclose(weight, expected, rtol=1e-3)
    assert_same(policy.streams_state(), plain.streams_state())


@pytest.mark.usefixtures("taped")
@pytest.mark.parametrize("engine", engines("compile"))
@pytest.mark.parametrize("name", ["dqn", "rainbow", "sac", "ppo"])
def test_compiled_losses_are_recorded_with_the_rest_of_an_update(
    name: str, engine: str, pretend: PretendDevice, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch, "compile", lambda function, **_: function)  # which a tape cannot record
    monkeypatch.setattr("trainkit.extensions.compile.compile_engine.missing", lambda device: None)
    runs = []
    for one in (engine, "torch"):
        with make(name, pretend.device, n_updates=6) as trainer:
            trainer.policy.engine = one
            (epoch,) = list(trainer)
        runs.append((epoch.stats, trainer.policy))
    (mine, policy), (theirs, plain) = runs
    assert str(policy.engine) == "compile (as requested; all but losses by cuda_graph (on pretend))"
    assert TapeCapture.n_recorded > 1  # an update, and what acts
    for path, tensor in plain.get_weights().items():
        np.testing.assert_allclose(policy.get_weights()[path], tensor, rtol=1e-4, atol=1e-5, err_msg=path)
    for key, number in theirs.update.items():
        np.testing.assert_allclose(mine.update[key], number, rtol=1e-3, atol=1e-4, err_msg=key)
    assert_same(policy.streams_state(), plain.streams_state())


@pytest.mark.usefixtures("taped")
def test_a_support_is_widened_in_the_memory_that_a_graph_reads(
    pretend: PretendDevice, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(support, "PERIOD", 6)
    policies = []
    for engine in ("cuda_graph", "torch"):
        policy = made(value=CategoricalValue(11), device=pretend.device, engine=engine, dueling=True, noisy=True)
        for i in range(20):
            policy.update(batch_of(16, seed=i, reward=np.full(16, 1.0 + i, np.float32)), step=0)
        policies.append(policy)
    graph, plain = policies
    assert TapeCapture.n_recorded == 1
    assert graph.value.v_max == plain.value.v_max == pytest.approx(1.1 * 2**3)
    for path, tensor in plain.get_weights().items():
        np.testing.assert_allclose(graph.get_weights()[path], tensor, rtol=1e-3, atol=1e-4, err_msg=path)
