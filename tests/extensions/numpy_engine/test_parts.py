"""Parts of policies, network options, optimizers and actions of both kinds by the numpy engine: what torch computes."""

import functools
from typing import Any

import numpy as np
import pytest
import torch
from numpy.testing import assert_allclose
from torch.testing import assert_close

import trainkit as tk
from tests.extensions.numpy_engine.numpy_passes import note_numpy_passes
from tests.helpers.learning import MASKED, Spaces, batch_of, made, observations, parameters_of
from tests.helpers.nested_actions import Turrets
from tests.helpers.of_extensions import learners_of_extensions
from tests.helpers.optimizers import ADAMW, COSINE, SGD, Signs, updated
from tests.helpers.rollouts import played
from tests.policy.learners import RewardModel, Squares, every_learner, learned
from tests.trainer.toys import make_trainer
from trainkit import HLGaussValue
from trainkit.policy import support

PARTS: list[Any] = [
    pytest.param({}, id="dqn"),
    pytest.param({"double": True, "dueling": True, "noisy": True, "n_step": 3}, id="double dueling noisy"),
    pytest.param({"penalty": tk.ConservativePenalty(0.5)}, id="cql"),
]


@pytest.mark.global_rng  # an encoder of the user's
@every_learner
def test_every_policy_learns_an_auxiliary_loss_as_by_torch(name: str) -> None:
    metrics, heads = [], []
    for engine in ("torch", "numpy"):
        policy = learned(name, n_updates=2, engine=engine, auxiliary=RewardModel(8), encoder=Squares)
        assert policy.engine.name == engine
        metrics.append(policy.read_metrics())
        heads.append(policy.auxiliary.head.layers[0].weight.detach().clone())
    plain = learned(name, n_updates=0, auxiliary=RewardModel(8), encoder=Squares)

    assert metrics[0]["auxiliary"] > 0
    assert metrics[1] == pytest.approx(metrics[0], rel=1e-3, abs=1e-5)
    torch.testing.assert_close(heads[0], heads[1], rtol=1e-4, atol=1e-6)
    assert (heads[0] != plain.auxiliary.head.layers[0].weight).any()  # of the same seed


@pytest.mark.one_of_each
@pytest.mark.parametrize("target", ["hl_gauss", "two_hot"])
@pytest.mark.parametrize("space", [None, MASKED], ids=["all legal", "masked"])
@pytest.mark.parametrize("options", PARTS)
def test_histograms_are_learned_as_by_torch(options: Any, space: Any, target: Any) -> None:
    policies = [
        made(space, value=HLGaussValue(21, -5.0, 5.0, target=target), engine=engine, **options)
        for engine in ("numpy", "torch")
    ]
    for step in range(12):
        batch = batch_of(16, seed=step, space=space or Spaces().observation_space)
        mine, theirs = (policy.update(batch, step=step).read_priority() for policy in policies)
        assert_allclose(mine, theirs, rtol=1e-3, atol=1e-5)
    assert policies[0].engine.name == "numpy"
    assert_close(parameters_of(policies[0]), parameters_of(policies[1]), rtol=1e-3, atol=1e-5)
    metrics = [policy.read_metrics() for policy in policies]
    assert metrics[0] == pytest.approx(metrics[1], rel=1e-3, abs=1e-5)
    obs = observations(space or Spaces().observation_space, 5)
    assert_allclose(policies[0].action_values(obs), policies[1].action_values(obs), rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("name", ["rainbow", "sac", "ppo", *learners_of_extensions()])
def test_activations_and_norms_are_executed(name: str) -> None:
    policy = learned(name, n_updates=4, activation="mish", norm="layer", engine="numpy")

    assert str(policy.engine) == "numpy (as requested)"


def test_supports_widen_as_by_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(support, "PERIOD", 7)  # updates between two looks for clipped targets
    monkeypatch.setattr(support, "LARGEST_SHARE", 0.0)
    policies = []
    for engine in ("numpy", "torch"):
        trainer = make_trainer(policy={"value": tk.CategoricalValue(5), "engine": engine})
        trainer.run()
        policies.append(trainer.policy)
    one, other = (policy.value for policy in policies)
    assert (one.v_min, one.v_max) == (other.v_min, other.v_max)
    obs = np.random.default_rng(0).normal(size=(20, 2)).astype(np.float32)
    values = [policy.action_values(obs) for policy in policies]
    np.testing.assert_allclose(*values, rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("optimizer", [SGD, ADAMW, functools.partial(Signs, lr=1e-3)], ids=["SGD", "AdamW", "own"])
def test_engines_agree_whatever_the_optimizer(optimizer: Any) -> None:
    torchs, numpys = (made(optimizer=optimizer, lr=COSINE, engine=engine) for engine in ("torch", "numpy"))
    assert updated(torchs, range(20)) == updated(numpys, range(20))
    assert_close(parameters_of(torchs), parameters_of(numpys), rtol=1e-3, atol=2e-4)


def test_rows_of_both_kinds_are_drawn_and_learned_in_numpy(monkeypatch: pytest.MonkeyPatch) -> None:
    passes: list[int] = []
    note_numpy_passes(monkeypatch, lambda: passes.append(1))
    policy = tk.PPOPolicy.for_envs(Turrets(), hidden=(8,), device="cpu", seed=1)
    rollout = played(policy, Turrets().observation_space)
    assert passes
    passes.clear()
    list(policy.learn(rollout, step=0))
    assert passes
    assert policy.engine.name == "numpy"
