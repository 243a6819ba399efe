"""Environments in actors: the rows of environments in this process, failures by environment, and actors that die."""

import signal
import subprocess
import sys
import time
from typing import Any

import pytest

import trainkit as tk
from tests.extensions.actors.local_actors import Counting, Here, is_alive
from tests.helpers.small_envs import Seen, check_which_calls_can_be_sent
from tests.helpers.tasks import check_that_each_environment_has_its_task
from trainkit.core.worker_process import Inbox, WorkerProcess
from trainkit.extensions.actors.actor_runner import serve


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


@pytest.mark.parametrize("fragment", [1, 4])
def test_each_environment_has_a_task_of_its_own(fragment: int) -> None:
    check_that_each_environment_has_its_task(tk.envs.Actors(2, fragment=fragment))


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
    check_which_calls_can_be_sent(tk.make_envs(Seen, 2, backend=tk.envs.Actors(1)))
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
