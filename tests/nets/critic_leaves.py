"""Observations with leaves of the critic alone, and networks that get them."""

from typing import Any

import torch
from gymnasium import spaces

from trainkit.nets import ActorCriticNetwork, Preprocess

SPACE = spaces.Dict({"obs": spaces.Box(-1, 1, (3,)), "state": spaces.Box(-1, 1, (4,)), "goal": spaces.Discrete(2)})


def features(n_rows: int, **changed: Any) -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(1)
    shapes = Preprocess(SPACE).shapes
    return {name: torch.randn(n_rows, *shapes[name], generator=generator) for name in SPACE.spaces} | changed


def check_that_a_leaf_of_the_critic_changes_the_value_and_no_output(options: dict[str, Any]) -> None:
    network = ActorCriticNetwork(Preprocess(SPACE).shapes, 2, hidden=(), critic_only=["state"], **options)
    network.actor.layers[0].weight.data.normal_(generator=torch.Generator().manual_seed(2))
    given = features(6)
    outputs, value = network(given)
    others, other_value = network(features(6, state=-given["state"]))
    torch.testing.assert_close(others, outputs, rtol=0, atol=0)
    assert (other_value != value).all()
    goals, _ = network(features(6, goal=-given["goal"]))
    assert (goals != outputs).any(dim=1).all()
