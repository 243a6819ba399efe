"""Runs of learning from data in which options of constructors matter."""

import functools
from typing import Any

import trainkit as tk
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
from tests.outside.test_options_have_effects import (
    dataset,
)


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
