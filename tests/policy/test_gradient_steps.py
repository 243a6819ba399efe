"""Gradient steps that are taken at some updates, change weights after them, or whose losses move buffers.

A policy of a user's on torch, by numpy and by graphs of the pretend device, against a plain loop by torch.
"""

import copy
import inspect
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
from gymnasium import spaces
from torch import Tensor, nn
from torch.testing import assert_close

from examples.td3 import TD3Policy
from tests.helpers.engine import AUTO, engines
from tests.helpers.learning import Spaces, assert_same, batch_of, parameters_of, small_net
from tests.helpers.tape import record_by_tapes
from tests.policy.regression import Regression, with_batch_norm, with_spectral_norm
from trainkit import Adam, Clip, ConfigError, TorchOptimizer, TransitionBatch
from trainkit.errors import DivergedError

PUSH = spaces.Box(np.array([-2.0, -1.0], np.float32), np.array([2.0, 3.0], np.float32))


def sphere(parameters: Any) -> dict[str, Tensor]:
    """Project the rows of each matrix onto the unit sphere."""
    return {path: x / x.norm(dim=1, keepdim=True) for path, x in parameters.items() if x.dim() == 2}


@pytest.fixture(params=engines("torch", "numpy", "cuda_graph"))
def engine(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[dict[str, Any]]:
    """Return the engine and the device of a policy: torch, numpy, or graphs of the pretend device."""
    if request.param == "cuda_graph":
        record_by_tapes(monkeypatch)
        yield {"engine": "cuda_graph", "device": "pretend"}
    else:
        yield {"engine": request.param}


def of_rows(seed: int, **columns: Any) -> TransitionBatch:
    return batch_of(16, seed=seed, **columns)


def gradients_of(module: nn.Module) -> Tensor:
    """Return the gradients of the last step, flat."""
    return torch.cat([p.grad.flatten().cpu() for p in module.parameters() if p.grad is not None])


def assert_gradients_are(module: nn.Module, wanted: Tensor) -> None:
    assert float((gradients_of(module) - wanted).norm()) <= 1e-5 * float(wanted.norm())


# ---- every ----


def test_a_delayed_step_is_taken_at_each_multiple_and_its_target_follows(engine: dict[str, Any]) -> None:
    policy = Regression(every=3, **engine)
    moved = []
    for step in range(9):
        before = [parameters_of(module) for module in (policy.critic, policy.actor, policy.copy, policy.target_actor)]
        policy.update(of_rows(step), step=step)
        after = [parameters_of(module) for module in (policy.critic, policy.actor, policy.copy, policy.target_actor)]
        moved.append([not _are_same(*pair) for pair in zip(before, after, strict=True)])
    assert moved == [[True, *[step % 3 == 2] * 3] for step in range(9)]


def _are_same(one: Any, other: Any) -> bool:
    return all(torch.equal(one[name], other[name]) for name in one)


def test_the_metrics_of_a_step_that_was_not_taken_are_missing_not_zero(engine: dict[str, Any]) -> None:
    policy, places = Regression(every=3, **engine), []
    policy.update(of_rows(0), step=0)
    names = {"critic_loss", "critic_grad_norm", "critic_lr", "error", "weight_mean", "effective_share"}
    assert policy.read_metrics().keys() - {"target_followed"} == names
    for step in range(1, 12):
        if step % 3 == 2:
            with torch.no_grad():
                rows = torch.from_numpy(of_rows(step).obs).to(policy.device)
                places.append(float(policy.actor(rows).mean()))
        policy.update(of_rows(step), step=step)
    metrics = policy.read_metrics()
    assert metrics["place"] == pytest.approx(np.mean(places), rel=1e-5)
    assert metrics["actor_lr"] == metrics["copy_lr"] * 10 == 1e-2
    assert policy.read_metrics() == {}


def test_metrics_of_delayed_steps_are_resumed_to_the_bit(engine: dict[str, Any]) -> None:
    straight, resumed = Regression(every=2, **engine), Regression(every=2, **engine)
    for step in range(7):
        straight.update(of_rows(step), step=step)
    resumed.load_training_state(copy.deepcopy(straight.training_state()))
    for step in range(7, 14):
        for policy in (straight, resumed):
            policy.update(of_rows(step), step=step)
    assert_same(straight.training_state(), resumed.training_state())
    assert straight.read_metrics() == resumed.read_metrics()


@pytest.mark.parametrize("on_nan", ["raise", "skip"])
def test_skipped_updates_count_for_no_metric(on_nan: Any, engine: dict[str, Any]) -> None:
    policy, plain = Regression(every=2, **engine), Regression(every=2, **engine)
    policy.on_nan = on_nan
    for step in range(8):
        for one in (policy, plain):
            one.update(of_rows(step), step=step)
    expected = {name: pytest.approx(number, rel=1e-6) for name, number in plain.read_metrics().items()}
    assert policy.read_metrics() == {**expected, **({"skipped": 0.0} if on_nan == "skip" else {})}
    if on_nan == "skip":
        before = parameters_of(policy)
        policy.update(of_rows(8, reward=np.full(16, np.nan, np.float32)), step=8)
        metrics = policy.read_metrics()
        assert metrics["skipped"] == 1.0
        assert metrics.keys() == {"skipped", "critic_lr", "target_followed"}
        assert_same(parameters_of(policy), before)


def test_a_scheduler_advances_per_step_taken() -> None:
    rates: list[float] = []
    halved = TorchOptimizer(torch.optim.Adam, lr=lambda own: torch.optim.lr_scheduler.StepLR(own, 1, 0.5))
    policy = Regression(of_step={"every": 2, "optimizer": halved}, every=2)
    for step in range(6):
        policy.update(of_rows(step), step=step)
        rates.append(policy.gradient_steps["critic"].lr(step))
    assert rates == [1e-3, 5e-4, 5e-4, 2.5e-4, 2.5e-4, 1.25e-4]


def test_every_must_be_a_positive_integer() -> None:
    with pytest.raises(ConfigError, match=r"GradientStep.every must be a whole number >= 1, got 0"):
        Regression(every=0)


def test_a_step_reads_another_of_the_same_updates_or_is_rejected() -> None:
    policy = Regression()
    net = small_net()
    with pytest.raises(
        ConfigError, match=r"reads='actor'\) must be taken in the same updates as 'actor', every 2, got"
    ):
        policy.add_gradient_step("late", net, Adam(), loss=policy.copy_loss, reads="actor")
    with pytest.raises(ConfigError, match=r"must name an earlier gradient step, got 'acotr': there are \['critic', "):
        policy.add_gradient_step("late", net, Adam(), loss=policy.copy_loss, every=2, reads="acotr")


def test_an_output_that_is_read_undeclared_is_an_error_with_the_remedy() -> None:
    policy = Regression(every=1)
    policy.gradient_steps["copy"].reads = None
    with pytest.raises(ConfigError, match=r"'copy' reads 'place', an output of 'actor', .*reads='actor'\)"):
        policy.update(of_rows(0), step=0)


# ---- what is left in `.grad` ----


@pytest.mark.parametrize("by", ["global_norm", "norm", "value"])
def test_gradients_are_those_after_the_clip(by: Any, engine: dict[str, Any]) -> None:
    clipped, plain = (Regression(of_step={"clip": clip}, **engine) for clip in (Clip(1e-2, by=by), None))
    for policy in (clipped, plain):
        policy.update(of_rows(0), step=0)
    wanted = [parameter.grad for parameter in plain.critic.parameters()]
    size = torch.nn.utils.get_total_norm(wanted)
    if by == "global_norm":
        wanted = [gradient * (1e-2 / size) for gradient in wanted]
    elif by == "norm":
        wanted = [gradient * (1e-2 / gradient.norm()).clamp(max=1.0) for gradient in wanted]
    else:
        wanted = [gradient.clamp(-1e-2, 1e-2) for gradient in wanted]
    for parameter, gradient in zip(clipped.critic.parameters(), wanted, strict=True):
        assert_close(parameter.grad, gradient, rtol=1e-4, atol=1e-7)
    assert clipped.read_metrics()["critic_grad_norm"] == pytest.approx(float(size), rel=1e-5)
    assert next(clipped.actor.parameters()).grad is None  # whose step is not due, and the critic's leaves it


# ---- after ----


def test_weights_are_projected_after_each_step_as_in_a_plain_loop(engine: dict[str, Any]) -> None:
    policy = Regression(of_step={"after": sphere}, **engine)
    for step in range(20):
        plain = copy.deepcopy(policy.critic).cpu()
        policy.update(of_rows(step), step=step)
        rows = of_rows(step)
        error = (plain(torch.from_numpy(rows.obs)).squeeze(1) - torch.from_numpy(rows.reward)).square()
        (torch.from_numpy(rows.weight) * error).mean().backward()  # type: ignore[no-untyped-call]  # torch's own
        assert_gradients_are(policy.critic, gradients_of(plain))
        for layer in policy.critic.modules():
            if isinstance(layer, nn.Linear):
                assert_close(layer.weight.norm(dim=1).cpu(), torch.ones(len(layer.weight)), rtol=1e-6, atol=1e-6)
    assert policy.engine.name == engine["engine"]


@pytest.mark.parametrize("on_nan", ["raise", "skip"])
def test_weights_are_not_projected_where_the_step_is_not_taken(on_nan: Any, engine: dict[str, Any]) -> None:
    policy = Regression(of_step={"after": sphere}, **engine)
    policy.on_nan = on_nan
    with torch.no_grad():
        policy.critic[0].weight.mul_(2.0)
    before = parameters_of(policy)
    try:
        policy.update(of_rows(8, reward=np.full(16, np.nan, np.float32)), step=8)
    except DivergedError:
        assert on_nan == "raise"
    assert_same(parameters_of(policy), before)


@pytest.mark.parametrize(
    ("after", "match"),
    [
        (lambda own: {"0.wieght": own["0.weight"]}, r"got '0.wieght' from .*: it has 0.weight, 0.bias"),
        (lambda own: {"0.weight": own["0.weight"].t()}, r"got \[4, 8\] for 0.weight of \[8, 4\]"),
        (lambda own: own["0.weight"].mul_(0.5) and None, r"new values of parameters by their paths, got NoneType|Bool"),
        (lambda own: {"0.weight": own["0.weight"].mul_(0.5)}, r"wrote to 0.weight: return new tensors"),
    ],
)
def test_what_follows_a_step_returns_new_values_or_is_rejected(after: Any, match: str) -> None:
    with pytest.raises((ConfigError, RuntimeError), match=match):
        Regression(of_step={"after": after})


# ---- moving buffers ----


MOVERS = pytest.mark.parametrize("make", [with_batch_norm, with_spectral_norm])


@MOVERS
def test_moved_buffers_and_gradients_are_those_of_a_plain_loop(make: Any, engine: dict[str, Any]) -> None:
    """Through recordings, and the comparisons of updates 1 to 4, 8 and 16, each move is made exactly once."""
    policy = Regression(make, **engine)
    for step in range(20):
        plain = copy.deepcopy(policy.critic).cpu().train()
        policy.update(of_rows(step), step=step)
        rows = of_rows(step)
        error = (plain(torch.from_numpy(rows.obs)).squeeze(1) - torch.from_numpy(rows.reward)).square()
        (torch.from_numpy(rows.weight) * error).mean().backward()  # type: ignore[no-untyped-call]  # torch's own
        assert_gradients_are(policy.critic, gradients_of(plain))
        for (name, own), wanted in zip(policy.critic.named_buffers(), plain.buffers(), strict=True):
            assert_close(own.cpu(), wanted, rtol=1e-6, atol=1e-6, msg=name)
    assert policy.engine.name == engine["engine"], policy.engine


@MOVERS
def test_buffers_stay_where_a_step_is_not_taken(make: Any, engine: dict[str, Any]) -> None:
    policy = Regression(make, **engine)
    policy.on_nan = "skip"
    for step in range(6):
        policy.update(of_rows(step), step=step)
    before = {name: buffer.clone() for name, buffer in policy.critic.named_buffers()}
    for step in range(6, 9):
        policy.update(of_rows(step, reward=np.full(16, np.nan, np.float32)), step=step)
    for name, buffer in policy.critic.named_buffers():
        assert torch.equal(buffer.cpu(), before[name].cpu()), name
    policy.update(of_rows(9), step=9)
    assert not all(torch.equal(buffer.cpu(), before[name].cpu()) for name, buffer in policy.critic.named_buffers())


@MOVERS
def test_buffers_that_were_replaced_move_or_stay_as_those_before(make: Any, engine: dict[str, Any]) -> None:
    policy = Regression(make, **engine)
    policy.on_nan = "skip"
    for step in range(12):
        if step == 6:
            policy.critic.load_state_dict(copy.deepcopy(policy.critic.state_dict()), assign=True)
        is_skipped, plain = step in (7, 9), copy.deepcopy(policy.critic).cpu().train()
        reward = {"reward": np.full(16, np.nan, np.float32)} if is_skipped else {}
        policy.update(of_rows(step, **reward), step=step)
        if not is_skipped:
            plain(torch.from_numpy(of_rows(step).obs))
        for (name, own), wanted in zip(policy.critic.named_buffers(), plain.buffers(), strict=True):
            assert_close(own.cpu(), wanted, rtol=1e-6, atol=1e-6, msg=f"{name} at {step}")


@pytest.mark.parametrize("engine", engines("torch", "numpy"))
def test_a_module_is_in_training_mode_in_its_own_step_alone(engine: Any) -> None:
    policy = Regression(with_batch_norm, every=1, engine=engine)
    policy.update(of_rows(0), step=0)
    assert set(policy.modes) == {("critic", True, False), ("actor", False, True)}
    assert not any(module.training for module in policy.modules())


# ---- the way from an update to its loss ----


def test_six_frames_lie_between_an_update_and_its_loss() -> None:
    policy, frames = Regression(engine="torch"), []
    policy.gradient_steps["critic"].loss = lambda rows: frames.extend(inspect.stack()) or policy.critic_loss(rows)
    policy.update(of_rows(0), step=0)
    names = [frame.frame.f_code.co_qualname for frame in frames[1:6]]
    expected = ["Objective.__call__", "Engine.minimize", "OneUpdate.__call__", "Learning.update", "Policy.update"]
    assert names == expected  # and the loss itself


# ---- all of it: TD3 ----


def test_td3_has_the_gradients_of_a_hand_written_loop() -> None:
    envs = Spaces(action_space=PUSH)
    policy = TD3Policy(envs, hidden=(16, 16), device="cpu", seed=0)
    with torch.no_grad():  # so that values depend on actions, else a wrong smoothing would hardly show
        for network in (policy.critics, policy.target_critics):
            for weight in network.parameters():
                weight.mul_(2.0)
    for step in range(1, 301):
        rows = pushes(step)
        weights = {name: tensor.clone() for name, tensor in policy.state_dict().items()}
        generator = torch.Generator().set_state(policy.generator.get_state())
        noise = torch.randn(32, 2, generator=generator)
        policy.update(rows, step=step)

        plain = HandWritten(weights)
        plain.critic_loss(rows, noise).backward()  # type: ignore[no-untyped-call]  # torch's own
        for i in range(2):
            assert_networks_agree([own.grad[i] for own in policy.critics.parameters()], plain.gradients("critics.", i))
        if step % 2 == 0:
            moved = {f"critics.{path}": own.detach() for path, own in policy.critics.named_parameters()}
            plain = HandWritten({**weights, **moved})
            plain.actor_loss(rows).backward()  # type: ignore[no-untyped-call]  # torch's own
            assert_networks_agree([own.grad for own in policy.actor.parameters()], plain.gradients("actor."))
        else:
            for path, own in policy.actor.named_parameters():
                assert torch.equal(own, weights[f"actor.{path}"])
        for online, target in ((policy.actor, policy.target_actor), (policy.critics, policy.target_critics)):
            name = "target_actor" if target is policy.target_actor else "target_critics"
            for path, own in target.named_parameters():
                before, followed = weights[f"{name}.{path}"], online.get_parameter(path)
                wanted = torch.lerp(before, followed, 0.005) if step % 2 == 0 else before
                assert_close(own.detach(), wanted.detach(), rtol=1e-6, atol=1e-7)
    assert policy.engine.name == AUTO
    assert policy.read_metrics()["actor_lr"] == pytest.approx(1e-3)


def assert_networks_agree(own: list[Tensor], wanted: list[Tensor]) -> None:
    """Compare the gradients of a network by their norm."""
    mine, theirs = (torch.cat([gradient.flatten() for gradient in both]).double() for both in (own, wanted))
    assert float((mine - theirs).norm()) <= 1e-5 * float(theirs.norm())


def pushes(seed: int) -> TransitionBatch:
    """Return 32 rows whose actions are in the Box, some of them terminated."""
    rng = np.random.default_rng(seed)
    action = rng.uniform(PUSH.low, PUSH.high, (32, 2)).astype(np.float32)
    discount = np.where(rng.random(32) < 0.1, 0.0, 0.99).astype(np.float32)
    return batch_of(32, seed=seed, action=action, discount=discount)


class HandWritten:
    """TD3's losses by plain torch functions of weights."""

    def __init__(self, weights: dict[str, Tensor]) -> None:
        self.weights = {name: tensor.clone().requires_grad_("target" not in name) for name, tensor in weights.items()}

    def actor(self, name: str, x: Tensor) -> Tensor:
        own = [tensor for path, tensor in self.weights.items() if path.startswith(f"{name}.")]
        for weight, bias in ((own[0], own[1]), (own[2], own[3])):
            x = torch.relu(x @ weight.T + bias)
        return torch.tanh(x @ own[4].T + own[5])

    def critic(self, name: str, i: int, x: Tensor, action: Tensor) -> Tensor:
        own = [tensor[i] for path, tensor in self.weights.items() if path.startswith(f"{name}.")]
        x = torch.cat([x, action], dim=1)
        for weight, bias in ((own[0], own[1]), (own[2], own[3])):
            x = torch.relu(x @ weight.T + bias)
        return (x @ own[4].T + own[5]).squeeze(1)

    def critic_loss(self, rows: TransitionBatch, noise: Tensor) -> Tensor:
        obs, next_obs = torch.from_numpy(rows.obs), torch.from_numpy(rows.next_obs)
        middle, half = torch.from_numpy((PUSH.high + PUSH.low) / 2), torch.from_numpy((PUSH.high - PUSH.low) / 2)
        next_action = self.actor("target_actor", next_obs) + (0.2 * noise).clamp(-0.5, 0.5)
        next_action = next_action.clamp(-1.0, 1.0)
        smallest = torch.minimum(*(self.critic("target_critics", i, next_obs, next_action) for i in range(2)))
        target = (torch.from_numpy(rows.reward) + torch.from_numpy(rows.discount) * smallest).detach()
        action = (torch.from_numpy(rows.action) - middle) / half
        errors = [(self.critic("critics", i, obs, action) - target).square() for i in range(2)]
        return (torch.from_numpy(rows.weight) * (errors[0] + errors[1])).sum() / len(target)

    def actor_loss(self, rows: TransitionBatch) -> Tensor:
        obs = torch.from_numpy(rows.obs)
        value = self.critic("critics", 0, obs, self.actor("actor", obs))
        return -(torch.from_numpy(rows.weight) * value).sum() / len(value)

    def gradients(self, prefix: str, of_critic: int | slice = slice(None)) -> list[Tensor]:
        found = [own.grad for path, own in self.weights.items() if path.startswith(prefix)]
        return [gradient[of_critic] for gradient in found if gradient is not None]
