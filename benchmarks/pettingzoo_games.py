"""Play every game of PettingZoo's classic and butterfly packages that is installed, and check each.

    python -m benchmarks.pettingzoo_games [--moves 10000] [game ...]

The classic games need `pip install 'pettingzoo[classic,butterfly]'`.
"""

import argparse
import importlib
import os
import time
from collections.abc import Callable
from typing import Any

import trainkit as tk
from trainkit.policy import RandomPolicy

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


def play(make: Callable[..., Any], n_moves: int) -> tk.CollectStats:
    """Play by random legal actions in two games."""
    envs = tk.make_envs(make, 2, seed=0)
    collector = tk.Collector(RandomPolicy(envs.action_space, seed=0), envs)
    try:
        return collector.collect(n_step=n_moves)
    finally:
        collector.close()


def main() -> None:
    """Print a line for each game, and what `check_env` finds in it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("games", nargs="*", default=GAMES)
    parser.add_argument("--moves", type=int, default=10_000)
    args = parser.parse_args()
    for game in args.games:
        try:
            found = factories(game)
        except ImportError as error:
            print(f"{game}: not installed: {error}", flush=True)
            continue
        for api, make in found.items():
            started = time.perf_counter()
            stats = play(make, args.moves)
            rate = stats.n_step / (time.perf_counter() - started)
            print(f"{game} {api}: {stats.n_step:,} moves, {stats.n_episode} games, {rate:,.0f} moves/s", flush=True)
            for finding in tk.envs.check_env(make, n_steps=300):
                print(f"    {finding}", flush=True)


if __name__ == "__main__":
    main()
