"""Print how near each work comes to what the machine allows: its floor in sums, bytes and calls, and the share reached.

    python -m benchmarks.limits [--works NAME ...]

A floor is the time of the environments' own steps, measured alone, and of the least that the method asks of torch and
numpy: multiplications at the speed of a large matrix product, bytes at that of a copy of as many, calls at that of the
smallest. Sums and bytes go on together, calls come on top. What the floor leaves out (activations, n-step sums,
resets, priorities' trees) nobody gets for nothing: 100 % is out of reach, and a small network's calls are several times
dearer in a loop than here, where caches are warm. A second table has what collecting takes beside the environments'
step and a forward pass of torch's, alone and in turn with it.
"""

import argparse
import dataclasses
import itertools
import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass
from typing import Any

import gymnasium as gym
import numpy as np
import torch

import trainkit as tk
from benchmarks.running import machine
from benchmarks.side import measure
from benchmarks.side_trainkit import Ours
from benchmarks.work import ATOMS, COLLECT, LOOP, UPDATES, WORKS, Work

FLOAT = 4  # bytes
LOSS_CALLS = 12  # choose, take, discount, add, subtract, loss, mean, and back again; the target's copy is rare
COLUMNS = 5  # obs, action, reward, discount, next obs: a gather each; stored: obs, action, reward and two ends


@dataclass(frozen=True, slots=True, kw_only=True)
class Cost:
    """What something asks of a machine."""

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
    """Return what an update goes through, the actor, or the learner of values, first."""
    if (
        work.learner == "sac"
    ):  # next and new actions, back; critics: target, stored and new rows, back, back to the actions
        actor = _dense(4, work.n_inputs, *work.hidden, 2 * work.n_outputs)
        critic = _dense(6, work.n_inputs + work.n_outputs, *work.hidden, 1)
        return [actor, critic, critic]
    passes = 2 + work.double + 2
    if work.learner == "rainbow":  # heads of advantages and a value; noise is one more of each weight, not of products
        heads = _dense(passes, work.n_inputs, *work.hidden, (work.n_outputs + 1) * ATOMS)
        return [dataclasses.replace(heads, parameters=work.n_parameters)]
    if not work.sees_images:
        return [_dense(passes, work.n_inputs, *work.hidden, work.n_outputs)]
    dense = _dense(passes, 64 * 7 * 7, *work.hidden, work.n_outputs)
    convolutions = [(20 * 20, 4 * 8 * 8, 32), (9 * 9, 32 * 4 * 4, 64), (7 * 7, 64 * 3 * 3, 64)]
    multiplications = sum(places * inputs * outputs for places, inputs, outputs in convolutions)
    return [
        Network(
            multiplications=dense.multiplications + multiplications,
            parameters=work.n_parameters,
            layers=dense.layers + len(convolutions),
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
    """Return what drawing a batch and learning from it asks: each layer is a product and an activation per pass."""
    own = networks(work)
    row = 2 * work.batch * (4 * 84 * 84 if work.sees_images else work.n_inputs * FLOAT)  # obs, next obs
    return Cost(
        flops=2 * work.batch * sum(net.multiplications * net.passes for net in own),
        # Parameters once per pass; gradients written; Adam reads four numbers of each and writes three.
        n_bytes=FLOAT * sum(net.parameters * (net.passes + 1 + 7) for net in own) + 2 * row,
        torch_calls=sum(2 * net.layers * net.passes for net in own) + LOSS_CALLS + len(own),
        numpy_calls=1 + COLUMNS,
    )


def step_cost(work: Work) -> Cost:
    """Return what a vector step asks, stored: the environments' time, rows, a forward pass."""
    actor = networks(work)[0]
    row = work.n_envs * (84 * 84 if work.sees_images else work.n_inputs * FLOAT)
    return Cost(
        flops=2 * work.n_envs * actor.multiplications,
        n_bytes=FLOAT * actor.parameters + 2 * row,
        torch_calls=2 * actor.layers,
        numpy_calls=COLUMNS,
        env_us=environments_us(work),
    )


def environments_us(work: Work) -> float:
    """Return the microseconds of a vector step at random, with nobody there."""
    with closing(bare_environments(work)) as envs:
        return microseconds(random_step(envs), max(work.collect_steps // work.n_envs, 64))


def bare_environments(work: Work) -> Any:
    """Return gymnasium's own environments of a work, with nothing of ours around them, begun."""
    tk.make_envs(work.env)  # registers the id where a package has to
    frames = {"stack_num": 1} if work.sees_images else {}
    mode = "vector_entry_point" if work.has_own_vector_env else "sync"
    envs = gym.make_vec(work.env, work.n_envs, vectorization_mode=mode, **frames)
    envs.reset(seed=1)
    return envs


def random_step(envs: Any) -> Callable[[int], object]:
    """Return what makes the i-th vector step at random."""
    envs.action_space.seed(1)
    actions = [envs.action_space.sample() for _ in range(64)]
    return lambda i: envs.step(actions[i % 64])


def collect_row(title: str, work: Work) -> str:
    """Return how collecting compares with the environments' step and a forward pass alone: medians, in turn."""
    ours = Ours(work)
    ours.collect(work.warmup_steps)
    sizes = itertools.pairwise((work.n_inputs, *work.hidden, work.n_outputs))
    layers = [layer for before, after in sizes for layer in (torch.nn.Linear(before, after), torch.nn.ReLU())]
    network, obs = torch.nn.Sequential(*layers[:-1]), np.zeros((work.n_envs, work.n_inputs), np.float32)

    @torch.no_grad()
    def forward(_: int) -> object:
        return network(torch.from_numpy(obs)).argmax(1).numpy()

    n_steps = work.collect_steps // work.n_envs
    with closing(bare_environments(work)) as envs:
        step = random_step(envs)
        taken = [
            (
                microseconds(step, n_steps, 1),
                microseconds(forward, n_steps, 1),
                microseconds(lambda _: ours.collect(work.collect_steps), 1, 1) / n_steps,
            )
            for _ in range(16)
        ][1:]  # the first warms up
    step_us, forward_us, ours_us = (statistics.median(column) for column in zip(*taken, strict=True))
    share = statistics.median((alone + passed) / whole for alone, passed, whole in taken)
    return f"| {title} | {step_us:,.0f} | {forward_us:,.0f} | {ours_us:,.0f} | {share:.0%} |"


def microseconds(play: Callable[[int], object], n_times: int, n_blocks: int = 5) -> float:
    """Return the CPU time of one, in the best of some blocks: a limit is what was reached once."""
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


def rows(title: str, work: Work, speeds: Speeds) -> Iterator[str]:
    """Yield a row for each part of a work."""
    ours = Ours(work)
    ours.collect(work.warmup_steps)
    reached, _ = measure(ours, work)
    step, update = step_cost(work), update_cost(work)
    parts = [
        ("vector step", step, work.n_envs / reached[COLLECT] * 1e6),
        ("update", update, 1e6 / reached[UPDATES]),
        ("both, in the loop", step + update, work.n_envs / reached[LOOP] * 1e6),
    ]
    for part, cost, took_us in parts:
        floor_us = speeds.floor_us(cost)
        yield (
            f"| {title} | {part} | {cost.flops / 1e6:,.2f} | {cost.n_bytes / 1e3:,.0f} | "
            f"{cost.torch_calls}, {cost.numpy_calls} | {cost.env_us:,.0f} | {floor_us:,.0f} | {took_us:,.0f} | "
            f"{floor_us / took_us:.0%} |"
        )


def main() -> None:
    """Measure and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--works", nargs="+", choices=list(WORKS), default=list(WORKS))
    options = parser.parse_args()
    torch.set_num_threads(1)
    speeds = Speeds()
    print(
        f"On {machine()}, one thread: {speeds.flops_per_us / 1e3:,.0f} GFLOP/s, {speeds.torch_call_us:.2f} us per call "
        f"of torch, {speeds.numpy_call_us:.2f} us of numpy. CPU time; trainkit as it comes.\n"
    )
    print("| work | part | MFLOP | kB | calls: torch, numpy | environments' us | floor us | trainkit's us | share |")
    print("|---|---|---|---|---|---|---|---|---|")
    for title in options.works:
        for row in rows(title, WORKS[title], speeds):
            print(row, flush=True)
    print("\n| collect | environments' us | a forward pass's us | trainkit's us | share |")
    print("|---|---|---|---|---|")
    for title in options.works:
        if WORKS[title].learner == "dqn" and not WORKS[title].sees_images:
            print(collect_row(title, WORKS[title]), flush=True)


if __name__ == "__main__":
    main()
