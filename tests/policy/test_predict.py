"""`predict`: an action for one observation or many, and on request what it was chosen by."""

from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
from gymnasium import spaces

import trainkit as tk
from tests.helpers.learning import FOUR_NUMBERS, MASKED, Spaces, observations
from tests.helpers.of_extensions import learners_of_extensions

BOX = spaces.Box(-2.0, 2.0, (2,), np.float32)
CHOICE = spaces.Discrete(3)
CASES: list[Any] = [
    pytest.param(tk.DQNPolicy, CHOICE, {}, {"q_values": (3,), "action_prob": ()}, id="dqn"),
    pytest.param(tk.DQNPolicy, CHOICE, {"noisy": True}, {"q_values": (3,), "action_prob": ()}, id="noisy"),
    pytest.param(
        tk.DQNPolicy, CHOICE, {"value": tk.ImplicitQuantileValue(4)}, {"q_values": (3,), "action_prob": ()}, id="iqn"
    ),
    pytest.param(
        tk.PPOPolicy, CHOICE, {}, {"probability": (3,), "value": (), "log_prob": (), "action_prob": ()}, id="ppo"
    ),
    pytest.param(
        tk.A2CPolicy, BOX, {}, {"numbers": (2,), "value": (), "log_prob": (), "policy_action": (2,)}, id="a2c of a Box"
    ),
    pytest.param(tk.SACPolicy, BOX, {}, {"numbers": (4,)}, id="sac"),
    *(
        pytest.param(*case, learners_of_extensions("EXTRAS")[name], id=name)
        for name, case in learners_of_extensions().items()
    ),
]


def made(kind: Any, action_space: Any, space: Any = FOUR_NUMBERS, **options: Any) -> Any:
    return kind.for_envs(Spaces(space, action_space), **{"hidden": (8,), "device": "cpu", "seed": 0} | options)


@pytest.mark.one_of_each
@pytest.mark.parametrize("explore", [False, True])
@pytest.mark.parametrize(("kind", "action_space", "options", "shapes"), CASES)
def test_extras_have_the_shape_of_the_call_and_change_no_action(
    kind: Any, action_space: Any, options: Any, shapes: Any, explore: bool
) -> None:
    policy, plain = made(kind, action_space, **options), made(kind, action_space, **options)
    obs = observations(FOUR_NUMBERS, 7)
    for rows, lead in ((obs, (7,)), (obs[0], ())):
        action, extra = policy.predict(rows, explore=explore, return_extra=True)
        np.testing.assert_array_equal(action, plain.predict(rows, explore=explore))
        expected = dict(shapes)
        if explore and options.get("noisy"):
            del expected["action_prob"]  # noise chooses too, so no probability can be told
        assert {name: column.shape for name, column in extra.items()} == {k: lead + v for k, v in expected.items()}
        assert all(type(column) is np.ndarray or np.isscalar(column) for column in extra.values())


def test_values_and_probabilities_are_those_of_the_action() -> None:
    policy = made(tk.DQNPolicy, CHOICE, exploration=tk.EpsilonGreedy(0.3))
    obs = observations(FOUR_NUMBERS, 200)
    greedy, extra = policy.predict(obs, return_extra=True)
    np.testing.assert_array_equal(extra["q_values"].argmax(axis=1), greedy)
    np.testing.assert_array_equal(extra["action_prob"], 1.0)
    action, extra = policy.predict(obs, explore=True, return_extra=True)
    np.testing.assert_allclose(extra["action_prob"], np.where(action == greedy, 0.8, 0.1))


def test_a_drawn_actions_probability_is_that_of_its_log_probability() -> None:
    policy = made(tk.PPOPolicy, CHOICE, MASKED)
    obs = observations(MASKED, 50)
    action, extra = policy.predict(obs, explore=True, return_extra=True)
    np.testing.assert_allclose(extra["probability"].sum(axis=1), 1.0, rtol=1e-6)
    assert (extra["probability"][obs["action_mask"] == 0] == 0.0).all()
    chosen = extra["probability"][np.arange(50), action]
    np.testing.assert_allclose(extra["action_prob"], chosen, rtol=1e-5)
    np.testing.assert_allclose(np.exp(extra["log_prob"]), chosen, rtol=1e-5)


def test_extras_of_a_policy_without_reasons_are_its_columns() -> None:
    policy = tk.RandomPolicy(CHOICE, seed=0)
    policy.check_spaces(FOUR_NUMBERS, CHOICE)
    action, extra = policy.predict(np.zeros(4), return_extra=True)
    assert int(action) in range(3)
    assert float(extra["action_prob"]) == pytest.approx(1 / 3)


def test_a_flag_that_is_none_is_rejected() -> None:
    with pytest.raises(tk.ConfigError, match="return_extra"):
        made(tk.DQNPolicy, CHOICE).predict(np.zeros(4), return_extra="all")


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_an_observation_that_is_not_finite_is_named(value: float) -> None:
    policy = made(tk.DQNPolicy, CHOICE)
    obs = observations(FOUR_NUMBERS, 2)
    obs[1, 2] = value
    with pytest.raises(tk.SpaceMismatchError, match=r"DQNPolicy.predict needs finite observations, got array\("):
        policy.predict(obs)


@pytest.mark.parametrize("from_envs", [True, False], ids=["make_envs", "one environment"])
def test_actions_of_a_discrete_space_begin_at_its_start_after_loading_too(tmp_path: Path, from_envs: bool) -> None:
    class Line(gym.Env[Any, Any]):
        observation_space = gym.spaces.Box(-1, 1, (2,))
        action_space = gym.spaces.Discrete(3, start=-1)

        def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
            return np.zeros(2, np.float32), {}

        def step(self, action: Any) -> Any:
            return np.zeros(2, np.float32), float(action == -1), False, True, {}

    policy = tk.DQNPolicy.for_envs(tk.make_envs(Line, 1) if from_envs else Line(), hidden=(4,), seed=1, device="cpu")
    with torch.no_grad():
        for head, own in policy.network.named_parameters():
            own.zero_()
            if head.endswith("bias") and own.shape == (3,):
                own[0] = 1.0  # of action -1
    obs = np.zeros((5, 2), np.float32)
    policy.save(tmp_path / "policy")
    for one in (policy, tk.load_policy(tmp_path / "policy", device="cpu")):
        assert one.act(obs).action.tolist() == [0] * 5
        assert one.predict(obs).tolist() == [-1] * 5
        assert Line.action_space.contains(one.predict(obs[0]))
        assert tk.evaluate(one, Line, n_episode=2, seed=1).returns.mean == 1.0
        explored = {int(one.predict(obs[0], explore=True)) for _ in range(100)}
        assert explored <= {-1, 0, 1}
