"""Calls of learning from data that work, for the table of all public calls."""

from pathlib import Path
from typing import Any

import trainkit as tk
from tests.faults.makers import CPU, DISCRETE, Call, envs, learner, rows
from tests.helpers.learning import THREE_ACTIONS, small_net

NOT_CALLED = {"Estimate", "FittedQ", "StreamedDataset", "from_minari", "to_minari"}  # records, and what needs an extra


def estimation(function: Any, **options: Any) -> Call:
    return Call(function, {"policy": learner(), "dataset": rows(), "gamma": 0.9, **options})


def calls(folder: Path) -> dict[str, Call]:
    saved = folder / "dataset"
    with tk.callbacks.DatasetWriter(saved).record(collector := tk.Collector(learner(), envs())):
        collector.collect(n_step=30)
    return {
        "BCPolicy": Call(tk.BCPolicy, {"network": small_net((4, 8, 3)), "action_space": THREE_ACTIONS, **CPU}),
        "BCPolicy.for_envs": Call(tk.BCPolicy.for_envs, {"envs": DISCRETE, "hidden": (4,), **CPU}),
        "DatasetWriter": Call(tk.callbacks.DatasetWriter, {"folder": folder / "episodes"}),
        "DiscreteBCQPolicy": Call(tk.DiscreteBCQPolicy, {"network": small_net(), "imitation": small_net(), **CPU}),
        "DiscreteBCQPolicy.for_envs": Call(tk.DiscreteBCQPolicy.for_envs, {"envs": DISCRETE, "hidden": (4,), **CPU}),
        "MixedBuffer": Call(tk.MixedBuffer, {"proportions": {tk.ReplayBuffer(10): 1.0}}),
        "OffPolicyEvaluation": Call(tk.callbacks.OffPolicyEvaluation, {"dataset": rows()}),
        "direct_method": estimation(tk.datasets.direct_method, q=learner()),
        "doubly_robust": estimation(tk.datasets.doubly_robust, q=learner()),
        "fitted_q_evaluation": estimation(tk.trainer.fitted_q_evaluation, n_updates=2, batch_size=4, hidden=(4,)),
        "importance_sampling": estimation(tk.datasets.importance_sampling),
        "load_dataset": Call(tk.load_dataset, {"path": saved}),
        "stream_dataset": Call(tk.datasets.stream_dataset, {"path": saved}),
        "weighted_importance_sampling": estimation(tk.datasets.weighted_importance_sampling),
    }
