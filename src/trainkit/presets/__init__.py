"""Presets: trainers for an environment and a seed, with defaults for everything else, whose sources are named.

    trainer = tk.presets.rainbow("CartPole-v1", seed=1)
    for epoch, stats, info in trainer: ...

    trainer = tk.presets.cql(buffer, "CartPole-v1", seed=1)  # offline: from the rows of a buffer

Each preset has a general table of settings for each domain: vectors, continuous actions, images. `settings("rainbow")`
and `settings("rainbow", "atari")` return them. For some environments the zoo has tuned settings, which replace the
general ones unless `zoo=False`; `rainbow.config("CartPole-v1").settings()` returns those that a call uses. Any of them
can be overridden by name, and an unknown name is answered with the nearest one.
"""

from typing import Any

from trainkit.core.extensions import attach, table
from trainkit.core.names import OTHER_LIBRARIES, did_you_mean
from trainkit.presets.all_presets import PRESETS, settings
from trainkit.presets.base import Preset, PresetConfig, Settings, table_of
from trainkit.presets.off_policy import OffpolicyPreset, OffpolicySettings, SACPreset, SACSettings, sac
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

__all__ = [
    "CentralizedCriticPreset",
    "OffpolicyPreset",
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
    "c51",
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
    "table_of",
]

__dir__, _of_extension = attach(__name__, __all__, table("PRESETS"))


def __getattr__(name: str) -> Any:
    """Import a name of an extension when it is first used; else raise with a hint."""
    if name in __all__:
        return _of_extension(name)
    lower = name.lower().removesuffix("policy")
    meant = f", did you mean tk.presets.{lower}?" if lower in __all__ else did_you_mean(name, __all__)
    hint = "" if name.startswith("_") else f"{meant or ':'} {OTHER_LIBRARIES}"
    raise AttributeError(f"module 'trainkit.presets' has no attribute {name!r}{hint}")
