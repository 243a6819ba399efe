"""Measure what a run costs besides its work: the framework's share of a vector step, imports, the start, memory.

    python -m benchmarks.speed.footprint [--core 0] [--out FILE]

Steps are of environments and a policy that do nothing, beside Tianshou's on the same; seconds are of CPU time, and of
the clock where processes start.
"""

import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import torch
from gymnasium.vector import AutoresetMode
from gymnasium.vector.utils import batch_space

import trainkit as tk
from benchmarks import pages
from benchmarks.measuring import quiet_machine, run
from benchmarks.pages import machine, measured_at

N_ENVS, STEPS, BLOCKS = 10, 2_000, 7  # vector steps per block
STARTS = 7  # of a process
TIANSHOU = [".peers/tianshou@1.2.0/bin/python", "benchmarks/speed/footprint_tianshou.py"]
FIRST_UPDATE = """
import trainkit as tk
import torch
torch.set_num_threads(1)
envs = tk.make_envs("CartPole-v1", 10)
policy = tk.DQNPolicy.for_envs(envs, device="cpu")
collector = tk.Collector(policy, envs, tk.ReplayBuffer(10_000))
collector.collect(n_step=100)
policy.update(collector.buffer.sample(64, horizon=policy.horizon), step=100)
"""


class Nothing(gym.vector.VectorEnv[Any, Any, Any]):
    """Environments in which nothing happens and no episode ends."""

    metadata = {"autoreset_mode": AutoresetMode.NEXT_STEP}  # noqa: RUF012 - gymnasium's own name

    def __init__(self) -> None:
        self.num_envs = N_ENVS
        self.single_observation_space = gym.spaces.Box(-1.0, 1.0, (4,), np.float32)
        self.single_action_space = gym.spaces.Discrete(2)
        self.observation_space = batch_space(self.single_observation_space, N_ENVS)
        self.action_space = batch_space(self.single_action_space, N_ENVS)
        never = np.zeros(N_ENVS, np.bool_)
        self._step = np.zeros((N_ENVS, 4), np.float32), np.zeros(N_ENVS), never, never

    def reset(self, *, seed: Any = None, options: Any = None) -> Any:
        return self._step[0], {}

    def step(self, actions: Any) -> Any:
        return *self._step, {}


class Nobody(tk.Policy):
    """Always answer the same."""

    def act(self, obs: Any, **_: Any) -> tk.policy.ActOutput:
        return tk.policy.ActOutput(np.zeros(len(obs), np.int64), {}, None)


def vector_step() -> float:
    """Return microseconds of one vector step, stored."""
    torch.set_num_threads(1)
    envs = tk.make_envs(Nothing())
    collector = tk.Collector(Nobody(device="cpu"), envs, tk.ReplayBuffer(20_000, seed=1))
    collector.collect(n_step=N_ENVS * STEPS)
    blocks = []
    for _ in range(BLOCKS):
        began = time.process_time()
        collector.collect(n_step=N_ENVS * STEPS)
        blocks.append((time.process_time() - began) / STEPS * 1e6)
    return statistics.median(blocks)


def seconds_of(*scripts: str) -> list[float]:
    """Return the median seconds of new processes that run each script, in turn.

    What they import was compiled before, as an installer does, whatever this machine keeps of compiled modules.
    """
    runs: list[list[float]] = [[] for _ in scripts]
    with tempfile.TemporaryDirectory() as compiled:
        environment = {**os.environ, "PYTHONPYCACHEPREFIX": compiled, "PYTHONDONTWRITEBYTECODE": ""}
        for turn in range(STARTS + 1):
            for script, own in zip(scripts, runs, strict=True):
                began = time.perf_counter()
                subprocess.run([sys.executable, "-c", script], check=True, env=environment)
                if turn:  # the first compiles
                    own.append(time.perf_counter() - began)
    return [statistics.median(own) for own in runs]


def atari_bytes() -> float:
    """Return bytes per transition of 84x84 frames, four stacked, of episodes as long as Pong's shortest."""
    buffer, n_rows = tk.ReplayBuffer(20_000, stack=4, n_envs=1), 25_000
    obs = np.zeros((1, 4, 84, 84), np.uint8)
    for step in range(n_rows):
        ends = np.array([step % 800 == 799])
        never, ids = np.zeros(1, np.bool_), np.zeros(1, np.intp)
        buffer.add(tk.Transition(obs, np.zeros(1, np.int64), np.zeros(1), obs, ends, never, ids, {}))
    return buffer.nbytes / buffer.capacity


@quiet_machine()
def main() -> None:
    """Measure and write the page."""
    parser = pages.arguments(__doc__)
    parser.add_argument("--core", type=int, default=0)
    parser.add_argument("--alone", action="store_true", help="print one vector step's microseconds, and no page")
    parser.add_argument("--out", type=Path, default=Path("benchmarks/results/footprint.md"))
    options = parser.parse_args()
    if options.alone:
        print(json.dumps({"us": vector_step(), "done": {"steps": STEPS}, "version": tk.__version__}))
        return
    ours, done = [sys.executable, "-m", "benchmarks.speed.footprint", "--alone"], {"steps": STEPS}
    pairs = [(run(TIANSHOU, options.core, done), run(ours, options.core, done)) for _ in range(3)]
    theirs, own = (statistics.median(side["us"] for side in column) for column in zip(*pairs, strict=True))
    with_us, without, start = seconds_of("import trainkit", "import torch", FIRST_UPDATE)
    imports, memory = with_us - without, atari_bytes()
    rows = [
        ("vector step of 10 that do nothing, stored", f"{own:.1f} us", "20 us", own <= 20),
        (
            f"the same by Tianshou {pairs[0][0]['version']}",
            f"{theirs:.0f} us, {theirs / own:.1f} times",
            "6 times",
            theirs >= 6 * own,
        ),
        ("`import trainkit` over `import torch`", f"{imports:.2f} s", "0.3 s", imports <= 0.3),
        ("process start to first update", f"{start:.2f} s", "", None),
        ("a million Atari transitions", f"{memory / 1e3:.2f} GB", "7.2 GB", memory <= 7.2e3),
    ]
    lines = [
        "# What a run costs besides its work",
        "",
        measured_at(),
        "",
        f"`python -m benchmarks.speed.footprint` on {machine()}; one thread, pinned to one core; steps in CPU time, "
        "processes by the clock, medians.",
        "",
        "| what | measured | bar | |",
        "|---|---|---|---|",
        *(
            f"| {what} | {measured} | {bar} | {'' if holds is None else 'stands' if holds else '**falls**'} |"
            for what, measured, bar, holds in rows
        ),
    ]
    print("\n".join(lines))
    options.out.parent.mkdir(parents=True, exist_ok=True)
    options.out.write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
