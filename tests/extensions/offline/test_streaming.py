"""Streamed datasets: rows of a pass are equally probable, memory is bounded, a resumed run has the same bits."""

import gc
import tracemalloc
from collections import Counter
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from numpy.typing import NDArray

import trainkit as tk
from tests.extensions.offline.numbered_files import HEADER, SPACE, lengths, record
from tests.helpers.minari_folders import write_minari
from trainkit.core.data import RecordedEpisode
from trainkit.core.errors import BusyError, CheckpointError, ConfigError, SpaceMismatchError
from trainkit.datasets import StreamedDataset, load_dataset, stream_dataset
from trainkit.extensions.offline.format import Header, write_shard


def rows_of(batch: Any) -> NDArray[np.int64]:
    return np.asarray(batch.obs[:, 0], np.int64)


def of_a_pass(dataset: StreamedDataset, batch_size: int) -> tuple[Counter[int], list[list[int]]]:
    """Return how often every row was in memory in one pass, and the rows that were in memory together."""
    held: list[list[int]] = []
    while not held or sum(map(len, held)) < len(dataset) or dataset._n_left > 0:
        dataset.sample(batch_size, horizon=tk.Horizon())
        inside = dataset._window.get(dataset._window.slots()).obs[:, 0].astype(int).tolist()
        if not held or inside != held[-1]:
            held.append(inside)
    return Counter(row for inside in held for row in inside), held


@pytest.mark.parametrize("seed", range(3))
def test_a_pass_has_every_row_in_memory_once_and_not_too_many_at_a_time(seed: int, tmp_path: Path) -> None:
    rng = np.random.default_rng(seed)
    n_rows = record(tmp_path, lengths(rng, 5))
    dataset = stream_dataset(tmp_path, shuffle_rows=int(rng.integers(60, 400)), seed=seed)
    assert len(dataset) == n_rows
    for _ in range(2):
        counts, held = of_a_pass(dataset, 1)
        assert counts == dict.fromkeys(range(n_rows), 1)
        assert max(map(len, held)) <= dataset.shuffle_rows
        if len(held) > 2:
            assert min(map(len, held)) > max(map(len, held)) / 4  # equal shares of the pass


def test_every_row_is_equally_probable_whatever_the_parts(tmp_path: Path) -> None:
    n_rows = record(tmp_path, [[7, 20, 3], [29], [11, 2, 25, 3]])
    dataset = stream_dataset(tmp_path, shuffle_rows=60, seed=1)
    batches = [dataset.sample(200, horizon=tk.Horizon()) for _ in range(2 * n_rows)]
    counts = np.bincount(np.concatenate([rows_of(batch) for batch in batches]), minlength=n_rows)
    assert dataset.metrics(0)["passes"] == 400.0
    np.testing.assert_allclose(counts, 400, atol=5 * 400**0.5)  # binomial, of 40,000 draws


@pytest.mark.parametrize("suffix", [".npz", ".hdf5"])
def test_windows_are_those_of_a_loaded_dataset(suffix: str, tmp_path: Path) -> None:
    if suffix == ".hdf5":
        pytest.importorskip("h5py")
    record(tmp_path, lengths(np.random.default_rng(3), 4), suffix, compress=True)
    whole, dataset = load_dataset(tmp_path, seed=5), stream_dataset(tmp_path, shuffle_rows=80, seed=5)
    horizon = tk.Horizon(n_step=3, gamma=0.5)
    every = whole.sample(None, horizon=horizon, columns=("terminated", "truncated", "t"))
    for _ in range(60):
        batch = dataset.sample(32, horizon=horizon, columns=("terminated", "truncated", "t"))
        at = rows_of(batch)
        for name in ("action", "reward", "discount", "next_obs"):
            np.testing.assert_array_equal(getattr(batch, name), getattr(every, name)[at], err_msg=name)
        for name in batch.extras:
            np.testing.assert_array_equal(batch.extras[name], every.extras[name][at], err_msg=name)
    assert dataset.return_range(horizon) == whole.return_range(horizon)
    theirs = np.concatenate([step.reward for step in whole.transitions(50)])
    np.testing.assert_array_equal(np.concatenate([step.reward for step in dataset.transitions(50)]), theirs)
    for one, other in zip(dataset.episodes(), whole.episodes(), strict=True):
        np.testing.assert_array_equal(one.obs, other.obs)
        assert (one.terminated, one.truncated) == (other.terminated, other.truncated)


def test_where_all_rows_fit_batches_are_those_of_a_loaded_dataset(tmp_path: Path) -> None:
    n_rows = record(tmp_path, [[5, 9], [20]])
    whole, dataset = load_dataset(tmp_path, seed=5), stream_dataset(tmp_path, seed=5)
    first = dataset.sample(16, horizon=tk.Horizon())
    for path in tmp_path.iterdir():
        path.unlink()
    np.testing.assert_array_equal(rows_of(first), rows_of(whole.sample(16, horizon=tk.Horizon())))
    for _ in range(3 * n_rows // 16):
        own, other = (one.sample(16, horizon=tk.Horizon()) for one in (dataset, whole))
        np.testing.assert_array_equal(rows_of(own), rows_of(other))


def test_the_order_is_of_the_seed_and_of_the_pass(tmp_path: Path) -> None:
    record(tmp_path, [[10] * 20, [10] * 20])

    def order(seed: int) -> list[list[list[int]]]:
        dataset = stream_dataset(tmp_path, shuffle_rows=100, seed=seed)
        return [of_a_pass(dataset, 10)[1] for _ in range(2)]

    one, again, other = order(1), order(1), order(2)
    assert one == again
    assert one[0] != one[1]
    assert one[0] != other[0]
    spread = [max(inside) - min(inside) for inside in one[0]]
    assert min(spread) > 150  # pieces of both files are in memory together


def test_memory_is_that_of_the_shuffle_buffer_however_large_the_dataset(tmp_path: Path) -> None:
    space = gym.spaces.Box(0, 255, (32, 64), np.uint8)
    header = Header(env="images", observation_space=space, action_space=gym.spaces.Discrete(2), extras={})
    frames = np.random.default_rng(0).integers(0, 255, (51, 32, 64), np.uint8)
    flags: dict[str, Any] = {"terminated": True, "truncated": False, "extras": {}}
    one = RecordedEpisode(obs=frames, action=np.zeros(50, np.int64), reward=np.ones(50), **flags)
    for file in range(4):
        write_shard(tmp_path / f"{file}.npz", header, [one] * 40)  # 4 MB each

    def read(n_batches: int) -> tuple[Any, int]:
        dataset = stream_dataset(tmp_path, shuffle_rows=500, seed=0)
        for _ in range(n_batches):
            dataset.sample(256, horizon=tk.Horizon(n_step=3, gamma=0.9))
        return dataset, sum(len(rows.reward) for rows in dataset.transitions(100))

    peaks = []
    for _ in range(3):  # as what other tests left behind may allocate in between, such as its threads and finalizers
        gc.collect()
        tracemalloc.start()
        try:
            dataset, n_rows = read(33)  # more than a pass
            peaks.append(tracemalloc.get_traced_memory()[1])
        finally:
            tracemalloc.stop()
    assert len(dataset) == n_rows == 8_000
    assert dataset.nbytes < 600 * 2_048 + 100_000
    assert min(peaks) < dataset.nbytes + 5_000_000 < 16_000_000 / 2  # with blocks of a megabyte; the files have 16.7


@pytest.mark.parametrize("stop", [7, 23])
def test_a_resumed_run_has_the_bits_of_one_that_was_not_interrupted(stop: int, tmp_path: Path) -> None:
    envs = tk.make_envs("CartPole-v1", 4, seed=0)
    collector = tk.Collector(tk.RandomPolicy(envs.action_space, seed=0), envs)
    with tk.callbacks.DatasetWriter(tmp_path / "data", max_bytes=4_096).record(collector):
        collector.collect(n_step=900)

    def trainer(**more: Any) -> tk.OfflineTrainer:
        dataset = stream_dataset(tmp_path / "data", shuffle_rows=200)
        return tk.presets.cql(
            dataset, seed=3, max_epoch=3, update_per_epoch=14, batch_size=32, hidden=(8,), device="cpu", verbose=False,
            log_every=5, **more,
        )  # fmt: skip

    def weights(one: tk.OfflineTrainer) -> NDArray[np.float32]:
        return np.concatenate([own.detach().numpy().ravel() for own in one.policy.parameters()])

    straight = trainer()
    straight.run()
    path = tmp_path / "run"

    def interrupt(trainer: tk.Trainer) -> None:
        if trainer.gradient_step == stop:
            trainer.save(path)
            raise TimeoutError

    with pytest.raises(TimeoutError):
        trainer(callbacks=tk.on(update_end=interrupt)).run()
    assert sum(file.stat().st_size for file in path.rglob("*")) < 60_000  # no rows
    resumed = trainer(resume_from=path)
    resumed.run()
    np.testing.assert_array_equal(weights(resumed), weights(straight))
    assert resumed.history["buffer/passes"] == straight.history["buffer/passes"]
    assert straight.history["buffer/passes"][-1] == 42 * 32 / len(straight.buffer)


def test_what_a_stream_cannot_do_is_an_error_that_says_why(tmp_path: Path) -> None:
    record(tmp_path, [[10, 20], [15]])
    with pytest.raises(ConfigError, match="shuffle_rows is 30, and the longest episode has 20 steps: give at least 40"):
        stream_dataset(tmp_path, shuffle_rows=30)
    dataset = stream_dataset(tmp_path, shuffle_rows=40, seed=0)
    with pytest.raises(ConfigError, match=r"StreamedDataset\.sample\.batch_size must be a whole number >= 1, got None"):
        dataset.sample(None)
    with pytest.raises(SpaceMismatchError, match=r"observation_space is Box.*the environments' is"):
        stream_dataset(tmp_path, envs=tk.make_envs("CartPole-v1"))
    rows = dataset.transitions(5)
    next(rows)
    with pytest.raises(BusyError, match="finish that loop"):
        dataset.sample(4)
    rows.close()  # type: ignore[attr-defined]  # a generator
    dataset.sample(4, horizon=tk.Horizon())
    other = stream_dataset(tmp_path, shuffle_rows=45, seed=0)
    with pytest.raises(CheckpointError, match="of other episodes was saved, or with other shuffle_rows than 45"):
        other.load_state_dict(dataset.state_dict())
    (tmp_path / "part-000.npz").unlink()
    with pytest.raises(CheckpointError, match=r"part-000\.npz"):
        of_a_pass(dataset, 20)


def test_an_episode_of_minari_is_streamed_like_any_other(tmp_path: Path) -> None:
    pytest.importorskip("h5py")
    episodes, row = [], 0
    for length in (4, 9, 2, 12, 7, 5, 3):
        obs = np.arange(row, row + length + 1, dtype=np.float32)[:, None]
        flags = {"terminations": np.arange(length) == length - 1, "truncations": np.zeros(length, np.bool_)}
        episodes.append({"observations": obs, "actions": np.ones(length, np.int64), "rewards": obs[:-1, 0], **flags})
        row += length
    write_minari(tmp_path, SPACE, HEADER.action_space, episodes)
    counts, held = of_a_pass(stream_dataset(tmp_path, shuffle_rows=24, seed=0), 1)
    assert counts == dict.fromkeys(range(row), 1)
    assert len(held) > 1
    horizon, dataset = tk.Horizon(n_step=2, gamma=0.5), stream_dataset(tmp_path, shuffle_rows=24, seed=1)
    every = load_dataset(tmp_path).sample(None, horizon=horizon)
    for _ in range(10):
        batch = dataset.sample(8, horizon=horizon)
        np.testing.assert_array_equal(batch.reward, every.reward[rows_of(batch)])
        np.testing.assert_array_equal(batch.discount, every.discount[rows_of(batch)])
