"""What every epoch told: a row each, read-only, in checkpoints, in a table and a picture."""

import gc
import resource
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import trainkit as tk
from tests.trainer.toys import make_onpolicy_trainer, make_trainer
from trainkit.core.errors import MissingExtraError
from trainkit.trainer.callbacks.history import History


def without(monkeypatch: pytest.MonkeyPatch, package: str) -> None:
    """Let a package look as if it were not installed."""
    for name in (package, *(module for module in sys.modules if module.startswith(f"{package}."))):
        monkeypatch.setitem(sys.modules, name, None)


@pytest.mark.parametrize("make", [make_trainer, make_onpolicy_trainer])
def test_a_row_has_what_its_epoch_yielded(make: Any) -> None:
    trainer = make(test=True)
    assert len(trainer.history) == 0
    for position, (epoch, stats, info) in enumerate(trainer):
        row = trainer.history[position]
        assert (row["epoch"], row["env_step"], row["gradient_step"]) == (epoch, info.env_step, info.gradient_step)
        assert {tag: row[tag] for tag in tk.scalars(stats)} == tk.scalars(stats)
    assert trainer.history["env_step"] == [24, 48, 72]
    assert [row["epoch"] for row in trainer.history[1:]] == [2, 3]


def test_a_row_is_there_for_callbacks_and_for_reading_only() -> None:
    class Look(tk.Callback):
        def on_epoch_end(self, trainer: Any, result: tk.trainer.EpochResult) -> None:
            seen.append(trainer.history[-1]["epoch"])

    seen: list[float] = []
    trainer = make_trainer(callbacks=[Look()])
    trainer.run()
    assert seen == [1, 2, 3]
    with pytest.raises(TypeError, match="does not support item assignment"):
        trainer.history[0]["epoch"] = 9  # type: ignore[index]  # this is what must not work
    with pytest.raises(KeyError, match="epoch 1 has no 'env_steps', did you mean 'env_step'"):
        trainer.history[0]["env_steps"]
    assert trainer.history[0].get("env_steps") is None
    rows = trainer.history.to_rows()
    rows[0]["epoch"] = 9
    assert trainer.history[0]["epoch"] == 1


def test_a_column_has_none_where_there_was_no_number() -> None:
    trainer = make_trainer(learning_starts=30)
    trainer.run()
    first, *others = trainer.history["update/loss"]
    assert first is None
    assert all(isinstance(loss, float) for loss in others)
    with pytest.raises(KeyError, match=r"no epoch has 'update/lossy', did you mean 'update/loss'"):
        trainer.history["update/lossy"]


def test_reset_forgets_and_resume_remembers(tmp_path: Path) -> None:
    trainer = make_trainer()
    next(trainer)
    next(trainer)
    trainer.save(tmp_path / "run")
    resumed = make_trainer(resume_from=tmp_path / "run")
    assert resumed.history.to_rows() == trainer.history.to_rows()
    resumed.run()
    assert resumed.history["epoch"] == [1, 2, 3]
    resumed.reset()
    next(resumed)
    assert resumed.history["epoch"] == [1]


def test_an_epoch_that_was_interrupted_has_one_row() -> None:
    class Fault(tk.Callback):
        def on_epoch_end(self, trainer: Any, result: tk.trainer.EpochResult) -> None:
            if trainer.epoch == 2 and not faults:
                faults.append(trainer.epoch)
                raise KeyboardInterrupt

    faults: list[int] = []
    trainer = make_trainer(callbacks=[Fault()])
    with pytest.raises(KeyboardInterrupt):
        trainer.run()
    trainer.run()
    assert trainer.history["epoch"] == [1, 2, 3]


def test_a_table_for_notebooks_never_raises() -> None:
    trainer = make_trainer(test=True)
    assert "History of 0 epochs" in trainer.history._repr_html_()
    trainer.run()
    assert "test/returns/mean" in trainer.history._repr_html_()
    assert "epoch 3" in trainer.history._repr_html_()


def test_a_picture_has_a_line_per_tag(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib", reason="needs trainkit-rl[plot]")
    trainer = make_trainer(test=True)
    with pytest.raises(tk.ConfigError, match="nothing to draw"):
        trainer.history.plot()
    trainer.run()
    figure = trainer.history.plot()
    titles = [axes.get_title(loc="left") for axes in figure.axes]
    assert titles == ["test/returns/mean", "train/returns/mean", "update/loss"]
    drawn = figure.axes[0].lines[0]
    assert list(drawn.get_xdata()) == [24, 48, 72]
    assert list(drawn.get_ydata()) == trainer.history["test/returns/mean"]
    one = trainer.history.plot("update/lr", x="epoch")
    assert list(one.axes[0].lines[0].get_xdata()) == [1, 2, 3]
    one.savefig(tmp_path / "lr.png")
    assert (tmp_path / "lr.png").stat().st_size > 1_000


@pytest.mark.parametrize(
    ("package", "extra", "query"), [("pandas", "pandas", "to_frame"), ("matplotlib", "plot", "plot")]
)
def test_a_package_that_is_missing_is_named(
    package: str, extra: str, query: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    trainer = make_trainer()
    next(trainer)
    without(monkeypatch, package)
    with pytest.raises(MissingExtraError, match=rf"needs {package} .*: pip install 'trainkit-rl\[{extra}\]'"):
        getattr(trainer.history, query)()


# ---- a long run ----


def received(n_epochs: int, *, saved_at: int | None = None) -> History:
    """Return a history of epochs whose numbers are functions of their number; saved and loaded after one of them."""
    history = History()
    for epoch in range(1, n_epochs + 1):
        row = {"epoch": epoch, "env_step": 10 * epoch, "gradient_step": epoch, "seconds": 0.5 * epoch, "a": epoch / 3}
        history._append(row | ({"even": 1.0} if epoch % 2 == 0 else {}))
        if epoch == saved_at:
            state = history.state_dict()
            history = History()
            history.load_state_dict(state)
    return history


def test_all_of_the_newest_epochs_are_kept_and_older_ones_thinned_evenly() -> None:
    history = received(12_345)
    epochs = [row["epoch"] for row in history]
    assert 1_500 < len(history) <= 2_500
    assert epochs[-1_000:] == list(range(11_346, 12_346))
    older = np.array(epochs[:-1_000])
    gaps = np.diff(older)
    assert np.count_nonzero((gaps != 32) & (gaps != 1)) <= 1  # where those begin that were not thinned yet
    assert set(gaps[:250]) == {32}  # the power of two that leaves no more than 500 of about 10,000
    assert older[0] == 32
    for row in history:
        assert (row["env_step"], row["a"], "even" in row) == (
            10 * row["epoch"],
            row["epoch"] / 3,
            row["epoch"] % 2 == 0,
        )
        assert isinstance(row["env_step"], int)
    assert history["epoch"] == epochs
    assert history["even"] == [1.0 if epoch % 2 == 0 else None for epoch in epochs]


def test_a_run_that_is_resumed_keeps_the_same_rows() -> None:
    straight = received(6_000)
    for saved_at in (1, 2_499, 2_500, 2_501, 5_999):
        assert received(6_000, saved_at=saved_at).to_rows() == straight.to_rows()
        rows, expected = (one.state_dict()["rows"] for one in (received(6_000, saved_at=saved_at), straight))
        assert all(np.array_equal(rows[name], expected[name]) for name in expected)


def test_a_tag_of_epochs_that_were_thinned_away_is_forgotten() -> None:
    history = History()
    for epoch in range(1, 2_502):
        counts = {"epoch": epoch, "env_step": epoch, "gradient_step": epoch}
        history._append(counts | {f"custom/of_{epoch // 100}": 1.0, **({"custom/first": 1.0} if epoch == 1 else {})})
    tags = history.state_dict()["rows"]["tags"]
    assert "custom/first" not in tags
    assert [tag for tag in tags if tag.startswith("custom")] == [f"custom/of_{number}" for number in range(26)]


def memory() -> float:
    """Return the memory of this process in MB."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize() / 1e6


def quickest_save(trainer: Any, folder: Path) -> float:
    def seconds() -> float:
        began = time.perf_counter()
        trainer.save(folder)
        return time.perf_counter() - began

    return min(seconds() for _ in range(9))


@pytest.mark.slow
def test_twelve_thousand_epochs_cost_no_memory_and_no_time_to_save(tmp_path: Path) -> None:
    trainer = make_trainer(max_epoch=12_000, step_per_epoch=2)
    seen = {}
    for epoch, _, _ in trainer:
        if epoch in (100, 3_000, 12_000):
            gc.collect()
            seen[epoch] = memory(), quickest_save(trainer, tmp_path / "run")
    assert (seen[12_000][0] - seen[3_000][0]) / 9 < 1.0  # MB per 1,000 epochs
    assert seen[12_000][1] < 1.5 * seen[100][1]
