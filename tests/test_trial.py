"""A trial: ways take turns, a few times each, and the quickest is stayed with."""

from collections.abc import Mapping, Sequence

from hypothesis import given
from hypothesis import strategies as st

from trainkit.trial import Trial


def tried(took: Mapping[str, Sequence[float]], **options: int) -> tuple[Trial[str], list[str]]:
    """Let ways take so many seconds, one after another, till the trial is over; return whose turns they were."""
    trial, turns, left = Trial(list(took), **options), [], {way: list(seconds) for way, seconds in took.items()}
    while not trial.is_over:
        turns.append(trial.next)
        trial.add(left[trial.next].pop(0))
    return trial, turns


def test_ways_take_turns_and_the_quickest_is_stayed_with() -> None:
    trial, turns = tried({"a": [3.0] * 9, "b": [1.0] * 9, "c": [2.0] * 9})
    assert turns == ["a", "b", "c"] * 9
    assert trial.next == "b"


def test_one_slow_turn_decides_nothing() -> None:
    trial, _ = tried({"a": [1.0, 1.0, 100.0, 1.0, 1.0, 100.0, 1.0, 1.0, 1.0], "b": [2.0] * 9})
    assert trial.next == "a"


def test_an_earlier_way_is_left_for_a_clear_gain_alone() -> None:
    assert tried({"a": [1.0] * 9, "b": [0.96] * 9})[0].next == "a"
    assert tried({"a": [1.0] * 9, "b": [0.94] * 9})[0].next == "b"


def test_the_first_turns_may_not_count() -> None:
    slow_at_first = {"a": [1.0] * 5, "b": [100.0, 100.0, 0.1, 0.1, 0.1]}
    trial, turns = tried(slow_at_first, n_tries=3, n_unmeasured=2)
    assert len(turns) == 10
    assert trial.next == "b"
    assert str(trial) == "1e+03 ms on a, 100 ms on b"


def test_a_single_way_is_its_own_best() -> None:
    assert tried({"a": [1.0]}, n_tries=1)[0].next == "a"


@given(st.lists(st.lists(st.integers(1, 1000), min_size=3, max_size=3), min_size=1, max_size=5))
def test_no_later_way_is_clearly_quicker_than_the_one_stayed_with(took: list[list[int]]) -> None:
    trial, _ = tried({str(way): [float(t) for t in seconds] for way, seconds in enumerate(took)}, n_tries=3)
    middle = [sorted(seconds)[1] for seconds in took]
    assert min(middle) >= 0.95 * middle[int(trial.next)]
