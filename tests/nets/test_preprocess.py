"""Preprocessing: what each kind of space turns into, by hand-made observations."""

from collections import OrderedDict
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from gymnasium import Space, spaces
from torch import Tensor

import trainkit as tk
from tests.helpers.learning import FOUR_NUMBERS, observations
from trainkit.core import tree
from trainkit.engine.device import to_device
from trainkit.nets.preprocess import Normalizer, Preprocess, WithoutMask, feature_sizes

CPU = torch.device("cpu")


def features(space: Space[Any], *rows: Any) -> Any:
    """Preprocess rows of a space of arrays."""
    return Preprocess(space)(to_device(np.stack([np.asarray(row, space.dtype) for row in rows]), CPU))


def image(*shape: int) -> spaces.Box:
    return spaces.Box(0, 255, shape, np.uint8)


def test_a_vector_stays_as_it_is() -> None:
    space = spaces.Box(-1, 1, (3,), np.float32)

    assert features(space, [0.5, -1, 0], [1, 1, 1]).tolist() == [[0.5, -1, 0], [1, 1, 1]]


def test_a_scalar_becomes_a_vector_of_one() -> None:
    assert features(spaces.Box(-1, 1, (), np.float32), 0.5, -1).tolist() == [[0.5], [-1]]


@pytest.mark.parametrize("dtype", [np.float64, np.int64, np.int8, np.uint8, np.bool_])
def test_numbers_of_any_dtype_become_float32(dtype: Any) -> None:
    space = spaces.Box(0, 1, (2,), dtype)
    got = features(space, [0, 1])

    assert got.dtype == torch.float32
    assert got.tolist() == [[0, 1]]


def test_numbers_of_another_dtype_than_the_space_become_float32_too() -> None:
    got = Preprocess(spaces.Box(-1, 1, (2,), np.float32))(torch.tensor([[0.5, 1.0]], dtype=torch.float64))

    assert got.dtype == torch.float32


def test_a_grid_is_flattened_and_not_scaled() -> None:
    assert features(image(2, 3), [[1, 2, 3], [4, 5, 255]]).tolist() == [[1, 2, 3, 4, 5, 255]]


def test_floats_of_an_images_shape_are_flattened() -> None:
    assert Preprocess(spaces.Box(0, 1, (40, 50), np.float32)).shapes == (2000,)


def test_a_discrete_number_becomes_one_hot() -> None:
    assert features(spaces.Discrete(3), 0, 2, 1).tolist() == [[1, 0, 0], [0, 0, 1], [0, 1, 0]]


def test_a_discrete_space_may_start_anywhere() -> None:
    assert features(spaces.Discrete(3, start=-1), -1, 1).tolist() == [[1, 0, 0], [0, 0, 1]]


def test_digits_become_one_hot_one_after_the_other() -> None:
    assert features(spaces.MultiDiscrete([2, 3]), [1, 0], [0, 2]).tolist() == [[0, 1, 1, 0, 0], [1, 0, 0, 0, 1]]


def test_digits_may_form_a_grid_and_start_anywhere() -> None:
    space = spaces.MultiDiscrete(np.array([[2, 3], [1, 2]]), start=np.array([[5, 0], [7, -1]]))

    assert features(space, [[6, 1], [7, -1]]).tolist() == [[0, 1, 0, 1, 0, 1, 1, 0]]


def test_bits_become_numbers() -> None:
    assert features(spaces.MultiBinary((2, 2)), [[0, 1], [1, 1]]).tolist() == [[0, 1, 1, 1]]


@pytest.mark.parametrize("number", [-1, 3, 7])
def test_a_number_outside_its_space_is_rejected(number: int) -> None:
    with pytest.raises(IndexError, match="index out of range"):
        features(spaces.Discrete(3), 0, number)
    with pytest.raises(IndexError, match="index out of range"):
        features(spaces.MultiDiscrete([2, 3]), [1, number])


PLACES = [
    pytest.param((36, 40), lambda s, y, x, c: (y, x), (1, 36, 40), lambda s, c: 0, id="H,W"),
    pytest.param((36, 40, 3), lambda s, y, x, c: (y, x, c), (3, 36, 40), lambda s, c: c, id="H,W,C"),
    pytest.param((3, 36, 40), lambda s, y, x, c: (c, y, x), (3, 36, 40), lambda s, c: c, id="C,H,W"),
    pytest.param((4, 36, 40), lambda s, y, x, c: (s, y, x), (4, 36, 40), lambda s, c: s, id="S,H,W"),
    pytest.param((4, 36, 40, 3), lambda s, y, x, c: (s, y, x, c), (12, 36, 40), lambda s, c: 3 * s + c, id="S,H,W,C"),
    pytest.param((4, 3, 36, 40), lambda s, y, x, c: (s, c, y, x), (12, 36, 40), lambda s, c: 3 * s + c, id="S,C,H,W"),
]


@pytest.mark.parametrize(("shape", "place", "expected_shape", "channel"), PLACES)
def test_an_image_becomes_channels_first_in_0_to_1(
    shape: tuple[int, ...], place: Any, expected_shape: tuple[int, ...], channel: Any
) -> None:
    frame = np.zeros(shape, np.uint8)
    frame[place(2, 30, 35, 1)] = 51
    frame[place(0, 1, 2, 0)] = 255
    expected = torch.zeros(1, *expected_shape)
    expected[0, channel(2, 1), 30, 35] = 0.2
    expected[0, channel(0, 0), 1, 2] = 1.0

    space = image(*shape)
    assert Preprocess(space).shapes == expected_shape
    assert Preprocess(space).sees_images
    torch.testing.assert_close(features(space, frame), expected)


@pytest.mark.parametrize("shape", [(21, 84), (84,), (2, 2, 2, 84, 84), (36, 36, 36), (10, 10, 4)])
def test_what_a_convolution_cannot_see_is_no_image(shape: tuple[int, ...]) -> None:
    preprocess = Preprocess(image(*shape))

    assert not preprocess.sees_images
    assert preprocess.shapes == (int(np.prod(shape)),)


GRIDS = [  # shape, axes of channel, row and column
    pytest.param((10, 10, 4), (2, 0, 1), id="H,W,C"),
    pytest.param((4, 10, 10), (0, 1, 2), id="C,H,W"),
    pytest.param((10, 10, 10), (2, 0, 1), id="in doubt H,W,C"),
    pytest.param((10, 10, 7), (2, 0, 1), id="square H,W,C"),
    pytest.param((7, 10, 10), (0, 1, 2), id="square C,H,W"),
    pytest.param((21, 5, 1), (2, 0, 1), id="oblong H,W,C"),
    pytest.param((6, 8, 9), (0, 1, 2), id="fewer channels"),
    pytest.param((8, 8, 111), (2, 0, 1), id="many channels"),
]


@pytest.mark.parametrize("kind", ["bool", "float", "MultiBinary"])
@pytest.mark.parametrize(("shape", "axes"), GRIDS)
def test_a_small_grid_becomes_channels_first(shape: tuple[int, ...], axes: tuple[int, ...], kind: str) -> None:
    dtype = {"bool": np.bool_, "float": np.float32, "MultiBinary": np.int8}[kind]
    space = spaces.MultiBinary(shape) if kind == "MultiBinary" else spaces.Box(0, 1, shape, dtype)
    grid = np.random.default_rng(0).random(shape) < 0.3
    preprocess = Preprocess(space, normalize=True)
    assert (preprocess.sees_grids, preprocess.sees_images, preprocess.observes) == (True, False, False)
    assert preprocess.shapes == tuple(shape[axis] for axis in axes)
    torch.testing.assert_close(features(space, grid)[0], torch.tensor(grid.transpose(axes), dtype=torch.float32))


@pytest.mark.parametrize(
    "space",
    [
        spaces.Box(0, 1, (3, 3, 2), np.int8),  # a convolution would see the whole board as one
        spaces.Box(0, 1, (22, 22, 3), np.float32),
        spaces.Box(-1, 1, (10, 10, 4), np.float32),
        spaces.Box(0, 2, (10, 10, 4), np.int8),
        spaces.Box(0, 1, (10, 10), np.float32),
        spaces.Box(0, 1, (2, 10, 10, 4), np.bool_),
        spaces.MultiDiscrete(np.full((10, 10, 4), 2)),
    ],
    ids=str,
)
def test_what_is_no_small_grid_of_0_to_1_is_flattened(space: Space[Any]) -> None:
    preprocess = Preprocess(space)
    assert not preprocess.sees_grids
    assert len(preprocess.shapes) == 1


def test_an_image_next_to_a_grid_is_processed_as_an_image() -> None:
    both = Preprocess(spaces.Dict({"a": image(36, 36, 1), "b": spaces.Box(0, 1, (10, 10, 4), np.bool_)}))
    assert (both.sees_images, both.sees_grids) == (True, False)
    assert both.shapes == {"a": (1, 36, 36), "b": (4, 10, 10)}


def test_a_dict_and_a_tuple_keep_their_structure() -> None:
    space = spaces.Dict({"b": spaces.Discrete(2), "a": spaces.Tuple([spaces.Box(-1, 1, (2,)), spaces.MultiBinary(1)])})
    obs = {"b": torch.tensor([1]), "a": (torch.tensor([[0.5, 0.25]]), torch.tensor([[1]]))}
    got = Preprocess(space)(obs)

    assert got["b"].tolist() == [[0, 1]]
    assert [leaf.tolist() for leaf in got["a"]] == [[[0.5, 0.25]], [[1]]]
    assert Preprocess(space).shapes == {"a": ((2,), (1,)), "b": (2,)}


def test_the_mask_is_taken_out_of_a_dict() -> None:
    space = spaces.Dict({"x": spaces.Discrete(2), "y": spaces.Discrete(2), "action_mask": spaces.MultiBinary(3)})
    obs = {"x": torch.tensor([0]), "y": torch.tensor([1]), "action_mask": torch.tensor([[1, 0, 1]])}

    assert Preprocess(space)(obs).keys() == {"x", "y"}
    assert Preprocess(space).shapes == {"x": (2,), "y": (2,)}


def test_a_dict_of_nothing_but_obs_and_mask_becomes_the_obs() -> None:
    space = spaces.Dict({"obs": spaces.Box(-1, 1, (2,)), "action_mask": spaces.MultiBinary(3)})
    obs = {"obs": torch.tensor([[0.5, -0.5]]), "action_mask": torch.tensor([[1, 0, 1]])}

    assert Preprocess(space)(obs).tolist() == [[0.5, -0.5]]
    assert Preprocess(space).shapes == (2,)


def test_a_dict_of_one_other_leaf_and_a_mask_stays_a_dict() -> None:
    assert WithoutMask()({"x": torch.zeros(1), "action_mask": torch.ones(1, 3)}).keys() == {"x"}


def test_a_dict_without_a_mask_stays_as_it_is() -> None:
    obs = {"obs": torch.zeros(1)}

    assert WithoutMask()(obs) is obs


def test_the_observation_itself_keeps_its_mask() -> None:
    obs = {"obs": torch.zeros(1, 2), "action_mask": torch.ones(1, 3)}
    Preprocess(spaces.Dict({"obs": spaces.Box(-1, 1, (2,)), "action_mask": spaces.MultiBinary(3)}))(obs)

    assert obs.keys() == {"obs", "action_mask"}


def test_sizes_and_leaves_come_in_the_same_order() -> None:
    inner = spaces.Dict(OrderedDict(c=spaces.MultiBinary(5), b=spaces.Discrete(6)))  # an OrderedDict is left unsorted
    outer = {"z": spaces.Discrete(2), "camera": image(36, 36, 3), "a": spaces.Tuple([spaces.Discrete(7), inner])}
    space = spaces.Dict(OrderedDict(outer))
    preprocess = Preprocess(space)
    leaves: list[Tensor] = tree.leaves(preprocess(to_device(observations(space, 2), CPU)))

    assert feature_sizes(preprocess.shapes) == [tuple(leaf.shape[1:]) for leaf in leaves]
    assert feature_sizes(preprocess.shapes) == [(7,), (6,), (5,), (3, 36, 36), (2,)]


# ---- running normalization ----


MIXED = spaces.Dict(
    {
        "where": FOUR_NUMBERS,
        "grid": spaces.Box(-5, 5, (2, 3), np.float64),
        "what": spaces.Discrete(3),
        "image": spaces.Box(0, 255, (40, 40), np.uint8),
    }
)


def collector_of(policy: Any, envs: tk.Envs, **options: Any) -> tk.Collector:
    return tk.Collector(policy, envs, tk.RolloutBuffer(), **options)


def made(**options: Any) -> tuple[tk.PPOPolicy, tk.Envs]:
    envs = tk.make_envs("CartPole-v1", 3, seed=1)
    return tk.PPOPolicy.for_envs(envs, normalize_obs=True, device="cpu", seed=1, **options), envs


# ---- one normaliser ----


@pytest.mark.parametrize("parts", [[1], [3, 1, 5], [7, 7]])
def test_the_moments_are_those_of_all_rows_however_they_came(parts: list[int]) -> None:
    drawn = torch.randn(sum(parts), 4, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    rows = drawn * 3 + 100
    normalizer = Normalizer(4, clip=1e9)
    for some in rows.split(parts):
        normalizer.observe(some)
        normalizer.fold()
    deviation = (rows.var(dim=0, correction=0) + 1e-8).sqrt()
    torch.testing.assert_close(normalizer.known.mean, rows.mean(dim=0), rtol=1e-12, atol=0)
    torch.testing.assert_close(normalizer.scale, (1 / deviation).float())
    seen = normalizer(rows.float())
    torch.testing.assert_close(seen, ((rows - rows.mean(dim=0)) / deviation).float(), rtol=1e-4, atol=1e-4)


def test_before_any_row_was_seen_features_stay_as_they_are() -> None:
    normalizer = Normalizer(2)
    rows = torch.tensor([[3.0, -4.0]])
    torch.testing.assert_close(normalizer(rows), rows)
    normalizer.fold()  # nothing to fold
    torch.testing.assert_close(normalizer(rows), rows, rtol=1e-6, atol=0)


def test_what_is_noted_is_not_used_until_it_is_folded() -> None:
    normalizer = Normalizer(1)
    normalizer.observe(torch.tensor([[2.0], [4.0]]))
    torch.testing.assert_close(normalizer(torch.tensor([[4.0]])), torch.tensor([[4.0]]))
    normalizer.fold()
    torch.testing.assert_close(normalizer(torch.tensor([[4.0], [1e9]])), torch.tensor([[1.0], [10.0]]))
    normalizer.fold()  # the same rows do not count twice
    assert normalizer.known.count == 2


def test_a_feature_that_never_changes_becomes_zero() -> None:
    normalizer = Normalizer(1)
    normalizer.observe(torch.full((1000, 1), 0.1))
    normalizer.fold()
    assert normalizer(torch.full((1, 1), 0.1)).abs() < 1e-3


# ---- which leaves ----


def test_box_leaves_are_normalised_each_by_itself_others_as_before() -> None:
    raw = {key: np.stack([space.sample() for _ in range(50)]) for key, space in MIXED.spaces.items() if key != "where"}
    raw["where"] = np.random.default_rng(0).normal([0, 1, 2, 3], [1, 2, 3, 4], (50, 4)).astype(np.float32)
    obs = {key: torch.from_numpy(leaf) for key, leaf in raw.items()}
    plain, normalizing = Preprocess(MIXED), Preprocess(MIXED, normalize=True)
    assert plain.shapes == normalizing.shapes
    assert (plain.observes, normalizing.observes) == (False, True)
    normalizing.observe(obs)
    normalizing.fold()
    before, after = plain(obs), normalizing(obs)
    for key in ("what", "image"):
        assert torch.equal(before[key], after[key])
    for key in ("where", "grid"):
        flat = raw[key].reshape(50, -1).astype(np.float64)
        np.testing.assert_allclose(after[key], (flat - flat.mean(0)) / flat.std(0), rtol=1e-4, atol=1e-5)


def test_a_space_without_measurements_has_nothing_to_learn() -> None:
    assert not Preprocess(spaces.Discrete(3), normalize=True).observes


# ---- in a policy ----


def test_features_are_frozen_through_collecting_and_learning_and_move_after_it() -> None:
    policy, envs = made()
    collector = collector_of(policy, envs)
    for _ in range(3):
        before = policy.preprocess.normalizers[0].shift.clone()
        collector.collect(n_step=60)
        rollout = collector.buffer.read(policy.horizon)
        for _ in policy.learn(rollout, step=0, batch_size=20, repeat=2):
            assert torch.equal(policy.preprocess.normalizers[0].shift, before)
        assert not torch.equal(policy.preprocess.normalizers[0].shift, before)
        collector.buffer.clear()
    known = policy.preprocess.normalizers[0].known
    assert known.count == 180


def test_the_first_ratio_is_one_with_normalisation_on() -> None:
    policy, envs = made()
    collector = collector_of(policy, envs)
    for _ in range(3):  # statistics have moved by then
        policy.read_metrics()
        collector.buffer.clear()
        collector.collect(n_step=90)
        first = next(iter(policy.learn(collector.buffer.read(policy.horizon), step=0, batch_size=30)))
        assert first is not None
        shown = policy.read_metrics()
        assert abs(shown["approx_kl"]) < 1e-6  # 1e-3 and more where statistics moved in between
        assert shown["clip_share"] == 0.0
        for _ in policy.learn(collector.buffer.read(policy.horizon), step=0):
            pass


def test_off_policy_statistics_move_with_every_step_by_hand() -> None:
    envs = tk.make_envs("CartPole-v1", 2, seed=3)
    policy = tk.DQNPolicy.for_envs(envs, normalize_obs=True, device="cpu", seed=0)
    buffer = tk.ReplayBuffer(100)
    tk.Collector(policy, envs, buffer).collect(n_step=40)
    every = buffer.sample(4_000, horizon=tk.Horizon()).obs
    known = policy.preprocess.normalizers[0].known
    assert known.count == 40
    rows = np.unique(every, axis=0).astype(np.float64)
    assert len(rows) == 40
    np.testing.assert_allclose(known.mean, rows.mean(0), rtol=1e-6, atol=1e-9)


@pytest.mark.parametrize("observe", [None, False])
def test_evaluation_changes_no_statistics(observe: bool | None) -> None:
    policy, envs = made(reward="return_scale")
    before = {name: tensor.clone() for name, tensor in policy.state_dict().items()}
    collector = tk.Collector(policy, envs) if observe is None else collector_of(policy, envs, observe=observe)
    collector.collect(n_episode=5)
    assert all(torch.equal(before[name], tensor) for name, tensor in policy.state_dict().items())
    assert policy.horizon.return_scale.deviation == 1.0


def test_a_collector_without_a_buffer_observes_on_request() -> None:
    policy, envs = made(reward="return_scale")
    tk.Collector(policy, envs, observe=True).collect(n_step=30)
    assert policy.preprocess.normalizers[0].fresh.count == 30
    assert policy.horizon.return_scale.deviation != 1.0


def test_statistics_are_saved_and_training_continues_from_them(tmp_path: Path) -> None:
    def trainer(**options: Any) -> tk.OnpolicyTrainer:
        policy, envs = made(reward="return_scale")
        rates: dict[str, Any] = {"max_epoch": 3, "step_per_epoch": 90, "step_per_collect": 90}
        quiet = {"verbose": False, "show_progress": False, "seed": 5}
        return tk.OnpolicyTrainer(policy, collector_of(policy, envs), **rates, **quiet, **options)

    first = trainer()
    next(first)
    first.save(tmp_path / "run")
    second = trainer(resume_from=tmp_path / "run")
    for name, tensor in first.policy.state_dict().items():
        assert torch.equal(tensor, second.policy.state_dict()[name]), name
    assert first.policy.horizon.return_scale.deviation == second.policy.horizon.return_scale.deviation != 1.0


def test_normalised_features_make_scales_of_the_environment_vanish() -> None:
    def taught(factor: float) -> float:
        """Return how far the features are from 0 on average, where the environment measures in other units."""
        normalizer = Normalizer(3)
        rows = torch.randn(500, 3, generator=torch.Generator().manual_seed(0)) * factor + 7 * factor
        normalizer.observe(rows)
        normalizer.fold()
        return float(normalizer(rows).abs().mean())

    assert taught(1e-3) == pytest.approx(taught(1e3), rel=1e-2)


def test_statistics_are_in_the_weights_once_each() -> None:
    policy, _ = made()
    names = [name for name in policy.state_dict() if "preprocess" in name]
    assert len(names) == 8
    assert all(name.startswith("preprocess.normalizers.0.") for name in names)


class Shifted(torch.nn.Module):
    """Add 3: any module of a user's own."""

    def forward(self, features: torch.Tensor) -> torch.Tensor:
        return features + 3.0


def test_statistics_learn_within_a_sequence_each_of_what_comes_to_it() -> None:
    envs = tk.make_envs("CartPole-v1", 2, seed=3)
    own = tk.nets.Preprocess(envs.observation_space, normalize=True)
    later = Normalizer(4)
    later.observes = True  # type: ignore[assignment]  # as a module that counts as running statistics has it
    later.n_observed = 0  # type: ignore[assignment]  # so, too
    chain = torch.nn.Sequential(own, Shifted(), later, Shifted())
    policy = tk.DQNPolicy.for_envs(envs, preprocess=chain, device="cpu", seed=0)
    assert policy.observes
    rows = np.random.default_rng(0).normal(1, 2, (50, 4)).astype(np.float32)
    policy.statistics.observe(transition_of(rows))
    policy.statistics.fold()
    np.testing.assert_allclose(own.normalizers[0].known.mean, rows.astype(float).mean(0), rtol=1e-6)
    np.testing.assert_allclose(later.known.mean, rows.astype(float).mean(0) + 3, rtol=1e-5)  # nothing was known yet
    sooner = (rows - rows.mean(0)) / rows.std(0) + 3
    features = policy.features(rows)
    np.testing.assert_allclose(features, (sooner - rows.mean(0) - 3) / rows.std(0) + 3, rtol=1e-3, atol=1e-3)


def transition_of(rows: Any) -> tk.Transition:
    ended, n = np.zeros(len(rows), bool), len(rows)
    return tk.Transition(rows, np.zeros(n, int), np.zeros(n), rows, ended, ended, np.arange(n), {})


def test_a_sequence_without_statistics_learns_nothing() -> None:
    envs = tk.make_envs("CartPole-v1", 2, seed=3)
    chain = torch.nn.Sequential(tk.nets.Preprocess(envs.observation_space), Shifted())
    assert not tk.DQNPolicy.for_envs(envs, preprocess=chain, device="cpu").observes
    assert not tk.PPOPolicy.for_envs(envs, preprocess=chain, device="cpu").observes


@pytest.mark.parametrize("kind", ["dqn", "ppo"])
def test_a_sequence_acts_learns_and_is_saved_as_one(kind: str, tmp_path: Path) -> None:
    def trainer(**more: Any) -> Any:
        envs = tk.make_envs("CartPole-v1", 2)
        chain = torch.nn.Sequential(tk.nets.Preprocess(envs.observation_space, normalize=True), Shifted())
        common: dict[str, Any] = {"max_epoch": 2, "step_per_epoch": 64, "seed": 1, "verbose": False, "batch_size": 16}
        if kind == "dqn":
            policy: Any = tk.DQNPolicy.for_envs(envs, preprocess=chain, hidden=(8,), device="cpu")
            return tk.OffpolicyTrainer(policy, tk.Collector(policy, envs, tk.ReplayBuffer(100)), **common, **more)
        policy = tk.PPOPolicy.for_envs(envs, preprocess=chain, hidden=(8,), device="cpu")
        collector = tk.Collector(policy, envs, tk.RolloutBuffer())
        return tk.OnpolicyTrainer(policy, collector, step_per_collect=32, **common, **more)

    with trainer() as first:
        first.run()
        known = first.policy.preprocess[0].normalizers[0].known
        assert known.count == 128
        first.save(tmp_path / "run")
        with trainer(resume_from=tmp_path / "run") as again:
            obs = np.random.default_rng(0).normal(size=(20, 4)).astype(np.float32)
            np.testing.assert_array_equal(first.policy.features(obs), again.policy.features(obs))
            np.testing.assert_array_equal(first.policy.predict(obs), again.policy.predict(obs))


def test_a_forced_reset_ends_the_running_returns() -> None:
    policy, envs = made(reward="return_scale")
    collector = collector_of(policy, envs)
    collector.collect(n_step=30)
    assert any(policy.horizon.return_scale.state_dict()["running"])
    collector.reset()
    assert not any(policy.horizon.return_scale.state_dict()["running"])


def test_statistics_of_a_dataset_are_computed_once() -> None:
    envs = tk.make_envs("CartPole-v1", 2, seed=3)
    recorded = tk.ReplayBuffer(200, spaces=envs)
    tk.Collector(tk.RandomPolicy(envs.action_space, seed=0), envs, recorded).collect(n_step=150)
    policy = tk.DQNPolicy.for_envs(envs, normalize_obs=True, reward="return_scale", device="cpu", seed=0)
    rates: dict[str, Any] = {"max_epoch": 1, "update_per_epoch": 2, "batch_size": 8, "verbose": False}
    for _ in range(2):
        tk.OfflineTrainer(policy, recorded, **rates)
        assert policy.preprocess.normalizers[0].known.count == 150
        assert policy.horizon.return_scale.n_observed == 150
    rows = np.concatenate([episode.obs[:-1] for episode in recorded.episodes()]).astype(np.float64)
    np.testing.assert_allclose(policy.preprocess.normalizers[0].known.mean, rows.mean(0), atol=1e-9)
