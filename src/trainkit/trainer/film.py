"""Videos of episodes, written frame by frame."""

import contextlib
import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
from numpy.typing import NDArray

from trainkit.core.errors import ConfigError
from trainkit.core.extras import import_extra
from trainkit.envs.validation import check_rendered

_log = logging.getLogger(__name__)


class Film:
    """One video, written frame by frame to a temporary file, which is renamed when it is complete.

    A full disk loses the video, not the run.

    Args:
        path: of the video.
        fps: frames per second.
        title: in its metadata.

    Attributes:
        env_ids: rows of its environment whose episodes it shows.
        step: the clock of its collector at its last frame.
    """

    def __init__(self, path: Path, fps: int, *, title: str = "") -> None:
        self.env_ids: set[int] = set()
        self.step: int | None = None
        self._options = ["-metadata", f"title={title}"] if title else []
        self._path, self._temporary, self._fps = path, path.with_name(f".{path.name}"), fps
        self._frames: Any = None  # a generator that frames are sent to; None before the first

    def add(self, frame: NDArray[np.uint8]) -> None:
        """Add one frame [height, width, 3], padded to even sizes, as the codec needs them."""
        height, width, _ = frame.shape
        frame = np.pad(frame, ((0, height % 2), (0, width % 2), (0, 0)), mode="edge")
        with self._errors_logged():
            if self._frames is None:
                self._path.parent.mkdir(parents=True, exist_ok=True)
                size = frame.shape[1], frame.shape[0]
                self._frames = find_ffmpeg().write_frames(
                    str(self._temporary), size, fps=self._fps, macro_block_size=2, output_params=self._options
                )
                self._frames.send(None)
            self._frames.send(np.ascontiguousarray(frame))

    def finish(self) -> None:
        """Complete the video."""
        with self._errors_logged():
            self._frames.close()
            self._temporary.replace(self._path)

    def drop(self) -> None:
        """Remove the incomplete video."""
        with contextlib.suppress(OSError):
            self._frames.close()
        self._temporary.unlink(missing_ok=True)

    @contextlib.contextmanager
    def _errors_logged(self) -> Iterator[None]:
        try:
            yield
        except (OSError, StopIteration) as error:  # a closed generator's is the latter
            _log.warning("%s could not be written, the run continues without: %s", self._path, error)


class Filmed(gym.Wrapper[Any, Any, Any, Any]):
    """Record episodes up to where they end or are cut; the environment must render arrays.

    Args:
        env: of Gymnasium.
        path: a file that ends in .mp4, for all episodes one after the other, or a folder, for `episode-000.mp4` and so
            on.
    """

    def __init__(self, env: gym.Env[Any, Any], path: Path) -> None:
        if not isinstance(env, gym.Env):
            raise ConfigError(
                f"video films environments of Gymnasium, and {type(env).__name__} is of another kind: record it in a "
                "run by callbacks.RecordVideo"
            )
        super().__init__(env)
        self._path, self._is_one_file = path, is_video_file(path)
        self._film: Film | None = None  # that frames are added to
        self._is_at_start = False  # whether the first frame of the episode is still to be added
        self._n_films = 0

    def reset(self, **options: Any) -> Any:
        """Start another episode; its first frame is added with the first step, as some have none."""
        self._end_episode()
        result = super().reset(**options)
        (self._first,) = check_rendered([self.render()], np.zeros(1, np.intp))
        self._is_at_start = True
        return result

    def step(self, action: Any) -> Any:
        """Record the step, and finish the video at the end of the episode."""
        result = super().step(action)
        if self._film is None:
            fps = int(self.metadata.get("render_fps") or 30)
            name = self._path if self._is_one_file else self._path / f"episode-{self._n_films:03d}.mp4"
            self._film = Film(name, fps)
        if self._is_at_start:
            self._film.add(self._first)
            self._is_at_start = False
        (frame,) = check_rendered([self.render()], np.zeros(1, np.intp))
        self._film.add(frame)
        if result[2] or result[3]:
            self._end_episode()
        return result

    def close(self) -> None:
        """Finish the video, also of an episode that was cut."""
        self._finish()
        super().close()

    def _end_episode(self) -> None:
        if not self._is_one_file:
            self._finish()

    def _finish(self) -> None:
        if self._film is not None:
            self._film.finish()
            self._n_films += 1
        self._film = None


_OTHER_FORMATS = (".avi", ".gif", ".m4v", ".mkv", ".mov", ".mpeg", ".mpg", ".webm", ".webp", ".wmv")


def is_video_file(path: Path) -> bool:
    """Return whether a path names a file of a video, not a folder of videos."""
    return path.suffix.lower() == ".mp4" and not path.is_dir()


def check_video_path(name: str, path: Path) -> None:
    """Raise a `ConfigError` for a file of another format, which would become a folder of that name."""
    if path.suffix.lower() in _OTHER_FORMATS:
        raise ConfigError(
            f"{name} {path} is a file of another format: a file must end in .mp4, and anything else is a folder, for a "
            "video of each episode"
        )


def find_ffmpeg() -> Any:
    """Return the package that writes videos; raise a `MissingExtraError` where it is not installed."""
    return import_extra("a video", "imageio_ffmpeg", "video")
