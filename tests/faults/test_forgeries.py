"""Forged files of every format: nothing runs, nothing large is allocated, and every error is one of ours."""

import contextlib
import resource
import warnings
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import gymnasium as gym
import numpy as np
import pytest
import torch

import trainkit as tk
from tests.faults import forgeries
from tests.helpers.minari_folders import write_minari
from tests.trainer.toys import make_trainer
from trainkit.core.checkpoint import inspect_checkpoint
from trainkit.core.data import ArraySpec, Horizon, RecordedEpisode
from trainkit.core.errors import TrainkitError
from trainkit.core.spaces import Spaces
from trainkit.extensions.offline.format import Header, write_shard

N_FORGERIES = 60
MAX_GROWTH = 300_000  # kB of memory that a forgery may take: the valid files take a few kB, errors with torch some MB

SPACE = gym.spaces.Dict(
    {"a": gym.spaces.Box(-9, 9, (3,), np.float32), "b": gym.spaces.Tuple((gym.spaces.Box(0, 255, (2, 2), np.uint8),))}
)
EXTRAS = {"action_prob": ArraySpec(shape=(), dtype=np.dtype(np.float64))}


class Format(NamedTuple):
    """How valid files are made, forged and read."""

    make: Callable[[Path], Path]
    forge: Callable[[Path, int, Path], None]
    read: Callable[[Path], Any]


def make_dataset(folder: Path, suffix: str) -> Path:
    header = Header(env="E-v0", observation_space=SPACE, action_space=gym.spaces.Discrete(3), extras=EXTRAS, stack=2)
    episodes = [
        RecordedEpisode(
            obs={"a": np.ones((n + 1, 3), np.float32), "b": (np.ones((n + 1, 2, 2), np.uint8),)},
            action=np.arange(n) % 3,
            reward=np.ones(n),
            terminated=True,
            truncated=False,
            extras={"action_prob": np.ones(n)},
        )
        for n in (3, 1)
    ]
    write_shard(folder / f"data{suffix}", header, episodes)
    return folder / f"data{suffix}"


def read_dataset(path: Path) -> None:
    buffer = tk.load_dataset(path, seed=0)
    buffer.sample(8, horizon=Horizon(2))
    list(buffer.episodes())


def make_buffer(folder: Path) -> Path:
    load = tk.load_dataset(make_dataset(folder, ".npz"), into=tk.PrioritizedReplayBuffer, seed=0)
    load.save(folder / "buffer.npz")
    return folder / "buffer.npz"


def read_buffer(path: Path) -> None:
    buffer = tk.PrioritizedReplayBuffer.load(path)
    if len(buffer):
        buffer.sample(8, horizon=Horizon(2))


def make_policy(folder: Path) -> Path:
    return policy().save(folder / "policy")


def policy() -> Any:
    spaces = Spaces(observation_space=SPACE, action_space=gym.spaces.Discrete(3))
    value = tk.CategoricalValue(atoms=5, v_min=-1, v_max=1)
    return tk.DQNPolicy.for_envs(spaces, hidden=(8, 8), value=value, device="cpu", seed=0, n_step=2)


def read_policy(path: Path) -> None:
    loaded = tk.load_policy(path, device="cpu")
    loaded.predict({"a": np.ones(3, np.float32), "b": (np.ones((2, 2), np.uint8),)})


def make_safetensors(folder: Path) -> Path:
    from safetensors.torch import save_file

    save_file(policy().state_dict(), folder / "weights.safetensors")
    return folder / "weights.safetensors"


def make_torch(folder: Path) -> Path:
    torch.save(policy().state_dict(), folder / "weights.pt")
    return folder / "weights.pt"


def read_weights(path: Path) -> None:
    policy().load_weights(path)


def make_run(folder: Path) -> Path:
    trainer = make_trainer(max_epoch=1)
    trainer.run()
    return trainer.save(folder / "run")


def read_run(path: Path) -> None:
    with contextlib.suppress(TrainkitError):
        inspect_checkpoint(path)
    make_trainer(max_epoch=1).load(path)


def forge_torch(path: Path, seed: int, mark: Path) -> None:
    rng = np.random.default_rng(seed)
    kinds: list[Any] = [*forgeries.BYTES, *forgeries.ZIP, *[forgeries.torch_pickle] * 8]
    kinds[rng.integers(len(kinds))](path, rng, mark)


def make_minari(folder: Path) -> Path:
    episodes = [
        {
            "observations": {"a": np.ones((n + 1, 3), np.float32), "b": (np.ones((n + 1, 2, 2), np.uint8),)},
            "actions": np.arange(n) % 3,
            "rewards": np.ones(n),
            "terminations": np.arange(n) == n - 1,
            "truncations": np.zeros(n, np.bool_),
        }
        for n in (3, 1)
    ]
    return write_minari(folder / "minari", SPACE, gym.spaces.Discrete(3), episodes)


def read_minari(path: Path) -> None:
    buffer = tk.datasets.from_minari(path, seed=0)
    buffer.sample(8, horizon=Horizon(2))
    list(buffer.episodes())


FORMATS = {
    "npz dataset": Format(
        partial(make_dataset, suffix=".npz"),
        partial(forgeries.forge_npz, member="meta.npy", as_text=True),
        read_dataset,
    ),
    "hdf5 dataset": Format(partial(make_dataset, suffix=".hdf5"), forgeries.forge_hdf5, read_dataset),
    "buffer": Format(make_buffer, partial(forgeries.forge_npz, member="skeleton.npy", as_text=False), read_buffer),
    "policy": Format(make_policy, forgeries.forge_checkpoint, read_policy),
    "run": Format(make_run, forgeries.forge_checkpoint, read_run),
    "torch": Format(make_torch, forge_torch, read_weights),
    "safetensors": Format(make_safetensors, forgeries.forge_safetensors, read_weights),
}
NEEDS = {"hdf5 dataset": "h5py", "safetensors": "safetensors"}


def memory() -> int:
    """Return the most memory that this process ever had, in kB."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


@pytest.mark.timeout(300)
@pytest.mark.parametrize("name", FORMATS)
def test_forgeries_run_nothing_allocate_nothing_and_raise_our_errors(name: str, tmp_path: Path) -> None:
    if name in NEEDS:
        pytest.importorskip(NEEDS[name])
    assert_harmless(FORMATS[name], tmp_path, range(N_FORGERIES))


@pytest.mark.timeout(300)
@pytest.mark.parametrize("n_forgeries", [12, pytest.param(60, marks=pytest.mark.slow)])
def test_forged_minari_folders_run_nothing_allocate_nothing_and_raise_our_errors(
    n_forgeries: int, tmp_path: Path
) -> None:
    pytest.importorskip("h5py")
    assert_harmless(Format(make_minari, forgeries.forge_minari, read_minari), tmp_path, range(n_forgeries))


def assert_harmless(one: Format, tmp_path: Path, seeds: range) -> None:
    (tmp_path / "valid").mkdir()
    valid = one.make(tmp_path / "valid")
    one.read(valid)
    mark = tmp_path / "mark"
    raised, problems = 0, []
    for seed in seeds:
        path = forgeries.fresh(valid, tmp_path / "forged" if valid.is_dir() else tmp_path / f"forged{valid.suffix}")
        with warnings.catch_warnings(action="ignore"):
            one.forge(path, seed, mark)
        before, error = memory(), None
        try:
            with warnings.catch_warnings(action="ignore"):
                one.read(path)
        except TrainkitError:
            raised += 1
        except BaseException as other:  # noqa: BLE001 - what must not be
            error = other
        if error is not None:
            problems.append((seed, f"{type(error).__name__}: {error!s:.200}"))
        if memory() - before > MAX_GROWTH:
            problems.append((seed, f"{memory() - before:,} kB"))
        if mark.exists():
            problems.append((seed, "executed"))
            mark.unlink()
    assert not problems, problems
    assert raised > 0.5 * len(seeds)  # others changed nothing that matters
