"""The preset to start with for actions in a Box."""

from trainkit.presets.all_presets import PRESETS, AnyPreset

# Of those measured, on HalfCheetah with one seed, the largest return after 20 to 37 minutes of CPU time:
# benchmarks/results/continuous.md.
continuous_default: AnyPreset = PRESETS.get("xqc", PRESETS["sac"])
"""The preset to start with for actions in a Box: `xqc`, without its extension `sac`."""
