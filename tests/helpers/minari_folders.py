"""Folders in Minari's format, written by hand with h5py: tests need no Minari."""

import io
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np


def serialized(space: gym.Space[Any]) -> dict[str, Any]:
    """Describe a space as `minari.serialization.serialize_space` does."""
    kind = type(space).__name__
    if isinstance(space, gym.spaces.Dict):
        return {"type": kind, "subspaces": {key: serialized(child) for key, child in space.spaces.items()}}
    if isinstance(space, gym.spaces.Tuple):
        return {"type": kind, "subspaces": [serialized(child) for child in space.spaces]}
    if isinstance(space, gym.spaces.Box):
        bounds = {"low": space.low.tolist(), "high": space.high.tolist()}
        return {"type": kind, "dtype": str(space.dtype), "shape": list(space.shape), **bounds}
    if isinstance(space, gym.spaces.Discrete):
        return {"type": kind, "dtype": "int64", "start": int(space.start), "n": int(space.n)}
    if isinstance(space, gym.spaces.MultiDiscrete):
        return {"type": kind, "dtype": str(space.dtype), "nvec": space.nvec.tolist(), "start": space.start.tolist()}
    assert isinstance(space, gym.spaces.MultiBinary)
    return {"type": kind, "n": space.n}


def write_minari(
    folder: Path,
    observation_space: gym.Space[Any],
    action_space: gym.Space[Any],
    episodes: Sequence[Mapping[str, Any]],
    **metadata: Any,
) -> Path:
    """Write episodes, each a dict of Minari's names to arrays and trees of them; return the folder."""
    import h5py

    data = folder / "data"
    data.mkdir(parents=True)
    with h5py.File(data / "main_data.hdf5", "w", track_order=True) as file:
        for number, episode in enumerate(episodes):
            group = file.create_group(f"episode_{number}")
            group.attrs.update({"id": number, "total_steps": len(episode["rewards"]), "seed": 7})
            for name, columns in episode.items():
                _write(group, name, columns)
    about = {
        "total_episodes": len(episodes),
        "total_steps": sum(len(episode["rewards"]) for episode in episodes),
        "data_format": "hdf5",
        "jpeg_encoding": True,
        "observation_space": json.dumps(serialized(observation_space)),
        "action_space": json.dumps(serialized(action_space)),
        "env_spec": env_spec("nowhere:Nothing"),
        "dataset_id": "by/hand-v0",
        "minari_version": "0.5.4",
    }
    (data / "metadata.json").write_text(json.dumps(about | metadata))
    return folder


def env_spec(entry_point: str, **kwargs: Any) -> str:
    """Describe how `gymnasium.make` makes an environment, as `EnvSpec.to_json` does."""
    spec = {"id": "E-v0", "entry_point": entry_point, "kwargs": kwargs, "additional_wrappers": []}
    spec |= {"nondeterministic": False, "order_enforce": True, "disable_env_checker": False}
    return json.dumps(spec | {"reward_threshold": None, "max_episode_steps": None, "vector_entry_point": None})


def _write(group: Any, name: str, columns: Any) -> None:
    if isinstance(columns, tuple):
        columns = {f"_index_{place}": child for place, child in enumerate(columns)}
    if isinstance(columns, dict):
        inside = group.create_group(name)
        for key, child in columns.items():
            _write(inside, key, child)
    else:
        group.create_dataset(name, data=columns, chunks=True, maxshape=(None, *np.shape(columns)[1:]))


def change_metadata(folder: Path, **changes: Any) -> None:
    """Replace values in the metadata; None removes one."""
    path = folder / "data" / "metadata.json"
    about = json.loads(path.read_text()) | changes
    path.write_text(json.dumps({name: value for name, value in about.items() if value is not None}))


def jpeg(image: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """Compress an image as Minari does."""
    from PIL import Image

    content = io.BytesIO()
    Image.fromarray(image).save(content, format="JPEG")
    return np.frombuffer(content.getvalue(), np.uint8)
