"""A next observation whose mask allows no action: nothing follows it, whichever backup, value and path."""

import dataclasses
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
from gymnasium import spaces

import trainkit as tk
from tests.helpers.engine import torch_only
from tests.helpers.learning import MASKED, Spaces, batch_of
from tests.helpers.of_extensions import learners_of_extensions
from tests.helpers.rollouts import played

CHOICE = spaces.Discrete(3)
PARTS: dict[str, tuple[Any, dict[str, Any]]] = {
    "max": (tk.DQNPolicy, {}),
    "double dueling": (tk.DQNPolicy, {"double": True, "dueling": True}),
    "munchausen": (tk.DQNPolicy, {"backup": tk.MunchausenBackup()}),
    "rescaled": (tk.DQNPolicy, {"value": tk.ExpectedValue(rescale=1e-3)}),
    "c51": (tk.DQNPolicy, {"value": tk.CategoricalValue(11, -3, 3)}),
    "c51 double": (tk.DQNPolicy, {"value": tk.CategoricalValue(11, -3, 3), "double": True}),
    "hl-gauss double": (tk.DQNPolicy, {"value": tk.HLGaussValue(11, -3, 3), "double": True}),
    "quantiles": (tk.DQNPolicy, {"value": tk.QuantileValue(5)}),
    "munchausen quantiles": (tk.DQNPolicy, {"value": tk.QuantileValue(5), "backup": tk.MunchausenBackup()}),
    "implicit": (tk.DQNPolicy, {"value": tk.ImplicitQuantileValue(4)}),
    "cql": (tk.DQNPolicy, {"penalty": tk.ConservativePenalty(1.0)}),
    **learners_of_extensions("TD_LEARNERS"),
}


class Answers(torch.nn.Module):
    """Give the same action values for every observation."""

    def __init__(self, values: list[float]) -> None:
        super().__init__()
        self.values = torch.nn.Parameter(torch.tensor(values))

    def forward(self, features: Any) -> torch.Tensor:
        return self.values.expand(len(features), -1)


def rows(n_rows: int = 12) -> Any:
    """Make up rows of which every second one leads to an observation without a legal action."""
    batch = batch_of(n_rows, space=MASKED, discount=np.full(n_rows, 0.9, np.float32))
    batch.obs["action_mask"][:] = 1
    batch.next_obs["action_mask"][:] = 1
    batch.next_obs["action_mask"][::2] = 0
    return batch


@pytest.mark.parametrize(
    "backup", [tk.MaxBackup(), tk.DoubleBackup(), tk.MunchausenBackup(alpha=0.0)], ids=lambda part: type(part).__name__
)
def test_the_target_is_the_reward_by_hand(backup: Any) -> None:
    network = Answers([-5.0, 10.0, 20.0])
    policy = tk.DQNPolicy(network, backup=backup, observation_space=MASKED, action_space=CHOICE, device="cpu")
    batch = dataclasses.replace(rows(2), action=np.array([2, 2]), reward=np.ones(2, np.float32))
    priority = np.asarray(policy.update(batch, step=0).priority)
    soft = 20.0  # the softmax of temperature 0.03 is the maximum
    np.testing.assert_allclose(priority, [abs(20.0 - 1.0), abs(20.0 - 1.0 - 0.9 * soft)], rtol=1e-5)


@pytest.mark.one_of_each
@pytest.mark.parametrize("by_torch", [False, True], ids=["numpy", "torch"])
@pytest.mark.parametrize("how", PARTS)
def test_it_is_learned_from_like_a_termination(how: str, by_torch: bool) -> None:
    kind, options = PARTS[how]
    policies = [kind.for_envs(Spaces(MASKED), hidden=(8,), device="cpu", seed=0, **options) for _ in range(3)]
    empty = rows()
    ended = dataclasses.replace(empty, discount=np.where(np.arange(12) % 2, 0.9, 0.0).astype(np.float32))
    legal = dataclasses.replace(empty, next_obs={**empty.next_obs, "action_mask": np.ones((12, 3), np.int8)})
    weights, metrics = [], []
    for policy, batch in zip(policies, (empty, ended, legal), strict=True):
        if by_torch:
            torch_only(policy)
        policy.update(batch, step=0)
        weights.append(policy.get_weights())
        metrics.append(policy.read_metrics())
    assert metrics[0] == metrics[1]
    assert all(np.isfinite(list(metrics[0].values())))
    assert all((weights[0][name] == weights[1][name]).all() for name in weights[0])
    assert any((weights[0][name] != weights[2][name]).any() for name in weights[0])


@pytest.mark.parametrize("kind", [tk.PPOPolicy, tk.A2CPolicy])
def test_a_rollout_does_not_bootstrap_from_it(kind: Any) -> None:
    learned = []
    for is_empty in (True, False):
        policy = kind.for_envs(Spaces(MASKED), hidden=(8,), device="cpu", seed=0, normalize_advantage=False)
        rollout = played(policy, MASKED)
        if is_empty:
            rollout.last_obs["action_mask"][:] = 0
        else:
            terminated = rollout.terminated.copy().reshape(-1)
            terminated[rollout.last_rows] = True
            nothing = np.zeros(0, np.int64)
            last_obs = {name: leaf[:0] for name, leaf in rollout.last_obs.items()}
            rollout = dataclasses.replace(
                rollout, terminated=terminated.reshape(rollout.terminated.shape), last_rows=nothing, last_obs=last_obs
            )
        list(policy.learn(rollout, step=0))
        learned.append(policy.get_weights())
    for name, weight in learned[0].items():
        np.testing.assert_array_equal(weight, learned[1][name])


class Cut(gym.Env[Any, Any]):
    """Three steps, then a truncation or termination in an observation that allows nothing."""

    observation_space = spaces.Dict({"obs": spaces.Box(-9, 9, (1,), np.float32), "action_mask": spaces.MultiBinary(2)})
    action_space = spaces.Discrete(2)

    def __init__(self, terminates: bool = False) -> None:
        self.terminates = terminates

    def look(self) -> Any:
        mask = np.full(2, self.t < 3, np.int8)
        return {"obs": np.full(1, self.t, np.float32), "action_mask": mask}

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self.t = 0
        return self.look(), {}

    def step(self, action: Any) -> Any:
        self.t += 1
        return self.look(), 1.0, self.t == 3 and self.terminates, self.t == 3, {}


@pytest.mark.parametrize("random", [False, True])
def test_a_collector_rejects_a_truncation_without_a_legal_action(random: bool) -> None:
    envs = tk.make_envs(Cut, 2, seed=1)
    policy = tk.DQNPolicy.for_envs(envs, hidden=(8,), device="cpu", seed=1)
    collector = tk.Collector(policy, envs, tk.ReplayBuffer(100), seed=1)
    rule = r"env 0 truncated an episode in an observation that allows no action.*terminated=True.*step 3"
    with pytest.raises(tk.errors.NoLegalActionError, match=rule):
        collector.collect(n_step=20, random=random)


def test_a_collector_accepts_a_termination_without_a_legal_action() -> None:
    envs = tk.make_envs(lambda: Cut(terminates=True), 2, seed=1)
    policy = tk.DQNPolicy.for_envs(envs, hidden=(8,), device="cpu", seed=1)
    assert tk.Collector(policy, envs, tk.ReplayBuffer(100), seed=1).collect(n_step=20).n_step == 20
