"""Pong: environment steps per second of whole runs, and Rainbow until it wins by 18."""

import time
from collections.abc import Iterator, Mapping
from functools import partial
from importlib.util import find_spec
from typing import Any

import trainkit as tk
from benchmarks.gpu.record import MissingError, Piece, Row, Setup, Unit
from benchmarks.gpu.timing import table
from trainkit.presets.base import ATARI_ENVS

PONG = "ALE/Pong-v5"
WON = 18.0
MARGIN_S = 30.0  # to save a checkpoint
SAVED_EVERY = 4  # epochs

SWITCHES: dict[str, dict[str, Any]] = {
    "as the preset is": {},
    "late priorities": {"refresh_priorities": "late"},
    "late priorities, overlap": {"refresh_priorities": "late", "overlap": True},
    "late priorities, overlap, frames on the device": {
        "refresh_priorities": "late",
        "overlap": True,
        "on_device": True,
    },
    "late priorities, acting on the CPU": {"refresh_priorities": "late", "act_on": "cpu"},
}
FASTEST = SWITCHES["late priorities, overlap, frames on the device"]


def needs_atari() -> None:
    """Raise `MissingError` without ale-py."""
    if find_spec("ale_py") is None:
        raise MissingError("ale-py is not installed: the extra `atari`")


def rainbow(setup: Setup, *, on_device: bool = False, **options: Any) -> tk.OffpolicyTrainer:
    """Make the trainer of the general table, the paper's settings, with an engine of this device, and frames on it."""
    needs_atari()
    if on_device:
        options["buffer"] = {"frames": tk.engine.DeviceFrames(setup.device)}
    small = {"capacity": 400, "learning_starts": 40, "batch_size": 4, "n_envs": 4} if setup.is_rehearsal else {}
    common = {"seed": 1, "zoo": False, "device": setup.device, "engine": setup.fastest}
    common |= {"verbose": False, "show_progress": False}
    return tk.presets.rainbow(PONG, **common | options | small)


def loop(setup: Setup, options: Mapping[str, Any], left_s: float) -> Row:
    """Measure a whole run: environments, replay, an update of 32 rows for every fourth step."""
    n_steps = 80 if setup.is_rehearsal else 8_000
    switches: dict[str, Any] = {
        "n_envs": 32,
        "step_per_collect": 32,
        "capacity": 50_000,
        "learning_starts": 1_600,
        **options,
    }
    if setup.is_rehearsal:
        switches["step_per_collect"] = 4
    with rainbow(setup, max_epoch=2, step_per_epoch=n_steps, evaluation=None, log_every=10**9, **switches) as trainer:
        next(trainer)  # fills the buffer, compiles and records
        stats = next(trainer).stats
    return {"rate": stats.time.steps_per_second, "n_envs": 4 if setup.is_rehearsal else switches["n_envs"]}


def collecting(setup: Setup, left_s: float) -> Row:
    """Measure 64 games whose policy acts, without learning."""
    needs_atari()
    n_envs, n_steps = (4, 80) if setup.is_rehearsal else (64, 20_000)
    envs = tk.make_envs(PONG, n_envs, seed=1, **ATARI_ENVS)
    policy = tk.DQNPolicy.for_envs(envs, device=setup.device, engine=setup.fastest, seed=1)
    collector = tk.Collector(policy, envs, tk.ReplayBuffer(4_000))
    collector.collect(n_step=n_envs * 10, explore=True)
    began = time.perf_counter()
    collector.collect(n_step=n_steps, explore=True)
    rate = n_steps / (time.perf_counter() - began)
    envs.close()
    return {"rate": rate, "n_envs": n_envs}


def learning(setup: Setup, left_s: float) -> Row | None:
    """Train Rainbow until an evaluation reaches 18, or 2 million steps; continue at the next call where time is out.

    Every fourth epoch, and at the end of the time, the buffer, the weights and the curve are saved. The curve's seconds
    include evaluations.
    """
    ends, folder = time.monotonic() + left_s - MARGIN_S, setup.work / "pong"
    trainer = rainbow(
        setup,
        n_envs=32,
        step_per_collect=4 if setup.is_rehearsal else 32,
        capacity=200_000,
        learning_starts=10_000,
        max_epoch=2 if setup.is_rehearsal else 40,
        step_per_epoch=60 if setup.is_rehearsal else 50_000,
        n_test_envs=1 if setup.is_rehearsal else 8,
        episode_per_test=1 if setup.is_rehearsal else 8,
        stop_return=WON,
        resume_from=folder if folder.exists() else None,
        **FASTEST,
    )
    longest_s, began = 0.0, time.monotonic()
    with trainer:
        while began + longest_s < ends:
            result = next(trainer, None)
            if result is None:
                break
            longest_s, began = max(longest_s, time.monotonic() - began), time.monotonic()
            print(f"  {result.info.env_step:,} steps, evaluation {result.stats.test.returns.mean}", flush=True)
            if trainer.epoch % SAVED_EVERY == 0:
                trainer.save(folder)
        if trainer.is_finished and trainer.stop_reason in (None, "stop_fn", "max_epoch"):
            curve = [[row["env_step"], row["seconds"], row["test/returns/mean"]] for row in trainer.history]
            best = max(score for _, _, score in curve)
            return {"curve": curve, "best": best, "reached": best >= WON}
        trainer.save(folder)
    return None


def units(setup: Setup) -> list[Unit]:
    """List the rates, and the run."""
    loops = [Unit(f"Rainbow, {name}", partial(loop, setup, own), 60) for name, own in SWITCHES.items()]
    return [
        Unit("acting in 64 games", partial(collecting, setup), 30),
        *loops,
        Unit(LEARNED, partial(learning, setup), 3 * MARGIN_S),
    ]


def section(rows: list[Row]) -> Iterator[str]:
    """Yield the table of rates, and the curve."""
    rates: list[tuple[Any, ...]] = [
        (row["unit"], row["n_envs"], f"{row['rate']:,.0f}") for row in rows if "rate" in row
    ]
    yield from table("what | games | agent steps/s", rates)
    for row in rows:
        if "curve" in row:
            steps, seconds, score = row["curve"][-1]
            reached = "reached 18" if row["reached"] else "did not reach 18"
            yield ""
            yield f"{LEARNED}: {reached}; {score:.1f} after {steps:,} agent steps and {seconds / 60:.1f} minutes."
            yield ""
            points = [(f"{steps:,}", f"{seconds / 60:.1f}", f"{score:.1f}") for steps, seconds, score in row["curve"]]
            yield from table("agent steps | minutes | mean return of an evaluation", points)


LEARNED = "Rainbow until an evaluation returns 18"
PIECE = Piece("pong", "Pong", units, section)
