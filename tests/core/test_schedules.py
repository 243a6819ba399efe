"""Schedules hold at their knots, between them and past them."""

import json
from typing import Any

import numpy as np
import pytest
from gymnasium import spaces
from hypothesis import given
from hypothesis import strategies as st

import trainkit as tk
from tests.helpers.learning import Spaces as LearnerSpaces
from tests.trainer.toys import make_trainer
from trainkit.core.config import from_plain, to_plain
from trainkit.core.errors import ConfigError
from trainkit.core.schedules import Constant, Linear, Piecewise, Schedule, as_schedule

BOX_ACTIONS = LearnerSpaces(action_space=spaces.Box(-1.0, 1.0, (2,), np.float32))


def test_a_decay_by_hand() -> None:
    epsilon = Piecewise([(0, 1.0), (100, 0.5), (1100, 0.0)])
    values = {0: 1.0, 1: 0.995, 50: 0.75, 100: 0.5, 101: 0.4995, 600: 0.25, 1099: 0.0005, 1100: 0.0, 10**12: 0.0}
    assert {step: epsilon(step) for step in values} == pytest.approx(values)


@given(st.lists(st.tuples(st.integers(1, 1000), st.floats(-1e6, 1e6)), min_size=1, max_size=6), st.integers(0, 10_000))
def test_knots_are_exact_and_what_lies_between_them_lies_between_their_values(
    gaps: list[tuple[int, float]], step: int
) -> None:
    steps = [sum(gap for gap, _ in gaps[1 : place + 1]) for place in range(len(gaps))]
    knots = [(at, value) for at, (_, value) in zip(steps, gaps, strict=True)]
    schedule = Piecewise(knots)
    assert [schedule(at) for at in steps] == [value for _, value in knots]
    before = [knot for knot in knots if knot[0] <= step][-1]
    after = next((knot for knot in knots if knot[0] > step), before)
    low, high = sorted([before[1], after[1]])
    assert low - 1e-6 <= schedule(step) <= high + 1e-6


def test_a_schedule_steps_down_at_once_between_neighbouring_steps() -> None:
    lr = Piecewise([(0, 1e-3), (999, 1e-3), (1000, 1e-4)])
    assert [lr(step) for step in (0, 998, 999, 1000, 1001)] == [1e-3, 1e-3, 1e-3, 1e-4, 1e-4]


def test_a_constant_is_the_same_at_every_step() -> None:
    assert Constant(0.25)(0) == Constant(0.25)(10**15) == 0.25


@pytest.mark.parametrize(
    ("knots", "message"),
    [
        ([], r"Piecewise needs knots \(step, value\), at least one, got \[\]"),
        ([1, 2], r"Piecewise needs knots \(step, value\), at least one, got \[1, 2\]"),
        ([(0, 1, 2)], r"Piecewise needs knots \(step, value\), at least one, got \[\(0, 1, 2\)\]"),
        ([(5, 1.0)], r"Piecewise's first knot must be at step 0, got step 5: begin with \(0, 1.0\)"),
        ([(0, 1.0), (10, 0.5), (10, 0.1)], r"Piecewise's steps must grow strictly, got \[0, 10, 10\]: give each once"),
        ([(0, 1.0), (0.5, 0.1)], r"Piecewise.knots step must be a whole number >= 0, got 0.5"),
        ([(0, float("nan"))], r"Piecewise.knots value must be in \(-inf, inf\), got nan"),
        ([(0, "1.0")], r"Piecewise.knots value must be in \(-inf, inf\), got '1.0'"),
    ],
)
def test_knots_that_cannot_work_are_rejected(knots: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        Piecewise(knots)


def by_step(step: int) -> float:
    return step / 10


@pytest.mark.parametrize(
    ("value", "at_5"),
    [
        (0.5, 0.5),
        (1, 1.0),
        ([(0, 0.0), (10, 1.0)], 0.5),
        ([[0, 0.0], [10, 1.0]], 0.5),
        (Constant(0.25), 0.25),
        (by_step, 0.5),
    ],
)
def test_numbers_knots_and_functions_become_schedules(value: Any, at_5: float) -> None:
    schedule = as_schedule("Owner", "beta", value, low=0, high=1)
    assert isinstance(schedule, Schedule)
    assert schedule(5) == at_5


@pytest.mark.parametrize(
    ("value", "came"),
    [
        (1.5, "1.5"),
        (Constant(1.5), "1.5"),
        ([(0, 0.0), (10, 1.5)], "1.5"),
        ("0.5", "'0.5', a str: give a number"),
        (None, "None"),
        (True, "True"),
    ],
)
def test_a_value_outside_its_range_is_rejected_in_its_owners_name(value: Any, came: str) -> None:
    with pytest.raises(ConfigError, match=rf"^Owner.beta must be in \[0, 1\], got {came}$"):
        as_schedule("Owner", "beta", value, low=0, high=1)


class TestAFunction:
    @pytest.mark.parametrize("value", [-1.0, 7, float("nan"), float("inf"), None, "0.5", True, [0.5]])
    def test_a_value_outside_the_range_at_step_0_is_rejected_at_once(self, value: Any) -> None:
        with pytest.raises(
            ConfigError, match=r"^Owner.beta must be in \[0, 1\], got .* at step 0 from the schedule <fun"
        ):
            as_schedule("Owner", "beta", lambda step: value, low=0, high=1)

    @pytest.mark.parametrize("value", [-1.0, 7, float("nan"), float("-inf"), None])
    def test_a_value_outside_the_range_is_rejected_at_the_step_that_has_it(self, value: Any) -> None:
        schedule = as_schedule("Owner", "beta", lambda step: 0.5 if step < 3 else value, low=0, high=1)
        assert [schedule(step) for step in range(3)] == [0.5, 0.5, 0.5]
        with pytest.raises(
            ConfigError, match=r"^Owner.beta must be in \[0, 1\], got .* at step 3 from the schedule <fun"
        ):
            schedule(3)

    @pytest.mark.parametrize("value", [0, 1, 0.0, 1.0, np.float32(0.25), np.float64(0.75), np.int64(1)])
    def test_a_value_in_the_range_ends_included_is_a_float(self, value: Any) -> None:
        number = as_schedule("Owner", "beta", lambda step: value, low=0, high=1)(5)
        assert type(number) is float
        assert number == value

    def test_an_open_lower_end_is_open_and_an_infinite_upper_end_too(self) -> None:
        schedule = as_schedule(
            "Owner", "lr", lambda step: [1e-3, 1e300, 0.0, float("inf")][step], low=0, above_low=True
        )
        assert [schedule(0), schedule(1)] == [1e-3, 1e300]
        for step in (2, 3):
            with pytest.raises(ConfigError, match=rf"^Owner.lr must be in \(0, inf\), got .* at step {step} "):
                schedule(step)

    def test_one_that_raises_or_takes_no_step_is_rejected_in_its_owners_name(self) -> None:
        for broken in (lambda: 0.5, lambda step: 1 / step):
            with pytest.raises(
                ConfigError, match=r"^Owner.beta: the schedule <function .* raised .*Error: .* at step 0"
            ):
                as_schedule("Owner", "beta", broken, low=0, high=1)

    def test_checked_for_another_owner_it_is_called_once_and_has_that_owners_range(self) -> None:
        calls: list[int] = []
        once = as_schedule("First", "a", lambda step: float(calls.append(step) or 2.0), low=0)
        again = as_schedule("Second", "b", once, low=0, high=5)
        calls.clear()
        assert again(7) == 2.0
        assert calls == [7]
        with pytest.raises(ConfigError, match=r"^Third.c must be in \[0, 1\], got 2.0 at step 0"):
            as_schedule("Third", "c", once, low=0, high=1)

    @pytest.mark.parametrize(
        ("owner", "make"),
        [
            ("Adam.lr", lambda fn: tk.Adam(fn)),
            ("EpsilonGreedy.epsilon", lambda fn: tk.EpsilonGreedy(fn)),
            ("SoftQ.temperature", lambda fn: tk.SoftQ(fn)),
            ("PrioritizedReplayBuffer.beta", lambda fn: tk.PrioritizedReplayBuffer(10, beta=fn)),
            ("Target.tau", lambda fn: tk.Target(every=1, tau=fn)),
            ("PPOPolicy.clip_ratio", lambda fn: tk.PPOPolicy.for_envs(LearnerSpaces(), clip_ratio=fn)),
            ("PPOPolicy.entropy_weight", lambda fn: tk.PPOPolicy.for_envs(LearnerSpaces(), entropy_weight=fn)),
            ("A2CPolicy.entropy_weight", lambda fn: tk.A2CPolicy.for_envs(LearnerSpaces(), entropy_weight=fn)),
            ("SACPolicy.temperature", lambda fn: tk.SACPolicy.for_envs(BOX_ACTIONS, temperature=fn)),
            pytest.param("Target.tau", lambda fn: tk.SACPolicy.for_envs(BOX_ACTIONS, tau=fn), id="of SAC"),
            pytest.param("Adam.lr", lambda fn: tk.presets.dqn("CartPole-v1", max_epoch=1, lr=fn), id="of a preset"),
        ],
    )
    @pytest.mark.parametrize("bad", [-1.0, float("nan")])
    def test_every_option_that_takes_one_checks_it(self, owner: str, make: Any, bad: float) -> None:
        with pytest.raises(ConfigError, match=rf"{owner} must be in .*, got {bad} at step 0 from the schedule"):
            make(lambda step: bad)

    @pytest.mark.parametrize(
        ("message", "parts"),
        [
            (r"Adam.lr must be in \[0, inf\), got -1.0 at step \d+", {"lr": lambda step: 1e-3 if step < 20 else -1.0}),
            (
                r"EpsilonGreedy.epsilon must be in \[0, 1\], got nan at step 20",
                {"exploration": tk.EpsilonGreedy(lambda step: 0.5 if step < 20 else float("nan"))},
            ),
        ],
    )
    def test_a_run_ends_at_the_step_whose_value_is_wrong(self, message: str, parts: dict[str, Any]) -> None:
        with pytest.raises(ConfigError, match=message):
            make_trainer(policy=parts).run()


def test_an_open_lower_end_is_open() -> None:
    with pytest.raises(ConfigError, match=r"^Owner.lr must be in \(0, inf\), got 0.0$"):
        as_schedule("Owner", "lr", [(0, 1e-3), (100, 0.0)], low=0, above_low=True)


@pytest.mark.parametrize("value", [0.5, [(0, 0.0), (10, 1.0)]])
def test_a_schedule_survives_json(value: Any) -> None:
    plain = json.loads(json.dumps(to_plain(as_schedule("Owner", "beta", value, low=0))))
    again = as_schedule("Owner", "beta", from_plain(plain), low=0)
    assert again(5) == 0.5
    assert to_plain(again) == plain


def test_a_function_is_not_plain() -> None:
    with pytest.raises(TypeError, match="is not a part that trainkit exports"):
        to_plain(by_step)


class TestLinear:
    def test_over_a_run_it_falls_from_start_to_end_and_holds(self) -> None:
        epsilon = Linear(1.0, 0.0).over(1000)

        assert [epsilon(step) for step in (0, 250, 1000, 5000)] == [1.0, 0.75, 0.0, 0.0]

    def test_over_a_share_of_the_run_it_is_done_early(self) -> None:
        epsilon = Linear(1.0, 0.5, share=0.1).over(1000)

        assert [epsilon(step) for step in (0, 50, 100, 101)] == [1.0, 0.75, 0.5, 0.5]

    def test_it_may_rise(self) -> None:
        assert Linear(0.4, 1.0).over(10)(5) == pytest.approx(0.7)

    @pytest.mark.parametrize(("share", "n_steps"), [(1e-6, 100), (0.5, 1), (1.0, 1), (1.0, 0)])
    def test_over_less_than_a_step_it_is_done_at_the_first(self, share: float, n_steps: int) -> None:
        schedule = Linear(1.0, 0.5, share).over(n_steps)

        assert [schedule(step) for step in (0, 1, 2)] == [1.0, 0.5, 0.5]

    @pytest.mark.parametrize(
        ("make", "message"),
        [
            (lambda: Linear(1.0, 0.5, 0.0), r"^Linear.share must be in \(0, 1\], got 0.0$"),
            (lambda: Linear(1.0, 0.5, 1.5), r"^Linear.share must be in \(0, 1\], got 1.5$"),
            (lambda: Linear(float("nan"), 0.5), r"^Linear.start must be in \(-inf, inf\), got nan$"),
            (lambda: Linear(1.0, "0"), r"^Linear.end must be in \(-inf, inf\), got '0', a str: give a number$"),
        ],
    )
    def test_numbers_that_cannot_work_are_rejected(self, make: Any, message: str) -> None:
        with pytest.raises(ConfigError, match=message):
            make()

    def test_everything_wrong_is_said_at_once(self) -> None:
        with pytest.raises(ConfigError) as caught:
            Linear(float("inf"), float("nan"), 0)

        assert str(caught.value).count("Linear.") == 3

    def test_by_itself_it_is_no_schedule_and_rejected_with_what_to_do(self) -> None:
        with pytest.raises(ConfigError) as caught:
            as_schedule("EpsilonGreedy", "epsilon", Linear(1.0, 0.05), low=0, high=1)

        reported = "EpsilonGreedy.epsilon cannot know the length of the run: give Linear(1.0, 0.05).over("
        assert str(caught.value).startswith(reported)

    def test_over_a_run_its_values_are_held_to_the_range(self) -> None:
        with pytest.raises(ConfigError, match=r"^Owner.beta must be in \[0, 1\], got 1.5$"):
            as_schedule("Owner", "beta", Linear(0.5, 1.5).over(10), low=0, high=1)
