"""How a dashboard is sorted: which numbers share a chart, and which charts stand together, in reading order."""

import re
from collections.abc import Iterable, Mapping

# {group: {title of a chart: its tags, whole, as a regular expression}}; docs/tags.md says what each number means.
CHARTS: Mapping[str, Mapping[str, str]] = {
    "returns": {
        "mean return: test, train": "(test|train)/returns/mean",
        "test return: best, mean, worst": "test/returns/(max|mean|min)",
        "mean return of the last 100 training episodes": "train/recent_returns/mean",
        "steps of an episode: test, train": "(test|train)/lengths/mean",
    },
    "learning": {
        "loss": r"update/(\w+_)?loss",
        "expected return": "update/((q|value|return)_mean|q_max|q_min)",
        "absolute TD error: mean, largest": "update/td_abs_(mean|max)",
        "entropy of the predicted distribution": "update/value_entropy",
        "norm of the gradient, before the clip": r"update/(\w+_)?grad_norm",
        "learning rate": r"update/(\w+_)?lr",
        "share of the goal beyond v_min, v_max": "update/clipped_share",
        "rows beyond PPO's clip": "update/clip_share",
        "divergence from the policy that collected": "update/approx_kl",
    },
    "exploration": {
        "epsilon, or a temperature": "explore/(epsilon|temperature)|update/temperature",
        "entropy": "update/entropy",
    },
    "buffer": {
        "transitions": "buffer/size",
        "rows replayed per row collected": "update/replay_ratio",
        "largest priority": "buffer/largest_priority",
        "importance weights: mean, effective share, beta": "update/(weight_mean|effective_share)|buffer/beta",
    },
    "time": {
        "where it went, in shares": "time/(collect|update|evaluate|other)",
        "steps per second": "time/steps_per_second",
        "milliseconds per vector step": "train/(act|action|env|obs|render|store|other)_ms",
    },
    "yours": {"what you log": "custom/.+"},
}


def charts_of(tags: Iterable[str]) -> dict[str, dict[str, str]]:
    """Return the groups and charts that have something to show, whatever it is: {group: {title: pattern}}."""
    known = list(tags)
    shown = {
        group: {title: tag for title, tag in charts.items() if any(re.fullmatch(tag, one) for one in known)}
        for group, charts in CHARTS.items()
    }
    return {group: charts for group, charts in shown.items() if charts}
