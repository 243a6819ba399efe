"""The losses of PPO, A2C and REINFORCE by hand on two or three rows, their derivatives by finite differences."""

import math
import re
from typing import Any

import numpy as np
import pytest
import torch
from gymnasium import spaces

from tests.helpers.learning import Spaces, objective, parameters_of
from tests.helpers.rollouts import PLACE, Table, ended_rows, played
from trainkit import A2CPolicy, Adam, ConfigError, PPOPolicy, ReinforcePolicy
from trainkit.policy.advantages import RolloutRows
from trainkit.policy.on_policy import OnpolicyPolicy

LOG = math.log
P = [[0.5, 0.5], [0.25, 0.75], [0.2, 0.8]]  # of two actions, at three places
VALUES = [1.0, 2.0, 3.0]
ENTROPY = [-sum(p * LOG(p) for p in row) for row in P]
PARTS: Any = {"action_space": spaces.Discrete(2), "observation_space": PLACE, "device": "cpu", "seed": 0}


def table() -> Table:
    return Table(np.log(P), VALUES)


def metrics_of(policy: OnpolicyPolicy, step: int = 0, **columns: Any) -> dict[str, float]:
    """Take one update from episodes of a row each, and return what it showed."""
    assert len(list(policy.learn(ended_rows(**columns), step=step))) == 1
    return policy.read_metrics()


def ppo(**options: Any) -> PPOPolicy:
    """Make a policy whose loss is the policy's alone."""
    own = {"value_weight": 0.0, "normalize_advantage": False}
    return PPOPolicy(table(), **own | PARTS | options)


def surrogate(ratio: float, advantage: float, **options: Any) -> dict[str, float]:
    """Update from a row whose probability is 1/2 and was 1/2 / ratio."""
    return metrics_of(ppo(**options), reward=[advantage], value=[0.0], log_prob=[LOG(0.5 / ratio)], action=[0])


class TestPpo:
    @pytest.mark.parametrize(
        ("ratio", "advantage", "loss"),
        [
            (1.5, 10.0, -12.0),  # above the clip, and good: no more than 1.2
            (1.5, -10.0, 15.0),  # above, and bad: in full
            (0.5, 10.0, -5.0),  # below, and good: in full
            (0.5, -10.0, 8.0),  # below, and bad: no less than 0.8
            (1.1, 10.0, -11.0),
            (0.9, -10.0, 9.0),
        ],
    )
    def test_takes_the_worse_of_the_ratio_and_the_clipped_ratio(
        self, ratio: float, advantage: float, loss: float
    ) -> None:
        shown = surrogate(ratio, advantage)
        assert shown["policy_loss"] == pytest.approx(loss, rel=1e-5)
        assert shown["loss"] == pytest.approx(loss, rel=1e-5)
        assert shown["approx_kl"] == pytest.approx(ratio - 1 - LOG(ratio), rel=1e-4)
        assert shown["clip_share"] == (abs(ratio - 1) > 0.2)

    @pytest.mark.parametrize(("ratio", "advantage", "moves"), [(1.5, 1, False), (1.5, -1, True), (0.5, -1, False)])
    def test_beyond_the_clip_only_the_direction_back_has_a_gradient(
        self, ratio: float, advantage: float, moves: bool
    ) -> None:
        assert (surrogate(ratio, advantage)["grad_norm"] > 0) == moves

    def test_the_clip_is_a_schedule_of_the_step(self) -> None:
        rows = {"reward": [10.0], "value": [0.0], "log_prob": [LOG(0.25)], "action": [0]}  # ratio 2
        knots = [(0, 0.5), (100, 0.1)]
        losses = [metrics_of(ppo(clip_ratio=knots), step, **rows)["loss"] for step in (0, 50, 100)]
        assert losses == pytest.approx([-15, -13, -11], rel=1e-5)

    def test_the_critics_loss_is_the_mean_square(self) -> None:
        shown = metrics_of(
            ppo(value_weight=0.5), reward=[4.0, 2.0, -1.0], value=VALUES, log_prob=np.log([0.5, 0.25, 0.2]),
            action=[0, 0, 0],
        )  # fmt: skip
        # advantages 3, 0, -4 at ratio 1; squares 9, 0, 16
        assert shown["policy_loss"] == pytest.approx(1 / 3, rel=1e-5)
        assert shown["value_loss"] == pytest.approx(25 / 3)
        assert shown["value_mean"] == 2
        assert shown["loss"] == pytest.approx(1 / 3 + 25 / 6, rel=1e-5)

    @pytest.mark.parametrize(
        ("stored", "td_target", "error"),
        [
            (0.0, 4.0, 3.5),  # the value is 1 now, 0.5 clipped: farther from 4
            (0.0, -4.0, 5.0),  # the value itself is farther
            (0.8, 4.0, 3.0),  # within the clip they are one
            (3.0, 4.0, 3.0),  # moved down by 2; clipped it would be nearer, at 2.5
            (3.0, 0.0, 2.5),
        ],
    )
    def test_a_clipped_value_counts_where_it_is_worse(self, stored: float, td_target: float, error: float) -> None:
        shown = metrics_of(ppo(clip_value=0.5), reward=[td_target], value=[stored], log_prob=[LOG(0.5)], action=[0])
        assert shown["value_loss"] == pytest.approx(error**2)

    def test_entropy_is_taken_off_the_loss_times_its_weight(self) -> None:
        rows = {"reward": [0.0] * 3, "value": [0.0] * 3, "log_prob": np.log([0.5, 0.25, 0.2]), "action": [0] * 3}
        shown = metrics_of(ppo(entropy_weight=[(0, 0.0), (10, 2.0)]), step=5, **rows)
        assert shown["entropy"] == pytest.approx(sum(ENTROPY) / 3)
        assert shown["loss"] == pytest.approx(-sum(ENTROPY) / 3)

    def test_advantages_are_normalised_over_the_batch(self) -> None:
        shown = metrics_of(
            ppo(normalize_advantage=True), reward=[1.0, 2.0, 6.0], value=[0.0] * 3, action=[0, 0, 0],
            log_prob=[LOG(0.5 / 1.1), LOG(0.25 / 1.0), LOG(0.2 / 0.9)],
        )  # fmt: skip
        # mean 3, deviation sqrt((4 + 1 + 9) / 3); ratios 1.1, 1, 0.9
        assert shown["policy_loss"] == pytest.approx(-(1.1 * -2 + -1 + 0.9 * 3) / 3 / math.sqrt(14 / 3), rel=1e-4)

    def test_learning_stops_at_the_first_batch_beyond_target_kl(self) -> None:
        # at ratio 2 the estimate is 1 - log 2 = 0.307
        rows = ended_rows(reward=[1.0], value=[0.0], log_prob=[LOG(0.25)], action=[0])
        for target_kl, expected in ((0.3, 1), (None, 7)):
            policy = ppo(target_kl=target_kl, optimizer=Adam(0.0))
            assert len(list(policy.learn(rows, step=0, repeat=7))) == expected
            assert policy.n_updates == expected
        assert len(list(ppo(target_kl=0.31, optimizer=Adam(0.0)).learn(rows, step=0, repeat=7))) == 7

    def test_a_rollout_after_a_stopped_one_is_learned_from(self) -> None:
        policy = ppo(target_kl=0.3, optimizer=Adam(0.0))
        far, near = (ended_rows(reward=[1.0], value=[0.0], log_prob=[LOG(p)], action=[0]) for p in (0.25, 0.5))
        assert [len(list(policy.learn(rows, step=0, repeat=3))) for rows in (far, near, far)] == [1, 3, 1]


class TestA2c:
    def test_by_hand(self) -> None:
        policy = A2CPolicy(table(), value_weight=0.5, entropy_weight=0.1, **PARTS)
        shown = metrics_of(policy, reward=[3.0, 0.0], value=[1.0, 4.0], log_prob=[9.0, 9.0], action=[0, 1])
        # advantages 2 and -4 of the stored values; squares (1 - 3)**2, (2 - 0)**2 of the critic's
        policy_loss = -(2 * LOG(0.5) - 4 * LOG(0.75)) / 2
        entropy = (ENTROPY[0] + ENTROPY[1]) / 2
        assert shown["policy_loss"] == pytest.approx(policy_loss)
        assert shown["value_loss"] == pytest.approx(4)
        assert shown["entropy"] == pytest.approx(entropy)
        assert shown["value_mean"] == 1.5
        assert shown["loss"] == pytest.approx(policy_loss + 0.5 * 4 - 0.1 * entropy)

    def test_can_normalise_its_advantages(self) -> None:
        policy = A2CPolicy(table(), normalize_advantage=True, **PARTS)
        shown = metrics_of(policy, reward=[3.0, 0.0], value=[1.0, 4.0], log_prob=[9.0, 9.0], action=[0, 1])
        assert shown["policy_loss"] == pytest.approx(-(LOG(0.5) - LOG(0.75)) / 2)


class TestReinforce:
    def rollout(self, policy: ReinforcePolicy, step: int = 0) -> dict[str, float]:
        """Learn from one episode of rewards 1, 10, 100 with actions 0, 1, 0, cut at its end."""
        column = np.array([[False], [False], [True]])
        rows = ended_rows(
            reward=[1.0, 10.0, 100.0], value=[50.0] * 3, log_prob=[9.0] * 3, action=[0, 1, 0],
            n_rows=np.array([3]), ended=column, terminated=np.zeros((3, 1), np.bool_),
            last_rows=np.array([2]), last_obs=np.array([[1.0]], np.float32),
        )  # fmt: skip
        changed = {name: getattr(rows, name).reshape(3, 1) for name in ("action", "reward")}
        extras = {name: one.reshape(3, 1) for name, one in rows.extras.items()}
        own = {name: getattr(rows, name) for name in ("terminated", "ended", "n_rows", "last_rows", "last_obs")}
        whole = type(rows)(obs=rows.obs.reshape(3, 1, 1), extras=extras, **changed, **own)
        list(policy.learn(whole, step=step))
        return policy.read_metrics()

    def test_by_hand_nothing_follows_a_cut_and_no_value_counts(self) -> None:
        policy = ReinforcePolicy(table(), normalize_advantage=False, **PARTS)
        gamma = policy.horizon.gamma
        returns = [1 + gamma * 10 + gamma**2 * 100, 10 + gamma * 100, 100]
        shown = self.rollout(policy)
        loss = -(returns[0] * LOG(0.5) + returns[1] * LOG(0.75) + returns[2] * LOG(0.2)) / 3
        assert shown["loss"] == pytest.approx(loss, rel=1e-5)
        assert shown["return_mean"] == pytest.approx(sum(returns) / 3)
        assert shown["entropy"] == pytest.approx(sum(ENTROPY) / 3)

    def test_its_values_never_move(self) -> None:
        policy = ReinforcePolicy(table(), **PARTS)
        before = parameters_of(policy)
        self.rollout(policy)
        after = parameters_of(policy)
        assert torch.equal(before["network.values"], after["network.values"])
        assert not torch.equal(before["network.logits"], after["network.logits"])


POLICIES: list[Any] = [
    pytest.param(PPOPolicy, {"entropy_weight": 0.3}, id="ppo"),
    pytest.param(PPOPolicy, {"entropy_weight": 0.3, "clip_value": 0.5, "normalize_advantage": False}, id="ppo clipped"),
    pytest.param(A2CPolicy, {"entropy_weight": 0.3}, id="a2c"),
    pytest.param(A2CPolicy, {"entropy_weight": 0.3, "normalize_advantage": True}, id="a2c normalised"),
    pytest.param(ReinforcePolicy, {}, id="reinforce"),
]


@pytest.mark.parametrize("is_masked", [False, True])
@pytest.mark.parametrize(("kind", "options"), POLICIES)
def test_the_gradient_is_what_finite_differences_say(kind: Any, options: Any, is_masked: bool) -> None:
    network = Table([[0.1, -0.4, 0.3], [1.0, 0.2, -0.5], [0.0, 0.7, 0.2], [0.5, 0.4, -0.3]], [1, 2, 3, 4])
    policy = kind(network, **PARTS | options | {"action_space": spaces.Discrete(3)}).double()

    def column(*numbers: float) -> torch.Tensor:
        return torch.tensor(numbers, dtype=torch.double)

    legal = torch.tensor([[True, True, False], [True, True, True], [False, True, True], [True, True, False]])
    rows = RolloutRows(
        features=column(0, 1, 2, 3).unsqueeze(1),
        legal=legal if is_masked else None,
        action=torch.tensor([0, 2, 1, 1]),
        log_prob=column(-0.9, -1.9, -0.4, -2.5),  # ratios within the clip and beyond it, on both sides
        value=column(1.2, 0.5, 3.1, 6.0),
        advantage=column(2, -1, 0.5, 1.5),
        returns=column(0.3, 4, 3.7, -1),
    )

    inputs = {name: torch.as_tensor(number) for name, number in policy.loss_inputs(4, step=0).items()}

    def loss() -> torch.Tensor:
        minimized: torch.Tensor = objective(policy.loss, rows._replace(inputs=inputs))["loss"]
        return minimized

    loss().backward()
    for parameter in network.parameters():
        derivative = torch.zeros_like(parameter)
        with torch.no_grad():
            for i in range(parameter.numel()):
                both = []
                for sign in (1, -1):
                    parameter.view(-1)[i] += sign * 1e-5
                    both.append(float(loss()))
                    parameter.view(-1)[i] -= sign * 1e-5
                derivative.view(-1)[i] = (both[0] - both[1]) / 2e-5
        own = torch.zeros_like(parameter) if parameter.grad is None else parameter.grad
        torch.testing.assert_close(own, derivative, rtol=1e-6, atol=1e-8)


@pytest.mark.parametrize(
    ("kind", "options", "message"),
    [
        (PPOPolicy, {"clip_ratio": -1}, r"PPOPolicy.clip_ratio must be in \[0, inf\), got -1"),
        (PPOPolicy, {"clip_value": 0}, r"PPOPolicy.clip_value must be in \(0, inf\), got 0"),
        (PPOPolicy, {"target_kl": -1}, r"PPOPolicy.target_kl must be in \(0, inf\), got -1"),
        (PPOPolicy, {"value_weight": -1}, r"PPOPolicy.value_weight must be in \[0, inf\), got -1"),
        (PPOPolicy, {"entropy_weight": -1}, r"PPOPolicy.entropy_weight must be in \[0, inf\), got -1"),
        (PPOPolicy, {"lam": 1.1}, "PPOPolicy.lam must be"),
        (A2CPolicy, {"value_weight": "much"}, "A2CPolicy.value_weight must be"),
        (A2CPolicy, {"entropy_weight": -1}, r"A2CPolicy.entropy_weight must be in \[0, inf\), got -1"),
        (ReinforcePolicy, {"lam": -0.1}, "ReinforcePolicy.lam has no effect: its advantages are whole returns"),
    ],
)
def test_a_wrong_number_is_refused_by_name(kind: Any, options: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        kind(table(), **PARTS | options)


def test_two_wrong_numbers_are_reported_together() -> None:
    with pytest.raises(ConfigError) as caught:
        PPOPolicy(table(), clip_ratio=-1, value_weight=-1, **PARTS)
    assert "clip_ratio" in str(caught.value)
    assert "value_weight" in str(caught.value)


@pytest.mark.parametrize("kind", [PPOPolicy, A2CPolicy, ReinforcePolicy])
def test_metrics_are_those_the_docstring_names(kind: Any) -> None:
    policy = kind.for_envs(Spaces(), device="cpu", seed=0)
    list(policy.learn(played(policy, Spaces().observation_space), step=0, batch_size=5))
    received = kind.__doc__.split("Metrics: ")[1]
    while "(" in received:
        received = re.sub(r"\([^()]*\)", "", received)
    assert set(policy.read_metrics()) == set(re.findall(r"\w+", received))
