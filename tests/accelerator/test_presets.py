"""Every preset on an accelerator: it learns there what it learns on the CPU, and no operation mixes devices."""

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import trainkit as tk
from tests.accelerator.runs import (
    CONTINUOUS,
    N_UPDATES,
    Mazes,
    assert_equal_runs,
    assert_finite_runs,
    assert_repeated,
    draws_as_the_cpu,
    make,
    tolerance_of,
)
from tests.helpers.learning import assert_same, observations
from trainkit import load_policy, presets
from trainkit.core import tree

EVERY = pytest.mark.parametrize("name", presets.PRESETS)
RECURRENT = {"drqn", "r2d2", "recurrent_ppo"}
BATCH_NORMALIZED = {"crossq", "xqc"}
WITHOUT_MEMORY = pytest.mark.parametrize("name", [name for name in presets.PRESETS if name not in RECURRENT])
OF_ACTIONS = pytest.mark.parametrize("name", [name for name in presets.PRESETS if name not in CONTINUOUS])


@contextmanager
def lstms_of_cells() -> Iterator[None]:
    """Switch oneDNN off, which computes whole LSTMs on the CPU and rounds otherwise than the cells of other devices."""
    (before,) = torch.backends.mkldnn.set_flags(False)[:1]
    try:
        yield
    finally:
        torch.backends.mkldnn.set_flags(before)


def check_against_cpu(name: str, device: torch.device, **options: Any) -> None:
    """Train there and on the CPU, and compare all that is reported, and the weights."""
    results = []
    for place in (torch.device("cpu"), device):
        rounding = lstms_of_cells() if name in RECURRENT else nullcontext()
        with rounding, make(name, place, **options) as trainer:
            (epoch,) = list(trainer)
        assert trainer.policy.device.type == place.type
        assert {tensor.device.type for tensor in trainer.policy.state_dict().values()} == {place.type}
        assert epoch.info.gradient_step == N_UPDATES
        results.append((epoch.stats, trainer.policy.get_weights()))
    (here, weights), (there, weights_there) = results
    if not draws_as_the_cpu(name, device):
        assert_finite_runs(there.update, here.update)
        assert_finite_runs(weights_there, weights)
        return
    # Statistics of few rows are divided by, which makes large differences of small ones.
    tolerance = (1_000 if name in BATCH_NORMALIZED else 1) * tolerance_of(device)
    assert_equal_runs(there.update, here.update, tolerance)
    if name in BATCH_NORMALIZED:
        assert there.test.returns.mean == pytest.approx(here.test.returns.mean, rel=tolerance)
    else:
        assert there.test.returns == here.test.returns
    assert_equal_runs(weights_there, weights, tolerance)


@EVERY
def test_a_preset_learns_there_as_on_the_cpu(name: str, accelerator: torch.device) -> None:
    check_against_cpu(name, accelerator)


@pytest.mark.accelerator
@OF_ACTIONS
def test_masks_and_dict_observations_are_learned_from_there_as_on_the_cpu(name: str, accelerator: torch.device) -> None:
    check_against_cpu(name, accelerator, env=Mazes)


@pytest.mark.accelerator
@EVERY
def test_normalized_observations_are_learned_from_there_as_on_the_cpu(name: str, accelerator: torch.device) -> None:
    check_against_cpu(name, accelerator, normalize_obs=True)


@pytest.mark.accelerator
@EVERY
def test_a_resumed_run_is_the_one_that_was_not_interrupted(
    name: str, accelerator: torch.device, tmp_path: Path
) -> None:
    options = {"max_epoch": 2, "evaluation": None}
    with make(name, accelerator, **options, checkpoint=f"{tmp_path}/a") as whole:
        whole.run()
    with make(name, accelerator, **options, checkpoint=f"{tmp_path}/b") as first:
        next(iter(first))
    with make(name, accelerator, **options, resume_from=f"{tmp_path}/b") as second:
        second.run()
    assert_repeated(second.policy.training_state(), whole.policy.training_state(), accelerator)


class SaveOnce(tk.Callback):
    """Save the run in the middle of its first epoch."""

    def __init__(self, folder: str) -> None:
        self._folder = folder

    def on_collect_end(self, trainer: tk.Trainer, stats: tk.CollectStats) -> None:
        if trainer.env_step == 28:
            trainer.save(self._folder)


@pytest.mark.accelerator
@pytest.mark.parametrize(
    "order", [{"refresh_priorities": "late"}, {"refresh_priorities": "late", "overlap": True}], ids=str
)
def test_a_run_resumes_with_the_priorities_that_were_on_their_way(
    order: dict[str, Any], accelerator: torch.device, tmp_path: Path
) -> None:
    options: dict[str, Any] = {"max_epoch": 2, "evaluation": None, "n_updates": 8} | order
    with make("rainbow", accelerator, **options) as whole:
        whole.run()
    with make("rainbow", accelerator, **options, callbacks=[SaveOnce(f"{tmp_path}/run")]) as first:
        next(iter(first))
    with make("rainbow", accelerator, **options, resume_from=f"{tmp_path}/run") as second:
        assert len(second.state_dict()["unwritten"]) == 1
        second.run()
    assert_repeated(second.policy.training_state(), whole.policy.training_state(), accelerator)


@pytest.mark.accelerator
@EVERY
def test_a_saved_policy_moves_to_the_cpu_and_back_with_the_same_bits(
    name: str, accelerator: torch.device, tmp_path: Path
) -> None:
    with make(name, accelerator, evaluation=None) as trainer:
        trainer.run()
    there = trainer.policy
    here = load_policy(there.save(f"{tmp_path}/there"), device="cpu")
    here.engine = "torch"  # as there
    again = load_policy(here.save(f"{tmp_path}/here"), device=str(accelerator))
    assert_same(here.get_weights(), there.get_weights())
    assert_same(again.get_weights(), there.get_weights())
    obs = np.random.default_rng(0).normal(size=(50, 4)).astype(np.float32)
    actions = {policy: policy.act(obs).action for policy in (there, here, again)}
    assert_same(actions[again], actions[there])
    if accelerator.type == "pretend" or name == "sac":
        assert_equal_runs({"action": actions[here]}, {"action": actions[there]}, tolerance_of(accelerator))


@pytest.mark.accelerator
@WITHOUT_MEMORY
def test_a_policy_is_exported_from_there(name: str, accelerator: torch.device, tmp_path: Path) -> None:
    onnxruntime = pytest.importorskip("onnxruntime", reason="the extra `onnx` is not installed")
    pytest.importorskip("onnxscript", reason="the extra `onnx` is not installed")
    with make(name, accelerator, Mazes, evaluation=None) as trainer:
        policy = trainer.policy
        tk.export(policy, tmp_path / "policy", formats=("onnx", "torch"))
    obs = observations(policy.observation_space, 20)
    session = onnxruntime.InferenceSession(tmp_path / "policy.onnx", providers=["CPUExecutionProvider"])
    inputs = obs if isinstance(obs, dict) else {"obs": obs}
    np.testing.assert_allclose(session.run(["action"], inputs)[0], policy.predict(obs), rtol=1e-4, atol=1e-4)
    program = torch.export.load(tmp_path / "policy.pt2").module()  # on the CPU
    outputs = program(tree.map_tree(torch.from_numpy, obs))
    np.testing.assert_allclose(outputs["action"].detach().numpy(), policy.predict(obs), rtol=1e-4, atol=1e-4)
