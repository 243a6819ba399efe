"""Runs of processors in which options of constructors matter."""

from typing import Any

import trainkit as tk
from tests.outside.constructors import Build, Run, envs, stepped


def processed(build: Build) -> Any:
    return stepped(envs(processors=[build()]))


RUNS: dict[Any, list[Run]] = {
    tk.envs.PreviousStep: [processed],
}
