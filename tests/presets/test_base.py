"""What all presets share: options checked and typed by name, and their arguments as a frozen object."""

import inspect
from dataclasses import FrozenInstanceError
from typing import Any

import gymnasium as gym
import numpy as np
import pytest

import trainkit as tk
from tests.trainer.toys import Walk, columns
from trainkit import presets
from trainkit.core.signatures import mismatch
from trainkit.trainer.options import Options

EVERY = pytest.mark.parametrize("preset", presets.PRESETS.values(), ids=repr)
TINY: dict[str, Any] = {"max_epoch": 1, "device": "cpu", "verbose": False, "hidden": (8,)}


@EVERY
def test_the_signature_of_a_preset_has_every_option_by_name(preset: Any) -> None:
    named = inspect.signature(preset).parameters
    options = {name for name, one in named.items() if one.kind is one.KEYWORD_ONLY}
    assert options == {*preset.settings(), *Options.__annotations__}
    assert [name for name in named if name not in options][-1] == "env"


@EVERY
def test_every_setting_of_a_table_has_a_value_of_its_type(preset: Any) -> None:
    types = preset.option_types
    for domain in preset.domains:
        table = preset.table(domain)
        assert table.keys() == types.keys()
        assert [name for name, value in table.items() if mismatch(value, types[name])] == []


def test_options_by_position_are_rejected() -> None:
    with pytest.raises(tk.ConfigError, match=r"presets\.dqn takes options by name, got 1 by position"):
        presets.dqn("CartPole-v1", 1)  # type: ignore[call-arg]
    with pytest.raises(tk.ConfigError, match=r"presets\.bc takes options by name, got 3 by position"):
        presets.bc.config(tk.ReplayBuffer(5), None, 3)  # type: ignore[call-arg]


def config(**more: Any) -> presets.PresetConfig[Any]:
    options = {**TINY, "n_envs": 2, "step_per_epoch": 20, "n_test_envs": 2, **more}
    return presets.dqn.config(Walk, seed=1, **options)


def weights(trainer: Any) -> list[Any]:
    trainer.run()
    return [tensor.tolist() for tensor in trainer.policy.state_dict().values()]


def test_what_is_built_is_what_the_preset_makes() -> None:
    options = dict(config().options)
    assert weights(config().build()) == weights(presets.dqn(Walk, seed=1, **options))


def test_every_build_is_another_trainer() -> None:
    one = config()
    assert one.build() is not one.build()


def test_a_copy_changes_what_it_names_and_leaves_the_rest_and_the_first() -> None:
    one = config(lr=1e-3)
    other = one.copy(seed=2, lr=1e-4, n_step=2)
    assert (one.seed, one["lr"], one["n_step"]) == (1, 1e-3, 3)
    assert (other.seed, other["lr"], other["n_step"], other["hidden"]) == (2, 1e-4, 2, (8,))
    assert other.preset is presets.dqn
    assert one.copy() == one != other
    assert one.copy(env="CartPole-v1").env == "CartPole-v1"


def test_it_cannot_be_changed() -> None:
    one = config()
    with pytest.raises(FrozenInstanceError):
        one.seed = 2  # type: ignore[misc]
    with pytest.raises(TypeError):
        one.options["lr"] = 1  # type: ignore[index]


def test_what_was_given_can_change_without_the_configuration() -> None:
    options = {"lr": 1e-3}
    one = presets.PresetConfig(preset=presets.dqn, env=Walk, options=options)
    options["lr"] = 5.0
    assert one["lr"] == 1e-3


@pytest.mark.parametrize("name", presets.PRESETS)
def test_every_preset_has_one_which_checks_its_options(name: str) -> None:
    preset: Any = presets.PRESETS[name]
    data = (tk.ReplayBuffer(10),) if preset.learns_from_data else ()
    assert preset.config(*data, "CartPole-v1", lr=0.5)["lr"] == 0.5
    with pytest.raises(tk.ConfigError, match=rf"presets\.{name}: unknown option 'learning_rate', did you mean 'lr'"):
        preset.config(*data, "CartPole-v1", learning_rate=0.5)
    with pytest.raises(tk.ConfigError, match=rf"presets\.{name}\.max_epoch must be a"):
        preset.config(*data, "CartPole-v1").copy(max_epoch="ten")


def test_offline_the_buffer_is_part_of_it() -> None:
    buffer = tk.ReplayBuffer.from_arrays(**columns())
    one = presets.bc.config(buffer, Walk, seed=1, update_per_epoch=3, batch_size=4, n_test_envs=2, **TINY)
    other = one.copy(buffer=tk.ReplayBuffer.from_arrays(**columns()))
    assert one.buffer is buffer is not other.buffer
    assert weights(one.build()) == weights(other.build())


def test_the_table_of_the_environments_domain_is_read() -> None:
    assert presets.rainbow.config("ALE/Breakout-v5")["capacity"] == presets.settings("rainbow", "atari")["capacity"]
    with pytest.raises(KeyError):
        config()["nothing"]


class Pictures(gym.Env[Any, Any]):
    """Images, whose id does not say so."""

    observation_space = gym.spaces.Box(0, 255, (40, 40, 3), np.uint8)
    action_space = gym.spaces.Discrete(2)

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        return self.observation_space.low, {}

    def step(self, action: Any) -> Any:
        return self.observation_space.low, 0.0, False, True, {}


def test_where_spaces_choose_the_table_the_run_records_how_its_environments_were_made() -> None:
    with presets.dqn(Pictures, seed=1, device="cpu", verbose=False, capacity=200, evaluation=None) as trainer:
        envs = trainer.train_collector.envs
        config = trainer.config
    assert config is not None
    assert config["domain"] == "atari"
    arguments = config["arguments"]
    assert arguments["env_options"] == {"mapping": {}}
    assert (arguments["n_envs"], arguments["n_test_envs"]) == (envs.n, 10)
    table = presets.dqn.general_table(f"{__name__}.Pictures", {})
    assert (table["env_options"], table["network"]) == ({}, {"head": (512,)})
    assert table["capacity"] == presets.dqn.table("atari")["capacity"]


@pytest.mark.parametrize(
    ("name", "action_space"),
    [
        ("ppo", gym.spaces.MultiBinary([2, 2])),
        ("dqn", gym.spaces.MultiBinary([2, 2])),
        ("sac", gym.spaces.Box(-1, 1, ())),
    ],
)
def test_actions_of_unusual_shapes_are_learned_and_evaluated(name: str, action_space: Any) -> None:
    class Points(Pictures):
        observation_space = gym.spaces.Box(0.0, 1.0, (2,), np.float32)

    Points.action_space = action_space
    own = {} if name == "ppo" else {"learning_starts": 8, "update_per_step": 0.25}
    made = presets.PRESETS[name](
        Points, seed=1, **TINY, n_envs=2, step_per_epoch=32, step_per_collect=16, batch_size=8, n_test_envs=2, **own
    )
    with made as trainer:
        trainer.run()
    assert trainer.policy.n_updates > 0
    assert trainer.info.n_test_episode > 0
