"""Presets of the on-policy learners: a ready trainer in one line, any setting by name, none that does nothing."""

from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch

import trainkit as tk
from tests.helpers.evaluation_options import as_evaluated
from tests.helpers.memory_options import MEMORY_NEEDS, OF_A_MEMORY
from tests.helpers.network_options import NETWORK_OPTIONS, current, given, options_in
from tests.presets.walks import Board, Screen, limit_of
from tests.trainer.toys import Walk
from trainkit import presets

LEARNERS = {"ppo": tk.PPOPolicy, "a2c": tk.A2CPolicy, "reinforce": tk.ReinforcePolicy, "recurrent_ppo": tk.PPOPolicy}
TINY: dict[str, Any] = {"max_epoch": 2, "step_per_epoch": 64, "n_test_envs": 2, "episode_per_test": 2, "verbose": False}
every = pytest.mark.parametrize("preset", [presets.PRESETS[name] for name in LEARNERS], ids=repr)


class Push(Walk):
    """The same walk, pushed by a number."""

    action_space = gym.spaces.Box(-1.0, 1.0, (1,), np.float32)

    def step(self, action: Any) -> Any:
        return super().step(int(action[0] > 0))


class Clock(Walk):
    """The same walk, which observes the number of the step, too."""

    observation_space = gym.spaces.Dict({"place": Walk.observation_space, "time": gym.spaces.Box(0, 1, (1,))})

    def reset(self, **options: Any) -> Any:
        obs, info = super().reset(**options)
        return {"place": obs, "time": np.zeros(1, np.float32)}, info

    def step(self, action: Any) -> Any:
        obs, *rest = super().step(action)
        return {"place": obs, "time": np.ones(1, np.float32)}, *rest


def tiny(preset: Any, env: Any = Walk, **more: Any) -> Any:
    return preset(env, **as_evaluated({"seed": 1, "device": "cpu"} | TINY | more))


@every
def test_a_preset_trains_an_id_out_of_the_box(preset: Any) -> None:
    with tiny(preset, "CartPole-v1", max_epoch=1, step_per_epoch=300) as trainer:
        (result,) = trainer
    assert type(trainer.policy) is LEARNERS[preset.name]
    assert result.info.env_step >= 300
    assert result.info.gradient_step > 0
    assert result.stats.test.n_episode == 2


@every
def test_one_seed_decides_everything(preset: Any) -> None:
    runs = []
    for seed in (1, 1, 2):
        trainer = tiny(preset, seed=seed, max_epoch=1, evaluation=None)
        trainer.run()
        runs.append([tensor.tolist() for tensor in trainer.policy.state_dict().values()])
    assert runs[0] == runs[1] != runs[2]


@every
def test_the_spaces_choose_the_table(preset: Any) -> None:
    assert tiny(preset).policy.horizon.gamma == preset.settings()["gamma"]
    short = {} if preset is presets.reinforce else {"step_per_collect": 64}
    continuous = tiny(preset, env=Push, **short)
    assert continuous.policy.horizon.gamma == preset.settings("continuous")["gamma"]
    assert continuous.run().epoch == 2
    images = tiny(preset, env=Screen, hidden=(8,))
    assert images.policy.horizon.reward == "sign"


@every
def test_small_grids_take_the_grid_table_but_actions_in_a_box_the_continuous_one(preset: Any) -> None:
    class PushedBoard(Board, Push):
        pass

    trainer = tiny(preset, env=Board, hidden=(8,))
    assert (trainer.policy.network.critic_torso, preset.settings("grid")["hidden"]) == (None, (128,))
    assert trainer.policy.horizon.gamma == preset.settings("grid")["gamma"]
    pushed = tiny(preset, env=PushedBoard, hidden=(8,))
    assert pushed.policy.horizon.gamma == preset.settings("continuous")["gamma"]


@pytest.mark.parametrize("domain", ["classic", "grid", "continuous", "atari"])
@every
def test_the_tables_name_every_setting(preset: Any, domain: str) -> None:
    assert set(preset.settings(domain)) == set(preset.settings())
    assert presets.settings(preset.name, domain) == preset.settings(domain)


PINK = tk.ColoredNoise()


class Own(tk.PPOPolicy):
    """A policy of a user."""


# Each setting, another value of it, and what has that value then.
REACHES: dict[str, tuple[Any, Any]] = {
    "n_envs": (5, lambda t: t.train_collector.envs.n),
    "test_env": ("CartPole-v1", lambda t: t.evaluation_schedule.evaluation.collector.envs.name),
    "n_test_envs": (3, lambda t: t.evaluation_schedule.evaluation.collector.envs.n),
    "env_options": ({"max_episode_steps": 7}, lambda t: {"max_episode_steps": limit_of(t.train_collector)}),
    "hidden": ((7,), lambda t: (t.policy.network.actor_torso.n_features,)),
    "network.shared": (True, lambda t: t.policy.network.critic_torso is None),
    "network.critic_only": (("place",), lambda t: tuple(t.policy.network.critic_only)),
    "normalize_obs": (True, lambda t: t.policy.observes),
    "action_scaling": (False, lambda t: t.policy.action_scale.scaling),
    "action_bound_method": (
        "tanh",
        lambda t: "tanh" if isinstance(t.policy.distribution, tk.nets.SquashedGaussian) else "clip",
    ),
    "log_std": (-1.0, lambda t: float(t.policy.distribution.log_std.detach())),
    "exploration": (PINK, lambda t: t.policy.exploration),
    "gamma": (0.5, lambda t: t.policy.horizon.gamma),
    "reward": ("sign", lambda t: t.policy.horizon.reward),
    "optimizer": (torch.optim.AdamW, lambda t: t.policy.gradient_steps["model"].optimizer.factory),
    "lr": (0.125, lambda t: t.policy.gradient_steps["model"].optimizer.lr),
    "max_grad_norm": (3.0, lambda t: t.policy.gradient_steps["model"].clip.limit),
    "lam": (0.25, lambda t: t.policy.lam),
    "clip_ratio": (0.3, lambda t: t.policy.clip_ratio(0)),
    "clip_value": (0.4, lambda t: t.policy.clip_value),
    "target_kl": (0.02, lambda t: t.policy.target_kl),
    "value_weight": (0.75, lambda t: t.policy.value_weight),
    "entropy_weight": (0.125, lambda t: t.policy.entropy_weight(0)),
    "normalize_advantage": (False, lambda t: t.policy.normalize_advantage),
    "step_per_collect": (48, lambda t: t.step_per_collect),
    "episode_per_collect": (3, lambda t: t.episode_per_collect),
    "repeat_per_collect": (3, lambda t: t.repeat_per_collect),
    "batch_size": (9, lambda t: t.batch_size),
    "schedule_steps": (999, lambda t: t.policy.gradient_steps["model"].optimizer.lr.knots[-1][0]),
    "max_epoch": (6, lambda t: t.max_epoch),
    "step_per_epoch": (66, lambda t: t.step_per_epoch),
    "evaluate_at_start": (True, lambda t: t.evaluation_schedule.evaluation.at_start),
    "stop_return": (5.0, lambda t: next(x for x in (4.5, 5.0, 5.5) if t._options["stop_fn"](x))),
    "device": ("cpu", lambda t: t.policy.device.type),
    "engine": ("torch", lambda t: t.policy.engine.name),
    "on_nan": ("skip", lambda t: t.policy.on_nan),
    "precision": ("bf16", lambda t: t.policy.precision),
    "policy_class": (Own, lambda t: type(t.policy)),
    **NETWORK_OPTIONS,
    **OF_A_MEMORY,
}
NEEDS: dict[str, dict[str, Any]] = {
    "network.critic_only": {"env": Clock},
    **MEMORY_NEEDS,
    "schedule_steps": {"lr": tk.Linear(1e-3, 1e-4)},
    "episode_per_collect": {"step_per_collect": None},
    "action_scaling": {"env": Push},
    "action_bound_method": {"env": Push},
    "log_std": {"env": Push},
    "exploration": {"env": Push},
    "test_env": {"env": gym.vector.SyncVectorEnv([lambda: gym.make("CartPole-v1")])},
}


# Those left out are tested with self-play, the zoo, run folders and on a GPU.
@pytest.mark.parametrize("setting", sorted(options_in(presets.ppo) - {"self_play", "zoo", "run_name"}))
def test_every_setting_reaches_what_it_is_about(setting: str) -> None:
    value, read = REACHES[setting]
    if setting != "device":
        assert value != current(presets.ppo.settings(), setting)
    assert value == read(tiny(presets.ppo, **NEEDS.get(setting, {}), **given(setting, value)))


def test_linear_is_stretched_over_the_run() -> None:
    trainer = tiny(presets.ppo, clip_ratio=tk.Linear(0.4, 0.2))
    assert [round(trainer.policy.clip_ratio(step), 6) for step in (0, 64, 128, 999)] == [0.4, 0.3, 0.2, 0.2]


@pytest.mark.parametrize(("env", "domain"), [("Hopper-v5", "mujoco"), ("Pendulum-v1", None), ("ALE/Pong-v5", "atari")])
def test_an_id_chooses_the_table_before_anything_is_made(env: str, domain: str | None) -> None:
    for preset in (presets.ppo, presets.a2c, presets.reinforce):
        assert preset.domain_of_id(env) == domain
    assert presets.sac.domain_of_id("HalfCheetah-v5") == "mujoco"
    assert presets.dqn.domain_of_id("HalfCheetah-v5") is None  # it has no such table


def test_mujoco_is_learned_from_one_environment_at_its_own_scale() -> None:
    pytest.importorskip("mujoco", reason="needs gymnasium[mujoco]")
    with tiny(presets.ppo, "InvertedPendulum-v5", max_epoch=1, step_per_collect=64, batch_size=32) as trainer:
        assert trainer.train_collector.envs.n == 1
        assert trainer.run().env_step == 64
        assert trainer.policy.preprocess.normalizers[0].known.count == 64
        assert trainer.policy.horizon.return_scale.deviation != 1.0


@every
def test_an_unknown_override_is_refused_with_the_nearest(preset: Any) -> None:
    with pytest.raises(
        tk.ConfigError, match=rf"presets\.{preset.name}: unknown option 'batch_sise', did you mean 'batch_size'"
    ):
        tiny(preset, batch_sise=9)


@pytest.mark.parametrize(
    ("preset", "options"),
    [
        (presets.ppo, {"episode_per_collect": 4}),
        (presets.a2c, {"episode_per_collect": 4}),
        (presets.reinforce, {"step_per_collect": 128}),
        (presets.dqn, {"episode_per_collect": 4}),
    ],
)
def test_a_way_to_collect_replaces_the_other_one_of_the_table(preset: Any, options: dict[str, int]) -> None:
    both = {"step_per_collect": None, "episode_per_collect": None, **options}
    with preset("CartPole-v1", max_epoch=1, hidden=(8,), device="cpu", verbose=False, **options) as trainer:
        assert {name: getattr(trainer, name) for name in both} == both
    assert {name: preset.config("CartPole-v1", **options)[name] for name in both} == both


def test_both_ways_to_collect_are_refused_by_the_trainer() -> None:
    with pytest.raises(tk.ConfigError, match="needs exactly one of step_per_collect and episode_per_collect"):
        tiny(presets.ppo, step_per_collect=64, episode_per_collect=3)
