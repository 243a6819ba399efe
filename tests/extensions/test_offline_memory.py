"""Behavior cloning with a memory, and that off-policy evaluation needs policies without one."""

import copy
from typing import Any

import pytest
import torch

import trainkit as tk
from tests.extensions.memory.plain_loops import (
    SEQUENCES,
    Known,
    Pushing,
    assert_gradients,
    collected,
    learned_rows,
    recalled,
)
from tests.extensions.offline.tiny_runs import tiny
from trainkit import presets
from trainkit.buffer import sample_sequences


@pytest.mark.parametrize("engine", ["torch", "numpy"])
def test_gradients_of_behavior_cloning_are_those_of_a_plain_loop(engine: Any) -> None:
    _, buffer, collector = collected()
    policy = tk.BCPolicy.for_envs(
        collector.envs, hidden=(8,), recurrent="gru", sequences=tk.Sequences(6, 3, stored_state=False), seed=2,
        engine=engine,
    )  # fmt: skip
    batch = sample_sequences(buffer, 5, length=6, burn_in=3, horizon=policy.horizon)
    before = copy.deepcopy(policy.network)
    policy.update(batch, step=0)
    total = torch.zeros(())
    networks: Any = before
    found = [recalled(policy, before, batch, column, slice(None)) for column in range(len(batch))]
    for position, column in learned_rows(batch):
        chosen = torch.from_numpy(batch.action[position, column][None])
        outputs = networks(Known(found[column][position])).outputs.squeeze(2)
        total = total - policy.distribution.log_prob(outputs, chosen, None)[0]
    for own, updated in zip(before.parameters(), policy.network.parameters(), strict=True):
        own.grad = updated.grad
    assert_gradients(before, total / batch.n_rows)
    collector.close()


def test_wrong_uses_of_recurrent_behavior_cloning_are_named() -> None:
    envs = tk.make_envs([Pushing], seed=1)
    with pytest.raises(tk.ConfigError, match="must have stored_state=False: data have no states of this policy"):
        tk.BCPolicy.for_envs(envs, recurrent="lstm", sequences=SEQUENCES)
    with pytest.raises(tk.ConfigError, match="auxiliary is for networks that carry no state"):
        tk.BCPolicy.for_envs(envs, recurrent="lstm", auxiliary=lambda features, rows: features.sum(dim=1))


def test_importance_sampling_rejects_recurrent_policies() -> None:
    policy, buffer, collector = collected()
    with pytest.raises(tk.ConfigError, match=r"importance_sampling.policy is recurrent: .* use a policy without"):
        tk.datasets.importance_sampling(policy, buffer, gamma=0.9)
    random = tk.RandomPolicy(collector.envs.action_space)
    with pytest.raises(tk.ConfigError, match=r"direct_method.q is recurrent"):
        tk.datasets.direct_method(random, buffer, policy, gamma=0.9)
    with pytest.raises(tk.ConfigError, match=r"fitted_q_evaluation.policy is recurrent"):
        tk.trainer.fitted_q_evaluation(policy, buffer, gamma=0.9)
    collector.close()


@pytest.mark.parametrize("preset", [presets.bc, presets.cql], ids=repr)
def test_a_memory_learns_from_the_sequences_of_a_dataset(preset: Any) -> None:
    trainer = tiny(preset, recurrent="lstm", hidden=(8,))
    assert trainer.policy.sequences == tk.Sequences(20, 10, stored_state=False)
    before = trainer.policy.get_weights()
    result = trainer.run()
    assert result.gradient_step == 10
    memory = next(name for name in before if name.startswith("network") and "memory" in name)
    assert (trainer.policy.get_weights()[memory] != before[memory]).any()


@pytest.mark.parametrize("preset", [presets.bc, presets.cql], ids=repr)
def test_every_setting_of_a_memory_reaches_what_it_is_about(preset: Any) -> None:
    sequences = tk.Sequences(7, 3, stored_state=False)
    policy = tiny(preset, recurrent="gru", sequences=sequences).policy
    assert policy.sequences == sequences
    assert any(isinstance(module, tk.nets.GRU) for module in policy.modules())


def test_discrete_bcq_rejects_a_network_that_carries_a_state() -> None:
    with pytest.raises(tk.ConfigError, match=r"DiscreteBCQPolicy\.network must carry no state.*leave recurrent out"):
        tk.DiscreteBCQPolicy.for_envs(tk.make_envs("CartPole-v1"), hidden=(8,), device="cpu", recurrent="gru")
