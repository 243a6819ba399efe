"""The off-policy actor-critic of parts: heads, reductions, passes, delays, constraints, each beside a calculation."""

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest
import torch
from gymnasium import spaces
from torch import Tensor, nn
from torch.testing import assert_close

from tests.helpers.engine import engines
from tests.helpers.learning import FOUR_NUMBERS, NEVER, Spaces, parameters_of, small_net
from tests.helpers.sac import PUSH, rows
from trainkit import (
    ActorCriticPolicy,
    Adam,
    CategoricalValue,
    ConfigError,
    ExpectedValue,
    HLGaussValue,
    QuantileValue,
    SACPolicy,
    SpaceMismatchError,
    Target,
    load_policy,
)
from trainkit.nets import ActorNetwork, CriticNetwork
from trainkit.policy import CriticReduction, MinOfCritics, SeparatePasses, Value

STILL = Adam(0.0)
HEADS: list[Any] = [
    pytest.param(ExpectedValue("mse"), id="expected"),
    pytest.param(ExpectedValue("half_mse", rescale=1e-2), id="rescaled"),
    pytest.param(QuantileValue(5), id="quantiles"),
    pytest.param(CategoricalValue(11, -5.0, 5.0), id="categorical"),
    pytest.param(HLGaussValue(11, -5.0, 5.0), id="hl-gauss"),
]


def made(**options: Any) -> ActorCriticPolicy:
    parts: dict[str, Any] = {"hidden": (8,), "device": "cpu", "seed": 0}
    return ActorCriticPolicy.for_envs(Spaces(FOUR_NUMBERS, PUSH), **parts | options)


def updated(policy: ActorCriticPolicy, n: int = 1, **columns: Any) -> Mapping[str, float]:
    """Update a policy, and return the means of its metrics."""
    for step in range(n):
        policy.update(rows(seed=step, **columns), step=step)
    return policy.read_metrics()


def losses_by_hand(policy: ActorCriticPolicy, n_rows: int = 8) -> tuple[Any, Any]:
    """Return the tensors of a batch with noise, and the critic's loss for them."""
    batch = policy.tensors(rows(n_rows))._replace(inputs=policy.loss_noise(n_rows) | policy.loss_inputs(n_rows, step=0))
    return batch, policy.critic_loss(batch)


# ---- the meaning of outputs ----


@pytest.mark.parametrize("value", HEADS)
class TestHeads:
    def test_the_loss_is_the_sum_over_critics_of_the_parts_loss(self, value: Value) -> None:
        policy = made(value=value, n_critics=3, temperature=0.3)
        batch, loss = losses_by_hand(policy)
        value, critics, target_critics = policy.value, policy.critics, policy.target_critics
        assert target_critics is not None
        with torch.no_grad():
            action, log_prob = policy.distribution.draw(policy.actor(batch.next_obs), batch.inputs["next_noise"])
            after = outputs_of(target_critics, batch.next_obs, action)
            least = value.mean(after).argmin(dim=1)
            chosen = after[torch.arange(8), least]
            target = value.target(chosen, batch.reward, batch.discount, 0.3 * log_prob)
        unit = policy.action_scale.to_unit(batch.action).flatten(1).clamp(-1, 1)
        outputs = outputs_of(critics, batch.obs, unit)
        separate = [value.loss(outputs[:, number], target) for number in range(3)]
        assert_close(loss.per_row, torch.stack([own for own, _ in separate]).sum(dim=0))
        assert_close(loss.priority, torch.stack([own for _, own in separate]).mean(dim=0))

    def test_a_cost_is_subtracted_from_the_next_return(self, value: Value) -> None:
        outputs, cost = torch.linspace(-1, 1, 4 * value.width).view(4, value.width), torch.tensor([0.5, -0.2, 0.1, 0.0])
        reward, discount = torch.zeros(4), torch.tensor([0.9, 0.5, 0.0, 0.9])
        target = value.target(outputs, reward, discount, cost)
        shifted = value.target(outputs, reward - discount * cost, discount)
        assert_close(target, shifted, rtol=1e-5, atol=1e-6)

    @pytest.mark.parametrize("engine", engines("torch", "numpy"))
    def test_learns_what_rows_earn(self, value: Value, engine: Any) -> None:
        policy = made(value=value, engine=engine, lr=1e-2, hidden=(16,), temperature=None, n_critics=2)
        batch = rows(16, reward=np.linspace(-1, 1, 16).astype(np.float32), discount=np.zeros(16, np.float32))
        first = None
        for step in range(200):
            policy.update(batch, step=step)
            first = policy.read_metrics()["td_abs_mean"] if first is None else first
        assert policy.read_metrics()["critic_loss"] is not None
        policy.update(batch, step=200)
        assert policy.read_metrics()["td_abs_mean"] < 0.3 * first
        assert policy.engine.name == engine

    def test_the_greedy_value_is_the_reduced_critics(self, value: Value) -> None:
        policy = made(value=value)
        obs = np.zeros((3, 4), np.float32)
        best, _ = policy.greedy_values(obs)
        with torch.no_grad():
            features = policy.features(obs)
            mode = policy.distribution.mode(policy.actor(features), None).flatten(1)
            values = policy.value.mean(outputs_of(policy.critics, features, mode))
        np.testing.assert_allclose(best, values.min(dim=1).values.numpy(), rtol=1e-5, atol=1e-6)


def outputs_of(critics: nn.Module, features: Tensor, action: Tensor) -> Tensor:
    """Return critics' outputs [B, C, W]."""
    outputs: Tensor = critics(features, action)
    return outputs.unsqueeze(2) if outputs.dim() == 2 else outputs


def test_stacked_critics_are_as_many_separate_ones() -> None:
    stacked = CriticNetwork((4,), 2, n_critics=3, width=5, hidden=(8, 6), norm="layer")
    features, action = torch.linspace(-1, 1, 28).view(7, 4), torch.linspace(-1, 1, 14).view(7, 2)
    outputs = stacked(features, action)
    assert outputs.shape == (7, 3, 5)
    for number in range(3):
        x = torch.cat([features, action], dim=1)
        assert stacked.norms is not None
        for position, layer in enumerate(stacked.layers):
            x = x @ layer.weight[number].T + layer.bias[number]  # type: ignore[index]  # stacked
            if position < 2:
                norm: Any = stacked.norms[position]
                x = torch.relu(nn.functional.layer_norm(x, x.shape[1:]) * norm.weight[number] + norm.bias[number])
        assert_close(outputs[:, number], x)


# ---- reductions ----


class Pessimistic(CriticReduction):
    """The mean of two critics, minus k times their standard deviation."""

    def __init__(self, k: float) -> None:
        self.k = k

    def __call__(self, outputs: Tensor, value: Value, drawn: Tensor | None = None) -> Tensor:
        return outputs.mean(dim=1) - self.k * outputs.std(dim=1, correction=0)


class Flat(CriticReduction):
    """Forget the critics' last axis."""

    def __call__(self, outputs: Tensor, value: Value, drawn: Tensor | None = None) -> Tensor:
        return outputs.amin(dim=(1, 2))


class TestReductions:
    def test_the_least_critic_of_distributions_is_taken_whole(self) -> None:
        value = QuantileValue(2)
        outputs = torch.tensor([[[0.0, 4.0], [1.0, 2.0]], [[-1.0, 0.0], [0.0, 0.0]]])  # means 2, 1.5; -0.5, 0
        assert MinOfCritics()(outputs, value).tolist() == [[1.0, 2.0], [-1.0, 0.0]]

    def test_of_ones_own_is_used_in_both_losses(self) -> None:
        one, other = made(reduction=Pessimistic(0.0)), made(reduction=Pessimistic(0.5))
        for policy in (one, other):
            policy.update(rows(), step=0)
        first, second = one.read_metrics(), other.read_metrics()
        assert first["critic_loss"] != second["critic_loss"]
        assert first["actor_loss"] < second["actor_loss"]  # the value is higher

    def test_of_the_actor_may_be_another(self) -> None:
        policy = made(reduction=Pessimistic(0.0), actor_reduction=Pessimistic(0.5), critic_optimizer=STILL)
        own = made(reduction=Pessimistic(0.0), critic_optimizer=STILL)
        assert updated(policy)["critic_loss"] == updated(own)["critic_loss"]

    def test_may_be_replaced_between_updates(self) -> None:
        policy = made(temperature=None)
        updated(policy, 3)
        policy.reduction = Pessimistic(100.0)
        with_change = updated(policy, 1)
        again = made(temperature=None)
        updated(again, 3)
        assert updated(again, 1)["critic_loss"] != with_change["critic_loss"]


# ---- targets, delays, passes, constraints ----


class TestTargets:
    def test_there_may_be_none(self) -> None:
        policy = made(target="none", critic_optimizer=STILL)
        assert policy.target_critics is None
        assert not any(name.startswith("target") for name in parameters_of(policy))
        # a target that never moved is the same as none while the critics stand still
        assert updated(policy)["critic_loss"] == updated(made(target=NEVER, critic_optimizer=STILL))["critic_loss"]

    def test_a_target_actor_chooses_the_next_action(self) -> None:
        soft = Target(every=1, unit="updates", tau=0.5)
        policy = made(actor_target=soft, temperature=None, lr=1e-1)
        before = parameters_of(policy.target_actor)  # type: ignore[arg-type]  # is there
        policy.update(rows(), step=0)
        online = parameters_of(policy.actor)
        for name, weight in parameters_of(policy.target_actor).items():  # type: ignore[arg-type]
            assert_close(weight, 0.5 * before[name] + 0.5 * online[name])

    @pytest.mark.parametrize("engine", engines("torch", "numpy"))
    def test_the_actor_learns_in_every_nth_update(self, engine: Any) -> None:
        policy, moved = made(actor_every=3, engine=engine), []
        for step in range(6):
            before = parameters_of(policy.actor)
            temperature = policy.learned_temperature
            assert temperature is not None
            log = temperature.log.item()
            policy.update(rows(seed=step), step=step)
            after = parameters_of(policy.actor)
            moved.append(any(not torch.equal(after[name], before[name]) for name in before))
            assert (temperature.log.item() != log) == moved[-1]
        assert moved == [False, False, True] * 2

    def test_what_critics_are_called_with_is_up_to_the_pass(self) -> None:
        calls: list[tuple[int, int]] = []

        class Watched(SeparatePasses):
            def __call__(self, critics: Any, target_critics: Any, steps: Any, next_steps: Any) -> tuple[Tensor, Tensor]:
                calls.append((len(steps.action), len(next_steps.features)))
                return super().__call__(critics, target_critics, steps, next_steps)

        updated(made(critic_pass=Watched(), engine="torch"))
        assert calls == [(8, 8)]


@pytest.mark.parametrize("target", [None, "none"])
@pytest.mark.parametrize("engine", engines("torch", "numpy"))
def test_an_automatic_support_is_fitted_and_widened(engine: Any, target: Any) -> None:
    policy = made(value=CategoricalValue(21), temperature=None, engine=engine, target=target, lr=1e-2)
    value: Any = policy.value
    policy.update(rows(reward=np.linspace(-1, 1, 8).astype(np.float32)), step=0)
    assert bool(value.is_fitted)
    before = value.v_min, value.v_max
    assert before == (pytest.approx(-1.1), pytest.approx(1.1))
    for step in range(1, 600):
        policy.update(rows(seed=step, reward=np.full(8, 3.0, np.float32)), step=step)
    assert value.v_max > 3.0
    batch = rows(reward=np.full(8, 3.0, np.float32), discount=np.zeros(8, np.float32))
    for step in range(600, 900):
        policy.read_metrics()
        policy.update(batch, step=step)
    assert policy.read_metrics()["q_mean"] == pytest.approx(3.0, abs=0.5)


def test_widening_keeps_what_each_critic_gives() -> None:
    critics = CriticNetwork((4,), 2, n_critics=3, width=5, hidden=(8,))
    features, action = torch.linspace(-1, 1, 28).view(7, 4), torch.linspace(-1, 1, 14).view(7, 2)
    before = critics(features, action)
    matrix, offset = torch.linspace(-1, 2, 25).view(5, 5), torch.linspace(0, 1, 5)
    changed = critics.map_outputs(matrix, offset)
    assert len(changed) == 2
    assert_close(critics(features, action), before @ matrix.T + offset)


class Shorter(CriticNetwork):
    """Critics whose first layer's weights have the norm 1."""

    def constrained(self, parameters: Mapping[str, Tensor]) -> Mapping[str, Tensor]:
        first = parameters["layers.0.weight"]
        return {"layers.0.weight": first / first.norm()}


@pytest.mark.parametrize("engine", engines("torch", "numpy"))
def test_a_networks_constraint_holds_after_every_step(engine: Any) -> None:
    parts: dict[str, Any] = {"action_space": PUSH, "device": "cpu", "seed": 0, "engine": engine}
    policy = ActorCriticPolicy(ActorNetwork((4,), 4, hidden=(8,)), Shorter((4,), 2, hidden=(8,)), **parts)
    for step in range(3):
        policy.update(rows(seed=step), step=step)
        assert parameters_of(policy.critics)["layers.0.weight"].norm().item() == pytest.approx(1.0, rel=1e-6)


def test_a_networks_constraint_holds_beside_an_auxiliary_module() -> None:
    class Further(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.factor = nn.Parameter(torch.ones(()))

        def forward(self, features: Tensor, rows: Any) -> Tensor:
            return (self.factor * features.mean(dim=1) - 2.0).square()

    parts: dict[str, Any] = {"action_space": PUSH, "device": "cpu", "seed": 0, "auxiliary": Further()}
    critics = Shorter((4,), 2, hidden=(8,), encoder=small_net((4, 6)))
    policy = ActorCriticPolicy(ActorNetwork((4,), 4, hidden=(8,)), critics, **parts)
    for step in range(3):
        policy.update(rows(seed=step), step=step)
        assert parameters_of(policy.critics)["layers.0.weight"].norm().item() == pytest.approx(1.0, rel=1e-6)


# ---- what it is, and what is refused ----


def test_sac_is_the_policy_with_its_default_parts() -> None:
    one, other = made(), SACPolicy.for_envs(Spaces(FOUR_NUMBERS, PUSH), hidden=(8,), device="cpu", seed=0)
    assert updated(one, 3) == updated(other, 3)


def test_the_settings_of_a_policy_have_the_defaults_of_its_constructor() -> None:
    settings = made().settings()
    expected = {"temperature": "auto", "actor_every": 1, "actor_target": None, "target_entropy": -2.0}
    assert {name: settings[name] for name in expected} == expected
    assert "ellipsis" not in settings.values()
    assert made(temperature=None).settings()["target_entropy"] is None


def test_without_a_temperature_there_is_no_entropy_term() -> None:
    received = updated(made(temperature=None))
    assert not {"entropy", "temperature", "temperature_loss"} & received.keys()
    free = updated(made(temperature=0.0))
    assert received["critic_loss"] == pytest.approx(free["critic_loss"], rel=1e-6)
    assert received["actor_loss"] == pytest.approx(free["actor_loss"], rel=1e-6)


def test_saved_with_its_parts_it_acts_as_before(tmp_path: Any) -> None:
    policy = made(value=QuantileValue(5), n_critics=3, critic_hidden=(6, 6), actor_every=2, temperature=None)
    updated(policy, 2)
    loaded = load_policy(policy.save(tmp_path / "policy"), device="cpu")
    obs = np.linspace(-1, 1, 12).reshape(3, 4).astype(np.float32)
    np.testing.assert_array_equal(loaded.act(obs).action, policy.act(obs).action)
    assert loaded.config == policy.config


class Unfit(ExpectedValue):
    """A value part of the user's whose loss is of one critic."""

    def loss(self, chosen: torch.Tensor, target: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return super().loss(chosen[:, 0], target.view(3))


class TestRefused:
    def test_critics_of_another_width(self) -> None:
        networks = ActorNetwork((4,), 4), CriticNetwork((4,), 2, width=3)
        policy = ActorCriticPolicy(*networks, action_space=PUSH, device="cpu", value=QuantileValue(5))
        with pytest.raises(SpaceMismatchError, match=r"critics give \(1, 2, 3\) .* must give \[B, C, W\], 5 from each"):
            policy.check_spaces(FOUR_NUMBERS, PUSH)

    @pytest.mark.parametrize(
        ("options", "message"),
        [
            (
                {"value": Unfit()},
                "ActorCriticPolicy's Unfit, MinOfCritics, SeparatePasses fail together on one row",
            ),
            ({"reduction": Flat()}, r"Flat must map .* to \[B, W'\], got \(2,\) for \(2, 2, 1\)"),
            (
                {"distribution": lambda: PUSH},
                r"distribution must make a family .* raises TypeError: .* takes 0 positional",
            ),
            (
                {"distribution": lambda space: space},
                r"distribution must make a family .* as SquashedGaussians\(\) does",
            ),
        ],
    )
    def test_parts_that_do_not_fit_together(self, options: Any, message: str) -> None:
        with pytest.raises(ConfigError, match=message):
            made(**options).check_spaces(FOUR_NUMBERS, PUSH)

    def test_an_actor_of_another_width(self) -> None:
        policy = ActorCriticPolicy(ActorNetwork((4,), 3), CriticNetwork((4,), 2), action_space=PUSH, device="cpu")
        with pytest.raises(SpaceMismatchError, match="needs"):
            policy.check_spaces(FOUR_NUMBERS, PUSH)

    @pytest.mark.parametrize(
        ("options", "message"),
        [
            ({"temperature": "learned"}, "temperature must be 'auto', a number, a schedule or None"),
            ({"temperature": None, "target_entropy": -1.0}, "target_entropy needs temperature='auto'"),
            ({"actor_every": 0}, "every"),
            ({"n_critics": 0}, "n_critics"),
            ({"target": "never"}, "target"),
        ],
    )
    def test_options_out_of_range(self, options: Any, message: str) -> None:
        with pytest.raises(ConfigError, match=message):
            made(**options)

    def test_actions_that_are_not_in_a_bounded_box(self) -> None:
        with pytest.raises(SpaceMismatchError, match="ActorCriticPolicy"):
            ActorCriticPolicy.for_envs(Spaces(FOUR_NUMBERS, spaces.Discrete(3)))


def test_the_greedy_action_of_a_nested_box_keeps_its_shape() -> None:
    policy = ActorCriticPolicy.for_envs(Spaces(FOUR_NUMBERS, spaces.Box(-1, 1, (2, 3))), device="cpu")
    assert policy.predict(np.zeros(4, np.float32)).shape == (2, 3)
    assert policy.target_entropy == -math.prod((2, 3))
