"""PettingZoo's classic and butterfly games, where they are installed."""

import importlib
import os
from collections.abc import Callable
from typing import Any

import pytest

import trainkit as tk
from trainkit.envs import check_env

GAMES = [
    *(f"classic.{name}" for name in ("chess_v6", "connect_four_v3", "go_v5", "hanabi_v5", "leduc_holdem_v4", "rps_v2")),
    *(f"classic.{name}" for name in ("texas_holdem_no_limit_v6", "texas_holdem_v4", "tictactoe_v3")),
    *(f"butterfly.{name}" for name in ("cooperative_pong_v6", "knights_archers_zombies_v11", "pistonball_v6")),
]


def factories(game: str) -> dict[str, Callable[..., Any]]:
    """Return a game's factories by API; raise an ImportError where it is not installed."""
    os.environ.setdefault("SDL_VIDEODRIVER", "dummy")
    module = importlib.import_module(f"pettingzoo.{game}")
    found = {api: getattr(module, api) for api in ("env", "parallel_env") if hasattr(module, api)}
    try:
        for make in found.values():
            make().close()  # some packages are imported only here
    except Exception as error:
        if "install" in str(error):
            raise ImportError(str(error)) from error
        raise
    return found


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.filterwarnings("ignore")  # of the games and of what they import
@pytest.mark.parametrize("game", GAMES)
def test_every_installed_game_is_played_for_ten_thousand_moves(game: str) -> None:
    try:
        found = factories(game)
    except ImportError as error:
        pytest.skip(f"{game} is not installed: {error}")
    for make in found.values():
        envs = tk.make_envs(make, 2, seed=0)
        collector = tk.Collector(tk.RandomPolicy(envs.action_space, seed=0), envs)
        assert collector.collect(n_step=10_000).n_step >= 10_000
        collector.close()
        assert not [finding for finding in check_env(make, n_steps=100) if finding.level == "error"]
