"""A callback that records episodes of evaluation or training as videos."""

from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from trainkit.collector import Collector, Episode
from trainkit.core.errors import Checks, ConfigError
from trainkit.core.folders import FolderClaim, check_folder
from trainkit.core.signatures import checked
from trainkit.core.stats import CollectStats
from trainkit.envs import Envs
from trainkit.trainer.callbacks.base import Callback
from trainkit.trainer.film import Film, check_video_path, find_ffmpeg, is_video_file

if TYPE_CHECKING:
    from trainkit.trainer.base import Trainer


@checked
class RecordVideo(Callback):
    """Videos of the first episodes of evaluations, or of epochs of training: `folder/step-000005000-episode-0.mp4`.

    The environments must draw: `make_envs(..., env_kwargs={"render_mode": "rgb_array"})`. Rendering takes time and
    changes nothing else. Of a group of rows, a game's agents, there is one video, with a frame for each step that
    completes a row, and their names in its title. Videos are written whole or not at all: an episode that a reset, a
    failure or the end of the run breaks off has none.

    Args:
        folder: for the videos. It belongs to one run: a fresh one is rejected where it has videos already.
        of: "evaluation" records evaluations, "training" the episodes of training, which explore.
        every: record in every n-th evaluation, or epoch of training, including the first.
        n_episode: recorded in each, the first that begin, at most one at a time per environment.
        fps: frames per second; None is the environment's own rate, or 30.

    Raises:
        MissingExtraError: imageio-ffmpeg is not installed.
    """

    def __init__(
        self,
        folder: str | Path,
        *,
        of: Literal["evaluation", "training"] = "evaluation",
        every: int = 1,
        n_episode: int = 1,
        fps: int | None = None,
    ) -> None:
        self.folder = Path(folder)
        with Checks("RecordVideo") as checks:
            checks.one_of("of", of, ["evaluation", "training"])
            checks.integer("every", every, low=1)
            checks.integer("n_episode", n_episode, low=1)
            checks.integer("fps", fps, low=1, optional=True)
            names_file = is_video_file(self.folder)
            rule = f".folder {self.folder} names a file, and this is a folder of videos: name one, as 'videos'"
            checks.require(not names_file, rule)
            check_folder(checks, self.folder)
        check_video_path("RecordVideo.folder", self.folder)
        find_ffmpeg()
        self.claim = FolderClaim(
            "RecordVideo.folder", self.folder, "videos", lambda own: sorted(own.glob("step-*-episode-*.mp4"))
        )
        self.episodes = self._of = of
        self._every, self._n_episode, self._fps = every, n_episode, fps
        self._n_evaluations = 0
        self._epoch = 0  # of training, whose episodes are counted
        self._n_started = n_episode  # episodes recorded in this evaluation or epoch; none is left between evaluations
        self._films: dict[int, Film] = {}  # by group

    def check(self, trainer: "Trainer") -> None:
        """Raise a `ConfigError` for a run without such episodes, or whose environments cannot render."""
        envs = self._envs(trainer)
        modes = envs.call("render_mode")
        if any(mode != "rgb_array" for mode in modes):
            raise ConfigError(
                f"RecordVideo needs environments of {self._of} that render arrays, {envs.name} has render_mode "
                f'{modes[0]!r}: make_envs(..., env_kwargs={{"render_mode": "rgb_array"}})'
            )
        if self._fps is None:
            (metadata,) = envs.call("metadata", env_ids=envs.all_ids[:1])
            self._fps = int(metadata.get("render_fps") or 30)

    def on_evaluate_start(self, trainer: "Trainer") -> None:
        self._discard()
        self._count_from_0(is_chosen=self._n_evaluations % self._every == 0)
        self._n_evaluations += 1

    def on_episode_start(self, trainer: "Trainer", episode: Episode) -> None:
        group = self._group_of(trainer, episode)
        if group in self._films:
            if episode.env_id not in self._films[group].env_ids:  # another row of the same group
                self._films[group].env_ids.add(episode.env_id)
                return
            self._films.pop(group).drop()  # a reset broke it off
        if self._of == "training" and trainer.epoch != self._epoch:
            self._epoch = trainer.epoch
            self._count_from_0(is_chosen=(self._epoch - 1) % self._every == 0)
        envs = self._envs(trainer)
        is_first = episode.env_id % envs.group_size == 0  # of the rows of a group, which all start together
        if self._n_started >= self._n_episode or not is_first:
            return
        self.claim.hold()
        path = self.folder / f"step-{trainer.clock:09d}-episode-{self._n_started}.mp4"
        self._n_started += 1
        title = f"game {group}: {', '.join(envs.agents)}" if envs.agents else ""
        self._films[group] = Film(path, self._fps or 30, title=title)
        self._films[group].env_ids.add(episode.env_id)
        self._add_frame(trainer, episode)

    def on_episode_step(self, trainer: "Trainer", episode: Episode) -> None:
        if self._group_of(trainer, episode) in self._films:
            self._add_frame(trainer, episode)

    def on_episode_end(self, trainer: "Trainer", episode: Episode) -> None:
        film = self._films.pop(self._group_of(trainer, episode), None)
        if film is not None:
            film.finish()

    def on_episode_failed(self, trainer: "Trainer", episode: Episode, error: Exception) -> None:
        film = self._films.pop(self._group_of(trainer, episode), None)
        if film is not None:
            film.drop()

    def on_evaluate_end(self, trainer: "Trainer", stats: CollectStats) -> None:
        self._n_started = self._n_episode
        self._discard()

    def on_train_end(self, trainer: "Trainer") -> None:
        self._discard()

    def receives(self, event: str) -> bool:
        """Return whether it receives an event: those of evaluations only to record them."""
        return super().receives(event) and not (event.startswith("on_evaluate_") and self._of == "training")

    def state_dict(self) -> dict[str, Any]:
        return {"n_evaluations": self._n_evaluations, "epoch": self._epoch}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._n_evaluations, self._epoch = state["n_evaluations"], state["epoch"]

    def _count_from_0(self, *, is_chosen: bool) -> None:
        """Count the episodes of another evaluation or epoch, which is recorded if it is chosen."""
        self._n_started = 0 if is_chosen else self._n_episode

    def _group_of(self, trainer: "Trainer", episode: Episode) -> int:
        """Return the index of an episode's group of rows, of its environment where each is alone."""
        return episode.env_id // self._envs(trainer).group_size

    def _add_frame(self, trainer: "Trainer", episode: Episode) -> None:
        """Add a frame, once in a vector step."""
        film, step = self._films[self._group_of(trainer, episode)], self._collector(trainer).env_step
        if film.step != step:
            film.step = step
            (frame,) = self._envs(trainer).render(np.array([episode.env_id]))
            film.add(frame)

    def _envs(self, trainer: "Trainer") -> Envs:
        """Return the environments that are recorded."""
        return self._collector(trainer).envs

    def _collector(self, trainer: "Trainer") -> Collector:
        collector = trainer.train_collector if self._of == "training" else trainer.test_collector
        if not isinstance(collector, Collector):
            remedy = "offline there are none" if self._of == "training" else "give a test_collector or an evaluation"
            raise ConfigError(f"RecordVideo(of={self._of!r}) needs a trainer with environments of {self._of}: {remedy}")
        return collector

    def _discard(self) -> None:
        """Discard incomplete videos, of evaluations that were interrupted or that counted steps."""
        for film in self._films.values():
            film.drop()
        self._films.clear()
