"""Offline learning together with games, memory, export and frames on a device: what needs several extensions."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import trainkit as tk
from tests.extensions.export.exported_files import check_that_an_exported_graph_gives_the_flat_rows
from tests.extensions.games.tagged_games import random_player
from tests.helpers.doubles import Ledger
from tests.helpers.nested_actions import Turrets
from tests.helpers.turns import TicTacToe
from trainkit import Collector, ConfigError, Horizon, MixedBuffer, ReplayBuffer, load_dataset, make_envs


@pytest.mark.parametrize("suffix", ["npz", "hdf5"])
def test_datasets_name_the_agent_of_each_episode(suffix: Any, tmp_path: Path) -> None:
    if suffix == "hdf5":
        pytest.importorskip("h5py")
    envs, ledger = make_envs(TicTacToe, 2, seed=1), Ledger()
    collector = Collector(random_player(envs), envs, ledger)
    collector.collect(n_step=2)
    with tk.callbacks.DatasetWriter(tmp_path, format=suffix, max_bytes=4_000).record(collector):
        collector.collect(n_episode=9)
    whole, noughts = load_dataset(tmp_path), load_dataset(tmp_path, agents=["nought"])
    rows = ledger.rows()
    is_recorded = np.arange(len(rows.reward)) >= 2
    for buffer, wanted in ((whole, is_recorded), (noughts, is_recorded & (rows.env_ids % 2 == 1))):
        batch = buffer.sample(None, horizon=Horizon(), columns=("terminated",))
        assert sorted(batch.reward.tolist()) == sorted(rows.reward[wanted].astype(np.float32).tolist())
        assert batch.extras["terminated"].sum() == rows.terminated[wanted].sum()
    with pytest.raises(ConfigError, match=r"agents names 'circle', and the files have \['cross', 'nought'\]"):
        load_dataset(tmp_path, agents=["circle"])
    with pytest.raises(ConfigError, match=r"agents must be a sequence of names, got 'nought'"):
        load_dataset(tmp_path, agents="nought")


def test_a_mix_refuses_a_source_with_images_elsewhere() -> None:
    with pytest.raises(ConfigError, match=r"MixedBuffer\.proportions\[1\] has frames on a device"):
        MixedBuffer({ReplayBuffer(5): 0.5, ReplayBuffer(5, frames=tk.engine.DeviceFrames("cpu")): 0.5})


@pytest.mark.slow
@pytest.mark.no_cover  # most of it is torch's exporter
def test_an_exported_graph_of_behavior_cloning_gives_the_flat_rows(tmp_path: Path) -> None:
    check_that_an_exported_graph_gives_the_flat_rows(Turrets, tk.BCPolicy, tmp_path)
