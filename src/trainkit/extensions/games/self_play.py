"""Self-play of presets: the policy that learns controls one agent of each game, copies of it control the others."""

from typing import Any

from trainkit.core.errors import ConfigError
from trainkit.core.stats import CollectStats
from trainkit.envs import Envs
from trainkit.extensions.games.multi_agent_policy import MultiAgentPolicy
from trainkit.extensions.games.opponent_pool import OpponentPool
from trainkit.policy import RandomPolicy
from trainkit.presets.base import MAIN, RANDOM

_N_COPIES = 20  # that are added to the pool over a run


def against_copies(subject: str, policy: Any, envs: Envs, options: dict[str, Any], n_steps: int) -> MultiAgentPolicy:
    """Return a policy with a pool of its copies, and add the pool and the score to the trainer's options.

    Args:
        subject: of errors, the preset's option.
        policy: that learns.
        envs: games.
        options: of the trainer.
        n_steps: of the policy in the run.

    Raises:
        ConfigError: the environments are no games.
    """
    if not envs.agents:
        raise ConfigError(f"{subject} is for games of several agents, and {envs.name} has one: leave it out")
    pool = OpponentPool(MAIN, add_every=max(n_steps // _N_COPIES, 1), evaluate_against=RANDOM)
    options["callbacks"] = (*options.get("callbacks", ()), pool)
    options.setdefault("compute_score_fn", own_return)
    return MultiAgentPolicy({MAIN: policy, RANDOM: RandomPolicy(envs.action_space)}, pool)


def own_return(stats: CollectStats) -> float | None:
    """Return the mean return of the policy that learns by self-play, the score of its evaluations."""
    return stats.policies[MAIN].returns.mean if MAIN in stats.policies else None
