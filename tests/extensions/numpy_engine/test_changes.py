"""What a user changes between two calls is honoured at the next one, by the numpy engine as by torch.

Changes are made after five calls: those before the fifth, and the eighth, are compared with torch.
"""

import copy
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import numpy as np
import pytest
import torch
from gymnasium import spaces
from torch import Tensor, nn
from torch.nn.modules import module as torch_module
from torch.nn.utils import parametrizations, parametrize

from tests.extensions.numpy_engine.numpy_passes import note_numpy_passes
from tests.helpers.learning import FOUR_NUMBERS, batch_of, linear, made, observations, parameters_of
from tests.helpers.rollouts import made as made_on_policy
from tests.helpers.rollouts import played
from tests.helpers.sac import PUSH
from tests.helpers.sac import made as made_sac
from tests.helpers.sac import rows as sac_rows
from trainkit import (
    ConfigError,
    ConservativePenalty,
    DoubleBackup,
    DQNPolicy,
    ExpectedValue,
    MaxBackup,
    PPOPolicy,
    SACPolicy,
)
from trainkit.nets import MLP
from trainkit.nets.distributions import SquashedGaussian

N_BEFORE, N_AFTER = 3, 2
TWO_NUMBERS = spaces.Box(-1.0, 1.0, (2,), np.float32)
Undo = Callable[[], Any] | None


def halved(*given: Any) -> Tensor:
    """Halve the last argument, as a hook of a tensor or of a pass."""
    result: Tensor = 0.5 * given[-1]
    return result


# ---- any module or parameter ----


def body_of(policy: Any) -> Any:
    """Return the layers of a policy's first network."""
    if isinstance(policy, SACPolicy):
        return policy.actor.encoder.body
    return policy.network.actor_torso.body if isinstance(policy, PPOPolicy) else policy.network.encoder.body


def first_layer(policy: Any) -> Any:
    return body_of(policy).layers[0]


def patch_forward(policy: Any) -> Undo:
    forward = body_of(policy).forward
    body_of(policy).forward = lambda x: 0.5 * forward(x)
    return None


def patch_forward_of_the_class(policy: Any) -> Undo:
    forward = MLP.forward
    MLP.forward = lambda own, *given: 0.5 * forward(own, *given)  # type: ignore[method-assign]
    return lambda: setattr(MLP, "forward", forward)


def hook_after(policy: Any) -> Undo:
    first_layer(policy).register_forward_hook(halved)
    return None


def hook_before(policy: Any) -> Undo:
    first_layer(policy).register_forward_pre_hook(lambda _, given: (0.5 * given[0],))
    return None


def hook_the_preprocess(policy: Any) -> Undo:
    policy.preprocess.register_forward_hook(halved)
    return None


def hook_everywhere(policy: Any) -> Undo:
    def halve_layers(module: nn.Module, given: Any, result: Any) -> Any:
        return 0.5 * result if isinstance(module, nn.Linear) else None

    return torch_module.register_module_forward_hook(halve_layers).remove


def hook_before_everywhere(policy: Any) -> Undo:
    def halve_layers(module: nn.Module, given: Any) -> Any:
        return (0.5 * given[0],) if isinstance(module, nn.Linear) else None

    return torch_module.register_module_forward_pre_hook(halve_layers).remove


def hook_the_backward_pass(policy: Any) -> Undo:
    if body_of(policy).activation is torch.relu_:  # torch allows nothing in place after such a hook
        body_of(policy).activation = torch.relu
    first_layer(policy).register_full_backward_hook(lambda *_: None)
    first_layer(policy).register_full_backward_pre_hook(lambda _, grad: (0.5 * grad[0],))
    return None


def hook_the_backward_pass_everywhere(policy: Any) -> Undo:
    def halve_layers(module: nn.Module, grad: Any) -> Any:
        return (0.5 * grad[0],) if isinstance(module, nn.Linear) else None

    return torch_module.register_module_full_backward_pre_hook(halve_layers).remove


def hook_a_gradient(policy: Any) -> Undo:
    first_layer(policy).weight.register_hook(halved)
    return None


def hook_an_added_up_gradient(policy: Any) -> Undo:
    def halve(parameter: Tensor) -> None:
        assert parameter.grad is not None
        parameter.grad.mul_(0.5)

    first_layer(policy).weight.register_post_accumulate_grad_hook(halve)
    return None


def normalize_a_weight(policy: Any) -> Undo:
    parametrizations.weight_norm(first_layer(policy))
    return None


class Halved(nn.Module):
    def forward(self, weight: Tensor) -> Tensor:
        return 0.5 * weight


def parametrize_a_weight(policy: Any) -> Undo:
    parametrize.register_parametrization(first_layer(policy), "weight", Halved())
    return None


def freeze(policy: Any) -> Undo:
    body_of(policy).requires_grad_(False)
    return None


def freeze_a_bias(policy: Any) -> Undo:
    first_layer(policy).bias.requires_grad_(False)
    return None


def replace_a_layer(policy: Any) -> Undo:
    size = first_layer(policy).weight.shape
    body_of(policy).layers[0] = linear(np.eye(*size))
    return None


def add_a_layer(policy: Any) -> Undo:
    body = body_of(policy)
    body.layers.append(linear(0.5 * np.eye(8)))
    body.is_active = [*body.is_active, False]
    return None


def replace_a_parameter(policy: Any) -> Undo:
    first_layer(policy).weight = nn.Parameter(0.5 * first_layer(policy).weight.detach())
    return None


def replace_the_layers(policy: Any) -> Undo:
    body_of(policy).layers = copy.deepcopy(body_of(policy).layers)
    return None


def replace_the_activation(policy: Any) -> Undo:
    body_of(policy).activation = torch.nn.functional.elu
    return None


def replace_the_preprocess(policy: Any) -> Undo:
    policy.preprocess = nn.Tanh()
    return None


def write_to_a_weight(policy: Any) -> Undo:
    with torch.no_grad():
        first_layer(policy).weight.mul_(0.5)
    return None


def move_a_weight(policy: Any) -> Undo:
    first_layer(policy).weight.data = 0.5 * first_layer(policy).weight.data
    return None


def load(policy: Any) -> Undo:
    policy.load_state_dict({name: 0.5 * tensor for name, tensor in policy.state_dict().items()}, assign=True)
    return None


def load_in_place(policy: Any) -> Undo:
    policy.load_state_dict({name: 0.5 * tensor for name, tensor in policy.state_dict().items()})
    return None


def load_all(policy: Any) -> Undo:
    policy.load_training_state(copy.deepcopy(policy.training_state()))
    return None


def convert(policy: Any) -> Undo:
    policy.double()
    policy.float()
    return None


def forget_gradients(policy: Any) -> Undo:
    policy.zero_grad()
    return None


def zero_gradients(policy: Any) -> Undo:
    policy.zero_grad(set_to_none=False)
    return None


def leave_gradients(policy: Any) -> Undo:
    for parameter in policy.parameters():
        if parameter.grad is not None:
            parameter.grad.fill_(7.0)
    return None


EVERYWHERE = [
    patch_forward,
    patch_forward_of_the_class,
    hook_after,
    hook_before,
    hook_the_preprocess,
    hook_everywhere,
    hook_before_everywhere,
    hook_the_backward_pass,
    hook_a_gradient,
    hook_an_added_up_gradient,
    normalize_a_weight,
    parametrize_a_weight,
    freeze,
    freeze_a_bias,
    replace_a_layer,
    add_a_layer,
    replace_a_parameter,
    replace_the_layers,
    replace_the_activation,
    replace_the_preprocess,
    write_to_a_weight,
    move_a_weight,
    load,
    load_in_place,
    load_all,
    convert,
    forget_gradients,
    zero_gradients,
    leave_gradients,
]


# ---- parts of a Q-learner ----


def share_a_bias(policy: DQNPolicy) -> Undo:
    first, second, _ = body_of(policy).layers
    second.bias = first.bias
    return None


def use_a_layer_twice(policy: DQNPolicy) -> Undo:
    layers = body_of(policy).layers
    layers[1] = layers[2]
    return None


def replace_the_head(policy: DQNPolicy) -> Undo:
    head = MLP([8, 8, 3], activation=torch.nn.functional.elu)
    head.load_state_dict({name: 0.1 + torch.zeros_like(tensor) for name, tensor in head.state_dict().items()})
    policy.network.heads.advantage = head  # type: ignore[union-attr]
    return None


def replace_the_target(policy: DQNPolicy) -> Undo:
    policy.target_network = copy.deepcopy(policy.network).requires_grad_(False)
    return None


def move_the_target(policy: DQNPolicy) -> Undo:
    for parameter in policy.target_network.parameters():
        parameter.data = parameter.data + 0.1
    return None


def hook_the_target(policy: DQNPolicy) -> Undo:
    policy.target_network.register_forward_hook(lambda _, given, result: result._replace(outputs=2 * result.outputs))
    return None


def replace_the_value(policy: DQNPolicy) -> Undo:
    policy.value = ExpectedValue("mse")
    return None


class Doubled(ExpectedValue):
    def loss(self, chosen: Tensor, td_target: Tensor) -> tuple[Tensor, Tensor]:
        loss, priority = super().loss(chosen, td_target)
        return 2.0 * loss, priority


def replace_the_value_by_a_subclass(policy: DQNPolicy) -> Undo:
    policy.value = Doubled()
    return None


def change_the_value(policy: DQNPolicy) -> Undo:
    policy.value.delta = 0.1  # type: ignore[attr-defined]
    return None


def patch_the_value(policy: DQNPolicy) -> Undo:
    loss = policy.value.loss
    policy.value.loss = lambda *given: [2.0 * x for x in loss(*given)]  # type: ignore[method-assign, assignment]
    return None


def replace_the_backup(policy: DQNPolicy) -> Undo:
    policy.backup = DoubleBackup()
    return None


class Tripled(MaxBackup):
    factor = 3.0

    def __call__(self, *given: Any) -> tuple[Tensor, Tensor]:
        after, reward = super().__call__(*given)
        return after, self.factor * reward


def replace_the_backup_by_a_subclass(policy: DQNPolicy) -> Undo:
    policy.backup = Tripled()
    return None


def patch_the_backups_class(policy: DQNPolicy) -> Undo:
    call = MaxBackup.__call__
    MaxBackup.__call__ = lambda *given: tuple(0.5 * x for x in call(*given))  # type: ignore[method-assign, assignment]
    return lambda: setattr(MaxBackup, "__call__", call)


def add_a_penalty(policy: DQNPolicy) -> Undo:
    policy.penalty = ConservativePenalty(1.0)
    return None


OF_Q_LEARNERS = [
    share_a_bias,
    use_a_layer_twice,
    replace_the_head,
    replace_the_target,
    move_the_target,
    hook_the_target,
    hook_the_backward_pass_everywhere,
    replace_the_value,
    replace_the_value_by_a_subclass,
    change_the_value,
    patch_the_value,
    replace_the_backup,
    replace_the_backup_by_a_subclass,
    patch_the_backups_class,
    add_a_penalty,
]


# ---- parts of SAC and PPO ----


def freeze_a_critic(policy: SACPolicy) -> Undo:
    next(policy.critics.parameters()).requires_grad_(False)
    return None


def hook_the_critics(policy: SACPolicy) -> Undo:
    policy.critics.register_forward_hook(halved)
    return None


def replace_the_target_critics(policy: SACPolicy) -> Undo:
    policy.target_critics = copy.deepcopy(policy.critics)
    return None


def activate_the_critics_otherwise(policy: SACPolicy) -> Undo:
    policy.critics.activation = torch.sigmoid  # type: ignore[assignment]
    return None


def activate_the_targets_otherwise(policy: SACPolicy) -> Undo:
    policy.target_critics.activation = torch.sigmoid  # type: ignore[assignment]
    return None


def aim_at_another_entropy(policy: SACPolicy) -> Undo:
    policy.target_entropy = -3.0
    return None


def aim_at_an_entropy_in_a_tensor(policy: SACPolicy) -> Undo:
    policy.target_entropy = torch.tensor(-3.0)  # type: ignore[assignment]
    return None


def hook_the_temperature(policy: SACPolicy) -> Undo:
    policy.learned_temperature.log.register_hook(halved)  # type: ignore[union-attr]
    return None


class Narrow(SquashedGaussian):
    """Draw nearer to the mean."""

    def draw(self, numbers: Tensor, noise: Tensor) -> tuple[Tensor, Tensor]:
        return super().draw(numbers, 0.5 * noise)

    def mode(self, *given: Any) -> Tensor:
        return 0.5 * super().mode(*given)

    def sample(self, *given: Any) -> Tensor:
        return 0.5 * super().sample(*given)


def replace_the_distribution(policy: SACPolicy) -> Undo:
    policy.distribution = Narrow(PUSH, log_std=None)
    return None


OF_SAC = [
    freeze_a_critic,
    hook_the_critics,
    replace_the_target_critics,
    activate_the_critics_otherwise,
    activate_the_targets_otherwise,
    aim_at_another_entropy,
    aim_at_an_entropy_in_a_tensor,
    hook_the_temperature,
    replace_the_distribution,
]


def freeze_the_deviation(policy: PPOPolicy) -> Undo:
    policy.distribution.log_std.requires_grad_(False)  # type: ignore[attr-defined]
    return None


def replace_the_deviation(policy: PPOPolicy) -> Undo:
    policy.distribution.log_std = nn.Parameter(torch.full((2,), -0.5))  # type: ignore[attr-defined]
    return None


def freeze_the_value_head(policy: PPOPolicy) -> Undo:
    policy.network.critic.requires_grad_(False)  # type: ignore[union-attr, operator]
    return None


def share_a_torso(policy: PPOPolicy) -> Undo:
    policy.network.critic_torso = policy.network.actor_torso
    return None


def weigh_the_critic_more(policy: PPOPolicy) -> Undo:
    policy.value_weight, policy.clip_value = 5.0, 0.01
    return None


def want_more_entropy(policy: PPOPolicy) -> Undo:
    policy.entropy_weight = lambda step: 0.3  # type: ignore[assignment]
    return None


def clip_less(policy: PPOPolicy) -> Undo:
    policy.clip_ratio = lambda step: 0.9  # type: ignore[assignment]
    return None


def other_network(policy: PPOPolicy) -> Undo:
    policy.network = made_on_policy(action_space=TWO_NUMBERS, seed=1).network
    return None


OF_PPO = [
    hook_the_backward_pass_everywhere,
    freeze_the_deviation,
    replace_the_deviation,
    freeze_the_value_head,
    share_a_torso,
    weigh_the_critic_more,
    want_more_entropy,
    clip_less,
    other_network,
]


OBSERVED = {
    hook_after,
    hook_before,
    hook_the_preprocess,
    hook_everywhere,
    hook_before_everywhere,
    hook_the_backward_pass,
    hook_the_backward_pass_everywhere,
    hook_a_gradient,
    hook_an_added_up_gradient,
    hook_the_target,
    hook_the_critics,
    hook_the_temperature,
}  # after which torch executes all that a hook may see


# ---- learning and acting ----


@pytest.fixture
def undoing() -> Iterator[ExitStack]:
    """Undo, at the test's end, what was changed for all modules."""
    with ExitStack() as stack:
        yield stack


def q_learner(engine: Any) -> DQNPolicy:
    return made(hidden=(8, 8, 8), engine=engine, lr=1e-2)


def sac(engine: Any) -> SACPolicy:
    return made_sac(hidden=(8, 8), engine=engine, lr=1e-2)


def ppo(engine: Any) -> PPOPolicy:
    policy: PPOPolicy = made_on_policy(action_space=TWO_NUMBERS, hidden=(8, 8), engine=engine, lr=1e-2)
    return policy


ROLLOUT = played(ppo("torch"), FOUR_NUMBERS, [12, 9, 11])


def learn(policy: Any, step: int) -> None:
    """Take an update."""
    if isinstance(policy, PPOPolicy):
        list(policy.learn(ROLLOUT, step=step))
    elif isinstance(policy, SACPolicy):
        policy.update(sac_rows(16, seed=step), step=step)
    else:
        policy.update(batch_of(16, seed=step), step=step)


CASES: list[tuple[Any, Any]] = [
    *((make, change) for make in (q_learner, sac, ppo) for change in EVERYWHERE),
    *((q_learner, change) for change in OF_Q_LEARNERS),
    *((sac, change) for change in OF_SAC),
    *((ppo, change) for change in OF_PPO),
]


def is_slow(make: Any, change: Any, n_before: int) -> bool:
    """Return whether the fast tests leave a case out; they make every change to a Q-learner."""
    return make is not q_learner and (n_before == 0 or change in EVERYWHERE[1::2])


LEARNING_CASES = [
    pytest.param(make, change, n_before, marks=pytest.mark.slow if is_slow(make, change, n_before) else ())
    for make, change in CASES
    for n_before in (0, N_BEFORE)
]


def change_all(policies: Any, change: Callable[[Any], Undo], undoing: ExitStack) -> None:
    """Change policies, and globals once."""
    for policy in policies:
        undo = change(policy)
        if undo is not None:
            undoing.callback(undo)
            break


@pytest.mark.one_of_each
@pytest.mark.filterwarnings("ignore:Full backward hook is firing when gradients are computed")
@pytest.mark.parametrize(("make", "change", "n_before"), LEARNING_CASES)
def test_what_changes_is_learned_with(
    make: Any, change: Any, n_before: int, undoing: ExitStack, monkeypatch: pytest.MonkeyPatch
) -> None:
    mine, theirs = make("numpy"), make("torch")
    for policy in (mine, theirs):
        for step in range(n_before):
            learn(policy, step)
    change_all((mine, theirs), change, undoing)
    passes: list[int] = []
    note_numpy_passes(monkeypatch, lambda: passes.append(1))
    for step in range(n_before, n_before + N_AFTER):
        for policy in (mine, theirs):
            learn(policy, step)
        torch.testing.assert_close(parameters_of(mine), parameters_of(theirs), rtol=1e-4, atol=1e-5)
    metrics, expected = mine.read_metrics(), theirs.read_metrics()
    assert metrics == {name: pytest.approx(number, rel=1e-3, abs=1e-4) for name, number in expected.items()}
    if change not in OBSERVED:
        n_functions = {q_learner: 1, sac: 3, ppo: 2}[make]  # PPO also estimates values
        assert len(passes) == N_AFTER * n_functions


@pytest.mark.parametrize("engine", ["numpy", "torch"])
def test_a_network_that_no_gradient_step_moves_is_rejected(engine: Any) -> None:
    policy = q_learner(engine)
    policy.network = copy.deepcopy(policy.network)
    with pytest.raises(ConfigError, match="the loss of QNetwork has no gradient"):
        learn(policy, 0)


def act(policy: Any, obs: Any) -> list[Any]:
    """Return what a policy answers, exploring and not."""
    policy.start_streams(7)
    if isinstance(policy, DQNPolicy):
        return [policy.action_values(obs)]
    outputs = [policy.act(obs, explore=explore) for explore in (False, True)]
    return [leaf for output in outputs for leaf in (output.action, *output.extras.values())]


@pytest.mark.one_of_each
@pytest.mark.parametrize(("make", "change"), CASES)
def test_what_changes_is_acted_with(make: Any, change: Any, undoing: ExitStack) -> None:
    mine, theirs = make("numpy"), make("torch")
    obs = observations(FOUR_NUMBERS, 5)
    for _ in range(N_BEFORE):
        act(mine, obs)
    change_all((mine, theirs), change, undoing)
    for _ in range(2):
        for own, expected in zip(act(mine, obs), act(theirs, obs), strict=True):
            np.testing.assert_allclose(own, expected, rtol=1e-4, atol=1e-5)
