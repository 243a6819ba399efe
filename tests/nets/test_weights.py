"""Fresh weights: which parts of a module are drawn, from which stream, and when they are left alone."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from tests.helpers.learning import assert_same, batch_of, linear, parameters_of, small_net
from trainkit import Adam, ConfigError, DQNPolicy, Policy, Target
from trainkit.nets import MLP, ImplicitQNetwork, QNetwork
from trainkit.nets.weights import SeededModule, draw_parameters, seeded_parts


def mlp() -> MLP:
    return MLP([4, 5, 3])


class Pair(nn.Module):
    """A module of one's own, with two seeded parts, a seeded part within one of them, and a plain layer."""

    def __init__(self) -> None:
        super().__init__()
        self.first = mlp()
        self.second = QNetwork((4,), 3, hidden=(5,))  # itself made of seeded parts
        self.plain = linear([[1.0, 2.0]])

    def forward(self, x: Tensor) -> Tensor:
        return self.first(x) + self.second(x).outputs.squeeze(2)


class Learner(Policy):
    """A policy of several gradient steps and targets."""

    def __init__(self, modules: dict[str, nn.Module], **options: Any) -> None:
        super().__init__(device="cpu", **options)
        for name, module in modules.items():
            setattr(self, name, module)
            self.add_gradient_step(name, module, Adam())
            setattr(self, f"{name}_target", self.add_target(name, module, Target()))


def untouched(*modules: nn.Module) -> list[bool]:
    return [part.is_untouched for module in modules for _, part in seeded_parts(module)]


class TestParts:
    def test_a_seeded_module_is_its_own_only_part(self) -> None:
        network = QNetwork((4,), 3, hidden=(5,))

        assert list(seeded_parts(network)) == [("", network)]

    def test_of_a_plain_module_the_outermost_seeded_ones_are_parts_by_their_paths(self) -> None:
        pair = Pair()

        assert list(seeded_parts(pair)) == [(".first", pair.first), (".second", pair.second)]
        inner = nn.Sequential(nn.Tanh(), nn.Sequential(pair.first))
        assert list(seeded_parts(inner)) == [(".1.0", pair.first)]

    def test_a_plain_module_has_none(self) -> None:
        assert list(seeded_parts(small_net())) == []


class TestDrawing:
    @pytest.mark.parametrize(
        "make", [mlp, lambda: QNetwork((4,), 3), lambda: ImplicitQNetwork((4,), 3)], ids=["mlp", "plain", "implicit"]
    )
    def test_weights_are_a_function_of_the_seed(self, make: Any) -> None:
        one, same, other = make(), make(), make()
        for module, seed in ((one, 1), (same, 1), (other, 2)):
            module.draw(seed)

        assert_same(parameters_of(one), parameters_of(same))
        assert all((a != b).all() for a, b in zip(one.parameters(), other.parameters(), strict=True))

    def test_all_layers_are_drawn_in_order_from_one_stream(self) -> None:
        # Within +-1/sqrt(fan_in): 1/2 for four inputs, 1/sqrt(5) for five; weight and bias of each layer in turn.
        module, generator = mlp(), torch.Generator().manual_seed(7)
        module.draw(7)
        for (outputs, inputs), layer in zip([(5, 4), (3, 5)], module.layers, strict=True):
            for parameter in (layer.weight, layer.bias):
                expected = torch.rand(parameter.shape, generator=generator) * 2 - 1
                torch.testing.assert_close(parameter.detach(), expected / inputs**0.5, rtol=1e-5, atol=1e-6)
            assert layer.weight.shape == (outputs, inputs)

    def test_a_fresh_module_is_untouched_and_a_step_or_a_load_touches_it(self) -> None:
        module, other = mlp(), mlp()
        assert module.is_untouched
        module.load_state_dict(other.state_dict())
        assert not module.is_untouched
        module.draw(1)
        assert module.is_untouched
        with torch.no_grad():
            module.layers[1].bias[2] += 1e-6
        assert not module.is_untouched

    def test_a_generator_draws_on(self) -> None:
        one, other, generator = small_net(), small_net(), torch.Generator().manual_seed(0)
        draw_parameters(one, generator)
        draw_parameters(other, generator)

        assert all((a != b).all() for a, b in zip(one.parameters(), other.parameters(), strict=True))


class TestPolicySeed:
    def test_draws_the_seeded_parts_of_a_module_of_ones_own_and_no_other(self) -> None:
        one, other = (DQNPolicy(Pair(), device="cpu", seed=None) for _ in range(2))
        one.seed(3)
        other.seed(3)
        assert_same(parameters_of(one), parameters_of(other))
        assert one.network.module.plain.weight.tolist() == [[1, 2]]

        early = DQNPolicy(Pair(), device="cpu", seed=3)
        assert_same(parameters_of(early), parameters_of(one))

    def test_draws_every_part_from_a_stream_of_its_own(self) -> None:
        policy = Learner({"critic": nn.ModuleList([mlp(), mlp()])}, seed=3)
        first, second = policy.critic

        assert all((a != b).all() for a, b in zip(first.parameters(), second.parameters(), strict=True))

    def test_draws_alike_modules_of_two_gradient_steps_differently(self) -> None:
        policy = Learner({"first": mlp(), "second": mlp()}, seed=3)

        pairs = zip(policy.first.parameters(), policy.second.parameters(), strict=True)
        assert all((a != b).all() for a, b in pairs)

    def test_a_part_has_the_same_weights_whatever_the_other_parts(self) -> None:
        alone = Learner({"actor": mlp()}, seed=3)
        together = Learner({"critic": mlp(), "actor": mlp()}, seed=3)

        assert_same(parameters_of(alone.actor), parameters_of(together.actor))

    def test_leaves_a_loaded_part_alone_and_draws_the_untouched_one(self) -> None:
        pair = Pair()
        pair.second.load_state_dict(QNetwork((4,), 3, hidden=(5,)).state_dict())
        before = parameters_of(pair)
        assert untouched(pair) == [True, False]
        policy = DQNPolicy(pair, device="cpu", seed=None)
        policy.seed(3)

        after = parameters_of(pair)
        moved = {name for name in before if not torch.equal(before[name], after[name])}
        assert moved == {name for name in before if name.startswith("first")}

    def test_leaves_trained_parts_alone(self) -> None:
        policy = DQNPolicy(Pair(), device="cpu", seed=1)
        policy.update(batch_of(8), step=0)
        before = parameters_of(policy)
        policy.seed(2)

        assert_same(parameters_of(policy), before)

    def test_brings_every_target_along(self) -> None:
        policy = Learner({"first": Pair(), "second": mlp()}, seed=None)
        policy.seed(3)

        for name in ("first", "second"):
            online, target = getattr(policy, name), getattr(policy, f"{name}_target")
            assert_same(parameters_of(online), parameters_of(target))

    def test_may_be_given_again_before_training(self) -> None:
        again, once = DQNPolicy(QNetwork((4,), 3), device="cpu", seed=1), DQNPolicy(QNetwork((4,), 3), device="cpu")
        again.seed(2)
        once.seed(2)

        assert_same(again.training_state(), once.training_state())

    def test_new_streams_alone_draw_nothing(self) -> None:
        policy = DQNPolicy(QNetwork((4,), 3), device="cpu", seed=1)
        before = parameters_of(policy)
        policy.start_streams(2)

        assert_same(parameters_of(policy), before)


def test_a_network_that_cannot_work_is_refused_before_anything_is_drawn() -> None:
    with pytest.raises(ConfigError):
        QNetwork((4,), 0)


def test_a_module_of_ones_own_may_be_seeded() -> None:
    class Own(SeededModule):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.utils.skip_init(nn.Linear, 4, 3)
            self.draw()

        def forward(self, x: Tensor) -> Tensor:
            return self.layer(x)

    one, same, other = (DQNPolicy(Own(), device="cpu", seed=seed) for seed in (1, 1, 2))

    assert_same(parameters_of(one), parameters_of(same))
    assert (one.network.module.layer.weight != other.network.module.layer.weight).all()
