"""Parameter-space noise: values of networks that are perturbed by hand, distances by hand, directions per episode."""

import copy
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from gymnasium import spaces
from numpy.typing import NDArray
from torch import nn

import trainkit as tk
from tests.helpers.learning import FOUR_NUMBERS, Spaces, assert_same, observations
from trainkit.core.config import from_plain, to_plain


def made(space: Any = FOUR_NUMBERS, epsilon: Any = 0.5, std: float = 0.3, **options: Any) -> tk.DQNPolicy:
    noise = tk.ParameterNoise(epsilon, initial_std=std)
    return tk.DQNPolicy.for_envs(Spaces(space), exploration=noise, hidden=(8,), device="cpu", seed=1, **options)


def state_of(policy: tk.DQNPolicy) -> dict[str, Any]:
    state: dict[str, Any] = policy.streams_state()["exploration"]["ParameterNoise"]
    return state


def values_by_hand(policy: tk.DQNPolicy, obs: Any, seed: int, std: float) -> NDArray[np.float32]:
    """Return the values [1, A] of one row by a copy of the policy, whose linear layers are perturbed one by one."""
    other = copy.deepcopy(policy)
    layers = [layer for layer in other.network.modules() if isinstance(layer, nn.Linear)]
    weights = [weight for layer in layers for weight in layer.parameters()]
    direction = torch.randn(sum(map(torch.numel, weights)), generator=torch.Generator().manual_seed(seed))
    with torch.no_grad():
        for weight in weights:
            own, direction = direction[: weight.numel()], direction[weight.numel() :]
            weight += std * own.view(weight.shape)
    return other.action_values(obs)


@pytest.mark.parametrize(
    "parts",
    [{}, {"dueling": True}, {"value": tk.QuantileValue(5), "norm": "layer"}, {"value": tk.ImplicitQuantileValue(4)}],
    ids=["dqn", "dueling", "quantiles and layer norm", "implicit"],
)
def test_values_are_those_of_perturbed_weights_in_every_environment(parts: dict[str, Any]) -> None:
    policy = made(store_q_values=True, **parts)
    obs, ids = observations(FOUR_NUMBERS, 3), np.array([4, 0, 2])
    output = policy.act(obs, explore=True, env_ids=ids)
    seeds = state_of(policy)["seeds"].numpy()
    expected = [values_by_hand(policy, obs[i : i + 1], int(seeds[env]), 0.3)[0] for i, env in enumerate(ids)]
    np.testing.assert_allclose(output.extras["q_values"], expected, rtol=1e-4, atol=1e-5)
    assert output.action.tolist() == np.argmax(expected, axis=1).tolist()
    assert not np.allclose(expected, policy.action_values(obs), atol=0.01)


def test_grids_and_masks() -> None:
    space = spaces.Dict({"obs": spaces.Box(0, 1, (6, 6, 2), np.bool_), "action_mask": spaces.MultiBinary(3)})
    policy = made(space, std=10.0)
    obs = {"obs": np.random.default_rng(0).random((40, 6, 6, 2)) < 0.5, "action_mask": np.ones((40, 3), np.int8)}
    obs["action_mask"][:, 1] = 0
    chosen = policy.act(obs, explore=True, env_ids=np.arange(40)).action
    assert set(chosen.tolist()) == {0, 2}


def test_a_direction_stays_for_an_episode() -> None:
    policy, obs, ids = made(), observations(FOUR_NUMBERS, 3), np.arange(3)
    policy.act(obs, explore=True, env_ids=ids, starts=np.ones(3, np.bool_))
    first = state_of(policy)["seeds"].tolist()
    policy.act(obs[:2], explore=True, env_ids=ids[1:], starts=np.zeros(2, np.bool_))
    assert state_of(policy)["seeds"].tolist() == first
    policy.act(obs, explore=True, env_ids=ids, starts=np.array([False, True, False]))
    later = state_of(policy)["seeds"].tolist()
    assert [one == other for one, other in zip(first, later, strict=True)] == [True, False, True]
    policy.predict(obs, explore=True)
    assert state_of(policy)["seeds"].tolist() == later


def test_the_standard_deviation_adapts_to_the_distance_of_epsilon_greedy() -> None:
    q = np.array([[0.0, np.log(3.0)], [1.0, 1.0 + np.log(3.0)]], np.float32)  # 1/4 and 3/4
    same = np.zeros((2, 2), np.float32)  # KL = 1/4 ln 1/2 + 3/4 ln 3/2 = 0.1308
    for epsilon, factor in [(0.2, 1 / 1.5), (0.3, 1.5)]:  # -ln(1 - epsilon / 2) = 0.105 and 0.163
        noise = tk.ParameterNoise(epsilon, initial_std=0.5, adapt=1.5)
        noise.adapt_std(q, same, 0)
        assert noise.std == pytest.approx(0.5 * factor)
        assert noise.metrics(0) == {"epsilon": epsilon, "parameter_std": noise.std}
        masked = [np.insert(values, 1, -np.inf, axis=1) for values in (q, same)]
        noise.adapt_std(*masked, 0)
        assert noise.std == pytest.approx(0.5 * factor**2)


def test_it_converges_to_the_given_distance() -> None:
    policy, obs, ids = made(epsilon=0.3, std=5.0, store_q_values=True), observations(FOUR_NUMBERS, 64), np.arange(64)
    q = policy.action_values(obs)
    for _ in range(400):
        output = policy.act(obs, explore=True, env_ids=ids, starts=np.ones(64, np.bool_))
    log_p, log_perturbed = (torch.log_softmax(torch.from_numpy(v), 1) for v in (q, output.extras["q_values"]))
    distance = (log_p.exp() * (log_p - log_perturbed)).sum(dim=1).mean().item()
    assert distance == pytest.approx(-np.log(1 - 0.3 + 0.1), rel=0.35)


def test_a_resumed_run_has_the_same_bits(tmp_path: Path) -> None:
    def run_of(**more: Any) -> Any:
        noise = tk.ParameterNoise([(0, 1.0), (60, 0.1)])
        tiny: dict[str, Any] = {"max_epoch": 3, "step_per_epoch": 33, "n_envs": 3, "batch_size": 8, "hidden": (8,)}
        tiny |= {"learning_starts": 9, "evaluation": None, "verbose": False, "device": "cpu", "seed": 1}
        return tk.presets.dqn("CartPole-v1", exploration=noise, **tiny | more)

    whole = run_of()
    next(whole)
    saved = whole.save(tmp_path / "saved")
    whole.run()
    resumed = run_of(seed=9, resume_from=saved)
    resumed.run()
    assert_same(resumed.policy.training_state(), whole.policy.training_state())
    state = whole.policy.streams_state()
    state["exploration"]["ParameterNoise"]["std"] = float("nan")
    with pytest.raises(ValueError, match="standard deviation nan"):
        resumed.policy.load_streams_state(state)


def test_what_it_does_not_fit_is_named() -> None:
    with pytest.raises(tk.ConfigError, match="ParameterNoise and noisy layers both perturb weights: use one"):
        made(noisy=True)
    policy = tk.DQNPolicy.for_envs(Spaces(FOUR_NUMBERS), noisy=True, hidden=(8,), device="cpu")
    former = policy.exploration
    with pytest.raises(tk.ConfigError, match="ParameterNoise and noisy layers both perturb weights: use one"):
        policy.exploration = tk.ParameterNoise(0.1)
    assert policy.exploration is former
    with pytest.raises(tk.ConfigError, match="ParameterNoise has no method `probability`"):
        made(store_action_prob=True)
    with pytest.raises(tk.ConfigError, match=r"of the class torch.nn.Linear, and PlainModule has none"):
        tk.DQNPolicy(nn.Identity(), exploration=tk.ParameterNoise(0.1), device="cpu", seed=1)
    for wrong in ({"adapt": 1.0}, {"initial_std": 0.0}, {"epsilon": 2.0}):
        with pytest.raises(tk.ConfigError, match=f"ParameterNoise.{next(iter(wrong))} must be"):
            tk.ParameterNoise(**{"epsilon": 0.1} | wrong)


def test_in_a_file_it_is_named_with_its_extension() -> None:
    part = tk.ParameterNoise(0.1, initial_std=0.5, adapt=1.1)
    plain = {
        "part": "ParameterNoise",
        "of": {"epsilon": {"part": "Constant", "of": {"value": 0.1}}, "initial_std": 0.5, "adapt": 1.1},
        "extension": "parameter_noise",
    }
    assert to_plain(part) == plain
    assert to_plain(from_plain(plain)) == plain
