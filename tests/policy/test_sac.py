"""SAC: its goals and losses by hand, its derivatives by finite differences, its seeds and states bit by bit."""

import copy
import math
import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from gymnasium import spaces
from torch import Tensor, nn

from tests.helpers.engine import engines
from tests.helpers.learning import FOUR_NUMBERS, assert_same, batch_of, objective, parameters_of
from tests.helpers.sac import PUSH, made, rows
from trainkit import Adam, Clip, ConfigError, Horizon, SACPolicy, SpaceMismatchError, TransitionBatch
from trainkit.engine.engine import Engine
from trainkit.errors import DivergedError
from trainkit.nets.preprocess import WithoutMask

LOG_2_PI = math.log(2 * math.pi)


# ---- by hand: one place, an actor and critics of known numbers ----


class Reported(nn.Module):
    """Give one mean and one log deviation, whatever is seen."""

    def __init__(self, mean: float, log_std: float) -> None:
        super().__init__()
        self.numbers = nn.Parameter(torch.tensor([[float(mean), float(log_std)]]))

    def forward(self, features: Tensor) -> Tensor:
        return self.numbers.expand(len(features), -1)


class Ramps(nn.Module):
    """Give q_i = slope_i * action + height_i."""

    def __init__(self, *lines: tuple[float, float]) -> None:
        super().__init__()
        self.lines = nn.Parameter(torch.tensor(lines))

    def forward(self, features: Tensor, action: Tensor) -> Tensor:
        return action * self.lines[:, 0] + self.lines[:, 1]


ONE_PLACE = spaces.Box(-2.0, 2.0, (1,))


def simple(mean: float = 0.5, log_std: float = -1.0, **options: Any) -> SACPolicy:
    """Make a policy whose two critics are q = 3 a + 1 and q = -a + 2, at a temperature of 0.2."""
    parts: dict[str, Any] = {"action_space": ONE_PLACE, "device": "cpu", "seed": 0, "temperature": 0.2}
    return SACPolicy(Reported(mean, log_std), Ramps((3.0, 1.0), (-1.0, 2.0)), **parts | options)


def drawn(mean: float, log_std: float, noise: float) -> tuple[float, float]:
    """Draw an action in -1..1 and its log-density, as the equations are written."""
    u = mean + math.exp(log_std) * noise
    a = math.tanh(u)
    return a, -0.5 * noise**2 - log_std - 0.5 * LOG_2_PI - math.log(1 - a**2)


def with_noise(policy: SACPolicy, monkeypatch: pytest.MonkeyPatch, here: float, following: float) -> None:
    """Fix the noise of this observation's action and of the next one's."""

    def noise(n_rows: int) -> dict[str, Any]:
        return {"noise": torch.full((n_rows, 1), here), "next_noise": torch.full((n_rows, 1), following)}

    monkeypatch.setattr(policy, "loss_noise", noise)


def one_row(**columns: Any) -> TransitionBatch:
    own: dict[str, Any] = {
        "action": np.array([[1.0]], np.float32),  # half-way to the bound: 0.5
        "reward": np.array([10.0], np.float32),
        "discount": np.array([0.9], np.float32),
        "weight": np.array([1.0], np.float32),
    }
    return batch_of(1, **own | columns)


class TestByHand:
    def test_the_greedy_value_is_the_smaller_critics_at_the_mode(self) -> None:
        best, gap = simple().greedy_values(np.zeros((2, 4), np.float32))
        a = math.tanh(0.5)
        assert best.tolist() == pytest.approx([min(3 * a + 1, -a + 2)] * 2)
        assert gap.tolist() == [math.inf] * 2

    def test_the_critics_target_is_the_soft_value_of_the_smaller_target(self, monkeypatch: pytest.MonkeyPatch) -> None:
        policy = simple()
        with_noise(policy, monkeypatch, here=0.0, following=0.3)
        result = policy.update(one_row(), step=0)
        a, log_prob = drawn(0.5, -1.0, 0.3)
        td_target = 10.0 + 0.9 * (min(3 * a + 1, -a + 2) - 0.2 * log_prob)
        td = [2.5 - td_target, 1.5 - td_target]  # the critics at the stored action, 0.5
        received = policy.read_metrics()
        assert received["critic_loss"] == pytest.approx(0.5 * (td[0] ** 2 + td[1] ** 2), rel=1e-5)
        assert (received["q_mean"], received["q_max"], received["q_min"]) == pytest.approx((2.0, 2.5, 1.5))
        priority = (abs(td[0]) + abs(td[1])) / 2
        assert received["td_abs_mean"] == pytest.approx(priority, rel=1e-5)
        assert received["td_abs_max"] == pytest.approx(priority, rel=1e-5)
        np.testing.assert_allclose(result.read_priority(), [priority], rtol=1e-5)  # type: ignore[arg-type]  # is there

    def test_the_actor_weighs_its_entropy_against_the_smaller_value(self, monkeypatch: pytest.MonkeyPatch) -> None:
        policy = simple(critic_optimizer=Adam(0.0))
        with_noise(policy, monkeypatch, here=-0.4, following=0.0)
        policy.update(one_row(), step=0)
        a, log_prob = drawn(0.5, -1.0, -0.4)
        received = policy.read_metrics()
        assert received["actor_loss"] == pytest.approx(0.2 * log_prob - min(3 * a + 1, -a + 2), rel=1e-5)
        assert received["entropy"] == pytest.approx(-log_prob, rel=1e-5)
        assert received["temperature"] == pytest.approx(0.2)

    def test_nothing_follows_where_the_discount_is_0_whatever_the_critics_say(self) -> None:
        policy = simple()
        policy.target_critics.lines.data.fill_(math.inf)  # type: ignore[union-attr, operator]  # our own parameter
        policy.update(one_row(discount=np.zeros(1, np.float32)), step=0)
        assert policy.read_metrics()["critic_loss"] == pytest.approx(0.5 * (7.5**2 + 8.5**2))

    def test_values_that_are_not_finite_stop_the_update_where_something_follows(self) -> None:
        policy = simple()
        policy.target_critics.lines.data.fill_(math.nan)  # type: ignore[union-attr, operator]  # our own parameter
        with pytest.raises(DivergedError, match="SACPolicy: update 1 at step 3"):
            policy.update(one_row(), step=3)

    def test_every_loss_is_weighted_by_importance(self, monkeypatch: pytest.MonkeyPatch) -> None:
        still = {"optimizer": Adam(0.0), "temperature": "auto", "initial_temperature": 0.2}
        received = []
        for weight in (1.0, 0.25):
            policy = simple(**still)
            with_noise(policy, monkeypatch, here=-0.4, following=0.3)
            policy.update(one_row(weight=np.array([weight], np.float32)), step=0)
            received.append(policy.read_metrics())
        for name in ("critic_loss", "actor_loss", "temperature_loss"):
            assert received[1][name] == pytest.approx(0.25 * received[0][name])
            assert received[0][name] != 0
        assert received[1]["td_abs_mean"] == received[0]["td_abs_mean"]

    def test_the_temperatures_loss(self, monkeypatch: pytest.MonkeyPatch) -> None:
        policy = simple(temperature="auto", initial_temperature=0.2, target_entropy=-3.0)
        with_noise(policy, monkeypatch, here=-0.4, following=0.0)
        policy.update(one_row(), step=0)
        _, log_prob = drawn(0.5, -1.0, -0.4)
        assert policy.read_metrics()["temperature_loss"] == pytest.approx(-math.log(0.2) * (log_prob - 3.0), rel=1e-5)

    def test_the_actor_is_led_to_the_better_action(self) -> None:
        policy = simple(critic_optimizer=Adam(0.0), optimizer=Adam(0.05), temperature=0.01)
        batch = rows(32, action_space=ONE_PLACE)
        for step in range(300):
            policy.update(batch, step=step)
        # 3 a + 1 and -a + 2 cross at a = 1/4, where their minimum is largest; in the space's units that is 1/2
        action = policy.act(np.zeros((1, 4), np.float32)).action
        np.testing.assert_allclose(action, [[0.5]], atol=0.1)


class TestTemperature:
    @pytest.mark.parametrize(("log_std", "rises"), [(-8.0, True), (0.0, False)], ids=["too sure", "too undecided"])
    def test_moves_towards_the_target_entropy(self, log_std: float, rises: bool) -> None:
        policy = simple(0.0, log_std, temperature="auto", initial_temperature=0.2)
        policy.update(rows(32, action_space=ONE_PLACE), step=0)
        assert policy.learned_temperature is not None
        after = policy.learned_temperature.log.exp().item()
        assert (after > 0.2) == rises
        assert after != pytest.approx(0.2, rel=1e-6)

    def test_target_entropy_is_minus_one_nat_per_dimension_by_default(self) -> None:
        assert made().target_entropy == -2
        assert made(action_space=spaces.Box(-1, 1, (2, 3))).target_entropy == -6
        assert made(target_entropy=0.5).target_entropy == 0.5

    def test_may_be_a_schedule_of_the_step(self) -> None:
        policy = made(temperature=[(0, 1.0), (10, 0.5)])
        for step, expected in ((0, 1.0), (5, 0.75), (99, 0.5)):
            policy.update(rows(), step=step)
            received = policy.read_metrics()
            assert received["temperature"] == pytest.approx(expected)
            assert "temperature_loss" not in received

    def test_does_not_depend_on_the_units_of_actions(self) -> None:
        wide = spaces.Box(PUSH.low * 100, PUSH.high * 100)
        one, other = made(), made(action_space=wide)
        for step in range(3):
            batch = rows(seed=step)
            one.update(batch, step=step)
            other.update(rows(seed=step, action=batch.action * 100), step=step)
        mine, theirs = one.read_metrics(), other.read_metrics()
        assert mine == {name: pytest.approx(number, rel=1e-4, abs=1e-6) for name, number in theirs.items()}


# ---- gradients ----


def losses_of_an_update() -> tuple[SACPolicy, dict[str, Callable[[], Tensor]]]:
    """Return the losses that an update in float64 would minimize, to be called as often as one likes."""
    policy = made(temperature="auto", initial_temperature=0.3)
    for module in (policy.actor.encoder.body, policy.critics):  # smooth, so that differences say derivatives
        module.activation = torch.tanh  # type: ignore[union-attr]  # our own networks
    policy.preprocess = WithoutMask()  # our own makes float32 of everything
    policy.double()
    wide = {name: getattr(rows(6), name).astype(np.float64) for name in ("obs", "next_obs", "reward", "discount")}
    noise = torch.randn(2, 6, 2, generator=torch.Generator().manual_seed(3), dtype=torch.float64)
    drawn = policy.tensors(rows(6, **wide, weight=np.linspace(0.2, 1.0, 6)))
    drawn = drawn._replace(inputs={"noise": noise[0], "next_noise": noise[1]})
    later = drawn._replace(inputs=objective(policy.actor_loss, drawn)["outputs"])
    return policy, {
        "critic": lambda: objective(policy.critic_loss, drawn)["loss"],
        "actor": lambda: objective(policy.actor_loss, drawn)["loss"],
        "temperature": lambda: objective(policy.temperature_loss, later)["loss"],
    }


@pytest.mark.parametrize("name", ["critic", "actor", "temperature"])
def test_gradients_are_the_numerical_derivatives_of_the_loss(name: str) -> None:
    policy, losses = losses_of_an_update()
    loss, gap, largest = losses[name], 1e-6, 0.0
    parameters = list(policy.gradient_steps[name].module.parameters())
    for parameter, gradient in zip(parameters, torch.autograd.grad(loss(), parameters), strict=True):
        flat, ramps = parameter.detach().view(-1), torch.zeros(parameter.numel(), dtype=torch.float64)
        for place in range(len(flat)):
            before, ends = flat[place].item(), []
            for end in (before + gap, before - gap):
                flat[place] = end
                with torch.no_grad():
                    ends.append(loss().item())
            flat[place] = before
            ramps[place] = (ends[0] - ends[1]) / (2 * gap)
        np.testing.assert_allclose(gradient.reshape(-1), ramps, rtol=1e-4, atol=1e-7)
        largest = max(largest, gradient.abs().max().item())
    assert largest > 1e-3  # there is something to compare


@pytest.mark.parametrize("engine", engines("torch", "numpy"))
def test_the_actors_loss_leaves_the_critics_gradients_and_the_critics_free_to_learn(
    engine: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    policy, seen = made(engine=engine), []
    kind = type(policy.engine)
    minimize = kind.minimize

    def gradients() -> list[Tensor]:
        return [parameter.grad.clone() for parameter in policy.critics.parameters() if parameter.grad is not None]

    def watch(own: Engine, gradient_step: Any, objective: Any, *given: Any, **options: Any) -> Any:
        before = gradients()
        taken = minimize(own, gradient_step, objective, *given, **options)
        if objective.name == "actor":
            seen.append(all(map(torch.equal, before, gradients())))
            assert len(before) == len(list(policy.critics.parameters()))
        return taken

    monkeypatch.setattr(kind, "minimize", watch)
    for step in range(3):  # the first lays the parameters out
        policy.update(rows(6, seed=step), step=step)
    assert seen == [True] * 3
    assert all(parameter.grad is not None for parameter in policy.actor.parameters())
    assert all(parameter.requires_grad for parameter in policy.critics.parameters())


def test_a_parameter_that_its_owner_froze_stays_frozen() -> None:
    policy = made()
    frozen = next(policy.critics.parameters()).requires_grad_(False)
    before = frozen.clone()
    policy.update(rows(), step=0)
    assert not frozen.requires_grad
    assert torch.equal(frozen, before)


# ---- the order of things ----


def test_the_target_critics_follow_a_little_at_every_update() -> None:
    policy = made(tau=0.25)
    for step in range(3):
        before = parameters_of(policy.target_critics)
        policy.update(rows(seed=step), step=step)
        online = parameters_of(policy.critics)
        for name, weight in parameters_of(policy.target_critics).items():
            torch.testing.assert_close(weight, 0.75 * before[name] + 0.25 * online[name])


def test_every_part_moves_by_its_own_optimizer() -> None:
    optimizers = {"optimizer": Adam(1e-1), "critic_optimizer": Adam(1e-2), "temperature_optimizer": Adam(1e-3)}
    policy = made(**optimizers)
    before = parameters_of(policy)
    policy.update(rows(), step=0)
    after = parameters_of(policy)
    steps = {"actor.head.layers.0.weight": 1e-1, "critics.layers.1.weight": 1e-2, "learned_temperature.log": 1e-3}
    for name, lr in steps.items():  # Adam's first step is lr, whatever the gradient
        assert (after[name] - before[name]).abs().max().item() == pytest.approx(lr, rel=1e-2)


def test_metrics_are_those_the_docstring_names() -> None:
    policy = made()
    policy.update(rows(), step=0)
    received = policy.read_metrics()
    for part in ("critic", "actor", "temperature"):
        assert received.pop(f"{part}_grad_norm") > 0
        assert received.pop(f"{part}_lr") == pytest.approx(3e-4)
    assert SACPolicy.__doc__ is not None
    named = re.sub(r"\([^()]*\)|grad_norm and lr of each", "", SACPolicy.__doc__.split("Metrics: ")[1])
    assert set(received) == set(re.findall(r"\w+", named))


# ---- acting ----


class TestActing:
    def test_without_exploring_it_takes_the_action_at_the_mean_and_draws_nothing(self) -> None:
        policy = simple(0.5)
        before = policy.generator.get_state()
        action = policy.act(np.zeros((3, 4), np.float32)).action
        np.testing.assert_allclose(action, np.full((3, 1), 2 * math.tanh(0.5)), rtol=1e-6)
        assert torch.equal(policy.generator.get_state(), before)

    def test_exploring_draws_each_row_by_itself_within_the_bounds(self) -> None:
        policy = simple(0.5, 1.0)
        action = policy.act(np.zeros((5_000, 4), np.float32), explore=True).action
        assert len(np.unique(action)) > 4_000
        assert (np.abs(action) <= 2).all()
        assert np.mean(action > 2 * math.tanh(0.5)) == pytest.approx(0.5, abs=4 * 0.5 / math.sqrt(5_000))

    def test_predict_gives_one_action_for_one_observation(self) -> None:
        policy = made(action_space=spaces.Box(-1, 1, (2, 3)))
        assert policy.predict(np.zeros(4)).shape == (2, 3)
        assert policy.predict(np.zeros((5, 4))).shape == (5, 2, 3)

    def test_an_action_that_is_not_finite_is_refused_with_its_environment(self) -> None:
        with pytest.raises(DivergedError, match=r"SACPolicy gives \[nan, -1.0\] for env 7 at step 5"):
            simple(math.nan).act(np.zeros((1, 4), np.float32), step=5, env_ids=np.array([7]))

    def test_modules_act_in_eval_mode_and_learn_in_train_mode_in_their_own_step(self) -> None:
        modes: list[bool] = []

        class Watched(Reported):
            def forward(self, features: Tensor) -> Tensor:
                modes.append(self.training)
                return super().forward(features)

        policy = SACPolicy(Watched(0, 0), Ramps((1.0, 0.0)), action_space=ONE_PLACE, device="cpu", seed=0)
        policy.act(np.zeros((1, 4), np.float32))
        assert modes == [False]
        policy.update(one_row(), step=0)
        assert not policy.target_critics.training
        policy.act(np.zeros((1, 4), np.float32))
        assert modes == [False, False, True, False]  # acting, the critics' step, the actor's, acting


# ---- spaces ----

IMAGE = spaces.Box(0, 255, (40, 40, 1), np.uint8)
MIXED = spaces.Dict({"where": FOUR_NUMBERS, "what": spaces.Tuple((spaces.Discrete(3), spaces.MultiBinary(2)))})


@pytest.mark.parametrize("space", [FOUR_NUMBERS, IMAGE, MIXED], ids=["vector", "image", "nested"])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_it_learns_from_observations_of_any_space(space: Any, dtype: Any) -> None:
    action_space = spaces.Box(-1.0, 3.0, (2, 2), dtype)
    policy = made(space, action_space)
    policy.check_spaces(space, action_space)
    before = parameters_of(policy)
    policy.update(rows(4, action_space=action_space, space=space), step=0)
    after = parameters_of(policy)
    assert all((before[name] != after[name]).any() for name in before if "target" not in name)
    assert all(np.isfinite(list(policy.read_metrics().values())))


@pytest.mark.parametrize(
    ("space", "message"),
    [
        (spaces.Discrete(2), "needs actions in a Box of float32 or float64, got Discrete"),
        (spaces.Box(0, 5, (2,), np.int32), "needs actions in a Box of float32 or float64, got Box"),
        (spaces.Box(0.0, np.inf, (2,)), "squashes actions between bounds, and Box.* has an unbounded dimension"),
    ],
    ids=str,
)
def test_actions_that_are_no_bounded_box_are_refused_by_name(space: Any, message: str) -> None:
    with pytest.raises(SpaceMismatchError, match=f"SACPolicy {message}"):
        made(action_space=space)
    with pytest.raises(SpaceMismatchError, match=f"SACPolicy {message}"):
        SACPolicy(Reported(0, 0), Ramps((1.0, 0.0)), action_space=space)


def test_other_spaces_than_its_own_are_refused() -> None:
    with pytest.raises(SpaceMismatchError, match=r"SACPolicy\.action_space is Box"):
        made().check_spaces(FOUR_NUMBERS, ONE_PLACE)


@pytest.mark.parametrize(
    ("actor", "critics", "message"),
    [
        (nn.utils.skip_init(nn.Linear, 3, 2), Ramps((1.0, 0.0)), "network cannot take an observation of"),
        (
            nn.utils.skip_init(nn.Linear, 4, 3),
            Ramps((1.0, 0.0)),
            r"network gives {'outputs': \(1, 3\)} .*",
        ),
        (Reported(0, 0), lambda features, action: action[:, 0], r"critics give \(1,\) for one observation and action"),
    ],
    ids=["inputs", "numbers", "values"],
)
def test_networks_that_do_not_fit_are_refused(actor: Any, critics: Any, message: str) -> None:
    class Called(nn.Module):
        def forward(self, features: Tensor, action: Tensor) -> Any:
            return critics(features, action)

    policy = SACPolicy(actor, Called(), action_space=ONE_PLACE, device="cpu", seed=0)
    with pytest.raises(SpaceMismatchError, match=f"SACPolicy's {message}"):
        policy.check_spaces(FOUR_NUMBERS, ONE_PLACE)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"temperature": -1}, r"SACPolicy.temperature must be in \[0, inf\), got -1"),
        (
            {"temperature": "automatic"},
            "temperature must be 'auto', a number, a schedule or None, got 'automatic'",
        ),
        ({"initial_temperature": 0}, r"SACPolicy.initial_temperature must be in \(0, inf\), got 0"),
        ({"target_entropy": math.nan}, r"SACPolicy.target_entropy must be in \(-inf, inf\), got nan"),
        ({"target_entropy": -1, "temperature": 0.2}, "SACPolicy.target_entropy needs temperature='auto', got 0.2"),
        ({"tau": 0}, r"Target.tau must be in \(0, 1\], got 0"),
        ({"hidden": (0,)}, "ActorNetwork.hidden sizes must be a whole number >= 1, got 0"),
    ],
)
def test_a_wrong_number_is_refused_by_name(options: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        made(**options)


def test_for_envs_passes_every_word_on() -> None:
    policy = made(hidden=(5, 6), n_step=3, gamma=0.9, reward="sign", lr=0.125, tau=0.5, max_grad_norm=2.0)
    assert (policy.horizon.n_step, policy.horizon.gamma, policy.horizon.reward) == (3, 0.9, "sign")
    assert policy.settings().items() >= {"target/every": 1, "target/unit": "updates", "target/tau": 0.5}.items()
    steps = policy.gradient_steps
    assert {name: (step.optimizer.lr, step.clip) for name, step in steps.items()} == {
        "critic": (0.125, Clip(2.0)),
        "actor": (0.125, Clip(2.0)),
        "temperature": (0.125, None),
    }
    assert [layer.weight.shape[1] for layer in policy.critics.layers] == [5, 6, 1]  # type: ignore[union-attr]  # ours
    assert made(horizon=Horizon(2, 0.5)).horizon == Horizon(2, 0.5)


# ---- seeds and states ----


def live(policy: SACPolicy, steps: range) -> None:
    """Act and learn for some steps."""
    for step in steps:
        policy.act(rows(4, seed=step).obs, step=step, explore=True)
        policy.update(rows(seed=step), step=step)


class TestSeeds:
    def test_the_same_seed_gives_the_same_bits_and_another_gives_others(self) -> None:
        one, same, other = (made(seed=seed) for seed in (1, 1, 2))
        for policy in (one, same, other):
            live(policy, range(5))
        assert_same(one.training_state(), same.training_state())
        weights = [name for name in parameters_of(one) if "temperature" not in name]
        assert all((parameters_of(one)[name] != parameters_of(other)[name]).all() for name in weights)

    def test_a_seed_given_later_is_as_good_as_one_at_construction(self) -> None:
        early, late = made(seed=1), made(seed=None)
        late.seed(1)
        live(early, range(2))
        live(late, range(2))
        assert_same(parameters_of(late), parameters_of(early))


@pytest.mark.parametrize("options", [{}, {"temperature": 0.1, "n_step": 3}], ids=["learned", "fixed"])
def test_continuing_from_a_saved_state_is_bit_by_bit_the_same(options: Any) -> None:
    straight, resumed = made(**options), made(**options | {"seed": 9})
    live(straight, range(6))
    straight.read_metrics()
    live(resumed, range(3))  # it may have lived before
    resumed.read_metrics()
    resumed.load_training_state(copy.deepcopy(straight.training_state()))
    live(straight, range(6, 12))
    live(resumed, range(6, 12))
    assert_same(resumed.training_state(), straight.training_state())
    assert resumed.read_metrics() == straight.read_metrics()


def test_a_deep_copy_goes_its_own_way() -> None:
    policy, straight = made(), made()
    live(policy, range(3))
    live(straight, range(6))
    copied = copy.deepcopy(policy)
    before = copy.deepcopy(policy.training_state())
    live(copied, range(3, 6))
    assert_same(copied.training_state(), straight.training_state())
    assert_same(policy.training_state(), before)
