"""How much better an action was than expected: pure functions of [T, N] tensors, environments side by side.

`terminated` says that nothing follows. `truncated` says that something does, but in another rollout: an episode's time
limit, or the end of what was collected. Both end the sum; only the first drops the next value.
"""

import torch
from torch import Tensor

from trainkit.core.errors import Checks
from trainkit.core.signatures import checked


@checked
def gae(
    reward: Tensor,
    value: Tensor,
    next_value: Tensor,
    terminated: Tensor,
    truncated: Tensor,
    *,
    gamma: float,
    lam: float,
) -> Tensor:
    """Return the generalised advantage estimates [T, N] (Schulman et al., 2016, equation 16).

    td_t = reward_t + gamma * next_value_t - value_t, without the next value after a termination;
    advantage_t = td_t + gamma * lam * advantage_(t+1), without the rest where an episode ended.

    Args:
        reward: [T, N].
        value: [T, N], of the observations acted on.
        next_value: [T, N], of the true observations after; where a row terminated it counts nothing, whatever it is.
        terminated: [T, N], bool.
        truncated: [T, N], bool: cut off, by a time limit or by the end of the rollout.
        gamma: discount per step.
        lam: 0 is the one-step advantage, 1 the whole return less the value.
    """
    checks = Checks("gae")
    checks.number("gamma", gamma, low=0, high=1)
    checks.number("lam", lam, low=0, high=1)
    checks.done()
    advantage = reward + torch.where(terminated, 0.0, gamma * next_value) - value
    weight = gamma * lam * (~(terminated | truncated)).to(advantage.dtype)  # [T, N], of what follows
    n_summed = 1  # rows that are in each advantage, and as far reaches its weight: twice as many in each pass
    while n_summed < len(advantage):
        own, rest = advantage.tensor_split([-n_summed])
        own_weight, rest_weight = weight.tensor_split([-n_summed])
        longer = own + own_weight * advantage[n_summed:]
        advantage = torch.cat([torch.where(own_weight == 0, own, longer), rest])  # what an end cuts off may be nan
        weight = torch.cat([own_weight * weight[n_summed:], rest_weight])
        n_summed *= 2
    return advantage


@checked
def discounted_returns(
    reward: Tensor, next_value: Tensor, terminated: Tensor, truncated: Tensor, *, gamma: float
) -> Tensor:
    """Return reward_t + gamma * return_(t+1), [T, N]; where a row was cut off, its next value is what follows."""
    zero = torch.zeros_like(reward)
    follows = torch.where(truncated & ~terminated, next_value, zero)
    return gae(reward, zero, follows, terminated, truncated, gamma=gamma, lam=1.0)


def normalized(advantage: Tensor) -> Tensor:
    """Return advantages [..., B] with mean 0 and population deviation 1 over B; of one row, or of equal ones, 0."""
    deviation, mean = torch.std_mean(advantage, dim=-1, correction=0, keepdim=True)
    return (advantage - mean) / (deviation + 1e-8)
