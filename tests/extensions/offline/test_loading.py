"""Datasets in files: what was recorded comes back to the bit, what cannot be is refused by the file's name."""

import json
import pickle
import sys
import zipfile
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
from gymnasium import spaces
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.testing import assert_array_equal

from tests.buffer.stream import frame
from trainkit import DQNPolicy, MixedBuffer, PrioritizedReplayBuffer, ReplayBuffer, load_dataset
from trainkit.callbacks import DatasetWriter
from trainkit.core import tree
from trainkit.core.data import ArraySpec, Horizon, RecordedEpisode
from trainkit.core.errors import CheckpointError, ConfigError, MissingExtraError, SpaceMismatchError
from trainkit.core.spaces import Spaces, array_specs, space_from_plain, space_to_plain, stacked_space
from trainkit.datasets import from_minari
from trainkit.extensions.offline.format import Header, read_shard, write_shard

FORM_SPACES: dict[Any, spaces.Space[Any]] = {
    "array": spaces.Box(-np.inf, np.inf, (3,), np.float32),
    "pixels": spaces.Box(0, 255, (1, 3, 1), np.uint8),
    "scalar": spaces.Discrete(10_000_000),
    "dict": spaces.Dict(
        {
            "where": spaces.Box(-9, 2**14, (2,), np.int16),
            "inner": spaces.Dict(
                {"step": spaces.Box(0, np.inf, (), np.float64), "odd": spaces.Box(0, 1, (1,), np.bool_)}
            ),
        }
    ),
    "tuple": spaces.Tuple(
        (
            spaces.Box(-9, 9, (3,), np.float16),
            spaces.Tuple((spaces.Box(0, 2**63, (), np.uint64), spaces.Box(-9, 9, (1, 1), np.int8))),
        )
    ),
    "masked": spaces.Dict({"obs": spaces.Box(-9, 99, (3,), np.float32), "action_mask": spaces.MultiBinary(3)}),
}
EXTRAS = {"action_prob": ArraySpec(shape=(), dtype=np.dtype(np.float64))}
ENDS = {"terminated": (True, False), "truncated": (False, True), "both": (True, True), "cut": (False, False)}


def header(form: Any = "array", **changes: Any) -> Header:
    own = {"observation_space": FORM_SPACES[form], "action_space": spaces.Discrete(3), "extras": EXTRAS}
    return Header(env="Here-v0", **own | changes)


def episode(number: int, n_steps: int, end: str = "terminated", form: Any = "array") -> RecordedEpisode:
    specs = array_specs(FORM_SPACES[form])
    frames = [frame(form, 0, number, step) for step in range(n_steps + 1)]
    t = np.arange(n_steps)
    return RecordedEpisode(
        obs=tree.map_tree(lambda spec, *rows: np.stack(rows).astype(spec.dtype), specs, *frames),
        action=t % 3,
        reward=1000.0 * number + t + 1 / 3,
        terminated=ENDS[end][0],
        truncated=ENDS[end][1],
        extras={"action_prob": 1.0 / (2 + t)},
    )


def assert_episode(got: RecordedEpisode, wanted: RecordedEpisode) -> None:
    for here, there in zip(tree.leaves(got.obs), tree.leaves(wanted.obs), strict=True):
        assert here.dtype == there.dtype
        assert_array_equal(here, there)
    assert_array_equal(got.action, wanted.action)
    assert_array_equal(got.reward, wanted.reward)
    assert (got.terminated, got.truncated) == (wanted.terminated, wanted.truncated)
    assert_array_equal(got.extras["action_prob"], wanted.extras["action_prob"])


@pytest.fixture
def two(tmp_path: Path) -> list[Path]:
    """Write two files of two episodes each."""
    paths = [tmp_path / f"episodes-00000{number}.npz" for number in range(2)]
    write_shard(paths[0], header(), [episode(0, 3), episode(1, 1, "truncated")])
    write_shard(paths[1], header(), [episode(2, 4, "cut"), episode(3, 2, "both")])
    return paths


# ---- the round trip ----


@pytest.mark.parametrize("form", FORM_SPACES)
@pytest.mark.parametrize("compress", [False, True])
def test_episodes_come_back_to_the_bit_in_every_space(form: Any, compress: bool, tmp_path: Path) -> None:
    recorded = [episode(0, 3, "terminated", form), episode(1, 1, "cut", form), episode(2, 2, "truncated", form)]
    write_shard(tmp_path / "a.npz", header(form), recorded, compress=compress)
    buffer = load_dataset(tmp_path / "a.npz", seed=0)

    assert (len(buffer), buffer.capacity) == (6, 6)
    for got, wanted in zip(buffer.episodes(), recorded, strict=True):
        assert_episode(got, wanted)
    assert buffer.observation_space == FORM_SPACES[form]
    assert buffer.action_space == spaces.Discrete(3)


def test_windows_stop_at_every_kind_of_end(two: list[Path]) -> None:
    buffer = load_dataset(two, seed=0)
    batch = buffer.sample(400, horizon=Horizon(3, gamma=0.5), columns=["episode", "t", "n"])
    rows = zip(batch.extras["episode"].tolist(), batch.extras["t"].tolist(), strict=True)
    loaded = dict(zip(rows, zip(batch.extras["n"], batch.discount, batch.next_obs, strict=True), strict=True))

    lengths, bootstraps = [3, 1, 4, 2], [False, True, True, False]
    assert set(loaded) == {(number, t) for number, length in enumerate(lengths) for t in range(length)}
    for (number, t), (n, discount, next_obs) in loaded.items():
        steps = min(3, lengths[number] - t)
        ends = t + steps == lengths[number]
        assert n == steps
        assert discount == (0.0 if ends and not bootstraps[number] else 0.5**steps)
        assert_array_equal(next_obs, [0, number, t + steps])


def test_a_cut_is_kept_where_the_next_episode_starts_with_the_same_observation(tmp_path: Path) -> None:
    circle = episode(0, 2, "cut")
    circle.obs[-1] = circle.obs[0]  # it ends where it, and the next one, begins
    write_shard(tmp_path / "a.npz", header(), [circle, circle])

    assert [len(one) for one in load_dataset(tmp_path).episodes()] == [2, 2]


@pytest.mark.parametrize("form", ["pixels", "masked"])
def test_stacks_are_made_on_read_and_never_of_two_episodes(form: Any, tmp_path: Path) -> None:
    write_shard(tmp_path / "a.npz", header(form, stack=3), [episode(0, 3, form=form), episode(1, 2, "cut", form)])
    buffer = load_dataset(tmp_path, seed=0)

    assert buffer.observation_space == stacked_space(FORM_SPACES[form], 3)
    for number, (one, n_steps) in enumerate(zip(buffer.episodes(), [3, 2], strict=True)):
        obs = one.obs["obs"] if form == "masked" else one.obs[:, :, 0, :, 0]
        step = np.maximum(np.arange(n_steps + 1)[:, None] + np.arange(-2, 1), 0)
        assert_array_equal(obs[:, :, 2], step)
        assert_array_equal(obs[:, :, 1], np.full_like(step, number))
        if form == "masked":
            assert one.obs["action_mask"].shape == (n_steps + 1, 3)


def test_options_reach_the_buffer(two: list[Path]) -> None:
    buffer = load_dataset(two, into=PrioritizedReplayBuffer, alpha=0.3, capacity=50, seed=1)

    assert isinstance(buffer, PrioritizedReplayBuffer)
    assert (buffer.capacity, len(buffer), buffer.is_seeded) == (50, 10, True)
    assert buffer.metrics(0)["beta"] == 0.4


def test_a_folder_a_glob_a_file_and_a_list_are_read_by_name(two: list[Path]) -> None:
    folder = two[0].parent
    for path in (folder, str(folder), str(folder / "episodes-*.npz"), [two[1], str(two[0])], [folder, two[0]]):
        assert [one.reward[0] // 1000 for one in load_dataset(path).episodes()] == [0, 1, 2, 3]
    assert len(load_dataset(two[1])) == 6


def test_a_file_describes_itself(two: list[Path]) -> None:
    with np.load(two[0], allow_pickle=False) as file:
        names, meta = set(file.files), json.loads(str(file["meta"]))

    columns = {"obs", "action", "reward", "length", "terminated", "truncated", "extra.action_prob"}
    assert names == {"meta", *columns}
    assert (meta["env"], meta["format"], meta["stack"]) == ("Here-v0", 1, 1)
    assert meta["versions"]["numpy"] == np.__version__


def test_a_loaded_buffer_saves_its_spaces(two: list[Path], tmp_path: Path) -> None:
    load_dataset(two).save(tmp_path / "whole.npz")

    assert ReplayBuffer.load(tmp_path / "whole.npz").observation_space == FORM_SPACES["array"]


def test_a_buffer_without_spaces_is_described_as_such() -> None:
    with pytest.raises(ConfigError, match=r"ReplayBuffer does not know the spaces of its rows: give it spaces=envs"):
        ReplayBuffer(3).action_space  # noqa: B018 - reading it fails


def test_a_policy_is_made_for_a_dataset_and_for_a_mix_with_it(two: list[Path]) -> None:
    loaded = load_dataset(two)
    for source in (loaded, MixedBuffer({ReplayBuffer(9): 0.5, loaded: 0.5})):
        policy = DQNPolicy.for_envs(source, hidden=(4,), device="cpu", seed=0)
        assert policy.observation_space == FORM_SPACES["array"]
        assert policy.action_space == spaces.Discrete(3)
    with pytest.raises(ConfigError, match="does not know the spaces of its rows"):
        MixedBuffer({ReplayBuffer(9): 1.0}).observation_space  # noqa: B018 - reading it fails


def test_ends_of_arrays_mark_ends_without_a_flag() -> None:
    same = np.zeros((4, 1), np.float32)
    columns = {"obs": same, "next_obs": same, "action": np.arange(4), "reward": np.ones(4)}
    terminated, ends = np.array([False, False, False, True]), np.array([False, True, False, False])

    assert [len(one) for one in ReplayBuffer.from_arrays(**columns, terminated=terminated).episodes()] == [4]
    loaded = ReplayBuffer.from_arrays(**columns, terminated=terminated, ends=ends)
    assert [(len(one), one.terminated) for one in loaded.episodes()] == [(2, False), (2, True)]
    with pytest.raises(ConfigError, match="needs next_obs where an episode is truncated or left open"):
        ReplayBuffer.from_arrays(**columns | {"next_obs": None}, terminated=terminated, ends=ends)


# ---- refusals ----


@pytest.mark.parametrize("share", [0.0, 0.3, 0.99])
def test_a_truncated_file_is_rejected_by_name(two: list[Path], share: float) -> None:
    whole = two[1].read_bytes()
    two[1].write_bytes(whole[: int(len(whole) * share)])
    with pytest.raises(CheckpointError, match=r"episodes-000001\.npz cannot be read .* missing or damaged"):
        load_dataset(two)


def test_a_flipped_bit_is_rejected_by_name(two: list[Path]) -> None:
    whole = bytearray(two[0].read_bytes())
    with zipfile.ZipFile(two[0]) as archive:
        place = archive.getinfo("reward.npy").header_offset
    whole[place + 220] ^= 1  # past both headers, within the numbers
    two[0].write_bytes(whole)
    with pytest.raises(CheckpointError, match=r"episodes-000000\.npz cannot be read"):
        load_dataset(two)


def test_a_missing_file_and_an_empty_folder_are_rejected(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"nowhere\.npz cannot be read"):
        load_dataset(tmp_path / "nowhere.npz")
    for nothing in (tmp_path, str(tmp_path / "*.npz"), []):
        with pytest.raises(ConfigError, match="load_dataset found no file in"):
            load_dataset(nothing)


def test_files_of_other_spaces_stacks_and_columns_are_rejected_by_name(two: list[Path], tmp_path: Path) -> None:
    others = {
        "observation_space": header("pixels"),
        "action_space": header(action_space=spaces.Discrete(4)),
        "stack": header(stack=2),
        "extras": header(extras={}),
    }
    for name, other in others.items():
        form = "pixels" if name == "observation_space" else "array"
        path = tmp_path / f"other-{name}.npz"
        write_shard(path, other, [episode(0, 2, form=form)])
        with pytest.raises(SpaceMismatchError, match=rf"other-{name}\.npz: {name} is .*, as in .*episodes-000000\.npz"):
            load_dataset([two[0], path])


def test_environments_other_than_the_files_are_rejected(two: list[Path]) -> None:
    fits = Spaces(observation_space=FORM_SPACES["array"], action_space=spaces.Discrete(3))
    wrong = Spaces(observation_space=FORM_SPACES["pixels"], action_space=spaces.Discrete(3))

    assert len(load_dataset(two, envs=fits)) == 10
    with pytest.raises(SpaceMismatchError, match=r"episodes-000000\.npz: observation_space is .*, the environments'"):
        load_dataset(two, envs=wrong)


def rewritten(path: Path, **columns: Any) -> Path:
    """Write a file again with other columns; None leaves one out."""
    with np.load(path) as file:
        arrays = {name: file[name] for name in file.files} | columns
    np.savez(path, **{name: array for name, array in arrays.items() if array is not None})
    return path


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        ({"action": None}, "action"),
        ({"obs": np.zeros((6, 4), np.float32)}, r"obs is float32 \(6, 4\), the rest says float32 \(6, 3\)"),
        ({"obs": np.zeros((6, 3), np.float64)}, "obs is float64"),
        ({"reward": np.zeros(3)}, r"reward is float64 \(3,\), the rest says float64 \(4,\)"),
        ({"length": np.array([4, 0])}, "it has no episode, or one of no step"),
        ({"length": np.zeros(0, np.int64)}, r"terminated is bool \(2,\), the rest says bool \(0,\)"),
        ({"terminated": np.array([True])}, r"terminated is bool \(1,\), the rest says bool \(2,\)"),
        ({"truncated": np.array([0, 1])}, "truncated is int64"),
        ({"length": np.array([3, 1], np.uint8)}, "length is uint8"),
        ({"length": np.ones(5, np.int64)}, "it has 5 episodes in 4 steps"),
    ],
)
def test_a_file_that_contradicts_its_metadata_is_rejected(two: list[Path], columns: Any, message: str) -> None:
    rewritten(two[0], **columns)
    rule = rf"episodes-000000\.npz cannot be read as a dataset \(.*{message}.*\): it does not hold what it says"
    with pytest.raises(CheckpointError, match=rule):
        load_dataset(two)


BAD_VALUES: list[tuple[dict[str, Any], str]] = [
    ({"obs": np.full((6, 3), np.nan, np.float32)}, r"obs must be finite, got nan in row 0, index \(0,\)"),
    (
        {"obs": np.where(np.eye(6, 3, -5) > 0, np.inf, 0).astype(np.float32)},
        r"next_obs must be finite, got inf in row 3, index \(0,\)",
    ),
    ({"reward": np.array([0, np.nan, 0, 0])}, "reward must be finite, got nan in row 1"),
    ({"action": np.array([0, 1, 3, 0])}, r"action must be in \[0, 2\], got 3 in row 2"),
    ({"extra.action_prob": np.array([1, 1, 1, -np.inf])}, r"extras\['action_prob'\] must be finite, got -inf in row 3"),
]


@pytest.mark.parametrize(("columns", "message"), BAD_VALUES)
def test_a_value_that_cannot_be_learned_from_is_named_with_its_row(two: list[Path], columns: Any, message: str) -> None:
    rewritten(two[0], **columns)
    with pytest.raises(CheckpointError, match=rf"episodes-000000\.npz: {message}: fix the data"):
        load_dataset(two)


def test_a_file_of_another_kind_or_a_newer_format_is_rejected(two: list[Path]) -> None:
    with np.load(two[0]) as file:
        meta = json.loads(str(file["meta"]))
    rewritten(two[0], meta=np.array(json.dumps(meta | {"format": 2})))
    with pytest.raises(CheckpointError, match=r"000000\.npz has dataset format 2, this trainkit reads up to 1"):
        load_dataset(two[0])
    for meta_again in (np.array("{}"), np.array("not JSON"), None):
        rewritten(two[1], meta=meta_again)
        with pytest.raises(CheckpointError, match=r"episodes-000001\.npz is no dataset of trainkit"):
            load_dataset(two[1])


def test_loading_executes_nothing(two: list[Path]) -> None:
    class Bomb:
        def __reduce__(self) -> Any:
            return (pytest.fail, ("a file was executed",))

    rewritten(two[0], reward=np.array([Bomb()] * 4, dtype=object))
    with pytest.raises(CheckpointError, match="cannot be read"):
        load_dataset(two)


def test_a_file_is_never_written_over(two: list[Path]) -> None:
    before = two[0].read_bytes()
    with pytest.raises(FileExistsError):
        write_shard(two[0], header(), [episode(9, 1)])

    assert two[0].read_bytes() == before
    assert sorted(path.name for path in two[0].parent.iterdir()) == [path.name for path in two]


# ---- spaces in JSON ----

SPACES = [
    *FORM_SPACES.values(),
    spaces.Box(np.array([-1.5, -np.inf]), np.array([np.inf, 1 / 3]), dtype=np.float64),
    spaces.Box(-(2**63), 2**63 - 1, (2, 2), np.int64),
    spaces.MultiDiscrete(np.array([[2, 3], [4, 5]]), start=np.array([[0, -1], [7, 0]])),
    spaces.MultiDiscrete([3, 4], dtype=np.int32),
    spaces.MultiBinary((2, 3)),
    spaces.Discrete(5, start=-2),
]


@pytest.mark.parametrize("space", SPACES, ids=str)
def test_a_space_goes_through_json_and_back(space: spaces.Space[Any]) -> None:
    again = space_from_plain(json.loads(json.dumps(space_to_plain(space))))

    assert again == space
    assert str(again) == str(space)
    if isinstance(space, spaces.Box) and isinstance(again, spaces.Box):
        assert again.dtype == space.dtype
        assert_array_equal(again.low, space.low)
        assert_array_equal(again.high, space.high)


def test_bounds_of_images_take_one_number() -> None:
    assert len(json.dumps(space_to_plain(spaces.Box(0, 255, (4, 84, 84), np.uint8)))) < 200


def test_an_unknown_kind_of_space_is_rejected() -> None:
    with pytest.raises(ValueError, match="unknown kind of space 'Text'"):
        space_from_plain({"kind": "Text", "shape": [], "dtype": "<f4"})


@settings(max_examples=10)
@given(ends=st.lists(st.tuples(st.integers(1, 6), st.sampled_from(list(ENDS))), min_size=1), n=st.integers(1, 3))
def test_any_division_into_files_holds_the_same_episodes(
    ends: list[tuple[int, str]], n: int, tmp_path_factory: pytest.TempPathFactory
) -> None:
    folder = tmp_path_factory.mktemp("shards")
    recorded = [episode(number, n_steps, end) for number, (n_steps, end) in enumerate(ends)]
    for first in range(0, len(recorded), n):
        write_shard(folder / f"{first:03d}.npz", header(), recorded[first : first + n])
    lengths = np.concatenate([read_shard(path).length for path in sorted(folder.iterdir())])

    assert_array_equal(lengths, [n_steps for n_steps, _ in ends])
    for got, wanted in zip(load_dataset(folder).episodes(), recorded, strict=True):
        assert_episode(got, wanted)


def test_a_missing_minari_names_its_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "minari", None)
    with pytest.raises(MissingExtraError, match=r"from_minari needs minari .*: pip install 'trainkit-rl\[minari\]'"):
        from_minari("any/id-v0")


# ---- HDF5 ----


def test_a_missing_h5py_names_its_extra(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "h5py", None)
    for use in (lambda: load_dataset(tmp_path / "a.hdf5"), lambda: DatasetWriter(tmp_path, format="hdf5")):
        with pytest.raises(MissingExtraError, match=r"needs h5py .*: pip install 'trainkit-rl\[hdf5\]'"):
            use()


@pytest.mark.parametrize("form", FORM_SPACES)
@pytest.mark.parametrize("compress", [False, True])
def test_episodes_come_back_to_the_bit_from_hdf5(form: Any, compress: bool, tmp_path: Path) -> None:
    recorded = [episode(0, 3, "terminated", form), episode(1, 1, "cut", form), episode(2, 2, "truncated", form)]
    write_shard(tmp_path / "a.hdf5", header(form), recorded[:2], compress=compress)
    write_shard(tmp_path / "b.npz", header(form), recorded[2:], compress=compress)
    buffer = load_dataset(tmp_path, seed=0)

    for got, wanted in zip(buffer.episodes(), recorded, strict=True):
        assert_episode(got, wanted)
    assert buffer.observation_space == FORM_SPACES[form]


def test_a_flipped_bit_in_hdf5_is_noticed_wherever_data_are(tmp_path: Path) -> None:
    path = tmp_path / "a.hdf5"
    write_shard(path, header(), [episode(0, 200)])
    whole, reward = path.read_bytes(), load_dataset(path)[:].reward.tobytes()[:80]
    path.write_bytes(whole.replace(reward[:8], bytes([reward[0] ^ 1]) + reward[1:8]))
    with pytest.raises(CheckpointError, match=r"a\.hdf5 cannot be read as HDF5"):
        load_dataset(path)


def test_hdf5_never_leads_out_of_its_file(tmp_path: Path) -> None:
    write_shard(tmp_path / "whole.hdf5", header(), [episode(0, 3)])
    for kind in ("external link", "soft link", "external data", "virtual", "second name", "cycle"):
        path = tmp_path / f"{kind}.hdf5"
        path.write_bytes((tmp_path / "whole.hdf5").read_bytes())
        with h5py.File(path, "r+") as file:
            reward = file["reward"][:]
            del file["reward"]
            if kind == "external link":
                file["reward"] = h5py.ExternalLink(str(tmp_path / "whole.hdf5"), "reward")
            elif kind == "soft link":
                file["reward"] = h5py.SoftLink("/action")
            elif kind == "external data":
                file.create_dataset("reward", reward.shape, "f8", external=[(str(tmp_path / "whole.hdf5"), 0, 24)])
            elif kind == "virtual":
                layout = h5py.VirtualLayout(reward.shape, "f8")
                layout[:] = h5py.VirtualSource(str(tmp_path / "whole.hdf5"), "reward", reward.shape)
                file.create_virtual_dataset("reward", layout)
            elif kind == "second name":
                file["reward"] = file["action"]
            else:
                file["reward"] = reward
                group = file.create_group("g")
                group["g"] = group
        with pytest.raises(CheckpointError, match=rf"{kind}\.hdf5 cannot be read"):
            load_dataset(path)


class Tianshous:
    """Files as `ReplayBuffer.save_hdf5` of Tianshou 1.2 writes them (tianshou/data/utils/converter.py, to_hdf5)."""

    def __init__(self, path: Path, sizes: list[int], written: list[int], *, dict_obs: bool = False) -> None:
        """Write rings of these sizes, each with the given number of rows written; observations count steps."""
        offsets = np.cumsum([0, *sizes[:-1]])
        obs, after = np.zeros((2, sum(sizes), 2), np.float32)
        action, reward = np.zeros(sum(sizes), np.int64), np.zeros(sum(sizes))
        terminated, truncated = np.zeros((2, sum(sizes)), np.bool_)
        self.rows = []
        for env, (offset, size, n_rows) in enumerate(zip(offsets, sizes, written, strict=True)):
            for t in range(n_rows):
                row = offset + t % size
                obs[row], after[row], action[row], reward[row] = (env, t), (env, t + 1), t % 3, 100 * env + t
                terminated[row] = t % 4 == 3
            self.rows += [(env, t) for t in range(max(0, n_rows - size), n_rows)]
        with h5py.File(path, "w") as file:
            file.attrs["maxsize"], file.attrs["stack_num"] = sum(sizes), 1
            file.attrs["_size"] = min(sizes[0], written[0])
            file["last_index"] = offsets + (np.array(written) - 1) % sizes
            if len(sizes) > 1:
                file["_offset"], file["_lengths"] = offsets, np.minimum(sizes, written)
                file["buffers"] = np.frombuffer(pickle.dumps([]), np.byte)  # never read
            meta = file.create_group("_meta")
            meta.attrs["__data_type__"] = "Batch"
            for name, rows in (("obs", obs), ("obs_next", after)):
                meta[f"{name}/where" if dict_obs else name] = rows
            for name, rows in (("act", action), ("rew", reward), ("terminated", terminated), ("truncated", truncated)):
                meta[name] = rows
            meta["done"] = terminated | truncated
            meta.create_group("info")["env_id"] = np.zeros(sum(sizes), np.int64)


@pytest.mark.parametrize("dict_obs", [False, True])
@pytest.mark.parametrize(("sizes", "written"), [([10], [6]), ([10], [10]), ([6], [15]), ([4, 6, 5], [3, 20, 5])])
def test_a_buffer_of_tianshou_is_read_in_the_order_it_was_written(
    sizes: list[int], written: list[int], dict_obs: bool, tmp_path: Path
) -> None:
    made = Tianshous(tmp_path / "buffer.hdf5", sizes, written, dict_obs=dict_obs)
    buffer = load_dataset(tmp_path / "buffer.hdf5", seed=0)

    (rows,) = buffer.transitions()
    obs, after = (one["where"] if dict_obs else one for one in (rows.obs, rows.next_obs))
    assert_array_equal(obs, made.rows)
    assert_array_equal(after - obs, [[0, 1]] * len(made.rows))
    assert_array_equal(rows.terminated, [t % 4 == 3 for _, t in made.rows])
    assert_array_equal(rows.reward, [100 * env + t for env, t in made.rows])
    envs, steps = np.array(made.rows).T
    new = [0, *(np.flatnonzero((np.diff(envs) != 0) | (steps[:-1] % 4 == 3)) + 1)]
    lengths = np.diff([*new, len(steps)])
    assert [len(one) for one in buffer.episodes()] == lengths.tolist()


def test_a_forged_buffer_of_tianshou_raises_our_error(tmp_path: Path) -> None:
    path = tmp_path / "buffer.hdf5"
    for change in ({"maxsize": 3}, {"_size": -1}, {"_size": 99}, {"maxsize": 0}):
        Tianshous(path, [10], [6])
        with h5py.File(path, "r+") as file:
            file.attrs.update(change)
        with pytest.raises(CheckpointError, match=r"buffer\.hdf5 cannot be read as a buffer of Tianshou's"):
            load_dataset(path)


@pytest.mark.parametrize("use", [load_dataset, DatasetWriter])
def test_an_address_is_no_path(use: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ConfigError, match=r"^s3:/.* is an address, .*: name a local or mounted path$"):
        use("s3://bucket/run")
    assert list(tmp_path.iterdir()) == []
