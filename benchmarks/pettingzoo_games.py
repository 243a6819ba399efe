"""Play every game of PettingZoo's classic and butterfly packages that is installed, and check each.

    python -m benchmarks.pettingzoo_games [--moves 10000] [game ...]

Each API of a game is played by random legal actions, then by two policies that learn meanwhile: DQNs where actions are
discrete and moves are made in turn, else PPOs. The games need `pip install 'pettingzoo[classic,butterfly]'`. Finished
games are kept in `benchmarks/results/pettingzoo_games.jsonl` and not played again.
"""

import argparse
import importlib
import os
import platform
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import gymnasium as gym
import torch
from torch import nn

import trainkit as tk
from benchmarks.cache import Cache
from benchmarks.provenance import measured_at

RESULTS = Path("benchmarks/results")
GAMES = [
    *(f"classic.{name}" for name in ("chess_v6", "connect_four_v3", "go_v5", "hanabi_v5", "leduc_holdem_v4", "rps_v2")),
    *(f"classic.{name}" for name in ("texas_holdem_no_limit_v6", "texas_holdem_v4", "tictactoe_v3")),
    *(f"butterfly.{name}" for name in ("cooperative_pong_v6", "knights_archers_zombies_v11", "pistonball_v6")),
]
PLAYERS = ("random", "two policies")
N_GAMES = 2  # at the same time


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


# ---- who plays ----


def play_at_random(make: Callable[..., Any], n_moves: int) -> dict[str, Any]:
    """Play by random legal actions."""
    envs = tk.make_envs(make, N_GAMES, seed=0)
    collector = tk.Collector(tk.RandomPolicy(envs.action_space, seed=0), envs)
    try:
        stats = collector.collect(n_step=n_moves)
    finally:
        collector.close()
    return {"learners": "", "moves": stats.n_step, "games": stats.n_episode, "updates": 0}


def play_and_learn(make: Callable[..., Any], n_moves: int) -> dict[str, Any]:
    """Let two policies share the agents of a game, and learn."""
    envs = tk.make_envs(make, N_GAMES, seed=0)
    in_turn = hasattr(make(), "agent_iter")
    is_dqn = in_turn and isinstance(envs.action_space, gym.spaces.Discrete)
    learner: Any = tk.DQNPolicy if is_dqn else tk.PPOPolicy
    is_image = len(getattr(envs.observation_space, "shape", None) or ()) == 3
    encoder = {"encoder": strided} if is_image else {}
    policies = {name: learner.for_envs(envs, hidden=(32,), device="cpu", **encoder) for name in ("main", "rival")}
    mapping = {agent: ("main", "rival")[number % 2] for number, agent in enumerate(envs.agents)}
    players = tk.MultiAgentPolicy(policies, mapping)
    buffers = {name: tk.ReplayBuffer(500) if is_dqn else tk.RolloutBuffer() for name in policies}
    train = tk.Collector(players, envs, tk.MultiAgentBuffer(buffers))
    how: dict[str, Any] = {"max_epoch": 1, "step_per_epoch": n_moves, "seed": 0, "diagnosis": None}
    how |= {"verbose": False, "show_progress": False, "batch_size": 32}
    trainer: tk.Trainer[Any] = (
        tk.OffpolicyTrainer(players, train, update_per_step=0.05, learning_starts=200, **how)
        if is_dqn
        else tk.OnpolicyTrainer(players, train, step_per_collect=256, **how)
    )
    with trainer:
        trainer.run()
        info = trainer.info
    n_updates = players.n_updates
    return {
        "learners": "DQN" if is_dqn else "PPO",
        "moves": info.env_step,
        "games": info.n_episode,
        "updates": n_updates,
    }


def strided(shapes: Any) -> nn.Module:
    """Return a convolution that makes large images small at once."""
    channels, _, _ = shapes
    return nn.Sequential(nn.Conv2d(channels, 4, 16, stride=16), nn.ReLU(), nn.Flatten())


def play(make: Callable[..., Any], player: str, n_moves: int) -> dict[str, Any]:
    """Play, and return what was done, with moves per second."""
    started = time.perf_counter()
    done = (play_at_random if player == "random" else play_and_learn)(make, n_moves)
    return done | {"rate": done["moves"] / (time.perf_counter() - started)}


def findings(make: Callable[..., Any]) -> list[str]:
    """Return the errors and warnings of `check_env`, without its notes, which depend on the machine."""
    return [str(one) for one in tk.envs.check_env(make, n_steps=600) if one.level != "note"]


# ---- the page ----


def table(
    runs: Mapping[tuple[str, str, str], Mapping[str, Any]], found: Mapping[tuple[str, str], Any]
) -> Iterator[str]:
    """Yield a row for each API of each game."""
    yield "| game | API | random: moves, games | two policies | moves, games | updates | check_env |"
    yield "|---|---|---|---|---|---|---|"
    for (game, api), own in found.items():
        blind, learned = (runs[game, api, player] for player in PLAYERS)
        counts = [f"{run['moves']:,}, {run['games']:,}" for run in (blind, learned)]
        text = "; ".join(own["found"]) or "no error, no warning"
        cells = [game, api, counts[0], learned["learners"], counts[1], f"{learned['updates']:,}", text]
        yield f"| {' | '.join(cells)} |"


def report(cache: Cache, n_moves: int, missing: Mapping[str, str]) -> str:
    """Return the page, in markdown, of all games that were played."""
    import pettingzoo

    runs = {tuple(key[1:]): run for key, run, _ in cache.rows() if key[0] == "play" and key[-1] == n_moves}
    runs = {key[:3]: run for key, run in runs.items()}
    found = {tuple(key[1:]): run for key, run, _ in cache.rows() if key[0] == "check"}
    commits = [commit for _, _, commit in cache.rows()]
    lines = [
        "# PettingZoo's games",
        "",
        measured_at(commits),
        "",
        f"`python -m benchmarks.pettingzoo_games --moves {n_moves}` on {platform.machine()}; Python "
        f"{platform.python_version()}, trainkit {tk.__version__}, torch {torch.__version__}, PettingZoo "
        f"{pettingzoo.__version__}.",
        "",
        f"Every game of PettingZoo's classic and butterfly packages that is installed, {N_GAMES} at a time: "
        f"{n_moves:,} moves by random legal actions, then as many by two policies that learn and share its agents. "
        "None raised an error. The last column has the errors and warnings of `check_env`, which plays 600 steps.",
        "",
        *table(runs, found),
        "",
        *(f"- Not installed: {game}: {reason}" for game, reason in missing.items()),
    ]
    return "\n".join([*lines, ""]) if missing else "\n".join(lines)


def complete(games: Sequence[str], n_moves: int, cache: Cache) -> dict[str, str]:
    """Play what is not kept yet; return the games that are not installed, with the reason."""
    missing: dict[str, str] = {}
    for game in games:
        try:
            found = factories(game)
        except ImportError as error:
            missing[game] = str(error)
            print(f"{game}: not installed: {error}", flush=True)
            continue
        for api, make in found.items():
            for player in PLAYERS:
                key = "play", game, api, player, n_moves
                if cache.get(*key) is None:
                    cache.put(play(make, player, n_moves), *key)
                print(f"{game} {api}, {player}: {cache.get(*key)}", flush=True)
            if cache.get("check", game, api) is None:
                cache.put({"found": findings(make)}, "check", game, api)
            print(f"    {cache.get('check', game, api)}", flush=True)
    return missing


def main() -> None:
    """Play what is missing and write the page."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("games", nargs="*", default=GAMES)
    parser.add_argument("--moves", type=int, default=10_000)
    parser.add_argument("--cache", type=Path, default=RESULTS / "pettingzoo_games.jsonl")
    parser.add_argument("--out", type=Path, default=RESULTS / "pettingzoo_games.md")
    args = parser.parse_args()
    torch.set_num_threads(1)
    cache = Cache(args.cache)
    missing = complete(args.games, args.moves, cache)
    args.out.write_text(report(cache, args.moves, missing))


if __name__ == "__main__":
    main()
