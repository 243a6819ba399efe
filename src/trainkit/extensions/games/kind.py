"""Games of several agents as a kind of environments."""

import re
import warnings
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from trainkit.core.extras import import_named, is_installed
from trainkit.envs.backends import Runner
from trainkit.envs.kinds import EnvKind, Found, Space, replaced_action_space, replaced_observation_space
from trainkit.extensions.games.check_game import check_game
from trainkit.extensions.games.games import ByAgent, GameWrapper, driver_of, is_game, space_of
from trainkit.extensions.games.games_backend import GamesBackend

_NAME = re.compile(r"(\w+/)+\w+_v\d+")  # a module of PettingZoo's or mpe2's, with slashes


class GameKind(EnvKind):
    """Games of several agents, with one of the three APIs of `games.py`; named as "pettingzoo/classic/chess_v6"."""

    what = "a game of several agents with PettingZoo's or RLlib's API"

    def is_name(self, spec: str) -> bool:
        """Return whether a text names the module of a game."""
        return _NAME.fullmatch(spec) is not None

    def spelling(self, spec: str) -> str:
        """Return the name of a game that is written with dots, or without its package."""
        path = re.sub("[.:]", "/", spec)
        if self.is_name(path):
            return path
        may_be = self.is_name(f"package/{path}") and is_installed("pettingzoo")
        folders = [Path(folder) for folder in import_named("pettingzoo").__path__] if may_be else []
        found = (one.relative_to(folder.parent) for folder in folders for one in folder.glob(f"*/{path}*"))
        return next((one.with_suffix("").as_posix() for one in found if one.stem == path), "")

    def factory_of(self, name: str) -> Callable[..., Any]:
        """Return the factory of a game, with the parallel API if it has that."""
        with warnings.catch_warnings():  # PettingZoo 1.27 announces a registry that older versions do not have
            warnings.simplefilter("ignore", DeprecationWarning)
            game = import_named(name.replace("/", "."))
        made: Callable[..., Any] = getattr(game, "parallel_env", None) or game.env
        return made

    def has(self, env: object) -> bool:
        """Return whether this is a game."""
        return is_game(env)

    def with_spaces(self, env: Any, observation_space: Space | None, action_space: Space | None) -> Any:
        """Return a game whose agents all have these spaces."""
        return _GameWithSpaces(env, observation_space, action_space)

    def driven(self, env: Any) -> Any:
        """Return a game in the form that runners drive."""
        return driver_of(env)

    def backend(self, runner: Runner, kept_infos: Sequence[str]) -> GamesBackend | None:
        """Return the backend of games."""
        is_of_games = isinstance(runner.spaces[0].observation_space, ByAgent)
        return GamesBackend(runner, kept_infos) if is_of_games else None

    def check(self, env: Any, *, n_steps: int, seed: int, mask_key: str | None) -> Iterator[Found]:
        """Play a game twice with the same seed and actions, and yield what was found."""
        return check_game(env, n_steps=n_steps, seed=seed, mask_key=mask_key)


GAMES = GameKind()


class _GameWithSpaces(GameWrapper):
    """A game whose agents all have given spaces."""

    def __init__(self, game: Any, observation_space: Space | None, action_space: Space | None) -> None:
        super().__init__(game)
        self._observation_space, self._action_space = observation_space, action_space
        self.unwrapped = getattr(game, "unwrapped", game)

    def observation_space(self, agent: Any) -> Any:
        """Return the given space, checked against the agent's own."""
        own = space_of(self._game, "observation_space", agent)
        return replaced_observation_space(own, self._observation_space)

    def action_space(self, agent: Any) -> Any:
        """Return the given space, checked against the agent's own."""
        return replaced_action_space(space_of(self._game, "action_space", agent), self._action_space)
