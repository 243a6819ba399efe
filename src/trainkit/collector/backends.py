"""The ways to drive N environments: what each answers, in *rows that are real steps*, whatever happens below.

reset(seeds, options)       begin an episode everywhere
step(action, ids)           step these environments; the answer's `next_obs` are true successors
begin(ids, seeds, options)  begin the next episode where one ended; None where the environment does so by itself
                            at its next step (autoreset NEXT_STEP), which then reports it in `RawStep.begun`; where
                            agents share a game, the ids are of whole games, and not all of them need be there
call(name, args, ids)       call a method of single environments, or read an attribute
"""

from collections.abc import Sequence
from typing import Any, NamedTuple, Protocol

import gymnasium as gym
import numpy as np
from numpy.typing import NDArray

from trainkit.collector.reading import Infos
from trainkit.data import Obs

Ids = NDArray[np.intp]
Seeds = Sequence[int]
Options = dict[str, Any] | None  # of a reset

# What reading raises when an environment returned something else than its spaces say.
MISREAD = (KeyError, IndexError, TypeError, ValueError, RuntimeError)


class Failure(Exception):  # noqa: N818  # a message to `Envs`, never seen outside
    """An environment failed; `Envs` turns this into an error that says when and at which action."""

    def __init__(self, env_id: int | None, what: str) -> None:
        super().__init__(what)
        self.env_id = env_id
        self.what = what


class Begun(NamedTuple):
    """Episodes that just began."""

    env_ids: Ids  # [K]
    obs: Obs  # [K, ...]
    infos: Infos  # of K rows


class RawStep(NamedTuple):
    """One vector step as the environments told it."""

    next_obs: Obs  # [K, ...]
    reward: NDArray[np.float64]  # [K]
    terminated: NDArray[np.bool_]  # [K]
    truncated: NDArray[np.bool_]  # [K]
    infos: Infos  # of K rows
    begun: Begun | None  # episodes that began within the step
    over: NDArray[np.bool_] | None = None  # [K], whose game ended; None where every episode is a game of its own


class Backend(Protocol):
    """Drive N environments."""

    n: int
    observation_space: gym.Space[Any]
    action_space: gym.Space[Any]
    takes_options: bool  # whether `begin` can hand on the options of a reset
    seeds_episodes: bool  # whether every episode begins by its own seed, so that it can be played again

    def reset(self, seeds: Seeds, options: Options) -> Begun: ...

    def step(self, action: NDArray[Any], env_ids: Ids) -> RawStep: ...

    def begin(self, env_ids: Ids, seeds: Seeds, options: Options) -> Begun | None: ...

    def call(self, name: str, args: tuple[Any, ...], env_ids: Ids) -> list[Any]: ...

    def close(self) -> None: ...


def call_or_read(env: gym.Env[Any, Any], name: str, args: tuple[Any, ...]) -> Any:
    """Call a method of an environment or of what it wraps; an attribute is read, and takes no arguments."""
    found = env.get_wrapper_attr(name)
    if callable(found):
        return found(*args)
    if args:
        raise TypeError(f"{name} is a {type(found).__name__}, which cannot be called with arguments")
    return found
