"""Environments in actors: the rows of environments in this process, failures by environment, and actors that die."""

import os
import signal
import subprocess
import sys
import time
from collections import Counter
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from numpy.typing import NDArray

import trainkit as tk
from tests.envs.test_calls import Seen, check_what_can_be_sent
from trainkit.core.worker_process import Inbox, WorkerProcess
from trainkit.core.worker_protocol import answer_to
from trainkit.extensions.actors.actor_runner import HostedActor, serve


class Counting(gym.Env[NDArray[np.float32], int]):
    """Observations are the episode, which the seed names, and the step in it; an episode has 7 to 16 steps."""

    observation_space = gym.spaces.Box(-1, 1e6, (2,), np.float32)
    action_space = gym.spaces.Discrete(2)

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[NDArray[np.float32], dict[str, Any]]:
        super().reset(seed=seed)
        self._episode, self._t = int(self.np_random.integers(10**6)), 0
        self._last = 7 + self._episode % 10
        return self._obs(), {}

    def step(self, action: int) -> tuple[NDArray[np.float32], float, bool, bool, dict[str, Any]]:
        self._t += 1
        if self._t == 5 and self._episode % 3 == 0 and self.fails:
            raise ValueError("step 5")
        return self._obs(), 1.0, self._t == self._last, False, {}

    def _obs(self) -> NDArray[np.float32]:
        return np.array([self._episode, self._t], np.float32)

    def __init__(self, fails: bool = False) -> None:
        self.fails = fails

    def pid(self) -> int:
        return os.getpid()

    def check(self) -> None:
        if self.fails:
            raise ValueError("it fails")


class Here:
    """An actor in this process: messages go through pickle, and it can die."""

    made: list["Here"] = []  # noqa: RUF012  # of the running test

    def __init__(self, factories: bytes) -> None:
        self.host = HostedActor(factories)
        self._answers: list[bytes] = []
        self.limits_s: list[float] = []  # of each answer that has a limit
        self.is_dead = False
        self.made.append(self)

    def send(self, message: bytes) -> None:
        if not self.is_dead:
            self._answers.append(answer_to(message, self.host))

    def poll(self, seconds: float) -> bool:
        self.limits_s.append(seconds)
        return True

    def receive(self) -> bytes:
        if self.is_dead:
            raise EOFError
        return self._answers.pop(0)

    def end(self) -> str:
        return "was killed by the test"

    def request_close(self) -> None:
        self.host.close()

    def stop(self, deadline: float) -> None:
        assert deadline > time.monotonic()


def trained(**options: Any) -> dict[str, Any]:
    """Return the weights and rows of a run."""
    envs = tk.make_envs("CartPole-v1", 5, seed=3, **options)
    policy = tk.DQNPolicy.for_envs(envs, hidden=(8,), seed=1)
    collector = tk.Collector(policy, envs, tk.ReplayBuffer(1_000))
    trainer = tk.OffpolicyTrainer(
        policy, collector, max_epoch=2, step_per_epoch=100, batch_size=8, seed=5, verbose=False
    )
    with trainer:
        trainer.run()
        rows = trainer.buffer.sample(None, horizon=policy.horizon, step=0)
    weights = {name: weight.tobytes() for name, weight in policy.get_weights().items()}
    return weights | {"obs": rows.obs.tobytes(), "action": rows.action.tobytes(), "reward": rows.reward.tobytes()}


def test_a_run_has_the_bits_of_environments_in_this_process(here: list[Here]) -> None:
    assert trained(backend=tk.envs.Actors(2)) == trained()
    assert len(here) == 2


def test_actors_have_groups_of_nearly_equal_size_and_answer_for_their_environments(here: list[Here]) -> None:
    envs = tk.make_envs([lambda fails=fails: Counting(fails) for fails in (0, 1, 0, 1, 1)], backend=tk.envs.Actors(2))
    assert envs.call("fails") == [0, 1, 0, 1, 1]
    assert [len(place.host.runner.envs) for place in here] == [3, 2]
    with pytest.raises(tk.errors.EnvError, match=r"env 0 raised AttributeError"):
        envs.call("nothing")
    with pytest.raises(tk.errors.EnvError, match=r"env 1 raised ValueError in check: it fails"):
        envs.call("check")
    envs.close()


def test_an_environment_that_raises_is_named_with_its_actor(here: list[Here]) -> None:
    envs = tk.make_envs(lambda: Counting(True), 4, seed=1, backend=tk.envs.Actors(2))
    with pytest.raises(tk.errors.EnvError, match=r"env \d raised ValueError in step: step 5") as caught:
        tk.Collector(tk.RandomPolicy(envs.action_space), envs).collect(n_step=200)
    assert "in the process of env" in "".join(getattr(caught.value.__cause__, "__notes__", []))
    assert len(here) == 2


def check_rows(collector: tk.Collector) -> None:
    """Check that every stored row is once there, with its true successor, in episodes without gaps from their start."""
    rows = collector.buffer.sample(None, horizon=tk.Horizon(), step=0, columns=("env_id",))  # type: ignore[union-attr]
    obs, following = rows.obs.astype(int), rows.next_obs.astype(int)
    assert max(Counter(map(tuple, obs.tolist())).values()) == 1
    np.testing.assert_array_equal(following - obs, np.tile([0, 1], (len(obs), 1)))
    for episode in np.unique(obs[:, 0]):
        steps = np.sort(obs[obs[:, 0] == episode, 1])
        np.testing.assert_array_equal(steps, np.arange(len(steps)))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"backend": tk.envs.Actors(3)}, ".backend: 3 actors are more than the 2 environments: give at most as many"),
        ({"backend": tk.envs.Actors(1), "wait_num": 1}, ".wait_num waits for processes"),
        ({"backend": tk.envs.Actors}, ".backend"),
        ({"backend": "process"}, ".backend must be"),
    ],
)
def test_options_that_cannot_work_are_rejected(options: dict[str, Any], message: str) -> None:
    with pytest.raises(tk.ConfigError) as caught:
        tk.make_envs("CartPole-v1", 2, **options)
    assert message in str(caught.value)


def test_made_environments_are_not_for_actors() -> None:
    envs = tk.make_envs("CartPole-v1", 2)
    with pytest.raises(tk.ConfigError, match=r"Actors\(actors=1\) runs environments that it makes: give their id"):
        tk.make_envs(envs, backend=tk.envs.Actors(1))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"actors": 0}, "Actors.actors must be a whole number >= 1, got 0"),
        ({"fragment": 0}, "Actors.fragment must be a whole number >= 1, got 0"),
        ({"lag": -1}, "Actors.lag must be a whole number >= 0, got -1"),
        ({"where": "rays"}, "Actors.where must be"),
    ],
)
def test_actors_that_cannot_work_are_rejected(options: dict[str, Any], message: str) -> None:
    with pytest.raises(tk.ConfigError) as caught:
        tk.envs.Actors(**{"actors": 2, **options})
    assert message in str(caught.value)


def test_what_cannot_be_sent_to_an_actor_is_rejected_with_the_remedy(here: list[Here]) -> None:
    check_what_can_be_sent(tk.make_envs(Seen, 2, backend=tk.envs.Actors(1)))
    assert len(here) == 1


def test_an_error_while_environments_are_made_is_raised(here: list[Here]) -> None:
    def broken() -> Any:
        raise OSError("no license")

    with pytest.raises(tk.errors.EnvError, match="no license"):
        tk.make_envs(broken, 2, backend=tk.envs.Actors(1))


@pytest.mark.slow
def test_actors_in_processes_have_the_same_bits_and_end_with_their_owner() -> None:
    assert trained(backend=tk.envs.Actors(2)) == trained()
    code = "import time, trainkit as tk; envs = tk.make_envs('CartPole-v1', 2, backend=tk.envs.Actors(2)); "
    code += "print(*[a.channel.pid for a in envs._backend.runner._actors], flush=True); time.sleep(100)"
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True) as owner:
        assert owner.stdout is not None
        pids = [int(pid) for pid in owner.stdout.readline().split()]
        owner.kill()
    assert len(pids) == 2
    assert not [pid for pid in pids if is_alive(pid)]


def is_alive(pid: int) -> bool:
    """Return whether a process lives after up to 20 s."""
    for _ in range(200):
        try:
            os.kill(pid, 0)
        except ProcessLookupError:
            return False
        time.sleep(0.1)
    return True


def never_ends(inbox: Inbox) -> None:
    inbox.pipe.send_bytes(b"ready")
    time.sleep(60)


def test_processes_that_do_not_end_are_killed_at_one_deadline() -> None:
    processes = [WorkerProcess(never_ends) for _ in range(2)]
    assert [process.receive() for process in processes] == [b"ready"] * 2
    for process in processes:
        process.request_close()
    start = time.monotonic()
    for process in processes:
        process.stop(start + 2.0)
    assert 2.0 <= time.monotonic() - start < 3.5
    assert not any(is_alive(process.pid) for process in processes)


@pytest.mark.slow
@pytest.mark.global_rng  # Ray draws from that of random
@pytest.mark.timeout(600)
def test_actors_of_ray_have_the_same_bits(monkeypatch: pytest.MonkeyPatch) -> None:
    ray = pytest.importorskip("ray", reason="Ray is not installed")
    monkeypatch.setenv("RAY_worker_niceness", "0")  # so that a busy machine does not starve them
    ray.init(num_cpus=3, include_dashboard=False, configure_logging=False, log_to_driver=False)
    try:
        assert trained(backend=tk.envs.Actors(2, where="ray")) == trained()
    finally:
        ray.shutdown()


def test_a_worker_process_reports_how_it_ended() -> None:
    process = WorkerProcess(serve)
    process.signal(signal.SIGKILL)
    with pytest.raises(EOFError):
        process.receive()
    assert process.end() == "was killed by SIGKILL"
