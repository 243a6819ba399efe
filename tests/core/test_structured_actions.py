"""Nested actions as flat rows, and joint actions as numbers: lossless, in every environment, through every policy.

Rows with discrete and Box columns: their distribution, what validates them, and that policies learn both parts.
"""

import copy
import itertools
import math
import pickle
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
from gymnasium import spaces
from hypothesis import given
from hypothesis import strategies as st

import trainkit as tk
from tests.helpers.learning import Spaces
from tests.helpers.nested_actions import (
    BOXES,
    CHOICES,
    HYBRID,
    Dials,
    Shot,
    Signals,
    Turrets,
    actions_taken,
    check_that_predict_returns_nested_actions_that_the_space_contains,
)
from trainkit.core.spaces import (
    ActionStructure,
    JointActions,
    StructuredHybrid,
    flat_actions,
    space_from_plain,
    space_to_plain,
    structure_of,
)
from trainkit.nets.distributions import Hybrid, distribution_for


def nested_spaces(leaves: Any) -> Any:
    """Draw Dicts and Tuples of leaves, two levels deep."""
    keys = st.sampled_from(["left", "right", "a/b", "$"])

    def one_more(inner: Any) -> Any:
        dicts = st.dictionaries(keys, inner, min_size=1, max_size=3).map(spaces.Dict)
        return dicts | st.lists(inner, min_size=1, max_size=3).map(spaces.Tuple)

    return one_more(leaves | one_more(leaves))


SHAPES = st.sampled_from([(), (1,), (2, 3)])
DISCRETE = (
    st.builds(spaces.Discrete, st.integers(1, 5), start=st.integers(-3, 3))
    | st.sampled_from([1, 3, (2, 2)]).map(spaces.MultiBinary)
    | st.sampled_from([spaces.MultiDiscrete([2, 3]), spaces.MultiDiscrete([[2, 4], [3, 1]], dtype=np.int32)])
)
FLOATS = st.builds(
    lambda low, shape, dtype: spaces.Box(low, low + 2.5, shape, dtype),
    st.sampled_from([-1.0, 0.1, 100.0]),
    SHAPES,
    st.sampled_from([np.float32, np.float64]),
)


def assert_same(one: Any, other: Any) -> None:
    """Check that two nested actions are equal, types included."""
    assert type(one) is type(other)
    if isinstance(one, dict):
        assert list(one) == list(other)
        for key in one:
            assert_same(one[key], other[key])
    elif isinstance(one, tuple):
        assert len(one) == len(other)
        for pair in zip(one, other, strict=True):
            assert_same(*pair)
    else:
        assert one.dtype == other.dtype
        np.testing.assert_array_equal(one, other, strict=True)


# ---- rows ----


@given(
    space=nested_spaces(DISCRETE) | nested_spaces(FLOATS) | nested_spaces(DISCRETE | FLOATS), seed=st.integers(0, 99)
)
def test_a_nested_action_is_a_flat_row_and_back_the_same(space: Any, seed: int) -> None:
    space.seed(seed)
    flat = flat_actions(space)
    structure = structure_of(flat)
    assert structure is not None
    actions = [space.sample() for _ in range(3)]
    rows = np.stack([structure.pack(action) for action in actions])
    assert rows.shape == (3, structure.width) == (3, *flat.shape)
    assert all(flat.contains(row.astype(flat.dtype)) for row in rows)
    for action, row in zip(actions, rows, strict=True):
        assert_same(structure.unpack(row), action)
    many = structure.unpack(rows)
    np.testing.assert_array_equal(structure.pack(many), rows)
    flat.seed(seed)
    assert all(space.contains(structure.unpack(flat.sample())) for _ in range(5))


@given(space=nested_spaces(DISCRETE) | nested_spaces(FLOATS) | nested_spaces(DISCRETE | FLOATS))
def test_the_space_of_flat_rows_survives_json_pickle_and_copies(space: Any) -> None:
    flat = flat_actions(space)
    for again in (space_from_plain(space_to_plain(flat)), _pickled(flat), copy.deepcopy(flat)):
        assert again == flat
        assert type(again) is type(flat)
        assert structure_of(again).nested == space  # type: ignore[union-attr]  # it has one


def _pickled(value: Any) -> Any:
    return pickle.loads(pickle.dumps(value))  # noqa: S301  # our own


def test_rows_have_the_columns_in_the_order_of_the_leaves() -> None:
    flat = flat_actions(CHOICES)
    assert isinstance(flat, spaces.MultiDiscrete)
    np.testing.assert_array_equal(flat.nvec, [2, 2, 2, 2, 3])  # gymnasium sorts keys: arm, move
    np.testing.assert_array_equal(flat.start, [0, 0, 0, 4, 1])
    action = {"arm": (np.array([1, 0], np.int8), np.array([0, 5])), "move": np.int64(3)}
    np.testing.assert_array_equal(structure_of(flat).pack(action), [1, 0, 0, 5, 3])  # type: ignore[union-attr]
    box = flat_actions(BOXES)
    assert isinstance(box, spaces.Box)
    assert (box.low.tolist(), box.high.tolist(), box.dtype) == ([0, 0, -1], [100, 100, 1], np.float64)


def test_spaces_that_are_not_nested_stay_what_they_are() -> None:
    for space in (spaces.Discrete(3), spaces.MultiBinary(2), spaces.Box(0, 1, (2,))):
        assert flat_actions(space) is space
    assert flat_actions(flat_actions(CHOICES)) == flat_actions(CHOICES)
    assert flat_actions(CHOICES) != spaces.MultiDiscrete([2, 2, 2, 2, 3], start=[0, 0, 0, 4, 1])


@pytest.mark.parametrize(
    ("action", "message"),
    [
        ({"move": 1}, r"must be a dict with the keys \['arm', 'move'\]"),
        ({"move": 1, "arm": 3}, "must be a tuple of 2 parts"),
        ({"move": 1, "arm": (np.zeros(3), np.zeros(2))}, r"\['arm'\]\[0\] must hold actions of shape \(2,\)"),
    ],
)
def test_an_action_of_another_structure_is_rejected(action: Any, message: str) -> None:
    with pytest.raises(tk.ConfigError, match=message):
        structure_of(flat_actions(CHOICES)).pack(action)  # type: ignore[union-attr]  # it has one


# ---- joint actions ----


def test_joint_actions_are_counted_with_the_last_place_fastest() -> None:
    joint = JointActions("x", spaces.MultiDiscrete([2, 3], start=[0, 10]))
    assert joint.n == 6
    assert joint.table.tolist() == [list(pair) for pair in itertools.product([0, 1], [10, 11, 12])]
    assert joint.numbers(np.array([[1, 11], [0, 12]])).tolist() == [4, 2]
    bits = JointActions("x", spaces.MultiBinary((2, 2)))
    assert bits.table.shape == (16, 2, 2)
    assert bits.table.dtype == np.int8
    assert bits.numbers(bits.table).tolist() == list(range(16))


def test_learning_from_joint_actions_is_learning_from_their_numbers() -> None:
    """A DQN of MultiDiscrete([2, 3]) takes the same gradient step as one of Discrete(6)."""
    box = spaces.Box(-1, 1, (4,), np.float32)
    made = [
        tk.DQNPolicy.for_envs(Spaces(box, own), hidden=(8,), double=True, seed=1)
        for own in (spaces.Discrete(6), spaces.MultiDiscrete([2, 3]))
    ]
    rng = np.random.default_rng(0)
    number = rng.integers(0, 6, 16)
    for policy, action in zip(made, (number, np.stack([number // 3, number % 3], axis=1)), strict=True):
        rng = np.random.default_rng(1)
        batch = tk.TransitionBatch(
            obs=rng.normal(size=(16, 4)).astype(np.float32),
            action=action,
            reward=rng.normal(size=16).astype(np.float32),
            discount=np.full(16, 0.9, np.float32),
            next_obs=rng.normal(size=(16, 4)).astype(np.float32),
            weight=np.ones(16, np.float32),
            slots=np.arange(16),
        )
        policy.update(batch, step=0)
    for one, other in zip(made[0].parameters(), made[1].parameters(), strict=True):
        assert torch.equal(one, other)
    obs = rng.normal(size=(32, 4)).astype(np.float32)
    single, joint = (policy.predict(obs) for policy in made)
    np.testing.assert_array_equal(joint[:, 0] * 3 + joint[:, 1], single)
    np.testing.assert_array_equal(made[0].action_probability(obs), made[1].action_probability(obs))


# ---- environments ----


@pytest.mark.one_of_each
@pytest.mark.parametrize("env", [Signals, Dials, Turrets])
@pytest.mark.parametrize("way", ["sync", "async", "vector"])
def test_environments_take_nested_actions_and_the_buffer_stores_their_rows(env: type[Signals], way: str) -> None:
    if way == "vector":
        envs = tk.make_envs(gym.vector.SyncVectorEnv([env] * 2, autoreset_mode=gym.vector.AutoresetMode.DISABLED))
    else:
        envs = tk.make_envs(env, 2, seed=1, backend=way)  # type: ignore[call-overload]  # one of them
    buffer = tk.ReplayBuffer(100)
    collector = tk.Collector(tk.RandomPolicy(envs.action_space, seed=1), envs, buffer)
    collector.collect(n_step=24)
    structure = structure_of(envs.action_space)
    assert structure is not None
    rows = buffer.sample(None, horizon=tk.Horizon(1), columns=["env_id"])
    for env_id, taken in enumerate(actions_taken(collector)):
        own = rows.action[rows.extras["env_id"] == env_id]
        stored = [structure.unpack(row) for row in own]
        assert len(stored) == len(taken) == 12
        for one, other in zip(stored, taken, strict=True):
            np.testing.assert_array_equal(structure.pack(one), structure.pack(other))
    envs.close()


def test_check_env_plays_nested_actions() -> None:
    for env in (Signals, Dials, Turrets, Signals()):
        assert {finding.level for finding in tk.check_env(env)} == {"note"}


# ---- policies ----


@pytest.mark.fast_cases(6)
@pytest.mark.parametrize(
    ("env", "kind", "options"),
    [
        (Signals, tk.DQNPolicy, {"exploration": tk.EpsilonGreedy(0.3)}),
        (Signals, tk.DQNPolicy, {"value": tk.CategoricalValue(11, 0.0, 30.0), "noisy": True, "dueling": True}),
        (Signals, tk.PPOPolicy, {}),
        (Dials, tk.PPOPolicy, {}),
        (Dials, tk.PPOPolicy, {"action_bound_method": "tanh"}),
        (Dials, tk.A2CPolicy, {}),
        (Dials, tk.SACPolicy, {}),
        (Turrets, tk.PPOPolicy, {}),
        (Turrets, tk.PPOPolicy, {"action_bound_method": "tanh"}),
        (Turrets, tk.PPOPolicy, {"action_scaling": False}),
        (Turrets, tk.A2CPolicy, {}),
        (Turrets, tk.ReinforcePolicy, {}),
    ],
    ids=[
        *("dqn", "rainbow", "ppo", "ppo box", "ppo tanh", "a2c box", "sac box"),
        *("ppo hybrid", "ppo hybrid tanh", "ppo hybrid unscaled", "a2c hybrid", "reinforce hybrid"),
    ],
)
def test_predict_returns_nested_actions_that_the_space_contains(
    env: type[Signals], kind: Any, options: dict[str, Any], tmp_path: Path
) -> None:
    check_that_predict_returns_nested_actions_that_the_space_contains(env, kind, options, tmp_path)


@pytest.mark.fast_cases(1)
@pytest.mark.parametrize("space", [spaces.MultiDiscrete([3, 2]), spaces.MultiBinary(3), CHOICES], ids=str)
def test_a_q_learner_learns_which_joint_action_pays(space: Any) -> None:
    """One step long: of all joint actions the one that pays most is the answer."""
    joint = JointActions("x", flat_actions(space))
    pays = np.random.default_rng(0).normal(size=joint.n)
    structure = structure_of(flat_actions(space))

    class Bandit(gym.Env[Any, Any]):
        observation_space = spaces.Box(0, 1, (1,), np.float32)
        action_space = space

        def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
            super().reset(seed=seed)
            return np.ones(1, np.float32), {}

        def step(self, action: Any) -> Any:
            row = action if structure is None else structure.pack(action)
            return np.ones(1, np.float32), float(pays[joint.numbers(row[None])[0]]), True, False, {}

    envs = tk.make_envs(Bandit, 8, seed=1)
    policy = tk.DQNPolicy.for_envs(envs, hidden=(), lr=0.05, exploration=tk.EpsilonGreedy(1.0), seed=1)
    train = tk.Collector(policy, envs, tk.ReplayBuffer(2_000))
    options: dict[str, Any] = {"batch_size": 64, "update_per_step": 0.25, "verbose": False, "threads": 1}
    tk.OffpolicyTrainer(policy, train, max_epoch=1, step_per_epoch=1_600, seed=1, **options).run()
    assert tk.evaluate(policy, Bandit, n_episode=1, seed=1).returns.mean == pytest.approx(pays.max())
    np.testing.assert_allclose(policy.action_values(np.ones((1, 1), np.float32))[0], pays, atol=0.1)


@pytest.mark.parametrize(("env", "kind"), [(Signals, tk.DQNPolicy), (Dials, tk.SACPolicy)])
def test_a_run_with_nested_actions_resumes_to_the_same_bits(env: Any, kind: Any, tmp_path: Path) -> None:
    def make(**options: Any) -> tk.OffpolicyTrainer:
        envs = tk.make_envs(env, 2)
        policy = kind.for_envs(envs, hidden=(8,))
        train = tk.Collector(policy, envs, tk.ReplayBuffer(60))
        own: dict[str, Any] = {"max_epoch": 3, "step_per_epoch": 24, "batch_size": 4, "seed": 1, "verbose": False}
        return tk.OffpolicyTrainer(policy, train, update_per_step=0.5, threads=1, **own, **options)

    whole, first = make(), make()
    whole.run()
    next(first)
    first.save(tmp_path / "here")
    second = make(resume_from=tmp_path / "here")
    second.run()
    for one, other in zip(whole.policy.get_weights().values(), second.policy.get_weights().values(), strict=True):
        np.testing.assert_array_equal(one, other)


def test_a_mask_needs_actions_that_are_one_number() -> None:
    class Masked(Signals):
        observation_space = spaces.Dict(obs=spaces.Box(0, 1, (3,)), action_mask=spaces.MultiBinary(48))  # type: ignore[assignment]  # another

    with pytest.raises(tk.ConfigError, match="an action mask needs a Discrete action space, got flat Dict"):
        tk.make_envs(Masked)


def test_conservative_q_learning_and_stored_probabilities_work_on_joint_actions() -> None:
    envs = tk.make_envs(Signals, 2, seed=1)
    policy = tk.DQNPolicy.for_envs(
        envs, hidden=(4,), penalty=tk.ConservativePenalty(), exploration=tk.EpsilonGreedy(0.5), store_action_prob=True
    )
    train = tk.Collector(policy, envs, tk.ReplayBuffer(50))
    trainer = tk.OffpolicyTrainer(policy, train, max_epoch=1, step_per_epoch=40, batch_size=8, seed=1, verbose=False)
    assert trainer.run().gradient_step > 0
    stored = train.buffer.sample(20, horizon=policy.horizon, columns=["action_prob"]).extras["action_prob"]  # type: ignore[union-attr]  # it has one
    np.testing.assert_allclose(np.unique(stored.round(6)), [0.5 / 48, 0.5 + 0.5 / 48], atol=1e-6)


# ---- discrete leaves and Boxes in one space ----


def hybrid(nested: spaces.Space[Any]) -> StructuredHybrid:
    return StructuredHybrid(ActionStructure(nested))


def test_rows_of_discrete_and_box_columns_are_floats_with_bounds_of_their_own() -> None:
    flat = flat_actions(HYBRID)
    assert isinstance(flat, StructuredHybrid)
    assert (flat.shape, flat.dtype) == ((3,), np.float32)
    assert (flat.low.tolist(), flat.high.tolist()) == ([0, 0, 1], [10, 10, 3])
    assert flat.structure.is_discrete.tolist() == [False, False, True]
    assert (flat.discrete, flat.box) == (spaces.MultiDiscrete([3], start=[1]), spaces.Box(0, 10, (2,)))
    row = flat.structure.pack({"aim": np.array([2.5, 4.0]), "move": 3})
    np.testing.assert_array_equal(row, np.array([2.5, 4.0, 3.0], np.float32), strict=True)
    action = flat.structure.unpack(row)
    assert_same(action, {"aim": np.array([2.5, 4.0], np.float32), "move": np.int64(3)})


def test_a_row_is_in_the_space_if_choices_are_whole_and_all_is_within_bounds() -> None:
    flat = hybrid(HYBRID)
    rows = np.array(
        [[0, 10, 1], [0, 10, 3], [0, 10, 0], [0, 10, 4], [0, 10, 1.5], [-1, 5, 2], [0, 10, np.nan]], np.float32
    )
    assert [flat.contains(row) for row in rows] == [True, True, False, False, False, False, False]
    invalid = flat.invalid_choices(rows)
    assert invalid[:, 2].tolist() == [False, False, True, True, True, False, True]
    assert not invalid[:, :2].any()
    assert not flat.contains(rows[0].astype(np.float64))
    assert not flat.contains([0.0, 10.0, 1.0])


def test_numbers_that_float32_would_round_make_rows_float64() -> None:
    nested = spaces.Dict(a=spaces.Discrete(3, start=2**24), b=spaces.Box(-1, 1, (1,), np.float32))
    structure = structure_of(flat_actions(nested))
    assert structure is not None
    assert flat_actions(nested).dtype == np.float64
    assert structure.unpack(structure.pack({"a": 2**24 + 1, "b": np.zeros(1, np.float32)}))["a"] == 2**24 + 1


def test_a_seeded_space_of_rows_samples_the_same_rows_with_both_parts_independent() -> None:
    rows = []
    for _ in range(2):
        flat = hybrid(HYBRID)
        flat.seed(3)
        rows.append(np.stack([flat.sample() for _ in range(2_000)]))
    np.testing.assert_array_equal(*rows)
    aim, move = rows[0][:, 0], rows[0][:, 2]
    assert [np.mean(move == choice) for choice in (1, 2, 3)] == pytest.approx([1 / 3] * 3, abs=0.04)
    assert [aim[move == choice].mean() for choice in (1, 2, 3)] == pytest.approx([5] * 3, abs=0.4)


def test_the_log_probability_of_a_row_is_the_sum_over_its_columns_worked_by_hand() -> None:
    """Columns: aim, move, aim, fire. Probabilities of move 1/4, 2/4, 1/4, of fire 3/4, 1/4; both deviations are 2."""
    nested = spaces.Tuple(
        [
            spaces.Box(-1, 1, (1,), np.float32),
            spaces.Discrete(3, start=5),
            spaces.Box(-1, 1, (1,), np.float32),
            spaces.MultiBinary(1),
        ]
    )
    distribution = distribution_for(nested, log_std=math.log(2.0))
    assert isinstance(distribution, Hybrid)
    assert distribution.width == 3 + 2 + 2
    outputs = torch.tensor([[*np.log([1.0, 2.0, 1.0, 3.0, 1.0]), 0.5, -1.0]], dtype=torch.float32)
    row = torch.tensor([[2.5, 1.0, -1.0, 1.0]])  # in policy units, where choices count from 0
    half_log = 0.5 * math.log(2 * math.pi)
    of_first, of_second = -0.5 * 1.0**2 - math.log(2) - half_log, -math.log(2) - half_log  # 1 and 0 deviations away
    expected = math.log(2 / 4) + math.log(1 / 4) + of_first + of_second
    torch.testing.assert_close(distribution.log_prob(outputs, row, None), torch.tensor([expected]))
    of_move = -(2 * 0.25 * math.log(0.25) + 0.5 * math.log(0.5))
    of_fire = -(0.75 * math.log(0.75) + 0.25 * math.log(0.25))
    of_aim = 2 * (0.5 + half_log + math.log(2))
    torch.testing.assert_close(distribution.entropy(outputs, None), torch.tensor([of_move + of_fire + of_aim]))
    assert distribution.mode(outputs, None).tolist() == [[0.5, 1.0, -1.0, 0.0]]


def test_rows_are_drawn_as_often_and_as_far_as_their_columns_say() -> None:
    nested = spaces.Tuple([spaces.Box(-1, 1, (1,), np.float32), spaces.Discrete(3)])
    outputs = torch.tensor([[*np.log([1.0, 2.0, 5.0]), 0.5]], dtype=torch.float32).expand(20_000, 4)
    for bound, median in (("clip", 0.5), ("tanh", math.tanh(0.5))):
        distribution = distribution_for(nested, action_bound_method=bound, log_std=-1.0)  # type: ignore[arg-type]  # one of them
        noise = distribution.draw_noise(len(outputs), torch.Generator().manual_seed(0))
        rows = distribution.sample(outputs, None, noise).detach()
        shares = torch.bincount(rows[:, 1].long(), minlength=3) / len(rows)
        torch.testing.assert_close(shares, torch.tensor([1 / 8, 2 / 8, 5 / 8]), atol=0.02, rtol=0)
        assert float(rows[:, 0].median()) == pytest.approx(median, abs=0.02)
        assert (float(rows[:, 0].abs().max()) <= 1) is (bound == "tanh")


def test_policy_units_count_choices_from_0_and_scale_the_numbers_of_a_box() -> None:
    nested = spaces.Dict(HYBRID.spaces | {"one": spaces.Discrete(1, start=7)})
    scale = tk.nets.ActionScale(hybrid(nested))
    rows = np.array([[0, 10, 1, 7], [5, 7.5, 3, 7]], np.float32)
    units = np.array([[-1, 1, 0, 0], [0, 0.5, 2, 0]], np.float32)
    np.testing.assert_array_equal(scale.to_unit(rows), units, strict=True)
    np.testing.assert_array_equal(scale.to_space(units), rows, strict=True)
    torch.testing.assert_close(scale.to_space(torch.from_numpy(units)), torch.from_numpy(rows))
    assert scale.is_scaled.tolist() == [True, True, False, False]
    unscaled = tk.nets.ActionScale(hybrid(nested), scaling=False)
    np.testing.assert_array_equal(unscaled.to_unit(rows), [[0, 10, 0, 0], [5, 7.5, 2, 0]])


@pytest.mark.parametrize("kind", [tk.DQNPolicy, tk.SACPolicy])
def test_q_learners_and_sac_reject_rows_of_both_kinds_and_name_what_learns_them(kind: Any) -> None:
    with pytest.raises(tk.SpaceMismatchError, match=f"{kind.__name__} needs .*: use PPOPolicy or A2CPolicy"):
        kind.for_envs(Turrets())


class Fixed(tk.RandomPolicy):
    """Take one row everywhere."""

    row: Any = None

    def act(self, obs: Any, **_: Any) -> tk.policy.ActOutput:
        return tk.policy.ActOutput(np.repeat(self.row[None], len(obs), axis=0), {}, None)


def test_a_choice_that_is_none_of_its_leaf_is_rejected_before_an_environment_sees_it() -> None:
    envs = tk.make_envs(Turrets, 2)
    policy = Fixed(envs.action_space)
    collector = tk.Collector(policy, envs)
    for choice in (1.5, 0.0, 4.0):
        policy.row = np.array([0.0, 0.0, choice], np.float32)
        with pytest.raises(
            tk.errors.BadEnvDataError, match=rf"an action outside flat Dict.*: {choice} at index \(2,\)"
        ):
            collector.collect(n_step=2)
    policy.row = np.array([-3.0, 12.0, 2.0], np.float32)
    collector.reset()
    collector.collect(n_step=2)
    assert_same(envs.call("taken")[0][-1], {"aim": np.array([0, 10], np.float32), "move": np.int64(2)})


def test_random_steps_draw_every_choice_and_all_of_the_box() -> None:
    envs = tk.make_envs(Turrets, 4, seed=1)
    collector = tk.Collector(tk.RandomPolicy(envs.action_space, seed=2), envs, tk.ReplayBuffer(1_000))
    collector.collect(n_step=600, random=True)
    buffer = collector.buffer
    assert isinstance(buffer, tk.ReplayBuffer)
    rows = buffer.sample(None, horizon=tk.Horizon(1)).action
    assert rows.dtype == np.float32
    assert set(rows[:, 2].tolist()) == {1.0, 2.0, 3.0}
    assert rows[:, :2].min() < 0.5
    assert rows[:, :2].max() > 9.5
    assert np.abs(np.corrcoef(rows.T) - np.eye(3)).max() < 0.2


@pytest.mark.parametrize("kind", [tk.PPOPolicy, tk.A2CPolicy])
def test_an_on_policy_run_with_both_kinds_resumes_to_the_same_bits(kind: Any, tmp_path: Path) -> None:
    def make(**options: Any) -> tk.OnpolicyTrainer[Any]:
        envs = tk.make_envs(Turrets, 2)
        train = tk.Collector(kind.for_envs(envs, hidden=(8,)), envs, tk.RolloutBuffer())
        own: dict[str, Any] = {"max_epoch": 3, "step_per_epoch": 24, "step_per_collect": 12, "batch_size": 6}
        return tk.OnpolicyTrainer(train.policy, train, seed=1, verbose=False, threads=1, **own, **options)

    whole, first = make(), make()
    whole.run()
    next(first)
    first.save(tmp_path / "here")
    second = make(resume_from=tmp_path / "here")
    second.run()
    assert second.policy.n_updates == whole.policy.n_updates > 0
    for one, other in zip(whole.policy.get_weights().values(), second.policy.get_weights().values(), strict=True):
        np.testing.assert_array_equal(one, other)


@pytest.mark.fast_cases(1)
@pytest.mark.parametrize("bound", ["clip", "tanh"])
def test_ppo_learns_which_move_pays_and_where_to_aim(bound: Any) -> None:
    envs = tk.make_envs(Shot, 8, seed=1)
    policy = tk.PPOPolicy.for_envs(envs, hidden=(16,), lr=0.01, log_std=-1.0, action_bound_method=bound, seed=1)
    train = tk.Collector(policy, envs, tk.RolloutBuffer())
    options: dict[str, Any] = {"step_per_collect": 256, "batch_size": 64, "repeat_per_collect": 4, "threads": 1}
    tk.OnpolicyTrainer(policy, train, max_epoch=1, step_per_epoch=4_096, seed=1, verbose=False, **options).run()
    action = policy.predict(np.ones(1, np.float32))
    assert action["move"] == 2
    assert float(action["aim"][0]) == pytest.approx(0.3, abs=0.1)


@pytest.mark.fast_cases(1)
@pytest.mark.parametrize("name", ["ppo", "a2c", "reinforce"])
def test_presets_choose_the_distribution_by_the_action_space(name: str) -> None:
    trainer = getattr(tk.presets, name)(Shot, seed=1, max_epoch=1, step_per_epoch=16, n_envs=2, verbose=False)
    assert isinstance(trainer.policy.distribution, Hybrid)
    trainer.run()
    assert trainer.policy.n_updates > 0
