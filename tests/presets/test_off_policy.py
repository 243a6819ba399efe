"""SAC's preset: a ready trainer in one line, any setting by name, none that does nothing."""

from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch

import trainkit as tk
from tests.helpers.evaluation_options import as_evaluated
from tests.helpers.memory_options import MEMORY_NEEDS, OF_A_MEMORY
from tests.helpers.network_options import NETWORK_OPTIONS, Plain, current, given, options_in
from tests.presets.walks import Lives, Screen, limit_of
from tests.trainer.toys import everything
from trainkit import presets

TINY: dict[str, Any] = {
    "max_epoch": 2,
    "step_per_epoch": 32,
    "learning_starts": 8,
    "batch_size": 4,
    "hidden": (8,),
    "n_test_envs": 2,
    "episode_per_test": 2,
    "verbose": False,
    "device": "cpu",
}


class Push(Lives):
    """A walk, pushed by a number."""

    action_space = gym.spaces.Box(-1.0, 1.0, (1,), np.float32)

    def step(self, action: Any) -> Any:
        return super().step(int(action[0] > 0))


class Look(Screen):
    """The same, seen as an image."""

    action_space = Push.action_space

    def step(self, action: Any) -> Any:
        return super().step(int(action[0] > 0))


def tiny(env: Any = Push, **more: Any) -> Any:
    return presets.sac(env, **as_evaluated({"seed": 1} | TINY | more))


def test_it_trains_an_id_out_of_the_box() -> None:
    small = {"max_epoch": 1, "step_per_epoch": 80, "learning_starts": 16, "batch_size": 16, "hidden": (8,)}
    with presets.sac("Pendulum-v1", seed=1, verbose=False, device="cpu", episode_per_test=2, **small) as trainer:
        (result,) = trainer
    assert type(trainer.policy) is tk.SACPolicy
    assert result.info.env_step == 80
    assert result.info.gradient_step == 65  # one per step, from the one that reaches 16
    assert result.stats.test.n_episode == 2


def test_it_sees_images() -> None:
    trainer = tiny(Look)
    assert trainer.run().epoch == 2
    assert len(trainer.policy.actor.encoder.encoders) == 1


def test_one_seed_decides_everything() -> None:
    runs = []
    for seed in (1, 1, 2):
        trainer = tiny(seed=seed, max_epoch=1, evaluation=None)
        trainer.run()
        runs.append([tensor.tolist() for tensor in trainer.policy.state_dict().values()])
    assert runs[0] == runs[1] != runs[2]


def test_prioritized_windows_are_learned_from() -> None:
    (result,) = tiny(buffer="prioritized", n_step=3, max_epoch=1, learning_starts=16)
    assert result.stats["update/weight_mean"] < 1
    assert result.stats["buffer/largest_priority"] != 1  # written by an update


def test_a_run_saved_and_resumed_ends_with_the_same_bits(tmp_path: Any) -> None:
    first = tiny(max_epoch=3)
    next(first)
    resumed = tiny(max_epoch=3, seed=9, resume_from=first.save(tmp_path / "saved"))
    assert everything(resumed) == everything(first)
    for trainer in (first, resumed):
        trainer.train_collector.reset()  # open episodes are begun again after a resume
        trainer.run()
    assert everything(resumed) == everything(first)


@pytest.mark.parametrize("env", ["CartPole-v1", "ALE/Pong-v5"])
def test_discrete_actions_are_refused_by_name(env: str) -> None:
    if env.startswith("ALE"):
        pytest.importorskip("ale_py", reason="the extra `atari` is not installed")
    with pytest.raises(tk.SpaceMismatchError, match="SACPolicy needs actions in a Box of float32 or float64"):
        presets.sac(env, seed=1)


# ---- settings ----


def test_the_table_names_every_setting() -> None:
    assert presets.settings("sac") == presets.settings("sac", "continuous") == presets.sac.settings()
    assert presets.sac.domains == ("continuous", "mujoco")
    assert set(presets.sac.settings("mujoco")) == set(presets.sac.settings())


def test_another_domain_is_refused() -> None:
    with pytest.raises(tk.ConfigError, match=r"presets\.sac\.domain must be one of .*, got 'classic'"):
        presets.settings("sac", "classic")


def test_a_part_that_a_preset_fixes_is_refused_with_the_place_that_takes_it() -> None:
    meant = r"SACPolicy\.for_envs\(envs, reduction=\.\.\.\)"
    with pytest.raises(tk.ConfigError, match=rf"unknown option 'reduction', did you mean {meant}\?"):
        presets.sac("Pendulum-v1", reduction=tk.policy.MinOfCritics())


def adam(trainer: Any) -> Any:
    return trainer.policy.gradient_steps["actor"].optimizer


PINK = tk.ColoredNoise()
PRIORITIES = {"type": "PrioritizedReplayBuffer", "alpha": 0.25, "beta": 0.75}


class Own(tk.SACPolicy):
    """An actor-critic of a user."""


# Each setting, another value of it, and what has that value then.
REACHES: dict[str, tuple[Any, Any]] = {
    "n_envs": (5, lambda t: t.train_collector.envs.n),
    "test_env": ("Pendulum-v1", lambda t: t.evaluation_schedule.evaluation.collector.envs.name),
    "n_test_envs": (3, lambda t: t.evaluation_schedule.evaluation.collector.envs.n),
    "env_options": ({"max_episode_steps": 7}, lambda t: {"max_episode_steps": limit_of(t.train_collector)}),
    "hidden": ((7,), lambda t: (t.policy.actor.encoder.n_features,)),
    "critic_hidden": ((7,), lambda t: tuple(layer.weight.shape[1] for layer in t.policy.critics.layers[:-1])),
    "n_critics": (3, lambda t: t.policy.critics.n_critics),
    "actor_every": (2, lambda t: t.policy.gradient_steps["actor"].every),
    "normalize_obs": (True, lambda t: t.policy.observes),
    "gamma": (0.5, lambda t: t.policy.horizon.gamma),
    "reward": ("sign", lambda t: t.policy.horizon.reward),
    "optimizer": (torch.optim.AdamW, lambda t: adam(t).factory),
    "lr": (0.125, lambda t: adam(t).lr),
    "max_grad_norm": (3.0, lambda t: t.policy.gradient_steps["critic"].clip.limit),
    "tau": (0.5, lambda t: t.describe()["policy/target/tau"]),
    "temperature": (0.5, lambda t: t.policy.loss_inputs(1, step=0)["temperature"]),
    "initial_temperature": (0.5, lambda t: pytest.approx(t.policy.learned_temperature.log.exp().item())),
    "target_entropy": (-7.0, lambda t: t.policy.target_entropy),
    "exploration": (PINK, lambda t: t.policy.exploration),
    "n_step": ((2, 4), lambda t: t.policy.horizon.n_step),
    "capacity": (123, lambda t: t.buffer.capacity),
    "batch_size": (9, lambda t: t.batch_size),
    "step_per_collect": (24, lambda t: t.step_per_collect),
    "update_per_step": (0.25, lambda t: t.update_per_step),
    "learning_starts": (55, lambda t: t.learning_starts),
    "warmup": ("policy", lambda t: t.warmup),
    "schedule_steps": (999, lambda t: adam(t).lr.knots[-1][0]),
    "max_epoch": (6, lambda t: t.max_epoch),
    "step_per_epoch": (66, lambda t: t.step_per_epoch),
    "evaluate_at_start": (True, lambda t: t.evaluation_schedule.evaluation.at_start),
    "stop_return": (5.0, lambda t: next(x for x in (4.5, 5.0, 5.5) if t._options["stop_fn"](x))),
    "device": ("cpu", lambda t: t.policy.device.type),
    "buffer": (PRIORITIES, lambda t: {**PRIORITIES, "alpha": t.buffer.alpha, "beta": t.buffer.beta(0)}),
    "policy_class": (Own, lambda t: type(t.policy)),
    "episode_per_collect": (3, lambda t: t.episode_per_collect),
    "updates_per_round": (4, lambda t: t.updates_per_round),
    "refresh_priorities": ("round", lambda t: t.refresh_priorities),
    "overlap": (True, lambda t: t.overlap),
    "engine": ("torch", lambda t: t.policy.engine.name),
    "on_nan": ("skip", lambda t: t.policy.on_nan),
    "precision": ("bf16", lambda t: t.policy.precision),
    **NETWORK_OPTIONS,
    **OF_A_MEMORY,
}
NEEDS: dict[str, dict[str, Any]] = {
    **MEMORY_NEEDS,
    "schedule_steps": {"lr": tk.Linear(1e-3, 1e-4)},
    "network.auxiliary": {"network": {"encoder": Plain}},  # the features of vectors are not learned otherwise
    "updates_per_round": {"refresh_priorities": "round"},
    "refresh_priorities": {"updates_per_round": 4},
    "test_env": {"env": gym.vector.SyncVectorEnv([lambda: gym.make("Pendulum-v1")])},
}


def test_a_number_is_the_beta_of_colored_noise() -> None:
    assert tiny(exploration=0.5).policy.exploration.beta == 0.5


# Those left out are tested with self-play, the zoo, run folders and on a GPU.
@pytest.mark.parametrize("setting", sorted(options_in(presets.sac) - {"self_play", "zoo", "run_name"}))
def test_every_setting_reaches_what_it_is_about(setting: str) -> None:
    value, read = REACHES[setting]
    if setting != "device":
        assert value != current(presets.sac.settings(), setting)
    needed = NEEDS.get(setting, {})
    own = given(setting, value)
    both = {**needed, **own, **{name: {**needed[name], **own[name]} for name in needed.keys() & own.keys()}}
    assert value == read(tiny(**both))


def test_linear_is_stretched_over_the_run() -> None:
    trainer = tiny(temperature=tk.Linear(0.4, 0.2))
    at = [trainer.policy.loss_inputs(1, step=step)["temperature"] for step in (0, 32, 64, 999)]
    assert at == pytest.approx([0.4, 0.3, 0.2, 0.2])


def test_an_unknown_override_is_refused_with_the_nearest() -> None:
    with pytest.raises(tk.ConfigError, match=r"presets\.sac: unknown option 'temprature', did you mean 'temperature'"):
        tiny(temprature=0.9)
