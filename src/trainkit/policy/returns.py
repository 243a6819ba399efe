"""The whole distribution of the return that a Q-learner gives each action, for those who want to look at it."""

import numpy as np
import torch
from numpy.typing import NDArray

from trainkit.data import Obs
from trainkit.errors import ConfigError
from trainkit.policy.device import to_device
from trainkit.policy.dqn import DQNPolicy
from trainkit.policy.values import CategoricalValue, ReturnValue


def return_distribution(policy: DQNPolicy, obs: Obs) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """Return the returns [K, A, W] and their probabilities [K, A, W] for raw observations [K, ...], without noise.

    Of quantiles all are as likely, and they are sorted; of an expected value there is one return, and it is certain.
    """
    policy.enter(training=False)
    value = policy.value
    with torch.no_grad():
        numbers = policy._predict(to_device(obs, policy.device), None).numbers
        if isinstance(value, CategoricalValue):
            probability = torch.softmax(numbers, dim=-1)
            returns = value.support.expand_as(probability)
        elif isinstance(value, ReturnValue):
            returns = value.returns(numbers).sort(dim=-1).values
            probability = torch.full_like(returns, 1 / returns.shape[-1])
        else:
            raise ConfigError(f"nobody knows which returns the numbers of {type(value).__name__} stand for: draw them")
    return returns.cpu().numpy(), probability.cpu().numpy()
