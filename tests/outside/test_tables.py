"""The table of settings that a preset chooses by an environment's spaces."""

from typing import Any

import gymnasium as gym
import numpy as np
import pytest

import trainkit as tk

PICTURE = gym.spaces.Box(0, 255, (3, 64, 64), np.uint8)
VECTOR = gym.spaces.Box(-1, 1, (4,), np.float32)
BOX, DISCRETE = gym.spaces.Box(-1, 1, (2,), np.float32), gym.spaces.Discrete(3)


def maker(observation_space: gym.Space[Any], action_space: gym.Space[Any]) -> Any:
    class Env(gym.Env[Any, Any]):
        def __init__(self) -> None:
            self.observation_space, self.action_space = observation_space, action_space

        def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
            super().reset(seed=seed)
            return observation_space.sample(), {}

        def step(self, action: Any) -> Any:
            return observation_space.sample(), 1.0, False, False, {}

    return lambda: gym.wrappers.TimeLimit(Env(), 20)


CASES = {
    "a picture": (PICTURE, DISCRETE, "atari"),
    "a dict of one picture": (gym.spaces.Dict(camera=PICTURE), DISCRETE, "atari"),
    "a picture and numbers": (gym.spaces.Dict(camera=PICTURE, speed=VECTOR), DISCRETE, "classic"),
    "a picture and actions in a Box": (PICTURE, BOX, "continuous"),
    "a picture, numbers and actions in a Box": (gym.spaces.Dict(camera=PICTURE, speed=VECTOR), BOX, "continuous"),
    "numbers and actions in a Box": (VECTOR, BOX, "continuous"),
}


@pytest.mark.parametrize("name", CASES)
def test_only_pictures_with_discrete_actions_get_the_table_of_atari(
    name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    observation_space, action_space, domain = CASES[name]
    env = maker(observation_space, action_space)
    options: dict[str, Any] = {"evaluation": None, "show_progress": False, "seed": 1, "device": "cpu"}
    trainer = tk.presets.ppo(env, **options)
    assert trainer.config is not None
    assert trainer.config["domain"] == domain
    assert f"presets.ppo: the general table '{domain}'\n" in capsys.readouterr().out
    used = tk.presets.ppo.config(env, **options).settings()
    assert used["reward"] == tk.presets.settings("ppo", domain)["reward"]
    assert used["step_per_collect"] == trainer.step_per_collect
    trainer.close()


def test_the_settings_of_a_configuration_are_those_that_it_builds_with() -> None:
    for env in ("Pendulum-v1", "CartPole-v1", "FrozenLake-v1"):
        config = tk.presets.ppo.config(env, seed=1, evaluation=None, verbose=False)
        used, trainer = config.settings(), config.build()
        assert trainer.config is not None
        assert {name: used[name] for name in ("gamma", "n_envs", "batch_size", "step_per_collect")} == {
            name: trainer.config["arguments"][name] for name in ("gamma", "n_envs", "batch_size", "step_per_collect")
        }
        trainer.close()


@pytest.mark.parametrize("has_env", [True, False])
@pytest.mark.parametrize("name", ["cql", "bcq"])
def test_settings_of_an_offline_configuration_are_those_of_the_rows_that_it_learns_from(
    name: str, has_env: bool
) -> None:
    preset = tk.presets.PRESETS[name]
    env = maker(gym.spaces.Box(0, 255, (36, 36), np.uint8), gym.spaces.Discrete(3))
    envs = tk.make_envs(env, 1, seed=1)
    buffer = tk.ReplayBuffer(60, spaces=envs, seed=1)
    tk.Collector(tk.RandomPolicy(envs.action_space, seed=1), envs, buffer).collect(n_step=40)
    config = preset.config(buffer, env if has_env else None, seed=1, verbose=False, device="cpu")
    used, trainer = config.settings(), config.build()
    assert trainer.config is not None
    assert trainer.config["domain"] == "atari"
    assert used["gamma"] == trainer.policy.gamma == 0.99
    assert used["batch_size"] == trainer.batch_size == 32
    assert config["reward"] == "sign"
    trainer.close()
