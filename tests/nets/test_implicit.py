"""The network of implicit quantiles against equation 4 in numpy, and the Q-learner that asks it at drawn fractions."""

import copy
import math
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.testing import assert_close

from tests.helpers.learning import MASKED, NEVER, assert_same, batch_of, made, parameters_of
from trainkit import Adam, ConfigError, DoubleBackup, DQNPolicy, ImplicitQuantileValue
from trainkit.nets import ImplicitQNetwork, Prediction

VALUE = ImplicitQuantileValue(3, target_quantiles=5, acting_quantiles=4)
Array = NDArray[np.float64]


def network(seed: int = 0, **options: Any) -> ImplicitQNetwork:
    net = ImplicitQNetwork((4,), 3, **{"hidden": (6,)} | options)
    net.draw(seed)
    return net


def random(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def fractions_of(*shape: int) -> Tensor:
    return torch.rand(*shape, generator=torch.Generator().manual_seed(5))


def relu(x: Array) -> Array:
    return np.maximum(x, 0.0)


def arrays(net: ImplicitQNetwork) -> dict[str, Array]:
    return {name: tensor.double().numpy() for name, tensor in parameters_of(net).items()}


def head(w: dict[str, Array], name: str, x: Array, noise: Array | None) -> Array:
    """Return one layer of a head for one vector: equations 9 to 11 of the noisy networks where there is noise."""
    weight, bias = (w[f"heads.{name}.layers.0.{part}"] for part in ("weight", "bias"))
    if noise is None:
        return weight @ x + bias
    weight_sigma, bias_sigma = (w[f"heads.{name}.layers.0.{part}_sigma"] for part in ("weight", "bias"))
    e_in, e_out = noise[: len(x)], noise[len(x) :]
    return (weight + weight_sigma * np.outer(e_out, e_in)) @ x + bias + bias_sigma * e_out


def by_hand(
    net: ImplicitQNetwork, x: Tensor, fractions: Tensor, noise: Tensor | None = None, legal: Tensor | None = None
) -> Array:
    """Return the numbers [B, A, W] of the paper's section 3.1, one row and one fraction at a time."""
    w, n_rows = arrays(net), len(x)
    at = np.broadcast_to(fractions.double().numpy(), (n_rows, fractions.shape[1]))
    numbers = np.zeros((n_rows, 3, at.shape[1]))
    for row in range(n_rows):
        psi = relu(w["encoder.body.layers.0.weight"] @ x[row].double().numpy() + w["encoder.body.layers.0.bias"])
        e = None if noise is None else noise[row if len(noise) > 1 else 0].double().numpy()
        for place, tau in enumerate(at[row].tolist()):
            cosines = np.array([math.cos(math.pi * i * tau) for i in range(64)])
            phi = relu(w["embedding.linear.weight"] @ cosines + w["embedding.linear.bias"])
            n_advantage = 6 + 3  # the advantage's noise comes first
            advantage = head(w, "advantage", psi * phi, None if e is None else e[:n_advantage])
            if "heads.state_value.layers.0.weight" in w:
                level = head(w, "state_value", psi * phi, None if e is None else e[n_advantage:])
                allowed = np.ones(3, bool) if legal is None else legal[row].numpy()
                advantage = level + advantage - advantage[allowed].mean()
            numbers[row, :, place] = advantage
    return numbers


class TestNetwork:
    @pytest.mark.parametrize("shape", [(5, 7), (1, 7), (5, 1)], ids=str)
    def test_equals_equation_4(self, shape: tuple[int, int]) -> None:
        net, x, at = network(), random(5, 4), fractions_of(*shape)
        prediction = net(x, None, None, at)

        assert prediction.outputs.shape == (5, 3, shape[1])
        assert prediction.fractions is at
        np.testing.assert_allclose(prediction.outputs.detach(), by_hand(net, x, at), rtol=1e-4, atol=1e-5)

    def test_answers_at_the_ends_of_0_and_1_too(self) -> None:
        net, x, at = network(), random(2, 4), torch.tensor([[0.0, 1.0]])

        np.testing.assert_allclose(net(x, None, None, at).outputs.detach(), by_hand(net, x, at), rtol=1e-4, atol=1e-5)

    @pytest.mark.parametrize("dueling", [False, True])
    @pytest.mark.parametrize("n_noises", [5, 1], ids=["per row", "one for all"])
    def test_noise_is_one_per_row_or_one_for_all_and_the_same_at_every_fraction(
        self, n_noises: int, dueling: bool
    ) -> None:
        net, x, at = network(noisy=True, dueling=dueling), random(5, 4), fractions_of(5, 7)
        noise = random(n_noises, net.noise_size, seed=3)

        assert net.noise_size == (6 + 3) + dueling * (6 + 1)
        np.testing.assert_allclose(
            net(x, noise, None, at).outputs.detach(), by_hand(net, x, at, noise), rtol=1e-4, atol=1e-5
        )

    def test_dueling_takes_out_the_mean_over_legal_actions_at_every_fraction(self) -> None:
        net, x, at = network(dueling=True), random(4, 4), fractions_of(4, 7)
        legal = torch.tensor([[1, 0, 1], [1, 1, 1], [0, 1, 0], [0, 1, 1]]) != 0
        numbers = net(x, None, legal, at).outputs.detach()

        np.testing.assert_allclose(numbers, by_hand(net, x, at, None, legal), rtol=1e-4, atol=1e-5)
        assert not np.allclose(numbers[0], by_hand(net, x, at)[0], atol=1e-3)

    def test_one_row_of_fractions_is_asked_of_all_rows(self) -> None:
        net, x, at = network(dueling=True, noisy=True), random(5, 4), fractions_of(1, 7)
        noise = random(5, net.noise_size)

        assert_close(
            net(x, noise, None, at).outputs, net(x, noise, None, at.expand(5, 7)).outputs, rtol=1e-5, atol=1e-6
        )

    def test_a_row_answers_as_if_it_were_alone(self) -> None:
        net, x, at = network(), random(5, 4), fractions_of(5, 7)
        whole = net(x, None, None, at).outputs

        for row in range(5):
            alone = net(x[row : row + 1], None, None, at[row : row + 1]).outputs
            assert_close(whole[row : row + 1], alone, rtol=1e-4, atol=1e-6)

    def test_the_same_seed_draws_the_same_and_another_all_different(self) -> None:
        one, same, other = (parameters_of(network(seed)) for seed in (1, 1, 2))

        assert_same(one, same)
        assert all((one[name] != other[name]).all() for name in one)

    def test_numbers_of_cosines_and_actions_that_cannot_work_are_refused_at_once(self) -> None:
        with pytest.raises(ConfigError) as refusal:
            ImplicitQNetwork((4,), 0, hidden=(0,), n_cosines=0, sigma0=-1)

        assert str(refusal.value).count("ImplicitQNetwork.") == 4


class Recorder(ImplicitQNetwork):
    """Write down the fractions it is asked at."""

    def __init__(self, **options: Any) -> None:
        super().__init__((4,), 3, hidden=(6,), **options)
        self.asked: list[Tensor] = []

    def forward(self, features: Any, noise: Any, legal: Any, fractions: Tensor) -> Prediction:
        self.asked.append(fractions)
        return super().forward(features, noise, legal, fractions)


class Listener(ImplicitQuantileValue):
    """Write down the fractions its loss is told, and the shapes it compares."""

    def __init__(self) -> None:
        super().__init__(3, target_quantiles=5, acting_quantiles=4)
        self.told: list[Any] = []

    def loss(self, chosen: Tensor, td_target: Tensor, fractions: Tensor | None = None) -> tuple[Tensor, Tensor]:
        self.told.append((tuple(chosen.shape), tuple(td_target.shape), fractions))
        return super().loss(chosen, td_target, fractions)


def spied(**options: Any) -> DQNPolicy:
    """Make a policy whose parts write down what they are given: torch calls them at every update."""
    usual = {"value": Listener(), "device": "cpu", "seed": 0, "target": NEVER, "engine": "torch"}
    return DQNPolicy(Recorder(), **usual | options)


class TestPolicy:
    def test_acts_at_midpoints_and_draws_nothing(self) -> None:
        policy = spied()
        before = policy.generator.get_state()
        policy.act(batch_of(6).obs)
        policy.act(batch_of(6).obs, explore=True)

        for asked in policy.network.asked:
            assert_close(asked, torch.tensor([[0.125, 0.375, 0.625, 0.875]]))
        assert torch.equal(policy.generator.get_state(), before)

    def test_values_are_means_over_the_midpoints(self) -> None:
        policy = made(value=VALUE)
        obs = batch_of(6).obs
        at = torch.tensor([[0.125, 0.375, 0.625, 0.875]])
        with torch.no_grad():
            expected = policy.network(torch.from_numpy(obs), None, None, at).outputs.mean(dim=2)

        np.testing.assert_allclose(policy.action_values(obs), expected, rtol=1e-5, atol=1e-6)

    def test_an_update_asks_each_network_at_its_own_fractions_new_for_every_row(self) -> None:
        policy = spied()
        for step in range(2):
            policy.update(batch_of(6), step=step)
        (first, second), (judged, again) = policy.network.asked, policy.target_network.asked

        assert (first.shape, judged.shape) == ((6, 3), (6, 5))
        assert len(torch.cat([first, second, judged, again], dim=1).unique()) == 6 * 16

    def test_the_loss_is_told_the_fractions_that_the_network_was_asked_at(self) -> None:
        policy = spied()
        policy.update(batch_of(6), step=0)

        ((chosen, td_target, told),) = policy.value.told
        assert (chosen, td_target) == ((6, 3), (6, 5))
        assert told is policy.network.asked[0]

    def test_double_asks_the_online_network_about_the_next_state_at_its_own_fractions(self) -> None:
        policy = spied(backup=DoubleBackup())
        policy.update(batch_of(6), step=0)

        now, following = policy.network.asked
        assert now is following
        assert [asked.shape for asked in policy.target_network.asked] == [(6, 5)]

    def test_alike_policies_learn_bit_by_bit_alike_and_other_seeds_draw_other_fractions(self) -> None:
        one, same = (made(value=VALUE, dueling=True, noisy=True) for _ in range(2))
        other = made(value=VALUE, dueling=True, noisy=True)
        other.start_streams(77)
        for step in range(5):
            for policy in (one, same, other):
                policy.update(batch_of(8, seed=step), step=step)

        assert_same(parameters_of(one), parameters_of(same))
        assert any((a != b).any() for a, b in zip(one.parameters(), other.parameters(), strict=True))

    def test_for_envs_makes_the_network_that_fractions_need(self) -> None:
        assert isinstance(made(value=VALUE).network, ImplicitQNetwork)


def slow_loss(
    net: ImplicitQNetwork, target: ImplicitQNetwork, batch: Any, asked: Any, is_double: bool
) -> tuple[Tensor, list[float]]:
    """Return the weighted mean of equation 3 over rows, by loops, and the mean absolute differences."""
    mine, theirs = asked
    total, priorities = torch.zeros(()), []
    for i in range(len(batch)):
        x, y = (torch.from_numpy(obs["obs"][i : i + 1]) for obs in (batch.obs, batch.next_obs))
        legal = batch.next_obs["action_mask"][i]
        chosen = net(x, None, None, mine[i : i + 1]).outputs[0, batch.action[i]]
        with torch.no_grad():
            judged = target(y, None, None, theirs[i : i + 1]).outputs[0]
            means = (net(y, None, None, mine[i : i + 1]).outputs[0] if is_double else judged).mean(dim=1).tolist()
        best = max((mean, action) for action, mean in enumerate(means) if legal[action])[1]
        loss, distance = torch.zeros(()), 0.0
        for place in range(3):
            for after in judged[best].tolist():
                td = float(batch.reward[i]) + float(batch.discount[i]) * after - chosen[place]
                share = abs(float(mine[i, place]) - (td.item() < 0))
                huber = td**2 / 2 if abs(td.item()) <= 1 else td.abs() - 0.5
                loss = loss + share * huber / 5
                distance += abs(td.item()) / 15
        total = total + float(batch.weight[i]) * loss / len(batch)
        priorities.append(distance)
    return total, priorities


@pytest.mark.parametrize("engine", ["torch", "numpy"])
@pytest.mark.parametrize("is_double", [False, True], ids=["max", "double"])
def test_updates_equal_those_of_a_slow_reference(is_double: bool, engine: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    parts: dict[str, Any] = {"backup": DoubleBackup()} if is_double else {}
    policy = spied(optimizer=Adam(1e-2), engine=engine, **parts)
    draw, drawn = policy.loss_inputs, []
    monkeypatch.setattr(policy, "loss_inputs", lambda *rows, **at: drawn.append(draw(*rows, **at)) or drawn[-1])
    net = copy.deepcopy(policy.network)
    target, optimizer = copy.deepcopy(net), torch.optim.Adam(net.parameters(), 1e-2)
    for step in range(5):
        batch = batch_of(6, seed=10 * step, space=MASKED)
        priority = policy.update(batch, step=step).read_priority()
        asked = tuple(draw.fractions for draw in drawn[-1].values())
        loss, expected = slow_loss(net, target, batch, asked, is_double)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()

        np.testing.assert_allclose(priority, expected, rtol=1e-3, atol=1e-4)
        assert policy.read_metrics()["loss"] == pytest.approx(loss.item(), rel=1e-3, abs=1e-5)
    assert_close(list(policy.network.parameters()), list(net.parameters()), rtol=1e-3, atol=1e-4)
