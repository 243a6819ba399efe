"""cpprb's side of replay's speed; it computes n-step returns when rows are added.

Runs in an environment of its own, and so imports nothing of trainkit but the numbers of the work.
"""

import argparse
from importlib.metadata import version
from typing import Any

import numpy as np
from cpprb import PrioritizedReplayBuffer, ReplayBuffer

from benchmarks import replay_work as work


def make(kind: Any, asked: argparse.Namespace, **options: float) -> Any:
    """Make a buffer."""
    n_step = {"size": asked.n_step, "gamma": work.GAMMA, "rew": "rew", "next": "next_obs"}
    return kind(
        asked.rows,
        {
            "obs": {"shape": work.OBS, "dtype": np.float32},
            "act": {"dtype": np.int64},
            "rew": {"dtype": np.float32},
            "next_obs": {"shape": work.OBS, "dtype": np.float32},
            "done": {"dtype": np.float32},
        },
        **options,
        **({} if asked.n_step == 1 else {"Nstep": n_step}),
    )


def adds(asked: argparse.Namespace) -> dict[str, work.Play]:
    """Store vector steps, all rows in one call."""
    steps = work.steps()
    for step in steps:
        step["act"], step["rew"] = step.pop("action"), step.pop("reward")
    uniform, prioritised = make(ReplayBuffer, asked), make(PrioritizedReplayBuffer, asked, alpha=work.ALPHA)
    return {
        work.ADD_UNIFORM: work.storing(lambda step: uniform.add(**step), steps),
        work.ADD_PRIORITISED: work.storing(lambda step: prioritised.add(**step), steps),
    }


def rounds(asked: argparse.Namespace) -> dict[str, work.Play]:
    """Draw, gather, write back."""
    buffer = make(PrioritizedReplayBuffer, asked, alpha=work.ALPHA)
    rows = work.columns(asked.rows)
    for begin in range(0, asked.rows, work.EPISODE):
        own = slice(begin, begin + work.EPISODE)
        buffer.add(
            obs=rows["obs"][own],
            act=rows["action"][own],
            rew=rows["reward"][own],
            next_obs=rows["next_obs"][own],
            done=rows["done"][own],
        )
        buffer.on_episode_end()
    written = work.priorities(asked.batch)

    def play(i: int) -> None:
        batch = buffer.sample(asked.batch, beta=work.BETA)
        buffer.update_priorities(batch["indexes"], written[i])

    return {work.OWN: play}


def main() -> None:
    """Do the work as often as is asked."""
    asked = work.options()
    work.answer((adds if asked.adds else rounds)(asked), version("cpprb"), asked)


if __name__ == "__main__":
    main()
