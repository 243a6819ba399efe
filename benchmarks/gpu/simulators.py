"""Environments on the device: CartPole and Pendulum in torch, alone and with PPO in a whole loop."""

from collections.abc import Iterator
from functools import partial
from typing import Any

import torch

import trainkit as tk
from benchmarks.gpu.record import Piece, Row, Setup, Unit
from benchmarks.gpu.timing import rates, table

KINDS = {"CartPole": tk.simulators.CartPole, "Pendulum": tk.simulators.Pendulum}
SIZES = (1_024, 4_096, 16_384)
N_STEPS = 16  # of every environment per rollout


def stepping(setup: Setup, kind: Any, n_envs: int, left_s: float) -> Row:
    """Measure environment steps per second of the simulator alone."""
    simulator = kind(n_envs, device=setup.device)
    action = torch.as_tensor(simulator.action_space.sample(), device=setup.device)
    actions = action.expand(n_envs, *action.shape)
    return {"rate": n_envs * rates(lambda: simulator.step(actions), setup)[-1]}


def learning(setup: Setup, kind: Any, n_envs: int, engine: str, left_s: float) -> Row:
    """Measure environment steps per second of PPO in a whole loop, collecting and learning together."""
    simulator = kind(n_envs, device=setup.device)
    policy = tk.PPOPolicy.for_envs(simulator, hidden=(64, 64), device=setup.device, engine=engine, seed=1)
    n_steps = N_STEPS * n_envs
    trainer = tk.OnpolicyTrainer(
        policy,
        tk.simulators.TensorCollector(policy, simulator),
        max_epoch=2,
        step_per_epoch=(1 if setup.is_rehearsal else 10) * n_steps,
        step_per_collect=n_steps,
        repeat_per_collect=2,
        batch_size=n_steps // 64,
        log_every=10**9,
        seed=1,
        verbose=False,
        show_progress=False,
    )
    with trainer:
        next(trainer)  # compiles and records
        time = next(trainer).stats.time
    return {"rate": time.steps_per_second, "collecting": time.collect}


def units(setup: Setup) -> list[Unit]:
    """List the simulators alone, and with PPO by torch and by the fastest engine."""
    sizes = (16,) if setup.is_rehearsal else SIZES
    alone = [
        Unit(f"{name} alone, {n:,} environments", partial(stepping, setup, kind, n), 15)
        for name, kind in KINDS.items()
        for n in sizes
    ]
    loops = [
        Unit(f"{name} and PPO, {n:,} environments, {engine}", partial(learning, setup, kind, n, engine), 40)
        for name, kind in KINDS.items()
        for n in sizes
        for engine in dict.fromkeys(("torch", setup.fastest))
    ]
    return [*alone, *loops]


def section(rows: list[Row]) -> Iterator[str]:
    """Yield the table of rates."""
    cells: list[tuple[Any, ...]] = [
        (row["unit"], f"{row['rate']:,.0f}", f"{row['collecting']:.0%}" if "collecting" in row else "") for row in rows
    ]
    yield from table("what | environment steps/s | collecting's share", cells)


PIECE = Piece("simulators", "Environments on the device", units, section)
