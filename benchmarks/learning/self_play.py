"""Learn board games by DQN against itself, and measure the result against random, scripted and perfect players.

    python -m benchmarks.learning.self_play [--games tictactoe connect_four] [--seeds 1 2 3] [--runs FOLDER]
                                            [--no-training]

One network plays both sides and learns from the moves of both. After every epoch it plays without exploration against
each opponent, from both sides. Needs `pip install 'pettingzoo[classic]'`. An interrupted run continues from its
checkpoint in FOLDER; finished ones are kept in `benchmarks/results/self_play.jsonl` and not run again.
"""

import json
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

import trainkit as tk
from benchmarks import pages
from benchmarks.learning.board_players import N_COLUMNS, PerfectTicTacToe, TwoPlyConnectFour
from benchmarks.pages import Cache

N_EPOCH_GAMES = 200  # against each opponent, after every epoch

Results = Mapping[str, Mapping[str, Sequence[int]]]  # {opponent: {agent of the learner: (won, drawn, lost)}}


@dataclass(frozen=True, kw_only=True)
class Game:
    """A game, the settings it is learned with, and opponents with the number of games at the end."""

    title: str
    name: str  # of PettingZoo's module
    steps: int  # moves
    every: int  # moves per epoch
    n_envs: int
    policy: Mapping[str, Any]  # arguments of `DQNPolicy.for_envs`
    epsilon: Sequence[tuple[int, float]] | None  # None: see `spread_epsilon`
    n_conv: int = 0  # filters of `Squares` in front of the hidden layers; 0 for none
    mirrors: bool = False  # whether half of each batch is reflected
    capacity: int
    batch_size: int
    update_per_step: float
    opponents: Mapping[str, int]
    bars: str


GAMES = {
    "tictactoe": Game(
        title="Tic-tac-toe",
        name="tictactoe_v3",
        steps=200_000,
        every=50_000,
        n_envs=8,
        policy={"hidden": [128, 128], "lr": [(0, 1e-3), (100_000, 1e-3), (200_000, 1e-4)], "gamma": 0.99},
        epsilon=[(0, 1.0), (100_000, 0.1)],
        capacity=50_000,
        batch_size=64,
        update_per_step=0.5,
        opponents={"random": 2_000, "perfect": 400},
        bars="at most 5 of 1,000 lost to random on either side, 195 of 200 drawn with the perfect player",
    ),
    "connect_four": Game(
        title="Connect Four",
        name="connect_four_v3",
        steps=1_500_000,
        every=100_000,
        n_envs=32,
        policy={"hidden": [128], "lr": [(0, 1e-3), (1_500_000, 1e-4)], "gamma": 0.9, "double": True},
        epsilon=None,
        n_conv=48,
        mirrors=True,
        capacity=200_000,
        batch_size=128,
        update_per_step=0.125,
        opponents={"random": 1_000, "two_ply": 1_000},
        bars="0.95 of the games won against random, 0.7 against two-ply",
    ),
}
OPPONENTS = {
    "random": "legal moves, uniformly",
    "perfect": "draws from the best moves by minimax",
    "two_ply": "wins at once, else blocks at once, else random",
}


def environment(game: Game) -> Callable[[], Any]:
    """Return the factory of a game."""
    import pettingzoo.classic

    made: Callable[[], Any] = getattr(pettingzoo.classic, game.name).env
    return made


def opponent(name: str, envs: tk.Envs) -> tk.Policy:
    """Make an opponent."""
    if name == "random":
        return tk.RandomPolicy(envs.action_space, seed=5)
    return tk.policy.ScriptedPolicy((PerfectTicTacToe if name == "perfect" else TwoPlyConnectFour)(seed=5))


def play(policy: tk.Policy, game: Game, envs: tk.Envs, n_games: Mapping[str, int]) -> Results:
    """Let a policy play against every opponent, half of the games on each side."""
    results: dict[str, dict[str, list[int]]] = {}
    for name, number in n_games.items():
        players = {"learner": policy, name: opponent(name, envs)}
        table = tk.trainer.tournament(players, environment(game), n_episode=number, seed=11)
        sides = {agent: table.win_rate("learner", name, agent=agent) for agent in envs.agents}
        results[name] = {agent: [own.wins, own.draws, own.losses] for agent, own in sides.items()}
    return results


def spread_epsilon(n_games: int) -> tk.EpsilonGreedy:
    """Let one agent of each game explore little, and the other by as much as suits the game, from 0.02 to 0.5.

    So the policy plays against weak and strong opponents at all times, and its games differ.
    """
    pairs = [(0.02, float(other)) for other in np.geomspace(0.02, 0.5, n_games)]
    return tk.EpsilonGreedy(
        1.0, per_env=[one for game, pair in enumerate(pairs) for one in pair[:: 1 if game % 2 else -1]]
    )


class Mirror(tk.Callback):
    """Reflect the boards and moves of the first half of every batch left to right: the game is symmetric."""

    def on_train_batch(self, trainer: tk.Trainer[Any], batch: Any) -> Any:
        """Return the batch with these rows reflected."""
        rows = slice(0, batch.n_rows // 2)

        def reflected(obs: Mapping[str, Any]) -> dict[str, Any]:
            board, mask = obs["observation"].copy(), obs["action_mask"].copy()
            board[rows], mask[rows] = board[rows, :, ::-1], mask[rows, ::-1]
            return {"observation": board, "action_mask": mask}

        action = batch.action.copy()
        action[rows] = N_COLUMNS - 1 - action[rows]
        return replace(batch, obs=reflected(batch.obs), next_obs=reflected(batch.next_obs), action=action)


class Squares(nn.Module):
    """A convolution over squares of 4 x 4 cells, in which lines of four lie; it also sees which cells can be played.

    Args:
        n_filters: of the convolution.
    """

    def __init__(self, n_filters: int) -> None:
        super().__init__()
        self.convolution = nn.Conv2d(3, n_filters, 4)

    def forward(self, boards: torch.Tensor) -> torch.Tensor:
        """Return features [B, F] of boards [B, 2, rows, columns], the stones of both players."""
        taken = boards.sum(dim=1, keepdim=True)
        has_support = torch.cat([taken[:, :, 1:], torch.ones_like(taken[:, :, :1])], dim=2)
        planes = torch.cat([boards, (1.0 - taken) * has_support], dim=1)
        return torch.relu(self.convolution(planes)).flatten(1)


def learn(game: Game, seed: int, folder: Path) -> dict[str, Any]:
    """Train, and return the results of every epoch, those of the end, and seconds of training."""
    envs = tk.make_envs(environment(game), game.n_envs)
    encoder: dict[str, Any] = {"encoder": {"observation": lambda _: Squares(game.n_conv)}} if game.n_conv else {}
    exploration = spread_epsilon(game.n_envs) if game.epsilon is None else tk.EpsilonGreedy(game.epsilon)
    policy = tk.DQNPolicy.for_envs(
        envs, exploration=exploration, target=tk.Target(500), device="cpu", **encoder, **game.policy
    )
    trainer = tk.OffpolicyTrainer(
        policy,
        tk.Collector(policy, envs, tk.ReplayBuffer(game.capacity)),
        max_epoch=game.steps // game.every,
        step_per_epoch=game.every,
        batch_size=game.batch_size,
        update_per_step=game.update_per_step,
        learning_starts=2_000,
        seed=seed,
        callbacks=[Mirror()] if game.mirrors else [],
        checkpoint=tk.Checkpoint(folder / "checkpoint"),
        resume_from="auto",
        verbose=False,
        show_progress=False,
    )
    notes = folder / "epochs.jsonl"
    seconds = time.process_time()
    for epoch, stats, _ in trainer:
        seconds, trained = time.process_time(), time.process_time() - seconds
        results = play(policy, game, envs, dict.fromkeys(game.opponents, N_EPOCH_GAMES))
        line = {"epoch": epoch, "seconds": trained, "loss": stats["update/loss"], "results": results}
        with notes.open("a") as file:
            file.write(json.dumps(line) + "\n")
        print(f"{game.title}, seed {seed}: {json.dumps(line)}", flush=True)
        seconds = time.process_time()
    epochs = {line["epoch"]: line for line in map(json.loads, notes.read_text().splitlines())}
    return {
        "results": play(policy, game, envs, game.opponents),
        "epochs": [epochs[epoch]["results"] for epoch in sorted(epochs)],
        "seconds": sum(line["seconds"] for line in epochs.values()),
    }


def key_of(name: str, seed: int) -> tuple[Any, ...]:
    """Return all that a run depends on; games that are not mirrored are kept without that field."""
    settings = {field: value for field, value in vars(GAMES[name]).items() if field != "mirrors" or value}
    return name, seed, settings


# ---- the page ----


def rows(runs: Mapping[tuple[str, int], Mapping[str, Any]]) -> Iterator[list[object]]:
    """Yield the cells of each game, seed, opponent and side."""
    for (name, seed), run in runs.items():
        for other, sides in run["results"].items():
            for side, (won, drawn, lost) in sides.items():
                share, seconds = f"{won / (won + drawn + lost):.3f}", f"{run['seconds']:,.0f}"
                yield [GAMES[name].title, seed, other, side, won, drawn, lost, share, seconds]


def curves(runs: Mapping[tuple[str, int], Mapping[str, Any]]) -> Iterator[str]:
    """Yield a line for each game, seed and opponent: shares won and lost of both sides, epoch by epoch."""
    for (name, seed), run in runs.items():
        for other in GAMES[name].opponents:
            counts = [np.sum([*results[other].values()], axis=0) for results in run["epochs"]]
            shares = " ".join(f"{won / N_EPOCH_GAMES:.2f}/{lost / N_EPOCH_GAMES:.2f}" for won, _, lost in counts)
            yield f"{name:13}{seed:2}  {other:8} {shares}"


def report(cache: Cache, seeds: Sequence[int]) -> list[str]:
    """Return the lines of the page."""
    keys = {(name, seed): key_of(name, seed) for name in GAMES for seed in seeds}
    runs = {pair: run for pair, key in keys.items() if (run := cache.get(*key)) is not None}
    columns = "game, seed, opponent, side, won, drawn, lost, share won, seconds"
    return [
        *pages.heading(
            "Board games by self-play",
            "python -m benchmarks.learning.self_play",
            [cache.commit(*keys[pair]) for pair in runs],
            packages=["pettingzoo"],
        ),
        "One DQN plays both sides of a turn-based game and learns from the moves of both. Without exploration it then "
        "plays each opponent, half of the games on each side. Seconds are CPU time of training on a machine that did "
        "other work, too.",
        "",
        "Seed 1 of Connect Four was trained with a discount of 0.99 and more exploration and won 0.62 against two-ply: "
        "it took half of the wins that it had at once. Other seeds are shown for the settings of today.",
        "",
        *(f"- {game.title}, {game.steps:,} moves. Bar: {game.bars}." for game in GAMES.values()),
        "",
        *(f"- `{name}`: {what}" for name, what in OPPONENTS.items()),
        "",
        *pages.table(columns.split(", "), rows(runs)),
        f"Shares won/lost of {N_EPOCH_GAMES} games after every epoch:",
        "",
        "```",
        *curves(runs),
        "```",
    ]


def main() -> None:
    """Train what is missing and write the page after every run."""
    parser = pages.arguments(__doc__)
    parser.add_argument("--games", nargs="+", choices=GAMES, default=list(GAMES))
    parser.add_argument("--seeds", nargs="+", type=int, default=[1])
    parser.add_argument("--runs", type=Path, default=Path("runs/self_play"), help="folder of checkpoints")
    parser.add_argument("--no-training", action="store_true", help="write the page of what there is")
    options = parser.parse_args()
    torch.set_num_threads(1)  # networks this small are fastest on one
    cache = Cache(pages.RESULTS / "self_play.jsonl")
    for name in options.games:
        for seed in options.seeds:
            key = key_of(name, seed)
            if cache.get(*key) is None and not options.no_training:
                folder = options.runs / f"{name}{seed}"
                folder.mkdir(parents=True, exist_ok=True)
                cache.put(learn(GAMES[name], seed, folder), *key)
    pages.write("self_play", report(cache, range(1, 101)))


if __name__ == "__main__":
    main()
