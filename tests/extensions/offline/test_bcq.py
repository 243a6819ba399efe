"""Discrete BCQ: which actions are plausible, by hand; what follows them, is acted on and learned; what is refused."""

import math
from typing import Any

import numpy as np
import pytest
import torch
from gymnasium import spaces
from torch import nn
from torch.testing import assert_close

from tests.helpers.engine import torch_only
from tests.helpers.learning import (
    FOUR_NUMBERS,
    MASKED,
    NEVER,
    Spaces,
    batch_of,
    is_legal,
    observations,
    small_net,
)
from trainkit import (
    CategoricalValue,
    ConfigError,
    DiscreteBCQPolicy,
    DoubleBackup,
    DQNPolicy,
    EpsilonGreedy,
    ExpectedValue,
    ImplicitQuantileValue,
    QuantileValue,
    SpaceMismatchError,
)
from trainkit.engine.loss import TensorBatch
from trainkit.extensions.offline.bcq import Plausible, PlausibleBackup
from trainkit.nets import Prediction, QNetwork


def made(space: Any = FOUR_NUMBERS, **parts: Any) -> DiscreteBCQPolicy:
    return DiscreteBCQPolicy.for_envs(Spaces(space), **{"hidden": (8,), "device": "cpu", "seed": 0} | parts)


def log(*probabilities: float) -> torch.Tensor:
    return torch.tensor([probabilities]).log()


class TestPlausible:
    @pytest.mark.parametrize(
        ("probabilities", "threshold", "expected"),
        [
            ((0.5, 0.2, 0.1, 0.2), 0.3, [True, True, False, True]),  # shares of the largest: 1, 0.4, 0.2, 0.4
            ((0.5, 0.2, 0.1, 0.2), 0.5, [True, False, False, False]),
            ((0.5, 0.2, 0.1, 0.2), 0.0, [True] * 4),
            ((0.25, 0.25, 0.25, 0.25), 0.99, [True] * 4),
        ],
    )
    def test_an_action_is_legal_above_its_share_of_the_most_probable(
        self, probabilities: tuple[float, ...], threshold: float, expected: list[bool]
    ) -> None:
        among = Plausible(nn.Identity(), threshold)(log(*probabilities), None)
        assert among.tolist() == [expected]

    def test_the_most_probable_legal_action_is_the_reference(self) -> None:
        legal = torch.tensor([[False, True, True, True]])
        among = Plausible(nn.Identity(), 0.3)(log(0.9, 0.05, 0.01, 0.04), legal)
        assert among.tolist() == [[False, True, False, True]]  # shares of 0.05: 1, 0.2, 0.8

    def test_where_nothing_is_legal_anything_will_do(self) -> None:
        among = Plausible(nn.Identity(), 0.3)(log(0.9, 0.1), torch.tensor([[False, False]]))
        assert among.any()


def test_the_backup_is_the_targets_value_of_the_best_plausible_action() -> None:
    """Action 0 is best by far, and no one ever took it: 2 is the online choice among 1 and 2."""

    def says(*values: float) -> Any:
        return lambda obs, legal: Prediction(torch.tensor(values).view(1, 3, 1))

    one = torch.ones(1)
    logits = log(0.01, 0.5, 0.49)
    batch = TensorBatch(logits, one.long(), one, 0.9 * one, logits, one, None, None)
    backup = PlausibleBackup(Plausible(nn.Identity(), 0.3))
    after, reward = backup(says(100.0, 3.0, 4.0), says(200.0, 7.0, 5.0), batch, ExpectedValue())
    assert_close(after, torch.tensor([[5.0]]))
    assert_close(reward, one)


def values_of_all(policy: DiscreteBCQPolicy, obs: Any) -> Any:
    """Return the network's values, also of actions that are not plausible."""
    with torch.no_grad():
        return policy.network(torch.from_numpy(obs)).outputs.squeeze(2).numpy()


class TestActing:
    def test_an_action_that_is_not_plausible_is_not_taken_however_good(self) -> None:
        obs = observations(FOUR_NUMBERS, 300)
        policy = made(threshold=0.9)
        q = values_of_all(policy, obs)
        with torch.no_grad():
            logits = policy.plausible.logits(torch.from_numpy(obs)).numpy()
        share = np.exp(logits - logits.max(axis=1, keepdims=True))
        expected = [max(np.flatnonzero(row > 0.9), key=lambda a, i=i: q[i, a]) for i, row in enumerate(share)]
        np.testing.assert_array_equal(policy.act(obs).action, expected)
        assert (np.array(expected) != q.argmax(axis=1)).any()  # it does make a difference
        best, gap = policy.greedy_values(obs)
        np.testing.assert_allclose(best, q[np.arange(300), expected], atol=1e-5)
        np.testing.assert_array_equal(np.isinf(gap), (share > 0.9).sum(axis=1) == 1)

    def test_threshold_0_is_the_q_learner(self) -> None:
        obs = observations(FOUR_NUMBERS, 100)
        policy = made(threshold=0.0)
        np.testing.assert_array_equal(policy.act(obs).action, values_of_all(policy, obs).argmax(axis=1))

    @pytest.mark.parametrize("explore", [False, True])
    def test_what_is_illegal_is_never_taken(self, explore: bool) -> None:
        policy = made(MASKED, exploration=EpsilonGreedy(0.5))
        obs = observations(MASKED, 300)
        assert is_legal(policy.act(obs, explore=explore).action, obs["action_mask"])


class TestLearning:
    def test_the_imitation_minimizes_cross_entropy_and_small_logits(self) -> None:
        """Logits 0 and ln 3 say 1/4 and 3/4."""
        imitation = Constant([0.0, math.log(3.0)])
        policy = DiscreteBCQPolicy(
            small_net((4, 8, 2)), imitation, logit_weight=0.5, target=NEVER, device="cpu", seed=0
        )
        action, weight = np.array([0, 1]), np.array([1.0, 0.5], np.float32)
        policy.update(batch_of(2, action=action, weight=weight), step=0)
        size = 0.5 * math.log(3.0) ** 2 / 2
        received = policy.read_metrics()
        first, second = math.log(4.0) + size, math.log(4.0 / 3.0) + size
        assert received["imitation_loss"] == pytest.approx((first + 0.5 * second) / 2)
        assert received["plausible_share"] == 1.0  # a third of the most probable is above 0.3
        assert {"network_loss", "network_grad_norm", "imitation_grad_norm", "q_mean", "network_lr"} <= set(received)

    def test_the_values_learn_as_the_q_learners_where_all_is_plausible(self) -> None:
        """With threshold 0 the update is Double DQN's."""
        mine = torch_only(made(threshold=0.0, n_step=2))
        theirs = torch_only(DQNPolicy.for_envs(Spaces(), hidden=(8,), device="cpu", seed=0, double=True, n_step=2))
        for seed in range(20):
            one = mine.update(batch_of(16, seed=seed), step=seed).read_priority()
            other = theirs.update(batch_of(16, seed=seed), step=seed).read_priority()
            np.testing.assert_array_equal(one, other)

    @pytest.mark.one_of_each
    @pytest.mark.parametrize(
        "parts",
        [
            {"value": CategoricalValue(7, -3.0, 3.0)},
            {"value": QuantileValue(5), "dueling": True, "head": (6,)},
            {"value": ImplicitQuantileValue(3, target_quantiles=4), "noisy": True},
        ],
        ids=["categorical", "quantile dueling", "implicit noisy"],
    )
    @pytest.mark.parametrize("space", [FOUR_NUMBERS, MASKED], ids=["vector", "masked"])
    def test_it_goes_with_any_value_part(self, parts: dict[str, Any], space: Any) -> None:
        policy = made(space, **parts)
        policy.check_spaces(space, spaces.Discrete(3))
        batch = batch_of(16, space=space)
        if space is MASKED:
            batch.obs["action_mask"][np.arange(16), batch.action] = 1
        for step in range(5):
            policy.update(batch, step=step)
        assert all(np.isfinite(list(policy.read_metrics().values())))

    def test_an_action_absent_from_the_data_is_excluded(self) -> None:
        """Action 2 is never taken, and a network that was given nothing about it may think it best."""
        policy = made(lr=1e-2)
        for seed in range(150):
            action = np.random.default_rng(seed).integers(2, size=32)
            policy.update(batch_of(32, seed=seed, action=action), step=seed)
        assert set(policy.act(observations(FOUR_NUMBERS, 300, 999)).action) <= {0, 1}

    def test_a_saved_one_continues_to_the_bit(self) -> None:
        first, again = made(), made(seed=5)
        for policy in (first, again):
            for seed in range(3):
                policy.update(batch_of(8, seed=seed), step=seed)
        again.load_training_state(first.training_state())
        for policy in (first, again):
            policy.update(batch_of(8, seed=9), step=9)
        mine, theirs = (policy.state_dict() for policy in (first, again))
        assert all(torch.equal(mine[name], theirs[name]) for name in mine)
        assert any(name.startswith("plausible.imitation") for name in mine)


class Constant(nn.Module):
    """Give the same logits for every observation."""

    def __init__(self, logits: list[float]) -> None:
        super().__init__()
        self.logits = nn.Parameter(torch.tensor(logits))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.logits.expand(len(x), -1)


def test_what_does_not_fit_is_refused() -> None:
    for threshold in (-0.1, 1.0, 1.5):
        with pytest.raises(ConfigError, match="threshold must be"):
            made(threshold=threshold)
    with pytest.raises(ConfigError, match="logit_weight must be"):
        made(logit_weight=-1.0)
    with pytest.raises(ConfigError, match="has a backup of its own"):
        made(double=True)
    with pytest.raises(ConfigError, match="has a backup of its own"):
        made(backup=DoubleBackup())
    with pytest.raises(SpaceMismatchError, match="needs a Discrete, MultiDiscrete or MultiBinary action space"):
        DiscreteBCQPolicy.for_envs(Spaces(action_space=spaces.Box(-1.0, 1.0, (3,))))
    policy = DiscreteBCQPolicy(QNetwork((4,), 3), Constant([0.0]), device="cpu")
    with pytest.raises(SpaceMismatchError, match=r"imitation gives logits \(1, 1\)"):
        policy.check_spaces(FOUR_NUMBERS, spaces.Discrete(3))
