"""Presets of actor-critics: each has the parts of its paper, trains, resumes to the bit, and learns."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import trainkit as tk
from tests.helpers.engine import AUTO
from tests.helpers.learning import parameters_of
from trainkit.policy import MinOfSubset, TruncatedQuantiles

MEMBERS = ("ddpg", "td3", "tqc", "redq", "droq", "crossq", "xqc")
TINY: dict[str, Any] = {"hidden": (8,), "n_envs": 2, "max_epoch": 2, "step_per_epoch": 40, "batch_size": 8}
TINY |= {"learning_starts": 10, "device": "cpu", "verbose": False, "evaluation": None, "seed": 1}


def trainer(name: str, **options: Any) -> Any:
    own = {"critic_hidden": (8,)} if name in ("crossq", "xqc") else {}
    many = {"update_per_step": 2.0, "actor_every": 4} if name in ("redq", "droq") else {}
    return tk.presets.PRESETS[name]("Pendulum-v1", **TINY | own | many | options)


@pytest.mark.parametrize("name", MEMBERS)
class TestEach:
    def test_trains_by_the_fast_engine(self, name: str) -> None:
        with trainer(name) as made:
            before = parameters_of(made.policy)
            made.run()
            after = parameters_of(made.policy)
            assert made.policy.n_updates == made.gradient_step > 0
            assert any(not torch.equal(after[one], before[one]) for one in before)
            assert made.policy.engine.name == AUTO

    def test_resumes_to_the_bit(self, name: str, tmp_path: Path) -> None:
        with trainer(name) as whole:
            whole.run()
            expected = parameters_of(whole.policy)
        with trainer(name) as first:
            first.run(epochs=1)
            first.save(tmp_path / "saved")
        with trainer(name, resume_from=tmp_path / "saved") as second:
            second.run()
            for one, weights in parameters_of(second.policy).items():
                assert torch.equal(weights, expected[one])

    def test_a_saved_policy_acts_as_before(self, name: str, tmp_path: Path) -> None:
        with trainer(name) as made:
            made.run()
            loaded = tk.load_policy(made.policy.save(tmp_path / "policy"), device="cpu")
            obs = np.linspace(-1, 1, 9, dtype=np.float32).reshape(3, 3)
            np.testing.assert_array_equal(loaded.act(obs).action, made.policy.act(obs).action)

    def test_a_linear_learning_rate_spans_the_run(self, name: str) -> None:
        with trainer(name, lr=tk.Linear(1e-3, 0.0)) as made:
            made.run()
            assert made.policy.lr < 1e-4


def test_the_parts_are_those_of_the_papers() -> None:
    with trainer("tqc", quantiles=7, drop_per_critic=3, n_critics=3) as made:
        policy = made.policy
        assert isinstance(policy.reduction, TruncatedQuantiles)
        assert (policy.reduction.drop_per_critic, policy.value.width, policy.critics.n_critics) == (3, 7, 3)
    with trainer("redq", subset=3) as made:
        assert isinstance(made.policy.reduction, MinOfSubset)
        assert (made.policy.reduction.size, made.policy.critics.n_critics) == (3, 10)
    with trainer("crossq") as made:
        assert made.policy.target_critics is None
    with trainer("ddpg") as made:
        assert made.policy.critics.n_critics == 1
        assert made.policy.target_actor is not None
    with trainer("xqc") as made:
        assert made.policy.target_entropy == -0.5
        assert made.policy.horizon.return_scale is not None


def test_the_temperature_of_crossq_has_the_usual_betas() -> None:
    for lr in (1e-3, tk.Linear(1e-3, 0.0), lambda optimizer: torch.optim.lr_scheduler.ConstantLR(optimizer, 0.5)):
        with trainer("crossq", lr=lr) as made:
            parameters = [torch.nn.Parameter(torch.zeros(()))]
            steps = made.policy.gradient_steps.items()
            betas = {name: step.optimizer.make(parameters).defaults["betas"] for name, step in steps}
            assert betas == {"critic": (0.5, 0.999), "actor": (0.5, 0.999), "temperature": (0.9, 0.999)}


def test_the_initial_temperature_of_xqc_is_that_of_a_learned_one() -> None:
    with trainer("xqc", temperature=0.1) as made:
        made.run(epochs=1)
        assert made.policy.read_metrics() == {}
        assert made.policy.learned_temperature is None
    with trainer("xqc") as made:
        assert made.policy.learned_temperature.log.exp().item() == pytest.approx(0.01)


def test_exploration_noise_of_td3_may_fall() -> None:
    with trainer("td3", noise_std=tk.Linear(0.5, 0.0)) as made:
        made.run()
        policy, obs = made.policy, np.zeros((500, 3), np.float32)
        spread = [policy.act(obs, explore=True, step=step).action.std() for step in (0, 40, 80)]
        assert spread[0] > spread[1] > spread[2]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("ddpg", {}),
        ("td3", {}),
        ("tqc", {}),
        ("redq", {"update_per_step": 4.0, "actor_every": 4}),
        ("droq", {"update_per_step": 4.0, "actor_every": 4}),
        ("crossq", {"critic_hidden": (64, 64)}),
        ("xqc", {"critic_hidden": (64, 64), "gamma": 0.975}),  # their rule for episodes of 200 steps
    ],
)
def test_learns_to_swing_a_pendulum_up(name: str, options: dict[str, Any]) -> None:
    how: dict[str, Any] = {"max_epoch": 10, "step_per_epoch": 1_000, "learning_starts": 1_000, "lr": 1e-3}
    how |= {"hidden": (64, 64), "batch_size": 128, "seed": 3, "device": "cpu", "verbose": False, "zoo": False}
    with tk.presets.PRESETS[name]("Pendulum-v1", **how | options) as made:
        made.run()
        mean = tk.evaluate(made.policy, "Pendulum-v1", n_episode=20, seed=5).returns.mean
        assert mean is not None
        assert mean > -300  # random actions earn some -1,200
