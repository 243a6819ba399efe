"""Videos of episodes that are played to be looked at: a wrapper that films every one of them."""

from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np

from trainkit.envs.validation import check_rendered
from trainkit.trainer.callbacks.video import Film


class Filmed(gym.Wrapper[Any, Any, Any, Any]):
    """Write each whole episode as `folder/episode-000.mp4`; the environment must render arrays."""

    def __init__(self, env: gym.Env[Any, Any], folder: Path) -> None:
        super().__init__(env)
        self._folder = folder
        self._film: Film | None = None
        self._n_begun = 0

    def reset(self, **options: Any) -> Any:
        """Begin another film."""
        begun = super().reset(**options)
        self._film = Film(self._folder / f"episode-{self._n_begun:03d}.mp4", int(self.metadata.get("render_fps") or 30))
        self._n_begun += 1
        self._shoot()
        return begun

    def step(self, action: Any) -> Any:
        """Shoot what came of it, and finish the film with the episode."""
        outcome = super().step(action)
        self._shoot()
        if (outcome[2] or outcome[3]) and self._film is not None:
            self._film.finish()
            self._film = None
        return outcome

    def _shoot(self) -> None:
        if self._film is not None:
            (frame,) = check_rendered([self.render()], np.zeros(1, np.intp))
            self._film.add(frame)
