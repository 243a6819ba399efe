"""Writing the episodes of a buffer as a local Minari dataset."""

import warnings
from collections.abc import Iterator
from typing import Any

import numpy as np

from trainkit.buffer.replay import ReplayBuffer
from trainkit.core import tree
from trainkit.core.errors import ConfigError
from trainkit.core.extras import import_extra
from trainkit.core.signatures import checked
from trainkit.core.spaces import array_specs, structure_of


@checked
def to_minari(buffer: ReplayBuffer, dataset_id: str, *, env: str | None = None, **about: Any) -> Any:
    """Write the episodes of a buffer as a local Minari dataset, and return it as a `minari.MinariDataset`.

    `minari.load_dataset(dataset_id)` and `from_minari(dataset_id)` give the same episodes, final observations included;
    images are stored without loss. Actions are the environment's own.
    Columns of the policy are left out, and episodes whose first rows were overwritten.

    Args:
        buffer: has the episodes, such as `load_dataset("recorded/")`, and knows their spaces.
        dataset_id: such as "corridor/random-v0".
        env: id of the environment that they are from.
        about: what Minari stores with them: algorithm_name, author, description and other arguments of its
            `create_dataset_from_buffers`.

    Raises:
        MissingExtraError: Minari or h5py is not installed.
        ConfigError: Minari has a dataset of this id, or cannot store these; or the buffer has no whole episode.
    """
    minari = import_extra("to_minari", "minari", "minari")
    collected = import_extra("to_minari", "minari.data_collector", "minari")
    import_extra("to_minari", "h5py", "minari")
    structure = structure_of(buffer.action_space)
    episodes = [collected.EpisodeBuffer(**episode) for episode in _episodes(buffer)]
    if not episodes:
        raise ConfigError(f"to_minari found no whole episode in {buffer!r}: collect some")
    has_images = any(len(spec.shape) > 1 for spec in tree.leaves(array_specs(buffer.observation_space)))
    try:
        with warnings.catch_warnings(action="ignore"):  # of everything that is not said about authors
            return minari.create_dataset_from_buffers(
                dataset_id,
                episodes,
                env=env,
                observation_space=buffer.observation_space,
                action_space=buffer.action_space if structure is None else structure.nested,
                data_format="hdf5",
                **({"jpeg_encoding": False} if has_images else {}),
                **about,
            )
    except Exception as error:  # whatever Minari raises
        raise ConfigError(f"to_minari cannot write {dataset_id!r}: {type(error).__name__}: {error}") from error


def _episodes(buffer: ReplayBuffer) -> Iterator[dict[str, Any]]:
    """Yield the arguments of Minari's episodes."""
    specs, structure = array_specs(buffer.observation_space), structure_of(buffer.action_space)
    for number, episode in enumerate(buffer.episodes()):
        shapes = [
            (spec.shape, leaf.shape[1:])
            for spec, leaf in zip(tree.leaves(specs), tree.leaves(episode.obs), strict=True)
        ]
        if any(own != found for own, found in shapes):
            raise ConfigError("to_minari cannot write a buffer of stacked frames: load or collect it with stack=1")
        last = np.arange(len(episode)) == len(episode) - 1
        yield {
            "id": number,
            "observations": episode.obs,
            "actions": episode.action if structure is None else structure.unpack(episode.action),
            "rewards": episode.reward,
            "terminations": last & episode.terminated,
            "truncations": last & episode.truncated,
            "infos": {},
        }
