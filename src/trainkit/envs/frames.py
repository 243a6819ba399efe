"""Pictures of environments, for videos: arrays of colours, or a refusal that says what to do."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from trainkit.core.errors import ConfigError
from trainkit.envs.backends import Ids


def checked_frames(frames: list[Any], env_ids: Ids) -> list[NDArray[np.uint8]]:
    """Return what environments rendered, [height, width, 3] each; refuse anything else.

    Raises:
        ConfigError: an environment was not made to render arrays.
    """
    for env_id, frame in zip(env_ids.tolist(), frames, strict=True):
        is_picture = isinstance(frame, np.ndarray) and frame.dtype == np.uint8 and frame.ndim == 3
        if not (is_picture and frame.shape[2] == 3):
            got = f"{frame.dtype} {frame.shape}" if isinstance(frame, np.ndarray) else type(frame).__name__
            raise ConfigError(
                f"env {env_id} must render uint8 arrays [height, width, 3], got {got}: make it with "
                'make_envs(..., env_kwargs={"render_mode": "rgb_array"})'
            )
    return frames
