"""Every preset on the pretend device: it learns there what it learns on the CPU, and no operation mixes devices."""

from pathlib import Path

import numpy as np
import pytest

from tests.accelerator.runs import N_UPDATES, make
from tests.helpers.learning import assert_same
from trainkit import load_policy, presets
from trainkit.testing import PretendDevice

EVERY = pytest.mark.parametrize("name", presets.PRESETS)


@EVERY
def test_a_preset_learns_there_as_on_the_cpu(name: str, pretend: PretendDevice) -> None:
    results = []
    for device in ("cpu", "pretend"):
        with make(name, device) as trainer:
            (epoch,) = list(trainer)
        assert trainer.policy.device.type == device
        assert {tensor.device.type for tensor in trainer.policy.state_dict().values()} == {device}
        assert epoch.info.gradient_step == N_UPDATES
        results.append((epoch.stats, trainer.policy.get_weights()))
    (here, weights), (there, weights_there) = results
    assert there.update.keys() == here.update.keys()
    for key in here.update:
        np.testing.assert_allclose(there.update[key], here.update[key], rtol=1e-5, atol=1e-6, err_msg=key)
    assert there.test.returns == here.test.returns
    for key in weights:
        np.testing.assert_allclose(weights_there[key], weights[key], rtol=1e-5, atol=1e-6, err_msg=key)


@pytest.mark.accelerator
@EVERY
def test_a_resumed_run_has_the_bits_of_one_that_was_not_interrupted(
    name: str, pretend: PretendDevice, tmp_path: Path
) -> None:
    options = {"max_epoch": 2, "evaluation": None}
    with make(name, pretend.device, **options, checkpoint=f"{tmp_path}/a") as whole:
        whole.run()
    with make(name, pretend.device, **options, checkpoint=f"{tmp_path}/b") as first:
        next(iter(first))
    with make(name, pretend.device, **options, resume_from=f"{tmp_path}/b") as second:
        second.run()
    assert_same(second.policy.training_state(), whole.policy.training_state())


@pytest.mark.accelerator
@EVERY
def test_a_saved_policy_moves_to_the_cpu_and_back_with_the_same_bits(
    name: str, pretend: PretendDevice, tmp_path: Path
) -> None:
    with make(name, pretend.device, evaluation=None) as trainer:
        trainer.run()
    there = trainer.policy
    here = load_policy(there.save(f"{tmp_path}/there"), device="cpu")
    here.engine = "torch"  # as there
    again = load_policy(here.save(f"{tmp_path}/here"), device=str(pretend.device))
    assert_same(here.get_weights(), there.get_weights())
    assert_same(again.get_weights(), there.get_weights())
    obs = np.random.default_rng(0).normal(size=(50, 4)).astype(np.float32)
    assert_same(here.predict(obs), there.predict(obs))
    assert_same(again.predict(obs), there.predict(obs))
