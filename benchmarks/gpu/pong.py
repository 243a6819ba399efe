"""Pong: agent steps per second of whole loops, and Rainbow until it wins by 18."""

import time
from collections.abc import Iterator, Mapping
from functools import partial
from importlib.util import find_spec
from typing import Any

import trainkit as tk
from benchmarks.gpu import peer
from benchmarks.gpu.record import MissingError, Piece, Row, Setup, Unit
from benchmarks.gpu.timing import table
from trainkit.presets.base import ATARI_ENVS

PONG = "ALE/Pong-v5"
WON = 18.0
MARGIN_S = 30.0  # to save a checkpoint

LATE: dict[str, Any] = {"refresh_priorities": "late", "overlap": True}
ON_DEVICE = LATE | {"on_device": True}
SWITCHES: dict[str, dict[str, Any]] = {  # what decides most comes first
    "late priorities, overlap, frames on the device": ON_DEVICE,
    "the same, compiled": ON_DEVICE | {"engine": "compile"},
    "the same in batches of 256, an update per 32 steps": ON_DEVICE | {"batch_size": 256, "update_per_step": 1 / 32},
    "as the preset is": {},
    "late priorities, overlap": LATE,
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


def ppo(setup: Setup, left_s: float) -> Row:
    """Measure PPO's loop with 4 passes over 128 steps of 32 games, in minibatches of 1,024."""
    needs_atari()
    n_envs, n_steps, n_rows = (4, 8, 8) if setup.is_rehearsal else (32, 128, 1_024)
    how: dict[str, Any] = {"n_envs": n_envs, "step_per_collect": n_envs * n_steps, "batch_size": n_rows}
    how |= {"repeat_per_collect": 4, "step_per_epoch": 4 * n_envs * n_steps, "max_epoch": 2, "evaluation": None}
    how |= {"seed": 1, "zoo": False, "device": setup.device, "engine": setup.fastest}
    with tk.presets.ppo(PONG, **how, verbose=False, show_progress=False) as trainer:
        next(trainer)
        stats = next(trainer).stats
    return {"rate": stats.time.steps_per_second, "n_envs": n_envs}


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
    """Train Rainbow by the zoo's settings until 18 is reached; continue at the next call where time is out.

    Buffer, weights and curve are saved after every epoch of 50,000 steps, and at the end of the time. The curve has the
    seconds with evaluations.
    """
    needs_atari()
    ends, folder = time.monotonic() + left_s - MARGIN_S, setup.work / "pong"
    tuned = tk.zoo.entry("rainbow", PONG).settings_on(setup.device)
    small: dict[str, Any] = {
        "n_envs": 4,
        "step_per_collect": 4,
        "batch_size": 4,
        "capacity": 400,
        "learning_starts": 40,
        "max_epoch": 2,
        "step_per_epoch": 60,
        "n_test_envs": 1,
        "episode_per_test": 1,
    }
    trainer = tk.presets.rainbow(
        PONG,
        seed=1,
        device=setup.device,
        engine=setup.fastest,
        buffer={**tuned["buffer"], "frames": tk.engine.DeviceFrames(setup.device)},
        stop_return=WON,
        resume_from=folder if folder.exists() else None,
        verbose=False,
        show_progress=False,
        **(small if setup.is_rehearsal else {"n_test_envs": 8, "episode_per_test": 8}),
    )
    longest_s, began = 0.0, time.monotonic()
    with trainer:
        while began + longest_s < ends:
            result = next(trainer, None)
            if result is None:
                break
            longest_s, began = max(longest_s, time.monotonic() - began), time.monotonic()
            print(f"  {result.info.env_step:,} steps, evaluation {result.stats.test.returns.mean}", flush=True)
            trainer.save(folder)
        if trainer.is_finished and trainer.stop_reason in (None, "stop_fn", "max_epoch"):
            curve = [[row["env_step"], row["seconds"], row["test/returns/mean"]] for row in trainer.history]
            best = max(score for _, _, score in curve)
            return {"curve": curve, "best": best, "reached": best >= WON}
        trainer.save(folder)
    return None


def sb3_loop(setup: Setup, left_s: float) -> Row:
    """Measure the loop of Stable-Baselines3's DQN in the same games, with as many updates of 32 rows."""
    needs_atari()
    n_envs, n_steps = (2, 8) if setup.is_rehearsal else (32, 3_200)
    work = {"learner": "DQN", "loop": "pong", "n_envs": n_envs, "n_steps": n_steps, "n_rows": 32}
    (rate,) = peer.run(setup, work)
    return {"rate": rate, "n_envs": n_envs}


def loops(setup: Setup) -> list[Unit]:
    """List the rates of whole loops."""
    own = [Unit(f"Rainbow, {name}", partial(loop, setup, own), 60) for name, own in SWITCHES.items()]
    peers = [Unit("DQN of Stable-Baselines3", partial(sb3_loop, setup), 60)]
    others = [Unit("PPO", partial(ppo, setup), 60), Unit("acting in 64 games", partial(collecting, setup), 30)]
    return [*own[:1], *peers, *own[1:], *others]


def units(setup: Setup) -> list[Unit]:
    """Return the run."""
    return [Unit(LEARNED, partial(learning, setup), 3 * MARGIN_S)]


def loops_section(rows: list[Row]) -> Iterator[str]:
    """Yield the table of rates."""
    cells: list[tuple[Any, ...]] = [(row["unit"], row["n_envs"], f"{row['rate']:,.0f}") for row in rows]
    yield from table("what | games | agent steps/s", cells)


def section(rows: list[Row]) -> Iterator[str]:
    """Yield the curve."""
    for row in rows:
        steps, seconds, score = row["curve"][-1]
        reached = "reached 18" if row["reached"] else "did not reach 18"
        yield f"{LEARNED}: {reached}; {score:.1f} after {steps:,} agent steps and {seconds / 60:.1f} minutes."
        yield ""
        points = [(f"{steps:,}", f"{seconds / 60:.1f}", f"{score:.1f}") for steps, seconds, score in row["curve"]]
        yield from table("agent steps | minutes | mean return of an evaluation", points)


LEARNED = "Rainbow until an evaluation returns 18"
LOOPS = Piece("loops", "Whole loops on Pong", loops, loops_section)
PIECE = Piece("pong", "Pong", units, section)
