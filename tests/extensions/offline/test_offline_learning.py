"""Presets of the offline learners: a buffer in, a trainer out; any setting by name, none that does nothing."""

from types import SimpleNamespace
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch

import trainkit as tk
from tests.extensions.offline.tiny_runs import tiny
from tests.helpers.engine import precisions
from tests.helpers.learning import Spaces
from tests.helpers.network_options import NETWORK_OPTIONS, given, options_in
from tests.trainer.toys import Walk, columns
from trainkit import presets

LEARNERS = {"bc": tk.BCPolicy, "cql": tk.DQNPolicy, "bcq": tk.DiscreteBCQPolicy}
SPACES = SimpleNamespace(observation_space=Walk.observation_space, action_space=Walk.action_space)
every = pytest.mark.parametrize("preset", [presets.PRESETS[name] for name in LEARNERS], ids=repr)


@every
def test_a_preset_trains_from_a_buffer_and_is_evaluated_in_the_given_environment(preset: Any) -> None:
    with tiny(preset) as trainer:
        results = list(trainer)
    assert type(trainer) is tk.OfflineTrainer
    assert type(trainer.policy) is LEARNERS[preset.name]
    assert [result.info.gradient_step for result in results] == [5, 10]
    assert [result.stats.test.n_episode for result in results] == [2, 2]


@every
def test_with_spaces_alone_nothing_is_evaluated_and_the_policy_is_the_same(preset: Any) -> None:
    evaluated, alone = tiny(preset), tiny(preset, SPACES)
    evaluated.run()
    assert [result.stats.test.is_empty for result in alone] == [True, True]
    mine, theirs = (one.policy.state_dict() for one in (alone, evaluated))
    assert all((mine[name] == theirs[name]).all() for name in theirs)


@every
def test_one_seed_decides_everything(preset: Any) -> None:
    runs = []
    for seed in (1, 1, 2):
        trainer = tiny(preset, seed=seed, max_epoch=1, evaluation=None)
        trainer.run()
        runs.append([tensor.tolist() for tensor in trainer.policy.state_dict().values()])
    assert runs[0] == runs[1] != runs[2]


@every
def test_a_buffer_without_spaces_needs_an_environment(preset: Any) -> None:
    with pytest.raises(tk.ConfigError, match="does not know the spaces of its rows: give it spaces="):
        tiny(preset, None)

    class Reported(tk.ReplayBuffer):
        observation_space, action_space = Walk.observation_space, Walk.action_space

    trainer = preset(
        Reported.from_arrays(**columns()), seed=1, device="cpu", verbose=False, max_epoch=1, update_per_epoch=2
    )
    assert trainer.run().gradient_step == 2


@every
def test_images_take_the_other_table(preset: Any) -> None:
    frames = np.zeros((50, 40, 40), np.uint8)
    rows = tk.ReplayBuffer.from_arrays(**columns(obs=frames, next_obs=frames))
    spaces = SimpleNamespace(
        observation_space=gym.spaces.Box(0, 255, (40, 40), np.uint8), action_space=SPACES.action_space
    )
    trainer = preset(rows, spaces, seed=1, device="cpu", verbose=False, max_epoch=1, update_per_epoch=1)
    assert trainer.batch_size == preset.settings("atari")["batch_size"] == 32
    assert trainer.run().gradient_step == 1


def adam(trainer: Any) -> Any:
    return next(iter(trainer.policy.gradient_steps.values())).optimizer


# Each setting, another value of it, and what has that value then.
REACHES: dict[str, tuple[Any, Any]] = {
    "evaluate_at_start": (True, lambda t: t.evaluation_schedule.evaluation.at_start),
    "n_test_envs": (3, lambda t: t.evaluation_schedule.evaluation.collector.envs.n),
    "env_options": ({"max_episode_steps": 7}, None),
    "hidden": ((7,), lambda t: (t.policy.network.encoder.n_features,)),
    "normalize_obs": (False, lambda t: t.policy.preprocess.observes),
    "network.head": ((6,), lambda t: (t.policy.network.heads.advantage.layers[0].out_features,)),
    "network.dueling": (True, lambda t: t.policy.network.heads.state_value is not None),
    "network.noisy": (0.25, lambda t: 0.25 if t.policy.network.noise_size > 0 else None),
    "value": ("quantile", lambda t: {tk.QuantileValue: "quantile"}[type(t.policy.value)]),
    "backup": ("max", lambda t: {tk.MaxBackup: "max"}[type(t.policy.backup)]),
    "penalty": (None, lambda t: t.policy.penalty),
    "threshold": (0.5, lambda t: t.policy.plausible.threshold),
    "logit_weight": (0.5, lambda t: t.policy.logit_weight),
    "n_step": (4, lambda t: t.policy.horizon.n_step),
    "gamma": (0.5, lambda t: t.policy.horizon.gamma),
    "reward": ("sign", lambda t: t.policy.horizon.reward),
    "target_every": (77, lambda t: t.describe()["policy/target/every"]),
    "target_tau": (0.5, lambda t: t.describe()["policy/target/tau"]),
    "optimizer": (torch.optim.AdamW, lambda t: adam(t).factory),
    "lr": (0.125, lambda t: adam(t).lr),
    "max_grad_norm": (3.0, lambda t: next(iter(t.policy.gradient_steps.values())).clip.limit),
    "batch_size": (9, lambda t: t.batch_size),
    "schedule_steps": (999, lambda t: adam(t).lr.knots[-1][0]),
    "max_epoch": (6, lambda t: t.max_epoch),
    "update_per_epoch": (66, lambda t: t.step_per_epoch),
    "stop_return": (5.0, lambda t: next(x for x in (4.5, 5.0, 5.5) if t._options["stop_fn"](x))),
    "device": ("cpu", lambda t: t.policy.device.type),
    "on_nan": ("skip", lambda t: t.policy.on_nan),
    "precision": (precisions("float32", "bf16")[-1], lambda t: t.policy.precision),
    **NETWORK_OPTIONS,
}
NEEDS = {
    "schedule_steps": {"lr": tk.Linear(1e-3, 1e-4)},
}
OF_LEARNERS = [presets.PRESETS[name] for name in LEARNERS]
CASES = [(preset, name) for preset in OF_LEARNERS for name in sorted(options_in(preset))]
CASES.remove((presets.PRESETS["bc"], "loss"))  # its own words, below
CASES = [
    (preset, name) for preset, name in CASES if name not in ("recurrent", "sequences", "run_name")
]  # with one: test_offline_memory
CASES = [(preset, name) for preset, name in CASES if name != "policy_class"]  # see below
CASES.remove((presets.PRESETS["bc"], "action_scaling"))  # of a Box, in tests/nets/test_action_scale.py


@pytest.mark.one_of_each
@pytest.mark.parametrize(("preset", "setting"), CASES, ids=str)
def test_every_setting_reaches_what_it_is_about(preset: Any, setting: str) -> None:
    value, read = REACHES[setting]
    trainer = tiny(preset, **NEEDS.get(setting, {}), **given(setting, value))
    if setting == "env_options":
        assert trainer.run().last_test.lengths.max <= 7
    else:
        assert read(trainer) == value


def test_the_loss_of_bc_is_its_own() -> None:
    with pytest.raises(tk.ConfigError, match="'mse' measures distances"):
        tiny(presets.bc, loss="mse")
    with pytest.raises(tk.ConfigError, match="loss must be 'likelihood' or 'mse', got 'huber'"):
        tiny(presets.bc, loss="huber")


def test_bcq_has_no_memory() -> None:
    with pytest.raises(tk.ConfigError, match=r"presets\.bcq: unknown option 'recurrent'"):
        tiny(presets.bcq, recurrent="lstm")


def test_linear_is_stretched_over_all_updates() -> None:
    trainer = tiny(presets.cql, lr=tk.Linear(1.0, 0.5))
    assert [adam(trainer).lr(step) for step in (0, 5, 10, 99)] == [1.0, 0.75, 0.5, 0.5]


@pytest.mark.parametrize(
    ("preset", "setting"),
    [(presets.bc, "gamma"), (presets.bc, "penalty"), (presets.cql, "threshold"), (presets.bcq, "backup")],
    ids=str,
)
def test_a_setting_of_another_preset_is_refused(preset: Any, setting: str) -> None:
    with pytest.raises(tk.ConfigError, match=rf"presets\.{preset.name}: unknown option '{setting}'"):
        tiny(preset, **{setting: True})


@every
def test_options_of_evaluation_that_would_need_the_policy_are_refused(preset: Any) -> None:
    envs = tk.make_envs(Walk, 1)
    other = tk.Collector(tk.RandomPolicy(envs.action_space), envs)
    with pytest.raises(tk.ConfigError, match="evaluation would have to share: give env"):
        tiny(preset, evaluation=tk.Evaluation(other))


def test_parts_are_options() -> None:
    value, penalty = tk.CategoricalValue(7, -3.0, 3.0), tk.ConservativePenalty(2.5)
    policy = tiny(presets.cql, value=value, penalty=penalty, backup="max").policy
    assert (policy.value.width, policy.penalty.weight) == (7, 2.5)
    assert tiny(presets.bcq, value=tk.QuantileValue(5, rescale=1e-2)).policy.value.rescale == 1e-2


@pytest.mark.parametrize("name", LEARNERS)
def test_a_subclass_is_the_policy_of_a_preset(name: str) -> None:
    own = type("Own", (LEARNERS[name],), {})
    assert type(tiny(presets.PRESETS[name], policy_class=own).policy) is own
    with pytest.raises(tk.ConfigError, match=rf"presets\.{name}\.policy_class must be a class like"):
        tiny(presets.PRESETS[name], policy_class=tk.PPOPolicy)


def test_a_run_is_described() -> None:
    envs = tk.make_envs("CartPole-v1", 1)
    buffer = tk.ReplayBuffer(50, spaces=envs)
    tk.Collector(tk.RandomPolicy(envs.action_space), envs, buffer).collect(n_step=50)
    trainer = presets.bc(buffer, hidden=(8,), device="cpu", verbose=False)
    expected = {"policy": "BCPolicy", "policy/hidden": [8], "n_rows": 50, "buffer/capacity": 50}
    record = trainer.describe()
    assert {name: record.get(name) for name in expected} == expected
    trainer.close()


def test_a_categorical_value_takes_its_support_from_the_dataset() -> None:
    obs, is_last = np.arange(32, dtype=np.float32).reshape(8, 4), np.arange(8) % 4 == 3
    rows = {"obs": obs, "next_obs": obs + 4, "action": np.zeros(8, np.int64), "reward": np.ones(8)}
    buffer = tk.ReplayBuffer.from_arrays(**rows, terminated=is_last, spaces=Spaces())
    options = {"hidden": (8,), "max_epoch": 1, "update_per_epoch": 2, "device": "cpu", "seed": 1}
    trainer = presets.bcq(buffer, value="categorical", gamma=0.5, **options)
    assert (trainer.policy.value.v_min, trainer.policy.value.v_max) == pytest.approx(
        (0.0, 1.1 * 1.875)
    )  # 1 + 0.5 + 0.25 + 0.125
