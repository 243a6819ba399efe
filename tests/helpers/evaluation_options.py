"""Options of presets in tests that share them, with and without evaluation."""

from typing import Any


def as_evaluated(options: dict[str, Any]) -> dict[str, Any]:
    """Return options of a preset; where they switch evaluation off, without those of an evaluation."""
    if options.get("evaluation", "on") is not None:
        return options
    return {name: value for name, value in options.items() if name not in ("n_test_envs", "episode_per_test")}
