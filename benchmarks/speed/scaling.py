"""What is done at the same time: runs, actors, ranks, learning while environments step, evaluations, policies, tensors.

    python -m benchmarks.speed.scaling [--parts ranks actors runs ...] [--seeds 8] [--seconds 62] [--jobs 2] [--page]

`NOTES` says what each part does. `ray` is measured where it is installed, if it is named. `--page` stores the rows of
each part and writes the page of all parts' newest.
"""

import argparse
import hashlib
import json
import os
import pickle
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import torch
from numpy.typing import NDArray

import trainkit as tk
from benchmarks import pages
from benchmarks.measuring import quiet_machine
from benchmarks.speed import scaling_parts
from benchmarks.speed.scaling_parts import Row
from trainkit.core.worker_process import ONE_THREAD, Inbox, WorkerProcess
from trainkit.extensions.actors.actor_runner import Where
from trainkit.extensions.ranks.ranks import Ranks

ROWS = pages.RESULTS / "scaling.jsonl"  # {part, command, commit, rows}
PARTS = ("ranks", "actors", "runs", *scaling_parts.MEASURES)
HAS_RAY = find_spec("ray") is not None
SLEEP_S = 0.005
FRAGMENT = 16  # vector steps


class Idle(gym.Env[NDArray[np.float32], int]):
    """An environment whose step sleeps, or does nothing."""

    observation_space = gym.spaces.Box(-1, 1, (4,), np.float32)
    action_space = gym.spaces.Discrete(2)

    def __init__(self, seconds: float = 0.0) -> None:
        self._seconds, self._obs = seconds, np.zeros(4, np.float32)

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[NDArray[np.float32], dict[str, Any]]:
        return self._obs, {}

    def step(self, action: int) -> tuple[NDArray[np.float32], float, bool, bool, dict[str, Any]]:
        if self._seconds:
            time.sleep(self._seconds)
        return self._obs, 1.0, False, False, {}


def make_trainer(seed: int, n_steps: int, **options: Any) -> tk.Trainer:
    """Return a run of DQN on CartPole."""
    return tk.presets.dqn(
        "CartPole-v1",
        seed=seed,
        zoo=False,
        max_epoch=4,
        step_per_epoch=n_steps // 4,
        evaluation=tk.Evaluation(duration=5),
        **options,
    )


def many_runs(n_seeds: int, run_seconds: float, jobs: int, folder: Path) -> list[Row]:
    """Time seeds one after the other and several at a time; runs have about the given length."""
    first = tk.run(partial(make_trainer, n_steps=8_000), seeds=[99], folder=folder / "first", verbose=False)[0]
    assert first.info is not None, first.error
    make = partial(make_trainer, n_steps=max(4, round(8_000 * run_seconds / first.info.seconds)))
    seconds, cpu, infos = {}, {}, {}
    for count in (1, jobs):
        started, used = time.perf_counter(), sum(resource.getrusage(resource.RUSAGE_CHILDREN)[:2])
        results = tk.run(make, seeds=range(n_seeds), jobs=count, folder=folder / str(count))
        seconds[count] = time.perf_counter() - started
        cpu[count] = sum(resource.getrusage(resource.RUSAGE_CHILDREN)[:2]) - used
        unfinished = [one.name for one in results if one.info is None or one.info.stop_reason != "max_epoch"]
        assert not unfinished, f"not finished, so that times say nothing: {unfinished}"
        infos[count] = [result.info.seconds for result in results if result.info is not None]
    each = np.mean(infos[1])
    return [
        (
            f"{n_seeds} seeds of {each:.0f} s, jobs={jobs} compared with one by one",
            f"{seconds[1] / seconds[jobs]:.2f} x ({seconds[1]:.0f} s, {seconds[jobs]:.0f} s)",
            ">= 1.8 x",
        ),
        (
            f"CPU time of {n_seeds} seeds, jobs={jobs} and one by one",
            f"{cpu[jobs]:.0f} s and {cpu[1]:.0f} s: {jobs * cpu[1] / cpu[jobs]:.2f} x on {jobs} idle cores",
            "",
        ),
        ("time of a run apart from its training, in a process", f"{seconds[1] / n_seeds - each:.1f} s", ""),
    ]


def runs_by_ray(folder: Path) -> list[Row]:
    """Time what a run needs as a task of Ray in addition to its training, when Ray has started."""
    make = partial(make_trainer, n_steps=4_000)
    tk.run(make, seeds=[1], backend="ray", folder=folder / "first", verbose=False)  # starts Ray
    started = time.perf_counter()
    results = tk.run(make, seeds=[2, 3], backend="ray", folder=folder / "ray", verbose=False)
    spent = time.perf_counter() - started
    trained = sum(result.info.seconds for result in results if result.info is not None)
    return [("time of a run apart from its training, as a task of Ray", f"{(spent - trained) / 2:.1f} s", "<= 3 s")]


def fastest(call: Callable[[], object], n: int) -> float:
    """Return the seconds of a call, the 10 % quantile of n: what other work on the machine takes is left out."""
    seconds = np.empty(n)
    for i in range(n):
        started = time.perf_counter()
        call()
        seconds[i] = time.perf_counter() - started
    return float(np.quantile(seconds, 0.1))


def idle_step(**where: Any) -> float:
    """Return the seconds of a vector step of 8 environments that do nothing."""
    envs = tk.make_envs(Idle, 8, seed=1, **where)
    envs.reset()
    actions, ids = np.zeros(8, np.int64), envs.all_ids
    seconds = fastest(lambda: envs.step(actions, ids), 3_000)
    envs.close()
    return seconds


def echo(inbox: Inbox) -> None:
    """Answer each message with itself."""
    while True:
        inbox.pipe.send_bytes(inbox.receive())


class Echo:
    """The same as an actor of Ray."""

    def answer(self, message: bytes) -> bytes:
        return message


def two_messages(where: Where) -> float:
    """Return the seconds of a message to each of two actors that do nothing, and of their answers."""
    message = pickle.dumps(bytes(338))  # the size of an answer
    if where == "ray":
        import ray  # optional

        handles = [ray.remote(num_cpus=1)(Echo).remote() for _ in range(2)]
        seconds = fastest(lambda: ray.get([handle.answer.remote(message) for handle in handles]), 3_000)
        for handle in handles:
            ray.kill(handle)
        return seconds
    from benchmarks.speed.scaling import echo  # of a module that processes can import, not of __main__

    processes = [WorkerProcess(echo) for _ in range(2)]

    def ask() -> None:
        for process in processes:
            process.send(message)
        for process in processes:
            process.receive()

    seconds = fastest(ask, 3_000)
    for process in processes:
        process.close()
    return seconds


def vector_step(make: Callable[[], Any], n_envs: int, n_steps: int, **where: Any) -> tuple[float, str]:
    """Return the seconds of a vector step of a collector, and a digest of its rows."""
    envs = tk.make_envs(make, n_envs, seed=1, **where)
    policy = tk.DQNPolicy.for_envs(envs, hidden=(16,), seed=1)
    collector = tk.Collector(policy, envs, tk.ReplayBuffer(n_envs * (n_steps + 50)))
    collector.collect(n_step=n_envs * 20)
    started = time.perf_counter()
    collector.collect(n_step=n_envs * n_steps)
    seconds = (time.perf_counter() - started) / n_steps
    rows = collector.buffer.sample(None, horizon=tk.Horizon(), step=0)  # type: ignore[union-attr]
    envs.close()
    return seconds, hashlib.sha256(rows.obs.tobytes() + rows.action.tobytes()).hexdigest()


def actors() -> list[Row]:
    """Time environments in actors."""
    wheres: dict[str, Where] = {"processes": "processes"} | ({"Ray": "ray"} if HAS_RAY else {})
    sleeping = partial(Idle, SLEEP_S)
    one, bits = vector_step(sleeping, 8, 160)
    idle, idle_collector = idle_step(), vector_step(Idle, 8, 3_200)[0]
    apart = 1e3 * (idle_step(backend="async") - idle)
    rows: list[Row] = [("a vector step's overhead in 8 processes, of an environment each", f"{apart:.2f} ms", "")]
    of_fragments: set[str] = set()
    for name, where in wheres.items():
        plain, in_fragments = tk.envs.Actors(2, where=where), tk.envs.Actors(2, where=where, fragment=FRAGMENT)
        two, theirs = vector_step(sleeping, 8, 160, backend=plain)
        seconds = idle_step(backend=plain)
        same = "equal bits" if theirs == bits else "other bits"
        rows += [
            (f"8 environments of 5 ms in 2 actors, {name}", f"{one / two:.2f} x, {same}", ">= 1.8 x, equal bits"),
            (
                f"a vector step's overhead in 2 actors, {name}",
                f"{1e3 * (seconds - idle):.2f} ms",
                "<= 2 ms" if name == "Ray" else "<= 0.3 ms",
            ),
            (
                f"of which two messages to actors that do nothing, {name}",
                f"{1e3 * two_messages(where):.2f} ms",
                "",
            ),
        ]
        alone, theirs = vector_step(sleeping, 8, 160, backend=in_fragments)
        of_fragments.add(theirs)
        seconds, _ = vector_step(Idle, 8, 3_200, backend=in_fragments)
        rows += [
            (f"8 environments of 5 ms in 2 actors, {name}, fragments of {FRAGMENT}", f"{one / alone:.2f} x", ""),
            (
                f"a vector step more than in this process, fragments of {FRAGMENT}, {name}",
                f"{1e3 * (seconds - idle_collector):.2f} ms",
                "",
            ),
        ]
    n_bits = "equal bits" if len(of_fragments) == 1 else "other bits"
    return [*rows, ("rows of fragments by " + " and ".join(wheres), n_bits, "equal bits")]


def all_reduce() -> None:
    """Print the milliseconds of an average of gradients; runs under torchrun."""
    ranks = Ranks.launched()
    assert ranks is not None, "torchrun started it"
    found = {}
    for n in (10_000, 1_000_000):
        gradient = torch.zeros(n)
        found[n] = 1e3 * fastest(partial(ranks.average, [gradient], 0.0), 500)
    if ranks.rank == 0:
        print("RESULT", json.dumps(found))


def averaged() -> list[Row]:
    """Time the average of gradients between two processes."""
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node=2", "--master-port=29555"]
    ran = subprocess.run(
        [*torchrun, "-m", "benchmarks.speed.scaling", "--all-reduce"],
        env=os.environ | ONE_THREAD, capture_output=True, text=True, check=True,
    )  # fmt: skip
    line = next(line for line in ran.stdout.splitlines() if "RESULT" in line)
    found = json.loads(line.split("RESULT")[1])
    return [(f"average of {int(n):,} gradients over 2 ranks (gloo)", f"{ms:.2f} ms", "") for n, ms in found.items()]


NOTES = """
- **Many runs.** DQN on CartPole by `tk.run`. "Apart from its training" is the start of Python, the imports, and making
  the trainer, of runs one after the other.
- **Actors.** A policy with 16 hidden units acts in 8 environments. The overhead is the time of a vector step of
  environments whose step does nothing, in two actors, minus that in this process: two messages there and two back; of
  each the 10 % quantile of 3,000. The row below it has as many messages, to actors that send them back unread. In
  fragments of 16 vector steps the actors act, too; these times are means, of a collector with a policy and a buffer.
- **Ranks.** The all-reduce of one flat gradient of 32-bit numbers, between two processes of this machine; the 10 %
  quantile of 500.
- **Overlap.** One environment in a process of its own, whose step computes for the time named; two updates of a 256-256
  network, batch 64, per step; medians of 3 turns. In brackets: milliseconds of learning per step. Two things done at
  once take at least the time of the longer; more is gained because neither waits and is woken up.
- **Evaluation.** DQN on CartPole by the general table of the preset, 5,000 steps and 2,500 updates per epoch; 20
  episodes after each epoch in a process of its own, which needs a second core. Seconds are those of all epochs but the
  last, which waits for its own evaluation, from the end of the first, in which the worker starts.
- **Policies.** DQN on the two-agent CartPole of `examples/two_agents.py`, 4 games, 4,000 rows after a tenth of them, an
  update of 64 rows per row: a policy for each agent, compared with two single runs over half of the rows each, and with
  one policy that both agents share. Medians of 9 rounds in turn.
- **Simulators.** PPO with a 64-64 network learns CartPole in 8 environments of gymnasium by `Collector`, and in 4,096
  of `tk.simulators.CartPole` by `TensorCollector`, on the CPU: environment steps per second of CPU time, learning
  included, medians of 3 turns. Each number of environments has settings that suit it (10 passes over 512 rows in
  batches of 128; 2 over 65,536 in batches of 1,024), and the other's number of passes. Solved is a mean return of 475
  in 100 greedy episodes of gymnasium's CartPole-v1 on new seeds, after every 5,120 and every 65,536 steps; seeds 1 to
  3. So many environments make more steps per second, and need more of them.
"""


def store(part: str, rows: Sequence[Row], command: str) -> None:
    """Replace the stored rows of a part, and write the page."""
    stored = {}
    if ROWS.exists():
        stored = {one["part"]: one for one in map(json.loads, ROWS.read_text().splitlines())}
    stored[part] = {"part": part, "command": command, "commit": pages.code_commit(), "rows": rows}
    parts = [stored[name] for name in (*PARTS, "ray") if name in stored]
    ROWS.write_text("".join(json.dumps(one) + "\n" for one in parts))
    cells = [[one["part"], *row, f"`{one['commit']}`"] for one in parts for row in one["rows"]]
    commits = [one["commit"] for one in parts]
    pages.write(
        "scaling",
        [
            *pages.heading("Scaling up", "python -m benchmarks.speed.scaling --page", commits, how="two idle cores"),
            *pages.table(["part", "what", "measured", "bar", "measured at"], cells),
            *NOTES.strip().splitlines(),
        ],
    )


@quiet_machine()
def main() -> None:
    """Measure, print the rows, and store them."""
    parser = pages.arguments(__doc__)
    parser.add_argument("--parts", nargs="+", choices=[*PARTS, "ray"], default=PARTS)
    parser.add_argument("--seeds", type=int, default=8)
    parser.add_argument("--seconds", type=float, default=62.0, help="of a run, about")
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--page", action="store_true", help="store the rows and write benchmarks/results/scaling.md")
    parser.add_argument("--all-reduce", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.all_reduce:
        all_reduce()
        return
    with tempfile.TemporaryDirectory() as folder:
        runs = partial(many_runs, options.seeds, options.seconds, options.jobs, Path(folder))
        own = {"ranks": averaged, "actors": actors, "ray": partial(runs_by_ray, Path(folder)), "runs": runs}
        measures: dict[str, Callable[[], list[Row]]] = {**own, **scaling_parts.MEASURES}
        for part in options.parts:
            rows = measures[part]()
            for what, measured, bar in rows:
                print(f"{what}: {measured} {f'(bar {bar})' if bar else ''}", flush=True)
            if options.page:
                store(part, rows, f"python -m benchmarks.speed.scaling --page --parts {part}")


if __name__ == "__main__":
    main()
