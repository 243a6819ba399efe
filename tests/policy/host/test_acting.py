"""The numpy pass of small networks gives what torch gives, and sees every change of the weights."""

import copy
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch

import trainkit as tk
from trainkit.policy.device import to_device
from trainkit.policy.distributions import Categorical
from trainkit.policy.host.acting import HostNetwork
from trainkit.policy.squashed import SquashedGaussian

BOX = gym.spaces.Box(-1.0, 1.0, (4,), np.float32)


class Spaces:
    observation_space = BOX
    action_space = gym.spaces.Discrete(3)


def make_policy(**options: object) -> tk.DQNPolicy:
    return tk.DQNPolicy.for_envs(Spaces(), hidden=(16, 8), device="cpu", seed=1, **options)


def by_torch(policy: tk.DQNPolicy, obs: np.ndarray, noise: torch.Tensor | None) -> np.ndarray:
    with torch.no_grad():
        return policy.network(torch.from_numpy(obs), noise, None).numbers.numpy()


def rows(n: int = 5) -> np.ndarray:
    return np.random.default_rng(0).normal(size=(n, 4)).astype(np.float32)


@pytest.mark.parametrize("dueling", [False, True])
@pytest.mark.parametrize("noisy", [False, True])
@pytest.mark.parametrize("value", [tk.ExpectedValue(), tk.CategoricalValue(7, 0.0, 6.0)])
def test_numbers_equal_torchs_with_and_without_noise(dueling: bool, noisy: bool, value: object) -> None:
    policy = make_policy(dueling=dueling, noisy=noisy, head=(6,), value=value)
    assert policy._host is not None
    np.testing.assert_allclose(policy._host(rows(), None, None), by_torch(policy, rows(), None), atol=1e-6)
    if noisy:
        noise = policy._draws.noise(5, policy.generator)
        assert noise is not None
        np.testing.assert_allclose(
            policy._host(rows(), noise.numpy(), None), by_torch(policy, rows(), noise), atol=1e-6
        )


def test_masked_dueling_mean_equals_torchs() -> None:
    policy = make_policy(dueling=True)
    legal = np.array([[True, True, False]] * 5)
    assert policy._host is not None
    with torch.no_grad():
        expected = policy.network(torch.from_numpy(rows()), None, torch.from_numpy(legal)).numbers.numpy()
    np.testing.assert_allclose(policy._host(rows(), None, legal), expected, atol=1e-6)


@pytest.mark.parametrize("shared", [False, True])
@pytest.mark.parametrize("hidden", [(), (8,), (16, 8)])
def test_an_actor_critics_numbers_and_values_equal_torchs(shared: bool, hidden: tuple[int, ...]) -> None:
    policy = tk.PPOPolicy.for_envs(Spaces(), hidden=hidden, shared=shared, device="cpu", seed=1)
    assert policy._host is not None
    assert policy._host.takes(rows(), 5, policy.preprocess, policy.network, policy.distribution)
    with torch.no_grad():
        expected = policy.network(torch.from_numpy(rows()))
    for own, theirs in zip(policy._host(rows()), expected, strict=True):
        np.testing.assert_allclose(own, theirs.numpy(), atol=1e-6)


# ---- the actor of squashed actions ----

PUSH = gym.spaces.Box(np.array([-2.0, 0.0], np.float32), np.array([2.0, 1.0], np.float32))


class Pushes:
    observation_space = BOX
    action_space = PUSH


class OwnFeatures(tk.SACPolicy):
    """See observations in a way of its own."""

    def features(self, obs: Any) -> Any:
        return -super().features(obs)


def make_actor(cls: type[tk.SACPolicy] = tk.SACPolicy, **options: Any) -> tk.SACPolicy:
    return cls.for_envs(Pushes(), **{"hidden": (16, 8), "device": "cpu", "seed": 1} | options)


class Half(SquashedGaussian):
    """Go half as far, by a rule of its own."""

    def mode(self, *given: Any) -> torch.Tensor:
        return 0.5 * super().mode(*given)

    def sample(self, *given: Any) -> torch.Tensor:
        return 0.5 * super().sample(*given)


@pytest.mark.parametrize("explore", [False, True])
@pytest.mark.parametrize("options", [{}, {"hidden": ()}, {"normalize_obs": True}])
def test_an_actor_acts_as_torch_does_on_the_same_noise(options: dict[str, Any], explore: bool) -> None:
    here, there = make_actor(**options), make_actor(**options)
    assert here._host is not None
    there._host = None
    for policy in (here, there) if options.get("normalize_obs") else ():
        policy.preprocess.observe(to_device(3.0 + 2.0 * rows(50), torch.device("cpu")))
        policy.preprocess.fold()
    for n_rows in (5, 1, 64, 65):
        one, other = (policy.act(rows(n_rows), explore=explore).action for policy in (here, there))
        assert one.dtype == other.dtype == np.float32
        np.testing.assert_allclose(one, other, atol=1e-6)
        assert PUSH.contains(one[0])


def test_an_actors_deviation_stays_in_its_bounds() -> None:
    bounded, beyond = make_actor(hidden=()), make_actor(hidden=())
    for policy, log_std in ((bounded, 2.0), (beyond, 5.0)):
        with torch.no_grad():
            for name, parameter in policy.actor.named_parameters():
                parameter[2:] = log_std if name.endswith("bias") else 0.0
    one, other = (policy.act(0.1 * rows(), explore=True).action for policy in (bounded, beyond))
    np.testing.assert_array_equal(one, other)
    assert (np.abs(one[:, 0]) < 1.9).any()  # and not all are at the bounds whatever the deviation


def test_an_actor_sees_its_weights_move() -> None:
    policy = make_actor()
    before = policy.act(rows()).action
    with torch.no_grad():
        policy.actor.head.layers[0].bias += 1.0
    moved = policy.act(rows()).action
    assert (moved > before).all()
    policy.actor = copy.deepcopy(policy.actor)
    policy.actor.draw(99)
    anew = policy.act(rows()).action
    assert np.abs(anew - moved).max() > 1e-3
    policy._host = None
    np.testing.assert_allclose(anew, policy.act(rows()).action, atol=1e-6)


@pytest.mark.parametrize("explore", [False, True])
def test_an_actors_distribution_may_be_another_later(explore: bool) -> None:
    policy, plain = make_actor(), make_actor()
    assert policy._host is not None
    policy.distribution = Half(PUSH, log_std=None)
    told, expected = (own.act(rows(), explore=explore).action for own in (policy, plain))
    middle = np.array([0.0, 0.5], np.float32)  # the origin of policy units, in which it goes half as far
    np.testing.assert_allclose(told - middle, 0.5 * (expected - middle), atol=1e-6)


def test_an_actor_that_says_nan_is_refused() -> None:
    policy = make_actor()
    with torch.no_grad():
        policy.actor.head.layers[0].bias[0] = np.nan
    with pytest.raises(tk.DivergedError, match=r"SACPolicy gives action .* for env 0"):
        policy.act(rows())


def test_what_an_actor_of_other_ways_sees_is_torchs() -> None:
    assert make_actor(hidden=(400, 400))._host is None
    policy, plain = make_actor(OwnFeatures), make_actor()
    assert policy._host is None
    np.testing.assert_allclose(policy.act(rows()).action, plain.act(-rows()).action, atol=1e-6)


class WithoutNumpy(torch.nn.Module):
    """A distribution that knows no more than it must."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = Categorical(Spaces.action_space)
        self.width = self.inner.width
        self.sample, self.mode = self.inner.sample, self.inner.mode
        self.log_prob, self.entropy = self.inner.log_prob, self.inner.entropy


def test_a_distribution_that_knows_no_numpy_acts_by_torch() -> None:
    policy = tk.PPOPolicy.for_envs(Spaces(), hidden=(8,), distribution=WithoutNumpy(), device="cpu", seed=1)
    assert policy._host is None
    assert policy.act(rows(), explore=True).action.shape == (5,)


@pytest.mark.parametrize("masked", [False, True])
def test_an_actor_critic_acts_in_numpy_as_by_torch(masked: bool) -> None:
    space = gym.spaces.Dict({"obs": BOX, "action_mask": gym.spaces.MultiBinary(3)}) if masked else BOX
    at = type("At", (), {"observation_space": space, "action_space": Spaces.action_space})()
    own, theirs = (tk.PPOPolicy.for_envs(at, hidden=(16, 8), device="cpu", seed=1) for _ in range(2))
    theirs._host = None
    legal = np.array([[True, False, True]] * 4 + [[False, True, False]], np.int8)
    obs = {"obs": rows(), "action_mask": legal} if masked else rows()
    one, other = own.act(obs), theirs.act(obs)
    np.testing.assert_array_equal(one.action, other.action)
    for name in ("log_prob", "value"):
        np.testing.assert_allclose(one.extras[name], other.extras[name], atol=1e-6)
        assert one.extras[name].dtype == other.extras[name].dtype == np.float32


def test_an_actor_critic_of_other_layers_acts_by_torch() -> None:
    layers = torch.nn.functional.elu
    network = tk.ActorCriticNetwork((4,), 3, hidden=(8,), activation=layers)
    policy = tk.PPOPolicy(network, action_space=Spaces.action_space, observation_space=BOX, device="cpu", seed=1)
    assert policy._host is None
    assert policy.act(rows(), explore=True).extras["value"].shape == (5,)


def train_once(policy: tk.DQNPolicy) -> None:
    obs = rows(8)
    batch = tk.TransitionBatch(
        obs=obs,
        action=np.zeros(8, np.int64),
        reward=np.ones(8, np.float32),
        discount=np.zeros(8, np.float32),
        next_obs=obs,
        weight=np.ones(8, np.float32),
        slots=np.arange(8),
    )
    policy.update(batch, step=0)


@pytest.mark.parametrize(
    "change",
    [
        lambda policy: train_once(policy),
        lambda policy: policy.load_state_dict(make_policy().state_dict(), assign=True),
        lambda policy: policy.network.draw(99),
        lambda policy: policy.double().float(),
        lambda policy: setattr(policy.network.encoder.body.layers[0], "weight", torch.nn.Parameter(torch.ones(16, 4))),
    ],
    ids=["update", "load with assign", "draw", "to another dtype and back", "replaced parameter"],
)
def test_acting_sees_every_change_of_the_weights(change: object) -> None:
    policy = make_policy()
    policy.action_values(rows())  # views are taken
    change(policy)  # type: ignore[operator]
    np.testing.assert_allclose(policy.action_values(rows()), by_torch(policy, rows(), None)[:, :, 0], atol=1e-6)


def test_a_copy_of_a_policy_acts_by_its_own_weights() -> None:
    policy = make_policy()
    policy.action_values(rows())
    twin = copy.deepcopy(policy)
    twin.network.draw(99)
    np.testing.assert_allclose(twin.action_values(rows()), by_torch(twin, rows(), None)[:, :, 0], atol=1e-6)
    np.testing.assert_allclose(policy.action_values(rows()), by_torch(policy, rows(), None)[:, :, 0], atol=1e-6)


def test_large_networks_batches_and_other_dtypes_are_left_to_torch() -> None:
    large = tk.DQNPolicy.for_envs(Spaces(), hidden=(512, 512), device="cpu", seed=1)
    assert large._host is None
    policy = make_policy()
    host = policy._host
    assert host is not None
    assert host.takes(rows(64), 64, policy.preprocess, policy.network)
    assert not host.takes(rows(65), 65, policy.preprocess, policy.network)
    assert not host.takes(rows(64), 64, policy.preprocess, make_policy().network)
    assert HostNetwork.for_network(None, large.network, tk.ExpectedValue()) is None


def test_without_a_space_only_float32_vectors_are_acted_on_in_numpy() -> None:
    network = tk.QNetwork((4,), 3, hidden=(8,))
    policy = tk.DQNPolicy(network, action_space=Spaces.action_space, device="cpu")
    host, preprocess = policy._host, policy.preprocess
    assert host is not None
    assert host.takes(rows(), 5, preprocess, network)
    assert not host.takes(rows().astype(np.float64), 5, preprocess, network)
    assert not host.takes({"a": rows()}, 5, preprocess, network)
    assert not host.takes(rows()[:, :, None], 5, preprocess, network)


@pytest.mark.parametrize("kind", [tk.DQNPolicy, tk.PPOPolicy])
def test_nested_and_normalised_observations_are_acted_on_as_by_torch(kind: type[tk.Policy]) -> None:
    space = gym.spaces.Dict({"place": gym.spaces.Discrete(3), "speed": BOX, "action_mask": gym.spaces.MultiBinary(3)})
    at = type("At", (), {"observation_space": space, "action_space": Spaces.action_space})()
    own, theirs = (kind.for_envs(at, hidden=(16,), normalize_obs=True, device="cpu", seed=1) for _ in range(2))
    assert own._host is not None
    theirs._host = None
    obs = {"place": np.array([0, 1, 2, 1, 0]), "speed": rows(), "action_mask": np.array([[1, 0, 1]] * 5, np.int8)}
    for policy in (own, theirs):
        policy.preprocess.observe(to_device(obs, torch.device("cpu")))
        policy.preprocess.fold()
    np.testing.assert_array_equal(own.act(obs).action, theirs.act(obs).action)
    told, expected = (policy.act(obs, explore=True) for policy in (own, theirs))
    for name, column in told.extras.items():
        assert np.isfinite(column).all()
        assert column.shape == expected.extras[name].shape
    if isinstance(own, tk.DQNPolicy):
        np.testing.assert_allclose(own.action_values(obs), theirs.action_values(obs), atol=1e-6)


def bend(policy: Any) -> None:
    policy.preprocess = torch.nn.Tanh()


def watch_the_preprocess(policy: Any) -> None:
    policy.preprocess.register_forward_hook(lambda _, given, told: 2 * told)


def watch_the_first_layer(policy: Any) -> None:
    network = policy.actor if isinstance(policy, tk.SACPolicy) else policy.network
    layer = next(part for part in network.modules() if isinstance(part, torch.nn.Module) and hasattr(part, "bias"))
    layer.register_forward_hook(lambda _, given, told: 2 * told)


@pytest.mark.parametrize("change", [bend, watch_the_preprocess, watch_the_first_layer])
@pytest.mark.parametrize(
    ("kind", "envs"), [(tk.DQNPolicy, Spaces()), (tk.PPOPolicy, Spaces()), (tk.SACPolicy, Pushes())]
)
def test_what_is_before_the_network_or_waits_within_is_acted_on_too(kind: Any, envs: Any, change: Any) -> None:
    own, theirs = (kind.for_envs(envs, hidden=(16,), device="cpu", seed=1) for _ in range(2))
    theirs._host = None
    before = answers(own)
    for policy in (own, theirs):
        change(policy)
    np.testing.assert_array_equal(answers(own), answers(theirs))
    assert change is watch_the_first_layer or np.abs(answers(own) - before).max() > 1e-3


def answers(policy: Any) -> Any:
    """Return what a policy's network says of some rows."""
    if isinstance(policy, tk.SACPolicy):
        return policy.act(rows()).action
    return policy.action_values(rows()) if isinstance(policy, tk.DQNPolicy) else policy.act(rows()).extras["value"]
