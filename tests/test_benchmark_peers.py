"""Every side of the comparison of speed does the same work, and the page shows what was measured."""

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch

from benchmarks.pages import ROOT
from benchmarks.sides import plain as side_plain
from benchmarks.sides import side
from benchmarks.sides.trainkit import Ours
from benchmarks.sides.work import COLLECT, EPISODE, PLAIN, PLAIN_FAST, WORKS, Work, make_env
from benchmarks.speed import peers
from benchmarks.speed.peers import OURS, Row

pytestmark = pytest.mark.global_rng  # the plain side draws as a plain script does

SMALL = replace(WORKS["DQN 64-64, batch 32, 1 environment, an update every 4 steps"], block=40, warmup=80)


def plain(work: Work, *, is_fast: bool = False) -> Any:
    return side_plain.make(work, is_fast=is_fast)


# ---- the same work ----


@pytest.mark.parametrize("name", [name for name, work in WORKS.items() if PLAIN in work.sides])
def test_the_parameters_that_are_counted_from_sizes_are_those_of_the_networks(name: str) -> None:
    assert plain(WORKS[name]).settings()["parameters"] == WORKS[name].n_parameters


@pytest.mark.parametrize("work", WORKS.values(), ids=list(WORKS))
def test_a_workload_has_the_sizes_of_its_environment(work: Work) -> None:
    if work.env == "HalfCheetah-v5":
        pytest.importorskip("mujoco")
    env = make_env(work)
    actions = env.action_space
    assert env.observation_space.shape == work.shape
    assert work.n_outputs == (actions.n if isinstance(actions, gym.spaces.Discrete) else actions.shape[0])


@pytest.mark.parametrize("learner", ["td3", "tqc"])
def test_a_relative_of_sac_does_the_work_of_its_workload(learner: str, one_thread: None) -> None:
    work: Any = replace(WORKS[f"{learner.upper()} 256-256, batch 256"], block=4, warmup=300, hidden=(8, 8))
    own: Any = Ours(work)
    own.collect(work.warmup)
    assert side.measure(own, work)["done"] == work.done
    assert own.settings()["parameters"] == work.n_parameters


@pytest.mark.parametrize("make", [Ours, plain])
@pytest.mark.parametrize(
    "work",
    [
        SMALL,
        replace(WORKS["Prioritized double DQN, 3-step, 128-128-128, batch 64"], block=40, warmup=200),
        replace(WORKS["DQN on images of 10x10x4, batch 32"], block=16, warmup=40),
        replace(WORKS["SAC 64-64, batch 64"], block=4, warmup=70),
        replace(WORKS["PPO 64-64, batch 256"], warmup=16),
        replace(WORKS["Collecting, 8 environments"], block=40, warmup=8),
    ],
    ids=["dqn", "prioritized", "images", "sac", "ppo", "collecting"],
)
def test_a_block_has_the_steps_and_updates_of_its_workload(make: Any, work: Work, one_thread: None) -> None:
    own = make(work)
    own.collect(work.warmup)
    assert side.measure(own, work)["done"] == work.done
    assert side.count_calls(own, work)["calls"] == work.block // work.n_envs


@pytest.fixture
def one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


class Answers:
    """A side that answers what it is given."""

    def __init__(self, calls: int) -> None:
        self._calls = calls

    def ask(self, word: str, wanted: Any, may_miss: Any = None) -> dict[str, Any]:
        return {"calls": self._calls, "version": "1"}


def test_a_side_that_does_not_call_its_network_stops_everything() -> None:
    name = "DQN 64-64, batch 32"
    n_vector_steps = WORKS[name].block // WORKS[name].n_envs
    for n_calls in (n_vector_steps, int(0.9 * n_vector_steps)):
        sides: Any = {OURS: Answers(n_calls)}
        assert peers.count_calls(name, sides)["calls"] == {OURS: n_calls}
    for n_calls in (0, int(0.7 * n_vector_steps), 2 * n_vector_steps):
        sides = {OURS: Answers(n_calls)}
        with pytest.raises(SystemExit, match="called its network"):
            peers.count_calls(name, sides)


def test_episodes_of_images_have_the_length_of_all_others() -> None:
    env = gym.make("benchmarks/Images-v0", shape=(4, 10, 10))
    env.reset()
    assert [env.step(0)[3] for _ in range(EPISODE)] == [False] * (EPISODE - 1) + [True]
    assert gym.spec("MountainCar-v0").max_episode_steps == gym.spec("Pendulum-v1").max_episode_steps == EPISODE


# ---- the plain loop ----


def test_n_steps_become_one_transition_and_shorter_ones_where_an_episode_ends() -> None:
    n_step = side_plain.NStep(3, 0.5)
    rows = []
    for i in range(6):  # the observation is the row's index, rewards are powers of ten, row 3 terminates
        end = np.array([i == 3])
        obs, reward = np.array([[i]]), np.array([10.0**i], np.float32)
        rows += [
            [int(obs[0, 0]), float(total[0]), int(next_obs[0, 0]), float(discount[0])]
            for obs, _, total, next_obs, discount in n_step.rows(obs, np.array([0]), reward, obs + 1, end, end)
        ]
    assert rows == [[0, 31.0, 3, 0.125], [1, 310.0, 4, 0.0], [2, 600.0, 4, 0.0], [3, 1000.0, 4, 0.0]]


def test_the_sum_tree_samples_rows_as_often_as_their_priorities_say() -> None:
    work = replace(WORKS["Prioritized double DQN, 3-step, 128-128-128, batch 64"], capacity=6)
    replay = side_plain.Replay(work, np.zeros((1, 2), np.float32), np.zeros(1, np.int64))
    replay.add(np.zeros((4, 2)), np.zeros(4), np.zeros(4), np.zeros((4, 2)), np.zeros(4))
    replay.update_priorities(np.arange(4), np.array([1.0, 0.0, 8.0, 27.0]))
    rows, weights = replay.sample(20_000, np.random.default_rng(0))
    priorities = (np.array([1.0, 0.0, 8.0, 27.0]) + 1e-6) ** 0.6
    expected = priorities / priorities.sum()
    np.testing.assert_allclose(np.bincount(rows, minlength=4) / 20_000, expected, atol=0.01)
    of_weight = {row: float(weights[rows == row][0]) for row in (0, 3)}
    assert of_weight[0] / of_weight[3] == pytest.approx((expected[0] / expected[3]) ** -0.4, rel=1e-3)


# ---- the page ----


def row(name: str, **rates: list[float]) -> Row:
    n_rounds = len(next(iter(rates.values())))
    rounds = [{title: own[i] for title, own in rates.items() if own[i] > 0} for i in range(n_rounds)]
    known = {"commit": "1234567", "command": "make bench-peers", "machine": "a machine"}
    return {"name": name, **known, "rounds": rounds, **{key: dict.fromkeys(rates, 1) for key in ("version", "calls")}}


def test_a_ratio_is_the_median_of_rounds_in_which_both_took_part() -> None:
    found = row("DQN 64-64, batch 32", trainkit=[10.0, 40.0, 20.0], plain=[5.0, 10.0, 0.0])
    assert peers.ratios(found, PLAIN) == [2.0, 4.0]
    assert peers.ratio(found, PLAIN) == 3.0


def test_the_page_has_the_range_and_names_where_a_side_is_faster() -> None:
    rows = [
        row("DQN 64-64, batch 32", trainkit=[10.0], plain=[4.0]),
        row("DQN 256-256, batch 1,024", trainkit=[9.0], plain=[10.0]),
        row("Collecting, 1 environment", trainkit=[30.0], plain=[10.0]),
    ]
    page = peers.report(rows)
    ranges = "| plain | **0.90** | DQN 256-256, batch 1,024 | 2.50 | DQN 64-64, batch 32 | 3.00 | 3.00 |"
    assert ranges in page
    assert "Not faster than every side on: DQN 256-256, batch 1,024 (plain)." in page
    assert "Measured at commit `1234567`." in page


def test_the_published_page_and_the_readme_say_what_was_measured() -> None:
    rows = peers.kept(ROOT / "benchmarks" / "results" / "peers.jsonl")
    assert [row["name"] for row in rows] == list(WORKS)
    assert (ROOT / "benchmarks" / "results" / "peers.md").read_text() == peers.report(rows)
    assert peers.front_page(rows) in (ROOT / "README.md").read_text()


def test_every_workload_is_measured_by_a_side_that_exists() -> None:
    assert {title for work in WORKS.values() for title in work.sides} <= {title for title, _ in peers.COLUMNS.values()}
    assert [name for name, work in WORKS.items() if work.block % work.n_envs] == []
    assert peers.COLUMNS[PLAIN_FAST] == (PLAIN, True)
    assert {work.n_updates for work in WORKS.values() if work.rate == COLLECT} == {0}
