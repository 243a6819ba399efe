"""cpprb's side of replay's speed; it computes n-step returns when rows are added.

Runs in an environment of its own, and so imports nothing of trainkit but the numbers of the work.
"""

from importlib.metadata import version

import numpy as np
from cpprb import PrioritizedReplayBuffer

from benchmarks import replay_work as work


def main() -> None:
    """Do the work and print its times."""
    asked = work.options()
    n_step = {"size": asked.n_step, "gamma": work.GAMMA, "rew": "rew", "next": "next_obs"}
    buffer = PrioritizedReplayBuffer(
        asked.rows,
        {
            "obs": {"shape": work.OBS, "dtype": np.float32},
            "act": {"dtype": np.int64},
            "rew": {"dtype": np.float32},
            "next_obs": {"shape": work.OBS, "dtype": np.float32},
            "done": {"dtype": np.float32},
        },
        alpha=work.ALPHA,
        **({} if asked.n_step == 1 else {"Nstep": n_step}),
    )
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

    work.show({"prioritised": work.microseconds(play)}, version("cpprb"), asked)


if __name__ == "__main__":
    main()
