"""Presets: trainers for an environment and a seed, with defaults for everything else, whose sources are named.

    trainer = tk.presets.rainbow("CartPole-v1", seed=1)
    for epoch, stats, info in trainer: ...

    trainer = tk.presets.cql(buffer, "CartPole-v1", seed=1)  # offline: from the rows of a buffer

Each preset has a general table of settings for each domain: vectors, continuous actions, images. `settings("rainbow")`
and `settings("rainbow", "atari")` return them. For some environments the zoo has tuned settings, which replace the
general ones unless `zoo=False`; `rainbow.config("CartPole-v1").settings()` returns those that a call uses. Any of them
can be overridden by name, and an unknown name is answered with the nearest one.
"""

from typing import TYPE_CHECKING, Any, NoReturn

from trainkit.core.errors import reject_unknown
from trainkit.core.names import OTHER_LIBRARIES, did_you_mean
from trainkit.core.signatures import checked
from trainkit.presets.base import Preset, PresetConfig, Settings
from trainkit.presets.off_policy import OffpolicySettings, SACPreset, SACSettings, sac
from trainkit.presets.offline_learning import (
    BCPreset,
    BCQPreset,
    BCQSettings,
    BCSettings,
    CQLPreset,
    CQLSettings,
    OfflinePreset,
    OfflineSettings,
    bc,
    bcq,
    cql,
)
from trainkit.presets.policy_gradient import (
    CentralizedCriticPreset,
    OnpolicyPreset,
    OnpolicySettings,
    a2c,
    ippo,
    mappo,
    ppo,
    recurrent_ppo,
    reinforce,
)
from trainkit.presets.q_learning import (
    QPreset,
    QSettings,
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

PRESETS: dict[str, Preset[..., Any, Any]] = {
    preset.name: preset
    for preset in (
        *(
            dqn,
            double_dqn,
            dueling_dqn,
            prioritized_dqn,
            noisy_dqn,
            c51,
            qrdqn,
            iqn,
            munchausen_dqn,
            rainbow,
            drqn,
            r2d2,
        ),
        *(ppo, a2c, reinforce, recurrent_ppo, ippo, mappo),
        *(sac, bc, cql, bcq),
    )
}
"""Every preset by its name."""

__all__ = [
    "BCPreset",
    "BCQPreset",
    "BCQSettings",
    "BCSettings",
    "CQLPreset",
    "CQLSettings",
    "CentralizedCriticPreset",
    "OfflinePreset",
    "OfflineSettings",
    "OffpolicySettings",
    "OnpolicyPreset",
    "OnpolicySettings",
    "PRESETS",
    "Preset",
    "PresetConfig",
    "QPreset",
    "QSettings",
    "SACPreset",
    "SACSettings",
    "Settings",
    "a2c",
    "bc",
    "bcq",
    "c51",
    "cql",
    "double_dqn",
    "dqn",
    "drqn",
    "dueling_dqn",
    "ippo",
    "iqn",
    "mappo",
    "munchausen_dqn",
    "noisy_dqn",
    "ppo",
    "prioritized_dqn",
    "qrdqn",
    "r2d2",
    "rainbow",
    "recurrent_ppo",
    "reinforce",
    "sac",
    "settings",
]


if not TYPE_CHECKING:  # so that checkers report unknown names

    def __getattr__(name: str) -> NoReturn:
        lower = name.lower().removesuffix("policy")
        meant = f", did you mean tk.presets.{lower}?" if lower in __all__ else did_you_mean(name, __all__)
        hint = "" if name.startswith("_") else f"{meant or ':'} {OTHER_LIBRARIES}"
        raise AttributeError(f"module 'trainkit.presets' has no attribute {name!r}{hint}")


@checked
def settings(name: str, domain: str | None = None) -> dict[str, Any]:
    """Return the general table of a preset for a domain, such as "classic", "grid" or "atari"; None means its first.

    It is used where the zoo has no settings for the environment; `PresetConfig.settings` returns those of a call.
    """
    reject_unknown("presets", [name], PRESETS)
    return PRESETS[name].settings(domain)
