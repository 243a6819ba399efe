"""The preset to start with for actions in a Box."""

from trainkit.presets.all_presets import PRESETS, AnyPreset

# Of those measured, the one with the largest returns per minute of CPU time: benchmarks/results/continuous.md.
continuous_default: AnyPreset = PRESETS.get("xqc", PRESETS["sac"])
"""The preset to start with for actions in a Box: `xqc`, without its extension `sac`."""
