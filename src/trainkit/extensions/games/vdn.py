"""Value decomposition: a team's value as the sum of its agents' values."""

from collections.abc import Mapping
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor

from trainkit.core.config import Part
from trainkit.core.data import ArraySpec
from trainkit.core.errors import Checks, ConfigError
from trainkit.core.signatures import checked
from trainkit.engine.loss import TensorBatch
from trainkit.extensions.games.lockstep import MOMENT
from trainkit.policy.backups import DoubleBackup, MaxBackup, QFunction, pick
from trainkit.policy.values import ExpectedValue, Value


@checked
class VDNBackup(Part):
    """The value of a team as the sum of its agents' values (value decomposition; Sunehag et al., 2018, equation 3).

    Needs the column "moment" of a `LockstepReplayBuffer`. With Q the sum of the chosen values of all agents of a
    moment, and y the sum of reward + discount * max q(next_obs), an agent's target is y - Q + its own value: its TD
    error is that of the team, y - Q, and the gradient of the sum of all agents' losses is that of the team's loss.
    Rewards of the agents are summed: a reward that all receive counts for each.

    Args:
        double: let the online network choose the next actions.
    """

    columns = (MOMENT,)
    column_specs: ClassVar[Mapping[str, ArraySpec]] = {MOMENT: ArraySpec(shape=(), dtype=np.dtype(np.int64))}

    def __init__(self, *, double: bool = True) -> None:
        with Checks("VDNBackup") as checks:
            checks.flag("double", double)
        self.double = double

    def __call__(self, online: QFunction, target: QFunction, batch: TensorBatch, value: Value) -> tuple[Tensor, Tensor]:
        if not isinstance(value, ExpectedValue) or value.rescale is not None:
            raise ConfigError(
                f"VDNBackup adds expected returns, which the outputs of {value!r} are not: use ExpectedValue()"
            )
        own = pick(online(batch.obs, batch.legal).outputs, batch.action).squeeze(1)
        after, reward = (DoubleBackup() if self.double else MaxBackup())(online, target, batch, value)
        returns = reward + torch.where(batch.discount > 0, batch.discount * after.squeeze(1), 0.0)
        moment = batch.extras[MOMENT]
        is_team = (moment.unsqueeze(1) == moment).to(own.dtype)  # [B, B]
        team_error = (is_team * (returns - own)).sum(dim=1)
        return torch.zeros_like(after), own + team_error
