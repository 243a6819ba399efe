"""Learning curves show the middle of the seeds and the band that was requested; expected numbers are by hand."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.testing import assert_allclose

import trainkit as tk
from tests.helpers.run_folders import make_run
from tests.trainer.toys import make_trainer
from trainkit.core.drawing import count
from trainkit.plot.curves import together

pytest.importorskip("matplotlib", reason="needs trainkit-rl[plot]")

TAG = "test/returns/mean"


def seeds(folder: Path, *curves: list[float]) -> list[Path]:
    """Write a run per curve, whose points are at steps 10, 20, ..."""
    for number, curve in enumerate(curves):
        make_run(folder / f"{number}", *({"step": 10 * t, TAG: x} for t, x in enumerate(curve, 1)))
    return [folder / f"{number}" for number in range(len(curves))]


def lines(figure: Any) -> list[tuple[list[float], list[float]]]:
    (axes,) = figure.axes
    return [(list(line.get_xdata()), list(line.get_ydata())) for line in axes.lines]


def band(figure: Any) -> tuple[list[float], list[float]]:
    """Return (low, high) of the only band, step by step."""
    (axes,) = figure.axes
    (area,) = axes.collections
    corners = area.get_paths()[0].vertices
    steps = sorted(set(corners[:, 0].tolist()))
    bounds = [corners[corners[:, 0] == step, 1] for step in steps]
    return [float(own.min()) for own in bounds], [float(own.max()) for own in bounds]


FIVE = ([0.0, 1.0], [4.0, 1.0], [5.0, 1.0], [6.0, 1.0], [100.0, 1.0])


@pytest.mark.parametrize(("middle", "expected"), [("iqm", 5.0), ("mean", 23.0), ("median", 5.0)])
def test_the_middle_of_five_seeds(tmp_path: Path, middle: Any, expected: float) -> None:
    figure = tk.plot.curves(seeds(tmp_path, *FIVE), middle=middle)
    assert lines(figure) == [([10.0, 20.0], [expected, 1.0])]


def test_the_bands_around_it(tmp_path: Path) -> None:
    runs = seeds(tmp_path, [0.0, 2.0], [4.0, 2.0])
    assert band(tk.plot.curves(runs, band="all")) == ([0.0, 2.0], [4.0, 2.0])
    assert band(tk.plot.curves(runs, middle="mean")) == ([0.0, 2.0], [4.0, 2.0])  # 2 +- 2
    assert band(tk.plot.curves(runs)) == ([0.0, 2.0], [4.0, 2.0])  # two of two: the mean is 0, 2 or 4
    assert not tk.plot.curves(runs, band="none").axes[0].collections


def test_the_legend_is_inside_the_axes_or_below_them_in_columns_and_never_cut(tmp_path: Path) -> None:
    for number in range(30):
        make_run(tmp_path / str(number), *({"step": step, "test/returns/mean": float(step)} for step in (1, 2)))
    for n_groups, is_inside in ((3, True), (30, False)):
        runs = {f"a label of thirty characters {number}": tmp_path / str(number) for number in range(n_groups)}
        figure = tk.plot.curves(runs)
        figure.draw_without_rendering()
        (axes,) = figure.axes
        legend = axes.get_legend() or figure.legends[0]
        box, around = legend.get_window_extent(), (axes if is_inside else figure).get_window_extent()
        assert around.x0 <= box.x0 < box.x1 <= around.x1
        assert around.y0 <= box.y0 < box.y1 <= around.y1
        assert is_inside or box.y1 <= axes.get_window_extent().y0
        styles = {(line.get_color(), line.get_linestyle()) for line in axes.lines}
        assert len(styles) == min(n_groups, 28), "seven colors, each in four kinds of lines"


def test_one_seed_has_no_band_and_needs_no_legend(tmp_path: Path) -> None:
    figure = tk.plot.curves(seeds(tmp_path, [1.0, 2.0])[0])
    assert not figure.axes[0].collections
    assert figure.axes[0].get_legend() is None


def test_groups_are_labelled_with_their_number_of_seeds(tmp_path: Path) -> None:
    runs = {"ours": seeds(tmp_path / "a", [1.0], [2.0]), "theirs": seeds(tmp_path / "b", [3.0])[0]}
    texts = [text.get_text() for text in tk.plot.curves(runs, target_return=5.0).axes[0].get_legend().get_texts()]
    assert texts == ["ours (2 seeds)", "theirs", "5"]


def test_seeds_logged_at_other_steps_are_interpolated_where_all_of_them_reach() -> None:
    one = np.array([0.0, 10.0, 20.0]), np.array([0.0, 1.0, 2.0])
    other = np.array([5.0, 15.0, 40.0]), np.array([10.0, 20.0, 20.0])
    steps, numbers = together([one, other])
    assert_allclose(steps, [5.0, 10.0, 15.0, 20.0])
    assert_allclose(numbers, [[0.5, 1.0, 1.5, 2.0], [10.0, 15.0, 20.0, 20.0]])


def test_trainers_and_histories_are_runs_too() -> None:
    trainer = make_trainer(test=True)
    trainer.run()
    expected = [(trainer.history["env_step"], trainer.history[TAG])]
    assert lines(tk.plot.curves(trainer)) == lines(tk.plot.curves(trainer.history)) == expected


def test_the_steps_of_offline_runs_are_updates(tmp_path: Path) -> None:
    logger = tk.JsonlLogger(tmp_path / "offline")
    logger.describe({"update_per_epoch": 5})
    logger.write(5, {TAG: 1.0})
    logger.close()
    assert tk.plot.curves(tmp_path / "offline").axes[0].get_xlabel() == "updates"
    assert tk.plot.curves(seeds(tmp_path, [1.0])).axes[0].get_xlabel() == "environment steps"
    tags = ["epoch", "env_step", "gradient_step", TAG]
    rows = {"tags": tags, "values": [[1, 0, 5, 1.0]], "is_there": [[True] * 4]}
    history = tk.callbacks.History()
    history.load_state_dict({"rows": rows})
    figure = tk.plot.curves(history)
    assert (figure.axes[0].get_xlabel(), lines(figure)) == ("updates", [([5.0], [1.0])])


def test_what_cannot_be_drawn_is_refused(tmp_path: Path) -> None:
    with pytest.raises(tk.ConfigError, match="at least one run per label"):
        tk.plot.curves({})
    with pytest.raises(tk.ConfigError, match="at least one run per label"):
        tk.plot.curves({"ours": []})
    with pytest.raises(tk.ConfigError, match="is around the iqm, not the mean"):
        tk.plot.curves(seeds(tmp_path, [1.0]), middle="mean", band="interval")
    with pytest.raises(tk.ConfigError, match=r"plot.curves.middle must be one of .* did you mean 'median'"):
        tk.plot.curves(seeds(tmp_path / "b", [1.0]), middle="medan")  # type: ignore[arg-type]  # the mistake
    with pytest.raises(tk.ConfigError, match="no epoch logged a number there"):
        tk.plot.curves(make_trainer())


@pytest.mark.parametrize(("number", "text"), [(0, "0"), (500, "500"), (20_000, "20k"), (1.5e6, "1.5M"), (2e9, "2B")])
def test_steps_are_abbreviated(number: float, text: str) -> None:
    assert count(number) == text
