"""Policies that learn by CUDA graphs on the pretend device, and what must equal torch."""

import copy
from typing import Any

import numpy as np
import torch
from torch import Tensor

from tests.helpers.learning import (
    made,
)
from trainkit import (
    ConservativePenalty,
    DQNPolicy,
    MaxBackup,
)

DEVICE = "pretend"
N_WARM_UPS = 3  # calls before a recording
NAN = np.full(16, np.nan, np.float32)


def load_all(policy: DQNPolicy) -> None:
    policy.load_training_state(copy.deepcopy(policy.training_state()))


def load_twice(policy: DQNPolicy) -> None:
    load_all(policy)
    load_all(policy)


def load_weights(policy: DQNPolicy) -> None:
    policy.load_weights({name: 0.5 * tensor for name, tensor in policy.state_dict().items()})


def assign(policy: DQNPolicy) -> None:
    state = {name: 0.5 * tensor for name, tensor in policy.state_dict().items()}
    policy.load_state_dict(state, assign=True)


def seed_again(policy: DQNPolicy) -> None:
    policy.start_streams(7)


def rewind_the_stream(policy: DQNPolicy) -> None:
    policy.load_streams_state(made(noisy=True).streams_state())


def move_the_target(policy: DQNPolicy) -> None:
    for parameter in policy.target_network.parameters():
        parameter.data = 0.5 * parameter.data


def replace_the_target(policy: DQNPolicy) -> None:
    policy.target_network = copy.deepcopy(policy.network).requires_grad_(False)


def observe(policy: DQNPolicy) -> None:
    policy.preprocess.normalizers[0].observe(torch.arange(20.0, device=policy.device).view(5, 4))
    policy.preprocess.normalizers[0].fold()


def forget_gradients(policy: DQNPolicy) -> None:
    policy.zero_grad()


IN_PLACE = [load_weights, rewind_the_stream, observe, forget_gradients]


def freeze_the_encoder(policy: DQNPolicy) -> None:
    policy.network.encoder.requires_grad_(False)  # type: ignore[operator, union-attr]


def charge_more(policy: DQNPolicy) -> None:
    policy.penalty = ConservativePenalty(1.0)


def follow_otherwise(policy: DQNPolicy) -> None:
    policy.backup = MaxBackup()


OTHER_PARTS = [freeze_the_encoder, charge_more, follow_otherwise]
ELSEWHERE = [load_all, load_twice, assign, seed_again, move_the_target, replace_the_target, *OTHER_PARTS]


class Curious(MaxBackup):
    """A backup that reads a number."""

    def __call__(self, *given: Any) -> tuple[Tensor, Tensor]:
        after, reward = super().__call__(*given)
        return after, reward * 2 if float(reward.sum()) > 0 else reward
