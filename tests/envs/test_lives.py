"""A lost life ends an episode of the learner's; the game continues, and games are counted."""

from functools import partial
from typing import Any

import numpy as np
import pytest
from gymnasium.vector import AutoresetMode
from numpy.typing import NDArray

from tests.helpers.doubles import Ledger, Player, Still
from tests.helpers.scripted_env import OBS, ScriptedEnv, ScriptedVectorEnv, answer
from tests.helpers.tagged import TaggedEnv, decode, is_lost, is_terminated, length, lives, reward, spawn
from tests.helpers.truth import (
    IN_PROCESS,
    IN_PROCESSES,
    assert_batch_is_true,
    assert_nothing_is_missing,
    assert_rows_are_real,
    tagged_envs,
)
from trainkit.buffer import ReplayBuffer
from trainkit.collector import Collector
from trainkit.core.data import ActOutput, Horizon, Obs
from trainkit.core.errors import BadEnvDataError
from trainkit.core.stats import CollectStats
from trainkit.envs import Envs, make_envs

every_way_here = pytest.mark.parametrize("way", IN_PROCESS)
forks = pytest.mark.filterwarnings("ignore:.*multi-threaded:DeprecationWarning")


class Witness(Player):
    """Keep every observation acted on: {(environment, episode, step): its tags}."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: dict[tuple[int, ...], NDArray[np.int64]] = {}

    def act(self, obs: Obs, **amount: Any) -> ActOutput:
        tags = decode(obs)
        self.seen.update((tuple(one.reshape(-1, 4)[-1, :3].tolist()), one) for one in tags)
        return super().act(obs, **amount)


def collect_and_check(way: str, n: int, n_step: int, **options: Any) -> None:
    """Collect in pieces, with a forced reset now and then, and whole games at the end."""
    envs, ledger = tagged_envs(way, n, lives_key="lives", **options), Ledger()
    collector = Collector(Player(), envs, ledger)
    while len(ledger) < n_step:
        piece = 1 + (7 * len(ledger) + n_step) % 90
        collector.collect(n_step=piece)
        if piece % 3 == 0:
            collector.reset()
    collector.collect(n_episode=3 * n - 1)
    rows = ledger.rows()
    n_cut = assert_rows_are_real(rows, n, counts_lives=True)
    assert 0 < n_cut <= n * len(ledger.cuts)
    assert_nothing_is_missing(rows, envs.call("log"), has_extra_steps=way != "sync")
    envs.close()


@pytest.mark.one_of_each
@every_way_here
@pytest.mark.parametrize("options", [{}, {"form": "dict", "stack": 3, "mask_key": "legal"}])
def test_a_lost_life_terminates_the_stored_row_and_no_game(way: str, options: dict[str, Any]) -> None:
    collect_and_check(way, 5, 2_000, **options)


@pytest.mark.parametrize("way", IN_PROCESSES)
@forks
def test_a_life_lost_in_another_process_terminates_the_stored_row_and_no_game(way: str) -> None:
    collect_and_check(way, 2, 300, stack=3)


@pytest.mark.one_of_each
@every_way_here
@pytest.mark.parametrize("stack", [1, 3])
def test_no_window_that_is_sampled_reaches_across_a_lost_life_or_bootstraps_from_it(way: str, stack: int) -> None:
    envs, buffer = tagged_envs(way, 4, "masked", stack=stack, lives_key="lives"), ReplayBuffer(101, seed=1)
    collector = Collector(Player(), envs, buffer)
    n_lost = 0
    for round_ in range(12):
        collector.collect(n_step=1 + 13 * round_ % 90)
        if round_ % 7 == 3:
            collector.reset()
        for n_step in (1, 3, 5):
            batch = buffer.sample(32, horizon=Horizon(n_step, gamma=0.5))
            assert_batch_is_true(batch, envs.call("log"), n_step, gamma=0.5, counts_lives=True)
            n_lost += int((batch.discount == 0).sum())
    assert n_lost > 150


@every_way_here
def test_the_discount_is_zero_exactly_at_lost_lives_and_terminated_games(way: str) -> None:
    buffer = ReplayBuffer(400, seed=1)
    Collector(Player(), tagged_envs(way, 3, lives_key="lives"), buffer).collect(n_step=300)
    batch = buffer.sample(2_000, horizon=Horizon(1, gamma=0.5))
    env, episode, step, _ = decode(batch.obs).T
    lost, ended = is_lost(env, episode, step), step + 1 == length(env, episode)
    no_future = lost | (ended & is_terminated(env, episode))
    np.testing.assert_array_equal(batch.discount, np.where(no_future, 0.0, 0.5))
    assert 0 < (lost & ended & ~is_terminated(env, episode)).sum() < lost.sum()  # both at once, and one alone


@pytest.mark.one_of_each
@every_way_here
@pytest.mark.parametrize("form", ["array", "dict", "masked"])
def test_a_stack_read_from_the_buffer_is_the_stack_that_was_acted_on(way: str, form: Any) -> None:
    witness, buffer = Witness(), ReplayBuffer(4_000, seed=1)
    envs = tagged_envs(way, 3, form, stack=3, lives_key="lives")
    Collector(witness, envs, buffer).collect(n_step=600)
    batch = buffer.sample(2_000, horizon=Horizon(1))
    stacks = decode(batch.obs)
    np.testing.assert_array_equal(stacks, [witness.seen[tuple(stack[-1, :3])] for stack in stacks])
    begun = [(env, episode, step) for env, episode, step in witness.seen if step and spawn(env, episode, step) == step]
    assert len(begun) > 50
    for tag in begun:  # nothing of the life before is seen
        assert np.ptp(witness.seen[tag], axis=0).max() == 0


def test_the_step_that_loses_a_life_still_shows_where_it_led() -> None:
    envs = tagged_envs("sync", 1, stack=3, lives_key="lives")
    Collector(Player(), envs, ledger := Ledger()).collect(n_step=200)
    rows = ledger.rows()
    steps = decode(rows.next_obs)[rows.terminated, :, 2]
    np.testing.assert_array_equal(steps[:, 1], np.maximum(steps[:, 2] - 1, 0))


@every_way_here
def test_returns_lengths_and_counts_are_of_whole_groups(way: str) -> None:
    collector = Collector(Player(), tagged_envs(way, 3, lives_key="lives"))
    together = CollectStats.merge([collector.collect(n_step=5) for _ in range(60)])
    assert together is not None
    logs = collector.envs.call("log")
    over = [(env, ep) for env, log in enumerate(logs) for ep, actions in log.items() if len(actions) == length(env, ep)]
    returns = [sum(reward(env, episode, step) for step in range(length(env, episode))) for env, episode in over]
    assert together.n_episode == collector.n_episode == len(over)
    assert together.returns.mean == pytest.approx(np.mean(returns))
    assert together.lengths.mean == pytest.approx(np.mean([length(*one) for one in over]))


@pytest.mark.parametrize(("n_episode", "quota"), [(10, [3, 3, 2, 2]), (3, [1, 1, 1, 0])])
@every_way_here
def test_a_quota_is_of_whole_groups(way: str, n_episode: int, quota: list[int]) -> None:
    ledger = Ledger()
    stats = Collector(Player(), tagged_envs(way, 4, lives_key="lives"), ledger).collect(n_episode=n_episode)
    played = [(env, episode) for env, n in enumerate(quota) for episode in range(n)]
    assert stats.n_episode == n_episode
    assert stats.n_step == len(ledger) == sum(length(*one) for one in played)
    assert assert_rows_are_real(ledger.rows(), 4, counts_lives=True) == 0


@every_way_here
def test_the_policy_receives_a_start_after_a_lost_life(way: str) -> None:
    player = Player()
    Collector(player, tagged_envs(way, 3, lives_key="lives")).collect(n_step=200)
    n_spawned = 0
    for call in player.calls:
        tags = [tuple(tag) for tag in call.tags[:, :3].tolist()]
        assert call.starts.tolist() == [spawn(*tag) == tag[2] for tag in tags]
        n_spawned += sum(step > 0 for (_, _, step), begins in zip(tags, call.starts, strict=True) if begins)
    assert n_spawned > 20


@every_way_here
def test_an_interrupted_collect_with_lives_continues_to_the_same_bits(way: str) -> None:
    def run(*interrupts: int) -> bytes:
        def interrupt() -> None:
            count.append(0)
            if len(count) in interrupts:
                raise KeyboardInterrupt

        count: list[int] = []
        ledger = Ledger()
        collector = Collector(Player(), tagged_envs(way, 3, lives_key="lives", stack=3), ledger)
        collector.between_steps = interrupt
        for _ in interrupts:
            with pytest.raises(KeyboardInterrupt):
                collector.resume() if collector.is_interrupted else collector.collect(n_step=101)
        collector.resume() if interrupts else collector.collect(n_step=101)
        rows = ledger.rows()
        return b"".join(column.tobytes() for column in rows[:-1])

    assert run() == run(1, 2, 3, 10, 25)


def test_lives_without_a_key_change_nothing() -> None:
    ledger = Ledger()
    Collector(Player(), tagged_envs("sync", 3, stack=3), ledger).collect(n_step=300)
    assert_rows_are_real(ledger.rows(), 3)


# ---- scripted lives ----


def counted(*counts: Any, **last: Any) -> Envs:
    """Make an environment 0 that keeps its 3 lives and an environment 1 with these, the first at the reset."""
    infos = [{} if count is None else {"lives": count} for count in counts]
    steps = [answer(info=info) for info in infos[1:-1]] + [answer(info=infos[-1], **last)]
    fine = {"lives": 3}
    first = partial(ScriptedEnv, resets=[(OBS, fine)], steps=[answer(info=fine)])
    return make_envs([first, partial(ScriptedEnv, resets=[(OBS, infos[0])], steps=steps)], lives_key="lives")


def play(envs: Envs, n_vector_step: int) -> list[Any]:
    envs.reset()
    return [envs.step(np.zeros(2, np.int64), envs.all_ids) for _ in range(n_vector_step)]


def test_a_life_gained_is_nothing_and_losing_it_again_is_something() -> None:
    outcomes = play(counted(3, 3, 4, 3, 3, 0, 2), 6)
    assert [outcome.terminated.tolist() for outcome in outcomes] == [[False, lost] for lost in (0, 0, 1, 0, 1, 0)]
    assert not any(outcome.over.any() or outcome.truncated.any() for outcome in outcomes)


@pytest.mark.parametrize("count", [np.int32(2), np.uint8(2), np.array(2)])
def test_lives_may_be_any_whole_number(count: Any) -> None:
    (outcome,) = play(counted(3, count), 1)
    assert outcome.terminated.tolist() == [False, True]


def test_a_life_lost_as_the_game_ends_drops_the_bootstrap_that_a_limit_alone_would_keep() -> None:
    for count, lost in ((2, True), (3, False)):
        (outcome,) = play(counted(3, count, truncated=True), 1)
        assert outcome.terminated.tolist() == [False, lost]
        assert outcome.over.tolist() == outcome.truncated.tolist() == [False, True]


@pytest.mark.parametrize(
    ("count", "got"),
    [
        (None, r"object \(\)"),
        (2.0, r"float64 \(\)"),
        ("2", r"<U1 \(\)"),
        ([2], r"int64 \(1,\)"),
        ([[2], [1, 2]], r"float64 \(0,\)"),
    ],
)
def test_lives_that_are_no_number_are_rejected_by_the_name_of_their_environment(count: Any, got: str) -> None:
    message = rf"^env 1: info\['lives'\] must be a whole number, in every reset and step, got {got} at episode 0 step"
    with pytest.raises(BadEnvDataError, match=rf"{message} 0, episode seed \d+$"):
        counted(count, 3).reset()
    with pytest.raises(BadEnvDataError, match=rf"{message} 1 \(action 0\), episode seed \d+$"):
        play(counted(3, count), 1)


def test_a_game_that_takes_its_last_info_with_it_lost_no_life() -> None:
    ended = np.array([False, True])
    infos = {"lives": np.array([3, 1]), "final_obs": np.zeros((2, 4), np.float32)}  # of the next game: ale-py's way
    vector_env = ScriptedVectorEnv(AutoresetMode.SAME_STEP, truncated=ended, infos=infos)
    vector_env.first = (vector_env.first[0], {"lives": np.array([3, 2])})
    ledger = Ledger()
    collector = Collector(Still(), make_envs(vector_env, lives_key="lives"), ledger)
    collector.collect(n_step=2)
    vector_env.answer |= {"truncated": ~ended & ended, "infos": {"lives": np.array([3, 0])}}
    collector.collect(n_step=2)
    np.testing.assert_array_equal(ledger.rows().truncated, [False, True, False, False])
    np.testing.assert_array_equal(ledger.rows().terminated, [False, False, False, True])


def test_the_rules_lose_lives_wherever_it_matters() -> None:
    env, episode = np.meshgrid(range(5), range(20), indexing="ij")
    last = length(env, episode) - 1
    assert (is_lost(env, episode, last) & ~is_terminated(env, episode)).any()
    assert (lives(env, episode, 0) != lives(env, episode - 1, last + 1)).any()
    assert TaggedEnv(0).reset()[1]["lives"] == lives(0, 0, 0)
