"""The Q-learner learns: updates against a slow reference, weights, statistics, divergence."""

import copy
import math
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.testing import assert_close

from tests.helpers.engine import torch_only
from tests.helpers.learning import (
    MASKED,
    NEVER,
    PARTS,
    Spaces,
    algorithm_1,
    assert_same,
    batch_of,
    linear,
    made,
    parameters_of,
    small_net,
    wide_net,
)
from trainkit import (
    Adam,
    CategoricalValue,
    Clip,
    DoubleBackup,
    DQNPolicy,
    ExpectedValue,
    MaxBackup,
    Target,
    TransitionBatch,
)
from trainkit.errors import DivergedError


class Counterpart:
    """The whole update by loops over rows, plain autograd and torch's Adam."""

    def __init__(self, net: nn.Module, *, loss: str, is_double: bool, lr: float, clip: float | None) -> None:
        self.net, self.target = net, copy.deepcopy(net)
        self.kind, self.is_double, self.clip = loss, is_double, clip
        self.optimizer = torch.optim.Adam(net.parameters(), lr)
        self.support = torch.linspace(-2.0, 2.0, 9)

    def mean(self, numbers: Tensor) -> Tensor:
        return numbers.softmax(-1) @ self.support if self.kind == "categorical" else numbers[..., 0]

    def row(self, batch: TransitionBatch, i: int) -> tuple[Tensor, float, float]:
        """Return one row's loss, its priority and the chosen action's value."""
        now, following = (obs["obs"] if isinstance(obs, dict) else obs for obs in (batch.obs, batch.next_obs))
        chosen = self.net(torch.from_numpy(now[i : i + 1]))[0, batch.action[i]]
        with torch.no_grad():
            x = torch.from_numpy(following[i : i + 1])
            evaluated = self.target(x)[0]
            values = self.mean(self.net(x)[0] if self.is_double else evaluated).tolist()
        legal = batch.next_obs["action_mask"][i] if isinstance(batch.next_obs, dict) else np.ones(3)
        best = max((value, action) for action, value in enumerate(values) if legal[action])[1]
        after, reward, discount = evaluated[best], float(batch.reward[i]), float(batch.discount[i])
        if self.kind == "categorical":
            td_target = torch.tensor(algorithm_1(after.softmax(0).tolist(), self.support.tolist(), reward, discount))
            loss = -(td_target * chosen.log_softmax(0)).sum()
            entropy = -sum(p * math.log(p) for p in td_target.tolist() if p > 0)
            return loss, loss.item() - entropy, self.mean(chosen).item()
        td = reward + discount * after[0] - chosen[0]
        size = abs(td.item())
        huber = td**2 / 2 if size <= 1 else abs(td) - 0.5
        return td**2 if self.kind == "mse" else huber, size, chosen[0].item()

    def update(self, batch: TransitionBatch) -> tuple[list[float], dict[str, float]]:
        rows = [self.row(batch, i) for i in range(len(batch))]
        loss = sum(float(batch.weight[i]) * rows[i][0] for i in range(len(batch))) / len(batch)
        self.optimizer.zero_grad()
        loss.backward()
        norm = float(torch.nn.utils.clip_grad_norm_(self.net.parameters(), self.clip or math.inf))
        self.optimizer.step()
        q_mean = sum(q for *_, q in rows) / len(rows)
        shown = {"loss": loss.item(), "q_mean": q_mean, "weight_mean": batch.weight.mean(), "grad_norm": norm}
        return [priority for _, priority, _ in rows], shown


@pytest.mark.one_of_each
@pytest.mark.parametrize("space", [Spaces().observation_space, MASKED], ids=["all legal", "masked"])
@pytest.mark.parametrize("is_double", [False, True], ids=["max", "double"])
@pytest.mark.parametrize("loss", ["huber", "mse", "categorical"])
def test_updates_equal_those_of_a_slow_reference(loss: str, is_double: bool, space: Any) -> None:
    width = 9 if loss == "categorical" else 1
    value = CategoricalValue(9, -2.0, 2.0) if loss == "categorical" else ExpectedValue(loss)
    backup = DoubleBackup() if is_double else MaxBackup()
    clip = 0.5 if is_double else None
    policy = DQNPolicy(
        wide_net(width),
        value=value,
        backup=backup,
        target=Target(every=10, unit="updates"),
        optimizer=Adam(1e-2),
        clip=None if clip is None else Clip(clip),
        device="cpu",
        seed=0,
    )
    counterpart = Counterpart(wide_net(width), loss=loss, is_double=is_double, lr=1e-2, clip=clip)
    expected = []
    for i in range(25):
        batch = batch_of(8, seed=10 * i, space=space)
        result = policy.update(batch, step=i)
        priority, shown = counterpart.update(batch)
        expected.append(shown)
        if (i + 1) % 10 == 0:
            counterpart.target.load_state_dict(counterpart.net.state_dict())
        np.testing.assert_allclose(result.read_priority(), priority, rtol=1e-3, atol=1e-4)

    assert_close(list(policy.network.parameters()), list(counterpart.net.parameters()), rtol=1e-3, atol=1e-4)
    assert_close(list(policy.target_network.parameters()), list(counterpart.target.parameters()), rtol=1e-3, atol=1e-4)
    metrics = policy.read_metrics()
    for name in expected[0]:
        mean = sum(shown[name] for shown in expected) / 25
        assert metrics[name] == pytest.approx(mean, rel=1e-3, abs=1e-4), name


def one_update(value: Any, reward: list[float], weight: list[float], numbers: Any = None) -> dict[str, float]:
    """Update once on terminal rows whose chosen value is 0 (or `numbers`), and return the metrics."""
    net = linear(np.zeros((3 * value.width, 2)), numbers)
    policy = DQNPolicy(
        nn.Sequential(net, nn.Unflatten(1, (3, value.width))), value=value, target=NEVER, device="cpu", seed=0
    )
    n_rows = len(reward)
    batch = TransitionBatch(
        obs=np.zeros((n_rows, 2), np.float32),
        action=np.zeros(n_rows, np.int64),
        reward=np.array(reward, np.float32),
        discount=np.zeros(n_rows, np.float32),
        next_obs=np.zeros((n_rows, 2), np.float32),
        weight=np.array(weight, np.float32),
        slots=np.arange(n_rows),
    )
    policy.update(batch, step=0)
    return policy.read_metrics()


class TestWeights:
    """Two rows, td 2 and 0.5, weights 0.25 and 1: a mean over rows, not over weights."""

    def test_multiply_huber_losses(self) -> None:
        assert one_update(ExpectedValue("huber"), [2.0, 0.5], [0.25, 1.0])["loss"] == pytest.approx(
            (0.25 * 1.5 + 1.0 * 0.125) / 2
        )

    def test_multiply_square_losses(self) -> None:
        assert one_update(ExpectedValue("mse"), [2.0, 0.5], [0.25, 1.0])["loss"] == pytest.approx(
            (0.25 * 4.0 + 1.0 * 0.25) / 2
        )

    def test_multiply_cross_entropies(self) -> None:
        value = CategoricalValue(2, 0.0, 1.0)  # both logits 0: every td_target costs ln 2
        assert one_update(value, [1.0, 0.0], [0.25, 1.0])["loss"] == pytest.approx(1.25 * math.log(2) / 2)

    def test_show_in_the_gradient(self) -> None:
        # mse: the gradient of the chosen action's bias is -(0.25 * 2 * 2 + 1 * 2 * 0.5) / 2
        assert one_update(ExpectedValue("mse"), [2.0, 0.5], [0.25, 1.0])["grad_norm"] == pytest.approx(1.0)

    @pytest.mark.parametrize("by_torch", [False, True], ids=["numpy", "torch"])
    def test_multiply_each_rows_gradient(self, by_torch: bool) -> None:
        def gradient(rows: slice, weight: list[float]) -> dict[str, Tensor]:
            policy = made(dueling=True, max_grad_norm=None)
            both = batch_of(2)
            columns = {name: getattr(both, name)[rows] for name in ("obs", "action", "reward", "discount", "next_obs")}
            batch = batch_of(len(weight), **columns, weight=np.array(weight, np.float32))
            (torch_only(policy) if by_torch else policy).update(batch, step=0)
            return {name: p.grad.clone() for name, p in policy.network.named_parameters() if p.grad is not None}

        first, second = gradient(slice(1), [1.0]), gradient(slice(1, 2), [1.0])
        together = gradient(slice(2), [0.25, 1.0])
        assert together
        for name, own in together.items():
            torch.testing.assert_close(own, (0.25 * first[name] + second[name]) / 2)

    def test_are_shown_and_do_not_touch_priorities_and_td(self) -> None:
        metrics = one_update(ExpectedValue("mse"), [2.0, 0.5], [0.25, 1.0])

        assert metrics["weight_mean"] == pytest.approx(0.625)
        assert metrics["td_abs_mean"] == pytest.approx(1.25)
        assert metrics["td_abs_max"] == pytest.approx(2.0)

    def test_of_zero_move_nothing(self) -> None:
        assert one_update(ExpectedValue("mse"), [2.0, 0.5], [0.0, 0.0])["grad_norm"] == 0.0


class TestStatistics:
    def test_are_means_over_all_updates_since_the_last_read(self) -> None:
        policy = DQNPolicy(linear(np.zeros((3, 4))), optimizer=Adam(0.0), device="cpu", seed=0)
        losses = [0.5, 1.5, 2.5, 19.5]
        for i, reward in enumerate([1.0, 2.0, 3.0, 20.0]):  # huber of a value that stays 0
            ones = np.ones(2, np.float32)
            policy.update(batch_of(2, reward=reward * ones, discount=0 * ones, weight=ones), step=i)
            if i == 2:
                assert policy.read_metrics()["loss"] == pytest.approx(sum(losses[:3]) / 3)

        assert policy.read_metrics()["loss"] == pytest.approx(19.5)

    def test_are_none_before_the_first_update_and_right_after_a_read(self) -> None:
        policy = made()
        assert policy.read_metrics() == {}
        policy.update(batch_of(8), step=0)
        assert policy.read_metrics() != {}
        assert policy.read_metrics() == {}

    def test_have_these_names(self) -> None:
        names = {
            "loss",
            "q_mean",
            "q_max",
            "q_min",
            "td_abs_mean",
            "td_abs_max",
            "weight_mean",
            "effective_share",
            "grad_norm",
            "lr",
            "target_followed",
        }
        categorical = {"clipped_share", "value_entropy"}
        for value, more in ((ExpectedValue(), set()), (CategoricalValue(5, -1, 1), categorical)):
            policy = made(value=value)
            policy.update(batch_of(8), step=0)
            assert policy.read_metrics().keys() == names | more

    def test_metrics_have_the_learning_rate_of_the_step(self) -> None:
        policy = made(lr=[(0, 0.1), (100, 0.0)])
        policy.update(batch_of(8), step=50)

        assert policy.read_metrics()["lr"] == pytest.approx(0.05)

    def test_count_updates(self) -> None:
        policy = made()
        for step in range(3):
            policy.update(batch_of(8), step=step)

        assert policy.n_updates == 3


class TestUpdate:
    def test_lets_no_gradient_into_the_target(self) -> None:
        policy = made(target=NEVER, dueling=True)
        before = parameters_of(policy.target_network)
        for step in range(5):
            policy.update(batch_of(8), step=step)

        assert_same(parameters_of(policy.target_network), before)
        assert all(parameter.grad is None for parameter in policy.target_network.parameters())

    def test_moves_every_parameter(self) -> None:
        policy = made(double=True, dueling=True, noisy=True, value=CategoricalValue(5, -1, 1), head=(6,))
        before = parameters_of(policy.network)
        for step in range(5):
            policy.update(batch_of(32), step=step)

        for name, parameter in parameters_of(policy.network).items():
            assert (parameter != before[name]).any(), name

    def test_lets_the_target_follow_after_the_step_is_taken(self) -> None:
        policy = made(target=Target(every=2, unit="updates"))
        same = []
        for step in range(4):
            policy.update(batch_of(8), step=step)
            pairs = zip(policy.network.parameters(), policy.target_network.parameters(), strict=True)
            same.append(all(torch.equal(one, other) for one, other in pairs))

        assert same == [False, True, False, True]

    @pytest.mark.parametrize("value", [ExpectedValue(), ExpectedValue("mse")])
    @pytest.mark.parametrize("bad", [math.inf, -math.inf, math.nan])
    def test_takes_no_harm_from_a_value_after_termination_that_is_not_finite(self, value: Any, bad: float) -> None:
        next_obs = np.full((8, 4), bad, np.float32)
        policy = DQNPolicy(small_net((4, 3)), value=value, device="cpu", seed=0)
        priority = policy.update(
            batch_of(8, discount=np.zeros(8, np.float32), next_obs=next_obs), step=0
        ).read_priority()

        assert np.isfinite(priority).all()
        assert all(parameter.isfinite().all() for parameter in policy.parameters())

    def test_takes_no_harm_from_a_mask_that_allows_nothing_after_termination(self) -> None:
        policy = made(MASKED, dueling=True, double=True, value=CategoricalValue(5, -1, 1))
        batch = batch_of(8, space=MASKED, discount=np.zeros(8, np.float32))
        batch.next_obs["action_mask"][:] = 0
        priority = policy.update(batch, step=0).read_priority()

        assert np.isfinite(priority).all()

    def test_leaves_the_batch_as_it_is(self) -> None:
        policy, batch = made(MASKED, dueling=True, double=True), batch_of(8, space=MASKED)
        before = copy.deepcopy(batch)
        policy.update(batch, step=0)

        for name in ("obs", "action", "reward", "discount", "next_obs", "weight", "slots"):
            assert_same(getattr(batch, name), getattr(before, name))

    @pytest.mark.parametrize("dtype", [np.int32, np.int64, np.uint8])
    def test_takes_actions_of_any_whole_dtype(self, dtype: Any) -> None:
        one, other = made(), made()
        batch = batch_of(8)
        one.update(batch, step=0)
        other.update(batch_of(8, action=batch.action.astype(dtype)), step=0)

        assert_same(parameters_of(one), parameters_of(other))

    def test_takes_one_row(self) -> None:
        assert made(dueling=True).update(batch_of(1), step=0).read_priority().shape == (1,)

    @pytest.mark.parametrize("options", PARTS)
    def test_gives_a_finite_priority_per_row(self, options: Any) -> None:
        priority = made(**options).update(batch_of(8), step=0).read_priority()

        assert priority.shape == (8,)
        assert np.isfinite(priority).all()
        assert (priority >= 0).all()

    @pytest.mark.fast_cases(3)
    @pytest.mark.parametrize("options", PARTS)
    def test_learns_to_distinguish_two_observations(self, options: Any) -> None:
        policy = made(**options | {"lr": 1e-2, "n_step": 1})
        obs = np.tile(np.array([[1, 0, 0, 0], [0, 1, 0, 0]], np.float32), (16, 1))
        ends = {"obs": obs, "next_obs": obs, "discount": np.zeros(32, np.float32), "weight": np.ones(32, np.float32)}
        for step in range(200):
            action = np.random.default_rng(step).integers(3, size=32)
            batch = batch_of(32, action=action, reward=((obs[:, 0] == 1) == (action == 2)).astype(np.float32), **ends)
            policy.update(batch, step=step)
        wants = policy.action_values(obs[:2])

        assert wants[0] == pytest.approx([0, 0, 1], abs=0.2)
        assert wants[1] == pytest.approx([1, 1, 0], abs=0.2)


class TestDivergence:
    def test_of_a_gradient_stops_before_anything_moves(self) -> None:
        policy = made()
        for step in range(3):
            policy.update(batch_of(8), step=step)
        before = copy.deepcopy(policy.training_state())
        reward = np.array([0, 0, math.nan, 0, 0, 0, 0, 0], np.float32)
        with pytest.raises(DivergedError) as stop:
            policy.update(batch_of(8, reward=reward), step=77)

        assert_same(policy.training_state(), before)
        for part in ("DQNPolicy: update 4 at step 77", "gradient norm nan", "not taken", "lower the learning rate"):
            assert part in str(stop.value)

    @pytest.mark.parametrize(
        "value",
        [
            ExpectedValue(),
            ExpectedValue("mse"),
            CategoricalValue(5, -1, 1),
        ],
        ids=["huber", "mse", "categorical"],
    )
    def test_comes_of_a_reward_that_is_no_number_whatever_the_value_part(self, value: Any) -> None:
        policy = made(value=value)
        before = parameters_of(policy)
        with pytest.raises(DivergedError):
            policy.update(batch_of(8, reward=np.full(8, math.nan, np.float32)), step=0)

        assert_same(parameters_of(policy), before)

    def test_leaves_a_policy_that_can_continue(self) -> None:
        policy, straight = made(), made()
        with pytest.raises(DivergedError):
            policy.update(batch_of(8, reward=np.full(8, math.nan, np.float32)), step=0)
        for step in range(3):
            policy.update(batch_of(8), step=step)
            straight.update(batch_of(8), step=step)

        assert_same(parameters_of(policy), parameters_of(straight))
        assert policy.n_updates == 3
        assert policy.read_metrics() == straight.read_metrics()

    def test_of_the_loss_alone_stops_as_well(self) -> None:
        policy = made(value=ExpectedValue("huber"))
        before = parameters_of(policy)
        with pytest.raises(DivergedError):
            policy.update(batch_of(8, reward=np.full(8, math.inf, np.float32)), step=0)

        assert_same(parameters_of(policy), before)
