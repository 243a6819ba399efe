"""Episodes are rewritten while they are read, loaded or streamed; what does not fit is an error."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import trainkit as tk
from tests.extensions.offline.numbered_files import lengths, record
from trainkit.core.errors import ConfigError
from trainkit.datasets import load_dataset, stream_dataset


def return_to_go(episode: Any) -> Any:
    return replace(episode, reward=np.cumsum(episode.reward[::-1])[::-1].copy(), obs=episode.obs + 0.5)


@pytest.mark.parametrize("is_streamed", [False, True])
def test_every_episode_is_rewritten_as_a_whole(is_streamed: bool, tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.setattr("trainkit.buffer.recorded._MAX_ROWS", 7)  # rows of a block, fewer than of most episodes
    record(tmp_path, lengths(np.random.default_rng(1), 3))
    plain = load_dataset(tmp_path)
    changed: Any
    if is_streamed:
        changed = stream_dataset(tmp_path, shuffle_rows=100, episode_fn=return_to_go)
    else:
        changed = load_dataset(tmp_path, episode_fn=return_to_go)
    pairs = list(zip(plain.episodes(), changed.episodes(), strict=True))
    assert max(len(one) for one, _ in pairs) > 14
    for one, other in pairs:
        expected = return_to_go(one)
        for name in ("obs", "action", "reward"):
            np.testing.assert_array_equal(getattr(other, name), getattr(expected, name))
        assert (other.terminated, other.truncated) == (one.terminated, one.truncated)


@pytest.mark.parametrize(
    ("episode_fn", "message"),
    [
        (lambda episode: episode.reward, "must return a RecordedEpisode, got array"),
        (
            lambda episode: replace(episode, reward=episode.reward[1:]),
            r"reward is \('float64', \(4,\)\), not \('float64'",
        ),
        (
            lambda episode: replace(episode, action=episode.action * 1.0),
            r"action is \('float64', \(5,\)\), not \('int64'",
        ),
        (
            lambda episode: replace(episode, reward=episode.reward / 0),
            "episode_fn: reward must be finite, got inf in row 0",
        ),
        (lambda episode: replace(episode, action=episode.action + 3), r"action must be in \[0, 2\], got 3 in row 0"),
        (lambda episode: episode.nothing, "raised AttributeError for an episode of 5 steps"),
        (7, r"load_dataset.episode_fn must be callable, got 7"),
    ],
)
@pytest.mark.filterwarnings("ignore::RuntimeWarning")  # of dividing by 0
def test_what_does_not_fit_is_an_error_that_says_why(episode_fn: Any, message: str, tmp_path: Path) -> None:
    record(tmp_path, [[5]])
    with pytest.raises(ConfigError, match=message):
        load_dataset(tmp_path, episode_fn=episode_fn)
    with pytest.raises(ConfigError, match=message.replace("load_dataset", "stream_dataset")):
        stream_dataset(tmp_path, episode_fn=episode_fn, seed=0).sample(4, horizon=tk.Horizon())
