"""The tasks on which presets are judged, what each changes of their settings, and one training.

CartPole-v1 is learned with the settings of the zoo. What another task changes of the general tables is taken from who
ran it before: the horizon, and how far returns reach; LunarLander's was tried on seeds 1 and 2 of DQN, and seed 1 of
PPO and A2C. MinAtar (Young & Tian, 2019) needs `pip install minatar`; there the grids go through the presets' plain
layers, not through the convolutions of its authors.
"""

import json
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import gymnasium

import trainkit as tk
from benchmarks.provenance import code_commit, listed
from benchmarks.tuning_seeds import check_fresh


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """An environment, how long it is learnt, and when that is judged."""

    env: str
    title: str
    steps: int  # a multiple of `every`
    every: int  # steps from one evaluation to the next
    episodes: int  # of each
    ylim: tuple[float, float] | None = None  # of pictures
    reward: float | None = None  # a scale, for what learns from replay
    for_all: Mapping[str, Any] = field(default_factory=dict)
    for_q: Mapping[str, Any] = field(default_factory=dict)  # for what learns from replay, besides
    for_one: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)  # for one preset, besides
    support: tuple[float, float] = (0.0, 50.0)  # of returns, where they are a distribution over fixed ones
    in_minatar: bool = False

    def changes(self, preset: str) -> dict[str, Any]:
        """Return what it changes of a preset's settings."""
        changes = dict(self.for_all)
        if isinstance(tk.presets.PRESETS[preset], tk.presets.QPreset):
            own = tk.presets.settings(preset)
            changes |= {name: number for name, number in self.for_q.items() if own[name] is not None}
            if self.reward is not None:
                changes["reward"] = self.reward
            if isinstance(own["value"], tk.CategoricalValue):
                changes["value"] = tk.CategoricalValue(51, *self.support)
        return changes | self.for_one.get(preset, {})

    @property
    def uses_zoo(self) -> bool:
        """Whether it is learned with the zoo's settings; a task with changes changes the general table."""
        return not (self.for_all or self.for_q or self.for_one)

    def register(self) -> None:
        """Let Gymnasium know the environment."""
        if self.in_minatar and self.env not in gymnasium.registry:
            import minatar.gym

            minatar.gym.register_envs()


# Young & Tian's numbers for DQN, at a quarter of their updates and of their exploration; Adam for RMSprop.
_MINATAR = {
    "gamma": 0.99,
    "lr": 2.5e-4,
    "epsilon": [(0, 1.0), (50_000, 0.05)],
    "target_every": 1_000,
    "capacity": 100_000,
    "batch_size": 32,
    "update_per_step": 0.25,
    "learning_starts": 5_000,
}


def _game(name: str) -> Task:
    return Task(
        env=f"MinAtar/{name}-v1",
        title=f"MinAtar {name}",
        steps=200_000,
        every=20_000,
        episodes=50,
        for_all={"gamma": 0.99},
        for_q=_MINATAR,
        in_minatar=True,
    )


TASKS = {
    "cartpole": Task(
        env="CartPole-v1", title="CartPole-v1", steps=60_000, every=5_000, episodes=100, ylim=(0.0, 510.0)
    ),
    "acrobot": Task(
        env="Acrobot-v1",
        title="Acrobot-v1",
        steps=60_000,
        every=5_000,
        episodes=50,
        ylim=(-510.0, 0.0),
        for_all={"gamma": 0.99},
        support=(-100.0, 0.0),
    ),
    "lunarlander": Task(
        env="LunarLander-v3",
        title="LunarLander-v3",
        steps=150_000,
        every=15_000,
        episodes=50,
        for_all={"gamma": 0.99},
        reward=0.05,
        for_q={
            "n_step": 3,
            "lr": [(0, 1e-3), (50_000, 5e-4), (150_000, 1e-4)],
            "epsilon": [(0, 1.0), (50_000, 0.1), (150_000, 0.02)],
            "learning_starts": 5_000,
            "target_every": 4,
            "target_tau": 0.005,
            "batch_size": 64,
            "update_per_step": 0.25,
        },
        support=(-20.0, 20.0),
        for_one={
            # What it has for MuJoCo, and a bonus for entropy.
            "ppo": {
                "lam": 0.95,
                "lr": 3e-4,
                "step_per_collect": 2_048,
                "repeat_per_collect": 10,
                "batch_size": 64,
                "entropy_weight": 0.01,
            },
            "a2c": {"lam": 0.95, "reward": 0.05},
        },
    ),
    "breakout": _game("Breakout"),
    "asterix": _game("Asterix"),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """One training: the mean return of every evaluation, in order, and the seconds of CPU time that all of it took.

    `commit` is the commit of trainkit that it was measured at.
    """

    preset: str
    settings: str
    seed: int
    returns: tuple[float, ...]
    seconds: float
    commit: str


def learn(task: Task, preset: str, seed: int, n_evaluations: int) -> Run:
    """Train a preset as it is, but for the task's changes."""
    returns, seconds = trained(task, preset, seed, n_evaluations, task.changes(preset))
    return Run(
        preset=preset,
        settings=settings_of(task, preset),
        seed=seed,
        returns=returns,
        seconds=seconds,
        commit=code_commit(),
    )


def trained(
    task: Task, preset: str, seed: int, n_evaluations: int, changes: Mapping[str, Any]
) -> tuple[tuple[float, ...], float]:
    """Train a preset with changes; evaluations play episodes of their own.

    Returns:
        The mean return of every evaluation, in order, and the seconds of CPU time that all of it took.
    """
    task.register()
    began = time.process_time()
    trainer = tk.presets.PRESETS[preset](
        task.env,
        seed=seed,
        device="cpu",
        evaluation=None,
        max_epoch=n_evaluations,
        step_per_epoch=task.every,
        verbose=False,
        show_progress=False,
        zoo=task.uses_zoo,
        **changes,
    )
    returns = []
    with trainer:
        for epoch, _, _ in trainer:
            fresh = 1_000 * seed + epoch  # a root no other evaluation has
            summary = tk.evaluate(trainer.policy, task.env, n_episode=task.episodes, n_envs=50, seed=fresh).returns
            assert summary.mean is not None  # the episodes were requested
            returns.append(summary.mean)
    if len(returns) < n_evaluations:  # Ctrl-C, or the system's wish: no run to keep, nor to follow by the next
        raise SystemExit(f"{task.title} {preset} {seed} was stopped after {len(returns)} evaluations")
    return tuple(returns), time.process_time() - began


def settings_of(task: Task, preset: str) -> str:
    """Write a preset's settings for a task in a line; of the table that its id names, without an environment."""
    of: Any = tk.presets.PRESETS[preset]
    options = {"zoo": task.uses_zoo, **task.changes(preset)}
    entry = of.zoo_entry(task.env, options)
    table = of.table(of.domain_of_id(task.env)) if entry is None else of.zoo_table(entry)
    settings = of.changed(table, options)
    return str(sorted((name, settings[name]) for name in of.settings()))


def kept(cache: Path | None) -> Iterator[Run]:
    """Yield every run of a file of finished runs."""
    lines = [] if cache is None or not cache.exists() else cache.read_text().splitlines()
    for line in map(json.loads, lines):
        yield Run(**{**line, "returns": tuple(line["returns"])})


def find(task: Task, cache: Path | None, preset: str, seed: int, n_evaluations: int) -> Run | None:
    """Return the last finished run with today's settings, None where there is none."""
    run = published(task, cache, preset, seed, n_evaluations)
    return run if run is not None and has_todays_settings(task, run) else None


def published(task: Task, cache: Path | None, preset: str, seed: int, n_evaluations: int) -> Run | None:
    """Return the last finished run, with today's settings if there is one with them; None where there is none."""
    own = [run for run in kept(cache) if (run.preset, run.seed, len(run.returns)) == (preset, seed, n_evaluations)]
    return max(own, key=lambda run: (has_todays_settings(task, run), own.index(run)), default=None)


def has_todays_settings(task: Task, run: Run) -> bool:
    """Whether a run had the settings that its preset has today."""
    return run.settings == settings_of(task, run.preset)


def measured(task: Task, runs: Sequence[Run]) -> str:
    """Return the commits of runs of a preset, marked where its settings have changed since."""
    is_old = not all(has_todays_settings(task, run) for run in runs)
    return listed(run.commit for run in runs) + (", other settings then" if is_old else "")


def found_or_learnt(task: Task, cache: Path | None, preset: str, seed: int, n_evaluations: int) -> Run:
    """Return a finished run, or train and keep it."""
    run = find(task, cache, preset, seed, n_evaluations)
    if run is None:
        check_fresh([preset], task.env, [seed])
        run = learn(task, preset, seed, n_evaluations)
        if cache is not None:
            with cache.open("a") as file:
                file.write(json.dumps(asdict(run)) + "\n")
    return run
