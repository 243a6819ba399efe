"""Measure what a Q-learner of Atari frames does on a GPU, by each switch, beside what the sums alone would take.

    python -m benchmarks.gpu [--rounds 3] [--updates 500] [--steps 20000] [--device cuda] [--out FILE]

Updates per second of double DQN with the network of Mnih et al. (2015) on made-up frames, at batches of 32 and 256, and
environment steps per second of whole runs of Pong. Batches are there already, unless a side draws them from a buffer,
whose frames are in ordinary memory or on the GPU too. The floor is what an update's multiplications and the optimizer's
memory take at the rates this GPU reaches in one large product and one large copy: no launch, no wait, no environment.
`--device cpu` measures what needs no GPU, to see that it runs.
"""

import argparse
import itertools
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import torch
from gymnasium import spaces

import trainkit as tk
from benchmarks.provenance import measured_at
from trainkit.core.spaces import Spaces
from trainkit.presets.base import ATARI_ENVS

FRAMES, ACTIONS = spaces.Box(0, 255, (4, 84, 84), np.uint8), spaces.Discrete(6)
SIDES: dict[str, dict[str, Any]] = {
    "eager": {},
    "compiled": {"engine": "compile"},
    "graph": {"engine": "cuda_graph"},
    "graph, bf16, channels last": {"engine": "cuda_graph", "precision": "bf16", "channels_last": True},
    "bf16, channels last": {"precision": "bf16", "channels_last": True},
    "drawn": {"drawn_from": "host"},
    "graph, drawn": {"drawn_from": "host", "engine": "cuda_graph"},
    "graph, drawn from frames on the GPU": {"drawn_from": "device", "engine": "cuda_graph"},
}
ACTING: dict[str, dict[str, Any]] = {
    "graph, acting on the CPU": {"engine": "cuda_graph", "act_on": "cpu"},
}  # of whole runs alone
WARM_UP = 20  # updates, in which graphs are compiled and recorded
STORED = 20_000  # frames in a buffer that is drawn from

# Multiplications for one row on its way forward: three convolutions, two layers.
PLAN = ((20 * 20, 32, 4 * 8 * 8), (9 * 9, 64, 32 * 4 * 4), (7 * 7, 64, 64 * 3 * 3), (1, 512, 3136), (1, ACTIONS.n, 512))
FORWARD = sum(int(places * outputs * inputs) for places, outputs, inputs in PLAN)
FIRST = PLAN[0][0] * PLAN[0][1] * PLAN[0][2]  # whose input needs no gradient
PARAMETERS = sum(int(outputs * (inputs + 1)) for _, outputs, inputs in PLAN)


def flops(n_rows: int) -> float:
    """Count an update's: three ways forward (online twice, target once), and one back, which is two less the first."""
    return 2.0 * n_rows * (3 * FORWARD + 2 * FORWARD - FIRST)


def made(device: str, **switches: Any) -> tk.DQNPolicy:
    """Return the learner."""
    at = Spaces(observation_space=FRAMES, action_space=ACTIONS)
    options = {"engine": "torch", "device": device, "seed": 1} | switches
    return tk.DQNPolicy.for_envs(at, double=True, target=tk.Target(2_000, "updates"), **options)


def frames_of(n_rows: int, seed: int) -> tk.TransitionBatch:
    """Make up a batch."""
    rng = np.random.default_rng(seed)
    obs, next_obs = rng.integers(0, 255, (2, n_rows, *(FRAMES.shape or ())), np.uint8)
    ones = np.ones(n_rows, np.float32)
    return tk.TransitionBatch(
        obs=obs,
        action=rng.integers(int(ACTIONS.n), size=n_rows),
        reward=rng.choice([-1.0, 0.0, 1.0], n_rows).astype(np.float32),
        discount=0.99 * ones,
        next_obs=next_obs,
        weight=ones,
        slots=np.arange(n_rows),
    )


def source_of(n_rows: int, device: str, drawn_from: str | None) -> Callable[[], tk.TransitionBatch]:
    """Return what gives batches: four that are there already, or a buffer of frames on the host or on the device."""
    if drawn_from is None:
        batches = itertools.cycle([frames_of(n_rows, seed) for seed in range(4)])
        return lambda: next(batches)
    rng, horizon = np.random.default_rng(0), tk.Horizon()
    buffer = tk.ReplayBuffer.from_arrays(
        obs=rng.integers(0, 255, (STORED, *(FRAMES.shape or ())[1:]), np.uint8),
        action=rng.integers(int(ACTIONS.n), size=STORED),
        reward=rng.choice([-1.0, 0.0, 1.0], STORED),
        terminated=np.arange(STORED, 0, -1) % 1_000 == 1,  # the last row, too
        stack=4,
        frames=tk.engine.DeviceFrames(device) if drawn_from == "device" else None,
        seed=1,
    )
    return lambda: buffer.sample(n_rows, horizon=horizon)


def wait(device: str) -> None:
    """Wait until the device has done what it was asked for."""
    if device != "cpu":
        torch.cuda.synchronize(device)


def seconds_of(work: Callable[[], Any], n_times: int, device: str) -> float:
    """Return the seconds that one of so many calls takes, after one that is not counted."""
    work()
    wait(device)
    began = time.perf_counter()
    for _ in range(n_times):
        work()
    wait(device)
    return (time.perf_counter() - began) / n_times


def floor(n_rows: int, device: str, precision: str = "float32") -> float:
    """Return the seconds of an update's sums at this device's own best rates."""
    size = 8192 if device != "cpu" else 256
    dtype = torch.bfloat16 if precision == "bf16" else torch.float32
    one, other = torch.ones(2, size, size, dtype=dtype, device=device)
    product = seconds_of(lambda: one @ other, 10, device)
    copying = seconds_of(lambda: one.copy_(other), 10, device)
    flop_rate, byte_rate = 2.0 * size**3 / product, 2.0 * one.nbytes / copying
    adam = 4.0 * PARAMETERS * 7  # reads gradient, parameter and two moments, writes three of them
    return flops(n_rows) / flop_rate + adam / byte_rate


def updates_per_second(
    n_rows: int, n_updates: int, device: str, drawn_from: str | None = None, **switches: Any
) -> float:
    """Return the rate of updates."""
    policy, draw = made(device, **switches), source_of(n_rows, device, drawn_from)

    def update(i: int) -> None:
        policy.update(draw(), step=i)

    for i in range(WARM_UP):
        update(i)
    step = itertools.count(WARM_UP)
    return 1 / seconds_of(lambda: update(next(step)), n_updates, device)


def pong_steps_per_second(n_steps: int, device: str, drawn_from: str = "host", **switches: Any) -> float:
    """Return the rate of a whole run: 32 games, prioritised replay, an update of 32 rows for every fourth step."""
    envs = tk.make_envs("ALE/Pong-v5", 32, seed=1, **ATARI_ENVS)
    policy = tk.DQNPolicy.for_envs(envs, double=True, **{"engine": "torch", "device": device, "seed": 1} | switches)
    frames = tk.engine.DeviceFrames(device) if drawn_from == "device" else None
    trainer = tk.OffpolicyTrainer(
        policy,
        tk.Collector(policy, envs, tk.PrioritizedReplayBuffer(50_000, frames=frames)),
        max_epoch=2,
        step_per_epoch=n_steps,
        step_per_collect=32,
        update_per_step=0.25,
        batch_size=32,
        learning_starts=1_600,
        refresh_priorities="late",
        log_every=10**9,
        seed=1,
        verbose=False,
        show_progress=False,
    )
    with trainer:
        next(trainer)  # fills the buffer, compiles and records
        return float(next(trainer).stats.time.steps_per_second)


def table(title: str, rates: Mapping[str, Sequence[float]], floors: Mapping[str, float]) -> list[str]:
    """Return the medians of all sides, and how near they are to their floors, in seconds, where there are such."""
    first = statistics.median(next(iter(rates.values())))
    lines = [f"## {title}", "", "| side | per second | times eager | share of the floor's |", "|---|---|---|---|"]
    for side, measured in rates.items():
        rate = statistics.median(measured)
        share = f"{100 * rate * floors[side]:.0f} %" if side in floors else ""
        lines.append(f"| {side} | {rate:,.0f} | {rate / first:.2f} | {share} |")
    return [*lines, ""]


def measure(options: argparse.Namespace) -> list[str]:
    """Measure all sides in turn, and return the page."""
    device = options.device
    usable, acting = (
        {side: how for side, how in sides.items() if device != "cpu" or "engine" not in how}
        for sides in (SIDES, ACTING)
    )
    name = "the CPU" if device == "cpu" else torch.cuda.get_device_name(device)
    lines = [
        "# On a GPU",
        "",
        measured_at(),
        "",
        f"{name}, torch {torch.__version__}; sides in turn, medians of {options.rounds}.",
        "",
    ]
    for n_rows in options.batches:
        rates: dict[str, list[float]] = {side: [] for side in usable}
        for _ in range(options.rounds):
            for side, how in usable.items():
                rates[side].append(updates_per_second(n_rows, options.updates, device, **how))
        least = {precision: floor(n_rows, device, precision) for precision in ("float32", "bf16")}
        title = f"updates of {n_rows} rows; floor {1e3 * least['float32']:.3f} ms, in bf16 {1e3 * least['bf16']:.3f} ms"
        lines += table(title, rates, {side: least[how.get("precision", "float32")] for side, how in usable.items()})
    if options.steps and find_spec("ale_py") is not None:
        whole = {
            side: how for side, how in (usable | acting).items() if how.get("drawn_from") != "host"
        }  # all draw there
        runs = {side: [pong_steps_per_second(options.steps, device, **how)] for side, how in whole.items()}
        lines += table("environment steps of Pong", runs, {})
    elif options.steps:
        lines += ["Pong was not played: `pip install trainkit[atari]`.", ""]
    return lines


def main(arguments: Sequence[str] | None = None) -> None:
    """Print the page, and write it where it was asked for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--updates", type=int, default=500, help="measured per side, batch size and round")
    parser.add_argument("--batches", type=int, nargs="*", default=[32, 256])
    parser.add_argument("--steps", type=int, default=20_000, help="of Pong per side; 0 plays none")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--out", type=Path, default=None, help="a file to write the page to")
    options = parser.parse_args(arguments)
    if options.device != "cpu" and not torch.cuda.is_available():
        raise SystemExit(
            "there is no CUDA device here, so there is nothing to measure: run it on a machine with a GPU and a CUDA "
            "build of torch, or see that it runs with --device cpu --updates 5 --batches 4 --steps 0"
        )
    page = "\n".join(measure(options))
    print(page)
    if options.out is not None:
        options.out.write_text(page)


if __name__ == "__main__":
    main()
