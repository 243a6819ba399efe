"""One side of `replay_speed`: the replay buffers of trainkit, cpprb, TorchRL, Tianshou or Stable-Baselines3.

    python -m benchmarks.replay.side SIDE [--rows N] [--batch N] [--n-step N] [--adds]

Runs in the environment of its library, and so imports that library alone, when its side is made. For every line that it
reads it measures a block of rounds and prints one line of JSON; see `replay_work`.
"""

import argparse
import warnings
from collections.abc import Callable
from importlib.metadata import version
from typing import Any

import numpy as np

from benchmarks import pages
from benchmarks.replay import work as work

Ways = dict[str, work.Play]


def trainkit(options: argparse.Namespace) -> Ways:
    """Make the rounds of trainkit; tree writes wait for the next sample, or until there are 128 steps of them."""
    import torch

    import trainkit as tk
    from trainkit.core.data import Transition
    from trainkit.engine.device import to_device

    if options.adds:
        never = np.zeros(work.N_ENVS, np.bool_)
        steps = [
            Transition(
                obs=step["obs"],
                action=step["action"],
                reward=step["reward"],
                next_obs=step["next_obs"],
                terminated=step["done"],
                truncated=never,
                env_ids=np.arange(work.N_ENVS),
                extras={},
            )
            for step in work.steps()
        ]
        added = tk.PrioritizedReplayBuffer(options.rows, alpha=work.ALPHA, beta=work.BETA, seed=1)
        return {
            work.ADD_PRIORITIZED: work.storing(added.add, steps),
            work.ADD_UNIFORM: work.storing(tk.ReplayBuffer(options.rows, seed=1).add, steps),
        }

    rows = work.columns(options.rows)
    rows["terminated"] = rows.pop("done")
    horizon = tk.Horizon(options.n_step, work.GAMMA)
    prioritized = tk.PrioritizedReplayBuffer.from_arrays(**rows, alpha=work.ALPHA, beta=work.BETA, seed=1)
    uniform = tk.ReplayBuffer.from_arrays(**rows, seed=1)
    written, written_at_once = work.priorities(options.batch), work.priorities(options.batch * work.PER_ROUND)

    def one(i: int) -> None:
        batch = prioritized.sample(options.batch, horizon=horizon)
        prioritized.update_priorities(batch.slots, written[i])

    def in_rounds(i: int) -> None:
        batches = prioritized.sample_round(work.PER_ROUND, options.batch, horizon=horizon)
        prioritized.update_priorities(np.concatenate([batch.slots for batch in batches]), written_at_once[i])

    def to_tensors(i: int) -> None:
        batch = uniform.sample(options.batch, horizon=horizon)
        to_device((batch.obs, batch.action, batch.reward, batch.discount, batch.next_obs), torch.device("cpu"))

    return {work.OWN: one, work.IN_ROUNDS: in_rounds, work.UNIFORM: to_tensors}


def cpprb(options: argparse.Namespace) -> Ways:
    """Make the rounds of cpprb, whose buffers compute n-step returns when rows are added."""
    from cpprb import PrioritizedReplayBuffer, ReplayBuffer

    def make(kind: Any, **own: float) -> Any:
        n_step = {"size": options.n_step, "gamma": work.GAMMA, "rew": "rew", "next": "next_obs"}
        columns = {
            "obs": {"shape": work.OBS, "dtype": np.float32},
            "act": {"dtype": np.int64},
            "rew": {"dtype": np.float32},
            "next_obs": {"shape": work.OBS, "dtype": np.float32},
            "done": {"dtype": np.float32},
        }
        return kind(options.rows, columns, **own, **({} if options.n_step == 1 else {"Nstep": n_step}))

    names = {"obs": "obs", "act": "action", "rew": "reward", "next_obs": "next_obs", "done": "done"}
    if options.adds:
        steps = [{theirs: step[ours] for theirs, ours in names.items()} for step in work.steps()]
        buffers = make(PrioritizedReplayBuffer, alpha=work.ALPHA), make(ReplayBuffer)
        return {
            name: work.storing(lambda step, buffer=buffer: buffer.add(**step), steps)
            for name, buffer in zip(work.ADDS, buffers, strict=True)
        }

    buffer = make(PrioritizedReplayBuffer, alpha=work.ALPHA)
    rows = work.columns(options.rows)
    for start in range(0, options.rows, work.EPISODE):
        buffer.add(**{theirs: rows[ours][start : start + work.EPISODE] for theirs, ours in names.items()})
        buffer.on_episode_end()
    written = work.priorities(options.batch)

    def one(i: int) -> None:
        batch = buffer.sample(options.batch, beta=work.BETA)
        buffer.update_priorities(batch["indexes"], written[i])

    return {work.OWN: one}


def torchrl(options: argparse.Namespace) -> Ways:
    """Make the rounds of TorchRL, whose prioritized sampler is C++; its n-step returns are not measured."""
    import torch
    from tensordict import TensorDict
    from torchrl.data import LazyTensorStorage, TensorDictPrioritizedReplayBuffer, TensorDictReplayBuffer

    def prioritized(**own: int) -> Any:
        storage = LazyTensorStorage(options.rows)
        return TensorDictPrioritizedReplayBuffer(alpha=work.ALPHA, beta=work.BETA, storage=storage, **own)

    def tensors(columns: dict[str, Any], n_rows: int) -> Any:
        return TensorDict({name: torch.as_tensor(column) for name, column in columns.items()}, batch_size=[n_rows])

    if options.adds:
        steps = [tensors(step, work.N_ENVS) for step in work.steps()]
        buffers = prioritized(), TensorDictReplayBuffer(storage=LazyTensorStorage(options.rows))
        return {name: work.storing(buffer.extend, steps) for name, buffer in zip(work.ADDS, buffers, strict=True)}

    buffer = prioritized(batch_size=options.batch)
    buffer.extend(tensors(work.columns(options.rows), options.rows))
    written = [torch.as_tensor(priority, dtype=torch.float32) for priority in work.priorities(options.batch)]

    def one(i: int) -> None:
        batch = buffer.sample()
        batch["td_error"] = written[i]
        buffer.update_tensordict_priority(batch)

    return {work.OWN: one}


def tianshou(options: argparse.Namespace) -> Ways:
    """Make the rounds of Tianshou, whose policies compute n-step returns on read, here with the value 0 after them."""
    import torch
    from tianshou.data import Batch, PrioritizedReplayBuffer, PrioritizedVectorReplayBuffer, VectorReplayBuffer
    from tianshou.policy import BasePolicy

    def batch_of(rows: dict[str, Any]) -> Any:
        return Batch(
            obs=rows["obs"],
            act=rows["action"],
            rew=rows["reward"].astype(np.float64),
            terminated=rows["done"],
            truncated=np.zeros(len(rows["done"]), np.bool_),
            done=rows["done"],
            obs_next=rows["next_obs"],
            info=Batch(),
        )

    if options.adds:
        envs, steps = np.arange(work.N_ENVS), [batch_of(step) for step in work.steps()]
        prioritized = PrioritizedVectorReplayBuffer(options.rows, work.N_ENVS, alpha=work.ALPHA, beta=work.BETA)
        uniform = VectorReplayBuffer(options.rows, work.N_ENVS)
        return {
            name: work.storing(lambda step, buffer=buffer: buffer.add(step, envs), steps)
            for name, buffer in zip(work.ADDS, (prioritized, uniform), strict=True)
        }

    buffer = PrioritizedReplayBuffer(options.rows, alpha=work.ALPHA, beta=work.BETA)
    # A million rows one by one would take a minute; this is what its `add` leaves behind.
    buffer.set_batch(batch_of(work.columns(options.rows)))
    buffer._size = options.rows
    buffer.init_weight(np.arange(options.rows))
    written = work.priorities(options.batch)

    def no_value(buffer: Any, indices: Any) -> torch.Tensor:
        return torch.zeros(len(indices), 1)

    def one(i: int) -> None:
        batch, indices = buffer.sample(options.batch)
        if options.n_step > 1:
            BasePolicy.compute_nstep_return(batch, buffer, indices, no_value, work.GAMMA, options.n_step)
        buffer.update_weight(indices, written[i])

    return {work.OWN: one}


def stable_baselines3(options: argparse.Namespace) -> Ways:
    """Make the rounds of Stable-Baselines3: uniform batches as tensors."""
    from gymnasium import spaces
    from stable_baselines3.common.buffers import ReplayBuffer

    def make(n_envs: int) -> Any:
        space = spaces.Box(-np.inf, np.inf, (work.OBS,), np.float32)
        return ReplayBuffer(options.rows, space, spaces.Discrete(2), device="cpu", n_envs=n_envs)

    if options.adds:
        uniform, infos = make(work.N_ENVS), [{} for _ in range(work.N_ENVS)]

        def add(step: dict[str, Any]) -> None:
            uniform.add(step["obs"], step["next_obs"], step["action"], step["reward"], step["done"], infos)

        return {work.ADD_UNIFORM: work.storing(add, work.steps())}

    buffer, rows = make(1), work.columns(options.rows)
    # What its `add` leaves behind, row by row.
    buffer.observations[:, 0], buffer.next_observations[:, 0] = rows["obs"], rows["next_obs"]
    buffer.actions[:, 0, 0], buffer.rewards[:, 0], buffer.dones[:, 0] = rows["action"], rows["reward"], rows["done"]
    buffer.full = True
    return {work.UNIFORM: lambda _: buffer.sample(options.batch)}


SIDES: dict[str, Callable[[argparse.Namespace], Ways]] = {
    "trainkit": trainkit,
    "cpprb": cpprb,
    "torchrl": torchrl,
    "tianshou": tianshou,
    "stable-baselines3": stable_baselines3,
}


def main() -> None:
    """Measure a block for every line that is read."""
    parser = pages.arguments(__doc__)
    parser.add_argument("side", choices=list(SIDES))
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--n-step", type=int, default=1)
    parser.add_argument("--adds", action="store_true", help="measure vector steps that are stored")
    options = parser.parse_args()
    warnings.filterwarnings("ignore")
    ways = SIDES[options.side](options)
    if options.side != "cpprb":  # which has no torch
        import torch

        torch.set_num_threads(1)
    done = {name: value for name, value in vars(options).items() if name != "side"}
    work.answer(ways, version(options.side), done)


if __name__ == "__main__":
    main()
