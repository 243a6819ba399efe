"""SAC in numpy: the same losses, gradients and steps as torch's, and torch itself wherever there is no twin."""

import copy
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from gymnasium import spaces
from torch import Tensor

from tests.helpers.learning import FOUR_NUMBERS, Spaces, assert_same, batch_of, observations, parameters_of
from trainkit import Adam, Clip, DivergedError, SACPolicy, TransitionBatch
from trainkit.policy.critics import ActorNetwork, CriticNetwork
from trainkit.policy.host.layers import HostMLP
from trainkit.policy.host.tape import Tape
from trainkit.policy.networks import MLP
from trainkit.policy.squashed import SquashedGaussian

PUSH = spaces.Box(np.array([-2.0, 0.0], np.float32), np.array([2.0, 1.0], np.float32))
PARTS: list[Any] = [
    pytest.param({}, id="sac"),
    pytest.param({"hidden": ()}, id="no hidden layer"),
    pytest.param({"hidden": (16,), "temperature": 0.2}, id="told temperature"),
    pytest.param({"temperature": [(0, 0.5), (20, 0.0)], "lr": [(0, 1e-2), (20, 1e-3)]}, id="schedules"),
    pytest.param({"n_critics": 1}, id="one critic"),
    pytest.param({"n_critics": 5, "activation": torch.tanh}, id="five critics, tanh"),
    pytest.param({"activation": torch.relu}, id="relu that makes anew"),
    pytest.param({"clip": Clip(0.1), "optimizer": Adam(1e-2, weight_decay=0.1)}, id="clipped, weight decay"),
    pytest.param({"normalize_obs": True}, id="normalised observations"),
    pytest.param({"space": spaces.Dict({"a": FOUR_NUMBERS, "b": spaces.Discrete(3)})}, id="dict"),
    pytest.param({"hidden": (256, 256), "n_rows": 256, "n_updates": 3}, id="large"),
    pytest.param({"hidden": (256, 256), "n_rows": 32, "n_updates": 3}, id="large, few rows"),
]


def made(cls: type[SACPolicy] = SACPolicy, *, space: Any = FOUR_NUMBERS, **parts: Any) -> SACPolicy:
    torso = {name: parts.pop(name) for name in ("n_critics", "activation") if name in parts}
    options = {"hidden": (16, 8), "lr": 1e-2, "device": "cpu", "seed": 0} | parts
    policy = cls.for_envs(Spaces(space, PUSH), **options)
    if not torso:
        return policy
    del options["hidden"], options["lr"]
    acting = {"activation": torso.get("activation", torch.relu_)}
    actor, critics = ActorNetwork((4,), 4, hidden=(16, 8), **acting), CriticNetwork((4,), 2, hidden=(16, 8), **torso)
    return cls(actor, critics, observation_space=space, action_space=PUSH, optimizer=Adam(1e-2), **options)


def by_torch(policy: SACPolicy) -> SACPolicy:
    policy._host_learner = None
    return policy


def rows(n_rows: int = 16, seed: int = 0, space: Any = FOUR_NUMBERS, **columns: Any) -> TransitionBatch:
    return batch_of(n_rows, seed=seed, space=space, action=observations(PUSH, n_rows, seed), **columns)


def by_hand(policy: SACPolicy) -> list[str]:
    """List from now on which way each update of a policy goes."""
    ways: list[str] = []

    def note(name: str, learn: Any) -> None:
        def noted(*args: Any) -> Any:
            ways.append(name)
            return learn(*args)

        setattr(policy, name, noted)

    note("_learn", policy._learn)
    note("_learn_by_hand", policy._learn_by_hand)
    return ways


def gradients_of(policy: SACPolicy) -> dict[str, Tensor]:
    return {name: p.grad.clone() for name, p in policy.named_parameters() if p.grad is not None}


@pytest.mark.parametrize("parts", PARTS)
def test_an_update_is_torchs(parts: dict[str, Any]) -> None:
    rest = dict(parts)
    n_rows, n_updates, space = rest.pop("n_rows", 17), rest.pop("n_updates", 30), rest.get("space", FOUR_NUMBERS)
    mine, theirs = made(**rest), by_torch(made(**rest))
    theirs.load_state_dict(mine.state_dict())
    ways = by_hand(mine)
    for step in range(n_updates):
        batch = rows(n_rows, step, space)
        one, other = mine.update(batch, step=step), theirs.update(batch, step=step)
        np.testing.assert_allclose(one.read_priority(), other.read_priority(), rtol=2e-4, atol=1e-5)
        if step == 0:
            torch.testing.assert_close(gradients_of(mine), gradients_of(theirs), rtol=1e-4, atol=1e-6)
    assert ways == ["_learn_by_hand"] * n_updates
    torch.testing.assert_close(parameters_of(mine), parameters_of(theirs), rtol=2e-3, atol=1e-4)
    told, expected = mine.read_metrics(), theirs.read_metrics()
    assert told == {name: pytest.approx(number, rel=1e-3, abs=1e-5) for name, number in expected.items()}


def test_weights_of_another_dtype_count_the_same() -> None:
    mine, theirs = made(), by_torch(made())
    ways = by_hand(mine)
    batch = rows(weight=np.linspace(0.1, 1.0, 16))
    for policy in (mine, theirs):
        policy.update(batch, step=1)
    torch.testing.assert_close(parameters_of(mine), parameters_of(theirs), rtol=1e-4, atol=1e-5)
    assert ways == ["_learn_by_hand"]


def test_equal_critics_share_the_actors_slope() -> None:
    policies = [made(), by_torch(made())]
    for policy in policies:
        with torch.no_grad():
            for parameter in policy.critics.parameters():
                parameter[1] = parameter[0]
        policy.update(rows(), step=0)
    torch.testing.assert_close(gradients_of(policies[0]), gradients_of(policies[1]), rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("log_std", [-30.0, -20.0, 2.0, 5.0])
def test_a_deviation_at_its_bounds_is_torchs(log_std: float) -> None:
    policies = [made(hidden=()), by_torch(made(hidden=()))]
    for policy in policies:
        with torch.no_grad():
            for name, parameter in policy.actor.named_parameters():
                parameter[2:] = log_std if name.endswith("bias") else 0.0
        policy.update(rows(), step=0)
    torch.testing.assert_close(gradients_of(policies[0]), gradients_of(policies[1]), rtol=1e-3, atol=1e-5)


def test_where_nothing_follows_no_infinity_does() -> None:
    policy = made()
    with torch.no_grad():
        for parameter in policy.target_critics.parameters():
            parameter.fill_(torch.inf)
    policy.update(rows(discount=np.zeros(16, np.float32)), step=0)
    assert np.isfinite(policy.read_metrics()["critic_loss"])


# ---- where there is no twin, torch learns ----


class OwnGoal(SACPolicy):
    """Want something else."""

    def _goal(self, *args: Any) -> Tensor:
        return 2 * super()._goal(*args)


class OwnRows(SACPolicy):
    """Learn from rows of its own making."""

    def tensors(self, batch: Any) -> Any:
        return super().tensors(batch)


class OwnDistribution(SquashedGaussian):
    """Draw by a rule of its own."""


class OwnActor(ActorNetwork):
    """Act by a rule of its own."""


class OwnCritics(CriticNetwork):
    """Judge by a rule of its own."""


def of_other_parts(**parts: Any) -> SACPolicy:
    known: dict[str, Any] = {
        "actor": ActorNetwork((4,), 4, hidden=(8,)),
        "critics": CriticNetwork((4,), 2, hidden=(8,)),
    }
    return SACPolicy(**known | parts, action_space=PUSH, observation_space=FOUR_NUMBERS, device="cpu", seed=0)


@pytest.mark.parametrize(
    "make",
    [
        pytest.param(lambda: made(OwnGoal), id="own goal"),
        pytest.param(lambda: made(OwnRows), id="own rows"),
        pytest.param(lambda: made(hidden=(400, 400)), id="wide"),
        pytest.param(lambda: made(activation=torch.sigmoid), id="sigmoid"),
        pytest.param(lambda: of_other_parts(actor=OwnActor((4,), 4, hidden=(8,))), id="own actor"),
        pytest.param(lambda: of_other_parts(critics=OwnCritics((4,), 2, hidden=(8,))), id="own critics"),
        pytest.param(
            lambda: of_other_parts(actor=ActorNetwork((4,), 4, hidden=(8,)).double(), preprocess=torch.nn.Identity()),
            id="float64",
        ),
        pytest.param(lambda: of_other_parts(preprocess=torch.nn.Identity()), id="own preprocessing"),
    ],
)
def test_other_parts_are_torchs(make: Callable[[], SACPolicy]) -> None:
    assert make()._host_learner is None


def test_critics_with_a_body_of_their_own_are_torchs() -> None:
    critics = CriticNetwork((4,), 2, hidden=(8,))
    critics.encoder.body = MLP([4, 4])
    ways = by_hand(policy := of_other_parts(critics=critics))
    policy.update(rows(), step=0)
    assert ways == ["_learn"]


def test_images_are_torchs() -> None:
    assert made(space=spaces.Box(0, 255, (40, 40), np.uint8), hidden=(8,))._host_learner is None


def test_a_batch_too_large_is_torchs() -> None:
    policy = made()
    ways = by_hand(policy)
    for n_rows in (512, 513, 8):
        policy.update(rows(n_rows), step=0)
    assert ways == ["_learn_by_hand", "_learn", "_learn_by_hand"]


def stay(policy: SACPolicy) -> None:
    pass


def freeze_a_layer(policy: SACPolicy) -> None:
    policy.actor.head.requires_grad_(False)  # type: ignore[union-attr, operator]


def freeze_the_critics(policy: SACPolicy) -> None:
    next(policy.critics.parameters()).requires_grad_(False)


def watch_the_actor(policy: SACPolicy) -> None:
    policy.actor.register_forward_hook(lambda *_: None)


def watch_a_layer(policy: SACPolicy) -> None:
    policy.critics.layers[0].register_forward_hook(lambda _, given, told: 2 * told)  # type: ignore[index, union-attr]


def watch_the_target(policy: SACPolicy) -> None:
    policy.target_critics.register_forward_hook(lambda _, given, told: 2 * told)


def watch_the_preprocess(policy: SACPolicy) -> None:
    policy.preprocess.register_forward_hook(lambda _, given, told: 2 * told)


def replace_the_preprocess(policy: SACPolicy) -> None:
    policy.preprocess = torch.nn.Tanh()


def ask_for_entropy_by_a_tensor(policy: SACPolicy) -> None:
    policy.target_entropy = torch.tensor(-3.0)  # type: ignore[assignment]


def wait_for_a_gradient(policy: SACPolicy) -> None:
    next(policy.critics.parameters()).register_hook(lambda slope: 0.5 * slope)


def wait_for_the_temperatures(policy: SACPolicy) -> None:
    policy.learnt_temperature.log.register_hook(lambda slope: 0.5 * slope)  # type: ignore[union-attr]


def replace_the_target(policy: SACPolicy) -> None:
    policy.target_critics = copy.deepcopy(policy.target_critics)


def replace_the_distribution(policy: SACPolicy) -> None:
    policy.distribution = OwnDistribution(PUSH, log_std=None)


def activate_the_critics_otherwise(policy: SACPolicy) -> None:
    policy.critics.activation = torch.sigmoid  # type: ignore[assignment]


def activate_the_target_otherwise(policy: SACPolicy) -> None:
    policy.target_critics.activation = torch.sigmoid  # type: ignore[assignment]


def move_a_weight(policy: SACPolicy) -> None:
    weight = policy.critics.layers[0].weight  # type: ignore[index, union-attr]
    weight.data = weight.data.clone()


@pytest.mark.parametrize(
    ("change", "way"),
    [
        (stay, "_learn_by_hand"),
        (move_a_weight, "_learn_by_hand"),
        (freeze_a_layer, "_learn"),
        (freeze_the_critics, "_learn"),
        (watch_the_actor, "_learn"),
        (ask_for_entropy_by_a_tensor, "_learn_by_hand"),
        (watch_a_layer, "_learn"),
        (watch_the_target, "_learn"),
        (watch_the_preprocess, "_learn"),
        (replace_the_preprocess, "_learn"),
        (wait_for_a_gradient, "_learn"),
        (wait_for_the_temperatures, "_learn"),
        (replace_the_target, "_learn"),
        (replace_the_distribution, "_learn"),
        (activate_the_critics_otherwise, "_learn"),
        (activate_the_target_otherwise, "_learn"),
    ],
)
@pytest.mark.parametrize("n_before", [0, 2])
def test_what_changes_later_is_seen(change: Any, way: str, n_before: int) -> None:
    mine, theirs = made(), by_torch(made())
    ways = by_hand(mine)
    for policy in (mine, theirs):
        for step in range(n_before):
            policy.update(rows(seed=step), step=step)
        change(policy)
        for step in range(2, 5):
            policy.update(rows(seed=step), step=step)
    assert ways == ["_learn_by_hand"] * n_before + [way] * 3
    torch.testing.assert_close(parameters_of(mine), parameters_of(theirs), rtol=1e-3, atol=1e-4)


def test_a_copy_learns_by_itself() -> None:
    policy = made()
    policy.update(rows(), step=0)
    copied, before = copy.deepcopy(policy), parameters_of(policy)
    copied.update(rows(seed=1), step=1)
    assert_same(parameters_of(policy), before)
    policy.update(rows(seed=1), step=1)
    assert_same(parameters_of(policy), parameters_of(copied))


def test_what_is_not_finite_moves_nothing() -> None:
    policy = made()
    policy.update(rows(), step=0)
    before = parameters_of(policy)
    with pytest.raises(DivergedError, match="update 2 at step 7"):
        policy.update(rows(reward=np.full(16, np.nan, np.float32)), step=7)
    assert_same(parameters_of(policy), before)


# ---- the tape ----


def test_a_tape_gives_no_array_twice_until_it_is_rewound() -> None:
    tape = Tape()
    first = [tape.room(2, 3), tape.room(2, 3), tape.room(3)]
    assert not np.shares_memory(first[0], first[1])
    tape.append("left")
    again = [tape.rewind().room(2, 3), tape.room(2, 3)]
    assert [id(array) for array in again] == [id(array) for array in first[:2]]
    assert len(tape) == 0


def test_a_tape_forgets_the_arrays_that_nobody_asked_for_again() -> None:
    tape = Tape()
    for n_rows in range(1, 100):
        tape.rewind().room(n_rows, 8)
    assert list(tape.rewind()._kept) == [(99, 8)]


def test_a_pass_aside_leaves_the_one_that_is_differentiated_alone() -> None:
    layers = made(hidden=(256,)).actor.encoder.body  # type: ignore[union-attr]
    passes = HostMLP.of(layers)  # type: ignore[arg-type]
    tape, aside = Tape(), Tape()
    x = np.random.default_rng(0).normal(size=(256, 4)).astype(np.float32)
    y = passes.forward(x, None, tape)
    before = y.copy()
    other = passes.forward(-x, None, aside)
    np.testing.assert_array_equal(y, before)
    assert not np.shares_memory(y, other)


def test_what_is_asked_by_columns_is_what_is_passed_forward_by_rows() -> None:
    policy = made(hidden=(256,))
    layers = policy.critics.layers  # type: ignore[union-attr]
    passes = HostMLP(layers, [True, False], policy.critics.activation)  # type: ignore[arg-type, union-attr]
    x = np.random.default_rng(0).normal(size=(256, layers[0].weight.shape[2])).astype(np.float32)  # type: ignore[index]
    by_rows, by_columns = passes.forward(x, None, Tape()), passes.ask(x.T, None, Tape())
    np.testing.assert_allclose(by_columns.transpose(0, 2, 1), by_rows, rtol=1e-5, atol=1e-6)
