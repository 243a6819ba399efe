"""PPO in numpy: the same losses, gradients and steps as torch's, and torch itself wherever there is no twin."""

import copy
from typing import Any

import numpy as np
import pytest
import torch
from gymnasium import spaces
from torch import Tensor

from tests.helpers.learning import FOUR_NUMBERS, MASKED, Spaces, assert_same, linear, observations, parameters_of
from trainkit import Adam, Clip, DivergedError, PPOPolicy
from trainkit.policy.compiling import Loss
from trainkit.policy.distributions import Categorical
from trainkit.policy.gradient_step import ByHand
from trainkit.policy.host.rows import HostRows
from trainkit.policy.rollout_rows import RolloutRows

TWO_NUMBERS = spaces.Box(-1, 1, (2,), np.float32)
PARTS: list[Any] = [
    pytest.param({}, id="ppo"),
    pytest.param({"shared": True, "entropy_weight": 0.01}, id="shared, entropy"),
    pytest.param({"clip_value": 0.1, "value_weight": 1.0, "clip_ratio": 0.05}, id="clipped values"),
    pytest.param({"clip_ratio": [(0, 0.3), (10, 0.0)], "entropy_weight": [(0, 0.1), (10, 0.0)]}, id="schedules"),
    pytest.param({"observation_space": MASKED, "entropy_weight": 0.01}, id="masked"),
    pytest.param({"action_space": TWO_NUMBERS, "entropy_weight": 0.01}, id="gaussian"),
    pytest.param({"action_space": TWO_NUMBERS, "shared": True, "hidden": (8,), "log_std": -1.0}, id="narrow gaussian"),
    pytest.param({"optimizer": Adam(1e-2, weight_decay=0.1), "clip": Clip(0.01, by="norm")}, id="weight decay"),
    pytest.param({"normalize_obs": True}, id="normalised observations"),
]


def made(cls: type[PPOPolicy] = PPOPolicy, **parts: Any) -> tuple[PPOPolicy, Spaces]:
    known = {name: parts.pop(name) for name in ("observation_space", "action_space") if name in parts}
    envs = Spaces(**known)
    return cls.for_envs(envs, **{"hidden": (16, 8), "lr": 1e-2, "device": "cpu", "seed": 0} | parts), envs


def by_torch(policy: PPOPolicy) -> PPOPolicy:
    policy._host_learner = None
    return policy


def rows_of(policy: PPOPolicy, envs: Spaces, n_rows: int, seed: int = 0) -> RolloutRows:
    """Make up rows of a rollout that was collected by another policy."""
    rng = np.random.default_rng(seed)
    obs = observations(envs.observation_space, n_rows, seed)
    other = copy.deepcopy(policy)
    other.start_streams(seed)
    output = other.act(obs, explore=True)
    drawn = [rng.normal(size=n_rows).astype(np.float32) for _ in range(4)]
    with torch.no_grad():
        features = policy.features(obs)
    legal = torch.from_numpy(obs["action_mask"] != 0) if isinstance(obs, dict) else None
    log_prob = torch.from_numpy(output.extras["log_prob"] + 0.3 * drawn[0])
    action, *others = (torch.from_numpy(column) for column in (output.action, *drawn[1:]))
    return RolloutRows(features, legal, action, log_prob, *others)


def objective_of(policy: PPOPolicy, rows: RolloutRows, step: int = 0) -> Loss | ByHand:
    scheduled = {name: getattr(policy, name)(step) for name in policy._scheduled}
    return policy._objective(policy._at_hand(rows), scheduled)


def learn(policy: PPOPolicy, rows: RolloutRows, step: int) -> dict[str, float]:
    """Take one update and return what it showed."""
    shown = policy.minimise("model", objective_of(policy, rows, step), step=step)
    policy.end_update(step=step, **shown)
    return policy.read_metrics()


def gradients_of(policy: PPOPolicy) -> dict[str, Tensor]:
    return {name: p.grad.clone() for name, p in policy.named_parameters() if p.grad is not None}


@pytest.mark.parametrize("parts", PARTS)
def test_an_update_is_torchs(parts: dict[str, Any]) -> None:
    (mine, envs), (theirs, _) = made(**dict(parts)), made(**dict(parts))
    by_torch(theirs)
    for step in range(30):
        rows = rows_of(theirs, envs, 33, seed=step)
        assert isinstance(objective_of(mine, rows), ByHand)
        assert not isinstance(objective_of(theirs, rows), ByHand)
        told, expected = learn(mine, rows, step), learn(theirs, rows, step)
        assert told == {name: pytest.approx(number, rel=1e-4, abs=1e-5) for name, number in expected.items()}
        if step == 0:
            torch.testing.assert_close(gradients_of(mine), gradients_of(theirs), rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(parameters_of(mine), parameters_of(theirs), rtol=1e-4, atol=2e-5)


class Own(PPOPolicy):
    """Charge something else."""

    def _loss(self, *args: Any, **scheduled: Any) -> Any:
        loss, shown = super()._loss(*args, **scheduled)
        return 2 * loss, shown


@pytest.mark.parametrize(
    ("cls", "parts"),
    [
        (Own, {}),
        (PPOPolicy, {"hidden": (400, 400)}),
        (PPOPolicy, {"action_space": TWO_NUMBERS, "action_bound_method": "tanh"}),
        (PPOPolicy, {"action_space": spaces.MultiDiscrete([2, 3])}),
        (PPOPolicy, {"action_space": spaces.MultiBinary(3)}),
    ],
)
def test_other_parts_are_torchs(cls: type[PPOPolicy], parts: dict[str, Any]) -> None:
    policy, _ = made(cls, **parts)
    assert policy._host_learner is None


def freeze_the_critic(policy: PPOPolicy) -> None:
    policy.network.critic.requires_grad_(False)  # type: ignore[union-attr, operator]


def freeze_the_deviation(policy: PPOPolicy) -> None:
    policy.distribution.log_std.requires_grad_(False)  # type: ignore[attr-defined]


def watch_the_network(policy: PPOPolicy) -> None:
    policy.network.register_forward_hook(lambda *_: None)


def activate_otherwise(policy: PPOPolicy) -> None:
    policy.network.actor_torso.body.activation = torch.sigmoid  # type: ignore[union-attr]


def stay(policy: PPOPolicy) -> None:
    pass


@pytest.mark.parametrize(
    ("change", "is_numpys"),
    [
        (stay, True),
        (freeze_the_critic, False),
        (freeze_the_deviation, False),
        (watch_the_network, False),
        (activate_otherwise, False),
    ],
)
def test_what_changes_within_a_rollout_hands_its_batches_over(change: Any, is_numpys: bool) -> None:
    policies = [made(action_space=TWO_NUMBERS)[0], by_torch(made(action_space=TWO_NUMBERS)[0])]
    rows = rows_of(policies[1], Spaces(FOUR_NUMBERS, TWO_NUMBERS), 24)
    for policy in policies:
        for i, batch in enumerate(policy._at_hand(rows).deal(3)):
            if i == 1:
                change(policy)
            objective = policy._objective(batch, {"clip_ratio": 0.2, "entropy_weight": 0.0})
            if i and policy is policies[0]:
                assert isinstance(objective, ByHand) is is_numpys
            policy.end_update(step=0, **policy.minimise("model", objective, step=0))
    torch.testing.assert_close(parameters_of(policies[0]), parameters_of(policies[1]), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("n_batches", [1, 3, 4, 7])
@pytest.mark.parametrize("space", [FOUR_NUMBERS, MASKED])
def test_rows_are_dealt_as_torch_deals_them(space: spaces.Space[Any], n_batches: int) -> None:
    policy, envs = made(observation_space=space)
    tensors = rows_of(policy, envs, 33)
    order = torch.randperm(33, generator=torch.Generator().manual_seed(1))
    arrays = HostRows.of(tensors).at(order).normalized_in(n_batches).deal(n_batches)
    for mine, theirs in zip(arrays, tensors.at(order).normalized_in(n_batches).deal(n_batches), strict=True):
        torch.testing.assert_close(tuple(mine.as_tensors()), tuple(theirs), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("number", [0.1, 1e4 / 3])
def test_equal_advantages_become_zero(number: float) -> None:
    policy, envs = made()
    rows = HostRows.of(rows_of(policy, envs, 777))
    equal = rows._replace(advantage=np.full(777, number, np.float32)).normalized_in(2)
    np.testing.assert_array_equal(equal.advantage, np.zeros(777, np.float32))


@pytest.mark.parametrize("features", [torch.zeros(3, 4).bfloat16(), torch.zeros(3, 1, 4), {"a": torch.zeros(3, 4)}])
def test_features_of_other_kinds_stay_tensors(features: Any) -> None:
    policy, envs = made()
    rows = rows_of(policy, envs, 3)._replace(features=features)
    assert policy._at_hand(rows) is rows


@pytest.mark.parametrize("n_rows", [1, 64, 65])
@pytest.mark.parametrize("parts", [{}, {"shared": True}, {"normalize_obs": True, "observation_space": MASKED}])
def test_what_follows_a_rollout_is_judged_as_torch_judges_it(parts: dict[str, Any], n_rows: int) -> None:
    policy, envs = made(**parts)
    obs = observations(envs.observation_space, n_rows)
    with torch.no_grad():
        expected = policy.network(policy.features(obs)).value
        torch.testing.assert_close(policy._values(obs), expected, rtol=1e-5, atol=1e-6)


def test_a_copy_learns_by_itself() -> None:
    policy, envs = made(action_space=TWO_NUMBERS)
    rows = rows_of(policy, envs, 16)
    learn(policy, rows, 0)
    copied, before = copy.deepcopy(policy), parameters_of(policy)
    learn(copied, rows, 1)
    assert_same(parameters_of(policy), before)
    learn(policy, rows, 1)
    assert_same(parameters_of(policy), parameters_of(copied))


def test_a_deviation_that_was_replaced_is_learnt_on() -> None:
    policies = [made(action_space=TWO_NUMBERS)[0], by_torch(made(action_space=TWO_NUMBERS)[0])]
    for policy in policies:
        rows = rows_of(policies[1], Spaces(FOUR_NUMBERS, TWO_NUMBERS), 16)
        learn(policy, rows, 0)
        policy.distribution.log_std = torch.nn.Parameter(torch.full((2,), -0.5))  # type: ignore[attr-defined]
        learn(policy, rows, 1)
        learn(policy, rows, 2)
    torch.testing.assert_close(parameters_of(policies[0]), parameters_of(policies[1]), rtol=1e-4, atol=1e-5)


def other_network(policy: PPOPolicy) -> None:
    policy.network = made(seed=1)[0].network


def other_distribution(policy: PPOPolicy) -> None:
    policy.distribution = Categorical(Spaces().action_space)


def weigh_the_critic_more(policy: PPOPolicy) -> None:
    policy.value_weight, policy.clip_value = 5.0, 0.01


def share_a_torso(policy: PPOPolicy) -> None:
    policy.network.critic_torso = policy.network.actor_torso


@pytest.mark.parametrize("change", [other_network, other_distribution, weigh_the_critic_more, share_a_torso])
@pytest.mark.parametrize("n_before", [0, 2])
def test_what_changes_later_is_seen(change: Any, n_before: int) -> None:
    (mine, envs), (theirs, _) = made(), made()
    by_torch(theirs)
    rows = [rows_of(theirs, envs, 16, seed=seed) for seed in range(5)]
    for policy in (mine, theirs):
        for step in range(n_before):
            learn(policy, rows[step], step)
        change(policy)
        for step in range(2, 5):
            learn(policy, rows[step], step)
    torch.testing.assert_close(parameters_of(mine), parameters_of(theirs), rtol=1e-4, atol=2e-5)
    acted, expected = (policy.act(observations(FOUR_NUMBERS, 5)).extras["value"] for policy in (mine, theirs))
    np.testing.assert_allclose(acted, expected, rtol=1e-4, atol=1e-5)


def test_weights_outside_the_loss_do_not_decay() -> None:
    pretrained = linear(np.eye(4))
    made_by_hand = PPOPolicy.for_envs(
        Spaces(), hidden=(8,), device="cpu", seed=0, preprocess=pretrained, optimizer=Adam(1e-2, weight_decay=0.1)
    )
    rows = rows_of(made_by_hand, Spaces(), 16)
    assert made_by_hand._host_learner is not None
    learn(made_by_hand, rows, 0)
    learn(made_by_hand, rows, 1)
    assert torch.equal(pretrained.weight, torch.eye(4))


def test_frozen_parts_stay_where_they_are() -> None:
    policies = [made(action_space=TWO_NUMBERS)[0], by_torch(made(action_space=TWO_NUMBERS)[0])]
    rows = rows_of(policies[1], Spaces(FOUR_NUMBERS, TWO_NUMBERS), 16)
    for policy in policies:
        policy.distribution.log_std.requires_grad_(False)  # type: ignore[attr-defined]
        learn(policy, rows, 0)
        policy.network.critic.requires_grad_(False)  # type: ignore[union-attr, operator]
        learn(policy, rows, 1)
    torch.testing.assert_close(parameters_of(policies[0]), parameters_of(policies[1]), rtol=1e-4, atol=1e-5)
    assert policies[0].distribution.log_std.tolist() == [0.0, 0.0]  # type: ignore[attr-defined]


def test_what_is_not_finite_moves_nothing() -> None:
    policy, envs = made()
    learn(policy, rows_of(policy, envs, 16), 0)
    before = parameters_of(policy)
    rows = rows_of(policy, envs, 16, seed=1)
    rows.advantage[3] = torch.nan
    with pytest.raises(DivergedError, match="update 2 at step 7"):
        learn(policy, rows, 7)
    assert_same(parameters_of(policy), before)
