"""A preset's arguments as a frozen object: to keep, to change a copy of, and to build trainers from."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields, replace
from types import MappingProxyType
from typing import Any, Generic, TypeVar

from trainkit.core.signatures import checked

TrainerT = TypeVar("TrainerT", covariant=True)


@checked
@dataclass(frozen=True, slots=True, kw_only=True)
class PresetConfig(Generic[TrainerT]):
    """What a preset was asked for; frozen, `copy` changes another.

        config = tk.presets.dqn.config("CartPole-v1", seed=1, lr=1e-3)
        for seed in range(5):
            config.copy(seed=seed, n_step=3).build().run()

    Options are checked when it is made: unknown names and values that do not fit raise `ConfigError` there.

    Attributes:
        preset: what builds the trainer.
        env: the environment; offline, where to evaluate.
        buffer: the rows to learn from; None unless offline.
        seed: of everything.
        options: settings of the preset and options of its trainer, by name; read-only.
    """

    preset: Callable[..., TrainerT]
    env: Any
    buffer: Any = None
    seed: int | None = None
    options: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        object.__setattr__(self, "options", MappingProxyType(dict(self.options)))
        self._of_preset.check_options(self.options)

    def __getitem__(self, name: str) -> Any:
        """Return the value of an option or, unless it was given, of the preset's table, for the environment's id."""
        if name in self.options:
            return self.options[name]
        preset = self._of_preset
        return preset.settings(preset.domain_of_id(self.env))[name]

    def copy(self, **changes: Any) -> "PresetConfig[TrainerT]":
        """Return another with some of env, buffer, seed and options changed; other options stay."""
        own = {item.name for item in fields(self)} - {"preset", "options"}
        parts = {name: value for name, value in changes.items() if name in own}
        options = {name: value for name, value in changes.items() if name not in own}
        return replace(self, **parts, options={**self.options, **options})

    def build(self) -> TrainerT:
        """Make the trainer; every call makes another."""
        data = () if self.buffer is None else (self.buffer,)
        return self.preset(*data, self.env, seed=self.seed, **self.options)

    @property
    def _of_preset(self) -> Any:
        return self.preset
