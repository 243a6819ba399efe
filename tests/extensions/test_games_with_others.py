"""Games with processors, evaluation in the background, and restarts of environments that failed."""

from functools import partial
from typing import Any, ClassVar

import numpy as np
import pytest

import trainkit as tk
from tests.extensions.games.tagged_games import (
    MOMENTS,
    check_that_late_rewards_count_in_returns_alone,
    check_that_running_games_continue,
    made,
    random_player,
    true_rows,
)
from tests.extensions.games.two_policies import BOTH, N_GAMES, dqn, games, off_policy, replay, two_policies
from tests.helpers.doubles import Ledger, Player
from tests.helpers.games import AGENTS, plan_of
from tests.helpers.pairs import Corridors
from tests.helpers.turns import TicTacToe
from trainkit.buffer import ReplayBuffer
from trainkit.collector import Collector
from trainkit.core.data import ACTION_MASK, Horizon
from trainkit.core.errors import EnvError
from trainkit.envs import PreviousStep, make_envs


class Watch(tk.Callback):
    """Note the agent and the policy of every episode that starts."""

    def __init__(self) -> None:
        self.pairs: set[tuple[str, str]] = set()

    def on_episode_start(self, trainer: Any, episode: Any) -> None:
        self.pairs.add((episode.agent, episode.policy))


class Players(tk.envs.Processor):
    """Note which policies control the rows that observe."""

    seen: ClassVar[set[tuple[int, str]]] = set()

    def begin(self, obs: Any, env_ids: Any) -> Any:
        self.seen.update(zip((env_ids % 2).tolist(), self.players(env_ids), strict=True))
        return obs


def test_callbacks_and_processors_see_who_plays_and_agents_see_who_they_are() -> None:
    Players.seen.clear()
    envs = tk.make_envs(lambda: Corridors(BOTH), 2, seed=5, processors=[Players(), tk.envs.AgentId()])
    right = tk.policy.ScriptedPolicy(lambda obs: obs["agent"].argmax(axis=1))
    policy = tk.MultiAgentPolicy({"main": dqn(envs), "rest": right}, _main_left)
    watch = Watch()
    trainer = off_policy(policy, envs, tk.MultiAgentBuffer({"main": replay()}), callbacks=[watch])
    trainer.run()
    assert watch.pairs == {("left", "main"), ("right", "rest")}
    assert Players.seen == {(0, "main"), (1, "rest")}
    np.testing.assert_array_equal(trainer.buffer["main"][:].obs["agent"], np.tile([1.0, 0.0], (90, 1)))
    with pytest.raises(tk.ConfigError, match="AgentId needs games of several agents"):
        tk.make_envs("CartPole-v1", processors=[tk.envs.AgentId()])


def _main_left(agent: str, episode: Any) -> str:
    return "main" if agent == "left" else "rest"


def test_an_evaluation_in_the_background_plays_the_games_of_one_in_this_process() -> None:
    def evaluated(*, background: bool) -> Any:
        test = tk.make_envs(partial(Corridors, BOTH), N_GAMES, seed=9)
        trainer = two_policies(max_epoch=1)
        kind = tk.BackgroundEvaluation if background else tk.Evaluation
        evaluation = kind(tk.Collector(trainer.policy, test), duration=6, seed=2)
        policy, envs = trainer.policy, games()
        buffer = tk.MultiAgentBuffer({"main": replay(), "rival": tk.ReplayBuffer(90)})
        with off_policy(policy, envs, buffer, evaluation=evaluation, max_epoch=1) as run:
            return run.run().last_test.episode_returns

    assert len(evaluated(background=False)) == 6
    assert evaluated(background=True) == evaluated(background=False)


class Breaking(TicTacToe):
    """Tic-tac-toe that breaks at the fourth move of its second game, and returns a wrong board in its fourth."""

    made: list["Breaking"] = []  # noqa: RUF012  # the games of one test

    def __init__(self) -> None:
        super().__init__()
        self.made.append(self)

    def step(self, action: Any) -> None:
        if len(self.made) == 1 and len(self.log) == 2 and len(self.moves) == 3:
            raise OSError("the board fell")
        super().step(action)

    def observe(self, agent: str) -> Any:
        seen = super().observe(agent)
        if len(self.made) == 2 and len(self.log) == 2 and len(self.moves) == 3:
            seen["board"] = np.zeros(8, np.int8)
        return seen


def test_a_game_that_fails_is_replaced_and_its_rows_are_dropped() -> None:
    Breaking.made = []
    buffer = ReplayBuffer(1_000, seed=0)
    envs = make_envs([Breaking, TicTacToe], on_error="restart", restart_delay_s=0.0)
    collector = Collector(random_player(envs), envs, buffer)
    stats = collector.collect(n_step=100)
    assert (stats.n_env_restarts, stats.n_faulty_episodes) == (2, 2)
    assert len(Breaking.made) == 3
    whole = [len(true_rows(*one)[player]) for game in Breaking.made for one in game.log[:1] for player in (0, 1)]
    batch = buffer.sample(None, horizon=Horizon(), columns=("env_id", "terminated"))
    own = batch.extras["env_id"] < 2
    assert own.sum() >= sum(whole[:4])  # the games that were over
    assert batch.extras["terminated"][own].sum() >= 4
    Breaking.made = []
    envs = make_envs([TicTacToe, Breaking])
    with pytest.raises(EnvError, match=r"env [23] raised OSError in step: the board fell, at .* in game 1"):
        Collector(random_player(envs), envs).collect(n_step=100)


class MaskedPlayer(Player):
    def act(self, obs: Any, **options: Any) -> Any:
        output = super().act(obs["obs"], **options)
        legal = obs[ACTION_MASK] != 0
        action = np.where(legal[np.arange(len(legal)), output.action], output.action, 0)
        return output._replace(action=action)


def test_stacks_masks_and_processors_work_on_rows() -> None:
    ledger = Ledger()
    envs, _ = made(stack=2, mask_key="legal", processors=[PreviousStep()])
    Collector(MaskedPlayer(), envs, ledger).collect(n_step=300)
    rows = ledger.rows()
    tags, seen = rows.obs["obs"].astype(int), rows.obs["prev_action"]
    np.testing.assert_array_equal(rows.obs[ACTION_MASK][:, 1], tags[:, -1, 1] == 0)
    for frames, actions in zip(tags.tolist(), seen.tolist(), strict=True):
        stints = plan_of(frames[1][0], frames[1][2])[AGENTS[frames[1][1]]]
        start = next(first for first, end, _ in stints if first <= frames[1][3] < end)
        assert frames[0][:3] == frames[1][:3]
        assert frames[0][3] == max(frames[1][3] - 1, start)
        assert actions == [3 if frame[3] == start else frame[4] for frame in frames]


def test_late_rewards_count_in_returns_and_in_no_row_behind_a_processor(caplog: pytest.LogCaptureFixture) -> None:
    check_that_late_rewards_count_in_returns_alone([PreviousStep()], caplog)


@MOMENTS
def test_running_games_behind_a_processor_continue_where_they_were_saved(n_step: int) -> None:
    check_that_running_games_continue(n_step, processors=[PreviousStep()])
