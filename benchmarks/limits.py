"""Print how near each workload comes to what the machine allows, a floor of sums, bytes and calls.

    python -m benchmarks.limits [--only TEXT ...] [--out FILE]

A floor is the time of the environments' own steps, measured alone, and of the least that the method needs of torch and
numpy: multiplications at the speed of a large matrix product, bytes at that of a copy of as many, calls at that of the
smallest. Sums and bytes overlap, calls are added. The floor leaves out activations, n-step sums, resets and priorities'
trees, which are not free: 100 % is out of reach, and calls cost several times as much in a loop as here, where caches
are warm. A second table compares collecting with the environments' steps and a forward pass of torch's, each alone.
"""

import argparse
import dataclasses
import itertools
import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import torch

from benchmarks import side
from benchmarks.provenance import measured_at
from benchmarks.quiet import quiet_machine
from benchmarks.running import machine
from benchmarks.side_trainkit import Ours
from benchmarks.work import ATOMS, COLLECT, WORKS, Work, make_env

FLOAT = 4  # bytes
LOSS_CALLS = 12  # choose, take, discount, add, subtract, loss, mean, and the backward pass; the target's copy is rare
COLUMNS = 5  # obs, action, reward, discount, next obs: a gather each; stored: obs, action, reward and two ends
UPDATES = 50  # of one measurement


@dataclass(frozen=True, slots=True, kw_only=True)
class Cost:
    """What something needs of a machine."""

    flops: float = 0.0
    n_bytes: float = 0.0
    torch_calls: int = 0
    numpy_calls: int = 0
    env_us: float = 0.0

    def __add__(self, other: "Cost") -> "Cost":
        names = ("flops", "n_bytes", "torch_calls", "numpy_calls", "env_us")
        return Cost(**{name: getattr(self, name) + getattr(other, name) for name in names})


@dataclass(frozen=True, slots=True, kw_only=True)
class Network:
    """Sizes of one network, and how often an update goes through it."""

    multiplications: int  # per row
    parameters: int
    layers: int
    passes: int  # forward 1, backward 2, backward to the inputs alone 1


def networks(work: Work) -> list[Network]:
    """Return the networks of an update, the acting one first."""
    if work.learner == "sac":  # next and new actions, backward; critics: target, stored and new rows, backward twice
        actor = _dense(4, work.n_features, *work.hidden, 2 * work.n_outputs)
        critic = _dense(6, work.n_features + work.n_outputs, *work.hidden, 1)
        return [actor, critic, critic]
    passes = 2 + work.double + 2
    if work.learner == "rainbow":  # heads of advantages and a value; noise is another parameter of each weight
        heads = _dense(passes, work.n_features, *work.hidden, (work.n_outputs + 1) * ATOMS)
        return [dataclasses.replace(heads, parameters=work.n_parameters)]
    dense = _dense(passes, work.n_features, *work.hidden, work.n_outputs)
    size, channels, multiplications = work.shape[-1], work.shape[0], dense.multiplications
    for outputs, kernel, stride in work.convolutions:
        size = (size - kernel) // stride + 1
        multiplications += size**2 * channels * kernel**2 * outputs
        channels = outputs
    return [
        Network(
            multiplications=multiplications,
            parameters=work.n_parameters,
            layers=dense.layers + len(work.convolutions),
            passes=passes,
        )
    ]


def _dense(passes: int, *sizes: int) -> Network:
    pairs = list(itertools.pairwise(sizes))
    return Network(
        multiplications=sum(before * after for before, after in pairs),
        parameters=sum((before + 1) * after for before, after in pairs),
        layers=len(pairs),
        passes=passes,
    )


def update_cost(work: Work) -> Cost:
    """Return the cost of sampling a batch and learning from it: each layer is a product and an activation per pass."""
    own = networks(work)
    row = 2 * work.batch * obs_bytes(work)  # obs, next obs
    return Cost(
        flops=2 * work.batch * sum(net.multiplications * net.passes for net in own),
        # Parameters once per pass; gradients written; Adam reads four numbers of each and writes three.
        n_bytes=FLOAT * sum(net.parameters * (net.passes + 1 + 7) for net in own) + 2 * row,
        torch_calls=sum(2 * net.layers * net.passes for net in own) + LOSS_CALLS + len(own),
        numpy_calls=1 + COLUMNS,
    )


def step_cost(work: Work) -> Cost:
    """Return the cost of a vector step, stored: the environments' time, rows, a forward pass."""
    actor = networks(work)[0]
    row = work.n_envs * obs_bytes(work)
    return Cost(
        flops=2 * work.n_envs * actor.multiplications,
        n_bytes=FLOAT * actor.parameters + 2 * row,
        torch_calls=2 * actor.layers,
        numpy_calls=COLUMNS,
        env_us=environments_us(work),
    )


def obs_bytes(work: Work) -> int:
    """Return the bytes of an observation."""
    return int(np.prod(work.shape)) * (1 if work.convolutions else FLOAT)


def environments_us(work: Work) -> float:
    """Return the microseconds of a vector step at random, without anything of ours."""
    with closing(bare_environments(work)) as envs:
        return microseconds(random_step(envs), max(work.block // work.n_envs, 64))


def bare_environments(work: Work) -> Any:
    """Return gymnasium's own loop over the environments of a workload, reset."""
    envs = gym.vector.SyncVectorEnv([lambda: make_env(work)] * work.n_envs)
    envs.reset(seed=1)
    return envs


def random_step(envs: Any) -> Callable[[int], object]:
    """Return a function that takes the i-th vector step at random."""
    envs.action_space.seed(1)
    actions = [envs.action_space.sample() for _ in range(64)]
    return lambda i: envs.step(actions[i % 64])


def collect_row(name: str, work: Work) -> str:
    """Return how collecting compares with the environments' step and a forward pass alone: medians, in turn."""
    ours = Ours(work)
    ours.collect(work.warmup)
    network, obs = side.network(work), np.zeros((work.n_envs, *work.shape), np.float32)

    @torch.no_grad()
    def forward(_: int) -> object:
        return network(torch.from_numpy(obs)).argmax(1).numpy()

    n_steps = work.block // work.n_envs
    with closing(bare_environments(work)) as envs:
        step = random_step(envs)
        times = [
            (
                microseconds(step, n_steps, 1),
                microseconds(forward, n_steps, 1),
                microseconds(lambda _: ours.collect(work.block), 1, 1) / n_steps,
            )
            for _ in range(16)
        ][1:]  # the first warms up
    step_us, forward_us, ours_us = (statistics.median(column) for column in zip(*times, strict=True))
    share = statistics.median((alone + passed) / whole for alone, passed, whole in times)
    return f"| {name} | {step_us:,.0f} | {forward_us:,.0f} | {ours_us:,.0f} | {share:.0%} |"


def microseconds(play: Callable[[int], object], n_times: int, n_blocks: int = 5) -> float:
    """Return the CPU time of one call in the best of some blocks: a limit is what was reached once."""
    blocks = []
    for _ in range(n_blocks):
        began = time.process_time()
        for i in range(n_times):
            play(i)
        blocks.append((time.process_time() - began) / n_times * 1e6)
    return min(blocks)


class Speeds:
    """How fast this machine multiplies, copies and calls."""

    def __init__(self) -> None:
        square, out = torch.ones(512, 512), torch.empty(512, 512)
        self.flops_per_us = 2 * 512**3 / microseconds(lambda _: torch.mm(square, square, out=out), 50)
        one, number = torch.zeros(1), np.zeros(1)
        self.torch_call_us = microseconds(lambda _: torch.add(one, one, out=one), 20_000)
        self.numpy_call_us = microseconds(lambda _: np.add(number, number, out=number), 20_000)

    def copy_us(self, n_bytes: float) -> float:
        """Return the time in which so many bytes are read or written, from caches as far as they fit."""
        source = np.ones(max(int(n_bytes / 2), 1), np.uint8)
        target = np.empty_like(source)
        return microseconds(lambda _: np.copyto(target, source), 50)

    def floor_us(self, cost: Cost) -> float:
        """Return the least time for a cost."""
        calls = cost.torch_calls * self.torch_call_us + cost.numpy_calls * self.numpy_call_us
        return cost.env_us + calls + max(cost.flops / self.flops_per_us, self.copy_us(cost.n_bytes))


def rows(name: str, work: Work, speeds: Speeds) -> Iterator[str]:
    """Yield a row for each part of a workload."""
    ours, n_steps = Ours(work), work.block // work.n_envs
    ours.collect(work.warmup)
    step, update = step_cost(work), update_cost(work)
    parts = [
        ("vector step", step, microseconds(lambda _: ours.collect(work.block), 1) / n_steps),
        ("update", update, microseconds(lambda _: ours.update(), UPDATES)),
        ("both, in the loop", step + update, microseconds(lambda _: ours.loop(work.block), 1) / n_steps),
    ]
    for part, cost, took_us in parts[: 2 if work.steps_per_update > work.n_envs else 3]:
        floor_us = speeds.floor_us(cost)
        yield (
            f"| {name} | {part} | {cost.flops / 1e6:,.2f} | {cost.n_bytes / 1e3:,.0f} | "
            f"{cost.torch_calls}, {cost.numpy_calls} | {cost.env_us:,.0f} | {floor_us:,.0f} | {took_us:,.0f} | "
            f"{floor_us / took_us:.0%} |"
        )


@quiet_machine()
def main() -> None:
    """Measure, print and write the page."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", default=[""], help="texts in the names of workloads")
    parser.add_argument("--out", type=Path, help="benchmarks/results/limits.md; default: print alone")
    options = parser.parse_args()
    works = {name: work for name, work in WORKS.items() if any(text in name for text in options.only)}
    torch.set_num_threads(1)
    speeds = Speeds()
    lines = [
        "# How near trainkit comes to what the machine allows",
        "",
        measured_at(),
        "",
        f"`python -m benchmarks.limits --out benchmarks/results/limits.md` on {machine()}, one thread: "
        f"{speeds.flops_per_us / 1e3:,.0f} GFLOP/s, {speeds.torch_call_us:.2f} us per call of torch, "
        f"{speeds.numpy_call_us:.2f} us of numpy. Microseconds of CPU time. The floor is explained in the docstring "
        "of `benchmarks/limits.py`, the workloads are those of "
        "[the comparison of speed](peers.md). Floors and parts are measured one after the other: a change of the "
        "machine's pace between them changes the share.",
        "",
        "| workload | part | MFLOP | kB | calls: torch, numpy | environments' us | floor us | trainkit's us | share |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    for name, work in works.items():
        if work.rate != COLLECT and work.learner != "ppo":
            lines += rows(name, work, speeds)
    lines += [
        "",
        "| workload | environments' us | a forward pass's us | trainkit's us | share |",
        "|---|---|---|---|---|",
    ]
    lines += [collect_row(name, work) for name, work in works.items() if work.rate == COLLECT]
    print("\n".join(lines))
    if options.out:
        options.out.write_text("\n".join([*lines, ""]))


if __name__ == "__main__":
    main()
