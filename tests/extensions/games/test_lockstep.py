"""Batches of whole moments: the rows of all agents of a game that one step stored, against a slow reference."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import trainkit as tk
from tests.helpers.learning import assert_same
from tests.helpers.pairs import Corridors
from trainkit.buffer import LockstepReplayBuffer
from trainkit.core.config import from_plain, to_plain

N_GAMES, N_AGENTS = 3, 4


def filled(capacity: int, seed: int = 0) -> tuple[LockstepReplayBuffer, set[tuple[int, int, int]]]:
    """Fill a buffer with random subsets of the agents; return it, and all (game, step, agent) that were added.

    The observation of a row is (game, step, agent).
    """
    rng = np.random.default_rng(seed)
    buffer = LockstepReplayBuffer(capacity, n_agents=N_AGENTS, n_envs=N_GAMES * N_AGENTS, seed=1)
    added: set[tuple[int, int, int]] = set()
    for step in range(40):
        acting = np.flatnonzero(rng.random(N_GAMES * N_AGENTS) < 0.7)
        if not len(acting):
            continue
        obs = np.stack([acting // N_AGENTS, np.full(len(acting), step), acting % N_AGENTS], axis=1).astype(np.float32)
        added |= {(int(game), int(when), int(agent)) for game, when, agent in obs}
        zeros, no = np.zeros(len(acting)), np.zeros(len(acting), np.bool_)
        buffer.add(
            tk.Transition(obs, np.zeros(len(acting), np.int64), zeros, obs + np.float32([0, 1, 0]), no, no, acting, {})
        )
    return buffer, added


@pytest.mark.parametrize("capacity", [1_000, 61])
def test_a_batch_has_all_agents_of_each_moment_in_their_order(capacity: int) -> None:
    buffer, added = filled(capacity)
    stored = {tuple(map(int, row)) for row in buffer[:].obs}
    assert stored <= added
    batch = buffer.sample(4_003, horizon=tk.Horizon(1, 0.9), columns=("moment",))
    assert len(batch) == 4_000
    moments = batch.extras["moment"].reshape(-1, N_AGENTS)
    seen = set()
    for group in range(len(moments)):
        rows = batch.obs[group * N_AGENTS : (group + 1) * N_AGENTS].astype(int)
        weight = batch.weight[group * N_AGENTS : (group + 1) * N_AGENTS]
        game, step, _ = rows[0]
        assert (rows[:, :2] == [game, step]).all()
        there = [(game, step, agent) in stored for agent in range(N_AGENTS)]
        assert weight.tolist() == there
        assert rows[there, 2].tolist() == np.flatnonzero(there).tolist()
        assert len(set(moments[group][there])) == 1
        assert len(set(moments[group])) == 1 + N_AGENTS - sum(there)
        seen.add((game, step))
    assert len(np.unique(moments)) == sum(len(set(row)) for row in moments.tolist())  # no two moments have the same
    assert seen == {(game, step) for game, step, _ in stored}


def test_a_batch_of_all_rows_has_them_once_with_their_moments() -> None:
    buffer, _ = filled(61)
    batch = buffer.sample(None, horizon=tk.Horizon(1, 0.9), columns=("moment",))
    keys = [tuple(row) for row in batch.obs[:, :2]]
    moments = batch.extras["moment"].tolist()
    assert len(set(zip(keys, moments, strict=True))) == len(set(keys)) == len(set(moments))


def team(seed: int = 1, **options: Any) -> tk.OffpolicyTrainer:
    envs = tk.make_envs(lambda: Corridors({"left": 0, "right": 1}), 2, seed=3)
    policy = tk.DQNPolicy.for_envs(envs, hidden=(8,), backup=tk.VDNBackup(), device="cpu")
    buffer = LockstepReplayBuffer(200, n_agents=envs.n_agents)
    own: dict[str, Any] = {"max_epoch": 3, "step_per_epoch": 60, "batch_size": 8, "seed": seed}
    quiet: dict[str, Any] = {"verbose": False, "show_progress": False}
    return tk.OffpolicyTrainer(policy, tk.Collector(policy, envs, buffer), **own | quiet | options)


@pytest.mark.parametrize("loss", ["mse", "huber"])
def test_the_gradient_is_that_of_the_teams_loss(loss: Any) -> None:
    trainer = team(max_epoch=1)
    trainer.run()
    policy: Any = trainer.policy
    policy.value = tk.ExpectedValue(loss)
    batch: Any = trainer.buffer.sample(16, horizon=policy.horizon, columns=policy.columns)
    rows = policy.tensors(batch)
    rows = rows._replace(inputs=policy.loss_noise(16))
    policy.network.zero_grad()
    policy.loss(rows).per_row.sum().backward()
    own = [parameter.grad.clone() for parameter in policy.network.parameters()]

    policy.network.zero_grad()
    q = policy.network(rows.obs, None, None).outputs.squeeze(2)
    chosen = q.gather(1, rows.action.unsqueeze(1)).view(8, 2).sum(dim=1)  # Sunehag et al., equation 3
    after = policy.target_network(rows.next_obs, None, None).outputs.squeeze(2).gather(1, _best(policy, rows))
    target = (rows.reward + rows.discount * after.squeeze(1)).view(8, 2).sum(dim=1).detach()
    of_team = {"mse": torch.nn.functional.mse_loss, "huber": torch.nn.functional.huber_loss}[loss]
    of_team(chosen, target, reduction="sum").backward()
    for mine, parameter in zip(own, policy.network.parameters(), strict=True):
        torch.testing.assert_close(mine, parameter.grad)


def _best(policy: Any, rows: Any) -> torch.Tensor:
    best: torch.Tensor = policy.network(rows.next_obs, None, None).outputs.squeeze(2).argmax(dim=1, keepdim=True)
    return best


def test_a_run_in_lockstep_continues_with_the_same_bits(tmp_path: Path) -> None:
    whole = team()
    for epoch, _, _ in whole:
        if epoch == 2:
            whole.save(tmp_path / "checkpoint")
    again = team(resume_from=tmp_path / "checkpoint")
    again.run()
    assert_same(again.policy.training_state(), whole.policy.training_state())


def test_wrong_uses_are_named() -> None:
    envs = tk.make_envs(lambda: Corridors({"left": 0, "right": 1}), 2)
    policy = tk.DQNPolicy.for_envs(envs, backup=tk.VDNBackup())
    train = tk.Collector(policy, envs, tk.ReplayBuffer(100))
    with pytest.raises(tk.ConfigError, match=r"columns names 'moment'.*LockstepReplayBuffer"):
        tk.OffpolicyTrainer(policy, train, max_epoch=1, step_per_epoch=50, batch_size=8)
    other = tk.make_envs(lambda: Corridors({"left": 0, "right": 1}), 2)
    with pytest.raises(tk.ConfigError, match="n_agents is 3, and rows come from 4 environments"):
        tk.Collector(tk.DQNPolicy.for_envs(other), other, LockstepReplayBuffer(100, n_agents=3))
    with pytest.raises(tk.ConfigError, match="VDNBackup adds expected returns"):
        tk.DQNPolicy.for_envs(envs, backup=tk.VDNBackup(), value=tk.QuantileValue(8)).check_spaces(
            envs.observation_space, envs.action_space
        )


def test_the_backup_of_teams_is_saved_with_its_option() -> None:
    made = from_plain(to_plain(tk.VDNBackup(double=False)))
    assert type(made) is tk.VDNBackup
    assert made.double is False
