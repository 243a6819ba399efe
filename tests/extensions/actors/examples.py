"""Examples of actors: calls that work, and runs in which options matter, for tests of all public names."""

from pathlib import Path
from typing import Any

import trainkit as tk
from tests.faults.makers import Call
from tests.outside.constructors import Build, Run, envs, made_envs, q_learner


def calls(folder: Path) -> dict[str, Call]:
    return {
        "Actors": Call(tk.envs.Actors, {"actors": 2}),
    }


def in_actors(build: Build) -> Any:
    made = envs(backend=build(2))
    collector = tk.Collector(q_learner(made), made, tk.ReplayBuffer(100))
    collector.collect(n_step=60)
    runner: Any = made.runner
    return collector.buffer, len(runner.actors), collector.acts_here, collector.max_lag


RUNS: dict[Any, list[Run]] = {
    tk.envs.Actors: [in_actors],
    tk.make_envs: [made_envs(backend=tk.envs.Actors(1))],
}
