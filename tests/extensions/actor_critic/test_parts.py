"""Parts of actor-critics by hand: reductions, deterministic actions, correlated noise, dropout."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from gymnasium import spaces
from torch import nn
from torch.testing import assert_close

import trainkit as tk
from tests.helpers.engine import engines
from tests.helpers.learning import FOUR_NUMBERS, Spaces, parameters_of
from tests.helpers.sac import PUSH, rows
from trainkit import ActorCriticPolicy, CategoricalValue, ConfigError, ExpectedValue, QuantileValue
from trainkit.extensions.actor_critic.dropout import DropoutCritics
from trainkit.nets import CriticNetwork
from trainkit.policy import (
    ColoredNoise,
    Deterministic,
    DropoutNetworks,
    FirstCritic,
    MeanOfCritics,
    MinOfSubset,
    OrnsteinUhlenbeckNoise,
    TruncatedQuantiles,
)

NUMBERS = torch.tensor([[[1.0], [3.0], [2.0]], [[5.0], [4.0], [6.0]]])  # [B, C, 1]
BOX = spaces.Box(-2.0, 2.0, (2,))


def generator() -> torch.Generator:
    return torch.Generator().manual_seed(0)


def made(**options: Any) -> ActorCriticPolicy:
    parts: dict[str, Any] = {"hidden": (8,), "device": "cpu", "seed": 0}
    return ActorCriticPolicy.for_envs(Spaces(FOUR_NUMBERS, PUSH), **parts | options)


class TwiceCritics(CriticNetwork):
    """Critics that compute their values in another way than `CriticNetwork`."""

    def forward(self, features: Any, action: torch.Tensor) -> torch.Tensor:
        return 2.0 * super().forward(features, action)


class OwnCritics(nn.Module):
    """Two critics of a user's, whose layers are called first and second."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(6, 1), nn.Linear(6, 1)

    def forward(self, features: torch.Tensor, action: torch.Tensor) -> torch.Tensor:
        x = torch.cat([features, action], dim=1)
        return torch.cat([self.first(x), self.second(x)], dim=1)


class TestReductions:
    def test_first_and_mean(self) -> None:
        assert FirstCritic()(NUMBERS, ExpectedValue()).tolist() == [[1.0], [5.0]]
        assert MeanOfCritics()(NUMBERS, ExpectedValue()).tolist() == [[2.0], [5.0]]

    def test_the_mean_of_distributions_is_their_mixture(self) -> None:
        value, outputs = CategoricalValue(3, -1.0, 1.0), torch.tensor([[[0.0, 1.0, 2.0], [3.0, 0.0, 0.0]]])
        mixture = MeanOfCritics()(outputs, value).softmax(dim=1)
        assert_close(mixture, outputs.softmax(dim=2).mean(dim=1))
        assert_close(value.mean(MeanOfCritics()(outputs, value)), value.mean(outputs).mean(dim=1))

    def test_the_least_of_a_drawn_subset(self) -> None:
        least = MinOfSubset(2)(NUMBERS, ExpectedValue(), torch.tensor([1, 2]))
        assert least.tolist() == [[2.0], [4.0]]
        assert MinOfSubset(2)(NUMBERS, ExpectedValue()).tolist() == [[1.0], [4.0]]  # of all where nothing is drawn

    def test_a_subset_has_different_critics_each_as_often(self) -> None:
        critics, source = CriticNetwork((4,), 2, n_critics=5), generator()
        subsets = torch.stack([MinOfSubset(2).draw(critics, source) for _ in range(2_000)])
        assert (subsets[:, 0] != subsets[:, 1]).all()
        counts = subsets.flatten().bincount(minlength=5) / 4_000
        assert counts.tolist() == pytest.approx([0.2] * 5, abs=0.03)

    def test_a_subset_that_is_too_large_is_refused(self) -> None:
        policy = made(reduction=MinOfSubset(3))
        with pytest.raises(ConfigError, match=r"MinOfSubset\(3\) needs critics with n_critics of at least 3, got"):
            policy.update(rows(), step=0)

    def test_the_largest_of_all_quantiles_are_dropped(self) -> None:
        outputs = torch.tensor([[[1.0, 9.0, 3.0], [8.0, 2.0, 7.0]]])
        assert TruncatedQuantiles(1)(outputs, QuantileValue(3)).tolist() == [[1.0, 2.0, 3.0, 7.0]]
        assert TruncatedQuantiles(0)(outputs, QuantileValue(3)).tolist() == [[1.0, 2.0, 3.0, 7.0, 8.0, 9.0]]
        with pytest.raises(ConfigError, match="drops 3 quantiles of each critic, which has 3"):
            TruncatedQuantiles(3)(outputs, QuantileValue(3))

    @pytest.mark.parametrize("engine", engines("torch", "numpy"))
    def test_a_subset_is_drawn_for_each_update(self, engine: Any) -> None:
        still: dict[str, Any] = {"critic_optimizer": tk.Adam(0.0), "optimizer": tk.Adam(0.0), "temperature": None}
        still["distribution"] = Deterministic(target_noise_std=0.0)
        policy, losses = made(reduction=MinOfSubset(1), n_critics=4, engine=engine, **still), set()
        for step in range(40):  # the same rows and weights: only the subset differs
            policy.update(rows(), step=step)
            losses.add(round(policy.read_metrics()["critic_loss"], 4))
        assert len(losses) == 4
        assert policy.engine.name == engine

    @pytest.mark.parametrize("critics", [CriticNetwork((4,), 2, hidden=(8,)), TwiceCritics((4,), 2), OwnCritics()])
    def test_the_actor_ascends_the_first_critic(self, critics: Any) -> None:
        parts: dict[str, Any] = {"distribution": Deterministic(), "actor_reduction": FirstCritic(), "temperature": None}
        actor, preprocess = tk.nets.ActorNetwork((4,), 2), tk.nets.Preprocess(FOUR_NUMBERS)
        policy = ActorCriticPolicy(actor, critics, action_space=PUSH, preprocess=preprocess, device="cpu", **parts)
        policy.update(rows(), step=0)
        batch = policy.tensors(rows())._replace(inputs=policy.loss_noise(8))
        assert_close(policy.actor_loss(batch).per_row, -critics(batch.obs, actor(batch.obs).tanh())[:, 0])

    def test_the_others_are_not_called_for_it(self) -> None:
        policy, shapes = made(actor_reduction=FirstCritic(), engine="torch", n_critics=3), []
        policy.critics.register_forward_hook(lambda module, given, outputs: shapes.append(outputs.shape))
        policy.actor_loss(policy.tensors(rows())._replace(inputs=policy.loss_noise(8)))
        assert shapes == [(8, 1)]

    def test_the_mean_of_rescaled_values_is_that_of_the_returns(self) -> None:
        value = ExpectedValue(rescale=1e-3)
        outputs = value.outputs(torch.tensor([[[0.0], [100.0]]]))
        assert value.mean(MeanOfCritics()(outputs, value)).item() == pytest.approx(50.0, rel=1e-4)

    def test_only_quantiles_are_truncated(self) -> None:
        with pytest.raises(ConfigError, match="needs quantiles, got outputs of CategoricalValue: give value="):
            TruncatedQuantiles(0)(torch.zeros(2, 1, 11), CategoricalValue(11, -1.0, 1.0))

    def test_the_actor_follows_a_reduction_that_is_assigned_unless_it_has_its_own(self) -> None:
        policy, obs = made(n_critics=3), np.ones((5, 4), np.float32)
        mean = made(n_critics=3, reduction=MeanOfCritics()).greedy_values(obs)[0]
        assert (policy.greedy_values(obs)[0] < mean).all()
        policy.reduction = MeanOfCritics()
        np.testing.assert_array_equal(policy.greedy_values(obs)[0], mean)

    def test_parts_that_were_assigned_are_saved(self, tmp_path: Path) -> None:
        policy, obs = made(n_critics=3), np.ones((5, 4), np.float32)
        policy.reduction, policy.actor_reduction, policy.target_entropy = MinOfSubset(1), MeanOfCritics(), -7.0
        loaded: Any = tk.load_policy(policy.save(tmp_path / "policy"), device="cpu")
        assert type(loaded.reduction) is MinOfSubset
        assert loaded.target_entropy == -7.0
        np.testing.assert_array_equal(loaded.greedy_values(obs)[0], policy.greedy_values(obs)[0])

    def test_a_value_with_fractions_of_its_own_is_refused(self) -> None:
        with pytest.raises(ConfigError, match=r"\.value must have no fractions of its own, .* got ImplicitQuantileV"):
            made(value=tk.ImplicitQuantileValue(8, target_quantiles=8), n_critics=1)


class TestDeterministic:
    def test_the_noise_of_exploration_may_be_assigned(self) -> None:
        policy, obs = made(distribution=Deterministic(0.5), temperature=None), np.zeros((3, 4), np.float32)
        greedy = policy.act(obs).action
        assert (policy.act(obs, explore=True).action != greedy).all()
        policy.distribution.noise_std = tk.schedules.Constant(0.0)
        np.testing.assert_array_equal(policy.act(obs, explore=True).action, greedy)
        assert policy.explore_metrics(0) == {"noise_std": 0.0}

    def test_a_family_with_parameters_of_its_own_is_refused(self) -> None:
        with pytest.raises(ConfigError, match=r"\.distribution must have no parameters, .* got SquashedGaussian: let"):
            made(distribution=tk.nets.SquashedGaussian)

    def test_acts_without_noise_by_the_tanh_of_the_outputs(self) -> None:
        policy = made(distribution=Deterministic(0.3), temperature=None)
        obs = np.linspace(-1, 1, 12, dtype=np.float32).reshape(3, 4)
        with torch.no_grad():
            unit = policy.actor(policy.features(obs)).tanh()
        np.testing.assert_allclose(policy.act(obs).action, policy.action_scale.to_space(unit).numpy(), rtol=1e-5)

    def test_explores_by_noise_of_the_standard_deviation(self) -> None:
        policy = made(distribution=Deterministic(0.1), temperature=None)
        obs = np.zeros((4_000, 4), np.float32)
        unit = policy.action_scale.to_unit(policy.act(obs, explore=True).action)
        greedy = policy.action_scale.to_unit(policy.act(obs).action)
        assert (unit - greedy).std() == pytest.approx(0.1, rel=0.05)

    def test_the_standard_deviation_may_be_a_schedule(self) -> None:
        policy = made(distribution=Deterministic([(0, 0.2), (100, 0.0)]), temperature=None)
        obs = np.zeros((2_000, 4), np.float32)
        greedy = policy.act(obs).action
        for step, expected in ((0, 0.2), (50, 0.1), (100, 0.0)):
            assert policy.explore_metrics(step) == {"noise_std": pytest.approx(expected)}
            unit = policy.action_scale.to_unit(policy.act(obs, explore=True, step=step).action)
            assert (unit - policy.action_scale.to_unit(greedy)).std() == pytest.approx(expected, rel=0.1, abs=1e-6)

    def test_its_noise_may_be_correlated(self) -> None:
        policy = made(distribution=Deterministic(0.1), temperature=None, exploration=ColoredNoise(2.0, length=100))
        obs, starts = np.zeros((1, 4), np.float32), np.ones(1, bool)
        found = []
        for _ in range(100):
            found.append(policy.act(obs, explore=True, starts=starts, env_ids=np.zeros(1, int)).action[0])
            starts = np.zeros(1, bool)
        deviations = np.array(found) - policy.act(obs).action
        assert np.corrcoef(deviations[:-1, 0], deviations[1:, 0])[0, 1] > 0.8

    def test_the_target_action_is_smoothed_by_clipped_noise(self) -> None:
        family = Deterministic(target_noise_std=0.2, target_noise_clip=0.5)(BOX)
        outputs, noise = torch.tensor([[0.0, 3.0]]), torch.tensor([[-10.0, 1.0]])
        action, log_prob = family.draw_next(outputs, noise)
        assert action.tolist() == [[pytest.approx(-0.5), pytest.approx(1.0)]]  # tanh(3) + 0.2 is above 1
        assert log_prob is None
        assert family.draw(outputs, noise)[0].tolist() == torch.tanh(outputs).tolist()
        plain = Deterministic(target_noise_std=0.0)(BOX)
        assert plain.draw_next(outputs, noise)[0].tolist() == torch.tanh(outputs).tolist()

    def test_a_temperature_is_refused(self) -> None:
        for temperature in ("auto", 0.2):
            with pytest.raises(ConfigError, match=r"temperature weights an entropy, .*: give temperature=None"):
                made(distribution=Deterministic(), temperature=temperature)

    @pytest.mark.parametrize("options", [{"noise_std": -0.1}, {"target_noise_std": -1}, {"target_noise_clip": -1}])
    def test_numbers_out_of_range_are_refused(self, options: Any) -> None:
        with pytest.raises(ConfigError, match=f"Deterministic.{next(iter(options))}"):
            Deterministic(**options)


def test_ornstein_uhlenbeck_noise_is_stationary_and_correlated_as_written() -> None:
    drawn = OrnsteinUhlenbeckNoise(0.15, length=50).draw(4_000, 2, np.random.default_rng(0))
    assert drawn.shape == (4_000, 50, 2)
    for t in (0, 1, 25, 49):
        assert drawn[:, t].std() == pytest.approx(1.0, abs=0.03)
        assert drawn[:, t].mean() == pytest.approx(0.0, abs=0.03)
    for lag in (1, 4):
        assert np.mean(drawn[:, :-lag] * drawn[:, lag:]) == pytest.approx(0.85**lag, abs=0.03)
    assert abs(np.mean(drawn[..., 0] * drawn[..., 1])) < 0.02


class TestDropout:
    def critics(self, dropout: float = 0.25) -> DropoutCritics:
        how: dict[str, Any] = {"n_critics": 2, "width": None, "hidden": (6, 5), "encoder": None, "activation": None}
        return DropoutCritics((4,), 2, dropout=dropout, **how)

    def test_what_noise_drops_is_zero_before_the_normalization(self) -> None:
        critics = self.critics()
        features, action = torch.linspace(-1, 1, 12).view(3, 4), torch.linspace(-1, 1, 6).view(3, 2)
        noise = critics.draw_noise(3, generator())
        outputs = critics(features, action, noise)
        for number in range(2):
            x, start = torch.cat([features, action], dim=1), 0
            for layer, norm in zip(critics.layers, critics.norms, strict=False):
                x = x @ layer.weight[number].T + layer.bias[number]  # type: ignore[index, operator]
                width = x.shape[1]
                kept = noise[number, :, start : start + width] >= 0.25
                start += width
                x = torch.where(kept, x / 0.75, 0.0)
                x = torch.nn.functional.layer_norm(x, (width,)) * norm.weight[number] + norm.bias[number]  # type: ignore[index, operator]
                x = x.relu()
            last: Any = critics.layers[-1]
            assert_close(outputs[:, number], (x @ last.weight[number].T + last.bias[number])[:, 0])

    def test_without_noise_nothing_is_dropped(self) -> None:
        critics, obs, action = self.critics(0.9), torch.ones(3, 4), torch.zeros(3, 2)
        no_drop = self.critics(0.0)
        no_drop.load_state_dict(critics.state_dict())
        assert_close(critics(obs, action), no_drop(obs, action, no_drop.draw_noise(3, generator())))

    @pytest.mark.parametrize("engine", engines("torch", "numpy"))
    def test_each_pass_of_a_loss_has_its_own_noise(self, engine: Any) -> None:
        policy = made(networks=DropoutNetworks(0.5), actor_reduction=MeanOfCritics(), engine=engine)
        drawn = policy.loss_noise(8)
        noises = [drawn[name] for name in ("critic_noise", "target_noise", "actor_noise")]
        assert all(one.shape == (2, 8, 8) for one in noises)
        assert not torch.equal(noises[0], noises[1])
        before = parameters_of(policy.critics)
        for step in range(3):
            policy.update(rows(seed=step), step=step)
        assert any(not torch.equal(own, before[name]) for name, own in parameters_of(policy.critics).items())
        assert policy.engine.name == engine
        best, _ = policy.greedy_values(np.zeros((2, 4), np.float32))
        again, _ = policy.greedy_values(np.zeros((2, 4), np.float32))
        np.testing.assert_array_equal(best, again)  # without dropout

    def test_refused(self) -> None:
        with pytest.raises(ConfigError, match=r"DropoutNetworks\.dropout must be below 1, got 1"):
            DropoutNetworks(1)
        with pytest.raises(ConfigError, match="no memory"):
            made(networks=DropoutNetworks(), recurrent="gru")


def test_a_changed_reduction_is_warned_of_on_resume(tmp_path: Path, caplog: Any) -> None:
    def trainer(size: int, **options: Any) -> tk.OffpolicyTrainer:
        envs = tk.make_envs("Pendulum-v1", 1)
        parts: dict[str, Any] = {"hidden": (4,), "reduction": tk.policy.MinOfSubset(size), "device": "cpu"}
        train = tk.Collector(tk.ActorCriticPolicy.for_envs(envs, **parts), envs, tk.ReplayBuffer(100))
        return tk.OffpolicyTrainer(train.policy, train, max_epoch=1, step_per_epoch=10, batch_size=4, **options)

    trainer(1).save(tmp_path)
    trainer(2, resume_from=tmp_path)
    (warning,) = [record.message for record in caplog.records if record.levelname == "WARNING"]
    assert warning.endswith("with other settings: policy.reduction MinOfSubset(size=1) -> MinOfSubset(size=2)")
