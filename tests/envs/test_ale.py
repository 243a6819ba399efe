"""Atari games through ale-py's vector environment, held against the same game driven by hand."""

from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
import pytest
from gymnasium.vector import AutoresetMode
from numpy.typing import NDArray

from tests.helpers.doubles import Ledger, Still
from trainkit.buffer import ReplayBuffer
from trainkit.collector import Collector
from trainkit.core.data import ActOutput, Horizon, Obs
from trainkit.core.seeding import episode_seed
from trainkit.envs import make_envs

ale_py: Any = pytest.importorskip("ale_py", reason="the extra `atari` is not installed")

N_ENVS, SEED = 2, 3
ARGUMENTS = {"stack_num": 1, "reward_clipping": False, "max_num_frames_per_episode": 700}
MODES = [AutoresetMode.NEXT_STEP, AutoresetMode.SAME_STEP]


class Row(NamedTuple):
    """One step of one game."""

    env: int
    obs: NDArray[np.uint8]  # [1, 84, 84]
    action: int
    reward: float
    next_obs: NDArray[np.uint8]
    is_over: bool
    is_truncated: bool
    is_lost: bool


class Turns(Still):
    """Take every action in turn in each environment."""

    def __init__(self, n_actions: int) -> None:
        super().__init__()
        self.n_actions = n_actions
        self.turns = np.arange(N_ENVS)  # [N]
        self.starts: list[bool] = []

    def act(self, obs: Obs, *, env_ids: NDArray[np.intp] | None = None, **requested: Any) -> ActOutput:
        assert env_ids is not None
        self.starts += requested["starts"].tolist()
        action = self.turns[env_ids] % self.n_actions
        self.turns[env_ids] += 1
        return ActOutput(action, {}, None)


def driven_by_hand(game: str, mode: AutoresetMode, n_vector_step: int) -> Iterator[Row]:
    """Drive ale-py's environments as `Turns` would, and skip the steps that only reset."""
    venv = ale_py.AtariVectorEnv(game, N_ENVS, repeat_action_probability=0.25, autoreset_mode=mode, **ARGUMENTS)
    n_actions = venv.single_action_space.n
    obs, infos = venv.reset(seed=episode_seed(SEED, 0, 0) % (2**31 - N_ENVS))
    lives, was_over = infos["lives"], np.zeros(N_ENVS, np.bool_)
    turns = np.arange(N_ENVS)
    for _ in range(n_vector_step):
        actions = turns % n_actions
        turns += ~was_over
        after, reward, terminated, truncated, infos = venv.step(actions)
        is_over = terminated | truncated
        for env in np.flatnonzero(~was_over):
            next_obs = infos["final_obs"] if is_over[env] and mode is AutoresetMode.SAME_STEP else after
            is_lost = not is_over[env] and infos["lives"][env] < lives[env]
            got = bool(is_over[env]), bool(truncated[env]), bool(is_lost)
            yield Row(int(env), obs[env].copy(), actions[env], reward[env], next_obs[env].copy(), *got)
        obs, lives = after.copy(), infos["lives"].copy()
        was_over = is_over & (mode is AutoresetMode.NEXT_STEP)
    venv.close()


@pytest.mark.one_of_each
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize(
    ("game", "env_id", "n_actions"), [("pong", "ALE/Pong-v5", 6), ("breakout", "ALE/Breakout-v5", 4)]
)
def test_rows_of_atari_games_are_what_ale_py_played(
    game: str, env_id: str, n_actions: int, mode: AutoresetMode
) -> None:
    arguments = {**ARGUMENTS, "autoreset_mode": mode}
    envs = make_envs(env_id, N_ENVS, backend="vector", seed=SEED, lives_key="lives", env_kwargs=arguments)
    assert envs.frame_space.shape == (1, 84, 84)
    ledger, turns = Ledger(), Turns(n_actions)
    stats = Collector(turns, envs, ledger).collect(n_step=600)
    expected = list(driven_by_hand(game, mode, stats.n_vector_step))
    rows = ledger.rows()
    assert rows.env_ids.tolist() == [row.env for row in expected]
    assert rows.action.tolist() == [row.action for row in expected]
    assert rows.reward.tolist() == [row.reward for row in expected]
    np.testing.assert_array_equal(rows.obs, [row.obs for row in expected])
    np.testing.assert_array_equal(rows.next_obs, [row.next_obs for row in expected])
    assert rows.truncated.tolist() == [row.is_truncated for row in expected]
    no_future = [(row.is_over and not row.is_truncated) or row.is_lost for row in expected]
    assert rows.terminated.tolist() == no_future
    assert stats.n_episode == sum(row.is_over for row in expected) > 0
    assert sum(row.is_lost for row in expected) > (5 if game == "breakout" else -1)  # Pong has none to lose
    assert any(row.reward for row in expected)
    for env in range(N_ENVS):
        here = rows.env_ids == env
        begins = [True, *(row.is_over or row.is_lost for row in expected if row.env == env)][:-1]
        assert np.asarray(turns.starts)[here].tolist() == begins
    envs.close()


@pytest.mark.parametrize("mode", MODES)
def test_stacks_of_breakout_restart_where_a_life_is_lost_acting_and_on_read(mode: AutoresetMode) -> None:
    arguments = {**ARGUMENTS, "autoreset_mode": mode}
    envs = make_envs(
        "ALE/Breakout-v5", N_ENVS, backend="vector", seed=SEED, lives_key="lives", stack=4, env_kwargs=arguments
    )
    ledger, buffer = Ledger(), ReplayBuffer(1_000, seed=1)
    collector = Collector(Turns(4), envs, ledger)
    buffer.bind(ledger.spec)  # type: ignore[arg-type]  # bound by the collector
    collector.collect(n_step=300)
    slots = np.concatenate([buffer.add(step) for step in ledger.steps])
    rows = ledger.rows()
    acted_on = dict(zip(slots.tolist(), rows.obs, strict=True))
    batch = buffer.sample(400, horizon=Horizon(1))
    np.testing.assert_array_equal(batch.obs, [acted_on[slot] for slot in batch.slots.tolist()])
    for env in range(N_ENVS):
        here = rows.env_ids == env
        begins = np.flatnonzero(rows.terminated[here][:-1]) + 1
        assert len(begins) > 1
        assert all((frames == frames[-1]).all() for frames in rows.obs[here][begins])
    envs.close()
