"""One side of meeting a faulty environment among three: trainkit, gymnasium, Stable-Baselines3 or Tianshou.

    python workers_side.py SIDE sync|async FAULT FOLDER

Runs in an environment of its own, and so imports nothing but that side and the faults. Prints a line of JSON: how often
environments were made anew, what was raised, whether bad data came through, how long closing took, what it raised.
"""

import importlib
import json
import sys
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

warnings.filterwarnings("ignore")

import numpy as np  # noqa: E402  # after the warnings others raise

N_ENVS, STEPS, PATIENCE_S = 3, 60, 2.0

Factories = Sequence[Callable[[], Any]]
Step = tuple[Any, Any]  # observations and rewards
Side = Callable[[Factories, bool], tuple[Iterator[Step], Callable[[], Any], Callable[[], int]]]


def trainkit(factories: Factories, apart: bool) -> Any:
    """Make what steps, what closes, and what tells of environments made anew."""
    import trainkit as tk

    envs = tk.make_envs(
        factories, backend="async" if apart else "sync", on_error="restart", restart_delay_s=0.01, seed=1,
        **({"step_timeout_s": PATIENCE_S} if apart else {}),
    )  # fmt: skip
    collector = tk.Collector(tk.DQNPolicy.for_envs(envs, hidden=(8,), device="cpu", seed=1), envs)
    told = []

    def steps() -> Iterator[Step]:
        for _ in range(STEPS):
            told.append(collector.collect(n_step=N_ENVS, random=True).n_env_restarts)
            yield envs.obs, np.zeros(N_ENVS)

    return steps(), envs.close, lambda: sum(told)


def gymnasium(factories: Factories, apart: bool) -> Any:
    """Make what steps, what closes, and what tells of environments made anew."""
    from gymnasium.vector import AsyncVectorEnv, SyncVectorEnv

    return _begun_by_themselves(AsyncVectorEnv(factories) if apart else SyncVectorEnv(factories))


def sb3(factories: Factories, apart: bool) -> Any:
    """Make what steps, what closes, and what tells of environments made anew."""
    from stable_baselines3.common.vec_env import DummyVecEnv, SubprocVecEnv

    return _begun_by_themselves(SubprocVecEnv(factories) if apart else DummyVecEnv(factories))


def _begun_by_themselves(envs: Any) -> Any:
    """Step environments that reset themselves."""

    def steps() -> Iterator[Step]:
        envs.reset()
        for _ in range(STEPS):
            yield envs.step(np.zeros(N_ENVS, np.int64))[:2]

    return steps(), envs.close, lambda: 0


def tianshou(factories: Factories, apart: bool) -> Any:
    """Make what steps, what closes, and what tells of environments made anew."""
    from tianshou.env import DummyVectorEnv, SubprocVectorEnv

    envs = SubprocVectorEnv(factories) if apart else DummyVectorEnv(factories)

    def steps() -> Iterator[Step]:
        envs.reset()
        for _ in range(STEPS):
            obs, reward, terminated, _, _ = envs.step(np.zeros(N_ENVS, np.int64))
            yield obs, reward
            if terminated.any():
                first, _ = envs.reset(np.flatnonzero(terminated))
                yield first, np.zeros(1)

    return steps(), envs.close, lambda: 0


SIDES: dict[str, Side] = {"trainkit": trainkit, "gymnasium": gymnasium, "sb3": sb3, "tianshou": tianshou}


def is_sound(step: Step) -> bool:
    """Whether observations and rewards are numbers, all of them."""
    try:
        return all(bool(np.isfinite(np.asarray(column, np.float64)).all()) for column in step)
    except (TypeError, ValueError):
        return False


def main() -> None:
    """Step three environments, one of which fails, and print what came of it."""
    side, backend, name, folder = sys.argv[1:]
    faulty = importlib.import_module("faulty")  # of the tests of faults, on the path
    fault = next((fault for fault in faulty.FAULTS if fault.name == name), None)
    factories = [partial(faulty.FaultyEnv, env, fault, Path(folder)) for env in range(N_ENVS)]
    result: dict[str, Any] = {"told": None, "bad": 0, "steps": 0}
    steps, close, n_anew = SIDES[side](factories, backend == "async")
    try:
        for step in steps:
            result["bad"] += not is_sound(step)
            result["steps"] += 1
    except (Exception, SystemExit) as error:  # noqa: BLE001  # whatever it is, it is what is asked for
        result["told"] = f"{type(error).__name__}: {error}"
    result["anew"] = n_anew()
    print(json.dumps(result), flush=True)
    began = time.monotonic()
    try:
        close()
        raised = None
    except Exception as error:  # noqa: BLE001  # as above
        raised = f"{type(error).__name__}: {error}"
    print(json.dumps({**result, "close_s": time.monotonic() - began, "close_raised": raised}), flush=True)


if __name__ == "__main__":
    main()
