"""The whole distribution of the return that a Q-learner gives each action, for those who want to look at it."""

import numpy as np
import torch
from numpy.typing import NDArray

from trainkit.core.data import Obs
from trainkit.engine.device import to_device
from trainkit.policy.dqn import DQNPolicy
from trainkit.policy.values import Distributional


def return_distribution(policy: DQNPolicy, obs: Obs) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """Return the returns [K, A, W] and their probabilities [K, A, W] for raw observations [K, ...], without noise.

    Quantiles are sorted, and all as likely. A value without a `distribution` has one return, the expected one, W = 1,
    which is certain.
    """
    policy.enter(training=False)
    value = policy.value
    with torch.no_grad():
        numbers = policy._predict(to_device(obs, policy.device), None).numbers
        if isinstance(value, Distributional):
            returns, probability = value.distribution(numbers)
        else:
            returns = value.mean(numbers).unsqueeze(-1)
            probability = torch.ones_like(returns)
    return returns.cpu().numpy(), probability.cpu().numpy()
