"""Offline presets: behavior cloning, CQL and discrete BCQ, which make a trainer from a buffer; settings and tables."""

from collections.abc import Mapping
from typing import Annotated, Any, Literal, TypeGuard, TypeVar, Unpack

from gymnasium.vector import VectorEnv

from trainkit.collector import Collector
from trainkit.core.errors import ConfigError
from trainkit.core.protocols import Dataset, EnvSpaces
from trainkit.core.schedules import Linear
from trainkit.core.signatures import checked
from trainkit.engine.optimizers import Adam
from trainkit.envs import Envs, make_envs
from trainkit.envs.envs_config import EnvSpec
from trainkit.envs.make import borrowed_envs
from trainkit.extensions.offline.bc import BCPolicy
from trainkit.extensions.offline.bcq import DiscreteBCQPolicy
from trainkit.extensions.offline.loading import load_dataset
from trainkit.extensions.offline.streaming import stream_dataset
from trainkit.policy import (
    ConservativePenalty,
    DoubleBackup,
    DQNPolicy,
    ExpectedValue,
    Greedy,
    Policy,
    QuantileValue,
)
from trainkit.presets.base import (
    ACTION_VALUE_WORDS,
    ActionValueSettings,
    MemorySettings,
    NetworkOptions,
    P,
    Preset,
    PresetConfig,
    QLearningSettings,
    Settings,
    action_value_options,
    by_name,
    memory_options,
    network_options,
    q_options,
    table_of,
)
from trainkit.trainer import OfflineTrainer


class OfflineSettings(Settings, total=False):
    """Settings of every offline preset. Schedules count updates, and may be `Linear`, over all of the run's.

    Args:
        normalize_obs: subtract the mean of all rows and divide by their standard deviation; never images.
        batch_size: rows per update; None is the whole dataset.
        update_per_epoch: updates per epoch.
    """

    batch_size: Annotated[int | None, 256]
    update_per_epoch: Annotated[int, 2_000]


_USUAL = OfflineSettings(hidden=(128, 128), normalize_obs=True, lr=Linear(1e-3, 0.0), max_grad_norm=None, max_epoch=5)


class BCSettings(MemorySettings, OfflineSettings, total=False):
    """Settings of behavior cloning.

    Args:
        network: options of `NetworkOptions`, such as {"norm": "layer"}; the others stay.
        action_scaling: map actions of a Box from [-1, 1] to the bounds of the space.
        loss: minus the log-likelihood of the data's actions, or the mean squared error.
        policy_class: a subclass of `BCPolicy`, made by its `for_envs`; None is `BCPolicy`.
    """

    network: Annotated[NetworkOptions, {}]
    action_scaling: Annotated[bool, True]
    loss: Annotated[Literal["likelihood", "mse"], "likelihood"]
    policy_class: Annotated[type[BCPolicy] | None, None]


def bc_settings(**given: Unpack[BCSettings]) -> BCSettings:
    """Return all settings of behavior cloning."""
    return table_of(BCSettings, _USUAL, given)


class OfflineQSettings(ActionValueSettings, OfflineSettings, total=False):
    """Settings of offline Q-learners.

    Args:
        n_step: rewards that a target adds up before it bootstraps; (low, high) draws their number per row.
        gamma: discount per step.
        reward: what is learned from: "sign", "return_scale", a clip (lo, hi), a factor or a function, as in `Horizon`;
            None is the reward itself.
    """

    n_step: int | tuple[int, int]
    gamma: float
    reward: Annotated[Any, None]


# Chosen on CartPole-v1, seeds 11 to 16 of benchmarks/learning/offline.py, tested on others; see docs/algorithms/cql.md.
# gamma is low, few data support no long plan (Jiang et al., 2015; Hu et al., 2022): rewards that come late need 0.99.
_USUAL_OF_Q = {**_USUAL, **OfflineQSettings(n_step=3, gamma=0.9, target_every=100, max_grad_norm=10.0)}


class CQLSettings(QLearningSettings, OfflineQSettings, total=False):
    """Settings of CQL."""


# The weight of the penalty is alpha in the paper.
_USUAL_OF_CQL = _USUAL_OF_Q | CQLSettings(backup=DoubleBackup(), penalty=ConservativePenalty(0.03))


def cql_settings(**given: Unpack[CQLSettings]) -> CQLSettings:
    """Return all settings of CQL."""
    return table_of(CQLSettings, _USUAL_OF_CQL, given)


class BCQSettings(OfflineQSettings, total=False):
    """Settings of discrete BCQ.

    Args:
        threshold: least probability of an action, relative to the most probable one, tau in the paper.
        logit_weight: of the squared logits of the imitation, which keeps them small.
        policy_class: a subclass of `DiscreteBCQPolicy`, made by its `for_envs`; None is `DiscreteBCQPolicy`.
    """

    threshold: Annotated[float, 0.3]
    logit_weight: Annotated[float, 1e-2]
    policy_class: Annotated[type[DiscreteBCQPolicy] | None, None]


def bcq_settings(**given: Unpack[BCQSettings]) -> BCQSettings:
    """Return all settings of discrete BCQ."""
    return table_of(BCQSettings, _USUAL_OF_Q, given)


# Agarwal et al. (2020), "An optimistic perspective on offline RL", whose data and numbers both papers take for images.
_Q_ON_IMAGES: dict[str, Any] = {
    "hidden": (),
    "network": {"head": (512,)},
    "normalize_obs": False,
    "value": ExpectedValue("huber"),
    "reward": "sign",
    "lr": 5e-5,
    "optimizer": Adam(eps=0.01 / 32),
    "batch_size": 32,
    "n_step": 1,
    "gamma": 0.99,
    "target_every": 2_000,
    "max_epoch": 200,
    "update_per_epoch": 62_500,
}

_SEQUENCES = 20, 10, False  # of `Sequences`, that a memory learns from: data have no states

OfflineSettingsT = TypeVar("OfflineSettingsT", bound=OfflineSettings)


class OfflinePreset(Preset[P, OfflineSettingsT, OfflineTrainer]):
    """A preset that learns from a buffer."""

    learns_from_data = True

    @checked
    def __call__(
        self, buffer: Dataset, env: EnvSpec | EnvSpaces | None = None, *args: P.args, **options: P.kwargs
    ) -> OfflineTrainer:
        """Return a trainer.

        Args:
            buffer: has the rows, as a `ReplayBuffer` does.
            env: an id or a factory, to evaluate in; or anything with `observation_space` and `action_space`, without
                evaluation. None: the buffer has its spaces itself.
            args: none; options are given by name.
            options: `seed`, of everything; any of `settings()`; options of `OfflineTrainer`. `evaluation=None` switches
                evaluation off.
        """
        self._check_by_name(args)
        if not isinstance(buffer, Dataset):
            raise ConfigError(
                f"{self} learns from a replay buffer, which comes first, got {buffer!r}: give load_dataset(path)"
            )
        self.check_options(options)
        return self._build(buffer, env, options)

    def config(
        self, buffer: Dataset, env: EnvSpec | EnvSpaces | None = None, *args: P.args, **options: P.kwargs
    ) -> PresetConfig[OfflineTrainer]:
        """Return the arguments as a frozen `PresetConfig`, whose `build` makes the trainer."""
        self._check_by_name(args)
        given: dict[str, Any] = dict(options)
        return PresetConfig(preset=self, buffer=buffer, env=env, seed=given.pop("seed", None), options=given)

    def load_data(self, path: str, shuffle_rows: int | None) -> Dataset:
        """Return the dataset in files or of a Minari id, streamed through `shuffle_rows` rows of memory, or loaded."""
        return load_dataset(path) if shuffle_rows is None else stream_dataset(path, shuffle_rows=shuffle_rows)

    def settings_for(self, env: Any, options: Mapping[str, Any], buffer: Any = None) -> dict[str, Any]:
        """Return the settings that a call with this buffer, this environment and these options has."""
        source = buffer if env is None else env
        if _has_only_spaces(source):
            return self._settings_in(source, options)
        with borrowed_envs(source, 1, **self.changed(self.table(), options)["env_options"]) as envs:
            return self._settings_in(envs, options)

    def _settings_in(self, spaces: EnvSpaces, options: Mapping[str, Any]) -> dict[str, Any]:
        settings = by_name(self.changed(self.table(self.domain_of(spaces)), options))
        return {name: settings[name] for name in {**self.settings(), **options}}

    def make_policy(self, spaces: EnvSpaces, settings: OfflineSettingsT) -> Policy:
        """Make the policy."""
        raise NotImplementedError

    def _build(self, buffer: Dataset, env: EnvSpec | EnvSpaces | None, options: Mapping[str, Any]) -> OfflineTrainer:
        """Make the policy and the trainer, with environments for evaluation where there are any."""
        evaluates = self._evaluates(options, "env")
        envs, spaces = self._evaluation_envs(buffer, env, options)
        if envs is not None and not evaluates:
            if envs is not env and not isinstance(env, VectorEnv):  # made above, for their spaces
                envs.close()
            envs = None
        domain = self.domain_of(spaces)
        table = self.table(domain)
        settings = self.changed(table, options)
        config = self._plain_config(domain, settings)
        settings = self._over_the_run(settings, table, self._schedule_steps(settings, settings["update_per_epoch"]))
        self._check_effects_in(spaces, options, table)
        policy = self.make_policy(spaces, settings)
        policy.on_nan = settings["on_nan"]
        common = self._trainer_options(options, settings)
        if envs is not None:
            common["episode_per_test"] = settings["episode_per_test"]
            common["test_collector"] = Collector(policy, envs)
        trainer = OfflineTrainer(
            policy,
            buffer,
            max_epoch=settings["max_epoch"],
            update_per_epoch=settings["update_per_epoch"],
            batch_size=settings["batch_size"],
            **common,
        )
        trainer.config = config
        trainer.note(f"{self}: the general table {domain!r}")
        return trainer

    def _evaluation_envs(
        self, buffer: Dataset, env: EnvSpec | EnvSpaces | None, options: Mapping[str, Any]
    ) -> tuple[Envs | None, EnvSpaces]:
        """Return the evaluation environments, None if `env` is only spaces, and the spaces."""
        source: Any = buffer if env is None else env
        is_made = isinstance(source, (VectorEnv, Envs))
        if _has_only_spaces(source):
            return None, source
        if env is None:
            raise ConfigError(f"{self} needs env, to evaluate in or for its spaces: {buffer!r} has no spaces")
        making = self.changed(self.table(), options)
        n = options.get("n_test_envs", 1) if is_made else making["n_test_envs"]
        envs = make_envs(source, n, **{"in_evaluation": True, **making["env_options"]})
        return envs, envs


def _has_only_spaces(source: Any) -> TypeGuard[EnvSpaces]:
    """Return whether this is no environment to evaluate in, and has the spaces of one."""
    has_spaces = hasattr(source, "observation_space") and hasattr(source, "action_space")
    return has_spaces and not (callable(source) or isinstance(source, (VectorEnv, Envs)))


class BCPreset(OfflinePreset[P, BCSettings]):
    """A preset of `BCPolicy`."""

    kind = BCSettings
    of_box = frozenset(("action_scaling",))

    def make_policy(self, spaces: EnvSpaces, settings: BCSettings) -> BCPolicy:
        return (settings["policy_class"] or BCPolicy).for_envs(
            spaces,
            hidden=settings["hidden"],
            **network_options(settings["network"]),
            **memory_options(settings, *_SEQUENCES),
            normalize_obs=settings["normalize_obs"],
            action_scaling=settings["action_scaling"],
            loss=settings["loss"],
            optimizer=settings["optimizer"],
            max_grad_norm=settings["max_grad_norm"],
            device=settings["device"],
            precision=settings["precision"],
        )


class CQLPreset(OfflinePreset[P, CQLSettings]):
    """A preset of `DQNPolicy` with a conservative penalty."""

    kind = CQLSettings
    words = ACTION_VALUE_WORDS

    def make_policy(self, spaces: EnvSpaces, settings: CQLSettings) -> DQNPolicy:
        return (settings["policy_class"] or DQNPolicy).for_envs(
            spaces, **q_options(settings), **memory_options(settings, *_SEQUENCES), **_q_arguments(settings)
        )


class BCQPreset(OfflinePreset[P, BCQSettings]):
    """A preset of `DiscreteBCQPolicy`."""

    kind = BCQSettings
    words = ACTION_VALUE_WORDS

    def make_policy(self, spaces: EnvSpaces, settings: BCQSettings) -> DiscreteBCQPolicy:
        return (settings["policy_class"] or DiscreteBCQPolicy).for_envs(
            spaces, threshold=settings["threshold"], logit_weight=settings["logit_weight"], **_q_arguments(settings)
        )


def _q_arguments(settings: OfflineQSettings) -> dict[str, Any]:
    """Return the arguments of `for_envs` that both Q-learners have."""
    return {
        "hidden": settings["hidden"],
        **action_value_options(settings),
        "normalize_obs": settings["normalize_obs"],
        "exploration": Greedy(),
        "n_step": settings["n_step"],
        "gamma": settings["gamma"],
        "reward": settings["reward"],
        "optimizer": settings["optimizer"],
        "max_grad_norm": settings["max_grad_norm"],
        "device": settings["device"],
        "precision": settings["precision"],
    }


bc = BCPreset(
    "bc",
    "Behavior cloning: imitate the actions in the data (Pomerleau, 1989)",
    bc_settings,
    {
        "classic": bc_settings(),
        "atari": bc_settings(
            hidden=(512,), normalize_obs=False, lr=1e-4, batch_size=32, max_epoch=40, update_per_epoch=25_000
        ),
    },
)

cql = CQLPreset(
    "cql",
    "CQL: a Q-learner that pays for values of actions not in the data (Kumar et al., 2020)",
    cql_settings,
    {
        "classic": cql_settings(),
        "atari": cql_settings(
            # Theirs, for 1 % of the data.
            **{**_Q_ON_IMAGES, "value": QuantileValue(200), "penalty": ConservativePenalty(4.0)}
        ),
    },
)

bcq = BCQPreset(
    "bcq",
    "Discrete BCQ: a Q-learner that chooses among plausible actions (Fujimoto et al., 2019)",
    bcq_settings,
    {"classic": bcq_settings(), "atari": bcq_settings(**_Q_ON_IMAGES)},
)
