"""Batch normalization of actors and critics: statistics beside torch's and a written reference, the joint pass."""

import copy
from typing import Any

import numpy as np
import pytest
import torch
from gymnasium import spaces
from torch import Tensor, nn
from torch.nn import functional
from torch.testing import assert_close

from tests.helpers.engine import engines
from tests.helpers.learning import FOUR_NUMBERS, Spaces, parameters_of
from tests.helpers.sac import PUSH, rows
from trainkit import ActorCriticPolicy, ConfigError
from trainkit.errors import DivergedError
from trainkit.extensions.actor_critic.batch_norm import BatchNormCritics, BatchRenorm
from trainkit.nets import NatureCNN
from trainkit.policy import BatchNormNetworks, CriticInputs, DropoutNetworks, JointPass

EPSILON = 1e-3


def drawn(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def layer(warm_up: int | None = None, n_networks: int = 2, n_features: int = 5) -> BatchRenorm:
    """Make a layer with a scale and a shift that are not the initial ones."""
    made = BatchRenorm(n_networks, n_features, momentum=0.1, warm_up=warm_up)
    with torch.no_grad():
        made.weight.copy_(1.0 + 0.3 * drawn(*made.weight.shape, seed=1))
        made.bias.copy_(drawn(*made.bias.shape, seed=2))
    return made


def made(**options: Any) -> ActorCriticPolicy:
    parts: dict[str, Any] = {"hidden": (8,), "device": "cpu", "seed": 0, "networks": BatchNormNetworks(warm_up=None)}
    return ActorCriticPolicy.for_envs(Spaces(FOUR_NUMBERS, PUSH), **parts | options)


def statistics_of(module: nn.Module) -> dict[str, Tensor]:
    return {name: buffer.clone() for name, buffer in module.named_buffers() if "running" in name}


class TestLayer:
    def test_normalizes_each_network_as_torch_does(self) -> None:
        own, x = layer(), drawn(2, 7, 5).requires_grad_()
        outputs = own.train()(x)
        expected = [
            nn.functional.batch_norm(x[c], None, None, own.weight[c, 0], own.bias[c, 0], training=True, eps=EPSILON)
            for c in range(2)
        ]
        assert_close(outputs, torch.stack(expected))
        parameters = [x, own.weight, own.bias]
        weights = drawn(2, 7, 5, seed=3)
        ours = torch.autograd.grad((outputs * weights).sum(), parameters)
        theirs = torch.autograd.grad((torch.stack(expected) * weights).sum(), parameters)
        for one, other in zip(ours, theirs, strict=True):
            assert_close(one, other, rtol=1e-4, atol=1e-5)

    def test_running_statistics_follow_by_the_momentum_and_normalize_in_evaluation(self) -> None:
        own, x = layer(), 3.0 + 2.0 * drawn(2, 7, 5)
        own.train()(x)
        mean, var = x.mean(dim=1, keepdim=True), x.var(dim=1, keepdim=True, correction=0)
        assert_close(own.running_mean, 0.1 * mean)
        assert_close(own.running_var, 0.9 + 0.1 * var)
        other = drawn(2, 3, 5, seed=4)
        expected = (other - 0.1 * mean) / (0.9 + 0.1 * var + EPSILON).sqrt() * own.weight + own.bias
        assert_close(own.eval()(other), expected)

    def test_renormalizes_after_the_warm_up_as_ioffe_writes_it(self) -> None:
        own = layer(warm_up=3)
        mean, var = np.zeros((2, 1, 5)), np.ones((2, 1, 5))
        weight, bias = (one.detach().double().numpy() for one in (own.weight, own.bias))
        for n in range(6):
            x = 0.5 * n + (1.0 + n) * drawn(2, 7, 5, seed=n)
            outputs, wide = own.train()(x), x.double().numpy()
            m, v = wide.mean(axis=1, keepdims=True), wide.var(axis=1, keepdims=True)
            s, running = np.sqrt(v + EPSILON), np.sqrt(var + EPSILON)
            r, d = np.clip(s / running, 1 / 3, 3), np.clip((m - mean) / running, -5, 5)
            r, d = (r, d) if n >= 3 else (np.ones_like(r), np.zeros_like(d))
            assert_close(
                outputs.double(), torch.as_tensor(((wide - m) / s * r + d) * weight + bias), rtol=1e-4, atol=1e-5
            )
            mean, var = mean + 0.1 * (m - mean), var + 0.1 * (v - var)
            assert_close(own.running_mean.double(), torch.as_tensor(mean), rtol=1e-5, atol=1e-6)
            assert_close(own.running_var.double(), torch.as_tensor(var), rtol=1e-5, atol=1e-6)
        assert own.n_passes == 6

    def test_the_corrections_have_no_gradients(self) -> None:
        own, x = layer(warm_up=0), drawn(2, 7, 5).requires_grad_()
        (gradient,) = torch.autograd.grad(own.train()(x)[0, :, 0].square().sum(), x)
        # y = n r + d with constants r and d, and n normalized: the gradient is orthogonal to 1, as of n
        assert gradient[0, :, 0].sum().abs() < 1e-4 * gradient.abs().sum()

    def test_may_use_the_batch_in_evaluation_and_moves_nothing(self) -> None:
        own, x = layer(warm_up=0), drawn(2, 7, 5)
        before, expected = statistics_of(own), layer().train()(x)
        assert_close(own.eval()(x, batch_statistics=True), expected)
        assert all(torch.equal(one, before[name]) for name, one in statistics_of(own).items())
        assert own.n_passes == 0


class TestJointPass:
    def test_outputs_are_those_of_one_batch_of_both(self) -> None:
        critics = BatchNormCritics((4,), 2, hidden=(8,), encoder=None, n_critics=2, width=None, on_sphere=False,
                                   activation=None, norm_first=False, momentum=0.1, warm_up=None)  # fmt: skip
        critics.train()
        obs, action, next_obs, next_action = drawn(6, 4), drawn(6, 2, seed=1), drawn(6, 4, seed=2), drawn(6, 2, seed=3)
        twin = copy.deepcopy(critics)
        steps, next_steps = CriticInputs(obs, action), CriticInputs(next_obs, next_action)
        outputs, after = JointPass()(critics, None, steps, next_steps)
        both = twin(torch.cat([obs, next_obs]), torch.cat([action, next_action]))
        assert_close(outputs, both[:6])
        assert_close(after, both[6:])
        assert outputs.requires_grad
        assert not after.requires_grad
        alone = twin(obs, action)
        assert not torch.allclose(outputs, alone, atol=1e-3)  # the statistics are those of both

    def test_target_critics_normalize_by_the_batch_and_stay_as_they_are(self) -> None:
        policy = made(critic_pass=JointPass())
        target = policy.target_critics
        assert target is not None
        before = statistics_of(target)
        batch = policy.tensors(rows())._replace(inputs=policy.loss_noise(8))
        policy.enter_step(policy.gradient_steps["critic"])
        policy.critic_loss(batch)
        for name, one in statistics_of(target).items():
            assert torch.equal(one, before[name])


def reference_statistics(critics: Any, x: Tensor) -> list[tuple[Tensor, Tensor]]:
    """Return the mean and the variance that each layer of each critic sees in training, by a plain loop in float64."""
    found = []
    for number in range(critics.n_critics):
        values = x.double()
        norms, layers = list(critics.body.norms), list(critics.body.layers)
        for position, norm in enumerate(norms):
            mean, var = values.mean(dim=0), values.var(dim=0, correction=0)
            found.append((mean, var))
            normal = (values - mean) / (var + EPSILON).sqrt()
            values = normal * norm.weight[number, 0].double() + norm.bias[number, 0].double()
            own = layers[position]
            values = values @ own.weight[number].double().T + own.bias[number, 0].double()
            values = values.relu()
    return found


@pytest.mark.parametrize("engine", engines("torch", "numpy"))
class TestUpdates:
    def test_the_statistics_are_those_of_the_rows_and_the_next_rows(self, engine: Any) -> None:
        policy = made(critic_pass=JointPass(), target="none", engine=engine, networks=BatchNormNetworks(momentum=1.0))
        for step in range(3):
            batch = policy.tensors(rows(seed=step))
            critics: Any = copy.deepcopy(policy.critics)
            actor = copy.deepcopy(policy.actor).eval()
            state = policy.generator.get_state()
            next_noise = policy.loss_noise(8)["next_noise"]
            policy.generator.set_state(state)
            next_action = policy.distribution.draw_next(actor(batch.next_obs), next_noise)[0]
            unit = policy.action_scale.to_unit(batch.action).flatten(1).clamp(-1, 1)
            x = torch.cat([torch.cat([batch.obs, unit], dim=1), torch.cat([batch.next_obs, next_action], dim=1)])
            expected = reference_statistics(critics, x)
            policy.update(rows(seed=step), step=step)
            norms: Any = policy.critics.body.norms  # type: ignore[union-attr]  # ours
            ours = [(norm.running_mean[c, 0], norm.running_var[c, 0]) for c in range(2) for norm in norms]
            for one, other in zip(ours, expected, strict=True):
                assert_close(one[0].double(), other[0], rtol=1e-3, atol=1e-4)
                assert_close(one[1].double(), other[1], rtol=1e-3, atol=1e-4)
        assert policy.engine.name == engine

    def test_the_actors_statistics_move_in_its_own_step_alone(self, engine: Any) -> None:
        policy = made(critic_pass=JointPass(), target="none", engine=engine, actor_every=2)
        moved = []
        for step in range(4):
            before = [statistics_of(one) for one in (policy.actor, policy.critics)]
            policy.update(rows(seed=step), step=step)
            after = [statistics_of(one) for one in (policy.actor, policy.critics)]
            moved.append([any(not torch.equal(a[n], b[n]) for n in b) for a, b in zip(after, before, strict=True)])
        assert moved == [[False, True], [True, True]] * 2

    def test_an_update_that_is_not_taken_leaves_them(self, engine: Any) -> None:
        policy = made(critic_pass=JointPass(), target="none", engine=engine)
        for step in range(2):
            policy.update(rows(seed=step), step=step)
        before = statistics_of(policy.critics)
        with pytest.raises(DivergedError):
            policy.update(rows(reward=np.full(8, np.nan, np.float32)), step=2)
        for name, one in statistics_of(policy.critics).items():
            assert torch.equal(one, before[name])

    def test_weights_stay_on_the_sphere(self, engine: Any) -> None:
        policy = made(networks=BatchNormNetworks(norm_first=True, warm_up=None, on_sphere=True), engine=engine)
        for step in range(4):
            for network in (policy.actor, policy.critics):
                layers: Any = network.body.layers  # type: ignore[union-attr]  # ours
                norms = [layer.weight.norm(dim=2) for layer in layers]
                assert len(norms) == 2
                for one in norms:
                    assert_close(one, torch.ones_like(one))
            policy.update(rows(seed=step), step=step)

    def test_both_engines_learn_the_same(self, engine: Any) -> None:
        how: dict[str, Any] = {"critic_pass": JointPass(), "networks": BatchNormNetworks(warm_up=2), "target": "none"}
        one, other = made(engine=engine, **how), made(engine="torch", **how)
        for step in range(6):
            for policy in (one, other):
                policy.update(rows(16, seed=step), step=step)
        theirs = parameters_of(other)
        for name, own in parameters_of(one).items():
            assert_close(own, theirs[name], rtol=1e-3, atol=1e-4)


def test_acting_uses_the_running_statistics_whoever_is_among_the_rows() -> None:
    policy = made()
    for step in range(3):
        policy.update(rows(seed=step), step=step)
    obs = np.linspace(-1, 1, 20, dtype=np.float32).reshape(5, 4)
    together, alone = policy.act(obs).action, policy.act(obs[:1]).action
    np.testing.assert_allclose(together[:1], alone, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            {"networks": None},
            "with batch_statistics=, which CriticNetwork does not take: give networks=",
        ),
        ({"networks": DropoutNetworks(), "target": "none"}, "but DropoutCritics draws noise for one: give critic_pass"),
    ],
)
def test_critics_that_cannot_be_called_on_two_batches_are_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        made(critic_pass=JointPass(), **options)


@pytest.mark.parametrize("networks", [BatchNormNetworks(), DropoutNetworks()])
def test_the_encoder_that_is_named_has_the_activation(networks: Any) -> None:
    images = Spaces(spaces.Box(0, 255, (1, 36, 36), np.uint8), PUSH)
    policy = ActorCriticPolicy.for_envs(images, networks=networks, activation="silu", hidden=(8,), device="cpu", seed=0)
    for network in (policy.actor, policy.critics):
        used = [one.activation for one in network.encoder.modules() if isinstance(one, NatureCNN)]
        assert used == [functional.silu]


def test_options_without_an_effect_are_refused() -> None:
    for options in ({"norm": "layer"}, {"recurrent": "gru"}):
        with pytest.raises(ConfigError, match="BatchNormNetworks have batch normalization and no memory"):
            made(**options)
    with pytest.raises(ConfigError, match=r"BatchNormNetworks.momentum must be in \(0, 1\], got 0"):
        BatchNormNetworks(momentum=0)
