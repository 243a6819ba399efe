"""Networks: dueling by hand, layers against torch's functions, and how everything starts."""

import copy
import math
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional
from torch.testing import assert_close

from tests.helpers.engine import engines
from tests.helpers.learning import MASKED, NEVER, assert_same, batch_of, made, parameters_of, small_net
from tests.helpers.networks import drawn, random, run_by_hand
from trainkit import Adam, ConfigError, DoubleBackup, DQNPolicy, ImplicitQuantileValue
from trainkit.nets import ImplicitQNetwork, NoisyLinear, Prediction, QNetwork
from trainkit.nets.networks import PlainModule


def constant(advantages: list[float], state_values: list[float], **options: Any) -> QNetwork:
    """Make a dueling network that says the same of every observation: biases alone."""
    width = len(state_values)
    network = QNetwork((2,), len(advantages) // width, width=width, hidden=(), dueling=True, **options)
    with torch.no_grad():
        for parameter in network.parameters():
            parameter.zero_()
        network.heads.advantage.layers[0].bias.copy_(torch.tensor(advantages))
        assert network.heads.state_value is not None
        network.heads.state_value.layers[0].bias.copy_(torch.tensor(state_values))
    return network


class TestDueling:
    def test_takes_out_the_mean_over_actions(self) -> None:
        numbers = constant([1, 2, 6], [10])(torch.zeros(1, 2)).outputs

        assert numbers.tolist() == [[[8], [9], [13]]]

    def test_takes_out_the_mean_over_actions_of_every_atom_apart(self) -> None:
        numbers = constant([1, 10, 3, 30], [100, 200])(torch.zeros(1, 2)).outputs  # [B, A, W]: (1, 10), (3, 30)

        assert numbers.tolist() == [[[99, 190], [101, 210]]]

    def test_takes_out_the_mean_over_legal_actions_where_there_is_a_mask(self) -> None:
        legal = torch.tensor([[True, False, True], [True, True, True], [False, True, False]])
        numbers = constant([1, 2, 6], [10])(torch.zeros(3, 2), None, legal).outputs

        assert numbers.squeeze(2)[0, [0, 2]].tolist() == [7.5, 12.5]
        assert numbers.squeeze(2)[1].tolist() == [8, 9, 13]
        assert numbers.squeeze(2)[2, 1].item() == 10

    def test_stays_finite_where_nothing_is_legal_as_after_a_termination(self) -> None:
        numbers = constant([1, 2, 6], [10])(torch.zeros(1, 2), None, torch.zeros(1, 3, dtype=torch.bool)).outputs

        assert numbers.isfinite().all()

    def test_raising_one_action_lowers_the_others_advantages(self) -> None:
        network = constant([1, 2, 6], [10])
        network(torch.zeros(1, 2)).outputs[0, 1, 0].backward()  # V + A_1 - (A_0 + A_1 + A_2) / 3

        assert network.heads.state_value is not None
        assert_close(network.heads.advantage.layers[0].bias.grad, torch.tensor([-1 / 3, 2 / 3, -1 / 3]))
        assert_close(network.heads.state_value.layers[0].bias.grad, torch.tensor([1.0]))

    @pytest.mark.parametrize("width", [1, 5])
    def test_both_streams_learn(self, width: int) -> None:
        network = QNetwork((2,), 3, width=width, hidden=(4,), dueling=True)
        network(random(6, 2)).outputs[:, 1].square().sum().backward()

        assert network.heads.state_value is not None
        for stream in (network.heads.advantage, network.heads.state_value):
            gradient = stream.layers[0].weight.grad
            assert gradient is not None
            assert (gradient.abs().sum(dim=1) > 0).all()

    def test_without_it_the_head_speaks_for_itself(self) -> None:
        network = QNetwork((2,), 3, hidden=())
        x = random(4, 2)
        head = network.heads.advantage.layers[0]

        assert network.heads.state_value is None
        assert_close(network(x).outputs.squeeze(2), functional.linear(x, head.weight, head.bias))


class TestQNetwork:
    @pytest.mark.parametrize("dueling", [False, True])
    @pytest.mark.parametrize("noisy", [False, True])
    def test_gives_numbers_per_action_for_any_tree_of_features(self, dueling: bool, noisy: bool) -> None:
        shapes = {"camera": (3, 36, 36), "speed": (2,), "map": ((5,), (1, 40, 40))}
        network = drawn(QNetwork(shapes, 4, width=6, hidden=(8,), head=(7,), dueling=dueling, noisy=noisy))
        features = {
            "camera": random(2, 3, 36, 36),
            "speed": random(2, 2),
            "map": (random(2, 5), random(2, 1, 40, 40)),
        }

        assert network(features).outputs.shape == (2, 4, 6)
        assert network(features).fractions is None
        (features["map"][0])[1] += 1
        assert (network(features).outputs[0] != network(features).outputs[1]).any()

    def test_every_leaf_matters(self) -> None:
        network = QNetwork({"camera": (1, 36, 36), "speed": (2,)}, 3, hidden=())
        blank = {"camera": torch.zeros(1, 1, 36, 36), "speed": torch.zeros(1, 2)}
        before = network(blank).outputs

        assert (network(blank | {"camera": torch.ones(1, 1, 36, 36)}).outputs != before).any()
        assert (network(blank | {"speed": torch.ones(1, 2)}).outputs != before).any()

    @pytest.mark.parametrize("rows", [1, 5])
    def test_noise_goes_to_the_advantages_first_and_the_state_value_after(self, rows: int) -> None:
        network = QNetwork((3,), 2, width=2, hidden=(4,), head=(6,), dueling=True, noisy=True)
        x, noise = random(5, 3), random(rows, network.noise_size, seed=1)
        assert network.heads.state_value is not None
        n_first = network.heads.advantage.noise_size

        hidden = run_by_hand(network.encoder.body, x, None, activate_last=True)
        advantage = run_by_hand(network.heads.advantage, hidden, noise[:, :n_first], activate_last=False).view(5, 2, 2)
        state_value = run_by_hand(network.heads.state_value, hidden, noise[:, n_first:], activate_last=False).view(
            5, 1, 2
        )
        expected = state_value + advantage - (advantage[:, :1] + advantage[:, 1:]) / 2
        assert network.noise_size == (4 + 6) + (6 + 4) + (4 + 6) + (6 + 2)
        assert_close(network(x, noise).outputs, expected)

    def test_only_the_heads_are_noisy(self) -> None:
        network = QNetwork((3,), 2, hidden=(4, 4), head=(5,), dueling=True, noisy=True)
        noisy = {
            name.split(".")[1]
            for name, layer in network.heads.named_modules(prefix="heads")
            if isinstance(layer, NoisyLinear)
        }

        assert noisy == {"advantage", "state_value"}
        assert QNetwork((3,), 2, hidden=(4,)).noise_size == 0

    def test_sigma0_reaches_every_noisy_layer(self) -> None:
        network = QNetwork((9,), 2, hidden=(), head=(16,), noisy=0.3)
        sigmas = [layer.weight_sigma.flatten()[0].item() for layer in network.heads.advantage.layers]

        assert sigmas == pytest.approx([0.3 / 3, 0.3 / 4])

    def test_no_hidden_layer_at_all_is_a_linear_map_of_the_features(self) -> None:
        network = QNetwork((10,), 3, hidden=(), head=())

        assert [tuple(parameter.shape) for parameter in network.parameters()] == [(3, 10), (3,)]

    @pytest.mark.parametrize(
        ("options", "message"),
        [
            ({"n_actions": 0}, "QNetwork.n_actions must be a whole number >= 1, got 0"),
            ({"n_actions": 2.0}, "QNetwork.n_actions must be a whole number >= 1, got 2.0"),
            ({"width": 0}, "QNetwork.width must be a whole number >= 1, got 0"),
            ({"hidden": (64, 0)}, "QNetwork.hidden and head sizes must be a whole number >= 1, got 0"),
            ({"hidden": (True,)}, "QNetwork.hidden and head sizes must be a whole number >= 1, got True"),
            ({"head": (-1,)}, "QNetwork.hidden and head sizes must be a whole number >= 1, got -1"),
            ({"head": (1.5,)}, "QNetwork.hidden and head sizes must be a whole number >= 1, got 1.5"),
            ({"noisy": -0.1}, "QNetwork.noisy must be in [0, inf), got -0.1"),
            ({"noisy": math.nan}, "QNetwork.noisy must be in [0, inf), got nan"),
        ],
    )
    def test_wrong_input_is_refused_by_name_and_rule(self, options: Any, message: str) -> None:
        with pytest.raises(ConfigError) as refusal:
            QNetwork((2,), **{"n_actions": 2} | options)

        assert message in str(refusal.value)

    def test_everything_wrong_with_it_is_said_at_once(self) -> None:
        with pytest.raises(ConfigError) as refusal:
            QNetwork((2,), 0, width=0, hidden=(0,), noisy=-1)

        assert str(refusal.value).count("QNetwork.") == 4


class TestStart:
    def test_layers_start_uniform_within_one_over_the_root_of_fan_in(self) -> None:
        network = drawn(nn.Sequential(nn.utils.skip_init(nn.Linear, 100, 400), nn.utils.skip_init(nn.Conv2d, 4, 64, 5)))
        for layer in network:
            for parameter in layer.parameters():
                assert parameter.abs().max() <= 0.1
                assert_close(parameter.std().item(), 0.1 / math.sqrt(3), rtol=0.15, atol=0)  # a uniform's on +-0.1
                assert_close(parameter.mean().item(), 0.0, rtol=0, atol=0.02)

    def test_the_same_seed_draws_the_same_and_another_all_different(self) -> None:
        network = QNetwork((3,), 2, hidden=(4,), dueling=True)
        draws = []
        for seed in (1, 1, 2):
            network.draw(seed)
            draws.append([parameter.detach().clone() for parameter in network.parameters()])

        for first, second, other in zip(*draws, strict=True):
            assert_close(first, second, rtol=0, atol=0)
            assert (first != other).all()

    def test_two_networks_of_no_seed_differ(self) -> None:
        one, other = QNetwork((3,), 2), QNetwork((3,), 2)

        assert (one.encoder.body.layers[0].weight != other.encoder.body.layers[0].weight).any()

    def test_a_network_knows_whether_it_was_touched(self) -> None:
        network, other = QNetwork((3,), 2), QNetwork((3,), 2)
        assert network.is_untouched

        with torch.no_grad():
            network.heads.advantage.layers[0].bias[1] += 1e-6
        assert not network.is_untouched
        network.draw(1)
        assert network.is_untouched
        network.load_state_dict(other.state_dict())
        assert not network.is_untouched

    def test_any_other_layers_of_a_module_are_left_as_they_are(self) -> None:
        norm = nn.BatchNorm1d(2)
        drawn(nn.Sequential(norm))

        assert norm.weight.tolist() == [1, 1]


class TestPlainModule:
    def test_values_per_action_get_a_last_axis(self) -> None:
        net = small_net((4, 3))
        x = random(5, 4)

        assert_close(PlainModule(net)(x).outputs, net(x).unsqueeze(2))

    def test_numbers_per_action_stay(self) -> None:
        net = nn.Sequential(small_net((4, 6)), nn.Unflatten(1, (3, 2)))
        x = random(5, 4)

        assert_close(PlainModule(net)(x).outputs, net(x))

    def test_a_prediction_stays_as_it_is(self) -> None:
        class Predicting(nn.Module):
            def forward(self, x: Tensor) -> Prediction:
                return Prediction(x.view(1, 2, 2), x)

        x = torch.arange(4.0).view(1, 4)
        prediction = PlainModule(Predicting())(x)

        assert prediction.outputs.shape == (1, 2, 2)
        assert prediction.fractions is x

    @pytest.mark.parametrize(
        ("module", "got"), [(nn.Flatten(0), r"\(8,\)"), (nn.Unflatten(1, (1, 2, 2)), r"\(2, 1, 2, 2\)")]
    )
    def test_anything_else_is_refused(self, module: nn.Module, got: str) -> None:
        with pytest.raises(ConfigError, match=rf"must map observations to \[B, A, W\] or \[B, A\], got {got}"):
            PlainModule(module)(torch.zeros(2, 4))

    def test_what_is_no_tensor_is_refused_by_its_type(self) -> None:
        class Pair(nn.Module):
            def forward(self, x: Tensor) -> tuple[Tensor, None]:
                return x, None

        with pytest.raises(ConfigError, match="got tuple"):
            PlainModule(Pair())(torch.zeros(2, 4))


# ---- implicit quantile networks ----


VALUE = ImplicitQuantileValue(3, target_quantiles=5, acting_quantiles=4)
Array = NDArray[np.float64]


def network(seed: int = 0, **options: Any) -> ImplicitQNetwork:
    net = ImplicitQNetwork((4,), 3, **{"hidden": (6,)} | options)
    net.draw(seed)
    return net


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

    def test_one_row_of_fractions_serves_all_rows(self) -> None:
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
            ImplicitQNetwork((4,), 0, hidden=(0,), n_cosines=0, noisy=-1)

        assert str(refusal.value).count("ImplicitQNetwork.") == 4


class Recorder(ImplicitQNetwork):
    """Write down the fractions it is asked at."""

    def __init__(self, **options: Any) -> None:
        super().__init__((4,), 3, hidden=(6,), **options)
        self.requested: list[Tensor] = []

    def forward(self, features: Any, noise: Any, legal: Any, fractions: Tensor) -> Prediction:
        self.requested.append(fractions)
        return super().forward(features, noise, legal, fractions)


class Listener(ImplicitQuantileValue):
    """Write down the fractions its loss receives, and the shapes it compares."""

    def __init__(self) -> None:
        super().__init__(3, target_quantiles=5, acting_quantiles=4)
        self.received: list[Any] = []

    def loss(self, chosen: Tensor, td_target: Tensor, fractions: Tensor | None = None) -> tuple[Tensor, Tensor]:
        self.received.append((tuple(chosen.shape), tuple(td_target.shape), fractions))
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

        for requested in policy.network.requested:
            assert_close(requested, torch.tensor([[0.125, 0.375, 0.625, 0.875]]))
        assert torch.equal(policy.generator.get_state(), before)

    def test_values_are_means_over_the_midpoints(self) -> None:
        policy = made(value=VALUE)
        obs = batch_of(6).obs
        at = torch.tensor([[0.125, 0.375, 0.625, 0.875]])
        with torch.no_grad():
            expected = policy.network(torch.from_numpy(obs), None, None, at).outputs.mean(dim=2)

        np.testing.assert_allclose(policy.action_values(obs), expected, rtol=1e-5, atol=1e-6)

    def test_an_update_draws_new_fractions_for_each_network_and_row(self) -> None:
        policy = spied()
        for step in range(2):
            policy.update(batch_of(6), step=step)
        (first, second), (evaluated, again) = policy.network.requested, policy.target_network.requested

        assert (first.shape, evaluated.shape) == ((6, 3), (6, 5))
        assert len(torch.cat([first, second, evaluated, again], dim=1).unique()) == 6 * 16

    def test_the_loss_receives_the_fractions_of_the_networks_outputs(self) -> None:
        policy = spied()
        policy.update(batch_of(6), step=0)

        ((chosen, td_target, received),) = policy.value.received
        assert (chosen, td_target) == ((6, 3), (6, 5))
        assert received is policy.network.requested[0]

    def test_double_evaluates_the_online_network_at_its_own_fractions(self) -> None:
        policy = spied(backup=DoubleBackup())
        policy.update(batch_of(6), step=0)

        now, following = policy.network.requested
        assert now is following
        assert [requested.shape for requested in policy.target_network.requested] == [(6, 5)]

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
    net: ImplicitQNetwork, target: ImplicitQNetwork, batch: Any, requested: Any, is_double: bool
) -> tuple[Tensor, list[float]]:
    """Return the weighted mean of equation 3 over rows, by loops, and the mean absolute differences."""
    mine, theirs = requested
    total, priorities = torch.zeros(()), []
    for i in range(len(batch)):
        x, y = (torch.from_numpy(obs["obs"][i : i + 1]) for obs in (batch.obs, batch.next_obs))
        legal = batch.next_obs["action_mask"][i]
        chosen = net(x, None, None, mine[i : i + 1]).outputs[0, batch.action[i]]
        with torch.no_grad():
            evaluated = target(y, None, None, theirs[i : i + 1]).outputs[0]
            means = (net(y, None, None, mine[i : i + 1]).outputs[0] if is_double else evaluated).mean(dim=1).tolist()
        best = max((mean, action) for action, mean in enumerate(means) if legal[action])[1]
        loss, distance = torch.zeros(()), 0.0
        for place in range(3):
            for after in evaluated[best].tolist():
                td = float(batch.reward[i]) + float(batch.discount[i]) * after - chosen[place]
                share = abs(float(mine[i, place]) - (td.item() < 0))
                huber = td**2 / 2 if abs(td.item()) <= 1 else td.abs() - 0.5
                loss = loss + share * huber / 5
                distance += abs(td.item()) / 15
        total = total + float(batch.weight[i]) * loss / len(batch)
        priorities.append(distance)
    return total, priorities


@pytest.mark.one_of_each
@pytest.mark.parametrize("engine", engines("torch", "numpy"))
@pytest.mark.parametrize("is_double", [False, True], ids=["max", "double"])
def test_updates_equal_those_of_a_slow_reference(is_double: bool, engine: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    parts: dict[str, Any] = {"backup": DoubleBackup()} if is_double else {}
    policy = spied(optimizer=Adam(1e-2), engine=engine, **parts)
    draw, drawn = policy.loss_noise, []
    monkeypatch.setattr(policy, "loss_noise", lambda *rows, **at: drawn.append(draw(*rows, **at)) or drawn[-1])
    net = copy.deepcopy(policy.network)
    target, optimizer = copy.deepcopy(net), torch.optim.Adam(net.parameters(), 1e-2)
    for step in range(5):
        batch = batch_of(6, seed=10 * step, space=MASKED)
        priority = policy.update(batch, step=step).read_priority()
        requested = tuple(draw.fractions for draw in drawn[-1].values())
        loss, expected = slow_loss(net, target, batch, requested, is_double)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()

        np.testing.assert_allclose(priority, expected, rtol=1e-3, atol=1e-4)
        assert policy.read_metrics()["loss"] == pytest.approx(loss.item(), rel=1e-3, abs=1e-5)
    assert_close(list(policy.network.parameters()), list(net.parameters()), rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("heads", [{}, {"dueling": True, "noisy": True, "head": (5,)}], ids=["plain", "dueling noisy"])
def test_outputs_are_mapped_by_a_matrix_and_an_offset(heads: Any) -> None:
    network = QNetwork((4,), 2, width=3, hidden=(6,), **heads)
    generator = torch.Generator().manual_seed(1)
    x, matrix, offset = (torch.randn(shape, generator=generator) for shape in ((7, 4), (3, 3), (3,)))
    noise = torch.randn(1, network.noise_size, generator=generator)[:, : network.noise_size] * 0.0
    before = network(x, noise if network.noise_size else None).outputs.detach()
    changed = network.map_outputs(matrix, offset)
    torch.testing.assert_close(network(x).outputs, before @ matrix.T + offset)
    assert len(changed) == (8 if heads else 2)
    assert all(len(parameter) in (3, 6) for parameter in changed)
