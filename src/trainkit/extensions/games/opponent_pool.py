"""A pool of opponents: frozen copies of a learning policy, against which it plays (fictitious self-play)."""

from collections import deque
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from numpy.typing import NDArray

from trainkit.collector import Collector
from trainkit.core.errors import Checks, ConfigError
from trainkit.core.signatures import checked
from trainkit.core.stats import CollectStats
from trainkit.extensions.games.game_behavior import GameEpisode
from trainkit.extensions.games.multi_agent_policy import MultiAgentPolicy
from trainkit.extensions.games.tournament import lead_of
from trainkit.trainer.callbacks.base import Callback

if TYPE_CHECKING:
    from trainkit.collector import Episode
    from trainkit.trainer.base import Trainer

_N_RECENT = 100  # games over which win rates are taken


@checked
class OpponentPool(Callback):
    """Frozen copies of a policy, its opponents in training; the callback and the `policy_mapping` of a run.

    In every game the policy plays one agent, drawn uniformly, and one opponent, drawn from the pool, plays all others;
    while the pool is empty the policy plays them, too. Copies are added in training, with the policy's clock in their
    names, such as "main-10000", and the oldest leave a full pool; games in progress keep them. A resumed run has the
    same pool.

    Args:
        name: of the policy.
        size: of the pool.
        add_every: steps of the policy's clock from one copy to the next.
        add_at_win_rate: instead of it, add a copy when the policy has won this share of its last 100 games, draws
            counting one half; the first is added before training.
        draw: the opponent of a game. "uniform"; the "latest" copy; or "hard", with probabilities proportional to
            (1 - win rate)^2 against each over the last 100 games (Vinyals et al., 2019, prioritized fictitious
            self-play), 0.5 where none was played.
        evaluate_against: name of the policy that plays all other agents in evaluations; None: the pool, as in training.
        folder: where each copy is saved for `load_policy`, under its name; None saves it in checkpoints alone.
    """

    episodes = "training"

    def __init__(
        self,
        name: str,
        *,
        size: int = 8,
        add_every: int | None = None,
        add_at_win_rate: float | None = None,
        draw: Literal["uniform", "latest", "hard"] = "uniform",
        evaluate_against: str | None = None,
        folder: str | Path | None = None,
    ) -> None:
        with Checks("OpponentPool") as checks:
            checks.require(isinstance(name, str), f".name must be the name of a policy, got {name!r}")
            checks.integer("size", size, low=1)
            one = (add_every is None) != (add_at_win_rate is None)
            checks.require(one, " needs exactly one of add_every and add_at_win_rate")
            checks.integer("add_every", add_every, low=1, optional=True)
            checks.number("add_at_win_rate", add_at_win_rate, low=0, high=1, above_low=True, optional=True)
            checks.one_of("draw", draw, ["uniform", "latest", "hard"])
            named = evaluate_against is None or isinstance(evaluate_against, str)
            rule = f".evaluate_against must be the name of a policy or None, got {evaluate_against!r}"
            checks.require(named, rule)
        self.name, self.size, self.draw = name, size, draw
        self.add_every, self.add_at_win_rate = add_every, add_at_win_rate
        self.evaluate_against = evaluate_against
        self.folder = None if folder is None else Path(folder)
        self.opponents: list[str] = []
        self._agents: tuple[str, ...] = ()
        self._results: dict[str, deque[float]] = {}  # 1, 0.5 or 0 of the last games against each
        self._recent: deque[float] = deque(maxlen=_N_RECENT)  # of the last games since a copy was added
        self._games: dict[int, list[tuple[str, float]]] = {}  # (policy, return) of the agents of games that ended

    # ---- who plays ----

    def __call__(self, agent: str, episode: GameEpisode) -> str:
        """Return the policy of an agent, as a `policy_mapping`."""
        draws = np.random.default_rng(episode.seed).random(2)  # the same for all agents of a game
        agents = self._agents or (agent,)
        own = agents[int(draws[0] * len(agents))]
        if agent == own:
            return self.name
        if episode.in_evaluation and self.evaluate_against is not None:
            return self.evaluate_against
        if not self.opponents:
            return self.name
        share = np.cumsum(self.probabilities())
        return self.opponents[int(np.searchsorted(share, draws[1] * share[-1], side="right"))]

    def probabilities(self) -> NDArray[np.float64]:
        """Return the probability of each opponent, in the order of `opponents`."""
        n_opponents = len(self.opponents)
        weights: NDArray[np.float64] = np.ones(n_opponents)
        if self.draw == "latest":
            weights = np.eye(n_opponents)[-1]
        elif self.draw == "hard":
            weights = np.array([(1.0 - self.win_rate(name)) ** 2 for name in self.opponents])
            weights = weights if weights.any() else np.ones(n_opponents)
        shares: NDArray[np.float64] = weights / weights.sum()
        return shares

    def win_rate(self, name: str) -> float:
        """Return the share of the last games against an opponent that the policy won; 0.5 where none was played."""
        results = self._results.get(name, ())
        return float(np.mean(results)) if results else 0.5

    # ---- in a run ----

    def check(self, trainer: "Trainer[Any]") -> None:
        """Raise a `ConfigError` for a run without the policy, or whose mapping is another."""
        policy: Any = trainer.policy
        if not isinstance(policy, MultiAgentPolicy) or self.name not in policy.policies:
            raise ConfigError(
                f"OpponentPool({self.name!r}) needs a MultiAgentPolicy with that policy, got {policy!r}: "
                f"MultiAgentPolicy({{{self.name!r}: ...}}, policy_mapping=pool)"
            )
        if policy.policy_mapping is not self:
            raise ConfigError(
                "OpponentPool chooses who plays: MultiAgentPolicy(..., policy_mapping=pool), with the same pool as in "
                "callbacks"
            )
        if not isinstance(trainer.train_collector, Collector):
            raise ConfigError("OpponentPool needs games to train in, of a Collector: an offline run has none")
        self._agents = trainer.train_collector.envs.agents

    def on_train_start(self, trainer: "Trainer[Any]") -> None:
        if self.add_at_win_rate is not None and not self.opponents:
            self.add(trainer.policy)

    def on_episode_end(self, trainer: "Trainer[Any]", episode: "Episode") -> None:
        game = episode.env_id // len(self._agents)
        self._games.setdefault(game, []).append((episode.policy, episode.total_reward))

    def on_episode_created(self, trainer: "Trainer[Any]", episode: "Episode") -> None:
        self._count_game(episode.env_id // len(self._agents))

    def on_collect_end(self, trainer: "Trainer[Any]", stats: CollectStats) -> None:
        for game in list(self._games):
            self._count_game(game)
        if self._is_due(trainer.policy):
            self.add(trainer.policy)

    def on_epoch_end(self, trainer: "Trainer[Any]", result: Any) -> None:
        trainer.log("pool/size", len(self.opponents), "last")
        if self._recent:
            trainer.log("pool/win_rate", float(np.mean(self._recent)), "last")

    def add(self, policy: MultiAgentPolicy) -> str:
        """Add a copy of the policy as it is now, remove the oldest of a full pool, and return the copy's name."""
        name = f"{self.name}-{policy.clocks[self.name].env_step}"
        if name in self.opponents:
            return name
        policy.add_copy(name, self.name)
        if self.folder is not None:
            policy[name].save(self.folder / name)
        self.opponents.append(name)
        self._recent.clear()
        if len(self.opponents) > self.size:
            oldest = self.opponents.pop(0)
            self._results.pop(oldest, None)
            policy.remove_policy(oldest)
        return name

    def _is_due(self, policy: MultiAgentPolicy) -> bool:
        if self.add_at_win_rate is not None:
            return len(self._recent) == _N_RECENT and float(np.mean(self._recent)) >= self.add_at_win_rate
        assert self.add_every is not None, "one of the two is given"
        newest = int(self.opponents[-1].rpartition("-")[2]) if self.opponents else 0
        return policy.clocks[self.name].env_step // self.add_every > newest // self.add_every

    def _count_game(self, game: int) -> None:
        """Count a game that has ended: who got the larger mean return."""
        returns: dict[str, list[float]] = {}
        for name, total in self._games.pop(game, []):
            returns.setdefault(name, []).append(total)
        own = returns.pop(self.name, None)
        for name, theirs in returns.items() if own is not None else ():
            lead = lead_of(float(np.mean(own or [0.0])), float(np.mean(theirs)))
            result = 0.5 + 0.5 * float(np.sign(lead))
            self._recent.append(result)
            self._results.setdefault(name, deque(maxlen=_N_RECENT)).append(result)

    # ---- saving and resuming ----

    def state_dict(self) -> dict[str, Any]:
        return {
            "opponents": list(self.opponents),
            "results": {name: list(results) for name, results in self._results.items()},
            "recent": list(self._recent),
            "games": {str(game): [list(pair) for pair in pairs] for game, pairs in self._games.items()},
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.opponents = list(state["opponents"])
        self._results = {name: deque(own, maxlen=_N_RECENT) for name, own in state["results"].items()}
        self._recent = deque(state["recent"], maxlen=_N_RECENT)
        self._games = {int(game): [(name, total) for name, total in own] for game, own in state["games"].items()}
