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
        env_ids: rows of its environment or game whose episodes it shows.
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
    """Record each episode as `folder/episode-000.mp4`, up to where it is cut; the environment must render arrays."""

    def __init__(self, env: gym.Env[Any, Any], folder: Path) -> None:
        if not isinstance(env, gym.Env):
            raise ConfigError(
                f"video films environments of one agent, and {type(env).__name__} is a game of several: record it in a "
                "run by callbacks.RecordVideo"
            )
        super().__init__(env)
        self._folder = folder
        self._film: Film | None = None  # of the running episode
        self._n_steps = 0  # in it
        self._n_episodes = 0

    def reset(self, **options: Any) -> Any:
        """Start another video."""
        self._end()
        result = super().reset(**options)
        fps = int(self.metadata.get("render_fps") or 30)
        self._film = Film(self._folder / f"episode-{self._n_episodes:03d}.mp4", fps)
        self._add_frame()
        return result

    def step(self, action: Any) -> Any:
        """Record the step, and finish the video at the end of the episode."""
        result = super().step(action)
        self._n_steps += 1
        self._add_frame()
        if result[2] or result[3]:
            self._end()
        return result

    def close(self) -> None:
        """Finish the video of an episode that was cut."""
        self._end()
        super().close()

    def _end(self) -> None:
        if self._film is not None and self._n_steps:
            self._film.finish()
            self._n_episodes += 1
        elif self._film is not None:
            self._film.drop()
        self._film, self._n_steps = None, 0

    def _add_frame(self) -> None:
        if self._film is not None:
            (frame,) = check_rendered([self.render()], np.zeros(1, np.intp))
            self._film.add(frame)


def find_ffmpeg() -> Any:
    """Return the package that writes videos; raise a `MissingExtraError` where it is not installed."""
    return import_extra("a video", "imageio_ffmpeg", "video")
