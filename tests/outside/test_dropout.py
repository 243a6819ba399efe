"""Layers that draw from torch's global generator."""

import logging
from typing import Any

import pytest
from torch import nn

import trainkit as tk


def network(layer: Any) -> nn.Module:
    return nn.Sequential(nn.Linear(4, 8), layer, nn.ReLU())


@pytest.mark.global_rng  # torch draws the weights of the encoder
@pytest.mark.parametrize(("layer", "is_named"), [(nn.Dropout(0.1), True), (nn.Dropout(0.0), False), (nn.Tanh(), False)])
def test_dropout_that_the_seed_does_not_cover_is_named(
    layer: Any, is_named: bool, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING):
        trainer = tk.presets.dqn(
            "CartPole-v1", encoder=network(layer), zoo=False, seed=1, evaluation=None, verbose=False
        )
    trainer.close()
    assert ("draw from torch's global generator while the policy learns" in caplog.text) == is_named
