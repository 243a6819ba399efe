"""What a person sees: a bar on a terminal only, one line per epoch, and nothing at all when requested nothing."""

import io
import re
import subprocess
import sys
from typing import Any

import pytest
from tqdm.auto import tqdm

import trainkit as tk
from tests.trainer.toys import make_trainer
from trainkit.trainer import progress


class Terminal(io.StringIO):
    """A stream someone looks at."""

    def isatty(self) -> bool:
        return True


class Bars(list[Any]):
    """Every bar that was made, each drawing at every step."""

    def __call__(self, **options: Any) -> Any:
        bar = tqdm(**options, mininterval=0, miniters=1, file=Terminal())
        self.append(bar)
        return bar


@pytest.fixture
def bars(monkeypatch: pytest.MonkeyPatch) -> Bars:
    made = Bars()
    monkeypatch.setattr(progress, "tqdm", made)
    return made


def test_the_bar_is_tqdms_own_choice_of_one() -> None:
    assert progress.tqdm is tqdm


def test_without_a_terminal_one_line_per_epoch_is_printed_and_no_bar(capfd: pytest.CaptureFixture[str]) -> None:
    make_trainer(test=True, verbose=True, show_progress=None).run()
    out, err = capfd.readouterr()
    assert err == ""
    *lines, last = out.splitlines()
    assert last.startswith("ended: max_epoch after 72 steps")
    assert [line.split(" | ")[:3] for line in lines] == [
        ["epoch 1", "24 steps", "11 updates"],
        ["epoch 2", "48 steps", "23 updates"],
        ["epoch 3", "72 steps", "35 updates"],
    ]
    few = r" \(n = [1-4]\)"  # episodes
    received = (
        rf" \| test -?[\d.]+ \+- [\d.]+{few} \| train -?[\d.]+ \+- [\d.]+({few})? \| loss [\d.]+ \| [\d,]+ steps/s$"
    )
    for line in lines:
        assert re.search(received, line)


def test_a_line_has_only_what_happened(capfd: pytest.CaptureFixture[str]) -> None:
    make_trainer(verbose=True, learning_starts=10_000, step_per_epoch=2, max_epoch=1).run()
    parts = capfd.readouterr().out.strip().split(" | ")
    assert parts[:3] == ["epoch 1", "2 steps", "0 updates"]
    assert len(parts) == 4


def test_verbose_off_prints_nothing_at_all(capfd: pytest.CaptureFixture[str]) -> None:
    with make_trainer(test=True, verbose=False, show_progress=None) as trainer:
        trainer.run()
    assert capfd.readouterr() == ("", "")


@pytest.mark.parametrize(("terminal", "wanted", "shown"), [
    (True, None, True), (False, None, False), (True, False, False), (False, True, True),
])  # fmt: skip
def test_a_bar_shows_on_a_terminal_by_default(
    bars: Bars, monkeypatch: pytest.MonkeyPatch, terminal: bool, wanted: bool | None, shown: bool
) -> None:
    monkeypatch.setattr(sys, "stderr", Terminal() if terminal else io.StringIO())
    next(make_trainer(show_progress=wanted))
    assert [bar.disable for bar in bars] == ([False] if shown else [])  # tqdm's lock is not touched for nothing


def test_a_bar_shows_in_a_notebook(bars: Bars, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ipykernel", sys)
    next(make_trainer(show_progress=None))
    assert not bars[0].disable


def test_one_bar_goes_over_the_whole_run_and_never_past_its_end(bars: Bars) -> None:
    trainer = make_trainer(show_progress=True, step_per_epoch=25, step_per_collect=8, max_epoch=2)
    next(trainer)
    (bar,) = bars
    assert (bar.n, bar.total, bar.unit) == (32, 50, "step")
    assert bar.postfix.startswith("return=")
    assert "loss=" in bar.postfix
    next(trainer)
    assert len(bars) == 1
    assert bar.n == 50  # of 56
    assert is_closed(bar)


def is_closed(bar: Any) -> bool:
    return bool(bar.disable)  # what tqdm makes of a closed bar


def test_the_bar_moves_within_an_epoch(bars: Bars) -> None:
    seen = []

    class Look(tk.Callback):
        def on_collect_start(self, trainer: tk.Trainer) -> None:
            seen.append(bars[0].n)

    next(make_trainer(show_progress=True, callbacks=[Look()], step_per_epoch=8, max_epoch=1))
    assert seen == [0, 2, 4, 6]


@pytest.mark.parametrize("error", [KeyboardInterrupt, ZeroDivisionError])
def test_an_exception_removes_the_bar_and_continuing_restores_it(bars: Bars, error: Any) -> None:
    class Failing(tk.Callback):
        def on_collect_end(self, trainer: tk.Trainer, stats: tk.CollectStats) -> None:
            if trainer.env_step == 10 and not failed:
                failed.append(error)
                raise error

    failed: list[Any] = []
    trainer = make_trainer(show_progress=True, callbacks=[Failing()])
    with pytest.raises(error):
        next(trainer)
    assert is_closed(bars[0])
    next(trainer)
    assert len(bars) == 2
    assert (bars[0].n, bars[1].n) == (8, 24)
    trainer.close()
    assert is_closed(bars[1])


def test_lines_are_printed_above_the_bar(bars: Bars, capfd: pytest.CaptureFixture[str]) -> None:
    make_trainer(show_progress=True, verbose=True, max_epoch=2).run()
    out, _ = capfd.readouterr()
    assert [line[:7] for line in out.splitlines()] == ["epoch 1", "epoch 2", "ended: "]


class Broken(io.StringIO):
    """A pipe whose reader has gone, or a stream that was closed."""

    def __init__(self, error: Exception) -> None:
        super().__init__()
        self.error, self.n_writes = error, 0

    def write(self, text: str) -> int:
        self.n_writes += 1
        raise self.error


@pytest.mark.parametrize("error", [BrokenPipeError(), ValueError("I/O operation on closed file")])
def test_a_reader_who_has_gone_ends_the_lines_and_not_the_run(
    monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    out = Broken(error)
    monkeypatch.setattr(sys, "stdout", out)
    trainer = make_trainer(verbose=True)
    trainer.run()
    assert trainer.info.epoch == 3
    assert out.n_writes == 1


def closed() -> io.StringIO:
    stream = Terminal()
    stream.close()
    return stream


@pytest.mark.one_of_each
@pytest.mark.parametrize("name", ["stdout", "stderr"])
@pytest.mark.parametrize("make", [type(None), closed, lambda: Broken(BrokenPipeError())])
@pytest.mark.parametrize("show_progress", [None, True])
def test_a_run_without_a_standard_stream_trains_to_its_end(
    monkeypatch: pytest.MonkeyPatch, name: str, make: Any, show_progress: bool | None
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(sys, name, make())
        with make_trainer(verbose=True, show_progress=show_progress) as trainer:
            trainer.run()
    assert trainer.info.epoch == 3


@pytest.mark.fast_cases(1)
@pytest.mark.parametrize("closing", ["2>&-", ">&-", ">&- 2>&- <&-"])
def test_a_process_started_without_standard_streams_trains_to_its_end(closing: str, tmp_path: Any) -> None:
    code = (
        "import torch\n"
        "torch.set_num_threads(1)\n"
        "from tests.trainer.toys import make_trainer\n"
        "trainer = make_trainer(verbose=True, show_progress=True, max_epoch=2)\n"
        f"open({str(tmp_path / 'done')!r}, 'w').write(str(trainer.run().epoch))\n"
    )
    command = f"{sys.executable} -c '{code.replace(chr(39), chr(34))}' {closing}"
    done = subprocess.run(command, shell=True, capture_output=True, text=True, check=True)
    assert "Traceback" not in done.stderr
    assert (tmp_path / "done").read_text() == "2"


def test_a_run_whose_output_pipe_closes_continues_to_its_end(tmp_path: Any) -> None:
    code = (
        "import torch\n"
        "torch.set_num_threads(1)\n"
        "from tests.trainer.toys import make_trainer\n"
        "make_trainer(verbose=True, max_epoch=50).run()\n"
        f"open({str(tmp_path / 'done')!r}, 'w').close()\n"
    )
    done = subprocess.run(
        f"{sys.executable} -c '{code.replace(chr(39), chr(34))}' | head -1",
        shell=True, capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert done.stdout.startswith("epoch 1 | 24 steps")
    assert "Traceback" not in done.stderr
    assert (tmp_path / "done").exists()
