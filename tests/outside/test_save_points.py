"""A run saved at any event of a callback continues to the same bits, whatever kind of run it is."""

import functools
import inspect
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import trainkit as tk
from examples.two_agents import TwoPoles
from tests.helpers.matrix_games import MatrixGame
from tests.helpers.turns import TicTacToe
from tests.trainer.toys import everything, of_watchers

QUIET: dict[str, Any] = {"verbose": False, "show_progress": False, "seed": 1}
SMALL: dict[str, Any] = {"zoo": False, "hidden": (4,), "max_epoch": 3, "n_test_envs": 1, "episode_per_test": 1}
OFF_POLICY: dict[str, Any] = {"step_per_epoch": 40, "learning_starts": 10, "batch_size": 8, "n_envs": 2}
EVENTS = [name for name, _ in inspect.getmembers(tk.Callback, inspect.isfunction) if name.startswith("on_")]
NEVER = {"on_episode_failed", "on_checkpoint_saved", "on_checkpoint_loaded"}  # in these runs, or by the save itself


class SaveAt(tk.Callback):
    """Saves once, at the middle one of the times that an event is fired; without a folder it counts them."""

    def __init__(self, folder: Path | None, at: int) -> None:
        self.folder, self.at, self.n_fired = folder, at, 0
        self.error: Exception | None = None

    def fired(self, trainer: tk.Trainer, *_: Any) -> None:
        self.n_fired += 1
        if self.folder is not None and self.n_fired == self.at:
            try:
                trainer.save(self.folder)
            except tk.TrainkitError as error:
                self.error = error


def saving_at(event: str, folder: Path | None, at: int = 0) -> Any:
    methods = {event: lambda self, trainer, *rest: self.fired(trainer, *rest)}
    kind = type("SaveAtEvent", (SaveAt,), methods)
    return kind(folder, at)


# ---- kinds of runs ----


def q_learning(**options: Any) -> tk.Trainer:
    return tk.presets.dqn("CartPole-v1", **SMALL, **OFF_POLICY, **QUIET, **options)


def prioritized(**options: Any) -> tk.Trainer:
    return tk.presets.rainbow("CartPole-v1", **SMALL, **OFF_POLICY, **QUIET, **options)


def memory(**options: Any) -> tk.Trainer:
    return tk.presets.drqn(
        "CartPole-v1", sequences=tk.Sequences(4, 10, stored_state=False), **SMALL, **OFF_POLICY, **QUIET, **options
    )


def rollouts(**options: Any) -> tk.Trainer:
    own = {"step_per_epoch": 64, "step_per_collect": 32, "batch_size": 16, "n_envs": 2, "repeat_per_collect": 2}
    return tk.presets.ppo("CartPole-v1", **SMALL, **own, **QUIET, **options)


def dataset() -> tk.ReplayBuffer:
    envs = tk.make_envs("CartPole-v1", 2, seed=1)
    buffer = tk.ReplayBuffer(300, spaces=envs, seed=2)
    tk.Collector(tk.RandomPolicy(envs.action_space, seed=1), envs, buffer).collect(n_step=200)
    return buffer


def offline(**options: Any) -> tk.Trainer:
    own = {"max_epoch": 3, "update_per_epoch": 10, "batch_size": 8, "hidden": (4,), "episode_per_test": 1}
    return tk.presets.cql(dataset(), "CartPole-v1", n_test_envs=1, **own, **QUIET, **options)


def pool(game: Callable[[], Any], n_steps: int = 60, /, **how: Any) -> Callable[..., tk.Trainer]:
    def make(callbacks: Any, **options: Any) -> tk.Trainer:
        opponents = tk.callbacks.OpponentPool("main", evaluate_against="random", **how)
        envs, test = (tk.make_envs(game, 2, seed=seed) for seed in (3, 4))
        learner = tk.DQNPolicy.for_envs(envs, hidden=(4,), exploration=tk.EpsilonGreedy(0.5), device="cpu")
        policy: Any = tk.MultiAgentPolicy({"main": learner, "random": tk.RandomPolicy(envs.action_space)}, opponents)
        train = tk.Collector(policy, envs, tk.MultiAgentBuffer({"main": tk.ReplayBuffer(400)}))
        own: dict[str, Any] = {"max_epoch": 3, "step_per_epoch": n_steps, "batch_size": 8, "update_per_step": 0.25}
        own |= {"test_collector": tk.Collector(policy, test), "episode_per_test": 2}
        return tk.OffpolicyTrainer(policy, train, callbacks=[opponents, callbacks], **own, **QUIET, **options)

    return make


def two_policies(callbacks: Any, **options: Any) -> tk.Trainer:
    envs = tk.make_envs(TwoPoles, 2, seed=3)
    policy: Any = tk.MultiAgentPolicy({name: tk.DQNPolicy.for_envs(envs, hidden=(4,)) for name in ("left", "right")})
    buffers = tk.MultiAgentBuffer({name: tk.ReplayBuffer(400) for name in ("left", "right")})
    own: dict[str, Any] = {"max_epoch": 3, "step_per_epoch": 60, "batch_size": 8, "update_per_step": 0.25}
    return tk.OffpolicyTrainer(
        policy, tk.Collector(policy, envs, buffers), callbacks=callbacks, **own, **QUIET, **options
    )


def fragments(callbacks: Any, **options: Any) -> tk.Trainer:
    envs = tk.make_envs("CartPole-v1", 2, backend=tk.envs.Actors(1, fragment=4, lag=1), seed=3)
    policy = tk.DQNPolicy.for_envs(envs, hidden=(4,), normalize_obs=True, device="cpu")
    train = tk.Collector(policy, envs, tk.ReplayBuffer(400))
    own: dict[str, Any] = {"max_epoch": 3, "step_per_epoch": 40, "batch_size": 8, "update_per_step": 0.25}
    return tk.OffpolicyTrainer(policy, train, callbacks=callbacks, step_per_collect=8, **own, **QUIET, **options)


RUNS: dict[str, Callable[..., tk.Trainer]] = {
    "q-learning": q_learning,
    "prioritized": prioritized,
    "memory": memory,
    "rollouts": rollouts,
    "offline": offline,
    "pool by steps": pool(TicTacToe, add_every=20, size=1),
    "pool by win rate": pool(MatrixGame, 300, add_at_win_rate=0.3, size=2),
    "pool by hard choice": pool(TicTacToe, add_every=20, size=2, draw="hard"),
    "turns": pool(TicTacToe, add_every=20),
    "several policies": two_policies,
    "fragments": fragments,
}


@functools.cache
def counted(kind: str, event: str) -> int:
    """Return how often an event is fired in a run."""
    counts = saving_at(event, None)
    with RUNS[kind](callbacks=counts) as trainer:
        trainer.run()
    n_fired: int = counts.n_fired
    return n_fired


@functools.cache
def undisturbed(kind: str) -> dict[str, Any]:
    """Return what a run ends with."""
    with RUNS[kind](callbacks=saving_at("on_epoch_end", None)) as trainer:
        trainer.run()
        return everything(trainer)


def of_evaluations(path: str) -> bool:
    """Return whether a state is of evaluations, which are repeated where they were being reported, or of diagnosis.

    So is the log that the game of turns keeps for other tests.
    """
    return path.startswith(("/trainer/evaluation/", "/trainer/warnings/")) or path.endswith("/log")


CASES = [(kind, event) for kind in RUNS for event in EVENTS if event not in NEVER]


@pytest.mark.fast_cases(12)
@pytest.mark.parametrize(("kind", "event"), CASES)
def test_a_run_saved_at_an_event_continues_to_the_same_bits(kind: str, event: str, tmp_path: Path) -> None:
    n_fired = counted(kind, event)
    if n_fired == 0:
        pytest.skip(f"{event} is not fired in a run of {kind}")
    saves = saving_at(event, tmp_path / "saved", (n_fired + 1) // 2)
    with RUNS[kind](callbacks=saves) as trainer:
        trainer.run()
    if saves.error is not None:  # said to be no save point
        assert kind == "rollouts"
        assert event in ("on_update_end", "on_train_batch")
        assert "cannot be saved between the updates of a rollout" in str(saves.error)
        return
    with RUNS[kind](callbacks=saving_at(event, None), resume_from=tmp_path / "saved") as resumed:
        resumed.run()
        found, expected = everything(resumed), undisturbed(kind)
    keys = {key for key in {*found, *expected} if not (of_watchers(key) or of_evaluations(key))}
    assert sorted(key for key in keys if found.get(key) != expected.get(key)) == []
