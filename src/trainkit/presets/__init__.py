"""Ready trainers: an environment, a seed, and everything else with a default whose source is named.

    trainer = tk.presets.rainbow("CartPole-v1", seed=1)
    for epoch, stats, info in trainer: ...

Each preset is a table of settings, one for vectors and one for images; any of them can be overridden by name, and an
unknown name is refused with the nearest one. `settings("rainbow")` and `settings("rainbow", "atari")` return them.
"""

from trainkit.errors import refuse_unknown
from trainkit.presets.q_learning import Domain, QOverrides, QPreset, QSettings
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

PRESETS = {
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
    )
}

__all__ = [
    "PRESETS",
    "QOverrides",
    "QPreset",
    "QSettings",
    "c51",
    "double_dqn",
    "dqn",
    "dueling_dqn",
    "iqn",
    "munchausen_dqn",
    "noisy_dqn",
    "prioritized_dqn",
    "qrdqn",
    "rainbow",
    "settings",
]


def settings(name: str, domain: Domain = "classic") -> QSettings:
    """Return the table of a preset's settings, for vectors ("classic") or for images ("atari")."""
    refuse_unknown("presets", [name], PRESETS)
    return PRESETS[name].settings(domain)
