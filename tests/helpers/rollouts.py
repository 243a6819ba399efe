"""Rollouts to learn from by hand, and a network that looks its answers up."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from gymnasium import Space, spaces
from numpy.typing import NDArray
from torch import Tensor, nn

from tests.helpers.learning import FOUR_NUMBERS, Spaces, observations
from trainkit import PPOPolicy
from trainkit.buffer import Rollout
from trainkit.core import tree
from trainkit.nets.actor_critic_networks import ActorCriticOutput
from trainkit.policy.on_policy import OnpolicyPolicy

PLACE = spaces.Box(0, 100, (1,), np.float32)  # the observation is the row's index


class Table(nn.Module):
    """Give row i of a table of logits and of values for observation i, and keep what was asked."""

    def __init__(self, logits: Any, values: Sequence[float]) -> None:
        super().__init__()
        self.logits = nn.Parameter(torch.as_tensor(logits, dtype=torch.float32).clone())  # [S, A]
        self.values = nn.Parameter(torch.as_tensor(values, dtype=torch.float32).clone())  # [S]
        self.requested: list[list[int]] = []

    def forward(self, features: Tensor) -> ActorCriticOutput:
        place = features[:, 0].long()
        self.requested.append(place.tolist())
        return ActorCriticOutput(self.logits[place], self.values[place])


def made(kind: Any = PPOPolicy, space: Any = FOUR_NUMBERS, action_space: Any = None, **options: Any) -> Any:
    """Make a small policy by `for_envs`."""
    at = Spaces(space) if action_space is None else Spaces(space, action_space)
    return kind.for_envs(at, **{"hidden": (8,), "device": "cpu", "seed": 0} | options)


def ended_rows(
    *, reward: Sequence[float], value: Sequence[float], log_prob: Sequence[float], action: Sequence[int], **columns: Any
) -> Rollout:
    """Make B episodes of one row: returns are the rewards, advantages the rewards less the stored values."""
    n = len(reward)
    own: dict[str, Any] = {
        "obs": np.arange(n, dtype=np.float32)[None, :, None],
        "action": np.array([action]),
        "reward": np.array([reward], np.float32),
        "terminated": np.ones((1, n), np.bool_),
        "ended": np.ones((1, n), np.bool_),
        "n_rows": np.ones(n, np.int64),
        "last_rows": np.zeros(0, np.int64),
        "last_obs": np.zeros((0, 1), np.float32),
        "extras": {"log_prob": np.array([log_prob], np.float32), "value": np.array([value], np.float32)},
    }
    return Rollout(**own | columns)


def played(
    policy: OnpolicyPolicy, space: Space[Any], n_rows: Sequence[int] = (5, 3, 6), *, seed: int = 0, **columns: Any
) -> Rollout:
    """Let a policy act on made-up observations, [N] rows each, all cut at their ends but environment 1's."""
    n_steps, n_envs = max(n_rows), len(n_rows)

    def folded(column: NDArray[Any]) -> NDArray[Any]:
        return column.reshape(n_steps, n_envs, *column.shape[1:])

    rng = np.random.default_rng(seed)
    obs = observations(space, n_steps * n_envs, seed)
    output = policy.act(obs, explore=True)
    counts = np.array(n_rows)
    ended = np.zeros((n_steps, n_envs), np.bool_)
    ended[counts - 1, np.arange(n_envs)] = True
    terminated = ended & (np.arange(n_envs) == 1)
    last_rows = np.flatnonzero(ended & ~terminated)
    own: dict[str, Any] = {
        "obs": tree.map_tree(folded, obs),
        "action": folded(output.action),
        "reward": rng.normal(size=(n_steps, n_envs)).astype(np.float32),
        "terminated": terminated,
        "ended": ended,
        "n_rows": counts,
        "last_rows": last_rows,
        "last_obs": observations(space, len(last_rows), seed + 1),
        "extras": {name: folded(column) for name, column in output.extras.items()},
    }
    return Rollout(**own | columns)
