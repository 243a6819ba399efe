"""On-policy learners see and act in every space there is a network and a distribution for."""

from typing import Any

import numpy as np
import pytest
import torch
from gymnasium import spaces

from tests.helpers.learning import FOUR_NUMBERS, MASKED, observations, parameters_of
from tests.helpers.rollouts import made, played
from trainkit import A2CPolicy, PPOPolicy, ReinforcePolicy
from trainkit.buffer import Rollout

KINDS = [PPOPolicy, A2CPolicy, ReinforcePolicy]
IMAGE = spaces.Box(0, 255, (40, 40, 1), np.uint8)
MIXED = spaces.Dict({"where": FOUR_NUMBERS, "what": spaces.Tuple((spaces.Discrete(3), spaces.MultiBinary(2)))})


@pytest.mark.one_of_each
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    "space",
    [FOUR_NUMBERS, IMAGE, MIXED, MASKED, spaces.Discrete(4)],
    ids=["vector", "image", "nested", "masked", "discrete"],
)
def test_it_learns_from_observations_of_any_space(kind: Any, space: Any) -> None:
    policy = made(kind, space)
    policy.check_spaces(space, policy.action_space)
    before = parameters_of(policy)
    results = list(policy.learn(played(policy, space), step=0, batch_size=7, repeat=2))
    assert len(results) == 4
    after = parameters_of(policy)
    assert not torch.equal(before["network.actor.layers.0.weight"], after["network.actor.layers.0.weight"])
    assert all(np.isfinite(list(policy.read_metrics().values())))


ACTIONS = [
    spaces.Discrete(2, start=3),
    spaces.MultiDiscrete([2, 3], start=[1, 5]),
    spaces.MultiBinary(3),
    spaces.Box(-1, 1, (2,)),
    spaces.Box(-1, 1, (2, 2)),
]


@pytest.mark.one_of_each
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("action_space", ACTIONS, ids=str)
def test_it_learns_to_act_in_any_space(kind: Any, action_space: Any) -> None:
    policy = made(kind, action_space=action_space, lr=0.05, normalize_advantage=False)
    policy.check_spaces(FOUR_NUMBERS, action_space)
    assert policy.predict(np.zeros(4)).shape == action_space.shape
    rollout = played(policy, FOUR_NUMBERS, [40, 40])
    action = rollout.action.reshape(80, -1).astype(np.float64)
    rollout.reward[:] = (action.sum(axis=1) - action.sum(axis=1).mean()).reshape(40, 2)  # the larger the better
    rollout.terminated[:] = rollout.ended[:] = True
    obs = observations(FOUR_NUMBERS, 500)
    before = policy.act(obs, explore=True).action.astype(np.float64).mean()
    extras = rollout.extras | {"value": np.zeros((40, 2), np.float32)}
    own = {name: getattr(rollout, name) for name in ("obs", "action", "reward", "terminated", "ended", "n_rows")}
    none = {"last_rows": np.zeros(0, np.int64), "last_obs": rollout.last_obs[:0]}
    list(policy.learn(Rollout(extras=extras, **own, **none), step=0, repeat=20))
    assert policy.act(obs, explore=True).action.astype(np.float64).mean() > before + 0.05


def test_images_share_a_torso_and_vectors_do_not() -> None:
    assert made(space=IMAGE).network.critic_torso is None
    assert made().network.critic_torso is not None
    assert made(shared=True).network.critic_torso is None
