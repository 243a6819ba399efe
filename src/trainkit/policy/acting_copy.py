"""Where a Q-learner's action values for acting are computed: by its network, or by a copy of an extension."""

from typing import Literal, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from trainkit.core.data import Obs
from trainkit.core.errors import Checks
from trainkit.core.extensions import table
from trainkit.policy.values import Value

ActOn = Literal["policy", "cpu"]  # with those of trainkit's own extensions
Parts = tuple[nn.Module, nn.Module, Value]  # preprocess, network, value


class ActingCopy(Protocol):
    """A copy of the parts that map observations to action values, which follows changes to them."""

    def check(self, subject: str, parts: Parts, blank: Obs, *, n_updates: int) -> None:
        """Raise `ConfigError` if the copy fails on a blank observation [1, ...]."""

    def supports(self, parts: Parts) -> bool:
        """Return whether these parts can be copied; if not, the policy acts itself."""

    def action_values(self, obs: Obs, noise: Tensor | None, *, n_updates: int) -> NDArray[np.float32]:
        """Return the expected returns [K, A] for raw observations [K, ...], by the parts last given to `supports`.

        Args:
            obs: as the environments returned them.
            noise: [K, noise_size] of noisy layers, on any device.
            n_updates: of the policy so far.
        """


def acting_copy(
    subject: str, act_on: str, device: torch.device, *, can_copy: bool, state_size: int
) -> ActingCopy | None:
    """Return the copy to act with, by a name in the `ACT_ON` of an extension; None if the policy acts itself.

    Args:
        subject: the policy's class, for errors.
        act_on: "policy", or the name.
        device: where the policy is.
        can_copy: whether the policy acts as a copy does.
        state_size: of the state that the policy carries.

    Raises:
        ConfigError: there is no such copy, or the policy cannot have one.
    """
    copies = table("ACT_ON")
    with Checks(subject) as checks:
        if checks.one_of("act_on", act_on, ["policy", *copies]) and act_on != "policy":
            rule = f".act_on must be 'policy' for a network that carries a state, which is not copied, got {act_on!r}"
            checks.require(state_size == 0, rule)
            rule = f".act_on must be 'policy', got {act_on!r}: it has its own action_values, which are not copied"
            checks.require(can_copy, rule)
    if act_on == "policy":
        return None
    copy: ActingCopy | None = copies[act_on].load()(device)
    return copy
