"""What every epoch told: a row each, read-only, in checkpoints, in a table and a picture."""

import builtins
from pathlib import Path
from typing import Any

import pytest

import trainkit as tk
from tests.trainer.toys import make_onpolicy_trainer, make_trainer
from trainkit.errors import MissingExtraError


def without(monkeypatch: pytest.MonkeyPatch, package: str) -> None:
    """Let a package look as if it were not installed."""
    real = builtins.__import__

    def refuse(name: str, *rest: Any, **more: Any) -> Any:
        if name.split(".")[0] == package:
            raise ImportError(f"No module named {name!r}")
        return real(name, *rest, **more)

    monkeypatch.setattr(builtins, "__import__", refuse)


@pytest.mark.parametrize("make", [make_trainer, make_onpolicy_trainer])
def test_a_row_tells_what_its_epoch_yielded(make: Any) -> None:
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
        def on_epoch_end(self, trainer: Any, result: tk.EpochResult) -> None:
            seen.append(trainer.history[-1]["epoch"])

    seen: list[float] = []
    trainer = make_trainer(callbacks=[Look()])
    trainer.run()
    assert seen == [1, 2, 3]
    with pytest.raises(TypeError, match="does not support item assignment"):
        trainer.history[0]["epoch"] = 9  # type: ignore[index]  # this is what must not work
    rows = trainer.history.to_rows()
    rows[0]["epoch"] = 9
    assert trainer.history[0]["epoch"] == 1


def test_a_column_has_none_where_there_was_no_number() -> None:
    trainer = make_trainer(learning_starts=30)
    trainer.run()
    first, *others = trainer.history["update/loss"]
    assert first is None
    assert all(isinstance(loss, float) for loss in others)
    with pytest.raises(KeyError, match=r"no epoch told 'update/lossy', did you mean 'update/loss'"):
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
        def on_epoch_end(self, trainer: Any, result: tk.EpochResult) -> None:
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
    pytest.importorskip("matplotlib", reason="needs trainkit[plot]")
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
    ("package", "ask", "hint"),
    [("pandas", "to_frame", "pip install pandas"), ("matplotlib", "plot", r"pip install trainkit\[plot\]")],
)
def test_a_package_that_is_missing_is_named(package: str, ask: str, hint: str, monkeypatch: pytest.MonkeyPatch) -> None:
    trainer = make_trainer()
    next(trainer)
    without(monkeypatch, package)
    with pytest.raises(MissingExtraError, match=hint):
        getattr(trainer.history, ask)()
