"""Rollouts of tensors: the same rows as through arrays, exact statistics, resuming, and errors that name the remedy."""

import dataclasses
import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch

import trainkit as tk
from tests.helpers.tagged import Form, TaggedEnv
from tests.helpers.tagged_simulator import TaggedSimulator
from trainkit.core import tree
from trainkit.errors import BadEnvDataError, ConfigError, DivergedError
from trainkit.simulators import CartPole, Pendulum, TensorCollector

N = 4


def ppo(envs: Any, **options: Any) -> tk.PPOPolicy:
    return tk.PPOPolicy.for_envs(envs, **{"hidden": (8,), "seed": 1, "device": "cpu", **options})


def trainer_of(simulator: Any, seed: int = 3, policy: Any = tk.PPOPolicy, **options: Any) -> tk.OnpolicyTrainer[Any]:
    policy = policy.for_envs(simulator, hidden=(8,), device="cpu")
    defaults = {"max_epoch": 3, "step_per_epoch": 20 * N, "step_per_collect": 10 * N, "batch_size": 16}
    common = {"verbose": False, "show_progress": False, "seed": seed}
    return tk.OnpolicyTrainer(policy, TensorCollector(policy, simulator), **{**defaults, **common, **options})


@pytest.mark.parametrize("form", ["array", "masked"])
def test_rollouts_have_the_rows_and_advantages_of_the_same_environments_in_arrays(form: Form) -> None:
    simulator = TaggedSimulator(N, form=form)
    policies = [ppo(simulator, normalize_obs=True, reward=0.5) for _ in range(2)]
    tensors = TensorCollector(policies[0], simulator)
    envs = tk.make_envs([lambda env=env: TaggedEnv(env, form) for env in range(N)])
    arrays = tk.Collector(policies[1], envs, tk.RolloutBuffer())
    for _ in range(3):  # episodes that are open at the end of a rollout continue in the next one
        stats, expected = (collector.collect(n_step=13 * N) for collector in (tensors, arrays))
        names = ("n_step", "n_episode", "episode_returns", "episode_lengths", "recent_returns", "n_vector_step")
        assert [getattr(stats, name) for name in names] == [getattr(expected, name) for name in names]
        rollouts: list[Any] = [one.buffer.read(policies[0].horizon) for one in (tensors, arrays)]  # type: ignore[union-attr]  # both have buffers
        rows = [policy._rows(rollout) for policy, rollout in zip(policies, rollouts, strict=True)]
        for own, other in zip(*(tree.leaves(one.columns()) for one in rows), strict=True):
            assert (own is None) == (other is None)
            if own is not None:
                torch.testing.assert_close(own, other)
        for policy, rollout in zip(policies, rollouts, strict=True):
            list(policy.learn(rollout, step=0, batch_size=10))
        for one in (tensors.buffer, arrays.buffer):
            one.clear()  # type: ignore[union-attr]  # both have buffers
    weights, others = (policy.get_weights() for policy in policies)
    for name, own in weights.items():
        np.testing.assert_allclose(own, others[name], rtol=1e-4, atol=1e-6, err_msg=name)


class Counter:
    """Observe the number of steps so far; episodes are truncated after 3. Overwrites what it returned before."""

    n, device = 1, "cpu"
    observation_space = gym.spaces.Box(0.0, 9.0, (1,), np.float32)
    action_space = gym.spaces.Discrete(2)

    def __init__(self) -> None:
        self._obs = torch.zeros(1, 1)
        self._false = torch.zeros(1, dtype=torch.bool)

    def reset(self, seed: int) -> torch.Tensor:
        return self._obs.zero_()

    def step(self, action: torch.Tensor) -> tuple[Any, ...]:
        final = self._obs + 1.0
        truncated = final[:, 0] == 3.0
        self._obs.copy_(torch.where(truncated, 0.0, final))
        return self._obs, torch.ones(1), self._false, truncated, final


def test_truncated_and_open_episodes_bootstrap_from_their_own_observations() -> None:
    simulator = Counter()
    collector = TensorCollector(ppo(simulator), simulator)
    collector.collect(n_step=5)
    rollout = collector.buffer.read()
    assert rollout.obs.flatten().tolist() == [0.0, 1.0, 2.0, 0.0, 1.0]
    assert rollout.last_rows.tolist() == [2, 4]
    assert rollout.last_obs.flatten().tolist() == [3.0, 2.0]
    assert rollout.ended.flatten().tolist() == [False, False, True, False, True]
    assert len(rollout) == 5


@pytest.mark.parametrize("kind", [tk.PPOPolicy, tk.A2CPolicy, tk.ReinforcePolicy])
@pytest.mark.parametrize(
    "space",
    [gym.spaces.MultiDiscrete([2, 3], start=[1, 2]), gym.spaces.MultiBinary(3), gym.spaces.Box(-2.0, 9.0, (2,))],
)
def test_actions_are_in_the_units_of_the_space_and_learned_from(kind: Any, space: gym.Space[Any]) -> None:
    taken = []

    class Seen(Counter):
        action_space: Any = space

        def step(self, action: torch.Tensor) -> tuple[Any, ...]:
            taken.append(action.numpy().copy())
            return super().step(action)

    simulator = Seen()
    trainer = trainer_of(simulator, policy=kind, step_per_epoch=16, step_per_collect=8, max_epoch=1)
    trainer.run()
    assert trainer.gradient_step == 2
    assert len(taken) == 16
    for action in taken:
        assert space.contains(action[0].astype(space.dtype))


def test_steps_in_excess_are_subtracted_and_an_interrupted_collect_continues() -> None:
    simulator = TaggedSimulator(N)
    collector = TensorCollector(ppo(simulator), simulator)
    assert [collector.collect(n_step=n_step).n_step for n_step in (5, 3, 1, 6)] == [8, 0, 4, 4]
    calls = []

    def interrupt() -> None:
        calls.append(collector.env_step)
        if len(calls) == 3:
            raise KeyboardInterrupt

    collector.between_steps = interrupt
    with pytest.raises(KeyboardInterrupt):
        collector.collect(n_step=5 * N)
    assert collector.is_interrupted
    assert collector.resume().n_step == 5 * N
    assert not collector.is_interrupted
    assert collector.env_step == 9 * N == len(collector.buffer)


def test_a_trainer_logs_evaluates_and_saves_as_with_arrays(tmp_path: Path) -> None:
    simulator = CartPole(N)
    policy = ppo(simulator)
    evaluation = tk.Collector(policy, tk.make_envs(tk.simulators.SimulatorVectorEnv(CartPole(2))))
    seen: list[Any] = []
    trainer = tk.OnpolicyTrainer(
        policy,
        TensorCollector(policy, simulator),
        evaluation,
        max_epoch=2,
        step_per_epoch=30 * N,
        step_per_collect=15 * N,
        batch_size=16,
        episode_per_test=2,
        logger=tk.JsonlLogger(tmp_path / "log"),
        reward_metric=lambda returns: returns / 10.0,
        callbacks=tk.on(
            collect_end=lambda trainer, stats: seen.append(stats),
            train_batch=lambda trainer, rollout: dataclasses.replace(rollout, reward=rollout.reward * 2.0),
        ),
        seed=1,
        verbose=False,
        show_progress=False,
    )
    for _, stats, _info in trainer:
        assert stats.test.n_episode == 2
        assert stats.train.n_step == 30 * N
    assert trainer.info.n_episode == sum(one.n_episode for one in seen) > 0
    for one in seen:
        np.testing.assert_allclose(one.episode_returns, np.array(one.episode_lengths) / 10.0)
    assert tk.scalars(stats)["train/act_ms"] > 0
    assert tk.evaluate(policy, CartPole(2), n_episode=4, seed=1).n_episode == 4


@pytest.mark.parametrize("event", ["epoch_end", "collect_end"])
def test_a_resumed_run_equals_one_without_interruption(event: str, tmp_path: Path) -> None:
    def save(trainer: Any, *_: Any) -> None:
        if not saved:
            saved.append(trainer.save(tmp_path / "saved"))

    saved: list[Path] = []
    whole = trainer_of(Pendulum(N, max_episode_steps=7), callbacks=tk.on(**{event: save}))
    whole.run()
    resumed = trainer_of(Pendulum(N, max_episode_steps=7), seed=8, resume_from=saved[0])
    resumed.run()
    assert resumed.env_step == whole.env_step == 60 * N
    weights = resumed.policy.get_weights()
    for name, expected in whole.policy.get_weights().items():
        np.testing.assert_array_equal(weights[name], expected, err_msg=name)
    assert resumed.info.n_episode == whole.info.n_episode


def test_a_simulator_without_a_state_is_reset_by_a_resumed_run(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    first = trainer_of(TaggedSimulator(N))
    next(first)
    first.save(tmp_path)
    simulator = TaggedSimulator(N)
    with caplog.at_level(logging.WARNING):
        second = trainer_of(simulator, resume_from=tmp_path)
        second.run()
    assert "TaggedSimulator has no state_dict and load_state_dict: the episodes that ran are cut" in caplog.text
    assert len(simulator.seeds) == 1
    assert second.env_step == 60 * N


class Broken(CartPole):
    """A CartPole whose third step returns something else."""

    def __init__(self, **wrong: Any) -> None:
        super().__init__(N)
        self.wrong, self.n_steps = wrong, 0

    def step(self, action: torch.Tensor) -> Any:
        self.n_steps += 1
        names = "obs", "reward", "terminated", "truncated", "final_obs"
        result = dict(zip(names, super().step(action), strict=True))
        return tuple((result if self.n_steps != 3 else {**result, **self.wrong}).values())


NAN_OBS = torch.zeros(N, 4)
NAN_OBS[2, 1] = torch.nan


@pytest.mark.parametrize(
    ("wrong", "text"),
    [
        (
            {"reward": torch.tensor([0.0, torch.inf, 0.0, 0.0])},
            "reward that is not finite in env 1, vector step 3 of the 4",
        ),
        ({"obs": NAN_OBS}, "obs that is not finite in env 2, vector step 3 of the 4"),
        ({"final_obs": NAN_OBS, "truncated": torch.ones(N, dtype=torch.bool)}, "final_obs that is not finite in env 2"),
        ({"reward": torch.zeros(N, 1)}, r"return reward as a tensor float32\[4\] on cpu, got float32\[4, 1\] on cpu"),
        ({"terminated": torch.zeros(N)}, r"return terminated as a tensor bool\[4\] on cpu, got float32\[4\]"),
        ({"truncated": None}, r"return truncated as a tensor bool\[4\] on cpu, got NoneType"),
        ({"obs": torch.zeros(N, 4).double()}, r"return obs as a tensor float32\[4, 4\] on cpu, got float64"),
        ({"final_obs": {"obs": NAN_OBS}}, r"final_obs nested as its observation_space, with the leaves \[''\], got"),
        ({"more": None}, r"step must return \(obs, reward, terminated, truncated, final_obs\), got 6 values"),
    ],
)
def test_invalid_data_name_the_environment_and_are_never_learned_from(wrong: dict[str, Any], text: str) -> None:
    simulator = Broken(**wrong)
    collector = TensorCollector(ppo(simulator), simulator)
    with pytest.raises(BadEnvDataError, match=f"Broken.*{text}"):
        collector.collect(n_step=4 * N)
    if "not finite" in text:
        assert len(collector.buffer) == 0
        assert collector.collect(n_step=2 * N).n_step == 2 * N  # after a reset
    else:
        assert len(collector.buffer) == 2 * N


def test_final_observations_of_episodes_that_continue_may_be_anything() -> None:
    simulator = Broken(final_obs=torch.full((N, 4), torch.nan))
    collector = TensorCollector(ppo(simulator), simulator)
    collector.collect(n_step=4 * N)
    assert collector.buffer.read().last_obs.isfinite().all()


def test_a_diverged_policy_raises_at_the_end_of_the_collect() -> None:
    simulator = CartPole(N)
    policy = ppo(simulator)
    collector = TensorCollector(policy, simulator)
    with torch.no_grad():
        next(policy.network.parameters()).fill_(torch.nan)
    with pytest.raises(DivergedError, match="PPOPolicy gives a log_prob or value that is not finite for env 0, vector"):
        collector.collect(n_step=N)


def shared(simulator: Any) -> None:
    TensorCollector(ppo(simulator), simulator)
    owner = TensorCollector(ppo(simulator), simulator)
    tk.evaluate(owner.policy, simulator)


WRONG_USES: dict[str, tuple[Callable[[Any], object], str]] = {
    "a Q-learner": (
        lambda simulator: TensorCollector(tk.DQNPolicy.for_envs(simulator, device="cpu"), simulator),
        r"DQNPolicy: for a replay buffer, tk.Collector\(policy, tk.make_envs\(tk.simulators.SimulatorVectorEnv",
    ),
    "two owners": (
        shared,
        "CartPole already belongs to a collector or a SimulatorVectorEnv: make another simulator, or release",
    ),
    "episodes": (
        lambda simulator: trainer_of(simulator, step_per_collect=None, episode_per_collect=3),
        "OnpolicyTrainer.episode_per_collect needs a Collector: with a TensorCollector step_per_collect",
    ),
    "collect of episodes": (
        lambda simulator: TensorCollector(ppo(simulator), simulator).collect(n_episode=3),
        "collects steps, not episodes: give n_step",
    ),
    "events of episodes": (
        lambda simulator: trainer_of(simulator, callbacks=tk.on(episode_end=lambda trainer, episode: None)),
        "on_episode_end=.*a TensorCollector has no events of single episodes: use on_collect_end",
    ),
    "histograms": (
        lambda simulator: trainer_of(simulator, callbacks=tk.callbacks.Histograms()),
        "Histograms reads every step",
    ),
    "a return scale": (
        lambda simulator: TensorCollector(ppo(simulator, reward="return_scale"), simulator),
        "Horizon.reward of tensors must be None, 'sign', a clip",
    ),
    "correlated noise": (
        lambda simulator: TensorCollector(ppo(Pendulum(2), exploration=tk.policy.ColoredNoise()), Pendulum(2)),
        "PPOPolicy.exploration must be None, as .* got a ColoredNoise",
    ),
    "a column": (
        lambda simulator: TensorCollector(ppo(simulator), simulator).buffer.read(columns=["t"]),
        "TensorRolloutBuffer is empty",
    ),
    "another space": (lambda simulator: TensorCollector(ppo(Pendulum(2)), simulator), "is Box"),
    "no simulator": (
        lambda simulator: TensorCollector(ppo(simulator), tk.make_envs("CartPole-v1")),  # type: ignore[arg-type]  # the wrong use
        "simulator",
    ),
}


@pytest.mark.parametrize("use", WRONG_USES)
def test_wrong_uses_name_the_remedy(use: str) -> None:
    call, text = WRONG_USES[use]
    with pytest.raises(tk.TrainkitError, match=text):
        call(CartPole(2))


def test_a_released_simulator_can_be_evaluated_and_is_reset_by_the_next_collect() -> None:
    simulator = CartPole(2)
    collector = TensorCollector(ppo(simulator), simulator)
    collector.collect(n_step=6)
    collector.release()
    tk.evaluate(collector.policy, simulator, n_episode=2)
    collector.collect(n_step=6)
    rollout = collector.buffer.read()
    assert rollout.ended[2].all()
    assert rollout.obs[6:8].abs().max() <= 0.05  # first observations
    collector.close()
    with pytest.raises(ConfigError, match="CartPole is closed: make another simulator"):
        collector.collect(n_step=6)


def test_make_envs_copies_the_steps_of_a_simulator_to_arrays() -> None:
    simulator = CartPole(4, device="cpu")
    envs = tk.make_envs(simulator)
    policy = tk.DQNPolicy.for_envs(simulator, device="cpu")
    collector = tk.Collector(policy, envs, tk.ReplayBuffer(100))
    assert (envs.n, collector.collect(n_step=8).n_step) == (4, 8)
