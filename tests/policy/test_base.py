"""What every policy has: predict, spaces, random streams."""

from typing import Any

import numpy as np
import pytest
import torch
from gymnasium import Space, spaces

from trainkit import ConfigError, Policy, SpaceMismatchError
from trainkit.core import tree
from trainkit.policy import ActOutput

BOX = spaces.Box(-1, 1, (2,), np.float32)
PAIR = spaces.Discrete(2)


class Counting(Policy):
    """Act by the row's number, and remember what was seen."""

    def act(self, obs: Any, *, explore: bool = False, **_: Any) -> ActOutput:
        self.seen, self.explored = obs, explore
        return ActOutput(np.arange(len(tree.first_leaf(obs))), {}, None)


def counting(space: Space[Any] | None) -> Counting:
    return Counting(observation_space=space, device="cpu", seed=0)


ONES = [
    pytest.param(BOX, np.zeros(2), id="vector"),
    pytest.param(spaces.Box(-1, 1, ()), 0.5, id="scalar"),
    pytest.param(spaces.Box(0, 255, (8, 8, 3), np.uint8), np.zeros((8, 8, 3), np.uint8), id="image"),
    pytest.param(spaces.Discrete(5), 3, id="discrete"),
    pytest.param(spaces.MultiDiscrete([2, 3]), [1, 2], id="digits"),
    pytest.param(spaces.MultiBinary(3), np.zeros(3, np.int8), id="bits"),
    pytest.param(spaces.Dict({"b": BOX, "a": PAIR}), {"b": np.zeros(2), "a": 1}, id="dict"),
    pytest.param(spaces.Tuple([PAIR, BOX]), (1, np.zeros(2)), id="tuple"),
    pytest.param(spaces.Dict({"z": PAIR, "m": spaces.Tuple([BOX])}), {"z": 1, "m": (np.zeros(2),)}, id="nested"),
]


@pytest.mark.parametrize(("space", "one"), ONES)
def test_predict_takes_one_observation_and_gives_one_action(space: Space[Any], one: Any) -> None:
    assert np.ndim(counting(space).predict(one)) == 0


@pytest.mark.parametrize(("space", "one"), ONES)
def test_predict_takes_many_observations_and_gives_as_many_actions(space: Space[Any], one: Any) -> None:
    many = tree.map_tree(lambda leaf: np.stack([np.asarray(leaf)] * 3), one)

    assert counting(space).predict(many).tolist() == [0, 1, 2]


TWO = spaces.Dict({"a": BOX, "b": spaces.Tuple([PAIR])})


@pytest.mark.parametrize(
    ("space", "wrong", "needed", "got"),
    [
        (BOX, np.zeros(3), "(2,)", "(3,)"),
        (BOX, np.zeros((2, 3)), "(2,)", "(2, 3)"),
        (BOX, np.zeros((2, 2, 2)), "(2,)", "(2, 2, 2)"),
        (BOX, 1.0, "(2,)", "()"),
        (BOX, [[1, 2], [3]], "(2,)", "[[1, 2], [3]]"),
        (BOX, {"a": 1}, "(2,)", "{'a': 1}"),
        (PAIR, np.zeros((2, 2), int), "()", "(2, 2)"),
        (TWO, {"a": np.zeros(2), "b": ([0, 1],)}, "{'a': (2,), 'b': ((),)}", "{'a': (2,), 'b': ((2,),)}"),
        (TWO, {"a": np.zeros((3, 2)), "b": ([0] * 4,)}, "{'a': (2,), 'b': ((),)}", "{'a': (3, 2), 'b': ((4,),)}"),
        (TWO, {"a": np.zeros(2)}, "{'a': (2,), 'b': ((),)}", "{'a': array([0., 0.])}"),
        (TWO, np.zeros(2), "{'a': (2,), 'b': ((),)}", "array([0., 0.])"),
    ],
)
def test_predict_refuses_what_is_neither_one_observation_nor_many(
    space: Space[Any], wrong: Any, needed: str, got: str
) -> None:
    with pytest.raises(SpaceMismatchError) as caught:
        counting(space).predict(wrong)
    message = str(caught.value)
    assert message.startswith(f"Counting.predict needs one observation of shape {needed}, or K of them with K")
    assert f", got {got}" in message


def test_predict_hands_explore_on_and_is_greedy_by_default() -> None:
    policy = counting(BOX)

    policy.predict(np.zeros(2))
    assert policy.explored is False
    policy.predict(np.zeros(2), explore=True)
    assert policy.explored is True


def test_predict_needs_to_know_the_space() -> None:
    with pytest.raises(ConfigError, match=r"Counting.predict needs an observation_space: give one at construction"):
        counting(None).predict(np.zeros(2))


def test_a_policy_must_say_how_it_acts() -> None:
    with pytest.raises(TypeError, match="Policy must define act"):
        Policy(device="cpu").act(np.zeros((1, 2)))


def test_a_policy_without_spaces_takes_those_of_its_collector() -> None:
    policy = counting(None)
    policy.check_spaces(BOX, PAIR)

    assert policy.observation_space == BOX
    assert policy.action_space == PAIR


def test_mismatches_of_both_spaces_are_named_at_once() -> None:
    policy = Policy(observation_space=BOX, action_space=PAIR, device="cpu")
    with pytest.raises(SpaceMismatchError) as refusal:
        policy.check_spaces(spaces.Discrete(3), spaces.Discrete(4))

    first, second = str(refusal.value).splitlines()
    remedy = "make one fit the other, for example by the wrappers that training had"
    assert first == f"Policy.observation_space is {BOX}, the environments' is Discrete(3): {remedy}"
    assert second == f"Policy.action_space is Discrete(2), the environments' is Discrete(4): {remedy}"
    assert policy.observation_space == BOX


def test_a_policy_stores_nothing_extra_unless_it_says_so() -> None:
    assert Policy(device="cpu").extras_spec == {}


def streams(policy: Policy) -> Any:
    state = policy.streams_state()
    return state["rng"]["state"], state["noise"]["state"].tolist()


def test_streams_follow_the_seed() -> None:
    one, same, other = (Policy(device="cpu", seed=seed) for seed in (1, 1, 2))

    assert streams(one) == streams(same)
    assert streams(one)[0] != streams(other)[0]
    assert streams(one)[1] != streams(other)[1]


def test_without_a_seed_streams_differ_and_wait_for_one() -> None:
    one, other = Policy(device="cpu"), Policy(device="cpu")

    assert streams(one) != streams(other)
    assert not one.is_seeded
    one.seed(1)
    assert one.is_seeded
    assert streams(one) == streams(Policy(device="cpu", seed=1))


def test_seed_0_is_a_seed() -> None:
    assert Policy(device="cpu", seed=0).is_seeded
    assert streams(Policy(device="cpu", seed=0)) == streams(Policy(device="cpu", seed=0))


def test_saved_streams_continue_where_they_were() -> None:
    one, other = Policy(device="cpu", seed=1), Policy(device="cpu", seed=2)
    one.rng.random(5)
    torch.rand(5, generator=one.generator)
    other.load_streams_state(one.streams_state())

    assert streams(one) == streams(other)
