"""Images in a replay buffer: drawn from ordinary memory, or gathered on the device."""

import statistics
from collections.abc import Iterator
from functools import partial
from typing import Any

import numpy as np
from gymnasium import spaces

import trainkit as tk
from benchmarks.gpu.record import Piece, Row, Setup, Unit
from benchmarks.gpu.timing import rates, table
from benchmarks.gpu.workloads import FRAMES, SIX, WORKLOADS

IMAGE = spaces.Box(0, 255, (FRAMES.shape or ())[1:], np.uint8)
STORED = 20_000  # frames
N_ENVS = 32
PLACES = {"ordinary memory": False, "the device": True}


def buffer_of(setup: Setup, is_on_device: bool) -> tk.ReplayBuffer:
    """Make a full buffer of single frames, of which four make an observation."""
    n_rows, rng = 200 if setup.is_rehearsal else STORED, np.random.default_rng(0)
    return tk.ReplayBuffer.from_arrays(
        obs=rng.integers(0, 255, (n_rows, *IMAGE.shape), np.uint8),
        action=rng.integers(int(SIX.n), size=n_rows),
        reward=rng.choice([-1.0, 0.0, 1.0], n_rows),
        terminated=np.arange(n_rows, 0, -1) % 100 == 1,  # the last row, too
        stack=4,
        frames=tk.engine.DeviceFrames(setup.device) if is_on_device else None,
        seed=1,
    )


def updating(setup: Setup, n_rows: int, is_on_device: bool, engine: str, left_s: float) -> Row:
    """Measure Rainbow's updates with rows that each draws."""
    (workload,) = (one for one in WORKLOADS if one.name == "Rainbow, Nature CNN")
    policy, buffer = workload.make(setup.device, engine=engine), buffer_of(setup, is_on_device)
    step, horizon = iter(range(10**9)), tk.Horizon()

    def update() -> None:
        policy.update(buffer.sample(n_rows, horizon=horizon), step=next(step))

    return {"rates": rates(update, setup)}


def writing(setup: Setup, is_on_device: bool, left_s: float) -> Row:
    """Measure vector steps of 32 environments that are stored, of which each sends 32 images to the device."""
    box = tk.testing.FakeVectorEnv(IMAGE, SIX, n=4 if setup.is_rehearsal else N_ENVS, episode_length=500)
    envs = tk.make_envs(box, stack=4)
    frames = tk.engine.DeviceFrames(setup.device) if is_on_device else None
    policy = tk.RandomPolicy(envs.action_space, seed=1)
    collector = tk.Collector(policy, envs, tk.ReplayBuffer(2_000, frames=frames))
    return {"rates": rates(lambda: collector.collect(n_step=box.num_envs), setup)}


def units(setup: Setup) -> list[Unit]:
    """List both places, with the engines and sizes of batches that a run may have."""
    batches = (2,) if setup.is_rehearsal else (32, 256)
    engines = dict.fromkeys(("torch", setup.fastest))
    sides = [(place, n_rows, engine) for place in PLACES for n_rows in batches for engine in engines]
    drawn = [
        Unit(
            f"Rainbow, batch {n_rows}, {engine}: frames in {place}",
            partial(updating, setup, n_rows, PLACES[place], engine),
            30,
        )
        for place, n_rows, engine in sides
    ]
    stored = [
        Unit(f"a vector step of {N_ENVS} environments stored: frames in {place}", partial(writing, setup, is_on), 20)
        for place, is_on in PLACES.items()
    ]
    return [*drawn, *stored]


def section(rows: list[Row]) -> Iterator[str]:
    """Yield the table of rates."""
    shown: list[tuple[Any, ...]] = [
        (row["unit"], f"{(rate := statistics.median(row['rates'])):,.0f}", f"{1e6 / rate:,.1f}") for row in rows
    ]
    yield from table("what, sampling included | per second | us", shown)


PIECE = Piece("frames", "Frames on the device", units, section)
