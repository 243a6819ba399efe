"""Learn rock, paper, scissors by PPO, against itself and against a pool of its own copies.

    python -m benchmarks.learning.rock_paper_scissors [--seeds 1 2 3]

In self-play the policy chases its own latest mistake, and cycles. Against opponents drawn uniformly from all of its
copies it learns a smoothed best response to their average, which fictitious play drives to the equilibrium (1/3, 1/3,
1/3) (Brown, 1951; Fudenberg and Levine, 1998).
"""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

import trainkit as tk
from benchmarks import pages
from tests.helpers.matrix_games import MatrixGame

RESULTS = Path("benchmarks/results")
STEPS, EVERY = 40_000, 400  # rows of the policy, and between two copies
WAYS: dict[str, dict[str, Any]] = {
    "pool": {"has_pool": True, "entropy_weight": 0.3},
    "self-play": {"has_pool": False, "entropy_weight": 0.3},
    "self-play, smaller bonus": {"has_pool": False, "entropy_weight": 0.1},
}


def probabilities(policy: Any) -> NDArray[np.float64]:
    """Return the probabilities [3] of rock, paper and scissors."""
    shares: NDArray[np.float64] = policy.action_probability(np.zeros((1, 1), np.float32), explore=True)[0]
    return shares


def learn(seed: int, *, has_pool: bool, entropy_weight: float) -> dict[str, Any]:
    """Train, and return the policies [n, 3] every `EVERY` rows; with a pool, those in it at the end."""
    envs = tk.make_envs(MatrixGame, 32)
    main = tk.PPOPolicy.for_envs(envs, hidden=(16,), lr=5e-3, entropy_weight=entropy_weight, device="cpu")
    pool = tk.callbacks.OpponentPool("main", size=STEPS // EVERY + 1, add_every=EVERY, draw="uniform")
    mapping: Any = pool if has_pool else dict.fromkeys(envs.agents, "main")
    players = tk.MultiAgentPolicy({"main": main}, mapping)
    train = tk.Collector(players, envs, tk.MultiAgentBuffer({"main": tk.RolloutBuffer()}))
    own: list[NDArray[np.float64]] = []

    def note(trainer: Any, stats: Any) -> None:
        if players.clocks["main"].env_step // EVERY > len(own):
            own.append(probabilities(main))

    how: dict[str, Any] = {"step_per_collect": 128, "repeat_per_collect": 4, "verbose": False, "show_progress": False}
    callbacks = [*([pool] if has_pool else []), tk.on(collect_end=note)]
    n_rows = STEPS * 2 if has_pool else STEPS  # with a pool, half of them are of its copies
    trainer = tk.OnpolicyTrainer(
        players, train, max_epoch=1, step_per_epoch=n_rows, callbacks=callbacks, seed=seed, **how
    )
    trainer.run()
    copies = [probabilities(players[name]) for name in pool.opponents] if has_pool else own
    return {"policies": np.array(own).round(4).tolist(), "average": np.mean(copies, axis=0).round(4).tolist()}


def rows(runs: Mapping[tuple[str, int], Mapping[str, Any]]) -> Iterator[list[str]]:
    """Yield the cells of each way and seed."""
    for (way, seed), run in runs.items():
        policies, average = np.array(run["policies"]), np.array(run["average"])
        texts = [", ".join(f"{share:.3f}" for share in shares) for shares in (average, policies[-1])]
        error, largest = abs(average - 1 / 3).max(), policies.max(axis=1).mean()
        n_changes = int(np.count_nonzero(np.diff(policies.argmax(axis=1))))
        cells = [f"{way}, {WAYS[way]['entropy_weight']}", str(seed), texts[0], f"{error:.3f}", texts[1]]
        yield [*cells, f"{largest:.2f}", str(n_changes)]


def main() -> None:
    """Train what is missing, and write the page."""
    parser = pages.arguments(__doc__)
    parser.add_argument("--seeds", nargs="+", type=int, default=[1, 2, 3])
    options = parser.parse_args()
    torch.set_num_threads(1)
    cache = pages.Cache(pages.RESULTS / "rock_paper_scissors.jsonl")
    keys = {(way, seed): (way, seed, WAYS[way], STEPS, EVERY) for way in WAYS for seed in options.seeds}
    for (way, seed), key in keys.items():
        if cache.get(*key) is None:
            cache.put(learn(seed, **WAYS[way]), *key)
            print(way, seed, cache.get(*key), flush=True)
    runs = {pair: run for pair, key in keys.items() if (run := cache.get(*key)) is not None}
    columns = "opponents, seed, average policy, largest error, last policy, mean largest probability, new leaders"
    commits = [cache.commit(*key) for key in keys.values()]
    command = "python -m benchmarks.learning.rock_paper_scissors"
    pages.write(
        "rock_paper_scissors",
        [
            *pages.heading("Rock, paper, scissors: a pool of opponents", command, commits),
            f"PPO with a network of 16 hidden units, for {STEPS:,} games of the learner. The entropy bonus stands "
            f"after the kind of opponents. The average is over all copies in the pool, of one every {EVERY} games, and "
            "in self-play over the policies at the same times. New leaders counts how often another action became the "
            "most probable. Bar: with a pool the average is within 0.05 of (1/3, 1/3, 1/3).",
            "",
            *pages.table(columns.split(", "), rows(runs)),
        ],
    )


if __name__ == "__main__":
    main()
