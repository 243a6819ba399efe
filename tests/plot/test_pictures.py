"""The other pictures show what is there, and every picture is written whole, the same each time."""

import sys
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from numpy.testing import assert_allclose

import trainkit as tk
from tests.buffer.stream import ranked
from tests.helpers.run_folders import make_run
from tests.trainer.toys import Walk, make_policy, make_trainer
from trainkit.plot.learner import discounted, quantiles

pytest.importorskip("matplotlib", reason="needs trainkit-rl[plot]")


# ---- an episode ----


def played(**parts: Any) -> tuple[tk.DQNPolicy, Any]:
    envs = tk.make_envs(Walk, 1)
    policy = make_policy(envs, seed=1, gamma=0.5, **parts)
    return policy, tk.plot.episode_values(policy, Walk, seed=3)


@pytest.mark.parametrize("value", [tk.CategoricalValue(5, -5.0, 5.0), tk.QuantileValue(7)])
def test_an_episode_shows_the_expected_return_bands_and_received_returns(value: Any) -> None:
    policy, figure = played(value=value)
    (axes,) = figure.axes
    expected, came = (line.get_ydata() for line in axes.lines)
    texts = [text.get_text() for text in axes.get_legend().get_texts()]
    assert texts == ["90 % of it", "50 % of it", "expected return", "observed return"]
    assert len(axes.collections) == 2

    class Rows:
        def __init__(self) -> None:
            self.obs: list[Any] = []
            self.reward: list[float] = []
            self.q: list[float] = []
            self.over = False

        def add(self, step: Any) -> None:
            self.q.append(float(policy.action_values(step.obs)[0, step.action[0]]))
            self.reward.append(float(step.reward[0]))
            self.over = bool(step.terminated[0])

        def cut(self, env_ids: Any) -> None: ...

    rows = Rows()
    collector = tk.Collector(policy, tk.make_envs(Walk, 1))
    collector.recorders.append(rows)
    collector.collect(n_episode=1, explore=False, seed=3)
    assert rows.over
    assert_allclose(expected, rows.q, rtol=1e-4, atol=1e-5)
    slow = [sum(0.5**k * x for k, x in enumerate(rows.reward[t:])) for t in range(len(rows.reward))]
    assert_allclose(came, slow)


def test_an_episode_of_joint_actions_shows_the_value_of_the_joint_action() -> None:
    class TwoChoices(gym.Wrapper[Any, Any, Any, Any]):
        action_space = gym.spaces.MultiDiscrete([2, 3])

        def step(self, action: Any) -> Any:
            return super().step(action[0])

    policy = make_policy(tk.make_envs(lambda: TwoChoices(Walk()), 1), seed=1)
    figure = tk.plot.episode_values(policy, lambda: TwoChoices(Walk()), seed=3)
    expected = figure.axes[0].lines[0].get_ydata()
    obs, _ = Walk().reset(seed=3)
    assert_allclose(expected[0], policy.action_values(obs[None])[0].max(), rtol=1e-4)


def test_an_expected_value_has_no_bands_and_shaped_rewards_no_line_of_what_came() -> None:
    (axes,) = played(value=tk.ExpectedValue(), reward="sign")[1].axes
    assert len(axes.lines) == 1
    assert not axes.collections


def test_quantiles_are_read_off_between_the_returns() -> None:
    returns, probability = np.array([[0.0, 10.0], [1.0, 3.0]]), np.array([[0.5, 0.5], [0.8, 0.2]])
    assert_allclose(quantiles(returns, probability, 0.5), [5.0, 1.4])  # mass below: 0.25, 0.75 and 0.4, 0.9
    assert_allclose(quantiles(returns, probability, 0.01), [0.0, 1.0])


def test_what_comes_after_the_last_step_is_discounted_too() -> None:
    assert_allclose(discounted(np.array([1.0, 2.0]), 0.5, 8.0), [1.0 + 1.0 + 2.0, 2.0 + 4.0])


# ---- a buffer ----


def test_a_buffers_picture_says_how_few_rows_get_half_of_the_draws() -> None:
    buffer, _ = ranked([30.0] + [1.0] * 10, alpha=1.0, eps=1e-12)
    left, middle, right = tk.plot.priorities(buffer).axes
    assert sum(bar.get_height() for bar in left.patches) == 11
    (note,) = middle.texts
    assert note.get_text() == "half of the samples\nfrom 6 % of the rows"  # a row of 11 gets 30 of 40
    assert right.get_xlabel() == "importance weight"


@pytest.mark.parametrize("buffer", [tk.ReplayBuffer(3), tk.PrioritizedReplayBuffer(3)])
def test_a_buffer_that_prefers_nothing_is_refused(buffer: Any) -> None:
    with pytest.raises(tk.ConfigError, match="a PrioritizedReplayBuffer"):
        tk.plot.priorities(buffer)


# ---- shares of the time ----


def test_shares_of_the_time_are_stacked_to_the_whole() -> None:
    trainer = make_trainer(test=True)
    trainer.run()
    left, right = tk.plot.time_shares(trainer).axes
    top = left.collections[-1].get_paths()[0].vertices[:, 1].max()
    assert top == pytest.approx(100.0)
    assert [text.get_text() for text in left.get_legend().get_texts()] == ["other", "evaluate", "update", "collect"]
    parts = ("env", "obs", "action", "act", "store", "render", "other")
    ms = [np.mean([row[f"train/{part}_ms"] for row in trainer.history]) for part in parts]
    assert_allclose([bar.get_width() for bar in right.patches], ms)


def test_a_run_that_collects_nothing_has_the_shares_alone(tmp_path: Path) -> None:
    shares = {"time/collect": 0.0, "time/update": 0.75, "time/evaluate": 0.25, "time/other": 0.0}
    make_run(tmp_path, {"step": 1, **shares}, {"step": 2, **shares})
    assert len(tk.plot.time_shares(tmp_path).axes) == 1


def test_one_report_is_no_course(tmp_path: Path) -> None:
    make_run(tmp_path, {"step": 1, **{f"time/{part}": 0.25 for part in ("collect", "update", "evaluate", "other")}})
    with pytest.raises(tk.ConfigError, match="two reports or more"):
        tk.plot.time_shares(tmp_path)


# ---- files ----


@pytest.mark.parametrize("ending", ["svg", "png", "pdf"])
def test_the_same_picture_is_the_same_file(tmp_path: Path, ending: str) -> None:
    make_run(tmp_path / "run", {"step": 1, "test/returns/mean": 1.0}, {"step": 2, "test/returns/mean": 2.0})
    files = [tk.plot.save(tk.plot.curves(tmp_path / "run"), tmp_path / name / f"a.{ending}") for name in ("a", "b")]
    assert files[0].read_bytes() == files[1].read_bytes()
    assert len(files[0].read_bytes()) > 1_000


def test_text_in_an_svg_stays_text(tmp_path: Path) -> None:
    make_run(tmp_path / "run", {"step": 1, "test/returns/mean": 1.0})
    file = tk.plot.save(tk.plot.curves(tmp_path / "run", title="A title"), tmp_path / "a.svg")
    assert ">A title<" in file.read_text()


def test_a_notebook_shows_a_picture_without_pyplot(tmp_path: Path) -> None:
    make_run(tmp_path / "run", {"step": 1, "test/returns/mean": 1.0})
    figure = tk.plot.curves(tmp_path / "run", title="A title")
    drawn = figure._repr_svg_()
    assert drawn.startswith("<?xml")
    assert ">A title<" in drawn
    assert "matplotlib.pyplot" not in sys.modules


def test_an_unknown_ending_is_refused(tmp_path: Path) -> None:
    make_run(tmp_path / "run", {"step": 1, "test/returns/mean": 1.0})
    with pytest.raises(tk.ConfigError, match=r"end its name in .svg, .pdf or .png"):
        tk.plot.save(tk.plot.curves(tmp_path / "run"), tmp_path / "a.docx")


def test_without_matplotlib_the_extra_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    make_run(tmp_path, {"step": 1, "test/returns/mean": 1.0})
    with pytest.raises(tk.errors.MissingExtraError, match=r"pip install 'trainkit-rl\[plot\]'"):
        tk.plot.curves(tmp_path)
