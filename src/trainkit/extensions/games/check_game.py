"""Checking a game of several agents before training, by playing it at random as a collector would."""

import math
import time
from collections.abc import Iterator
from typing import Any, NamedTuple

import gymnasium as gym
import numpy as np
from numpy.typing import NDArray

from trainkit.core import seeding, tree
from trainkit.core.data import ACTION_MASK
from trainkit.core.errors import ConfigError, EnvError, NoLegalActionError
from trainkit.core.spaces import random_actions
from trainkit.envs.env_checker import CORRECT_BOUNDS, advice_on_processes
from trainkit.envs.envs import Envs, VectorStep, rows_of
from trainkit.envs.kinds import Found
from trainkit.envs.sync import SyncRunner
from trainkit.envs.validation import Ranges
from trainkit.extensions.games.games import DictGame, ParallelGame, TurnsGame, driver_of
from trainkit.extensions.games.games_backend import GamesBackend


class _Move(NamedTuple):
    """The rows that one step of a game completed."""

    env_ids: list[int]
    next_obs: list[NDArray[Any]]
    reward: list[float]
    flags: list[list[bool]]


class _PlayedGame(NamedTuple):
    """One game played at random."""

    first_obs: list[NDArray[Any]]
    moves: list[_Move]
    is_over: bool
    late: dict[str, float]  # {agent: what it was paid without an open row}
    seconds: float


class _WatchedTurns(TurnsGame):
    """A game of turns that also sums what its `rewards` say after each move.

    Attributes:
        paid: {agent: sum of the current game}.
    """

    def __init__(self, game: Any) -> None:
        super().__init__(game)
        self.paid: dict[str, float] = {}

    def reset(self, *, seed: int | None, options: dict[str, Any] | None) -> Any:
        """Reset the game and the sums."""
        self.paid = {}
        return super().reset(seed=seed, options=options)

    def move(self, action: Any) -> None:
        """Make a move, and add what it pays."""
        super().move(action)
        for agent, reward in dict(getattr(self.game, "rewards", {})).items():
            self.paid[str(agent)] = self.paid.get(str(agent), 0.0) + float(reward)


def check_game(game: Any, *, n_steps: int, seed: int, mask_key: str | None) -> Iterator[Found]:
    """Play a game twice with the same seed and actions, and yield what was found; the game stays open."""
    driver: ParallelGame | TurnsGame | DictGame | None = None
    envs: Envs | None = None
    try:
        driver = driver_of(game)
        if isinstance(driver, TurnsGame):
            driver = _WatchedTurns(game)
        backend = GamesBackend(_OpenRunner([lambda: driver]), [] if mask_key is None else [mask_key])
        envs = Envs(backend, mask_key=mask_key, seed=seed)
        yield from _findings_of_actions(envs.action_space)
        first = _play(envs, n_steps, seed)
        if isinstance(driver, _WatchedTurns):
            yield from _lost_rewards(driver.paid, first, envs.agents)
        second = _play(envs, n_steps, seed)
    except NoLegalActionError as error:
        advice = "leave an action legal for each agent that is to act, or terminate its episode"
        yield "error", str(error).removeprefix("make_envs: "), advice
        return
    except (ConfigError, EnvError) as error:
        yield "error", str(error).removeprefix("make_envs: "), "fix the game: training would stop there"
        return
    finally:
        if envs is not None:
            envs.detach()
    yield from _findings_of_play(envs, first, second, n_steps)


class _OpenRunner(SyncRunner):
    """A runner that does not close the game, which belongs to the caller."""

    def close(self) -> None:
        """Give the game back."""
        self.detach()


def _play(envs: Envs, n_steps: int, seed: int) -> _PlayedGame:
    """Play one game at random, to its end or for a number of steps."""
    rng = seeding.generator(seed, "check_env")
    envs.reset(seed=seed)
    first_obs = [leaf[envs.ready].copy() for leaf in tree.leaves(envs.obs)]
    moves: list[_Move] = []
    late: dict[str, float] = {}
    seconds = 0.0
    for _ in range(n_steps):
        ready = envs.ready
        obs = rows_of(envs.obs, ready)
        try:
            action = random_actions(envs.action_space, obs, len(ready), rng, ready)
        except NoLegalActionError as error:
            raise envs.explain_no_action(error) from None
        start = time.perf_counter()
        outcome = envs.step(action, ready)
        seconds += time.perf_counter() - start
        moves.append(_move_of(outcome))
        for env_id, reward in outcome.late_rewards.items():
            late[envs.agents[env_id]] = late.get(envs.agents[env_id], 0.0) + reward
        if outcome.over.any():
            return _PlayedGame(first_obs, moves, True, late, seconds)
    return _PlayedGame(first_obs, moves, False, late, seconds)


def _move_of(outcome: VectorStep) -> _Move:
    flags = np.stack([outcome.terminated, outcome.truncated], axis=1)
    next_obs = [leaf.copy() for leaf in tree.leaves(outcome.next_obs)]
    return _Move(outcome.env_ids.tolist(), next_obs, outcome.reward.tolist(), flags.tolist())


def _findings_of_actions(space: gym.Space[Any]) -> Iterator[Found]:
    if isinstance(space, gym.spaces.Box) and not space.is_bounded():
        yield "warning", f"its actions {space} have no bounds", "bound them: SAC squashes into bounds"


def _lost_rewards(paid: dict[str, float], played: _PlayedGame, agents: tuple[str, ...]) -> Iterator[Found]:
    """Compare the rewards of each move with what `last` gave in all."""
    if not played.is_over:
        return
    got = {agent: played.late.get(agent, 0.0) for agent in agents}
    for move in played.moves:
        for env_id, reward in zip(move.env_ids, move.reward, strict=True):
            got[agents[env_id]] += reward
    for agent in agents:
        if not math.isclose(got[agent], paid.get(agent, 0.0), rel_tol=1e-6, abs_tol=1e-6):
            what = (
                f"its rewards pay agent {agent!r} {paid.get(agent, 0.0):g} in a game, and last() gives {got[agent]:g}"
            )
            advice = "in step, set _cumulative_rewards of the agent that moves to 0 and call _accumulate_rewards()"
            yield "warning", what, advice
            return


def _findings_of_play(envs: Envs, first: _PlayedGame, second: _PlayedGame, n_steps: int) -> Iterator[Found]:
    if not _are_equal(first.first_obs, second.first_obs):
        yield "warning", "two resets with the same seed differ", "draw from a generator that reset(seed=) seeds"
    elif not _are_same_moves(first.moves, second.moves):
        yield "warning", "two games with the same seed and actions differ", "draw from the seeded generator alone"
    if not first.is_over:
        yield "warning", f"no game ended within {n_steps} steps", "let it end, or truncate it in a wrapper"
    if first.late:
        who = ", ".join(map(repr, sorted(first.late)))
        what = f"agent {who} is paid when it has no open row: before its first move, or after it has left"
        yield "note", what, "the reward counts in the return, and nothing is learned from it"
    yield from _findings_of_bounds(envs, first)
    yield (
        "note",
        f"it makes {len(first.moves) / first.seconds:,.0f} steps per second",
        advice_on_processes(1e3 * first.seconds / len(first.moves)),
    )


def _findings_of_bounds(envs: Envs, played: _PlayedGame) -> Iterator[Found]:
    """Yield the first observation outside its Box's bounds."""
    ranges = Ranges(envs.observation_space, gym.spaces.Box)
    names = [path for path, _ in tree.named_leaves(envs.obs)]
    for columns in [played.first_obs, *(move.next_obs for move in played.moves)]:
        leaves = {path: leaf for path, leaf in zip(names, columns, strict=True) if path != ACTION_MASK}
        what = ranges.describe_outside(leaves)
        if what is not None:
            yield "warning", what, CORRECT_BOUNDS
            return


def _are_same_moves(one: list[_Move], other: list[_Move]) -> bool:
    if len(one) != len(other):
        return False
    return all(
        (a.env_ids, a.reward, a.flags) == (b.env_ids, b.reward, b.flags) and _are_equal(a.next_obs, b.next_obs)
        for a, b in zip(one, other, strict=True)
    )


def _are_equal(one: list[NDArray[Any]], other: list[NDArray[Any]]) -> bool:
    return all(map(np.array_equal, one, other))
