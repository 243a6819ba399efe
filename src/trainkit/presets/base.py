"""A preset: a table of settings for each domain, and how a table becomes a trainer."""

import copy
import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from types import MappingProxyType
from typing import Annotated, Any, ClassVar, Generic, Literal, ParamSpec, TypeVar

import gymnasium as gym
from gymnasium.vector import VectorEnv, VectorWrapper
from typing_extensions import TypedDict, is_typeddict

from trainkit.collector import Collector
from trainkit.core.config import Part, arguments_of, plain_call, with_arguments
from trainkit.core.errors import Checks, ConfigError
from trainkit.core.extensions import exported, table
from trainkit.core.protocols import Dataset, EnvSpaces
from trainkit.core.schedules import Linear, Scheduled
from trainkit.core.signatures import check_options, checked, options_of
from trainkit.core.spaces import StructuredHybrid
from trainkit.core.typed_options import completed, types_of
from trainkit.engine.device import is_accelerator
from trainkit.engine.engine import EngineName
from trainkit.engine.optimizers import (
    Adam,
    LearningRate,
    OptimizerSpec,
    TorchOptimizer,
    ignores_lr,
    spec_with_lr,
)
from trainkit.engine.precision import Precision
from trainkit.envs import Envs, make_envs
from trainkit.envs.envs_config import EnvSpec
from trainkit.envs.make import borrowed_envs, has_own_number
from trainkit.nets import Preprocess
from trainkit.nets.encoders import EncoderLike, Recurrent
from trainkit.nets.layers import Activation, Norm
from trainkit.policy import (
    CategoricalValue,
    ColoredNoise,
    DoubleBackup,
    DQNPolicy,
    ExpectedValue,
    ImplicitQuantileValue,
    MaxBackup,
    MunchausenBackup,
    Noise,
    QuantileValue,
    Target,
    Value,
)
from trainkit.policy.auxiliary import Auxiliary
from trainkit.policy.backups import Backup, Penalty
from trainkit.policy.update_result import OnNan
from trainkit.presets.zoo_entry import ZooEntry, find_entry
from trainkit.trainer import Evaluation, Trainer
from trainkit.trainer.options import Callbacks, Options

# Sticky actions and the minimal action set follow Machado et al. (2018) as Dopamine does (Castro et al., 2018). A game
# starts with FIRE where it has one: a greedy policy might wait forever.
ATARI_ENVS: Mapping[str, Any] = {
    "backend": "vector",
    "stack": 4,
    "env_kwargs": {
        "stack_num": 1,
        "reward_clipping": False,
        "repeat_action_probability": 0.25,
        "noop_max": 0,
        "use_fire_reset": True,
    },
}


class NetworkOptions(TypedDict, total=False):
    """Options of every network, as its policy's `for_envs` has them.

    Args:
        encoder: in front of the hidden layers: "impala" and others, or a module; None is the algorithm's own.
        activation: "relu", "tanh" and others; None is the algorithm's own.
        norm: normalization of every layer; None normalizes none.
        auxiliary: a function or a module (features, rows) -> a further loss per row.
    """

    encoder: EncoderLike | None
    activation: Activation | None
    norm: Norm | None
    auxiliary: Auxiliary | None


class QNetworkOptions(NetworkOptions, total=False):
    """Options of a network of action values.

    Args:
        head: widths of the layers after the hidden ones, separate for value and advantages if dueling.
        dueling: a value and advantages instead of action values.
        noisy: explore by noise in the weights; a number is its initial scale, True is 0.5.
    """

    head: tuple[int, ...]
    dueling: bool
    noisy: bool | float


class Settings(Options, total=False):
    """Settings of every preset; the options of every trainer are settings, too.

    Schedules may be `Linear`, over the whole run, also in a part.

    Args:
        evaluation: how to evaluate, such as `Evaluation(duration=50)`; None switches it off, which is on otherwise.
        episode_per_test: episodes per evaluation.
        evaluate_at_start: evaluate before the first step, too, as epoch 0.
        n_test_envs: environments that evaluations step together.
        env_options: arguments of `make_envs`, for training and evaluation, such as {"stack": 4}; the others stay. The
            loss of a life, by `lives_key`, ends no episode in evaluation.
        hidden: widths of the hidden layers.
        normalize_obs: subtract the mean of observations and divide by their standard deviation.
        optimizer: an `Adam`, or a class of torch's optimizers.
        lr: learning rate, in place of the optimizer's; None leaves that as it is.
        max_grad_norm: gradients of a larger norm are scaled down to it; None is unlimited.
        on_nan: what an update does whose loss or gradient is not finite, which never reaches the weights: "raise", or
            "skip" up to ten in a row.
        max_epoch: epochs of the run.
        schedule_steps: the length that every `Linear` is stretched over, in environment steps (offline in updates);
            None is that of the run. A run that is to be trained on with a larger `max_epoch` gives it from the start,
            or later the length of its first part, so that no schedule changes.
        stop_return: end the run once an evaluation's mean return reaches this.
        run_name: of the run's own folder below that of `logger`; None writes to that itself.
        device: "auto", "cpu", "cuda", "cuda:1", "xpu" ...
        precision: of matrix products on a GPU.
    """

    evaluate_at_start: Annotated[bool, False]
    n_test_envs: Annotated[int, 10]
    env_options: Annotated[Mapping[str, Any], {}]
    hidden: tuple[int, ...]
    normalize_obs: Annotated[bool, False]
    optimizer: Annotated[OptimizerSpec, Adam()]
    lr: LearningRate | Linear | None
    max_grad_norm: float | None
    on_nan: Annotated[OnNan, "raise"]
    max_epoch: int
    schedule_steps: Annotated[int | None, None]
    stop_return: Annotated[float | None, None]
    run_name: Annotated[str | None, None]
    device: Annotated[str, "auto"]
    precision: Annotated[Precision, "float32"]


class MemorySettings(TypedDict, total=False):
    """Settings of a network with a memory.

    Args:
        recurrent: a memory behind the hidden layers: "lstm", "gru", "transformer", or a function of its number of
            inputs; `batch_size` then counts sequences, except in rollouts. None for none.
        sequences: what a memory learns from, such as `Sequences(40, burn_in=20)`; None is the algorithm's own.
    """

    recurrent: Annotated[Recurrent | None, None]
    sequences: Annotated[Part | None, None]


class EnvSettings(Settings, total=False):
    """Settings of presets that train in an environment.

    Args:
        n_envs: environments that are stepped together.
        test_env: to evaluate in; None is the training environment again.
        gamma: discount per step.
        reward: what is learned from: "sign", "return_scale", a clip (lo, hi), a factor or a function, as in `Horizon`;
            None is the reward itself.
        step_per_epoch: environment steps per epoch.
        engine: what computes the updates; "auto" chooses by the device, as `Policy` says.
        self_play: in a game of several agents, play one agent against a pool of copies of the policy; evaluations are
            against random actions, and the score is the policy's own mean return.
        zoo: use the settings of the zoo for this environment, where it has some, else the general table.
    """

    n_envs: int
    test_env: Annotated[EnvSpec | None, None]
    gamma: float
    reward: Annotated[Any, None]
    step_per_epoch: int
    engine: Annotated[EngineName, "auto"]
    self_play: Annotated[bool, False]
    zoo: Annotated[bool, True]


class ActionValueSettings(TypedDict, total=False):
    """Settings of a network of action values and its target.

    Args:
        network: options of `QNetworkOptions`, such as {"dueling": True}; the others stay.
        value: what is learned of the return: its expected value, or its distribution; a word or a part, such as
            `CategoricalValue(51, -10.0, 10.0)`.
        target_every: environment steps between updates of the target network; offline, updates.
        target_tau: share by which an update moves the target network; 1 copies.
    """

    network: Annotated[QNetworkOptions, {}]
    value: Annotated[Literal["expected", "categorical", "quantile", "implicit"] | Value, ExpectedValue("mse")]
    target_every: int
    target_tau: Annotated[Scheduled | Linear, 1.0]


class QLearningSettings(ActionValueSettings, MemorySettings, total=False):
    """Settings of the Q-learner.

    Args:
        backup: the next value: of the best action, of the one that the online network selects, or of a soft policy; a
            word or a part, such as `MunchausenBackup(0.03)`.
        penalty: added to the loss, such as `ConservativePenalty(1.0)`; None for nothing.
        policy_class: a subclass of `DQNPolicy`, made by its `for_envs`; None is `DQNPolicy`.
    """

    backup: Annotated[Literal["max", "double", "munchausen"] | Backup, MaxBackup()]
    penalty: Annotated[Penalty | None, None]
    policy_class: Annotated[type[DQNPolicy] | None, None]


# Parts by the words that name them in a shell.
ACTION_VALUE_WORDS: Mapping[str, Mapping[str, Any]] = {
    "value": {
        "expected": ExpectedValue("mse"),
        "categorical": CategoricalValue(),
        "quantile": QuantileValue(),
        "implicit": ImplicitQuantileValue(),
    },
    "backup": {"max": MaxBackup(), "double": DoubleBackup(), "munchausen": MunchausenBackup()},
}

MAIN, RANDOM = "main", "random"  # the policies of self-play

P = ParamSpec("P")
SettingsT = TypeVar("SettingsT", bound=Settings)
EnvSettingsT = TypeVar("EnvSettingsT", bound=EnvSettings)
TrainerT = TypeVar("TrainerT", bound=Trainer, covariant=True)

_OF_ENVS = ("n_envs", "n_test_envs", "env_options")  # settings that environments are made by

# Options of make_envs that change neither the environment nor its evaluation.
_HOW_ENVS_ARE_RUN = frozenset(
    ("backend", "seed", "validate_env", "lives_key", "on_error", "max_restarts", "restart_delay_s", "failed_episodes")
) | {"soft_horizon", "step_timeout_s", "wait_num"}

# Settings of the machine, of evaluation and of the zoo itself, which an entry of the zoo leaves open.
_NOT_LEARNING = frozenset(("device", "engine", "precision", "on_nan", "act_on", "overlap", "zoo")) | {
    *("episode_per_test", "n_test_envs", "test_env", "stop_return")
}

_COLLECTS = ("step_per_collect", "episode_per_collect")  # of which one counts

_IN_EVALUATION = ("evaluate_at_start", "test_env", "n_test_envs", "episode_per_test")

_IF_LISTED = {"self_play": "OPPONENTS"}  # options that extensions list, by the constant

_TRAINER_OPTIONS = frozenset(types_of(Options))
_OF_SPACES = frozenset(("envs", "action_space", "observation_space"))  # given to a policy with its environments

_GROUPS = frozenset(("env_options", "network"))  # settings of which a call changes only what it names

# Options of a call that do not belong to its config: they are of one run, or change no bit.
_OF_ONE_RUN = (
    *("seed", "logger", "run_name", "checkpoint", "resume_from", "save_checkpoint_fn", "verbose", "show_progress"),
)


class Preset(Generic[P, SettingsT, TrainerT]):
    """A named table of settings per domain; called with an environment or a buffer, it returns a trainer.

    Args:
        name: as in `tk.presets`.
        summary: the algorithm and its paper, in a line.
        settings: makes a table; its arguments type the keywords of a call.
        tables: {domain: settings}, the usual domain first.
        parts: settings of the algorithm, in every domain.
        extension: without which there is no such preset; None for none.
        domains: settings that differ from the table of a domain, by its name; "grid" has those of "classic" if it has
            none of its own.

    Attributes:
        kind: the `TypedDict` of the settings.
        words: {setting: {word: the part that it stands for}}.
        of_box: settings that have an effect on Box actions only.
        learns_from_data: whether it learns from a dataset, the first argument of a call, and not in an environment.
    """

    kind: ClassVar[Any]
    words: ClassVar[Mapping[str, Mapping[str, Any]]] = {}
    of_box: ClassVar[frozenset[str]] = frozenset()
    learns_from_data: ClassVar[bool] = False
    __call__: Callable[..., TrainerT]

    def __init__(
        self,
        name: str,
        summary: str,
        settings: Callable[P, SettingsT],
        tables: Mapping[str, SettingsT],
        *,
        parts: Mapping[str, Any] | None = None,
        extension: str | None = None,
        **domains: Mapping[str, Any],
    ) -> None:
        self.name, self.summary, self.extension = name, summary, extension
        domains = {"grid": domains.get("classic", {}), **domains}
        usual = parts or {}
        self._tables: dict[str, SettingsT] = {
            domain: self.changed(self.changed(table, usual), domains.get(domain, {}))
            for domain, table in tables.items()
        }
        self.__doc__ = f"{summary}.\n\n{type(self).__call__.__doc__}"
        self.__signature__ = self._signature()  # completion in notebooks: type checkers have it by `settings`

    @property
    def domains(self) -> tuple[str, ...]:
        """The domains that have a table, the default one first."""
        return tuple(self._tables)

    def wrapped(self, env_options: Mapping[str, Any]) -> Mapping[str, Any]:
        """Return options of `make_envs`, with the wrappers that this preset adds."""
        return env_options

    @property
    def option_types(self) -> dict[str, Any]:
        """{option: annotation} of everything that a call accepts by name."""
        types = types_of(self.kind)
        return {name: kind for name, kind in types.items() if name not in _IF_LISTED or name in table(_IF_LISTED[name])}

    def _signature(self) -> inspect.Signature:
        """Return the signature of a call, with every option by its name."""
        call = inspect.signature(self.__call__)
        positional = [one for one in call.parameters.values() if one.kind is one.POSITIONAL_OR_KEYWORD]
        kind, table = inspect.Parameter.KEYWORD_ONLY, by_name(self.table())
        options = [
            inspect.Parameter(name, kind, default=table[name], annotation=annotation)
            for name, annotation in self.option_types.items()
        ]
        return call.replace(parameters=[*positional, *options])

    def __repr__(self) -> str:
        return f"presets.{self.name}"

    def settings(self, domain: str | None = None) -> dict[str, Any]:
        """Return the general settings of a domain, those without the zoo; None means the first domain."""
        table = by_name(self.table(domain))
        return {name: copy.deepcopy(table[name]) for name in self.option_types if name not in _TRAINER_OPTIONS}

    def table(self, domain: str | None = None) -> SettingsT:
        """Return the settings of a domain, including options of the trainer; None means the first domain."""
        domain = self.domains[0] if domain is None else domain
        with Checks(repr(self)) as checks:
            checks.one_of("domain", domain, self._tables)
        return self._tables[domain]

    def domain_of_id(self, env: object) -> str | None:
        """Return the domain of an environment's id, None if the id does not determine it."""
        domain = "atari" if _is_ale(env) else "mujoco" if _is_mujoco(env) else None
        return domain if domain in self.domains else None

    def zoo_entry(self, env: object, options: Mapping[str, Any]) -> ZooEntry | None:
        """Return the zoo's entry that a call with this environment and these options uses; None if it uses none."""
        return None

    def settings_for(self, env: Any, options: Mapping[str, Any], buffer: Any = None) -> dict[str, Any]:
        """Return the settings that a call with these arguments has; `buffer` is for offline presets."""
        raise NotImplementedError

    def load_data(self, path: str, shuffle_rows: int | None) -> Dataset:
        """Return the dataset in files, for a preset that learns from one.

        Args:
            path: of the files, or another name of the dataset.
            shuffle_rows: rows in memory, of a dataset that is streamed; None loads all.
        """
        raise NotImplementedError

    def check_options(self, options: Mapping[str, Any]) -> None:
        """Raise `ConfigError` for unknown options, and for values that do not match their annotation."""
        own = options.get("policy_class")
        assigned = {name: f"trainer.policy.{name} = ..." for name in options_of(own)} if isinstance(own, type) else {}
        check_options(repr(self), options, self.option_types, assigned | self._hints())

    def _hints(self) -> dict[str, str]:
        """Return {name: where it is given, at most three places}, of what is no option but within one."""
        places: dict[str, list[str]] = {}
        for name, setting, value in self.within_options():
            places.setdefault(name, []).append(f"{setting}={value}")
        return {name: " or ".join(found[:3]) for name, found in places.items()}

    def within_options(self) -> Iterator[tuple[str, str, str]]:
        """Yield (name, option, value) of words of options, options in a group, and arguments of parts."""
        for setting, annotation in self.option_types.items():
            if is_typeddict(annotation):
                yield from ((name, setting, f"{{{name!r}: ...}}") for name in types_of(annotation))
        for setting, words in self.words.items():
            yield from ((word, setting, repr(word)) for word in words)
        for setting, kinds in self._part_classes().items():
            for kind in kinds:
                names = inspect.signature(kind).parameters
                yield from ((name, setting, f"{kind.__name__}({name}=...)") for name in names)

    def _part_classes(self) -> dict[str, list[Any]]:
        """Return {setting: classes of parts that it may be}."""
        sequences = exported("Sequences") if "sequences" in self.option_types else None
        named = {setting: [*map(type, words.values())] for setting, words in self.words.items()}
        return {"optimizer": [Adam], "sequences": [] if sequences is None else [sequences], **named}

    def domain_of(self, spaces: EnvSpaces) -> str:
        """Return the domain of an environment's spaces: one that has a table, else the first that has one.

        A Dict of images and other values is no Atari game.
        """
        preprocess = Preprocess(spaces.observation_space)
        domain = "atari" if preprocess.sees_images_only else "grid" if preprocess.sees_grids else "classic"
        return domain if domain in self.domains else self.domains[0]

    def changed(self, settings: SettingsT, options: Mapping[str, Any]) -> SettingsT:
        """Return the settings with options in place of some, parts in the place of words.

        A group of options changes only what it names. A word keeps the settings' own part where that is of this kind.
        """
        given = {name: self._merged(name, value, by_name(settings)[name]) for name, value in options.items()}
        return with_changes(settings, self._replacing(settings, given))

    def _merged(self, name: str, value: Any, current: Any) -> Any:
        """Return the value of an option, in place of a setting."""
        if name in _GROUPS and isinstance(value, Mapping):
            return {**current, **value}
        if not isinstance(value, str) or value not in self.words.get(name, {}):
            return value
        part = self.words[name][value]
        return current if type(current) is type(part) else part

    def _replacing(self, settings: SettingsT, given: Mapping[str, Any]) -> dict[str, Any]:
        """Return options, and None for the settings that they replace."""
        if any(given.get(name) is not None for name in _COLLECTS):
            given = {**dict.fromkeys(_COLLECTS), **given}
        optimizer, lr = given.get("optimizer"), given.get("lr")
        if optimizer is None:
            return dict(given)
        with Checks(repr(self)) as checks:
            rule = ".lr has no effect: optimizer has a learning rate of its own, give one"
            checks.require(lr is None or not _sets_lr(optimizer, lr), rule)
        return {"lr": None, **given} if lr is None and ignores_lr(optimizer, 0.0) else dict(given)

    def _check_effects_in(self, spaces: EnvSpaces, options: Mapping[str, Any], table: SettingsT) -> None:
        """Raise `ConfigError` for options without an effect on such actions, except the table's values."""
        if isinstance(spaces.action_space, (gym.spaces.Box, StructuredHybrid)):
            return
        with Checks(repr(self)) as checks:
            for name in sorted(self.of_box & options.keys()):
                is_usual = options[name] == by_name(table)[name]
                rule = f".{name} has no effect: actions are {spaces.action_space}, and it is for a Box"
                checks.require(is_usual, rule)

    def _over_the_run(self, settings: SettingsT, table: SettingsT, n_steps: int) -> SettingsT:
        """Return the settings with schedules over the steps of the run, and the optimizer with its learning rate.

        A torch scheduler starts at the learning rate of the preset's table.
        """
        n_between = self._steps_between(settings)
        settings, table = (over_the_run(own, n_steps, n_between) for own in (settings, table))
        return with_changes(settings, {"optimizer": _with_lr(settings["optimizer"], settings["lr"], table["lr"])})

    def _schedule_steps(self, settings: SettingsT, per_epoch: int) -> int:
        """Return the steps that schedules cover: those of the run, unless they are given."""
        if (given := settings["schedule_steps"]) is None:
            return settings["max_epoch"] * per_epoch
        with Checks(repr(self)) as checks:
            checks.integer("schedule_steps", given, low=1)
            has_effect = bool(settings.get("self_play", False)) or has_linear(settings)
            checks.require(has_effect, ".schedule_steps has no effect: no setting is a Linear, leave it out")
        return given

    def _steps_between(self, settings: SettingsT) -> int:
        """Return the steps of the clock between two rounds of updates."""
        return 1

    def _plain_config(self, domain: str, settings: SettingsT) -> dict[str, Any]:
        """Return how a trainer is made: the preset, the domain, and every setting, in plain values.

        Options of the trainer that were not given are left out; "unknown" are those without a plain value.
        """
        own: dict[str, Any] = {}
        for name in self.option_types:
            value = by_name(settings)[name]
            is_unset = name in _TRAINER_OPTIONS and (value is None or value == ())
            is_unset |= name in _IF_LISTED and value is False
            if not (name in _OF_ONE_RUN or is_unset):
                own[name] = value
        if "zoo" in own:
            own["zoo"] = False  # nothing is left to an entry of the zoo
        return {"preset": self.name, "domain": domain, **plain_call(own)}

    def _evaluates(self, options: Mapping[str, Any], env_option: str) -> bool:
        """Return whether to evaluate: unless `evaluation` is given, as None; one without a collector says how.

        Args:
            options: what the preset is called with.
            env_option: the option that names the environment of evaluation.
        """
        evaluation = options.get("evaluation")
        if evaluation is not None and evaluation.has_collector:
            raise ConfigError(f"{self} makes the policy, which evaluation would have to share: give {env_option}")
        is_off = "evaluation" in options and evaluation is None
        usual = [by_name(own) for own in self._tables.values()]
        given = [name for name in _IN_EVALUATION if options.get(name) not in (None, *(own.get(name) for own in usual))]
        if is_off and given:
            names = ", ".join(given)
            raise ConfigError(f"{self} was given {names}, and evaluation=None, which switches evaluation off: give one")
        return not is_off

    def _trainer_options(self, options: Mapping[str, Any], settings: SettingsT) -> dict[str, Any]:
        """Return the trainer's options among these, with `stop_return` converted to a `stop_fn`."""
        common = {name: value for name, value in options.items() if name in _TRAINER_OPTIONS}
        common.pop("episode_per_test", None)  # a setting, for those that evaluate
        common["callbacks"] = with_defaults(common.get("callbacks", ()))
        if settings["evaluate_at_start"]:
            common["evaluation"] = (common.get("evaluation") or Evaluation()).changed(at_start=True)
        if (run_name := settings["run_name"]) is not None:
            common["logger"] = self._below(common.get("logger"), run_name)
        if (stop_return := settings["stop_return"]) is not None:
            if "stop_fn" in common:
                raise ConfigError(f"{self} was given both stop_return and stop_fn: give one")
            common["stop_fn"] = lambda score: score >= stop_return
        return common

    def _below(self, logger: object, run_name: str) -> Path:
        """Return the folder of a run below that of all runs."""
        if not isinstance(logger, (str, Path)):
            raise ConfigError(f"{self}.run_name names a folder below logger's, got logger={logger!r}: give it a folder")
        if run_name in ("", "..") or Path(run_name).name != run_name:
            raise ConfigError(f'{self}.run_name must be the name of a folder, such as "dqn-1", got {run_name!r}')
        return Path(logger) / run_name

    def _check_by_name(self, surplus: tuple[object, ...]) -> None:
        """Raise `ConfigError` for options that were given by position."""
        if surplus:
            raise ConfigError(f"{self} takes options by name, got {', '.join(map(repr, surplus))} by position")


class EnvPreset(Preset[P, EnvSettingsT, TrainerT]):
    """A preset that trains in an environment.

    Attributes:
        learner: the class of the policy that it makes, for hints; None gives none.
    """

    learner: ClassVar[Any] = None

    @checked
    def __call__(self, env: EnvSpec, *args: P.args, **options: P.kwargs) -> TrainerT:
        """Return a trainer.

        Args:
            env: an id, a factory, or a gymnasium vector environment (then evaluation makes its own from its id). If the
                zoo has settings for exactly this id, they are used. Otherwise the id or the spaces choose the general
                table: ids "ALE/..." "atari", Gymnasium's ids of MuJoCo "mujoco", actions in a Box "continuous",
                observations that are images and nothing else "atari", those with small grids "grid", all others
                "classic", where there is one. A line names the settings of the zoo, or the table.
            args: none; options are given by name.
            options: `seed`, of everything; any of `settings()`; options of the trainer; `zoo=False`, to use the general
                table. Options of the environment that change it, such as `env_options={"env_kwargs": ...}`, also do.
        """
        self._check_by_name(args)
        self.check_options(options)
        return self._build(env, options)

    def config(self, env: EnvSpec, *args: P.args, **options: P.kwargs) -> "PresetConfig[TrainerT]":
        """Return the arguments as a frozen `PresetConfig`, whose `build` makes the trainer."""
        self._check_by_name(args)
        given: dict[str, Any] = dict(options)
        return PresetConfig(preset=self, env=env, seed=given.pop("seed", None), options=given)

    def make_policy(self, envs: Envs, settings: EnvSettingsT) -> Any:
        """Make the policy."""
        raise NotImplementedError

    def _hints(self) -> dict[str, str]:
        own, hints = self.learner, super()._hints()
        if own is None:
            return hints
        fixed = options_of(own.for_envs).keys() - self.option_types.keys() - _OF_SPACES
        return {name: f"{own.__name__}.for_envs(envs, {name}=...)" for name in fixed} | hints

    def make_trainer(self, policy: Any, envs: Envs, settings: EnvSettingsT, common: Mapping[str, Any]) -> TrainerT:
        """Make the trainer, with a collector and a buffer for its environments."""
        raise NotImplementedError

    def zoo_entry(self, env: object, options: Mapping[str, Any]) -> ZooEntry | None:
        """Return the zoo's entry that a call with this environment and these options uses, None for the general table.

        It must be for exactly this id, and `env_options` may change how environments are run, not what they are.
        """
        entry, changed = self._entry_and_changes(env, options)
        return None if changed else entry

    def _entry_and_changes(self, env: object, options: Mapping[str, Any]) -> tuple[ZooEntry | None, str]:
        """Return the zoo's entry for an id, and which `env_options` change its environment."""
        entry = find_entry(self.name, env) if options.get("zoo", self.table()["zoo"]) else None
        if entry is None:
            return None, ""
        own = entry.settings.get("env_options", {})
        return entry, _changed_tasks(own, {**own, **options.get("env_options", {})})

    def zoo_table(self, entry: ZooEntry, device: str = "cpu") -> EnvSettingsT:
        """Return the settings of an entry of the zoo on a device, with those of the general table that it leaves open.

        Raises:
            ConfigError: the entry has unknown settings, or values that do not match their annotation.
        """
        check_options(f"{entry.path}.settings", entry.settings, self.option_types)
        check_options(f"{entry.path}.on_accelerator", entry.on_accelerator, self.option_types)
        return self.changed(self.table(self.domain_of_id(entry.env)), entry.settings_on(device))

    def _device(self, options: Mapping[str, Any]) -> str:
        """Return the name of the device of a call with these options."""
        return str(options.get("device", self.table()["device"]))

    def general_table(self, env: EnvSpec, env_options: Mapping[str, Any]) -> EnvSettingsT:
        """Return the general table for an environment, which is made if its id does not determine the table."""
        domain = self.domain_of_id(env)
        if domain is None:
            with borrowed_envs(env, 1, **env_options) as envs:
                return self._table_by_spaces(envs)
        return self.table(domain)

    def _table_by_spaces(self, envs: EnvSpaces) -> EnvSettingsT:
        """Return the general table for spaces; the environments themselves were made by the first domain's."""
        first = by_name(self.table())
        return with_changes(self.table(self.domain_of(envs)), {name: first[name] for name in _OF_ENVS})

    def settings_for(self, env: Any, options: Mapping[str, Any], buffer: Any = None) -> dict[str, Any]:
        """Return the settings that a call with this environment and these options has."""
        entry = self.zoo_entry(env, options)
        if entry is None:
            table = self.general_table(env, options.get("env_options", {}))
        else:
            table = self.zoo_table(entry, self._device(options))
        settings = by_name(self.changed(table, options))
        return {name: settings[name] for name in {**self.settings(), **options}}

    def complete_settings(self, settings: EnvSettingsT) -> dict[str, Any]:
        """Return the settings that an entry of the zoo must name, so that it does not change with the general table.

        That is all that matters to learning, unless it is off (None, False or empty) both here and in the general
        table.
        """
        general, own = by_name(self.table()), by_name(settings)
        names = [name for name in self.settings() if name not in _NOT_LEARNING]
        values = {name: own[name] for name in names}
        return {name: value for name, value in values.items() if not (_is_off(value) and _is_off(general[name]))}

    def _build(self, env: EnvSpec, options: Mapping[str, Any]) -> TrainerT:
        """Make environments, policy and trainer from a table and the options that override it."""
        evaluates = self._evaluates(options, "test_env")
        domain = self.domain_of_id(env)
        entry, changed = self._entry_and_changes(env, options)
        tuned = None if entry is None or changed else self.zoo_table(entry, self._device(options))
        # For environments whose spaces will choose the table.
        making = self.changed(self.table(domain) if tuned is None else tuned, options)
        envs = self._make_envs(env, "n_envs", making, options)
        table = tuned
        if table is None:
            table = self._table_by_spaces(envs) if domain is None else self.table(domain)
        domain = self.domain_of(envs) if domain is None else domain
        settings = self.changed(table, options)
        config = self._plain_config(domain, settings)
        n_steps = self._schedule_steps(settings, settings["step_per_epoch"])
        if settings["self_play"]:  # by the clock of the policy, which controls one row of each group
            n_steps //= envs.group_size
        settings = self._over_the_run(settings, table, n_steps)
        self._check_effects_in(envs, options, table)
        policy = self.make_policy(envs, settings)
        policy.on_nan = settings["on_nan"]
        common = self._trainer_options(options, settings)
        if settings["self_play"]:
            policy = self._with_opponents(policy, envs, common, n_steps)
        if evaluates:
            again = self._same_again(env) if settings["test_env"] is None else settings["test_env"]
            common["episode_per_test"] = settings["episode_per_test"]
            common["test_collector"] = Collector(policy, self._make_envs(again, "n_test_envs", making, options))
        trainer = self.make_trainer(policy, envs, settings, common)
        trainer.config = config
        if changed:
            trainer.note(f"{self}: the general table, as env_options changes {changed} of the zoo's {env}")
        elif entry is not None:
            tested = "" if entry.result is not None else "; not yet run"
            if entry.on_accelerator and is_accelerator(self._device(options)):
                tested = "; with its changes for a GPU, of which no result was measured"
            general = "zoo=False, in a shell --no-zoo, for the general table"
            trainer.note(f"{self}: settings of the zoo for {entry.env} ({entry.source}{tested}); {general}")
        elif settings["zoo"]:  # else it was requested
            trainer.note(f"{self}: the general table {domain!r}")
        return trainer

    def _with_opponents(self, policy: Any, envs: Envs, common: dict[str, Any], n_steps: int) -> Any:
        """Return a policy of the one that learns and those that it plays against; the trainer's options are changed."""
        return table("OPPONENTS")["self_play"].load()(f"{self}.self_play", policy, envs, common, n_steps)

    def _make_envs(self, env: EnvSpec, count: str, settings: EnvSettingsT, options: Mapping[str, Any]) -> Envs:
        """Make environments; if their number and options are fixed, pass on only options that were given."""
        is_made = isinstance(env, (VectorEnv, Envs))
        n = options.get(count, 1) if has_own_number(env) else by_name(settings)[count]
        env_options = options.get("env_options", {}) if is_made else self.wrapped(settings["env_options"])
        is_test = count == "n_test_envs"
        without = {"lives_key": None} if is_test else {}  # which ends no game that is evaluated
        return make_envs(env, n, **{"in_evaluation": is_test, **env_options, **without})

    def _same_again(self, env: EnvSpec) -> EnvSpec:
        """Return what evaluation environments can be made from."""
        if isinstance(env, VectorEnv) and env.spec is not None and not _is_changed(env):
            return env.spec.id
        if isinstance(env, (VectorEnv, Envs)):
            raise ConfigError(f"{self} cannot make {env} again for evaluation: give test_env")
        return env


@checked
@dataclass(frozen=True, kw_only=True)  # with slots, assigning what is no field raises nonsense
class PresetConfig(Generic[TrainerT]):
    """The arguments of a preset, checked and frozen; `copy` returns another with changes.

        config = tk.presets.dqn.config("CartPole-v1", seed=1, lr=1e-3)
        for seed in range(5):
            config.copy(seed=seed, n_step=3).build().run()

    Unknown options and values of another type raise `ConfigError` here.

    Attributes:
        preset: builds the trainer.
        env: the environment; offline, where to evaluate.
        buffer: the rows to learn from; None unless offline.
        seed: of everything.
        options: settings of the preset and options of its trainer, by name; read-only.
    """

    preset: "Preset[..., Any, TrainerT]"
    env: Any
    buffer: Any = None
    seed: int | None = None
    options: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        object.__setattr__(self, "options", MappingProxyType(dict(self.options)))
        self.preset.check_options(self.options)

    def __getitem__(self, name: str) -> Any:
        """Return the value of an option; options that were not given have the value of the zoo or the table."""
        return self.settings()[name]

    def settings(self) -> dict[str, Any]:
        """Return every setting of the preset with the value that `build` uses.

        Where neither the zoo nor the environment's id determines the table, an environment is made for its spaces; so
        it is offline, where neither `env` nor the buffer has them.
        """
        return self.preset.settings_for(self.env, self.options, self.buffer)

    def written_out(self) -> "PresetConfig[TrainerT]":
        """Return an equal configuration that names the settings of the zoo itself, so that it stays as it is."""
        if self.preset.zoo_entry(self.env, self.options) is None:
            return self
        return replace(self, options={**self.settings(), "zoo": False})

    def copy(self, **changes: Any) -> "PresetConfig[TrainerT]":
        """Return a copy with some of env, buffer, seed and options changed."""
        own = {item.name for item in fields(self)} - {"preset", "options"}
        parts = {name: value for name, value in changes.items() if name in own}
        options = {name: value for name, value in changes.items() if name not in own}
        return replace(self, **parts, options={**self.options, **options})

    def build(self) -> TrainerT:
        """Make a new trainer."""
        data = () if self.buffer is None else (self.buffer,)
        return self.preset(*data, self.env, seed=self.seed, **self.options)


def _changed_tasks(own: Mapping[str, Any], given: Mapping[str, Any]) -> str:
    """Name the options of make_envs that differ and change an environment, not only how it is run."""
    one, other = _without_rendering(own), _without_rendering(given)
    names = sorted({*one, *other} - _HOW_ENVS_ARE_RUN)
    return ", ".join(name for name in names if one.get(name) != other.get(name))


def _without_rendering(env_options: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options without how the environment draws itself."""
    kwargs = {name: value for name, value in (env_options.get("env_kwargs") or {}).items() if name != "render_mode"}
    others = {name: value for name, value in env_options.items() if name != "env_kwargs"}
    return others | {"env_kwargs": kwargs} if kwargs else others


def _sets_lr(optimizer: OptimizerSpec, lr: Any) -> bool:
    """Return whether an optimizer was given a learning rate of its own, which is not the setting `lr`."""
    if isinstance(optimizer, Adam):
        return optimizer.lr not in (Adam().lr, lr)
    if isinstance(optimizer, TorchOptimizer) and optimizer.lr is not None:
        return bool(optimizer.lr != lr)
    return ignores_lr(optimizer.factory if isinstance(optimizer, TorchOptimizer) else optimizer, lr)


def _with_lr(optimizer: OptimizerSpec, lr: LearningRate | Linear | None, usual: LearningRate | Linear | None) -> Any:
    """Return an optimizer with a learning rate; a torch scheduler starts at the usual one."""
    assert not isinstance(lr, Linear), "stretched by over_the_run"
    if lr is None:
        return optimizer
    start: Any = usual
    if isinstance(optimizer, Adam):
        default = replace(optimizer, lr=start)
        return spec_with_lr(None, default, lr)
    if isinstance(optimizer, TorchOptimizer):
        return replace(optimizer, lr=lr)
    return spec_with_lr(optimizer, Adam(start), lr)


def has_linear(value: object) -> bool:
    """Return whether a value is a `Linear`, or has one in a mapping or a part."""
    if isinstance(value, Mapping):
        return any(map(has_linear, value.values()))
    return isinstance(value, Linear) or (isinstance(value, Part) and any(map(has_linear, arguments_of(value).values())))


def table_of(kind: type[SettingsT], usual: Mapping[str, Any], given: Mapping[str, Any]) -> SettingsT:
    """Return all settings of a kind of presets: those that are given, else those that are usual there."""
    return completed(kind, {"episode_per_test": 20, **usual, **given})


def with_changes(settings: SettingsT, changes: Mapping[str, Any]) -> SettingsT:
    """Return the settings with others in place of some."""
    return type(settings)(**{**settings, **changes})


def by_name(settings: Mapping[str, object]) -> Mapping[str, Any]:
    """Return the settings for reading by names that are not known here."""
    return settings


def over_the_run(settings: SettingsT, n_steps: int, n_between: int) -> SettingsT:
    """Return the settings with every `Linear`, also in mappings and parts, as a schedule over the steps of the run.

    One that falls to 0 at the end reaches it `n_between` steps later, where the next updates would follow: those at the
    end of the run would change nothing at 0.
    """

    def stretched(value: Any) -> Any:
        if isinstance(value, Linear):
            return value.over(n_steps + n_between if value.end == 0 and value.share == 1 else n_steps)
        if isinstance(value, Mapping):
            return {key: stretched(own) for key, own in value.items()}
        if isinstance(value, Part) and has_linear(value):
            return with_arguments(value, {name: stretched(own) for name, own in arguments_of(value).items()})
        return value

    return with_changes(settings, {name: stretched(value) for name, value in settings.items()})


def training_collector(policy: Any, envs: Envs, buffer: Any) -> Collector:
    """Return the collector of a run, whose buffer is the learner's."""
    return Collector(policy, envs, policy.buffer_for(buffer))


def with_defaults(callbacks: Callbacks) -> list[Any]:
    """Return callbacks, and after them those that extensions add to presets, unless one of the same class is given."""
    given: list[Any] = [*callbacks] if isinstance(callbacks, Sequence) else [callbacks]
    defaults = [entry.load() for entry in table("DEFAULT_CALLBACKS").values()]
    return given + [kind() for kind in defaults if not any(own is kind or isinstance(own, kind) for own in given)]


def policy_options(settings: EnvSettings) -> dict[str, Any]:
    """Return the arguments of `for_envs` that every policy has, with the learning rate in its optimizer."""
    names = (
        "hidden",
        "normalize_obs",
        "gamma",
        "reward",
        "max_grad_norm",
        "device",
        "engine",
        "precision",
        "optimizer",
    )
    return {name: by_name(settings)[name] for name in names}


def q_options(settings: QLearningSettings) -> dict[str, Any]:
    """Return the arguments of `DQNPolicy.for_envs` for its parts."""
    return {"backup": copy.deepcopy(settings["backup"]), "penalty": copy.deepcopy(settings["penalty"])}


def action_value_options(settings: ActionValueSettings) -> dict[str, Any]:
    """Return the arguments of `DQNPolicy.for_envs` for action values; each run trains copies of its parts."""
    return {
        "head": (),
        "dueling": False,
        **network_options(settings["network"]),
        "value": copy.deepcopy(settings["value"]),
        "target": Target(settings["target_every"], tau=scheduled(settings["target_tau"])),
    }


def network_options(network: NetworkOptions) -> dict[str, Any]:
    """Return the arguments of `for_envs` for its networks; each run trains a copy of a module."""
    return {**network, "auxiliary": copy.deepcopy(network.get("auxiliary"))}


def memory_options(settings: MemorySettings, *usual: Any) -> dict[str, Any]:
    """Return the arguments of `for_envs` for a memory; none without one.

    Args:
        settings: of the run.
        usual: arguments of the `Sequences` that a memory learns from unless they are given.
    """
    recurrent, sequences = settings["recurrent"], settings["sequences"]
    if recurrent is None and sequences is None:
        return {}
    kind = exported("Sequences")  # None: the network says that there is no memory
    if sequences is None and kind is not None:
        sequences = kind(*usual)
    return {"recurrent": recurrent, "sequences": sequences}


def scheduled(value: Scheduled | Linear) -> Scheduled:
    """Return a schedule for a setting after `over_the_run`."""
    assert not isinstance(value, Linear), "stretched by over_the_run"
    return value


def noise(value: Noise | float | None) -> Noise | None:
    """Return the exploration noise of Box actions for a setting."""
    return ColoredNoise(value) if isinstance(value, (int, float)) else value


def _is_changed(env: VectorEnv[Any, Any, Any]) -> bool:
    """Return whether a vector environment is wrapped, or was made with arguments besides its id."""
    while isinstance(env, VectorWrapper):
        if not isinstance(env, gym.wrappers.vector.RecordEpisodeStatistics):
            return True
        env = env.env
    assert env.spec is not None, "only for environments with an id"
    usual = {**gym.spec(env.spec.id).kwargs, "max_episode_steps": gym.spec(env.spec.id).max_episode_steps}
    given = {key: value for key, value in env.spec.kwargs.items() if key not in ("num_envs", "vectorization_mode")}
    return any(usual.get(key) != value for key, value in given.items())


def _is_off(value: object) -> bool:
    return value is None or value is False or value in ({}, ())


def _is_ale(env: object) -> bool:
    return isinstance(env, str) and env.split(":")[-1].startswith("ALE/")


def _is_mujoco(env: object) -> bool:
    """Return whether an id is one of Gymnasium's MuJoCo environments."""
    spec = gym.registry.get(env) if isinstance(env, str) else None
    return spec is not None and str(spec.entry_point).startswith("gymnasium.envs.mujoco")
