"""Whatever an environment does, the fault is reported, and a caller may continue."""

import multiprocessing
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.faults.cases import N_STEP, Backend, all_rows, close_quickly, every_case, faulty_envs
from tests.faults.faulty import EPISODE, FAULTY, Fault
from tests.helpers.doubles import Still
from trainkit.buffer import ReplayBuffer
from trainkit.collector import Collector
from trainkit.core.errors import BadEnvDataError, ConfigError, EnvError
from trainkit.core.seeding import episode_seed
from trainkit.envs import make_envs

# Python 3.12 warns of fork() in a process with threads.
pytestmark = pytest.mark.filterwarnings("ignore:.*multi-threaded:DeprecationWarning")


@pytest.fixture
def lives(tmp_path: Path) -> Path:
    folder = tmp_path / "lives"
    folder.mkdir()
    return folder


@pytest.fixture(autouse=True)
def no_process_stays() -> Iterator[None]:
    yield
    assert multiprocessing.active_children() == []


@pytest.mark.one_of_each
@every_case
def test_without_restarts_the_run_ends_with_all_it_takes_to_find_the_fault(
    fault: Fault, backend: Backend, lives: Path
) -> None:
    envs = faulty_envs(fault, backend, lives)
    buffer = ReplayBuffer(1_000)
    collector = Collector(Still(), envs, buffer)
    with pytest.raises(EnvError, match=fault.words if fault.n_failing_makes == 0 else "no wheels") as caught:
        collector.collect(n_step=N_STEP)
    error = caught.value
    assert error.env_id == FAULTY
    assert f"env {FAULTY}" in str(error)
    assert f"episode {EPISODE}" in str(error)
    assert f"episode seed {episode_seed(5, FAULTY, EPISODE)}" in str(error)
    assert "(action 0)" in str(error) or fault.where == "reset"
    if fault.cause is None:
        assert error.__cause__ is None
    else:
        assert isinstance(error.__cause__, fault.cause)
    is_data = fault.cause is None and not fault.only_apart
    assert isinstance(error, BadEnvDataError) == is_data
    if fault.n_failing_makes == 0:  # and a caller that continues finds everything consistent
        stats = collector.collect(n_step=N_STEP)
        assert (stats.n_faulty_episodes, stats.n_env_restarts) == (0, 0)
        rows = all_rows(buffer)
        np.testing.assert_array_equal(rows.next_obs - rows.obs, np.broadcast_to([0.0, 0, 0, 1], (len(rows.obs), 4)))
        assert collector.env_step == len(buffer)
    close_quickly(envs)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"step_timeout_s": 0, "backend": "async"}, "step_timeout_s must be in"),
        ({"step_timeout_s": 3}, 'step_timeout_s can end a process, not what runs in this one: use backend="async"'),
    ],
)
def test_unsupported_options_are_rejected(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        make_envs("CartPole-v1", 2, **options)
