"""Presets of the Q-learner: a ready trainer in one line, any setting by name, and no name that does nothing."""

from collections.abc import Callable
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
from tests.trainer.toys import Walk, everything
from trainkit import presets
from trainkit.core.config import to_plain
from trainkit.nets.noisy import NoisyLinear

TINY: dict[str, Any] = {
    "max_epoch": 2,
    "step_per_epoch": 32,
    "learning_starts": 8,
    "step_per_collect": 8,
    "batch_size": 4,
    "n_test_envs": 2,
    "episode_per_test": 2,
    "hidden": (8,),
    "verbose": False,
    "device": "cpu",
}
Q_PRESETS = [preset for preset in presets.PRESETS.values() if isinstance(preset, presets.QPreset)]
every = pytest.mark.parametrize("preset", Q_PRESETS, ids=repr)


def tiny(preset: presets.QPreset = presets.rainbow, env: Any = Walk, **more: Any) -> Any:
    is_categorical = isinstance(preset.settings()["value"], tk.CategoricalValue)
    support = {"value": tk.CategoricalValue(51, -12.0, 12.0)} if is_categorical else {}
    return preset(env, **as_evaluated({"seed": 1} | TINY | support | more))


# ---- a ready trainer ----


@every
def test_a_preset_trains_an_id_out_of_the_box(preset: Any) -> None:
    small: dict[str, Any] = {
        "max_epoch": 1,
        "step_per_epoch": 80,
        "step_per_collect": 8,
        "batch_size": 16,
        "learning_starts": 16,
        "n_test_envs": 2,
        "episode_per_test": 2,
    }
    with preset("CartPole-v1", seed=1, verbose=False, device="cpu", **small) as trainer:
        (result,) = trainer
    assert result.info.env_step == 80
    assert result.info.gradient_step > 0
    assert result.stats.test.n_episode == 2
    assert trainer.settings()["env"] == "CartPole-v1"


def test_rainbow_has_all_six_parts() -> None:
    trainer = presets.rainbow("CartPole-v1", seed=1, device="cpu")
    policy = trainer.policy
    assert isinstance(policy.backup, tk.DoubleBackup)
    assert policy.network.heads.state_value is not None  # dueling
    assert any(isinstance(module, NoisyLinear) for module in policy.network.modules())
    assert isinstance(policy.value, tk.CategoricalValue)
    assert policy.horizon.n_step == 3
    assert isinstance(trainer.buffer, tk.PrioritizedReplayBuffer)
    assert isinstance(policy.exploration, tk.Greedy)  # the noise explores


def read_parts(preset: presets.QPreset) -> dict[str, Any]:
    """Name the parts that say the algorithms apart."""
    trainer = preset("CartPole-v1", seed=1, device="cpu")
    policy = trainer.policy
    return {
        "value": type(policy.value),
        "backup": type(policy.backup),
        "exploration": type(policy.exploration),
        "buffer": type(trainer.buffer),
        "dueling": policy.network.heads.state_value is not None,
        "noisy": policy.network.noise_size > 0,
        "n_step": policy.horizon.n_step,
    }


# What each algorithm has that DQN, which learns from rewards of 3 steps, has not.
PARTS: dict[str, dict[str, Any]] = {
    "dqn": {},
    "double_dqn": {"backup": tk.DoubleBackup},
    "dueling_dqn": {"backup": tk.DoubleBackup, "dueling": True},
    "prioritized_dqn": {"backup": tk.DoubleBackup, "buffer": tk.PrioritizedReplayBuffer},
    "noisy_dqn": {"noisy": True, "exploration": tk.Greedy},
    "c51": {"value": tk.CategoricalValue},
    "qrdqn": {"value": tk.QuantileValue},
    "iqn": {"value": tk.ImplicitQuantileValue},
    "munchausen_dqn": {"backup": tk.MunchausenBackup},
    "rainbow": {
        "value": tk.CategoricalValue,
        "backup": tk.DoubleBackup,
        "buffer": tk.PrioritizedReplayBuffer,
        "exploration": tk.Greedy,
        "dueling": True,
        "noisy": True,
    },
    "drqn": {"backup": tk.DoubleBackup, "exploration": tk.EpsilonGreedy, "n_step": 1},
    "r2d2": {
        "backup": tk.DoubleBackup,
        "buffer": tk.PrioritizedReplayBuffer,
        "exploration": tk.EpsilonGreedy,
        "dueling": True,
        "n_step": 5,
    },
}


@every
def test_a_preset_is_dqn_and_what_its_paper_adds(preset: presets.QPreset) -> None:
    assert read_parts(preset) == read_parts(presets.dqn) | PARTS[preset.name]


def test_dqn_has_none_of_them() -> None:
    trainer = presets.dqn("CartPole-v1", seed=1, device="cpu", zoo=False)
    policy = trainer.policy
    assert isinstance(policy.backup, tk.MaxBackup)
    assert policy.network.heads.state_value is None
    assert policy.network.noise_size == 0
    assert isinstance(policy.value, tk.ExpectedValue)
    assert policy.horizon.n_step == 3  # of the table of vectors
    assert type(trainer.buffer) is tk.ReplayBuffer
    assert isinstance(policy.exploration, tk.EpsilonGreedy)


@pytest.mark.fast_cases(4)
@every
def test_one_seed_decides_everything(preset: Any) -> None:
    one, two, other = (tiny(preset, seed=seed, max_epoch=1, evaluation=None) for seed in (1, 1, 2))
    for trainer in (one, two, other):
        trainer.run()
    assert everything(one) == everything(two)
    assert everything(one) != everything(other)


# ---- environments ----


def test_a_factory_makes_training_and_evaluation_environments() -> None:
    made = []

    def factory() -> Walk:
        made.append(Walk())
        return made[-1]

    trainer = tiny(env=factory, n_envs=3)
    assert trainer.train_collector.envs.n == 3
    assert trainer.evaluation_schedule.evaluation.collector.envs.n == 2
    assert len(made) == 5
    assert trainer.run().epoch == 2


def test_a_vector_environment_is_trained_in_as_it_is_and_made_again_for_evaluation() -> None:
    venv = gym.make_vec("CartPole-v1", 3)
    trainer = tiny(env=venv, step_per_collect=3)
    assert trainer.train_collector.envs.n == 3
    test = trainer.evaluation_schedule.evaluation.collector.envs
    assert (test.name, test.n) == ("CartPole-v1", 2)
    assert trainer.run().epoch == 2


def test_a_vector_environment_that_cannot_be_made_again_needs_a_test_env() -> None:
    venv = gym.vector.SyncVectorEnv([Walk, Walk])
    with pytest.raises(tk.ConfigError, match=r"presets\.rainbow cannot make .* again for evaluation: give test_env"):
        tiny(env=venv)
    assert tiny(env=venv, test_env=Walk).evaluation_schedule.evaluation.collector.envs.n == 2
    assert tiny(env=venv, evaluation=None).evaluation_schedule.evaluation is None


def test_a_vector_environment_made_otherwise_than_its_id_needs_a_test_env() -> None:
    icy = gym.make_vec("FrozenLake-v1", 2, is_slippery=False)
    with pytest.raises(tk.ConfigError, match=r"cannot make .* again for evaluation: give test_env"):
        tiny(env=icy)


def test_envs_made_by_hand_are_taken_for_training_and_for_evaluation() -> None:
    train, test = tk.make_envs(Walk, 3), tk.make_envs(Walk, 2)
    with pytest.raises(tk.ConfigError, match="again for evaluation: give test_env"):
        tiny(env=train)
    trainer = tiny(env=train, test_env=test)
    assert trainer.train_collector.envs is train
    assert trainer.evaluation_schedule.evaluation.collector.envs is test


def test_a_number_of_environments_that_contradicts_the_ones_given_is_refused() -> None:
    with pytest.raises(tk.ConfigError, match=r"make_envs\.n is 5, but 2 environments were given"):
        tiny(env=gym.vector.SyncVectorEnv([Walk, Walk]), test_env=Walk, n_envs=5)


def test_a_collector_of_another_policy_is_refused_with_what_to_give_instead() -> None:
    envs = tk.make_envs(Walk)
    collector = tk.Collector(tk.DQNPolicy.for_envs(envs), envs)
    with pytest.raises(tk.ConfigError) as caught:
        tiny(evaluation=tk.Evaluation(collector))
    assert str(caught.value) == "presets.rainbow makes the policy, which evaluation would have to share: give test_env"
    with pytest.raises(tk.ConfigError, match=r"presets\.rainbow: unknown option 'test_collector'"):
        tiny(test_collector=collector)


def test_images_take_the_atari_table_and_lives_end_no_evaluation() -> None:
    options = {"lives_key": "lives"}
    trainer = tiny(presets.dqn, env=Screen, env_options=options, network={"head": (4,)}, capacity=100)
    assert (trainer.policy.horizon.gamma, trainer.policy.horizon.reward) == (0.99, "sign")
    assert trainer.train_collector.envs.lives_key == "lives"
    assert trainer.evaluation_schedule.evaluation.collector.envs.lives_key is None


@every
def test_small_grids_take_the_grid_table(preset: Any) -> None:
    trainer = tiny(preset, env=Board)
    assert type(trainer.policy.network.encoder.encoders[0]) is tk.nets.MinAtarCNN
    table = preset.settings("grid")
    layers = table["hidden"] + table["network"].get("head", ())
    assert (layers, table["gamma"]) == ((128,), trainer.policy.horizon.gamma)
    assert trainer.run().epoch == TINY["max_epoch"]
    (obs,) = trainer.buffer.sample(1, horizon=tk.Horizon(), step=0).obs
    assert (obs.dtype, obs.shape) == (np.bool_, (10, 10, 4))


def test_linear_is_stretched_over_the_run() -> None:
    trainer = tiny(presets.dqn, lr=tk.Linear(1.0, 0.0), epsilon=tk.Linear(1.0, 0.5, share=0.25), max_epoch=4)
    n_between = trainer.settings()["step_per_collect"]  # after the end, where the next updates would follow
    rates = [adam(trainer).lr(step) for step in (0, 128, 128 + n_between, 999)]
    assert rates == pytest.approx([1.0, n_between / (128 + n_between), 0.0, 0.0])
    assert [trainer.policy.exploration.epsilon(step) for step in (0, 16, 32, 999)] == [1.0, 0.75, 0.5, 0.5]


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"exploration": tk.SoftQ(1.0), "epsilon": 0.5}, "presets.dqn.epsilon has no effect: exploration is given"),
        ({"exploration": tk.ColoredNoise()}, "presets.dqn.exploration must be an Exploration or None"),
        ({"sequences": tk.Sequences()}, "DQNPolicy.sequences has no effect, as the network carries no state"),
        ({"lr": 1e-3, "optimizer": tk.Adam(1e-4)}, "presets.dqn.lr has no effect: optimizer has a learning rate"),
        ({"buffer": {"capacity": 9}}, "presets.dqn.buffer has a capacity, an option of its own: give capacity="),
        ({"buffer": {"alpha": 0.5}}, "ReplayBuffer: unknown option 'alpha'"),
        ({"policy_class": tk.SACPolicy}, "presets.dqn.policy_class must be a class like DQNPolicy or None, got"),
        (
            {"value": "median"},
            "'expected' or 'categorical' or 'quantile' or 'implicit' or a Value, got 'median'",
        ),
        ({"backup": "maximum"}, "presets.dqn.backup must be 'max' or 'double' or 'munchausen' or a Backup, got"),
        ({"value": "categorical", "backup": "munchausen"}, "MunchausenBackup adds to returns"),
    ],
)
def test_parts_that_contradict_each_other_are_refused(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(tk.ConfigError) as caught:
        tiny(presets.dqn, **settings)
    assert message in str(caught.value)


def test_an_unknown_domain_is_refused() -> None:
    with pytest.raises(tk.ConfigError, match=r"domain must be one of .*, got 'atarri', did you mean 'atari'"):
        presets.dqn.settings("atarri")


# ---- settings ----

adam: Callable[[Any], Any] = lambda trainer: trainer.policy.gradient_steps["network"].optimizer  # noqa: E731 - a short word


# Each setting, another value of it, and what has that value then.
OWN = tk.EZGreedy(0.3, max_repeat=7)
MEDIANS, SOFT, LOW = tk.QuantileValue(7, kappa=0.5), tk.MunchausenBackup(0.5), tk.ConservativePenalty(0.25)
PRIORITIES = {"type": "PrioritizedReplayBuffer", "alpha": 0.25, "beta": 0.75}


class Own(tk.DQNPolicy):
    """A Q-learner of a user."""


REACHES: dict[str, tuple[Any, Callable[[Any], Any]]] = {
    "n_envs": (5, lambda t: t.train_collector.envs.n),
    "test_env": ("CartPole-v1", lambda t: t.evaluation_schedule.evaluation.collector.envs.name),
    "n_test_envs": (3, lambda t: t.evaluation_schedule.evaluation.collector.envs.n),
    "hidden": ((7,), lambda t: (t.policy.network.encoder.n_features,)),
    "normalize_obs": (True, lambda t: t.policy.observes),
    "network.head": ((7,), lambda t: (t.policy.network.heads.advantage.layers[0].weight.shape[0],)),
    "network.dueling": (True, lambda t: t.policy.network.heads.state_value is not None),
    "network.noisy": (
        0.25,
        lambda t: pytest.approx(float(t.policy.network.heads.advantage.layers[0].weight_sigma[0, 0].detach()) * 8**0.5),
    ),
    "env_options": ({"max_episode_steps": 7}, lambda t: {"max_episode_steps": limit_of(t.train_collector)}),
    "value": (MEDIANS, lambda t: MEDIANS if t.policy.value.arguments() == MEDIANS.arguments() else None),
    "backup": (SOFT, lambda t: SOFT if t.policy.backup.arguments() == SOFT.arguments() else None),
    "penalty": (LOW, lambda t: LOW if t.policy.penalty.arguments() == LOW.arguments() else None),
    "exploration": (OWN, lambda t: OWN if t.policy.exploration.max_repeat == 7 else None),
    "policy_class": (Own, lambda t: type(t.policy)),
    "store_action_prob": (True, lambda t: "action_prob" in t.policy.extras_spec),
    "n_step": ((2, 4), lambda t: t.policy.horizon.n_step),
    "gamma": (0.5, lambda t: t.policy.horizon.gamma),
    "reward": ("sign", lambda t: t.policy.horizon.reward),
    "optimizer": (torch.optim.AdamW, lambda t: adam(t).factory),
    "lr": (0.125, lambda t: adam(t).lr),
    "max_grad_norm": (3.0, lambda t: t.policy.gradient_steps["network"].clip.limit),
    "epsilon": (0.75, lambda t: t.policy.exploration.epsilon(0)),
    "target_every": (77, lambda t: t.describe()["policy/target/every"]),
    "target_tau": (0.5, lambda t: t.describe()["policy/target/tau"]),
    "capacity": (123, lambda t: t.buffer.capacity),
    "batch_size": (9, lambda t: t.batch_size),
    "step_per_collect": (24, lambda t: t.step_per_collect),
    "update_per_step": (0.25, lambda t: t.update_per_step),
    "learning_starts": (55, lambda t: t.learning_starts),
    "warmup": ("random", lambda t: t.warmup),
    "schedule_steps": (999, lambda t: adam(t).lr.knots[-1][0]),
    "max_epoch": (6, lambda t: t.max_epoch),
    "step_per_epoch": (66, lambda t: t.step_per_epoch),
    "evaluate_at_start": (True, lambda t: t.evaluation_schedule.evaluation.at_start),
    "stop_return": (5.0, lambda t: next(x for x in (4.5, 5.0, 5.5) if t._options["stop_fn"](x))),
    "device": ("cpu", lambda t: t.policy.device.type),
    "buffer": (PRIORITIES, lambda t: {**PRIORITIES, "alpha": t.buffer.alpha, "beta": t.buffer.beta(0)}),
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
NEEDS = {
    **MEMORY_NEEDS,
    "schedule_steps": {"lr": tk.Linear(1e-3, 1e-4)},
    "test_env": {"env": gym.vector.SyncVectorEnv([lambda: gym.make("CartPole-v1")])},
    "episode_per_collect": {"step_per_collect": None},
    "updates_per_round": {"refresh_priorities": "round"},
    "refresh_priorities": {"updates_per_round": 4},
}


# Those left out are tested with self-play, the zoo, run folders and on a GPU.
@pytest.mark.parametrize("setting", sorted(options_in(presets.dqn) - {"act_on", "self_play", "zoo", "run_name"}))
def test_every_setting_reaches_what_it_is_about(setting: str) -> None:
    value, read = REACHES[setting]
    if setting != "device":
        assert value != current(presets.settings("dqn"), setting)
    assert value == read(tiny(presets.dqn, **NEEDS.get(setting, {}), **given(setting, value)))


def test_words_stand_for_parts_with_their_defaults() -> None:
    trainer = tiny(presets.dqn, value="quantile", backup="double", buffer="prioritized", max_epoch=4)
    assert trainer.policy.value.arguments() == tk.QuantileValue(200).arguments()
    assert isinstance(trainer.policy.backup, tk.DoubleBackup)
    assert isinstance(trainer.buffer, tk.PrioritizedReplayBuffer)
    assert trainer.buffer.alpha == 0.6
    assert [trainer.buffer.beta(step) for step in (0, 64, 128)] == pytest.approx([0.4, 0.7, 1.0])  # over the run
    assert type(tiny(presets.rainbow, buffer="uniform").buffer) is tk.ReplayBuffer


def test_a_word_keeps_the_tables_own_part_of_this_kind() -> None:
    config = presets.c51.config("ALE/Breakout-v5", value="categorical", zoo=False)
    assert config["value"].given_bounds == {"v_min": -10.0, "v_max": 10.0}
    assert presets.rainbow.config("CartPole-v1", buffer="prioritized", zoo=False)["buffer"]["alpha"] == 0.5


def test_a_group_changes_only_what_it_names() -> None:
    table = presets.settings("rainbow")["network"]
    config = presets.rainbow.config("CartPole-v1", network={"norm": None}, buffer={"alpha": 0.7}, zoo=False)
    assert config["network"] == {**table, "norm": None} != table
    assert config["buffer"] == {"type": "PrioritizedReplayBuffer", "alpha": 0.7, "beta": tk.Linear(0.4, 1.0)}
    atari = presets.dqn.config("ALE/Breakout-v5", env_options={"lives_key": "lives"})["env_options"]
    assert atari == {**presets.settings("dqn", "atari")["env_options"], "lives_key": "lives"}


def test_a_buffer_of_another_type_takes_the_capacity_and_nothing_else_of_the_tables() -> None:
    trainer = tiny(presets.rainbow, buffer={"type": tk.ReplayBuffer}, capacity=77)
    assert (type(trainer.buffer), trainer.buffer.capacity) == (tk.ReplayBuffer, 77)
    beta = tiny(presets.dqn, buffer={"type": "PrioritizedReplayBuffer"}).buffer.beta
    assert beta(0) == 0.4  # the class's own default


def test_epsilon_is_that_of_the_tables_exploration_and_exploration_replaces_epsilon() -> None:
    repeating = tiny(presets.dqn, env=Board, epsilon=0.25).policy.exploration
    assert (repeating.epsilon(0), repeating.mu, repeating.max_repeat) == (0.25, 1.25, 100)
    assert type(tiny(presets.dqn, env=Board, epsilon=None).policy.exploration) is tk.Greedy
    assert type(tiny(presets.dqn, exploration=tk.SoftQ(0.5)).policy.exploration) is tk.SoftQ
    assert type(tiny(presets.noisy_dqn, epsilon=0.25).policy.exploration) is tk.EpsilonGreedy


def test_the_learning_rate_is_that_of_the_optimizer() -> None:
    for options, expected in (
        ({"lr": 0.5}, tk.Adam(0.5, eps=1.5e-4)),
        ({"lr": 0.5, "optimizer": tk.Adam(eps=0.25)}, tk.Adam(0.5, eps=0.25)),
        ({"optimizer": tk.Adam(0.125)}, tk.Adam(0.125)),
        ({"lr": None}, tk.Adam(eps=1.5e-4)),
        ({"lr": 0.5, "optimizer": torch.optim.AdamW}, tk.engine.TorchOptimizer(torch.optim.AdamW, 0.5)),
    ):
        assert adam(tiny(presets.dqn, **options)) == expected


def test_a_part_may_have_a_linear_which_is_stretched_over_the_run() -> None:
    ez = tk.EZGreedy(tk.Linear(1.0, 0.5, share=0.25), mu=1.5)
    adam_of_the_run = tk.Adam(tk.Linear(1.0, 0.5), eps=0.25)
    trainer = tiny(presets.dqn, exploration=ez, optimizer=adam_of_the_run, max_epoch=4)
    exploration = trainer.policy.exploration
    assert [exploration.epsilon(step) for step in (0, 16, 32, 999)] == [1.0, 0.75, 0.5, 0.5]
    assert exploration.mu == 1.5
    assert [adam(trainer).lr(step) for step in (0, 64, 128)] == [1.0, 0.75, 0.5]
    assert ez.epsilon == tk.Linear(1.0, 0.5, share=0.25)  # the users' part is as it was


def test_a_subclass_is_the_policy_of_a_tuned_baseline() -> None:
    class Halved(tk.DQNPolicy):
        def loss(self, rows: Any, *more: Any) -> Any:
            return super().loss(rows, *more)

    trainer = tiny(presets.rainbow, policy_class=Halved)
    assert type(trainer.policy) is Halved
    assert isinstance(trainer.policy.backup, tk.DoubleBackup)
    assert trainer.run().gradient_step > 0


def test_an_option_of_a_subclass_is_assigned_to_the_policy() -> None:
    class Penalized(tk.DQNPolicy):
        def __init__(self, *args: Any, l2: float = 0.0, **options: Any) -> None:
            super().__init__(*args, **options)
            self.l2 = l2

    with pytest.raises(tk.ConfigError, match=r"unknown option 'l2', did you mean trainer\.policy\.l2 = \.\.\.\?"):
        presets.dqn("CartPole-v1", policy_class=Penalized, l2=1.0)


def test_a_value_part_is_copied_for_every_policy() -> None:
    part = tk.QuantileValue(7, kappa=0.5)
    config = presets.dqn.config("CartPole-v1", value=part, device="cpu", evaluation=None)
    values = [config.build().policy.value for _ in range(2)]
    assert all(isinstance(value, tk.QuantileValue) for value in values)
    assert len({id(value) for value in (part, *values)}) == 3
    assert values[0].arguments() == part.arguments()


@pytest.mark.parametrize(
    ("option", "message"),
    [
        ("atoms", "value=CategoricalValue(atoms=...)"),
        ("quantiles", "value=QuantileValue(quantiles=...) or value=ImplicitQuantileValue(quantiles=...)"),
        ("double", "backup='double'"),
        ("prioritized", "buffer='prioritized'"),
        ("beta", "buffer={'beta': ...}"),
        ("alpha", "backup=MunchausenBackup(alpha=...) or buffer={'alpha': ...}"),
        ("dueling", "network={'dueling': ...}"),
        ("max_repeat", "exploration=EZGreedy(max_repeat=...)"),
        ("burn_in", "sequences=Sequences(burn_in=...)"),
        ("weight_decay", "optimizer=Adam(weight_decay=...)"),
        ("lives_key", "env_options={'lives_key': ...}"),
    ],
)
def test_an_argument_of_a_part_names_the_part(option: str, message: str) -> None:
    with pytest.raises(tk.ConfigError) as caught:
        presets.dqn("CartPole-v1", **{option: 1})
    assert str(caught.value).splitlines()[0] == f"presets.dqn: unknown option {option!r}, did you mean {message}?"


def test_an_option_of_a_group_is_checked_as_others_are() -> None:
    with pytest.raises(tk.ConfigError) as caught:
        presets.dqn("CartPole-v1", network={"duelling": True, "noisy": "yes"})
    assert str(caught.value).splitlines() == [
        "presets.dqn.network: unknown option 'duelling', did you mean 'dueling'?",
        "presets.dqn.network.noisy must be True or False or a number, got 'yes'",
        "docs/migration.md leads to the names of other libraries",
    ]


def test_a_value_part_is_checked() -> None:
    with pytest.raises(tk.ConfigError, match=r"presets\.dqn\.value must be 'expected' or .* or a Value, got"):
        tiny(presets.dqn, value=tk.Target(9))


@pytest.mark.parametrize("domain", ["classic", "grid", "atari"])
@every
def test_the_tables_name_every_setting(preset: presets.QPreset, domain: Any) -> None:
    assert set(preset.settings(domain)) == set(presets.dqn.settings())
    assert to_plain(presets.settings(preset.name, domain)) == to_plain(preset.settings(domain))


@every
def test_every_default_is_used(preset: presets.QPreset) -> None:
    table = preset.settings()
    trainer = preset("CartPole-v1", seed=1, device="cpu", zoo=False)
    settings = trainer.settings()
    for name in ("n_envs", "max_epoch", "step_per_epoch", "batch_size", "update_per_step", "learning_starts"):
        assert settings[name] == table[name]


def test_the_table_is_a_copy() -> None:
    presets.settings("dqn")["lr"] = 9.0
    assert presets.settings("dqn")["lr"] != 9.0


def test_an_unknown_preset_is_refused_with_the_nearest() -> None:
    with pytest.raises(tk.ConfigError, match="unknown option 'rainbo', did you mean 'rainbow'"):
        presets.settings("rainbo")


@every
def test_an_unknown_override_is_refused_with_the_nearest(preset: Any) -> None:
    with pytest.raises(tk.ConfigError) as caught:
        preset("CartPole-v1", updates_per_step=1, btach_size=3, colour="red")
    assert str(caught.value).splitlines() == [
        f"presets.{preset.name}: unknown option 'updates_per_step', did you mean 'update_per_step'?",
        f"presets.{preset.name}: unknown option 'btach_size', did you mean 'batch_size'?",
        f"presets.{preset.name}: unknown option 'colour'",
        "docs/migration.md leads to the names of other libraries",
    ]


def test_switches_are_passed_on_to_policy_and_trainer() -> None:
    trainer = tiny(overlap=True, refresh_priorities="round", updates_per_round=4, precision="float32", engine="torch")
    assert tiny(act_on="cpu", device="cpu").policy.device.type == "cpu"
    assert (trainer.overlap, trainer.refresh_priorities, trainer.updates_per_round) == (True, "round", 4)
    assert trainer.policy.engine.name == "torch"
    with pytest.raises(tk.ConfigError, match="engine 'cuda_graph' needs a policy on CUDA, got device cpu"):
        tiny(engine="cuda_graph", device="cpu")
    with pytest.raises(tk.ConfigError, match=r"presets\.rainbow\.engine must be"):
        tiny(engine="jax")
    with pytest.raises(tk.ConfigError, match=r"\.act_on must be"):
        tiny(act_on="gpu")
    with pytest.raises(tk.ConfigError, match=r"\.overlap must be"):
        tiny(overlap="yes")


@pytest.mark.parametrize("preset", [presets.dqn, presets.rainbow], ids=repr)
def test_frames_live_on_the_policys_device_on_request(preset: Any) -> None:
    def factory() -> Any:
        return tk.testing.FakeVectorEnv(gym.spaces.Box(0, 255, (36, 36), np.uint8), gym.spaces.Discrete(2), n=2)

    small: dict[str, Any] = {"capacity": 50, "seed": 1, "device": "cpu", "evaluation": None, "learning_starts": 8}
    small |= {"batch_size": 4, "max_epoch": 1, "step_per_epoch": 24, "verbose": False}
    on_device = {"frames": tk.engine.DeviceFrames("cpu")}
    made = [preset(factory(), **small, buffer=options) for options in (on_device, {})]
    assert isinstance(made[0].buffer.frames, tk.engine.DeviceFrames)
    assert str(made[0].buffer.frames.device) == "cpu"
    assert made[1].buffer.frames is None
    assert made[0].run().gradient_step > 0
    with pytest.raises(tk.ConfigError, match="frames is for observations with images"):
        tiny(preset, buffer=on_device)


def test_options_of_the_trainer_are_passed_on(tmp_path: Any) -> None:
    seen: list[int] = []
    trainer = tiny(
        checkpoint=tmp_path, train_fn=lambda epoch, env_step: seen.append(env_step), max_env_step=16, episode_per_test=3
    )
    info = trainer.run()
    assert (info.stop_reason, info.env_step) == ("max_env_step", 16)
    assert seen == [0, 8]
    assert info.last_test.n_episode == 3
    assert (tmp_path / "save-000001" / "manifest.json").exists()


def test_stop_return_is_a_stop_fn_and_not_given_with_one() -> None:
    assert tiny(stop_return=-99.0).run().stop_reason == "stop_fn"
    with pytest.raises(tk.ConfigError, match="given both stop_return and stop_fn: give one"):
        tiny(stop_return=-99.0, stop_fn=lambda score: False)
    assert tiny().run().stop_reason == "max_epoch"


def test_a_bad_value_is_refused_by_the_part_it_is_for() -> None:
    for override, message in {
        "gamma": "Horizon.gamma must be in [0, 1], got -1",
        "lr": "Adam.lr must be in [0, inf), got -1",
        "capacity": "ReplayBuffer.capacity must be a whole number >= 1, got -1",
        "batch_size": "OffpolicyTrainer.batch_size must be a whole number >= 1, got -1",
        "n_envs": "make_envs.n must be a whole number >= 1, got -1",
        "target_every": "Target.every must be a whole number >= 1, got -1",
    }.items():
        with pytest.raises(tk.ConfigError) as caught:
            tiny(presets.dqn, **{override: -1})
        assert message in str(caught.value)


def test_no_preset_draws_from_the_global_generators() -> None:
    before = torch.get_rng_state()
    tiny().run()
    assert torch.equal(torch.get_rng_state(), before)


@pytest.mark.parametrize(
    ("preset", "name"), [(presets.reinforce, "lam"), (presets.a2c, "clip_ratio"), (presets.bcq, "recurrent")], ids=str
)
def test_an_option_of_another_algorithm_is_unknown(preset: Any, name: str) -> None:
    with pytest.raises(tk.ConfigError, match=rf"presets\.{preset.name}: unknown option '{name}'"):
        preset.check_options({name: None})
