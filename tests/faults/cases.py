"""Every way to fail in each backend, and the environments of a test of it."""

import time
from functools import partial
from pathlib import Path
from typing import Any, Literal

import pytest

from tests.faults.faulty import FAULTS, Fault, FaultyEnv
from trainkit.buffer import ReplayBuffer
from trainkit.core.data import Transition
from trainkit.envs import Envs, make_envs

Backend = Literal["sync", "async"]
CASES = [
    (fault, backend) for fault in FAULTS for backend in ("sync", "async") if backend == "async" or not fault.only_apart
]
every_case = pytest.mark.parametrize(
    ("fault", "backend"), [pytest.param(*case, id=f"{case[0]}, {case[1]}") for case in CASES]
)
N_STEP = 150


def faulty_envs(fault: Fault | None, backend: Backend, lives: Path, **options: Any) -> Envs:
    if backend == "async":
        options = {"step_timeout_s": 0.5, **options}
    factories = [partial(FaultyEnv, env, fault, lives) for env in range(3)]
    return make_envs(factories, backend=backend, seed=5, restart_delay_s=0.001, **options)


def close_quickly(envs: Envs) -> None:
    began = time.monotonic()
    envs.close()
    assert time.monotonic() - began < 5


def all_rows(buffer: ReplayBuffer) -> Transition:
    (rows,) = buffer.transitions()
    return rows
