"""Correlated exploration noise: its spectrum and moments by theory, its sequences per episode, and exact resuming."""

from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
from gymnasium import spaces
from numpy.typing import NDArray

import trainkit as tk
from tests.helpers.learning import FOUR_NUMBERS, Spaces, assert_same, observations
from trainkit.policy.noise import NoiseSequences

PUSH = spaces.Box(np.array([-2.0, 0.0], np.float32), np.array([2.0, 1.0], np.float32))
SAC, PPO = pytest.param(tk.SACPolicy, id="sac"), pytest.param(tk.PPOPolicy, id="ppo")


class TestColoredNoise:
    @pytest.mark.parametrize("length", [64, 65])
    @pytest.mark.parametrize("beta", [0.0, 0.5, 1.0, 2.0])
    def test_power_falls_with_frequency_to_the_minus_beta(self, beta: float, length: int) -> None:
        drawn = tk.ColoredNoise(beta, length=length).draw(4_000, 1, np.random.default_rng(1))[:, :, 0]
        power = (np.abs(np.fft.rfft(drawn.astype(np.float64), axis=1)) ** 2).mean(axis=0)[1:]
        frequency = np.arange(1, len(power) + 1) / length
        derivative, _ = np.polyfit(np.log(frequency), np.log(power), 1)
        assert derivative == pytest.approx(-beta, abs=0.02)
        np.testing.assert_allclose(power * frequency**beta / (power[0] * frequency[0] ** beta), 1.0, atol=0.15)

    @pytest.mark.parametrize("length", [2, 3, 64, 65])
    @pytest.mark.parametrize("beta", [0.0, 1.0, 2.0])
    def test_every_step_is_standard_normal(self, beta: float, length: int) -> None:
        drawn = tk.ColoredNoise(beta, length=length).draw(8_000, 1, np.random.default_rng(2))[:, :, 0]
        np.testing.assert_allclose(drawn.mean(axis=0), 0.0, atol=5 / 8_000**0.5)
        np.testing.assert_allclose(drawn.var(axis=0), 1.0, atol=5 * (2 / 8_000) ** 0.5)
        np.testing.assert_allclose((drawn**4).mean(axis=0), 3.0, atol=5 * (96 / 8_000) ** 0.5)  # kurtosis

    def test_neighboring_steps_correlate_as_the_spectrum_says(self) -> None:
        length = 50  # the mean, with the power of one cycle, and cycles 1 to 25: cos of each by its power 1 / cycles
        power = np.array([0.5, *(1.0 / np.arange(1, 25)), 0.5 / 25])
        expected = (power * np.cos(2 * np.pi * np.arange(26) / length)).sum() / power.sum()
        drawn = tk.ColoredNoise(1.0, length=length).draw(4_000, 2, np.random.default_rng(3))
        assert (drawn[:, 1:] * drawn[:, :-1]).mean() == pytest.approx(expected, abs=0.02)
        assert (drawn[:, :, 0] * drawn[:, :, 1]).mean() == pytest.approx(0.0, abs=0.05)  # dimensions are independent

    @pytest.mark.parametrize("wrong", [{"beta": -0.5}, {"beta": "pink"}, {"length": 1}, {"length": 10.0}])
    def test_wrong_arguments_are_named(self, wrong: dict[str, Any]) -> None:
        with pytest.raises(tk.ConfigError, match=rf"ColoredNoise\.{next(iter(wrong))}"):
            tk.ColoredNoise(**wrong)


class Counting:
    """Number the sequences, as they are drawn, by hundreds, and their steps by ones."""

    length = 3

    def __init__(self) -> None:
        self.n_drawn = 0

    def draw(self, n_sequences: int, n_dimensions: int, rng: np.random.Generator) -> NDArray[np.float32]:
        first, self.n_drawn = self.n_drawn, self.n_drawn + n_sequences
        numbers = 100.0 * np.arange(first + 1, self.n_drawn + 1)[:, None] + np.arange(self.length)
        return np.repeat(numbers[:, :, None], n_dimensions, axis=2).astype(np.float32)


def steps(sequences: NoiseSequences, env_ids: list[int] | None, starts: list[bool] | None) -> list[float]:
    """Return the next noise of some environments, by default of two."""
    rows = None if env_ids is None else np.array(env_ids)
    begun = None if starts is None else np.array(starts)
    n_rows = 2 if env_ids is None else len(env_ids)
    noise = sequences.step(n_rows, rows, begun, np.random.default_rng(0))
    return noise[:, 0].tolist()


class TestSequences:
    def test_each_environment_follows_its_own_whichever_others_act(self) -> None:
        sequences = NoiseSequences(Counting(), 1)
        assert steps(sequences, [0, 1], [True, True]) == [100, 200]
        assert steps(sequences, [1], [False]) == [201]
        assert steps(sequences, [1, 0], [False, False]) == [202, 101]
        assert steps(sequences, [2, 0], [False, False]) == [300, 102]  # another environment, not seen before

    def test_an_episodes_start_and_the_last_step_draw_another(self) -> None:
        sequences = NoiseSequences(Counting(), 1)
        assert steps(sequences, None, None) == [100, 200]
        assert steps(sequences, None, [False, True]) == [101, 300]
        assert steps(sequences, None, [False, False]) == [102, 301]
        assert steps(sequences, None, [False, False]) == [400, 302]

    def test_draws_of_another_shape_are_rejected(self) -> None:
        class Flat(Counting):
            def draw(self, n_sequences: int, n_dimensions: int, rng: np.random.Generator) -> NDArray[np.float32]:
                return np.zeros((n_sequences, self.length), np.float32)

        with pytest.raises(tk.ConfigError, match=r"Flat\.draw must return finite numbers .*, got \(2, 3\)"):
            steps(NoiseSequences(Flat(), 1), None, None)


def made(kind: Any, action_space: Any = PUSH, **options: Any) -> Any:
    parts: dict[str, Any] = {"hidden": (8,), "device": "cpu", "seed": 0, "exploration": tk.ColoredNoise(length=5)}
    return kind.for_envs(Spaces(FOUR_NUMBERS, action_space), **parts | options)


def acted(policy: Any, n_steps: int, starts: bool = False) -> list[Any]:
    """Act in three environments, from the starts of their episodes if wanted."""
    obs, ids = observations(FOUR_NUMBERS, 3), np.arange(3)
    outputs = []
    for step in range(n_steps):
        begun = np.full(3, starts and step == 0)
        outputs.append(policy.act(obs, explore=True, starts=begun, env_ids=ids).action)
    return outputs


@pytest.mark.parametrize("kind", [SAC, PPO])
class TestPolicy:
    def test_actions_deviate_from_their_means_by_the_noise(self, kind: Any) -> None:
        policy = made(kind, exploration=Counting())
        policy.exploration.n_drawn = -1  # the first sequence is 0, 1, 2
        obs = {"obs": observations(FOUR_NUMBERS, 1), "env_ids": np.array([4])}
        sampled = [
            policy._act((torch.from_numpy(obs["obs"]), None, None, (), torch.full((1, 2), t)))["action"]
            for t in range(3)
        ]
        for action in sampled:
            taken = policy.act(obs["obs"], explore=True, env_ids=obs["env_ids"], starts=None).action
            np.testing.assert_allclose(taken, policy.action_scale.to_space(action.numpy(force=True)), rtol=1e-6)

    def test_a_copy_of_its_streams_continues_with_the_same_bits(self, kind: Any) -> None:
        one, other = made(kind), made(kind)
        other.load_state_dict(one.state_dict())
        acted(one, 3, starts=True)
        state = one.streams_state()
        expected = acted(one, 7)  # beyond the sequences' ends
        other.load_streams_state(state)
        assert_same(acted(other, 7), expected)
        one.load_streams_state(state)
        assert_same(acted(one, 7), expected)

    def test_neither_predict_nor_a_restart_of_streams_follows_the_sequences(self, kind: Any) -> None:
        policy = made(kind)
        acted(policy, 2, starts=True)
        state = policy.streams_state()
        policy.predict(observations(FOUR_NUMBERS, 3), explore=True)
        assert_same(policy.streams_state()["sequences"], state["sequences"])
        assert_same(policy.streams_state()["rng"], state["rng"])
        policy.start_streams(5)
        assert len(policy.streams_state()["sequences"]["position"]) == 0

    def test_it_is_loaded_with_the_policy(self, kind: Any, tmp_path: Path) -> None:
        loaded = tk.load_policy(made(kind).save(tmp_path / "saved"), device="cpu")
        assert type(loaded.exploration) is tk.ColoredNoise
        assert (loaded.exploration.beta, loaded.exploration.length) == (1.0, 5)
        noise_of_mine = made(kind, exploration=Counting()).save(tmp_path / "mine")
        assert tk.load_policy(noise_of_mine, device="cpu").exploration is None  # greedy actions are the same

    def test_other_explorations_are_rejected(self, kind: Any) -> None:
        with pytest.raises(tk.ConfigError, match="exploration must be a Noise or None, got EpsilonGreedy"):
            made(kind, exploration=tk.EpsilonGreedy(0.1))


def test_the_log_density_of_ppo_is_that_of_the_action_taken() -> None:
    policy = made(tk.PPOPolicy, action_bound_method="tanh")
    obs = observations(FOUR_NUMBERS, 3)
    output = policy.act(obs, explore=True, starts=np.ones(3, np.bool_), env_ids=np.arange(3))
    with torch.no_grad():
        outputs, _ = policy.network(policy.features(obs))
    mean, std = outputs.double(), policy.distribution.log_std.double().exp()
    u = torch.atanh(torch.from_numpy(output.extras["policy_action"]).double())
    expected = torch.distributions.Normal(mean, std).log_prob(u) - torch.log1p(-(u.tanh() ** 2))
    np.testing.assert_allclose(output.extras["log_prob"], expected.sum(dim=1).numpy(force=True), rtol=1e-4)


def test_only_the_box_columns_of_structured_actions_are_correlated() -> None:
    space = spaces.Dict({"gear": spaces.Discrete(3), "push": PUSH})
    policy = made(tk.PPOPolicy, space, exploration=tk.ColoredNoise(8.0, length=400), log_std=0.0)
    actions = np.stack(acted(policy, 200, starts=True))  # [T, K, 1 + D]
    assert {*actions[:, :, 0].ravel()} == {0, 1, 2}
    pushes = policy.action_scale.to_unit(actions.reshape(-1, 3))[:, 1:].reshape(200, 3, 2)
    assert np.abs(np.diff(pushes, axis=0)).max() < 0.1  # almost all power is in one cycle of 400 steps


def test_discrete_actions_are_rejected() -> None:
    with pytest.raises(tk.SpaceMismatchError, match=r"PPOPolicy\.exploration is noise of a normal .*Discrete\(3\)"):
        made(tk.PPOPolicy, spaces.Discrete(3))


class Drift(gym.Env[Any, Any]):
    """A walk of seven steps pushed by the action."""

    observation_space = FOUR_NUMBERS
    action_space = PUSH

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self.t, self.at = 0, np.zeros(4, np.float32)
        return self.at, {}

    def step(self, action: Any) -> Any:
        self.t += 1
        self.at = np.clip(self.at + 0.1 * action[0], -10, 10).astype(np.float32)
        return self.at, float(action[1]), False, self.t == 7, {}


def run_of(preset: Any, **more: Any) -> Any:
    tiny: dict[str, Any] = {"max_epoch": 3, "step_per_epoch": 32, "n_envs": 2, "hidden": (8,), "n_test_envs": 2}
    tiny |= {"episode_per_test": 2, "verbose": False, "device": "cpu", "seed": 1, "batch_size": 8}
    return preset(Drift, exploration=tk.ColoredNoise(1.0, length=20), **tiny | more)


@pytest.mark.parametrize(
    ("preset", "options"),
    [
        pytest.param(tk.presets.sac, {"learning_starts": 16}, id="sac"),
        pytest.param(tk.presets.ppo, {"step_per_collect": 16, "repeat_per_collect": 2}, id="ppo"),
    ],
)
def test_a_resumed_run_explores_with_the_same_bits(preset: Any, options: dict[str, Any], tmp_path: Path) -> None:
    whole = run_of(preset, **options)
    next(whole)
    saved = whole.save(tmp_path / "saved")  # in the middle of episodes
    whole.run()
    resumed = run_of(preset, **options | {"seed": 9, "resume_from": saved})
    resumed.run()
    assert_same(resumed.policy.training_state(), whole.policy.training_state())
