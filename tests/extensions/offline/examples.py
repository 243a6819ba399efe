"""Examples of offline learning: calls that work, and runs in which options matter, for tests of all public names."""

import functools
from pathlib import Path
from typing import Any

import trainkit as tk
from tests.faults.makers import CPU, DISCRETE, Call, learner, rows, walks
from tests.helpers.learning import THREE_ACTIONS, small_net
from tests.outside.constructors import (
    DATA,
    Build,
    Run,
    callback_in,
    envs,
    for_envs,
    from_data,
    policy_in,
    q_learner,
    replayed,
)
from tests.outside.outcomes import dataset

NOT_CALLED = {"Estimate", "FittedQ", "StreamedDataset", "from_minari", "to_minari"}  # records, and what needs an extra


def estimation(function: Any, **options: Any) -> Call:
    return Call(function, {"policy": learner(), "dataset": rows(), "gamma": 0.9, **options})


def calls(folder: Path) -> dict[str, Call]:
    saved = folder / "dataset"
    with tk.callbacks.DatasetWriter(saved).record(collector := tk.Collector(learner(), walks())):
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


def mixed(build: Build) -> tk.Trainer:
    return replayed(q_learner(), None, build({tk.ReplayBuffer(100): 0.5, dataset(): 0.5}))


def streamed(build: Build) -> tk.Trainer:
    with replayed(q_learner(), callbacks=tk.callbacks.DatasetWriter("data")) as writer:
        writer.run()
    source = tk.datasets.stream_dataset("data", shuffle_rows=60)._sources
    return tk.OfflineTrainer(q_learner(), build(source, shuffle_rows=60), **DATA)


@functools.cache
def logged() -> tk.ReplayBuffer:
    """Return rows with the probabilities of their actions."""
    made, buffer = envs(), tk.ReplayBuffer(200)
    policy = tk.RandomPolicy(made.action_space, seed=1, store_action_prob=True)
    tk.Collector(policy, made, buffer, seed=1).collect(n_step=200)
    return buffer


RUNS: dict[Any, list[Run]] = {
    tk.DiscreteBCQPolicy: [policy_in(from_data), policy_in(replayed), policy_in(from_data, tiny=True)],
    tk.MixedBuffer: [mixed],
    tk.datasets.StreamedDataset: [streamed],
    tk.callbacks.DatasetWriter: [callback_in(replayed, "data")],
    tk.callbacks.OffPolicyEvaluation: [callback_in(replayed, lambda: logged())],
    tk.BCPolicy: [
        policy_in(lambda *made: from_data(*made, callbacks=tk.callbacks.OffPolicyEvaluation(logged()))),
        policy_in(from_data, tiny=True),
    ],
}
FOR_ENVS: dict[Any, list[Run]] = {
    tk.DiscreteBCQPolicy: [for_envs(from_data, target=tk.Target(5)), for_envs(from_data, noisy=True)],
    tk.BCPolicy: [for_envs(lambda *made: from_data(*made, callbacks=tk.callbacks.OffPolicyEvaluation(logged())))],
}
