"""Folders in Minari's format, read without Minari: every row comes back, sizes are checked, nothing is executed."""

import io
import json
import subprocess
import sys
import tracemalloc
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from numpy.testing import assert_array_equal

from tests.helpers.learning import Spaces
from tests.helpers.minari_folders import change_metadata, env_spec, jpeg, write_minari
from trainkit import load_dataset
from trainkit.core import tree
from trainkit.core.errors import CheckpointError, ConfigError, MissingExtraError, SpaceMismatchError
from trainkit.datasets import from_minari

h5py: Any = pytest.importorskip("h5py", reason="the extra `hdf5` is not installed")

BOX = gym.spaces.Box(-100, 100, (2,), np.float32)
NESTED = gym.spaces.Dict({"a b": BOX, "c": gym.spaces.Tuple((gym.spaces.Discrete(99), gym.spaces.MultiBinary(3)))})
STRUCTURED = gym.spaces.Dict({"gear": gym.spaces.Discrete(3), "keys": gym.spaces.MultiDiscrete([2, 4])})
IMAGE = gym.spaces.Box(0, 255, (32, 40, 3), np.uint8)


@pytest.fixture(autouse=True)
def no_minari(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "minari", None)


def rows_of(space: gym.Space[Any], n_rows: int, seed: int) -> Any:
    """Return random rows of a space, as Minari stores them."""
    if isinstance(space, gym.spaces.Dict):
        return {key: rows_of(child, n_rows, seed) for key, child in space.spaces.items()}
    if isinstance(space, gym.spaces.Tuple):
        return tuple(rows_of(child, n_rows, seed) for child in space.spaces)
    space.seed(seed)
    return np.stack([space.sample() for _ in range(n_rows)])


def episode(
    n_steps: int, observation_space: Any = BOX, action_space: Any = None, *, ends: str | None = "terminations"
) -> dict[str, Any]:
    """Return an episode whose last step has the flag `ends`."""
    flags = {name: np.zeros(n_steps, np.bool_) for name in ("terminations", "truncations")}
    if ends is not None:
        flags[ends][-1] = True
    return {
        "observations": rows_of(observation_space, n_steps + 1, n_steps),
        "actions": rows_of(action_space or gym.spaces.Discrete(3), n_steps, n_steps),
        "rewards": np.arange(n_steps) * 10.0,
        **flags,
        "infos": {"note": np.arange(n_steps)},
    }


def made(folder: Path, *, actions: Any = None, **metadata: Any) -> Path:
    """Write two episodes of 3 and 2 steps, the actions of the first replaced."""
    episodes = [episode(3), episode(2)]
    if actions is not None:
        episodes[0]["actions"] = actions
    made = write_minari(folder / "made", BOX, gym.spaces.Discrete(3), episodes)
    change_metadata(made, **metadata)
    return made


def change(folder: Path, name: str, rows: Any) -> None:
    with h5py.File(folder / "data" / "main_data.hdf5", "r+") as file:
        del file[name]
        file[name] = rows


@pytest.mark.one_of_each
@pytest.mark.parametrize("read", [from_minari, load_dataset])
@pytest.mark.parametrize("space", [BOX, NESTED, gym.spaces.Discrete(7), gym.spaces.MultiDiscrete([5, 9])])
def test_every_row_and_every_final_observation_come_back(read: Any, space: Any, tmp_path: Path) -> None:
    endings = ("terminations", "truncations", None)
    recorded = [episode(n, space, ends=how) for n, how in zip((3, 1, 200), endings, strict=True)]
    folder = write_minari(tmp_path / "made", space, gym.spaces.Discrete(3), recorded)
    for place in (folder, folder / "data", str(folder)):
        buffer = read(place, seed=0)
        for got, wanted in zip(buffer.episodes(), recorded, strict=True):
            tree.map_tree(assert_array_equal, got.obs, wanted["observations"])
            assert_array_equal(got.action, wanted["actions"])
            assert_array_equal(got.reward, wanted["rewards"])
            assert (got.terminated, got.truncated) == (wanted["terminations"][-1], wanted["truncations"][-1])
        assert (buffer.observation_space, buffer.action_space) == (space, gym.spaces.Discrete(3))


def test_structured_actions_become_flat_rows_and_discrete_ones_count_from_0(tmp_path: Path) -> None:
    played = episode(4, action_space=STRUCTURED)
    flat = from_minari(write_minari(tmp_path / "flat", BOX, STRUCTURED, [played]))
    (got,) = flat.episodes()
    assert len(load_dataset(tmp_path / "flat", envs=Spaces(BOX, STRUCTURED))) == 4
    assert_array_equal(got.action, np.column_stack([played["actions"]["gear"], played["actions"]["keys"]]))

    hybrid = gym.spaces.Dict({"gear": gym.spaces.Discrete(3), "push": BOX})
    played = episode(4, action_space=hybrid)
    (got,) = from_minari(write_minari(tmp_path / "hybrid", BOX, hybrid, [played])).episodes()
    assert_array_equal(got.action, np.column_stack([played["actions"]["gear"], played["actions"]["push"]]))

    from_5 = gym.spaces.Discrete(3, start=5)
    (got,) = from_minari(
        write_minari(tmp_path / "from_5", BOX, from_5, [episode(4) | {"actions": np.array([5, 7, 6, 5])}])
    ).episodes()
    assert_array_equal(got.action, [0, 2, 1, 0])


@pytest.mark.parametrize("space", [gym.spaces.Discrete(4, start=3), gym.spaces.MultiDiscrete([3, 2])])
@pytest.mark.parametrize("row", [1, 4])
def test_an_index_outside_its_space_is_named_with_its_row(row: int, space: Any, tmp_path: Path) -> None:
    played = episode(4, space)
    played["observations"][row] = 9
    folder = write_minari(tmp_path / "made", space, gym.spaces.Discrete(3), [played])
    name, at = ("obs", row) if row < 4 else ("next_obs", 3)
    with pytest.raises(CheckpointError, match=rf"{name} must be in \[.*\], got 9 in row {at}.*: fix the data"):
        from_minari(folder)


@pytest.mark.parametrize("is_ragged", [False, True])
def test_images_stored_as_jpeg_are_those_that_are_in_them(
    is_ragged: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    image = pytest.importorskip("PIL.Image", reason="needs Pillow")
    noise = [1, 40, 120] if is_ragged else [0, 0, 0]  # files of various lengths, or of one
    files = [jpeg(np.random.default_rng(0).integers(0, 1 + n, IMAGE.shape).astype(np.uint8)) for n in noise]
    assert (len({len(one) for one in files}) > 1) == is_ragged
    folder = write_minari(tmp_path / "made", IMAGE, gym.spaces.Discrete(3), [episode(2)])
    stored: Any = np.stack(files) if not is_ragged else np.empty(3, object)
    stored[:] = files
    with h5py.File(folder / "data" / "main_data.hdf5", "r+") as file:
        del file["episode_0/observations"]
        how = {"dtype": h5py.vlen_dtype(np.uint8)} if is_ragged else {}
        file.create_dataset("episode_0/observations", data=stored, **how)
    (got,) = from_minari(folder).episodes()
    assert_array_equal(got.obs, np.stack([np.asarray(image.open(io.BytesIO(one.tobytes()))) for one in files]))

    with monkeypatch.context() as without:
        without.setitem(sys.modules, "PIL.Image", None)
        with pytest.raises(MissingExtraError, match=r"images stored as JPEG and needs PIL .*trainkit-rl\[minari\]'"):
            from_minari(folder)

    change(folder, "episode_0/observations", np.stack([jpeg(np.zeros((3200, 40, 3), np.uint8))] * 3))
    with pytest.raises(
        CheckpointError, match=r"an image is 3200 x 40, its space says \(32, 40, 3\).*: record it again"
    ):
        from_minari(folder)


def test_uncompressed_images_are_read_despite_the_metadata(tmp_path: Path) -> None:
    played = episode(2, IMAGE)
    (got,) = from_minari(write_minari(tmp_path / "made", IMAGE, gym.spaces.Discrete(3), [played])).episodes()
    assert_array_equal(got.obs, played["observations"])


def test_as_many_episodes_are_read_as_the_metadata_count(tmp_path: Path) -> None:
    folder = made(tmp_path)
    change_metadata(folder, total_episodes=1)
    assert len(list(from_minari(folder).episodes())) == 1
    change_metadata(folder, total_episodes=10**12)
    with pytest.raises(CheckpointError, match=r"has no episode_2/rewards, and metadata.json names that episode"):
        from_minari(folder)


def test_sizes_are_compared_with_max_bytes_before_anything_is_read(tmp_path: Path) -> None:
    folder = made(tmp_path)
    with h5py.File(folder / "data" / "main_data.hdf5", "r+") as file:  # 26 TB that fit each other, none written
        for name in ("actions", "rewards", "terminations", "truncations", "observations"):
            column = file[f"episode_1/{name}"]
            shape, kind = column.shape[1:], column.dtype
            del file[f"episode_1/{name}"]
            n_rows = 10**12 + (name == "observations")
            file.create_dataset(f"episode_1/{name}", (n_rows, *shape), kind, chunks=(10**6, *shape))
    with pytest.raises(CheckpointError, match=r"declares 26,000,000,000,\d+ bytes of content"):
        from_minari(folder)
    with pytest.raises(CheckpointError, match=r"max_bytes is 10: read it on a machine"):
        from_minari(made(tmp_path / "small"), max_bytes=10)
    assert len(from_minari(tmp_path / "small" / "made", max_bytes=1000)) == 5


def test_infos_are_neither_read_nor_counted(tmp_path: Path) -> None:
    folder = made(tmp_path)
    change(folder, "episode_0/infos", h5py.ExternalLink("/dev/zero", "/a"))
    with h5py.File(folder / "data" / "main_data.hdf5", "r+") as file:
        file.create_dataset("episode_1/infos/huge", (10**12,), "f8", chunks=(10**6,))
    assert len(from_minari(folder, max_bytes=1000)) == 5


def test_bounds_of_a_space_are_not_made_larger_than_the_metadata_hold_them(tmp_path: Path) -> None:
    huge = {"type": "Box", "dtype": "float32", "shape": [10**9], "low": 0.0, "high": 1.0}
    folder = made(tmp_path, observation_space=json.dumps(huge))
    with pytest.raises(CheckpointError, match=r"observation_space has bounds of shape \(\), and says \[1000000000\]"):
        from_minari(folder)


@pytest.mark.parametrize("name", ["observation_space", "action_space"])
def test_an_environment_is_never_made_to_find_a_space(name: str, tmp_path: Path) -> None:
    mark = tmp_path / "mark"
    folder = made(tmp_path, env_spec=env_spec("os:mkdir", path=str(mark)))
    change_metadata(folder, **{name: None})
    with pytest.raises(ConfigError, match=rf"from_minari needs the {name} in .*: open it with minari.MinariDataset"):
        from_minari(folder)
    assert not mark.exists()


@pytest.mark.parametrize(
    ("name", "rows", "message"),
    [
        ("terminations", np.array([True, False, False]), r"episode 0 continues after it ended"),
        ("terminations", np.array([0, 0, 2]), r"terminations must be 0 or 1, got 2 in row 2"),
        ("truncations", np.zeros((3, 1)), r"episode_0/truncations must have one number per step and is of shape"),
        ("rewards", np.zeros(0), r"episode 0 has no step"),
        ("rewards", np.array([0.0, np.nan, 0.0]), r"reward must be finite, got nan in row 1"),
        ("actions", np.array([0, 3, 0]), r"action must be in \[0, 2\], got 3 in row 1"),
        ("actions", np.array([0.0, 1.5, 0.0]), r"has values of float64 that its space's type int64 does not have"),
        ("actions", np.zeros(2, np.int64), r"episode 0 has int64 \(2,\), and its space says int64 \(3,\)"),
        ("observations", np.zeros((3, 2), np.float32), r"float32 \(3, 2\), and its space says float32 \(4, 2\)"),
        ("observations", np.full((4, 2), 1e300), r"obs must be finite, got inf in row 0"),
    ],
)
def test_invalid_values_are_named(name: str, rows: Any, message: str, tmp_path: Path) -> None:
    folder = made(tmp_path)
    change(folder, f"episode_0/{name}", rows)
    with pytest.raises((CheckpointError, ConfigError), match=message):
        from_minari(folder)


@pytest.mark.parametrize("given", [-1, None, object(), [], 1.5, {}])
def test_a_path_without_a_dataset_is_rejected(given: Any) -> None:
    with pytest.raises(ConfigError, match=r"from_minari cannot open .*: give a local id, the folder of one"):
        from_minari(given)


def test_folders_of_other_formats_and_spaces_are_rejected(tmp_path: Path) -> None:
    arrow = made(tmp_path, data_format="arrow")
    with pytest.raises(ConfigError, match=r"from_minari reads Minari's HDF5 format, got 'arrow'"):
        from_minari(arrow)
    text = json.dumps({"type": "Text", "max_length": 3, "min_length": 0, "charset": "a"})
    change_metadata(arrow, data_format="hdf5", observation_space=text)
    with pytest.raises(ConfigError, match=r"the observation_space is a 'Text', which has no fixed array"):
        from_minari(arrow)


def test_load_dataset_rejects_a_folder_of_other_spaces_than_the_environments(tmp_path: Path) -> None:
    folder = made(tmp_path)
    assert len(load_dataset(folder, envs=Spaces(BOX, gym.spaces.Discrete(3)))) == 5
    with pytest.raises(SpaceMismatchError, match=r"action_space is Discrete\(3\), the environments' is Discrete\(4\)"):
        load_dataset(folder, envs=Spaces(BOX, gym.spaces.Discrete(4)))


def large(folder: Path, n_steps: int) -> int:
    """Write 8 compressed episodes; return the bytes of their observations."""
    space = gym.spaces.Box(0, 255, (100, 100), np.uint8)
    write_minari(folder, space, gym.spaces.Discrete(3), [episode(2, space)] * 8, jpeg_encoding=False)
    with h5py.File(folder / "data" / "main_data.hdf5", "r+") as file:
        for number in range(8):
            for name in ("actions", "rewards", "terminations", "truncations", "observations"):
                column = file[f"episode_{number}/{name}"]
                rows = np.zeros((n_steps + (name == "observations"), *column.shape[1:]), column.dtype)
                del file[f"episode_{number}/{name}"]
                file.create_dataset(f"episode_{number}/{name}", data=rows, chunks=True, compression="gzip")
    return 8 * n_steps * 100 * 100


def test_arrays_take_the_memory_of_the_buffer_and_little_more(tmp_path: Path) -> None:
    n_bytes = large(tmp_path / "large", 400)
    tracemalloc.start()
    buffer = from_minari(tmp_path / "large")
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert n_bytes <= buffer.nbytes < peak < 1.15 * n_bytes


@pytest.mark.slow  # a process of its own: HDF5's memory is not traced
def test_a_process_grows_by_the_memory_of_the_buffer_and_little_more(tmp_path: Path) -> None:
    n_bytes = large(tmp_path / "large", 1_600)
    write_minari(tmp_path / "small", BOX, gym.spaces.Discrete(3), [episode(2)])
    script = (
        "import resource, trainkit\n"
        "most = lambda: resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024\n"
        f"trainkit.datasets.from_minari({str(tmp_path / 'small')!r})\n"
        "before = most()\n"
        f"trainkit.datasets.from_minari({str(tmp_path / 'large')!r})\n"
        "print(most() - before)\n"
    )
    growth = int(subprocess.run([sys.executable, "-c", script], capture_output=True, check=True, text=True).stdout)
    assert growth < 1.15 * n_bytes
