"""Games of turns and dict games: rows against those that a slow reference derives from the list of moves."""

import copy
from collections import defaultdict
from functools import partial
from operator import itemgetter
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest

import trainkit as tk
from tests.extensions.games.tagged_games import Row, games_of, random_player, true_rows
from tests.helpers.doubles import Ledger, Still, one_by_one
from tests.helpers.games import AGENTS, PLANS, TaggedGame, length, plan_of, reward
from tests.helpers.turns import Elimination, Interview, Meetings, TicTacToe
from trainkit.buffer import ReplayBuffer
from trainkit.collector import Collector, EpisodeEvents
from trainkit.core import tree
from trainkit.core.data import ACTION_MASK, Horizon
from trainkit.core.errors import BadEnvDataError, ConfigError, EnvError
from trainkit.envs import group_agents, make_envs
from trainkit.extensions.games.games import DictGame

forks = pytest.mark.filterwarnings("ignore:.*multi-threaded:DeprecationWarning")


# ---- tic-tac-toe: the truth from the list of moves ----


def stored_rows(ledger: Ledger) -> dict[int, list[Row]]:
    rows = ledger.rows()
    found: dict[int, list[Row]] = defaultdict(list)
    columns = [rows.obs["board"], rows.obs[ACTION_MASK], rows.action, rows.reward, rows.next_obs["board"]]
    columns += [rows.terminated, rows.truncated]
    for env_id, *row in zip(rows.env_ids.tolist(), *(column.tolist() for column in columns), strict=True):
        found[env_id].append(tuple(row))  # type: ignore[arg-type]  # in the order of a Row
    return found


def assert_is_true(found: dict[int, list[Row]], logs: list[Any]) -> int:
    """Compare the rows of all finished games; return how many there are."""
    n_rows = 0
    for game, log in enumerate(logs):
        for player in (0, 1):
            true = [row for moves, winner in log[:-1] for row in true_rows(moves, winner)[player]]
            rows = found[2 * game + player]
            assert len(rows[: len(true)]) == len(true)
            for row, expected in zip(rows, true, strict=False):
                assert row[3] == pytest.approx(expected[3], abs=1e-9)
                assert row[:3] + row[4:] == expected[:3] + expected[4:]
            n_rows += len(true)
    return n_rows


def test_rows_of_tictactoe_are_those_derived_from_the_moves() -> None:
    envs, ledger = make_envs(TicTacToe, 3), Ledger()
    assert envs.agents == ("cross", "nought")
    collector = Collector(random_player(envs), envs, ledger)
    for n_step in (1, 2, 50, 400):
        collector.collect(n_step=n_step)
    logs = [game.log for game in games_of(envs)]
    assert assert_is_true(stored_rows(ledger), logs) > 300
    assert {winner for log in logs for _, winner in log[:-1]} == {0, 1, None}


def test_statistics_of_a_game_of_turns_count_its_moves_and_all_rewards() -> None:
    envs = make_envs(TicTacToe, 2)
    stats = Collector(random_player(envs), envs).collect(n_episode=20)
    finished = [one for game in games_of(envs) for one in game.log]
    assert stats.n_episode == len(finished) == 20
    assert sorted(stats.episode_lengths) == sorted(len(moves) for moves, _ in finished)
    for player, name in enumerate(envs.agents):
        true = [sum(row[3] for row in true_rows(*one)[player]) for one in finished]
        if name == "nought":  # paid by the first move, before it has a row
            true = [total + moves[0][2] / 16 for total, (moves, _) in zip(true, finished, strict=True)]
        assert stats.agents[name].mean == pytest.approx(np.mean(true))
        assert stats.agents[name].returns.min == pytest.approx(min(true))


def test_n_step_windows_follow_an_agents_own_moves() -> None:
    envs, buffer = make_envs(TicTacToe), ReplayBuffer(5_000, seed=0)
    Collector(random_player(envs), envs, buffer).collect(n_step=200)
    (log,) = (game.log for game in games_of(envs))
    batch = buffer.sample(None, horizon=Horizon(2, gamma=0.5), columns=("env_id",))
    expected = defaultdict(list)
    for moves, winner in log[:-1]:
        for player, rows in true_rows(moves, winner).items():
            for index, row in enumerate(rows):
                later = rows[index + 1][3] if index + 1 < len(rows) else 0.0
                discount = 0.25 if index + 2 < len(rows) else 0.0
                expected[player, tuple(row[0]), row[2]].append((row[3] + 0.5 * later, discount))
    n_found = 0
    for player, board, action, total, discount in zip(
        batch.extras["env_id"].tolist(), batch.obs["board"].tolist(), batch.action.tolist(),
        batch.reward.tolist(), batch.discount.tolist(), strict=True,
    ):  # fmt: skip
        near = expected[player, tuple(board), action]
        n_found += any(abs(true - total) < 1e-4 and own == discount for true, own in near)
    assert n_found >= sum(map(len, expected.values())) - 2


@forks
@pytest.mark.parametrize("wait_num", [None, 1])
def test_games_in_processes_have_the_same_rows(wait_num: int | None) -> None:
    envs, ledger = make_envs(TicTacToe, 2, backend="async", wait_num=wait_num), Ledger()
    Collector(random_player(envs), envs, ledger).collect(n_step=120)
    logs = copy.deepcopy(envs.call("log")[::2])
    assert assert_is_true(stored_rows(ledger), logs) > 50
    envs.close()


def test_an_agent_that_is_out_ends_first_and_all_others_with_the_game() -> None:
    envs, ledger = make_envs(Elimination), Ledger()
    stats = Collector(Still(1), envs, ledger).collect(n_episode=1)
    rows = ledger.rows()
    # The moves are a b c a b c, then b is out: a c.
    true = {
        0: [(1 + 2e1 + 2e2, 0, 3), (1e3 + 2e4 + 2e5, 3, 6), (1e6 + 2e7, 6, 8)],
        1: [(1e1 + 2e2 + 2e3, 1, 4), (1e4 + 2e5, 4, 6)],
        2: [(1e2 + 2e3 + 2e4, 2, 5), (1e5 + 2e6, 5, 7), (1e7, 7, 8)],
    }
    for agent, own in true.items():
        here = rows.env_ids == agent
        assert rows.reward[here].tolist() == [gain for gain, _, _ in own]
        assert rows.obs[here].tolist() == [[agent, before] for _, before, _ in own]
        assert rows.next_obs[here].tolist() == [[agent, after] for _, _, after in own]
        assert rows.terminated[here].tolist() == [False] * (len(own) - 1) + [agent == 1]
        assert rows.truncated[here].tolist() == [False] * (len(own) - 1) + [agent != 1]
    early = {"a": 0.0, "b": 2.0, "c": 2.0 + 2e1}  # paid before the first move: in the return, and in no row
    assert {name: own.mean for name, own in stats.agents.items()} == {
        name: sum(gain for gain, _, _ in true[agent]) + early[name] for agent, name in enumerate("abc")
    }
    assert stats.episode_lengths == (8,)


@pytest.mark.parametrize("given", [{}, {"action_space": gym.spaces.Discrete(3)}])
@pytest.mark.parametrize("is_truncated", [False, True])
def test_rows_of_a_dict_game_run_from_observation_to_observation(is_truncated: bool, given: dict[str, Any]) -> None:
    envs, ledger = make_envs(partial(Meetings, is_truncated=is_truncated), **given), Ledger()
    assert envs.agents == ("0", "1", "2")
    stats = Collector(Still(2), envs, ledger).collect(n_episode=1)
    rows, n_all = ledger.rows(), 111_111.0
    true = {
        0: [(1.0, 0, 1), (10.0, 1, 2), (100.0, 2, 3), (11_000.0, 3, 5), (100_000.0, 5, 6)],
        1: [(111.0, 0, 3), (111_000.0, 3, 3)],  # not observed at the end: its last observation stands for it
        2: [(11.0, 0, 2)],
    }
    for agent, own in true.items():
        here = rows.env_ids == agent
        assert rows.reward[here].tolist() == [gain for gain, _, _ in own]
        assert rows.obs[here].tolist() == [[agent, before] for _, before, _ in own]
        assert rows.next_obs[here].tolist() == [[agent, after] for _, _, after in own]
        ends = [False] * (len(own) - 1) + [True]
        assert rows.terminated[here].tolist() == (ends if agent == 2 or not is_truncated else [False] * len(own))
        assert rows.truncated[here].tolist() == (ends if agent != 2 and is_truncated else [False] * len(own))
    assert {name: own.mean for name, own in stats.agents.items()} == {"0": n_all, "1": n_all, "2": n_all}
    (game,) = games_of(envs)
    assert game.actions == [{0: 2, 1: 2, 2: 2}, {0: 2}, {0: 2}, {0: 2, 1: 2}, {}, {0: 2}]
    assert stats.episode_lengths == (5,)  # without the step that observed no agent


def test_a_game_that_observes_no_agent_for_ten_thousand_steps_is_an_error() -> None:
    class Asleep(Meetings):
        n_slept = 0

        def step(self, actions: dict[int, Any]) -> Any:
            self.n_slept += not actions
            return {}, {}, {"__all__": False}, {"__all__": False}, {}

    envs = make_envs(Asleep)
    with pytest.raises(
        EnvError, match=r"env 0 raised RuntimeError in step: observed no agent in 10,000 steps, and did"
    ):
        Collector(Still(2), envs).collect(n_step=1)
    assert games_of(envs)[0].n_slept == 10_000


class MaskedMeetings(Meetings):
    """Meetings whose agents may take the action of the time and action 2, by one array that each step changes."""

    legal = np.zeros(4, np.int8)

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        obs, infos = super().reset(seed=seed, options=options)
        return obs, {**infos, **self._masks(obs)}

    def step(self, actions: dict[int, Any]) -> Any:
        obs, *others, infos = super().step(actions)
        return obs, *others, {**infos, **self._masks(obs)}

    def _masks(self, obs: dict[int, Any]) -> dict[int, Any]:
        self.legal[:] = [self.time == 0, self.time == 1, True, self.time == 3]
        return {agent: {"legal": self.legal} for agent in obs}


def test_an_agent_that_is_not_observed_at_the_end_keeps_its_last_mask() -> None:
    envs, ledger = make_envs(MaskedMeetings, mask_key="legal"), Ledger()
    Collector(Still(2), envs, ledger).collect(n_episode=1)
    rows = ledger.rows()
    second = rows.env_ids == 1
    assert rows.next_obs["obs"][second].tolist() == [[1, 3], [1, 3]]
    assert rows.next_obs[ACTION_MASK][second].tolist() == [[0, 0, 1, 1]] * 2


# ---- resuming, failures ----


class Stateless(Still):
    """Act by the board alone."""

    def act(self, obs: Any, *, env_ids: Any = None, **options: Any) -> Any:
        output = super().act(obs, env_ids=env_ids)
        legal = obs[ACTION_MASK] != 0
        places = obs["board"].astype(int) @ np.arange(1, 10) % 7
        action = [np.flatnonzero(row)[place % row.sum()] for row, place in zip(legal, places, strict=True)]
        return output._replace(action=np.array(action, np.int64))


@pytest.mark.parametrize("n_step", [1, 3, 4, 14, 50])
def test_open_rows_continue_where_they_were_saved(n_step: int) -> None:
    def made() -> tuple[Collector, Ledger]:
        return Collector(Stateless(), make_envs(TicTacToe, 3, seed=1), ledger := Ledger()), ledger

    (straight, all_rows), (resumed, new_rows) = made(), made()
    straight.collect(n_step=n_step)
    state, n_before = copy.deepcopy(straight.state_dict()), len(all_rows)
    resumed.load_state_dict(state)
    stats = [collector.collect(n_step=40) for collector in (straight, resumed)]
    mine, theirs = new_rows.rows(), all_rows.rows()
    for name in ("reward", "terminated", "truncated", "env_ids", "action"):
        np.testing.assert_array_equal(getattr(mine, name), getattr(theirs, name)[n_before:])
    np.testing.assert_array_equal(mine.obs["board"], theirs.obs["board"][n_before:])
    assert stats[0].agents == stats[1].agents


def test_a_game_that_never_lets_an_ended_agent_go_is_named() -> None:
    class Haunted(TicTacToe):
        def take_out_dead(self, action: Any) -> bool:
            return self.terminations[self.agent_selection]

    envs = make_envs(Haunted)
    with pytest.raises(EnvError, match=r"agent 'cross' has ended, but step\(None\) does not remove it from agents"):
        Collector(random_player(envs), envs).collect(n_step=50)


# ---- agents of different spaces ----


def test_agents_of_different_spaces_have_parts_of_joint_rows() -> None:
    envs, ledger = make_envs(Interview, 2, seed=0), Ledger()
    assert envs.action_space == gym.spaces.Discrete(5)
    Collector(random_player(envs), envs, ledger).collect(n_step=60)
    rows = ledger.rows()
    for agent, name in enumerate(envs.agents):
        view = envs.agent_views[name]
        here = rows.env_ids % 3 == agent
        own, after = (view.obs(tree.map_tree(itemgetter(here), obs)) for obs in (rows.obs, rows.next_obs))
        tags = own["question"][:, :2] if name == "answers" else own if name == "asks" else own[:, 0]
        later = after["question"][:, :2] if name == "answers" else after if name == "asks" else after[:, 0]
        assert (tags[:, 0] == agent).all()
        np.testing.assert_array_equal(tags[:, 1] + 1, later[:, 1])
        assert view.observation_space.contains({key: leaf[0] for key, leaf in own.items()} if agent == 1 else own[0])
        others = {"asks", "answers", "listens"} - {name}
        parts = {other: rows.obs[other]["question"] if other == "answers" else rows.obs[other] for other in others}
        assert not any(leaf[here].any() for leaf in parts.values())
        n_actions = (2, 3, 5)[agent]
        assert rows.action[here].max() < n_actions == view.action_space.n  # type: ignore[attr-defined]  # Discrete
        mask = rows.obs[ACTION_MASK][here]
        assert not mask[:, n_actions:].any()
        if name == "answers":
            np.testing.assert_array_equal(own[ACTION_MASK], np.arange(3) == tags[:, 1:] % 3)
            np.testing.assert_array_equal(rows.action[here], tags[:, 1] % 3)
    (game, _) = games_of(envs)
    assert {action for step in game.received for action in [step["listens"]]} <= set(range(7, 12))


def test_boxes_of_different_widths_are_padded() -> None:
    class Masterless(Interview):
        def observation_space(self, agent: str) -> gym.Space[Any]:
            return gym.spaces.Box(-1, 9, (2,), np.float32)

        def see(self, agent: str) -> Any:
            return np.array([self.possible_agents.index(agent), self.time], np.float32)

    envs = make_envs(partial(Masterless, "box"))
    assert envs.action_space.shape == (4,)
    envs.reset()
    joint = np.array([[0.25, 0.5, 9.0, 9.0], [-0.5, 9.0, 9.0, 9.0], [0.1, 0.2, 0.3, 2.0]], np.float32)
    envs.step(joint, envs.ready)
    (game,) = games_of(envs)
    (received,) = game.received
    np.testing.assert_array_equal(received["asks"], np.float32([0.25, 0.5]))
    np.testing.assert_array_equal(received["answers"], np.float32([-0.5]))
    np.testing.assert_array_equal(received["listens"], np.float32([[0.1, 0.2], [0.3, 1.0]]))
    own = np.float32([[0.25, 0.5], [0.125, 0.75]])
    np.testing.assert_array_equal(envs.agent_views["asks"].joint_action(own), [[0.25, 0.5, 0, 0], [0.125, 0.75, 0, 0]])


def test_actions_of_another_kind_or_beyond_an_agents_own_are_rejected() -> None:
    with pytest.raises(ConfigError, match="must be all Discrete or all of a Box; convert them in a wrapper"):
        make_envs(partial(Interview, "mixed"))
    envs = make_envs(Interview)
    envs.reset()
    with pytest.raises(BadEnvDataError, match=r"env 0 received action 4, and has 2 actions: use the action_mask"):
        envs.step(np.array([4, 0, 4]), envs.ready)


# ---- groups of agents ----


def test_groups_and_single_agents_with_actions_of_different_kinds_are_rejected() -> None:
    two: Any = group_agents({"team": ["c", "a"]})
    with pytest.raises(ConfigError, match="must be all Discrete or all of a Box"):
        make_envs(Elimination, wrappers=[two])


def test_a_team_of_all_agents_is_one_row() -> None:
    wrapper: Any = group_agents({"team": ["left", "right", "third"]})
    game, ledger = TaggedGame(0), Ledger()
    envs = make_envs(lambda: game, wrappers=[wrapper])
    assert envs.agents == ("team",)
    assert isinstance(envs.action_space, gym.spaces.MultiDiscrete)
    assert envs.action_space.nvec.tolist() == [3, 3, 3]
    stats = Collector(Still([0, 1, 2]), envs, ledger).collect(n_episode=len(PLANS))
    log = game.log
    rows, at = ledger.rows(), 0
    for episode in range(len(PLANS)):
        plan = plan_of(0, episode)
        for step in range(length(0, episode)):
            acting = [
                agent
                for agent, name in enumerate(AGENTS)
                if any(start <= step < end for start, end, _ in plan.get(name, []))
            ]
            assert rows.reward[at] == sum(reward(0, agent, episode, step) for agent in acting)
            assert [log[episode, agent, step] for agent in acting] == acting
            seen = [rows.obs[agent][at].tolist()[:4] for agent in acting]
            assert seen == [[0, agent, episode, step] for agent in acting]
            is_last = step + 1 == length(0, episode)
            ends = {how for stints in plan.values() for *_, how in stints[-1:]}
            assert rows.terminated[at] == (is_last and ends <= {"terminated", "both"} and len(plan) == 3)
            assert rows.truncated[at] == (is_last and not rows.terminated[at])
            at += 1
    assert at == len(rows.reward)
    assert stats.episode_lengths == tuple(length(0, episode) for episode in range(len(PLANS)))


def test_a_group_that_cannot_be_is_rejected() -> None:
    for groups in ({"team": []}, {"team": ["a", "x"]}, {"one": ["a"], "two": ["a"]}, {"b": ["a", "c"]}):
        wrapper: Any = group_agents(groups)
        with pytest.raises(ConfigError, match=r"group_agents: group '\w+' has members .*, and the game has agents"):
            make_envs(Elimination, wrappers=[wrapper])


# ---- names of agents in events and videos ----


def test_an_agent_that_is_observed_after_others_starts_its_episode_once() -> None:
    envs = make_envs(TicTacToe, 2, seed=1)
    collector = Collector(random_player(envs), envs)
    events: list[tuple[str, int]] = []
    note = one_by_one(lambda event, episode: events.append((event, episode.env_id)))
    collector.events = EpisodeEvents(envs.n, note, ["on_episode_created", "on_episode_start"])
    collector.collect(n_episode=4)
    created = [env_id for event, env_id in events if event == "on_episode_created"]
    assert len(created) == 8
    assert [env_id for event, env_id in events if event == "on_episode_start"] == created


def test_a_game_has_one_video_and_its_episodes_name_their_agents(tmp_path: Path) -> None:
    pytest.importorskip("imageio_ffmpeg")
    seen: list[str] = []

    class Look(tk.Callback):
        def on_episode_end(self, trainer: tk.Trainer, episode: tk.collector.Episode) -> None:
            seen.append(episode.agent)

    envs = make_envs(TicTacToe, 2, seed=1)
    policy = tk.DQNPolicy.for_envs(envs, hidden=(8,))
    video = tk.callbacks.RecordVideo(tmp_path, of="training", n_episode=2)
    trainer = tk.OffpolicyTrainer(
        *(policy, tk.Collector(policy, envs, tk.ReplayBuffer(100))),
        max_epoch=1,
        step_per_epoch=40,
        batch_size=8,
        seed=1,
        callbacks=[video, Look()],
    )
    trainer.run()
    assert sorted(path.name for path in tmp_path.glob("*.mp4")) == [f"step-{0:09d}-episode-{n}.mp4" for n in (0, 1)]
    assert b"game 0: cross, nought" in (tmp_path / "step-000000000-episode-0.mp4").read_bytes()
    assert set(seen) == {"cross", "nought"}


def test_an_info_of_no_agent_is_in_the_infos_of_all() -> None:
    game = DictGame(Meetings())
    fine, wet = ({"__common__": {"weather": weather}} for weather in ("fine", "wet"))
    assert game.reset(seed=1, options=None).result[1] == {0: {"first": 1, **fine}, 1: fine, 2: fine}
    assert game.step({0: 0, 1: 0, 2: 0}).result[4] == {0: wet, 1: wet, 2: wet}


def test_an_episode_has_the_info_of_no_agent() -> None:
    seen = []

    class Weather(tk.Callback):
        def on_episode_step(self, trainer: Any, episode: Any) -> None:
            seen.append((episode.agent, episode.info["__common__"]["weather"]))

    envs = tk.make_envs(Meetings, 1, seed=1)
    policies = {name: tk.DQNPolicy.for_envs(envs, hidden=(4,), device="cpu") for name in envs.agents}
    buffer = tk.MultiAgentBuffer({name: tk.ReplayBuffer(100) for name in policies})
    collector = tk.Collector(tk.MultiAgentPolicy(policies), envs, buffer)
    options: dict[str, Any] = {"max_epoch": 1, "step_per_epoch": 12, "batch_size": 4, "verbose": False}
    tk.OffpolicyTrainer(collector.policy, collector, callbacks=Weather(), **options).run()
    assert {"0", "1"} <= {agent for agent, _ in seen}
    assert {weather for _, weather in seen} == {"wet"}
