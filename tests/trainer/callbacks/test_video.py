"""Evaluations as videos, whole or not at all."""

import re
import subprocess
import sys
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest

import trainkit as tk
from tests.trainer.toys import Walk, everything, make_trainer, of_watchers


class Drawn(Walk):
    """A walk that draws where it stands: its clock as a grey, on an odd number of rows."""

    metadata: ClassVar[dict[str, Any]] = {"render_modes": ["rgb_array"], "render_fps": 12}
    render_mode = "rgb_array"

    def render(self) -> Any:
        return np.full((33, 48, 3), 15 * self._clock, np.uint8)


def film(path: Path) -> tuple[float, list[float]]:
    """Read the frames per second of a video of such walks, and the mean grey of each frame."""
    ffmpeg = pytest.importorskip("imageio_ffmpeg").get_ffmpeg_exe()
    command = [ffmpeg, "-i", str(path), "-f", "rawvideo", "-pix_fmt", "rgb24", "-"]
    shown = subprocess.run(command, capture_output=True, check=True)
    fps = re.findall(r"([\d.]+) fps", shown.stderr.decode())[0]
    frames = np.frombuffer(shown.stdout, np.uint8).reshape(-1, 34, 48, 3)  # a row more: sizes are even
    return float(fps), [float(frame.mean()) for frame in frames]


def test_an_evaluations_episode_is_a_video_from_its_first_frame_to_its_last(tmp_path: Path) -> None:
    pytest.importorskip("imageio_ffmpeg")
    lengths: list[int] = []

    class Look(tk.Callback):
        def on_episode_end(self, trainer: tk.Trainer, episode: tk.collector.Episode) -> None:
            if episode.in_evaluation and episode.env_id == 0:
                lengths.append(episode.length)

    record = tk.callbacks.RecordVideo(tmp_path / "videos", every=2)
    plain = make_trainer(env=Drawn, test=True, max_epoch=3)
    trainer = make_trainer(env=Drawn, test=True, max_epoch=3, callbacks=[record, Look()])
    trainer.run()
    plain.run()
    names = sorted(path.name for path in (tmp_path / "videos").iterdir())
    assert names == ["step-000000024-episode-0.mp4", "step-000000072-episode-0.mp4"]
    fps, greys = film(tmp_path / "videos" / names[0])
    assert fps == 12
    np.testing.assert_allclose(greys, [15 * clock for clock in range(lengths[0] + 1)], atol=4)  # compressed
    own, theirs = everything(plain), everything(trainer)
    assert {path for path in own if own[path] != theirs.get(path)} <= {path for path in own if of_watchers(path)}


def test_the_first_episode_of_chosen_epochs_of_training_is_a_video(tmp_path: Path) -> None:
    pytest.importorskip("imageio_ffmpeg")
    began: dict[int, list[tuple[int, tk.collector.Episode]]] = {}  # {epoch: [clock, episode]}

    class Look(tk.Callback):
        episodes = "training"

        def on_episode_start(self, trainer: tk.Trainer, episode: tk.collector.Episode) -> None:
            began.setdefault(trainer.epoch, []).append((trainer.clock, episode))

    folder = tmp_path / "videos"
    record = tk.callbacks.RecordVideo(folder, of="training", every=2)
    plain = make_trainer(env=Drawn, test=True, max_epoch=4)
    trainer = make_trainer(env=Drawn, test=True, max_epoch=4, callbacks=[record, Look()])
    trainer.run()
    plain.run()
    first = [began[epoch][0] for epoch in (1, 3)]
    assert sorted(path.name for path in folder.iterdir()) == [f"step-{clock:09d}-episode-0.mp4" for clock, _ in first]
    for clock, episode in first:
        _, greys = film(folder / f"step-{clock:09d}-episode-0.mp4")
        np.testing.assert_allclose(greys, [15 * frame for frame in range(episode.length + 1)], atol=4)
    own, theirs = everything(plain), everything(trainer)
    assert {path for path in own if own[path] != theirs.get(path)} <= {path for path in own if of_watchers(path)}


def test_the_requested_number_of_episodes_is_recorded(tmp_path: Path) -> None:
    pytest.importorskip("imageio_ffmpeg")
    make_trainer(
        env=Drawn, test=True, max_epoch=1, callbacks=[tk.callbacks.RecordVideo(tmp_path, n_episode=3, fps=5)]
    ).run()
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        f"step-000000024-episode-{number}.mp4" for number in range(3)
    ]
    assert film(tmp_path / "step-000000024-episode-2.mp4")[0] == 5


def test_what_an_interrupted_evaluation_leaves_unfinished_is_thrown_away(tmp_path: Path) -> None:
    pytest.importorskip("imageio_ffmpeg")

    class Once(tk.Callback):
        raised = False

        def on_episode_step(self, trainer: tk.Trainer, episode: tk.collector.Episode) -> None:
            if episode.in_evaluation and not self.raised:
                self.raised = True
                raise ValueError("cut")

    trainer = make_trainer(env=Drawn, test=True, max_epoch=2, callbacks=[tk.callbacks.RecordVideo(tmp_path), Once()])
    with pytest.raises(ValueError, match="cut"):
        next(trainer)
    trainer.evaluate()  # which forgets the one that was interrupted
    trainer.run()
    assert all(film(path)[1][0] < 4 for path in tmp_path.iterdir())
    assert [path.name for path in tmp_path.iterdir() if path.name.startswith(".")] == []


def test_environments_that_cannot_draw_are_refused_when_the_trainer_is_made(tmp_path: Path) -> None:
    pytest.importorskip("imageio_ffmpeg")
    with pytest.raises(tk.ConfigError) as caught:
        make_trainer(test=True, callbacks=[tk.callbacks.RecordVideo(tmp_path)])
    assert 'has render_mode None: make_envs(..., env_kwargs={"render_mode": "rgb_array"})' in str(caught.value)
    with pytest.raises(
        tk.ConfigError, match=r"RecordVideo\(of='evaluation'\) needs a trainer with environments of eval"
    ):
        make_trainer(env=Drawn, callbacks=[tk.callbacks.RecordVideo(tmp_path)])
    with pytest.raises(tk.ConfigError, match="RecordVideo needs environments of training that render arrays"):
        make_trainer(callbacks=[tk.callbacks.RecordVideo(tmp_path, of="training")])
    with pytest.raises(
        tk.ConfigError, match=r"RecordVideo.of must be one of .* got 'trainng', did you mean 'training'"
    ):
        tk.callbacks.RecordVideo(tmp_path, of="trainng")  # type: ignore[arg-type]  # a Literal
    with pytest.raises(tk.ConfigError, match=r"RecordVideo.every must be a whole number >= 1, got 0"):
        tk.callbacks.RecordVideo(tmp_path, every=0)


def test_a_missing_writer_names_its_extra(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setitem(sys.modules, "imageio_ffmpeg", None)
    with pytest.raises(tk.errors.MissingExtraError, match=r"pip install 'trainkit-rl\[video\]'"):
        tk.callbacks.RecordVideo(tmp_path)
