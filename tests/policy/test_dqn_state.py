"""The Q-learner's seeds and saved states: what is drawn again, what continues, bit by bit."""

import copy
from typing import Any

import pytest
import torch

from tests.helpers.learning import (
    PARTS,
    assert_same,
    batch_of,
    made,
    parameters_of,
    small_net,
)
from trainkit import (
    DQNPolicy,
    EpsilonGreedy,
    Target,
)


def play(policy: DQNPolicy) -> list[int]:
    """Act on a hundred rows with exploration."""
    policy.exploration = EpsilonGreedy(0.5) if isinstance(policy.exploration, EpsilonGreedy) else policy.exploration
    actions: list[int] = policy.act(batch_of(100).obs, explore=True).action.tolist()
    return actions


class TestSeeds:
    @pytest.mark.parametrize("options", PARTS)
    def test_the_same_seed_gives_the_same_weights_and_acts_and_another_gives_others(self, options: Any) -> None:
        one, same, other = (made(**options | {"seed": seed}) for seed in (1, 1, 2))

        assert_same(parameters_of(one), parameters_of(same))
        assert play(one) == play(same) != play(other)
        weights = [name for name in parameters_of(one) if "sigma" not in name]  # every sigma starts alike
        assert all((parameters_of(one)[name] != parameters_of(other)[name]).all() for name in weights)

    def test_a_seed_given_later_is_as_good_as_one_at_construction(self) -> None:
        early, late = made(seed=1), made(seed=None)
        assert not late.is_seeded
        late.seed(1)

        assert late.is_seeded
        assert_same(parameters_of(late), parameters_of(early))
        assert play(late) == play(early)

    def test_without_a_seed_policies_differ(self) -> None:
        one, other = made(seed=None), made(seed=None)

        assert (one.network.encoder.body.layers[0].weight != other.network.encoder.body.layers[0].weight).all()

    def test_seeding_brings_the_target_along(self) -> None:
        policy = made(seed=1)

        assert_same(list(parameters_of(policy.network).values()), list(parameters_of(policy.target_network).values()))

    def test_trained_weights_are_not_drawn_again(self) -> None:
        policy = made(seed=1)
        policy.update(batch_of(8), step=0)
        before = parameters_of(policy)
        policy.seed(2)

        assert_same(parameters_of(policy), before)

    def test_loaded_weights_are_not_drawn_again(self) -> None:
        policy, other = made(seed=None), made(seed=5)
        policy.load_state_dict(other.state_dict())
        policy.seed(2)

        assert_same(parameters_of(policy), parameters_of(other))

    def test_loaded_training_is_not_drawn_again(self) -> None:
        policy, other = made(seed=None), made(seed=5)
        other.update(batch_of(8), step=0)
        policy.load_training_state(copy.deepcopy(other.training_state()))
        policy.seed(2)

        assert_same(parameters_of(policy), parameters_of(other))

    def test_a_module_of_ones_own_is_ones_own_to_initialize(self) -> None:
        net = small_net((4, 3))
        before = parameters_of(net)
        DQNPolicy(net, device="cpu", seed=1).seed(2)

        assert_same(parameters_of(net), before)

    def test_updates_of_two_alike_are_bit_by_bit_alike(self) -> None:
        for options in PARTS:
            one, other = made(**options.values[0]), made(**options.values[0])
            for step in range(5):
                for policy in (one, other):
                    policy.update(batch_of(8, seed=step), step=step)
            assert_same(parameters_of(one), parameters_of(other))


# ---- continuing ----


def live(policy: DQNPolicy, steps: range) -> None:
    """Act and learn for some steps."""
    for step in steps:
        policy.act(batch_of(4, seed=step).obs, step=step, explore=True)
        policy.update(batch_of(8, seed=step), step=step)


class TestContinuing:
    @pytest.mark.fast_cases(3)
    @pytest.mark.parametrize("options", PARTS)
    def test_from_a_saved_state_is_bit_by_bit_the_same(self, options: Any) -> None:
        parts = {"target": Target(every=3), "exploration": EpsilonGreedy(0.5)} | options
        straight, resumed = made(**parts), made(**parts | {"seed": 9})
        live(straight, range(10))
        straight.read_metrics()
        live(resumed, range(4))  # it may have lived before
        resumed.read_metrics()
        resumed.load_training_state(copy.deepcopy(straight.training_state()))
        assert_same(resumed.training_state(), straight.training_state())

        live(straight, range(10, 20))
        live(resumed, range(10, 20))
        assert_same(resumed.training_state(), straight.training_state())
        assert play(resumed) == play(straight)
        assert resumed.read_metrics() == straight.read_metrics()

    def test_from_a_state_before_the_first_update_is_the_same_too(self) -> None:
        straight, resumed = made(), made(seed=9)
        resumed.load_training_state(copy.deepcopy(straight.training_state()))
        live(straight, range(5))
        live(resumed, range(5))

        assert_same(resumed.training_state(), straight.training_state())

    def test_counts_as_seeded(self) -> None:
        policy = made(seed=None)
        policy.load_training_state(copy.deepcopy(made().training_state()))

        assert policy.is_seeded

    def test_takes_the_state_of_a_policy_that_lived_on_cuda(self) -> None:
        state = copy.deepcopy(made(noisy=True).training_state())
        noise = torch.arange(16, dtype=torch.uint8)  # a seed and an offset
        state["streams"]["noise"] = {"device": "cuda", "state": noise}
        policy, same = made(noisy=True), made(noisy=True)
        policy.load_training_state(state)
        same.load_training_state(state)

        assert play(policy) == play(same)

    def test_a_deep_copy_goes_its_own_way(self) -> None:
        policy, straight = made(noisy=True), made(noisy=True)
        live(policy, range(5))
        live(straight, range(5))
        copied = copy.deepcopy(policy)
        before = copy.deepcopy(policy.training_state())
        live(copied, range(5, 10))
        live(straight, range(5, 10))

        assert_same(copied.training_state(), straight.training_state())
        assert_same(policy.training_state(), before)

    def test_weights_that_were_assigned_learn_on(self) -> None:
        policy, straight = made(), made()
        policy.load_state_dict({name: tensor.clone() for name, tensor in policy.state_dict().items()}, assign=True)
        live(policy, range(5))
        live(straight, range(5))

        assert_same(parameters_of(policy), parameters_of(straight))
