"""Every preset by its name: those of the kernel's algorithms, and those that extensions add."""

from collections.abc import Iterator, Mapping
from typing import Any

from trainkit.core.errors import reject_unknown
from trainkit.core.extensions import present, table
from trainkit.core.signatures import checked
from trainkit.presets.base import Preset
from trainkit.presets.policy_gradient import a2c, ippo, mappo, ppo, recurrent_ppo, reinforce
from trainkit.presets.q_learning import (
    c51,
    double_dqn,
    dqn,
    drqn,
    dueling_dqn,
    iqn,
    munchausen_dqn,
    noisy_dqn,
    prioritized_dqn,
    qrdqn,
    r2d2,
    rainbow,
)
from trainkit.presets.soft_actor_critic import sac

AnyPreset = Preset[..., Any, Any]


class Presets(Mapping[str, AnyPreset]):
    """Presets by their names, without those whose extension is not there.

    Those that extensions list follow, and are imported when they are first read.
    """

    def __init__(self, *own: AnyPreset) -> None:
        self._own = {preset.name: preset for preset in own if preset.extension in (None, *present())}

    def __getitem__(self, name: str) -> AnyPreset:
        if name in self._own:
            return self._own[name]
        preset: AnyPreset = table("PRESETS")[name].load()
        return preset

    def __contains__(self, name: object) -> bool:
        return name in self._own or name in table("PRESETS")

    def __iter__(self) -> Iterator[str]:
        return iter((*self._own, *table("PRESETS")))

    def __len__(self) -> int:
        return len(self._own) + len(table("PRESETS"))


PRESETS = Presets(
    *(dqn, double_dqn, dueling_dqn, prioritized_dqn, noisy_dqn, c51, qrdqn, iqn, munchausen_dqn, rainbow, drqn, r2d2),
    *(ppo, a2c, reinforce, recurrent_ppo, ippo, mappo),
    sac,
)
"""Every preset by its name."""


@checked
def settings(name: str, domain: str | None = None) -> dict[str, Any]:
    """Return the general table of a preset for a domain, such as "classic", "grid" or "atari"; None means its first.

    It is used where the zoo has no settings for the environment; `PresetConfig.settings` returns those of a call.
    """
    reject_unknown("presets", [name], PRESETS)
    return PRESETS[name].settings(domain)
