"""Whole updates by the numpy engine: those of torch, over many of them, whatever the parts and the number of rows."""

import copy
import math
from typing import Any

import numpy as np
import pytest
import torch
from gymnasium import spaces
from torch import Tensor, nn

from tests.extensions.numpy_engine.pairs import NESTED, TWO_NUMBERS, gradients_of, learn_alike
from tests.helpers.learning import (
    FOUR_NUMBERS,
    MASKED,
    PARTS,
    Spaces,
    assert_same,
    batch_of,
    linear,
    made,
    observations,
    parameters_of,
    small_net,
)
from tests.helpers.rollouts import made as made_on_policy
from tests.helpers.rollouts import played
from tests.helpers.sac import PUSH
from trainkit import (
    A2CPolicy,
    Adam,
    CategoricalValue,
    Clip,
    ConservativePenalty,
    DQNPolicy,
    ExpectedValue,
    MaxBackup,
    MunchausenBackup,
    PPOPolicy,
    QuantileValue,
    ReinforcePolicy,
    SACPolicy,
    Target,
)
from trainkit.errors import DivergedError
from trainkit.extensions.numpy_engine import kernels
from trainkit.nets import ActorNetwork, CriticNetwork
from trainkit.nets.preprocess import WithoutMask

WIDE_DTYPES = spaces.Dict(
    {"a": spaces.Box(-1, 1, (2,), np.float64), "b": spaces.Box(0, 9, (3,), np.uint8), "c": spaces.MultiBinary(2)}
)


@pytest.fixture(params=[True, False], ids=["packing spared", "packed"])
def products(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Multiply as AVX-512 kernels do best, and as others do, whatever this machine has."""
    monkeypatch.setattr(kernels, "spares_packing", lambda: request.param)


# ---- Q-learners ----


class OwnBackup(MaxBackup):
    """Follow the maximum, of half the rewards."""

    def __call__(self, *given: Any) -> Any:
        after, reward = super().__call__(*given)
        return after, 0.5 * reward


OF_Q_LEARNERS: list[Any] = [
    *PARTS,
    pytest.param({"value": ExpectedValue("mse"), "max_grad_norm": None}, id="mse"),
    pytest.param({"value": ExpectedValue(delta=0.3), "double": True, "max_grad_norm": 0.05}, id="delta, clipped"),
    pytest.param({"value": CategoricalValue(7, -1, 1, priority="ce"), "head": (6,), "hidden": ()}, id="heads alone"),
    pytest.param({"noisy": True, "head": (6,), "max_grad_norm": 0.5}, id="noisy"),
    pytest.param({"value": QuantileValue(7), "double": True, "dueling": True}, id="quantiles"),
    pytest.param({"value": QuantileValue(3, kappa=0.0), "space": MASKED}, id="plain quantiles, masked"),
    pytest.param({"value": QuantileValue(4, rescale=1e-2)}, id="quantiles, rescaled"),
    pytest.param({"value": ExpectedValue(rescale=1e-2)}, id="rescaled"),
    pytest.param({"backup": MunchausenBackup()}, id="munchausen"),
    pytest.param({"backup": MunchausenBackup(0.5, lowest=-0.3), "space": MASKED, "dueling": True}, id="soft, masked"),
    pytest.param({"backup": MunchausenBackup(0.2), "value": QuantileValue(5), "noisy": True}, id="munchausen, all"),
    pytest.param({"backup": OwnBackup()}, id="own backup"),
    pytest.param({"penalty": ConservativePenalty(1.0), "space": MASKED}, id="penalty, masked"),
    pytest.param({"dueling": True, "double": True, "space": MASKED}, id="dueling, masked"),
    pytest.param(
        {"dueling": True, "noisy": True, "value": CategoricalValue(5, -2, 2), "space": MASKED}, id="all, masked"
    ),
    pytest.param({"clip": Clip(0.01, by="norm"), "dueling": True}, id="clipped one by one"),
    pytest.param({"clip": Clip(0.01, by="value"), "optimizer": Adam(1e-3, weight_decay=0.1)}, id="weight decay"),
    pytest.param({"space": NESTED, "double": True}, id="nested"),
    pytest.param({"space": NESTED, "normalize_obs": True, "dueling": True}, id="nested, normalised"),
    pytest.param({"space": WIDE_DTYPES}, id="float64, uint8 and bits"),
    pytest.param({"space": spaces.Discrete(4), "hidden": ()}, id="discrete"),
    pytest.param({"flush_denormals": False}, id="denormals"),
]


def pair(parts: dict[str, Any]) -> tuple[DQNPolicy, DQNPolicy, Any]:
    """Make a policy for numpy and an equal one for torch, and return their observation space too."""
    rest = dict(parts)
    space = rest.pop("space", FOUR_NUMBERS)
    return made(space, engine="numpy", **rest), made(space, engine="torch", **rest), space


@pytest.mark.fast_cases(12)
@pytest.mark.parametrize("parts", OF_Q_LEARNERS)
def test_a_q_learner_learns_as_by_torch(parts: dict[str, Any]) -> None:
    mine, theirs, space = pair(parts)
    learn_alike(mine, theirs, [batch_of(16, seed=seed, space=space) for seed in range(12)])


@pytest.mark.one_of_each
@pytest.mark.usefixtures("products")
@pytest.mark.parametrize("n_rows", [1, 64, 65, *(pytest.param(n, marks=pytest.mark.slow) for n in (2, 512))])
@pytest.mark.parametrize(
    "parts",
    [
        {"hidden": (256, 128), "double": True, "dueling": True},
        {"hidden": (128,), "head": (128,), "noisy": True, "dueling": True, "value": CategoricalValue(7, -1, 1)},
        {"hidden": (40,), "value": QuantileValue(30), "double": True},
    ],
    ids=["double", "noisy", "quantiles"],
)
def test_a_wide_q_learner_learns_as_by_torch(parts: dict[str, Any], n_rows: int) -> None:
    mine, theirs, space = pair(parts)
    learn_alike(mine, theirs, [batch_of(n_rows, seed=seed, space=space) for seed in range(3)], rtol=1e-3, atol=2e-5)


def test_batches_of_any_sizes_take_turns() -> None:
    mine, theirs, space = pair({"double": True, "dueling": True})
    sizes = [8, 8, 3, 8, 1, 3, 16, 8, 16, 1]
    learn_alike(mine, theirs, [batch_of(n, seed=seed, space=space) for seed, n in enumerate(sizes)])


COLUMNS: list[Any] = [
    pytest.param({"discount": np.zeros(8, np.float32)}, id="all terminal"),
    pytest.param({"weight": np.zeros(8, np.float32)}, id="weights 0"),
    pytest.param({"weight": np.linspace(0.0, 2.0, 8)}, id="float64 weights, one of them 0"),
    pytest.param({"reward": np.linspace(-3, 3, 8), "discount": np.full(8, 0.9)}, id="float64"),
    pytest.param({"action": np.zeros(8, np.uint8)}, id="uint8 actions"),
    pytest.param({"action": np.ones(8, np.int32)}, id="int32 actions"),
    pytest.param({"reward": np.full(8, 1e5, np.float32)}, id="large rewards"),
]


@pytest.mark.one_of_each
@pytest.mark.parametrize("columns", COLUMNS)
@pytest.mark.parametrize("value", [ExpectedValue(), CategoricalValue(5, -2, 2), QuantileValue(4)])
def test_extreme_rows_are_learned_from_as_by_torch(columns: dict[str, Any], value: Any) -> None:
    mine, theirs, _ = pair({"value": value, "double": True})
    learn_alike(mine, theirs, [batch_of(8, seed=seed, **columns) for seed in range(4)])


@pytest.mark.one_of_each
@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("value", [ExpectedValue(), CategoricalValue(5, -2, 2), QuantileValue(4)])
def test_what_follows_a_terminal_row_counts_nothing_whatever_it_is(bad: float, value: Any) -> None:
    mine, theirs, _ = pair({"value": value})
    next_obs = np.full((8, 4), bad, np.float32)
    columns: dict[str, Any] = {"discount": np.zeros(8, np.float32), "next_obs": next_obs}
    for step in range(3):
        for policy in (mine, theirs):
            policy.update(batch_of(8, seed=step, **columns), step=step)
    torch.testing.assert_close(parameters_of(mine), parameters_of(theirs), rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("make", [made, lambda **options: made(space=WIDE_DTYPES, **options)])
def test_observations_of_other_strides_and_dtypes_are_learned_from(make: Any) -> None:
    mine, theirs = make(engine="numpy"), make(engine="torch")

    def strided(leaf: Any) -> Any:
        return (
            np.asfortranarray(leaf[::-1]) if isinstance(leaf, np.ndarray) else {k: strided(x) for k, x in leaf.items()}
        )

    for step in range(4):
        plain = batch_of(8, seed=step, space=mine.observation_space)
        odd = batch_of(
            8, seed=step, space=mine.observation_space, obs=strided(plain.obs), next_obs=strided(plain.next_obs)
        )
        for batch in (plain, odd):
            for policy in (mine, theirs):
                policy.update(batch, step=step)
    torch.testing.assert_close(parameters_of(mine), parameters_of(theirs), rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("engine", ["numpy", "torch"])
@pytest.mark.parametrize("n_before", [0, 3])
@pytest.mark.parametrize("wrong", [-1, 3, 2**40])
def test_an_action_that_is_none_is_rejected_and_nothing_moves(wrong: int, n_before: int, engine: Any) -> None:
    policy = made(engine=engine)
    for step in range(n_before):
        policy.update(batch_of(8, seed=step), step=step)
    before, batch = parameters_of(policy), batch_of(8)
    batch.action[3] = wrong
    with pytest.raises((IndexError, RuntimeError), match=rf"{wrong}"):
        policy.update(batch, step=3)
    assert_same(parameters_of(policy), before)


# ---- what is not finite ----


@pytest.mark.parametrize("bad", [math.nan, math.inf])
@pytest.mark.parametrize("n_before", [0, 1, 5])
def test_what_is_not_finite_moves_nothing(bad: float, n_before: int) -> None:
    policy = made(target=Target(every=1, unit="updates"), engine="numpy")
    for step in range(n_before):
        policy.update(batch_of(8, seed=step), step=step)
    before = copy.deepcopy(policy.training_state())
    reward = np.zeros(8, np.float32)
    reward[3] = bad
    with pytest.raises(DivergedError, match=f"update {n_before + 1} at step 7"):
        policy.update(batch_of(8, reward=reward), step=7)
    assert_same(policy.training_state()["weights"], before["weights"])
    assert_same(policy.training_state()["targets"], before["targets"])
    if n_before:
        assert_same(policy.training_state()["optimizers"], before["optimizers"])
    policy.update(batch_of(8), step=8)


def test_skipped_updates_have_no_priorities_and_change_no_later_one() -> None:
    mine, theirs = made(engine="numpy"), made(engine="torch")
    for policy in (mine, theirs):
        policy.on_nan = "skip"
        for step in range(6):
            columns = {"reward": np.full(8, math.nan, np.float32)} if step in (0, 3) else {}
            result = policy.update(batch_of(8, seed=step, **columns), step=step)
            assert (result.read_priority() is None) is bool(columns)
        assert policy.read_metrics()["skipped"] == pytest.approx(2 / 6)
    torch.testing.assert_close(parameters_of(mine), parameters_of(theirs), rtol=1e-4, atol=1e-6)


# ---- copies and states ----


def rollout_learner(engine: Any = "numpy", **options: Any) -> PPOPolicy:
    policy: PPOPolicy = made_on_policy(action_space=TWO_NUMBERS, engine=engine, **options)
    return policy


def sac(engine: Any = "numpy", **options: Any) -> SACPolicy:
    own: dict[str, Any] = {"hidden": (16, 8), "lr": 1e-2, "device": "cpu", "seed": 0, "engine": engine}
    return SACPolicy.for_envs(Spaces(options.pop("space", FOUR_NUMBERS), PUSH), **own | options)


ROLLOUT = played(rollout_learner("torch"), FOUR_NUMBERS, [12, 9, 11])


def learn(policy: Any, step: int) -> None:
    """Take an update."""
    if isinstance(policy, PPOPolicy):
        list(policy.learn(ROLLOUT, step=step, batch_size=16))
    elif isinstance(policy, SACPolicy):
        policy.update(rows_of_sac(seed=step), step=step)
    else:
        policy.update(batch_of(8, seed=step), step=step)


def q_learner(engine: Any = "numpy") -> DQNPolicy:
    return made(hidden=(8, 8), engine=engine)


EVERY = pytest.mark.parametrize("make", [q_learner, sac, rollout_learner])


@EVERY
def test_a_copy_learns_by_itself(make: Any) -> None:
    policy = make()
    learn(policy, 0)
    copied, before = copy.deepcopy(policy), parameters_of(policy)
    learn(copied, 1)
    assert_same(parameters_of(policy), before)
    learn(policy, 1)
    assert_same(parameters_of(policy), parameters_of(copied))


@pytest.mark.one_of_each
@EVERY
@pytest.mark.parametrize("n_before", [1, 3, 6])
def test_a_resumed_policy_continues_to_the_bit(make: Any, n_before: int) -> None:
    straight, resumed = make(), make()
    for step in range(10):
        if step == n_before:
            resumed.load_training_state(copy.deepcopy(straight.training_state()))
        for policy in (straight, resumed) if step >= n_before else (straight,):
            policy.act(observations(FOUR_NUMBERS, 1 + step), explore=True)
            learn(policy, step)
    assert_same(resumed.training_state(), straight.training_state())


@EVERY
def test_acting_in_between_changes_no_bit(make: Any) -> None:
    one, other = make(), make()
    for step in range(6):
        learn(one, step)
        for n_rows in (1, 5, 70):
            other.act(observations(FOUR_NUMBERS, n_rows))
        learn(other, step)
    assert_same(parameters_of(one), parameters_of(other))


def freeze_the_body(policy: DQNPolicy) -> None:
    policy.network.encoder.requires_grad_(False)  # type: ignore[union-attr, operator]


def test_what_is_frozen_in_the_middle_is_continued_with_to_the_bit() -> None:
    straight, saved, resumed = (made(engine="numpy") for _ in range(3))
    for policy in (straight, saved):
        for step in range(3):
            policy.update(batch_of(8, seed=step), step=step)
        freeze_the_body(policy)
        policy.update(batch_of(8, seed=3), step=3)
    resumed.load_training_state(saved.training_state())
    freeze_the_body(resumed)
    for policy in (straight, resumed):
        for step in range(4, 8):
            policy.update(batch_of(8, seed=step), step=step)
        policy.network.requires_grad_(True)
        for step in range(8, 12):
            policy.update(batch_of(8, seed=step), step=step)
    assert_same(parameters_of(straight), parameters_of(resumed))


@pytest.mark.parametrize("engine", ["numpy", "torch"])
def test_frozen_parts_stay_where_they_are(engine: Any) -> None:
    policy = made(engine=engine, optimizer=Adam(1e-2, weight_decay=0.1))
    policy.update(batch_of(8), step=0)
    freeze_the_body(policy)
    before = parameters_of(policy.network.encoder)  # type: ignore[arg-type]
    for step in range(1, 4):
        policy.update(batch_of(8, seed=step), step=step)
    assert_same(parameters_of(policy.network.encoder), before)  # type: ignore[arg-type]


# ---- SAC ----

OF_SAC: list[Any] = [
    pytest.param({}, id="sac"),
    pytest.param({"hidden": ()}, id="no hidden layer"),
    pytest.param({"hidden": (16,), "temperature": 0.2}, id="given temperature"),
    pytest.param({"temperature": [(0, 0.5), (20, 0.0)], "lr": [(0, 1e-2), (20, 1e-3)]}, id="schedules"),
    pytest.param({"n_critics": 1}, id="one critic"),
    pytest.param({"n_critics": 5, "activation": torch.tanh}, id="five critics, tanh"),
    pytest.param({"activation": torch.relu}, id="relu that is not in place"),
    pytest.param({"activation": torch.sigmoid}, id="sigmoid"),
    pytest.param({"clip": Clip(0.1), "optimizer": Adam(1e-2, weight_decay=0.1)}, id="clipped, weight decay"),
    pytest.param({"normalize_obs": True}, id="normalised observations"),
    pytest.param({"space": spaces.Dict({"a": FOUR_NUMBERS, "b": spaces.Discrete(3)})}, id="dict"),
    pytest.param({"hidden": (256, 256), "n_rows": 256, "n_updates": 3}, id="large"),
    pytest.param({"hidden": (256, 256), "n_rows": 32, "n_updates": 3}, id="large, few rows"),
]


def rows_of_sac(n_rows: int = 16, seed: int = 0, space: Any = FOUR_NUMBERS, **columns: Any) -> Any:
    return batch_of(n_rows, seed=seed, space=space, action=observations(PUSH, n_rows, seed), **columns)


def sac_of(engine: Any, *, n_critics: int = 2, activation: Any = None, **options: Any) -> SACPolicy:
    if n_critics == 2 and activation is None:
        return sac(engine, **options)
    how = {} if activation is None else {"activation": activation}
    actor = ActorNetwork((4,), 4, hidden=(16, 8), **how)
    critics = CriticNetwork((4,), 2, hidden=(16, 8), n_critics=n_critics, **how)
    own: dict[str, Any] = {"observation_space": FOUR_NUMBERS, "action_space": PUSH, "optimizer": Adam(1e-2)}
    return SACPolicy(actor, critics, **own, device="cpu", seed=0, engine=engine, **options)


@pytest.mark.fast_cases(5)
@pytest.mark.parametrize("parts", OF_SAC)
def test_sac_learns_as_by_torch(parts: dict[str, Any]) -> None:
    rest = dict(parts)
    n_rows, n_updates, space = rest.pop("n_rows", 17), rest.pop("n_updates", 30), rest.get("space", FOUR_NUMBERS)
    mine, theirs = sac_of("numpy", **rest), sac_of("torch", **rest)
    batches = [rows_of_sac(n_rows, step, space) for step in range(n_updates)]
    n_passes = 3 if mine.learned_temperature is not None else 2
    learn_alike(mine, theirs, batches, rtol=2e-3, atol=1e-4, n_passes=n_passes)


def test_equal_critics_share_the_actors_gradient() -> None:
    policies = [sac("numpy"), sac("torch")]
    for policy in policies:
        with torch.no_grad():
            for parameter in policy.critics.parameters():
                parameter[1] = parameter[0]
        policy.update(rows_of_sac(), step=0)
    torch.testing.assert_close(gradients_of(policies[0]), gradients_of(policies[1]), rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("log_std", [-30.0, -20.0, 2.0, 5.0])
def test_a_deviation_at_its_bounds_is_torchs(log_std: float) -> None:
    policies = [sac("numpy", hidden=()), sac("torch", hidden=())]
    for policy in policies:
        with torch.no_grad():
            for name, parameter in policy.actor.named_parameters():
                parameter[2:] = log_std if name.endswith("bias") else 0.0
        policy.update(rows_of_sac(), step=0)
    torch.testing.assert_close(gradients_of(policies[0]), gradients_of(policies[1]), rtol=1e-3, atol=1e-5)


def test_where_nothing_follows_no_infinity_does() -> None:
    policy = sac("numpy")
    with torch.no_grad():
        for parameter in policy.target_critics.parameters():
            parameter.fill_(torch.inf)
    for step in range(3):
        policy.update(rows_of_sac(discount=np.zeros(16, np.float32)), step=step)
        with torch.no_grad():
            for parameter in policy.target_critics.parameters():
                parameter.fill_(torch.inf)
    assert np.isfinite(policy.read_metrics()["critic_loss"])


# ---- on-policy learners ----

OF_PPO: list[Any] = [
    pytest.param({}, id="ppo"),
    pytest.param({"shared": True, "entropy_weight": 0.01}, id="shared, entropy"),
    pytest.param({"clip_value": 0.1, "value_weight": 1.0, "clip_ratio": 0.05}, id="clipped values"),
    pytest.param({"clip_ratio": [(0, 0.3), (10, 0.0)], "entropy_weight": [(0, 0.1), (10, 0.0)]}, id="schedules"),
    pytest.param({"space": MASKED, "entropy_weight": 0.01}, id="masked"),
    pytest.param({"action_space": TWO_NUMBERS, "entropy_weight": 0.01}, id="gaussian"),
    pytest.param({"action_space": TWO_NUMBERS, "shared": True, "hidden": (8,), "log_std": -1.0}, id="narrow gaussian"),
    pytest.param({"action_space": TWO_NUMBERS, "action_bound_method": "tanh"}, id="squashed"),
    pytest.param({"action_space": spaces.MultiDiscrete([2, 3])}, id="several choices"),
    pytest.param({"action_space": spaces.MultiBinary(3), "entropy_weight": 0.01}, id="coins"),
    pytest.param({"optimizer": Adam(1e-2, weight_decay=0.1), "clip": Clip(0.01, by="norm")}, id="weight decay"),
    pytest.param({"normalize_obs": True}, id="normalised observations"),
    pytest.param({"space": NESTED}, id="nested"),
    pytest.param({"hidden": (400, 400)}, id="wide"),
    pytest.param({"kind": A2CPolicy}, id="a2c"),
    pytest.param({"kind": A2CPolicy, "normalize_advantage": True, "space": MASKED}, id="a2c, masked"),
    pytest.param({"kind": ReinforcePolicy}, id="reinforce"),
]


@pytest.mark.fast_cases(7)
@pytest.mark.parametrize("parts", OF_PPO)
def test_an_on_policy_learner_learns_as_by_torch(parts: dict[str, Any]) -> None:
    rest = {"lr": 1e-2, "hidden": (16, 8)} | parts
    space, kind = rest.pop("space", FOUR_NUMBERS), rest.pop("kind", PPOPolicy)
    mine, theirs = (made_on_policy(kind, space, engine=engine, **rest) for engine in ("numpy", "torch"))
    for step in range(4):
        rollout = played(copy.deepcopy(theirs), space, [20, 13, 7], seed=step)
        for policy in (mine, theirs):
            list(policy.learn(rollout, step=3 * step, batch_size=11, repeat=2))
        if step == 0:
            torch.testing.assert_close(gradients_of(mine), gradients_of(theirs), rtol=1e-3, atol=1e-5)
    torch.testing.assert_close(parameters_of(mine), parameters_of(theirs), rtol=1e-3, atol=5e-5)
    metrics, expected = mine.read_metrics(), theirs.read_metrics()
    assert metrics == {name: pytest.approx(number, rel=1e-3, abs=2e-4) for name, number in expected.items()}


@pytest.mark.parametrize("engine", ["numpy", "torch"])
def test_weights_outside_the_loss_do_not_decay(engine: Any) -> None:
    pretrained = linear(np.eye(4))
    policy = PPOPolicy.for_envs(
        Spaces(), hidden=(8,), device="cpu", seed=0, preprocess=pretrained, optimizer=Adam(1e-2, weight_decay=0.1),
        engine=engine,
    )  # fmt: skip
    rollout = played(policy, FOUR_NUMBERS)
    for step in range(3):
        list(policy.learn(rollout, step=step))
    assert torch.equal(pretrained.weight, torch.eye(4))


# ---- networks of one's own ----


class Attention(nn.Module):
    """Layers that the library has none of."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(4)
        self.inner = small_net((4, 8, 3))
        self.gate = small_net((4, 3), seed=1)

    def forward(self, features: Tensor) -> Tensor:
        x = self.norm(features)
        gate = torch.softmax(self.gate(x), dim=1)
        outputs: Tensor = nn.functional.gelu(self.inner(x)) * gate + x[:, :3].clamp(-1.0, 1.0)
        return outputs


def test_a_network_of_ones_own_learns_as_by_torch() -> None:
    parts: dict[str, Any] = {"observation_space": FOUR_NUMBERS, "action_space": spaces.Discrete(3), "device": "cpu"}
    policies = [DQNPolicy(Attention(), seed=0, engine=engine, **parts) for engine in ("numpy", "torch")]
    learn_alike(policies[0], policies[1], [batch_of(16, seed=seed) for seed in range(10)])


def test_a_network_of_float64_learns_as_by_torch() -> None:
    class Wide(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = small_net().double()

        def forward(self, features: Tensor) -> Tensor:
            outputs: Tensor = self.inner(features.double()).float()
            return outputs

    parts: dict[str, Any] = {"action_space": spaces.Discrete(3), "preprocess": WithoutMask(), "device": "cpu"}
    mine, theirs = (DQNPolicy(Wide(), seed=0, engine=engine, **parts) for engine in ("auto", "torch"))
    for step in range(6):
        for policy in (mine, theirs):
            policy.update(batch_of(8, seed=step), step=step)
    torch.testing.assert_close(parameters_of(mine), parameters_of(theirs), rtol=1e-6, atol=1e-8)


@pytest.mark.parametrize("n_threads", [1, 2])
def test_threads_stay_as_they_are(n_threads: int) -> None:
    before = torch.get_num_threads()
    torch.set_num_threads(n_threads)
    try:
        mine, theirs, space = pair({"hidden": (256, 256), "dueling": True, "double": True})
        learn_alike(mine, theirs, [batch_of(512, seed=seed, space=space) for seed in range(3)], rtol=1e-3, atol=2e-5)
        assert torch.get_num_threads() == n_threads
    finally:
        torch.set_num_threads(before)
