"""The cost of several policies: two DQNs on the two-agent CartPole beside single runs and beside one shared policy.

    python -m benchmarks.multi_agent [--pairs 9] [--steps 4000]

Three runs are timed in turn, so that the machine's state is the same for all, and medians of their ratios are printed:

- two policies, one for each agent of 4 games: rows of 8 environments, one update per row;
- two single runs, each a policy on one agent of 4 games, over half of the rows;
- one policy that both agents share, over all rows.
"""

import argparse
import statistics
import time
from collections.abc import Callable
from typing import Any

import trainkit as tk
from examples.two_agents import TwoPoles

N_GAMES = 4


class OnePole(TwoPoles):
    """The same game with its left agent alone."""

    possible_agents = ("left",)


def dqn(envs: tk.Envs) -> tk.DQNPolicy:
    """Return a DQN with the network of the example."""
    return tk.DQNPolicy.for_envs(
        envs, hidden=(256, 256), lr=1e-3, target=tk.Target(80), exploration=tk.EpsilonGreedy(0.3), device="cpu", seed=1
    )


def seconds_of(policy: Any, envs: tk.Envs, buffer: Any, n_steps: int) -> float:
    """Return the time of a run of so many steps, after a tenth of them."""
    train = tk.Collector(policy, envs, buffer)
    how: dict[str, Any] = {"batch_size": 64, "verbose": False, "show_progress": False, "seed": 1}
    with tk.OffpolicyTrainer(policy, train, max_epoch=11, step_per_epoch=n_steps // 10, **how) as trainer:
        next(trainer)
        started = time.perf_counter()
        for _ in trainer:
            pass
        return time.perf_counter() - started


def two_policies(n_steps: int) -> float:
    """Return the seconds of a run of two policies."""
    envs = tk.make_envs(TwoPoles, N_GAMES, seed=1)
    policy = tk.MultiAgentPolicy({"left": dqn(envs), "right": dqn(envs)})
    buffers = tk.MultiAgentBuffer({name: tk.ReplayBuffer(20_000) for name in ("left", "right")})
    return seconds_of(policy, envs, buffers, n_steps)


def two_single_runs(n_steps: int) -> float:
    """Return the seconds of two runs of one agent, one after the other."""
    total = 0.0
    for _ in range(2):
        envs = tk.make_envs(OnePole, N_GAMES, seed=1)
        total += seconds_of(dqn(envs), envs, tk.ReplayBuffer(20_000), n_steps // 2)
    return total


def one_policy(n_steps: int) -> float:
    """Return the seconds of a run of one policy for both agents."""
    envs = tk.make_envs(TwoPoles, N_GAMES, seed=1)
    return seconds_of(dqn(envs), envs, tk.ReplayBuffer(40_000), n_steps)


def main() -> None:
    """Print the medians of the ratios."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pairs", type=int, default=9)
    parser.add_argument("--steps", type=int, default=4_000)
    options = parser.parse_args()
    runs: list[Callable[[int], float]] = [two_policies, two_single_runs, one_policy]
    times: list[list[float]] = []
    for pair in range(options.pairs):
        order = runs if pair % 2 else runs[::-1]
        taken = {run: run(options.steps) for run in order}
        times.append([taken[run] for run in runs])
        print(" ".join(f"{run.__name__} {taken[run]:.2f} s" for run in runs), flush=True)
    for name, column, bar in (("two single runs", 1, 1.15), ("one policy", 2, 1.5)):
        ratio = statistics.median(row[0] / row[column] for row in times)
        print(f"two policies / {name}: {ratio:.3f} (bar {bar})")


if __name__ == "__main__":
    main()
