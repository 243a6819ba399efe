"""Automatic supports: fitted to the returns in a buffer, widened while training, saved with the policy."""

import logging
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.testing import assert_close

import trainkit as tk
from tests.helpers.learning import Spaces, batch_of, made, wide_net
from tests.trainer.toys import Walk, everything, make_trainer
from trainkit import CategoricalValue, ConfigError, HLGaussValue
from trainkit.errors import CheckpointError
from trainkit.policy import support
from trainkit.policy.support import projected, refit
from trainkit.policy.values import SupportValue

AUTOMATIC = {"value": CategoricalValue(5)}  # each policy has a copy


def bounds(value: Any) -> tuple[float, float]:
    return value.v_min, value.v_max


# ---- the bounds ----


@pytest.mark.parametrize(
    ("low", "high", "expected"),
    [
        (-3.0, 5.0, (-3.3, 5.5)),
        (-7.0, -2.0, (-7.7, 0)),
        (2.0, 5.0, (0, 5.5)),
        (0.0, 0.0, (-1, 1)),
        (-5e6, 0.0, (-5.5e6, 0)),
    ],
)
def test_the_bounds_are_a_tenth_farther_from_0_than_the_returns(low: float, high: float, expected: Any) -> None:
    value = CategoricalValue(5)
    assert not value.is_fitted
    value.fit(low, high)
    assert bounds(value) == pytest.approx(expected)
    assert_close(value.support, torch.linspace(*expected, 5))
    assert value.is_fitted


def test_a_histogram_keeps_three_sigma_of_room_beyond_the_returns() -> None:
    normal, two_hot = HLGaussValue(10, sigma=0.5), HLGaussValue(8, target="two_hot")
    for value in (normal, two_hot):
        value.fit(0.0, 7.0 / 1.1)
    assert bounds(normal) == pytest.approx((-1.5, 8.5))  # 7 bins, and 1.5 on both sides
    assert bounds(two_hot) == pytest.approx((-0.5, 7.5))
    assert_close(two_hot.support, torch.arange(8.0))


def test_a_bound_that_is_given_stays() -> None:
    value = CategoricalValue(5, v_max=2.0)
    value.fit(-8.0 / 1.1, 30.0)
    assert bounds(value) == pytest.approx((-8.0, 2.0))
    assert value.widened(below=True, above=True) == pytest.approx((-18.0, 2.0))
    assert value.arguments() == {"atoms": 5, "v_min": None, "v_max": 2.0, "priority": "kl"}


@pytest.mark.parametrize(
    ("below", "above", "expected"), [(False, True, (-1, 7)), (True, False, (-5, 3)), (True, True, (-5, 7))]
)
def test_a_bound_moves_by_the_width_of_the_support(below: bool, above: bool, expected: Any) -> None:
    value = CategoricalValue(5)
    value.set_bounds(-1.0, 3.0)
    assert value.widened(below=below, above=above) == expected


@pytest.mark.parametrize(
    ("reward", "discount", "below", "above"),
    [
        (0.5, 0.5, 0.0, 0.0),  # 0.5, 1, 1.5
        (2.1, 0.0, 0.0, 0.0),  # beyond by less than a tenth of the width
        (2.3, 0.0, 0.0, 1.0),
        (0.25, 0.9, 0.0, 0.25),  # 2.05: repeated forever it is 2.5
        (0.21, 0.9, 0.0, 0.0),  # 2.01: repeated forever it is 2.1
        (-1.0, 1.0, 0.5, 0.0),  # -1, 0, 1
    ],
)
def test_returns_count_as_clipped_if_repeated_forever_they_end_far_beyond_a_bound(
    reward: float, discount: float, below: float, above: float
) -> None:
    value = CategoricalValue(3)
    value.set_bounds(0.0, 2.0)
    after = torch.tensor([[0.5, 0.25, 0.25]]).log()
    metrics = value.metrics(after, after.exp(), after, torch.tensor([reward]), torch.tensor([discount]))
    assert metrics["clipped_below"].item() == pytest.approx(below)
    assert metrics["clipped_share"].item() == pytest.approx(below + above)
    assert (metrics["v_min"].item(), metrics["v_max"].item()) == (0.0, 2.0)


# ---- the same distributions on another support ----


def test_probabilities_are_projected_by_nearness() -> None:
    matrix = projected(torch.tensor([0.0, 1.0, 2.0]), torch.tensor([0.0, 2.0, 4.0]))
    assert matrix.tolist() == [[1.0, 0.5, 0.0], [0.0, 0.5, 1.0], [0.0, 0.0, 0.0]]


def random_logits(rows: int, width: int, spread: float) -> Tensor:
    """Draw logits of normal distributions around places between the ends, [rows, W]."""
    generator = torch.Generator().manual_seed(1)
    place = width * (0.1 + 0.8 * torch.rand(rows, 1, generator=generator))
    return -((torch.arange(width) - place) ** 2) / (2 * spread**2)


@pytest.mark.parametrize("after", [(0.0, 100.0), (-50.0, 50.0), (-50.0, 100.0)])
@pytest.mark.parametrize(("spread", "distance", "shift"), [(0.7, 0.45, 0.6), (2.0, 0.13, 0.1), (10.0, 0.01, 0.03)])
def test_the_map_keeps_the_distributions(after: Any, spread: float, distance: float, shift: float) -> None:
    logits, before = random_logits(400, 51, spread), torch.linspace(0.0, 50.0, 51)
    new = torch.linspace(*after, 51)
    projection = projected(before, new)
    matrix, offset = refit(logits[:200], projection)
    assert_close(matrix.sum(dim=1), torch.ones(51))
    for rows in (logits[:200], logits[200:]):
        probability = (rows @ matrix.T + offset).softmax(dim=1)
        assert (probability - rows.softmax(dim=1) @ projection.float().T).abs().sum(dim=1).mean() < distance
        assert (probability @ new - rows.softmax(dim=1) @ before).abs().mean() < shift  # of a support 50 wide


def sharpen(network: Any) -> None:
    """Let the last layers give smooth distributions of one or more peaks, which depend on the observation."""
    generator, place = torch.Generator().manual_seed(0), torch.linspace(0.0, 1.0, 51)
    waves = torch.stack([torch.cos(torch.pi * n * place) for n in range(1, 5)], dim=1)  # [51, 4]
    with torch.no_grad():
        for name, parameter in network.heads.named_parameters():
            if name.endswith("weight") and parameter.shape[0] % 51 == 0:
                drawn = torch.randn(parameter.shape[0] // 51, 4, parameter.shape[1], generator=generator)
                parameter.copy_((4.0 * waves @ drawn).reshape(parameter.shape))


@pytest.mark.parametrize("value", [CategoricalValue(51), HLGaussValue(51)], ids=["categorical", "hl-gauss"])
@pytest.mark.parametrize("heads", [{}, {"dueling": True, "noisy": True, "head": (8,)}], ids=["plain", "rainbow"])
def test_widening_keeps_the_action_values_of_both_networks(
    value: SupportValue, heads: Any, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(support, "PERIOD", 1)
    policy = made(value=value, optimizer=tk.Adam(0.0), target=tk.Target(10**9), double=True, **heads)
    for network in (policy.network, policy.target_network):
        sharpen(network)
    policy.value.fit(0.0, 10.0)
    obs = torch.as_tensor(batch_of(256, seed=1).obs)
    networks = policy.network, policy.target_network

    def values() -> list[Tensor]:
        with torch.no_grad():
            return [policy.value.mean(network(obs, None, None).outputs) for network in networks]

    before, (low, high) = values(), bounds(policy.value)
    with caplog.at_level(logging.INFO, "trainkit.policy.support"):
        policy.update(batch_of(128, reward=np.full(128, 6.0, np.float32)), step=1)
    assert bounds(policy.value) == pytest.approx((low, 2 * high - low))
    assert f"has the support {low:g}..{2 * high - low:g} instead of {low:g}..{high:g}" in caplog.text
    for one, other in zip(before, values(), strict=True):
        assert (one - other).abs().mean() < 0.005 * (high - low)
        assert one.std() > 0.1 * (high - low)


# ---- in a run ----


class Scaled(Walk):
    """Rewards of another size."""

    size = 1024.0

    def step(self, action: int) -> Any:
        obs, reward, *rest = super().step(action)
        return obs, self.size * reward, *rest


class Nothing(Scaled):
    size = 0.0


@pytest.fixture
def short(monkeypatch: pytest.MonkeyPatch) -> None:
    """Look for clipped targets every 7 updates, and widen where there are any."""
    monkeypatch.setattr(support, "PERIOD", 7)
    monkeypatch.setattr(support, "LARGEST_SHARE", 0.0)


@pytest.mark.usefixtures("short")
def test_rewards_a_thousand_times_as_large_teach_the_same_bits() -> None:
    plain, scaled = make_trainer(policy=AUTOMATIC), make_trainer(policy=AUTOMATIC, env=Scaled)
    for trainer in (plain, scaled):
        trainer.run()
    own, large = plain.policy.get_weights(), scaled.policy.get_weights()
    assert bounds(scaled.policy.value) == tuple(1024 * bound for bound in bounds(plain.policy.value))
    assert plain.policy.value.v_max > 12  # wider than any return
    for name in own.keys() - {"value.support", "value.low", "value.high", "value.gap"}:
        np.testing.assert_array_equal(own[name], large[name], name)


def test_without_any_reward_the_support_is_one_around_0() -> None:
    trainer = make_trainer(policy=AUTOMATIC, env=Nothing)
    trainer.run()
    assert bounds(trainer.policy.value) == (-1.0, 1.0)
    assert trainer.policy.value.is_fitted


@pytest.mark.parametrize("name", ["c51", "rainbow"])
def test_presets_fit_the_support_to_what_was_collected_before_learning(name: str) -> None:
    preset = getattr(tk.presets, name)
    options = {"n_envs": 2, "step_per_collect": 2, "learning_starts": 64, "hidden": (8,), "batch_size": 8}
    options |= {"network": {"head": ()}}
    options["update_per_step"] = 1.0
    trainer = preset("MountainCar-v0", **options, max_epoch=1, step_per_epoch=70, evaluation=None, device="cpu", seed=1)
    assert trainer.policy.value.is_automatic
    trainer.run()
    gamma = trainer.policy.horizon.gamma
    assert trainer.policy.value.v_min == pytest.approx(-1.1 * (1 - gamma**32) / (1 - gamma))  # 32 steps in each, all -1
    assert trainer.policy.value.v_max == 0.0


@pytest.mark.usefixtures("short")
def test_a_run_resumes_between_two_looks_to_the_same_bits_whatever_is_reported(tmp_path: Path) -> None:
    whole, first = make_trainer(policy=AUTOMATIC), make_trainer(policy=AUTOMATIC, log_every=5)
    whole.run()
    next(first)
    first.save(tmp_path / "here")
    at_save = bounds(first.policy.value)
    second = make_trainer(policy=AUTOMATIC, resume_from=tmp_path / "here", log_every=3)
    assert first.policy.n_updates % 7 > 0
    second.run()
    policies = [{k: v for k, v in everything(t).items() if k.startswith("/policy")} for t in (whole, second)]
    assert policies[0] == policies[1]
    assert bounds(whole.policy.value) != at_save

    loaded = tk.load_policy(second.save(tmp_path / "end"), device="cpu")
    obs = np.zeros((1, 2), np.float32)
    np.testing.assert_array_equal(loaded.action_values(obs), second.policy.action_values(obs))
    assert bounds(loaded.value) == bounds(second.policy.value)


def test_without_a_trainer_the_first_batch_sets_the_support() -> None:
    policy = made(value=CategoricalValue(5))
    policy.update(batch_of(2, reward=np.array([-4.0, 3.0], np.float32)), step=0)
    assert bounds(policy.value) == pytest.approx((-4.4, 3.3))


def test_an_offline_learner_takes_the_support_from_its_dataset() -> None:
    obs, is_last = np.arange(32, dtype=np.float32).reshape(8, 4), np.arange(8) % 4 == 3
    rows = {"obs": obs, "next_obs": obs + 4, "action": np.zeros(8, np.int64), "reward": np.ones(8)}
    buffer = tk.ReplayBuffer.from_arrays(**rows, terminated=is_last, spaces=Spaces())
    policy = made(value=CategoricalValue(5), gamma=0.5)
    tk.OfflineTrainer(policy, buffer, max_epoch=1, update_per_epoch=2, batch_size=4, seed=1, verbose=False)
    assert bounds(policy.value) == pytest.approx((0.0, 1.1 * 1.875))  # 1 + 0.5 + 0.25 + 0.125


# ---- files and mistakes ----


def test_a_support_that_was_given_is_not_in_files_as_before() -> None:
    assert not [name for name in made(value=CategoricalValue(5, -1, 1)).state_dict() if name.startswith("value")]
    assert "value.support" in made(value=CategoricalValue(5)).state_dict()


def test_weights_of_a_given_support_are_rejected_by_an_automatic_one_with_the_remedy() -> None:
    old = made(value=CategoricalValue(5, -1, 1)).get_weights()
    with pytest.raises(CheckpointError, match="give CategoricalValue the v_min and v_max that they were trained with"):
        made(value=CategoricalValue(5)).set_weights(old)


def test_a_network_whose_last_layer_is_not_known_needs_bounds() -> None:
    with pytest.raises(ConfigError, match=r"Sequential has no map_outputs\(matrix, offset\): give CategoricalValue"):
        tk.DQNPolicy(wide_net(5), value=CategoricalValue(5), device="cpu")
