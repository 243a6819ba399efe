"""A side is held to the work it was given."""

import json
import os
import sys

import pytest

from benchmarks.measuring import Live, check, run

CORE = min(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else 0  # one that we may be pinned to


def side(**done: int) -> list[str]:
    """Return the command of a side that did this."""
    return [sys.executable, "-c", f"print({json.dumps({'done': done})!r})"]


def test_a_side_that_did_the_work_gives_what_it_printed() -> None:
    assert run(side(updates=5), CORE, {"updates": 5}) == {"done": {"updates": 5}}


@pytest.mark.parametrize("done", [{"updates": 4}, {}, {"updates": 5, "threads": 2}])
def test_a_side_that_did_other_work_stops_everything(done: dict[str, int]) -> None:
    with pytest.raises(SystemExit, match="the work is"):
        run(side(**done), CORE, {"updates": 5})


@pytest.mark.parametrize(("rows", "is_near"), [(91, True), (109, True), (90, False), (110, False)])
def test_only_counts_that_are_named_may_be_missed_and_only_by_so_much(rows: int, is_near: bool) -> None:
    wanted, may_miss = {"rows": 100, "updates": 5}, {"rows": 9}
    if is_near:
        check(["us"], {"done": {"rows": rows, "updates": 5}}, wanted, may_miss)
    else:
        with pytest.raises(SystemExit, match="the work is"):
            check(["us"], {"done": {"rows": rows, "updates": 5}}, wanted, may_miss)
    with pytest.raises(SystemExit, match="the work is"):
        check(["us"], {"done": {"rows": 100, "updates": 4}}, wanted, may_miss)


ECHO = """
import json, sys
print("a library says hello")
for line in sys.stdin:
    if line.strip() == "trouble":
        raise ValueError("of mine")
    print(json.dumps({"done": {"word": line.strip()}}), flush=True)
"""


def test_a_side_that_stays_answers_block_by_block() -> None:
    with Live([sys.executable, "-c", ECHO], CORE) as own, Live([sys.executable, "-c", ECHO], CORE) as other:
        for word in ("one", "two"):
            for live in (own, other):
                assert live.ask(word, {"word": word}) == {"done": {"word": word}}
        with pytest.raises(SystemExit, match="the work is"):
            own.ask("three", {"word": "four"})


def test_a_side_that_fails_says_why() -> None:
    with Live([sys.executable, "-c", ECHO], CORE) as live:
        with pytest.raises(SystemExit, match="ValueError: of mine"):
            live.ask("trouble", {})
        with pytest.raises(SystemExit, match="ValueError: of mine"):
            live.ask("again", {})
