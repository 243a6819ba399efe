"""The day on a GPU: its sides do the same work, it resumes where it stopped, and a rehearsal is never published."""

import copy
from pathlib import Path

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from benchmarks.gpu import __main__ as day
from benchmarks.gpu import page
from benchmarks.gpu.plain import LEARNERS, InGraph
from benchmarks.gpu.record import ROWS, MissingError, Piece, Record, Setup, Unit
from benchmarks.gpu.workloads import COUNTED_ROWS, WORKLOADS
from tests.pretend import PretendDevice

BY_NAME = {workload.name: workload for workload in WORKLOADS}


def setup_in(folder: Path) -> Setup:
    return Setup(device="cpu", is_rehearsal=True, out=folder, work=folder)


@pytest.mark.global_rng  # a plain loop's networks are drawn as torch draws them
@pytest.mark.parametrize("name", LEARNERS)
def test_the_plain_loop_trains_as_many_parameters_by_as_many_operations(name: str) -> None:
    workload = BY_NAME[name]
    learner = LEARNERS[name](workload, COUNTED_ROWS, "cpu")
    assert sum(one.numel() for part in learner.trained for one in part.parameters()) == workload.n_parameters()
    learner.update()
    with FlopCounterMode(display=False) as counter:
        learner.update()
    surplus = counter.get_total_flops() - workload.flops(COUNTED_ROWS)
    wasted = {"SAC, 256-256": 2 * COUNTED_ROWS * 2 * (23 * 256 + 256 * 256 + 256)}  # critics' gradients for the actor
    assert surplus == wasted.get(name, 0)


@pytest.mark.global_rng
@pytest.mark.parametrize("name", LEARNERS)
def test_a_plain_loop_in_a_graph_learns_as_without(name: str, taped: PretendDevice) -> None:
    plain = LEARNERS[name](BY_NAME[name], 4, str(taped.device))
    recorded = copy.deepcopy(plain)
    graph, rows = InGraph(recorded, compiled=False), [column.to(taped.device) for column in plain.rows()]
    for _ in range(3):  # the graph's warm-ups
        plain.learn(*rows)
    for _ in range(3):
        plain.update()
        graph.update()
    pairs = zip(plain.trained, recorded.trained, strict=True)
    weights = [[one for net in nets for one in net.parameters()] for nets in zip(*pairs, strict=True)]
    for own, other in zip(*weights, strict=True):
        assert own.isfinite().all()
        if name.startswith("DQN"):  # others draw noise, or the order of rows
            torch.testing.assert_close(own, other)


def test_the_operations_of_dqn_on_frames_are_those_of_its_layers() -> None:
    layers = ((20 * 20, 32, 4 * 8 * 8), (9 * 9, 64, 32 * 4 * 4), (7 * 7, 64, 64 * 3 * 3), (1, 512, 3136), (1, 6, 512))
    forward = sum(n_places * n_outputs * n_inputs for n_places, n_outputs, n_inputs in layers)
    first = 20 * 20 * 32 * 4 * 8 * 8  # whose input needs no gradient
    assert BY_NAME["DQN, Nature CNN"].flops(7) == 2 * 7 * (3 * forward + 2 * forward - first)


def test_units_resume_after_an_interruption_and_are_given_up_after_two(tmp_path: Path) -> None:
    done, tries = [], []

    def interrupted(left_s: float) -> None:
        tries.append(left_s)
        raise KeyboardInterrupt

    def failing(left_s: float) -> None:
        raise ValueError("no memory")

    def missing(left_s: float) -> None:
        raise MissingError("no peer")

    def working(left_s: float) -> dict[str, float]:
        done.append(left_s)
        return {"rate": 2.0}

    def growing(left_s: float) -> dict[str, float] | None:
        done.append(left_s)
        return {"rate": 3.0} if len(done) > 2 else None

    works = {"a": working, "b": missing, "c": failing, "d": interrupted, "e": growing}
    units = [Unit(name, work, 1.0) for name, work in works.items()]  # type: ignore[arg-type]
    piece = Piece("p", "Piece", lambda setup: units, lambda rows: iter(f"{row['unit']} {row['rate']}" for row in rows))
    setup = setup_in(tmp_path)

    def call() -> int:
        return day.measure(setup, [piece], float("inf"), "make gpu-day")

    assert call() == day.FAILED  # at c, so that another process continues
    for _ in range(2):
        with pytest.raises(KeyboardInterrupt):
            call()
    assert call() == call() == 0
    assert (len(tries), len(done)) == (2, 3)
    record = Record(tmp_path / ROWS)
    assert [row["unit"] for row in record.rows("p")] == ["a", "e"]
    text = page.page(setup, [piece], record)
    assert "a 2.0\ne 3.0\n" in text
    assert "- Piece, missing: no peer: b" in text
    assert "- Piece, failed: no memory: c" in text
    assert "- Piece, started, not finished: d" in text
    assert "Nothing is left." in day.summary(setup, [piece], record)


def test_a_line_that_a_kill_has_cut_is_left_out(tmp_path: Path) -> None:
    path = tmp_path / ROWS
    Record(path).add("p", "a", "done", nested={"rate": 1.0}, commit="1")
    path.write_text(path.read_text() + '{"piece": "p", "unit": "b", "state": "done", "nested": {"rate": 1.0}')
    record = Record(path)
    assert [row["unit"] for row in record.rows("p")] == ["a"]
    record.add("p", "c", "done")
    assert [row["unit"] for row in Record(path).rows("p")] == ["a", "c"]


def test_a_unit_that_needs_more_time_than_is_left_waits_for_the_next_call(tmp_path: Path) -> None:
    setup = Setup(device="cpu", is_rehearsal=False, out=tmp_path, work=tmp_path)
    piece = Piece("p", "Piece", lambda setup: [Unit("long", lambda left_s: {}, 100.0)], lambda rows: iter(()))
    assert day.measure(setup, [piece], 0.0, "") == 0
    assert Record(setup.rows).why_not("p", "long") == "not started"


def test_a_page_is_published_with_its_rows_and_not_before() -> None:
    setup = Setup(device="cuda", is_rehearsal=False, out=day.PUBLISHED, work=Path("runs"))
    published = setup.out / page.PAGE
    assert published.exists() == setup.rows.exists()
    assert not published.exists() or published.read_text() == page.page(setup, day.PIECES, Record(setup.rows))
    assert "Nothing has been measured yet" in page.page(setup, day.PIECES, Record(Path("nowhere")))


def test_a_rehearsal_is_not_published_and_a_day_needs_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    for words, message in (
        (["--rehearse", "--out", str(day.PUBLISHED)], "a rehearsal is not published: choose another --out"),
        (["--device", "cpu"], "give --rehearse to see that it runs"),
        ([], "there is no CUDA device here"),
    ):
        with pytest.raises(SystemExit, match=message):
            day.main(words)
