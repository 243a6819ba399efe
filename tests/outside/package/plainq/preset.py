"""A preset: the settings of the policy, with their defaults."""

from typing import Any, Unpack

import trainkit as tk
from plainq.policy import PlainQ


def settings(**given: Unpack[tk.presets.OffpolicySettings]) -> tk.presets.OffpolicySettings:
    """Return all settings."""
    usual: dict[str, Any] = {"n_envs": 2, "hidden": (64,), "gamma": 0.99, "lr": 1e-3, "adam_eps": 1e-8}
    usual |= {"max_grad_norm": 10.0, "capacity": 10_000, "batch_size": 32, "step_per_collect": None}
    usual |= {"update_per_step": 1.0, "learning_starts": 500, "max_epoch": 10, "step_per_epoch": 1_000}
    return tk.presets.table_of(tk.presets.OffpolicySettings, usual, given)


class PlainQPreset(tk.presets.OffpolicyPreset[..., tk.presets.OffpolicySettings, PlainQ]):
    """A preset of `PlainQ`, for discrete actions."""

    kind = tk.presets.OffpolicySettings

    def make_policy(self, envs: tk.envs.Envs, settings: tk.presets.OffpolicySettings) -> PlainQ:
        """Return a new policy."""
        names = ("hidden", "lr", "device", "engine")
        return PlainQ(envs, **{name: dict(settings)[name] for name in names})  # type: ignore[arg-type]


plainq = PlainQPreset("plainq", "Q-learning by one network", settings, {"classic": settings()})
