"""Digests of small training runs of every algorithm, to check that a change of the code changes no result.

    python -m tests.digests [RUN ...] [--against COMMIT] [--seed 1]

Prints one sha256 per run, over the weights, the optimizers' moments, the rows played and stored, and the statistics of
every epoch except times. With `--against` the same runs are made with the package as it is at that commit, checked out
into a temporary git worktree, and what differs is listed. Every policy learns and acts by torch, in one thread.

The digests depend on the machine and on the versions of numpy and torch: compare those of one machine. The runs use the
public API alone, so that they can be made at older commits, too; a run that cannot be made there is listed as such.
"""

import argparse
import hashlib
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import torch
from gymnasium import spaces

import trainkit as tk
from tests.helpers.engine import torch_only

ROOT = Path(__file__).parents[1]
CHOICE = spaces.Discrete(3)
CHOICES = spaces.MultiDiscrete([3, 2])
FORCE = spaces.Box(-1.0, 1.0, (2,), np.float32)
N_ROWS = 400  # of a dataset

# One thread, and products whose bits do not depend on where in memory a matrix lies.
ENVIRONMENT = {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "MKL_CBWR": "AVX2,STRICT"}


# Statistics that older commits do not have.
ADDED = tuple(f"test/{name}" for name in ("start_values", "discounted_returns", "action_gaps", "top_action_share"))


@dataclass(frozen=True, kw_only=True)
class Digest:
    """What a run left behind: a sha256 of each part, and of each statistic."""

    weights: str
    moments: str
    rows: str
    statistics: Mapping[str, str]

    @property
    def whole(self) -> str:
        """One sha256 of everything."""
        return sha256(json.dumps(vars(self), sort_keys=True).encode())


class Drift(gym.Env[Any, Any]):
    """Push a point that drifts by the episode's seed; an episode ends 3 from the center, or after 11 steps.

    Every observation and action is added to `tape`. With `masks` some pushes outwards are illegal.
    """

    def __init__(self, action_space: Any, tape: Any, *, masks: bool = False) -> None:
        self.action_space = action_space
        self._vector = spaces.Box(-20.0, 20.0, (4,), np.float32)
        mask = spaces.MultiBinary(3)
        self.observation_space = spaces.Dict({"obs": self._vector, "action_mask": mask}) if masks else self._vector
        self._tape, self._masks = tape, masks

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self._place, self._clock = self.np_random.uniform(-1.0, 1.0, 2), 0
        return self._obs(), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self._tape.update(np.asarray(action).tobytes())
        push = np.resize(np.asarray(action, np.float64), 2)
        self._place += 0.5 * (push if isinstance(self.action_space, spaces.Box) else push - 1.0)
        self._place += self.np_random.normal(0.0, 0.2, 2)
        self._clock += 1
        distance = float(np.abs(self._place).max())
        return self._obs(), 1.0 - distance, distance > 3.0, self._clock >= 11, {}

    def _obs(self) -> Any:
        obs = np.array([*self._place, self._clock / 11, self.np_random.normal()], np.float32)
        self._tape.update(obs.tobytes())
        if not self._masks:
            return obs
        return {"obs": obs, "action_mask": np.array([self._place[0] > -2.0, True, self._place[0] < 2.0], np.int8)}


# ---- the runs ----


@dataclass(frozen=True)
class Made:
    """A run, ready to be trained, and the tapes of its environments."""

    trainer: Any
    tapes: Sequence[Any]


class World:
    """Environments of one run, and what all its trainers are given."""

    def __init__(self, action_space: Any, *, masks: bool, seed: int) -> None:
        self.action_space, self._masks = action_space, masks
        self.tapes: list[Any] = []
        self.options = {"max_epoch": 3, "seed": seed, "verbose": False, "show_progress": False}

    def envs(self) -> Any:
        """Make two environments."""
        tapes = [hashlib.sha256() for _ in range(2)]
        self.tapes += tapes
        return tk.make_envs([partial(Drift, self.action_space, tape, masks=self._masks) for tape in tapes])

    def test(self, policy: Any) -> dict[str, Any]:
        """Let the greedy policy play 3 episodes at each epoch's end."""
        return {"test_collector": tk.Collector(policy, self.envs()), "episode_per_test": 3}


def learner(kind: Any, envs: Any, **options: Any) -> Any:
    """Make a policy that computes by torch."""
    return torch_only(kind.for_envs(envs, **{"hidden": (32, 32), "device": "cpu"} | options))


def offpolicy(
    seed: int,
    kind: Any,
    *,
    space: Any = CHOICE,
    masks: bool = False,
    prioritized: bool = False,
    trainer: Mapping[str, Any] | None = None,
    **options: Any,
) -> Made:
    """Learn from replayed rows, 270 times."""
    world = World(space, masks=masks, seed=seed)
    envs = world.envs()
    policy = learner(kind, envs, **options)
    beta = [(0, 0.4), (300, 1.0)]
    buffer = tk.PrioritizedReplayBuffer(200, beta=beta) if prioritized else tk.ReplayBuffer(200)
    own: dict[str, Any] = {"step_per_epoch": 100, "batch_size": 32, "update_per_step": 1.0}
    own |= {"learning_starts": 20, **world.options, **world.test(policy), **(trainer or {})}
    return Made(tk.OffpolicyTrainer(policy, tk.Collector(policy, envs, buffer), **own), world.tapes)


def q_learner(seed: int, **options: Any) -> Made:
    """Learn action values, exploring by epsilon."""
    usual: dict[str, Any] = {"exploration": tk.EpsilonGreedy([(0, 1.0), (200, 0.1)]), "target": tk.Target(50)}
    return offpolicy(seed, tk.DQNPolicy, **usual | options)


def offline(seed: int, kind: Any, *, space: Any = CHOICE, masks: bool = False, **options: Any) -> Made:
    """Learn from rows that are the same for every seed, 300 times."""
    rng = np.random.default_rng(0)
    ends = np.arange(N_ROWS) % 10 == 9
    vectors = rng.normal(size=(N_ROWS, 4)).astype(np.float32)
    action = rng.integers(3, size=N_ROWS) if space is CHOICE else rng.uniform(-1, 1, (N_ROWS, 2)).astype(np.float32)
    columns: dict[str, Any] = {"obs": vectors, "action": action, "reward": rng.normal(size=N_ROWS), "terminated": ends}
    if masks:
        columns["obs"] = {"obs": vectors, "action_mask": np.ones((N_ROWS, 3), np.int8)}
    world = World(space, masks=masks, seed=seed)
    policy = learner(kind, world.envs(), **options)
    own: dict[str, Any] = {"update_per_epoch": 100, "batch_size": 32, **world.options, **world.test(policy)}
    return Made(tk.OfflineTrainer(policy, tk.ReplayBuffer.from_arrays(**columns), **own), world.tapes)


def onpolicy(
    seed: int, kind: Any, *, space: Any = CHOICE, masks: bool = False, episodes: int | None = None, **options: Any
) -> Made:
    """Learn from rollouts, 240 times."""
    world = World(space, masks=masks, seed=seed)
    envs = world.envs()
    policy = learner(kind, envs, **options)
    own: dict[str, Any] = {"step_per_epoch": 320, "batch_size": 16, "repeat_per_collect": 4, **world.options}
    own |= {"step_per_collect": 64} if episodes is None else {"episode_per_collect": episodes}
    own |= world.test(policy)
    return Made(tk.OnpolicyTrainer(policy, tk.Collector(policy, envs, tk.RolloutBuffer()), **own), world.tapes)


def rainbow(seed: int) -> Made:
    """Learn by all of DQN's improvements at once, where some actions are illegal."""
    return q_learner(
        seed,
        masks=True,
        prioritized=True,
        value=tk.CategoricalValue(21, -10.0, 10.0),
        exploration=tk.Greedy(),
        double=True,
        dueling=True,
        noisy=True,
        n_step=3,
        head=(16,),
    )


def implicit() -> Any:
    """Return the value part of IQN, with few fractions."""
    return tk.ImplicitQuantileValue(8, target_quantiles=8, acting_quantiles=8)


RUNS: dict[str, Callable[[int], Made]] = {
    "dqn": partial(q_learner, lr=[(0, 1e-3), (300, 1e-4)]),
    "dqn-masks": partial(q_learner, masks=True, double=True),
    "dqn-multi-discrete": partial(q_learner, space=CHOICES),
    "double-dueling-normalized": partial(q_learner, double=True, dueling=True, normalize_obs=True),
    "prioritized-3-step": partial(q_learner, prioritized=True, double=True, n_step=3),
    "c51": lambda seed: q_learner(seed, value=tk.CategoricalValue(21, -10.0, 10.0)),
    "qr-dqn": lambda seed: q_learner(seed, value=tk.QuantileValue(16), target=tk.Target(1, "updates", 0.05)),
    "iqn": lambda seed: q_learner(seed, value=implicit()),
    "munchausen": lambda seed: q_learner(seed, backup=tk.MunchausenBackup()),
    "rainbow": rainbow,
    "bcq": partial(offline, kind=tk.DiscreteBCQPolicy, masks=True, normalize_obs=True),
    "cql": lambda seed: offline(seed, tk.DQNPolicy, double=True, penalty=tk.ConservativePenalty(0.5)),
    "bc-discrete": partial(offline, kind=tk.BCPolicy),
    "bc-box": partial(offline, kind=tk.BCPolicy, space=FORCE),
    "sac-learned-temperature": partial(
        offpolicy, kind=tk.SACPolicy, space=FORCE, prioritized=True, normalize_obs=True, trainer={"warmup": "random"}
    ),
    "sac-fixed-temperature": partial(offpolicy, kind=tk.SACPolicy, space=FORCE, temperature=0.2),
    "ppo-discrete-masks": partial(onpolicy, kind=tk.PPOPolicy, masks=True, clip_value=0.2),
    "ppo-multi-discrete": partial(onpolicy, kind=tk.PPOPolicy, space=CHOICES),
    "ppo-box-normalized": partial(onpolicy, kind=tk.PPOPolicy, space=FORCE, normalize_obs=True),
    "ppo-squashed": lambda seed: onpolicy(
        seed, tk.PPOPolicy, space=FORCE, distribution=tk.nets.SquashedGaussian(FORCE)
    ),
    "a2c": partial(onpolicy, kind=tk.A2CPolicy),
    "reinforce": partial(onpolicy, kind=tk.ReinforcePolicy, episodes=6),
}


# ---- their digests ----


def digest(name: str, seed: int = 1) -> Digest:
    """Train a run to its end and take down what it left behind."""
    n_threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        run = RUNS[name](seed)
        epochs = [untimed(result.stats) for result in run.trainer]
    finally:
        torch.set_num_threads(n_threads)
    policy, buffer = run.trainer.policy, run.trainer.buffer
    rows = [tape.digest() for tape in run.tapes]
    if hasattr(buffer, "transitions"):
        for row in buffer.transitions():
            columns = row.obs, row.action, row.reward, row.next_obs, row.terminated, row.truncated
            rows += list(tensors(list(columns)))
    return Digest(
        weights=unordered(policy.get_weights()),
        moments=unordered(policy.training_state()["optimizers"]),
        rows=sha256(*rows),
        statistics={
            tag: sha256(*(repr(epoch.get(tag)).encode() for epoch in epochs)) for tag in sorted(set().union(*epochs))
        },
    )


def untimed(stats: Any) -> dict[str, float]:
    """Return an epoch's numbers except those that a clock gave."""
    clocks = ("time/", "system/", "train/durations", "test/durations", *ADDED)
    ends = ("_ms", "seconds", "_per_second")
    return {tag: float(x) for tag, x in tk.scalars(stats).items() if not (tag.startswith(clocks) or tag.endswith(ends))}


def unordered(state: Any) -> str:
    """Digest the arrays of a nested state, whatever they are called and in whatever order they are."""
    return sha256(*sorted(tensors(state)))


def tensors(state: Any) -> Iterator[bytes]:
    """Yield the digests of all arrays in a nested state, each with its shape and dtype."""
    if isinstance(state, Mapping):
        for child in state.values():
            yield from tensors(child)
    elif isinstance(state, (list, tuple)):
        for child in state:
            yield from tensors(child)
    elif isinstance(state, (np.ndarray, torch.Tensor)):
        array = np.ascontiguousarray(state)
        yield bytes.fromhex(sha256(f"{array.dtype} {np.shape(state)}".encode(), array.tobytes()))


def sha256(*parts: bytes) -> str:
    """Return the sha256 of all parts, one after another."""
    whole = hashlib.sha256()
    for part in parts:
        whole.update(part)
    return whole.hexdigest()


# ---- the command ----


def main() -> int:
    """Print the digests, or compare them with those of another commit; return how many runs differ, at most 1."""
    parser = argparse.ArgumentParser(prog="python -m tests.digests", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("runs", nargs="*", metavar="RUN", help=f"default: all of {' '.join(RUNS)}")
    parser.add_argument("--against", metavar="COMMIT", help="compare with the package at this commit")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--here", action="store_true", help=argparse.SUPPRESS)  # in this process, as JSON
    given = parser.parse_args()
    unknown = [name for name in given.runs if name not in RUNS]
    if unknown:
        parser.error(f"there is no run {', '.join(unknown)}: choose from {' '.join(RUNS)}")
    names, n_different = given.runs or list(RUNS), 0
    if given.here:
        lines = [json.dumps(told) for told in (tk.__file__, *tried(names, given.seed))]
    elif given.against is None:
        found = Side(ROOT, names, given.seed).read()
        lines = [f"{name:27}{one if isinstance(one, str) else one.whole}" for name, one in found.items()]
    else:
        here, there = on_both_sides(given.against, names, given.seed)
        told = {name: differences(here[name], there[name]) for name in names}
        n_different = sum(differs for differs, _ in told.values())
        lines = [f"{name:27}{'differs' if differs else 'same'}{note}" for name, (differs, note) in told.items()]
        lines.append(f"{len(names) - n_different} of {len(names)} runs are the same as at {given.against}")
    print("\n".join(lines))  # noqa: T201
    return min(n_different, 1)


def tried(names: Sequence[str], seed: int) -> list[tuple[str, Any]]:
    """Return each run's digest as plain values, or why it cannot be made, as an older commit may lack something."""
    found: list[tuple[str, Any]] = []
    for name in names:
        try:
            found.append((name, vars(digest(name, seed))))
        except Exception as error:  # noqa: BLE001 - whatever it is, it is listed
            found.append((name, f"cannot be made: {type(error).__name__}: {error}"))
    return found


class Side:
    """A process that makes the runs with the package of one checkout."""

    def __init__(self, checkout: Path, names: Sequence[str], seed: int) -> None:
        self._source = checkout / "src"
        paths = [str(self._source), os.environ.get("PYTHONPATH", "")]
        environment = os.environ | ENVIRONMENT | {"PYTHONPATH": os.pathsep.join(path for path in paths if path)}
        command = [sys.executable, "-m", "tests.digests", "--here", "--seed", str(seed), *names]
        self._process = subprocess.Popen(command, cwd=ROOT, env=environment, stdout=subprocess.PIPE, text=True)

    def read(self) -> dict[str, Digest | str]:
        """Wait for all digests."""
        printed, _ = self._process.communicate()
        if self._process.returncode:
            sys.exit(f"the runs with {self._source} ended with exit status {self._process.returncode}")
        imported, *lines = map(json.loads, printed.splitlines())
        if not Path(imported).is_relative_to(self._source):
            sys.exit(f"the runs with {self._source} imported {imported}")
        return {name: told if isinstance(told, str) else Digest(**told) for name, told in lines}

    def end(self) -> None:
        """End the process, if it has not ended."""
        self._process.kill()
        self._process.wait()


def on_both_sides(commit: str, names: Sequence[str], seed: int) -> tuple[dict[str, Digest | str], ...]:
    """Make the runs here and at a commit, at the same time."""
    with tempfile.TemporaryDirectory() as folder:
        checkout = Path(folder).resolve() / "trainkit"
        git = ["git", "-C", str(ROOT), "worktree"]
        if subprocess.run([*git, "add", "--quiet", "--detach", str(checkout), commit], check=False).returncode:
            sys.exit(f"commit {commit} could not be checked out")  # git has said why
        sides: list[Side] = []
        try:
            sides += [Side(ROOT, names, seed), Side(checkout, names, seed)]
            return tuple(side.read() for side in sides)
        finally:
            for side in sides:
                side.end()
            subprocess.run([*git, "remove", "--force", str(checkout)], check=True)


def differences(here: Digest | str, there: Digest | str) -> tuple[bool, str]:
    """Return whether a run differs, and a note that says in what; a statistic that is new is no difference."""
    if isinstance(here, str) or isinstance(there, str):
        sides = {"here": here, "there": there}
        return True, "".join(f"; {side} it {told}" for side, told in sides.items() if isinstance(told, str))
    mine, theirs = here.statistics, there.statistics
    parts = [part for part in ("weights", "moments", "rows") if getattr(here, part) != getattr(there, part)]
    changed = [tag for tag in mine if tag in theirs and mine[tag] != theirs[tag]]
    gone, new = [tag for tag in theirs if tag not in mine], [tag for tag in mine if tag not in theirs]
    lists = {"statistics": changed, "statistics gone": gone, "new statistics": new}
    notes = parts + [f"{what} {', '.join(tags)}" for what, tags in lists.items() if tags]
    return bool(parts or changed or gone), "".join(f"; {note}" for note in notes)


if __name__ == "__main__":
    sys.exit(main())
