"""Ready trainers: an environment, a seed, and everything else with a default whose source is named.

    trainer = tk.presets.rainbow("CartPole-v1", seed=1)
    for epoch, stats, info in trainer: ...

    trainer = tk.presets.cql(buffer, "CartPole-v1", seed=1)  # offline: from rows that are there

Each preset is a table of settings for each domain, vectors, continuous actions and images; any of them can be
overridden by name, and an unknown name is refused with the nearest one. `settings("rainbow")` and
`settings("rainbow", "atari")` return them.
"""

from typing import Any

from trainkit.core.errors import refuse_unknown
from trainkit.core.signatures import checked
from trainkit.presets.base import Preset, Settings
from trainkit.presets.continuous import SACOverrides, SACPreset, SACSettings, sac
from trainkit.presets.off_policy import OffpolicySettings
from trainkit.presets.offline_tables import (
    BCPreset,
    BCQPreset,
    CQLPreset,
    OfflineOverrides,
    OfflinePreset,
    OfflineSettings,
    bc,
    bcq,
    cql,
)
from trainkit.presets.on_policy_tables import (
    OnpolicyOverrides,
    OnpolicyPreset,
    OnpolicySettings,
    a2c,
    ppo,
    reinforce,
)
from trainkit.presets.preset_config import PresetConfig
from trainkit.presets.q_learning import QOverrides, QPreset, QSettings
from trainkit.presets.q_tables import (
    c51,
    double_dqn,
    dqn,
    dueling_dqn,
    iqn,
    munchausen_dqn,
    noisy_dqn,
    prioritized_dqn,
    qrdqn,
    rainbow,
)

PRESETS: dict[str, Preset] = {
    preset.name: preset
    for preset in (
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
        ppo,
        a2c,
        reinforce,
        sac,
        bc,
        cql,
        bcq,
    )
}

__all__ = [
    "PRESETS",
    "OffpolicySettings",
    "BCPreset",
    "OfflineOverrides",
    "OfflinePreset",
    "BCQPreset",
    "CQLPreset",
    "OfflineSettings",
    "OnpolicyOverrides",
    "OnpolicyPreset",
    "OnpolicySettings",
    "Preset",
    "PresetConfig",
    "QOverrides",
    "QPreset",
    "QSettings",
    "SACOverrides",
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
    "dueling_dqn",
    "iqn",
    "munchausen_dqn",
    "noisy_dqn",
    "ppo",
    "prioritized_dqn",
    "qrdqn",
    "rainbow",
    "reinforce",
    "sac",
    "settings",
]


@checked
def settings(name: str, domain: str | None = None) -> dict[str, Any]:
    """Return the table of a preset's settings in a domain, "classic", "continuous" or "atari"; None is its first."""
    refuse_unknown("presets", [name], PRESETS)
    return PRESETS[name].settings(domain)
