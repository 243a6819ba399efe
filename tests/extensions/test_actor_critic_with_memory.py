"""Actor-critics of parts with a memory."""

import pytest

import trainkit as tk
from tests.helpers.learning import FOUR_NUMBERS, Spaces
from tests.helpers.sac import PUSH
from trainkit.policy import JointPass


def test_critics_with_a_memory_cannot_be_called_on_two_batches() -> None:
    with pytest.raises(tk.ConfigError, match="but CriticNetwork has a memory: give critic_pass=SeparatePasses"):
        tk.ActorCriticPolicy.for_envs(
            Spaces(FOUR_NUMBERS, PUSH), hidden=(8,), recurrent="gru", critic_pass=JointPass(), target="none"
        )
