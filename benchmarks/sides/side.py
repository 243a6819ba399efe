"""The loop of a side of `peers`: a process of one library that measures the blocks it is asked for.

A side runs in an environment of its own as `python -m benchmarks.side_NAME [--flush]`. Each line that it reads is the
name of a workload and `block` or `calls`, separated by a tab; it answers with one line of JSON. A workload is built
when it is first named, and dropped when another one is. A block is timed by its CPU time: the process is pinned to one
core and has one thread. `calls` collects a block, not timed, and counts calls of the acting network.
"""

import argparse
import gc
import itertools
import json
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any, Protocol

import torch
from torch import nn

from benchmarks import pages
from benchmarks.sides.work import COLLECT, WORKS, Work

BLOCK, CALLS = "block", "calls"


class Side(Protocol):
    """A library that was given a workload."""

    def collect(self, n_steps: int) -> int:
        """Step, act and store without updates; return the number of environment steps."""

    def loop(self, n_steps: int) -> int:
        """Run the library's own training loop; return the number of environment steps."""

    def n_updates(self) -> int:
        """Count the optimizer steps so far."""

    def count_calls(self) -> AbstractContextManager[list[int]]:
        """Count calls of the acting network in the first item of a list."""

    def settings(self) -> dict[str, Any]:
        """Read back from the library's objects: env, envs, gamma, and the number of trained parameters."""


@contextmanager
def calls_of(network: nn.Module) -> Iterator[list[int]]:
    """Count forward passes of a network, by a hook on its first layer."""
    first = next(module for module in network.modules() if isinstance(module, nn.Linear | nn.Conv2d))
    count = [0]

    def add(*_: Any) -> None:
        count[0] += 1

    hook = first.register_forward_hook(add)
    yield count
    hook.remove()


def count_parameters(*networks: nn.Module) -> int:
    """Count the trained parameters of networks."""
    parameters = (parameter for network in networks for parameter in network.parameters())
    return sum(parameter.numel() for parameter in parameters if parameter.requires_grad)


def n_steps_of(adam: torch.optim.Optimizer) -> int:
    """Return how many steps an Adam has taken."""
    return int(next(iter(adam.state.values()))["step"]) if adam.state else 0


def network(work: Work) -> nn.Sequential:
    """Return the network of a Q-learner on images [B, C, H, W] of bytes, as torch initializes it."""
    layers: list[nn.Module] = []
    channels = work.shape[0]
    for outputs, kernel, stride in work.convolutions:
        layers += [nn.Conv2d(channels, outputs, kernel, stride), nn.ReLU()]
        channels = outputs
    return nn.Sequential(*layers, nn.Flatten(), *dense(work.n_features, *work.hidden, work.n_outputs))


def dense(*sizes: int, activation: Callable[[], nn.Module] = nn.ReLU) -> nn.Sequential:
    """Return dense layers with an activation after each but the last."""
    pairs = itertools.pairwise(sizes)
    layers = [layer for before, after in pairs for layer in (nn.Linear(before, after), activation())]
    return nn.Sequential(*layers[:-1])


class Images(nn.Module):
    """A network of images, which scales bytes to [0, 1]."""

    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        self.network = network

    def forward(self, obs: torch.Tensor) -> torch.Tensor:
        return self.network(obs.float() / 255.0)


def measure(side: Side, work: Work) -> dict[str, Any]:
    """Run one block; return its rate and what was done."""
    before, started = side.n_updates(), time.process_time()
    n_steps = (side.collect if work.rate == COLLECT else side.loop)(work.block)
    seconds = time.process_time() - started
    counts = {"steps": n_steps, "updates": side.n_updates() - before, "threads": torch.get_num_threads()}
    return {"seconds": seconds, "done": counts | side.settings()}


def count_calls(side: Side, work: Work) -> dict[str, Any]:
    """Collect a block; return the number of environment steps and of calls of the acting network."""
    with side.count_calls() as calls:
        n_steps = side.collect(work.block)
    return {"steps": n_steps, "calls": calls[0], "done": side.settings()}


def options() -> argparse.ArgumentParser:
    """Return the options of every side."""
    parser = pages.arguments(__doc__)
    parser.add_argument("--flush", action="store_true", help="count numbers below 1e-38 as 0 (set_flush_denormal)")
    return parser


def serve(make: Callable[[Work], Side], version: str, *, flush: bool = False) -> None:
    """Answer every line."""
    torch.set_num_threads(1)
    torch.set_flush_denormal(flush)
    current, side = "", None
    for line in sys.stdin:
        name, what = line.rstrip("\n").split("\t")
        work = WORKS[name]
        if name != current:
            side = None  # frees the last workload before the next one is built
            gc.collect()
            current, side = name, make(work)
            side.collect(work.warmup)
        assert side is not None
        answer = measure(side, work) if what == BLOCK else count_calls(side, work)
        print(json.dumps({**answer, "version": version}), flush=True)
