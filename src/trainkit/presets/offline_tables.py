"""The presets of the offline learners, and their tables: a buffer comes in, a trainer goes out."""

from collections.abc import Mapping
from typing import Any, Literal, TypedDict, Unpack

from gymnasium.vector import VectorEnv

from trainkit.collector import Collector
from trainkit.core.errors import ConfigError, refuse_unknown
from trainkit.core.protocols import Dataset, EnvSpaces, Learner
from trainkit.core.schedules import Linear, Scheduled
from trainkit.core.signatures import checked
from trainkit.engine import Adam
from trainkit.envs import Envs, make_envs
from trainkit.envs.make import EnvSpec
from trainkit.policy import BCPolicy, ConservativePenalty, DiscreteBCQPolicy, DQNPolicy, Greedy, Target, Value
from trainkit.presets.base import Preset, over_the_run
from trainkit.presets.preset_config import PresetConfig
from trainkit.presets.q_learning import value_of, why_idle
from trainkit.trainer import OfflineTrainer
from trainkit.trainer.options import CommonOptions, TrainerOptions


class OfflineSettings(TypedDict, total=False):
    """What the presets of offline learners may override, beside the options of every trainer; each its own table's.

    Schedules count updates, and may be `Linear`, over all of the run's.
    """

    n_test_envs: int
    env_options: dict[str, Any]  # of make_envs
    hidden: tuple[int, ...]
    action_scaling: bool  # of bc: Box actions to the bounds of the space
    normalize_obs: bool  # by all rows' mean and deviation; never images
    head: tuple[int, ...]
    dueling: bool
    value: Literal["expected", "categorical", "quantile", "implicit"] | Value
    loss: Literal["huber", "mse", "likelihood"]  # of an expected value; of bc "likelihood" or "mse"
    rescale: float | None
    atoms: int
    v_min: float
    v_max: float
    quantiles: int | None
    double: bool
    penalty_weight: float  # of cql
    threshold: float  # of bcq
    logit_weight: float  # of bcq
    n_step: int | tuple[int, int]
    gamma: float
    reward: Any
    target_every: int
    target_tau: Scheduled | Linear
    lr: Scheduled | Linear
    adam_eps: float
    max_grad_norm: float | None
    batch_size: int | None
    max_epoch: int
    update_per_epoch: int
    stop_return: float | None
    device: str


class OfflineOverrides(OfflineSettings, TrainerOptions, total=False):
    """All overrides of an offline learner's preset."""


class NoSwitches(TypedDict):
    """None: a policy learns from data as it does."""


class OfflinePreset(Preset):
    """An offline learner's table of settings; called with a buffer, it returns a trainer."""

    known = OfflineSettings
    switches = NoSwitches

    @checked
    def __call__(
        self,
        buffer: Dataset,
        env: EnvSpec | EnvSpaces | None = None,
        *,
        seed: int | None = None,
        **overrides: Unpack[OfflineOverrides],
    ) -> OfflineTrainer:
        """Return a trainer.

        Args:
            buffer: has the rows, as a `ReplayBuffer` does.
            env: an id or a factory, to evaluate in; or anything with `observation_space` and `action_space`, and
                nothing is evaluated. None: the buffer tells its spaces itself.
            seed: of everything.
            overrides: of `settings()`, or options of `OfflineTrainer`. `evaluation=None` evaluates nothing.
        """
        name, domain = repr(self), "classic"
        if not isinstance(buffer, Dataset):
            raise ConfigError(
                f"{name} learns from a replay buffer, which comes first, got {buffer!r}: give load_dataset(path)"
            )
        refuse_unknown(name, overrides, {*self.settings(domain), *TrainerOptions.__annotations__})
        self._refuse_misfits(overrides)
        evaluates = self._evaluates(overrides, "env")
        making = {**self.settings(domain), **overrides}
        if isinstance(env, (VectorEnv, Envs)):  # which says itself how many there are
            making["n_test_envs"] = overrides.get("n_test_envs", 1)
        envs, spaces = _places(name, buffer, env, making)
        if envs is not None and not evaluates:
            if not isinstance(env, (VectorEnv, Envs)):  # made above, for their spaces
                envs.close()
            envs = None
        table = self.settings(self._domain(spaces))
        chosen = over_the_run({**table, **overrides}, "update_per_epoch")
        self._refuse_idle(chosen, table, overrides)
        policy = self._policy(spaces, chosen)
        common: dict[str, Any] = {
            key: value for key, value in overrides.items() if key in CommonOptions.__annotations__
        }
        if envs is not None:
            common |= {
                "test_collector": Collector(policy, envs),
                "episode_per_test": common.get("episode_per_test", 20),
            }
        self._add_stop(common, chosen["stop_return"])
        rates = {key: chosen[key] for key in ("max_epoch", "update_per_epoch", "batch_size")}
        return OfflineTrainer(policy, buffer, **rates, **common, seed=seed)

    def config(
        self,
        buffer: Dataset,
        env: EnvSpec | EnvSpaces | None = None,
        *,
        seed: int | None = None,
        **overrides: Unpack[OfflineOverrides],
    ) -> PresetConfig[OfflineTrainer]:
        """Return the arguments as a frozen object, from which to build."""
        return PresetConfig(preset=self, buffer=buffer, env=env, seed=seed, options=dict(overrides))

    def _policy(self, envs: EnvSpaces, chosen: Mapping[str, Any]) -> Learner:
        raise TypeError(f"{type(self).__name__} must define _policy")


class BCPreset(OfflinePreset):
    """Behaviour cloning's table of settings; called with a buffer, it returns a trainer."""

    def _policy(self, envs: EnvSpaces, chosen: Mapping[str, Any]) -> BCPolicy:
        return BCPolicy.for_envs(
            envs,
            hidden=chosen["hidden"],
            normalize_obs=chosen["normalize_obs"],
            action_scaling=chosen["action_scaling"],
            loss=chosen["loss"],
            optimizer=Adam(chosen["lr"], eps=chosen["adam_eps"]),
            max_grad_norm=chosen["max_grad_norm"],
            device=chosen["device"],
        )


class CQLPreset(OfflinePreset):
    """Conservative Q-learning's table of settings; called with a buffer, it returns a trainer."""

    def _why_idle(self, name: str, chosen: Mapping[str, Any]) -> str | None:
        return why_idle(name, chosen)

    def _policy(self, envs: EnvSpaces, chosen: Mapping[str, Any]) -> DQNPolicy:
        penalty = ConservativePenalty(chosen["penalty_weight"])
        return DQNPolicy.for_envs(envs, double=chosen["double"], penalty=penalty, **_q_words(self, chosen))


class BCQPreset(OfflinePreset):
    """Discrete BCQ's table of settings; called with a buffer, it returns a trainer."""

    def _why_idle(self, name: str, chosen: Mapping[str, Any]) -> str | None:
        return why_idle(name, chosen)

    def _policy(self, envs: EnvSpaces, chosen: Mapping[str, Any]) -> DiscreteBCQPolicy:
        limits = {name: chosen[name] for name in ("threshold", "logit_weight")}
        return DiscreteBCQPolicy.for_envs(envs, **_q_words(self, chosen), **limits)


def _q_words(preset: Preset, chosen: Mapping[str, Any]) -> dict[str, Any]:
    """Return what both Q-learners are told, in the words of `DQNPolicy.for_envs`."""
    names = ("hidden", "head", "dueling", "normalize_obs", "n_step", "gamma", "reward", "max_grad_norm", "device")
    return {
        **{name: chosen[name] for name in names},
        "value": value_of(preset, chosen),
        "exploration": Greedy(),
        "optimizer": Adam(chosen["lr"], eps=chosen["adam_eps"]),
        "target": Target(chosen["target_every"], tau=chosen["target_tau"]),
    }


def _places(
    name: str, buffer: Dataset, env: EnvSpec | EnvSpaces | None, making: Mapping[str, Any]
) -> tuple[Envs | None, EnvSpaces]:
    """Return where to evaluate, None for nowhere, and what has the spaces."""
    told: Any = buffer if env is None else env
    has_spaces = hasattr(told, "observation_space") and hasattr(told, "action_space")
    if has_spaces and not (callable(told) or isinstance(told, (VectorEnv, Envs))):
        return None, told
    if env is None:
        raise ConfigError(f"{name} cannot tell the spaces by {buffer!r}: give env, to evaluate in or for its spaces")
    envs = make_envs(told, making["n_test_envs"], in_evaluation=True, **making["env_options"])
    return envs, envs


_COMMON = {
    "n_test_envs": 10,
    "env_options": {},
    "hidden": (128, 128),
    "normalize_obs": True,
    "adam_eps": 1e-8,
    "max_grad_norm": None,
    "batch_size": 256,
    "max_epoch": 5,
    "update_per_epoch": 2_000,
    "stop_return": None,
    "device": "auto",
}

# Chosen on CartPole-v1, seeds 11 to 16 of benchmarks/offline.py, and judged on others; docs/algorithms/cql.md says why.
# gamma is low, few data support no long plan (Jiang et al., 2015; Hu et al., 2022): rewards that come late want 0.99.
_Q = {
    **_COMMON,
    "head": (),
    "dueling": False,
    "value": "expected",
    "loss": "mse",
    "rescale": None,
    "atoms": 51,
    "v_min": 0.0,
    "v_max": 10.0,  # 1 / (1 - gamma)
    "quantiles": None,
    "n_step": 3,
    "gamma": 0.9,
    "reward": None,
    "target_every": 100,
    "target_tau": 1.0,
    "lr": Linear(1e-3, 0.0),
    "max_grad_norm": 10.0,
}

# Agarwal et al. (2020), "An optimistic perspective on offline RL", whose data and numbers both papers take for images.
_IMAGES = {
    "hidden": (),
    "head": (512,),
    "normalize_obs": False,
    "loss": "huber",
    "v_min": -10.0,
    "v_max": 10.0,
    "reward": "sign",
    "lr": 5e-5,
    "adam_eps": 0.01 / 32,
    "batch_size": 32,
    "n_step": 1,
    "gamma": 0.99,
    "target_every": 2_000,
    "max_epoch": 200,
    "update_per_epoch": 62_500,
}

bc = BCPreset(
    "bc",
    "Behaviour cloning: do what the data's actors did (Pomerleau, 1989)",
    {
        domain: {**_COMMON, "action_scaling": True, "loss": "likelihood", "lr": Linear(1e-3, 0.0)}
        for domain in ("classic", "atari")
    },
    atari={
        "hidden": (512,),
        "normalize_obs": False,
        "lr": 1e-4,
        "batch_size": 32,
        "max_epoch": 40,
        "update_per_epoch": 25_000,
    },
)

cql = CQLPreset(
    "cql",
    "CQL: a Q-learner that pays for values of actions not in the data (Kumar et al., 2020)",
    {"classic": _Q, "atari": {**_Q, **_IMAGES}},
    parts={"penalty_weight": 0.03, "double": True},
    atari={"value": "quantile", "quantiles": 200, "penalty_weight": 4.0},  # theirs, for 1 % of the data
)

bcq = BCQPreset(
    "bcq",
    "Discrete BCQ: a Q-learner that chooses among plausible actions (Fujimoto et al., 2019)",
    {"classic": _Q, "atari": {**_Q, **_IMAGES}},
    parts={"threshold": 0.3, "logit_weight": 1e-2},
)
