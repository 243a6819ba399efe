"""Names that users of other libraries write, and files they give: the answer says what it is called here."""

import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gymnasium import spaces

import trainkit as tk
from tests.helpers.learning import FOUR_NUMBERS, Spaces, batch_of
from trainkit.buffer import PrioritizedReplayBuffer
from trainkit.core.data import Transition
from trainkit.errors import CheckpointError


@pytest.mark.parametrize(
    ("line", "hint"),
    [
        (
            "from trainkit import Batch",
            "Batch' from 'trainkit': docs/migration.md leads to the names of other libraries",
        ),
        ("from trainkit import TRPO", "TRPO' from 'trainkit': docs/migration.md leads to the names of other libraries"),
        ("from trainkit import QNetwork", "did you mean tk.nets.QNetwork?"),
    ],
)
def test_an_import_of_another_librarys_name_says_ours(line: str, hint: str) -> None:
    with pytest.raises(ImportError) as caught:
        exec(line, {})  # noqa: S102  # a line of this table
    assert hint in str(caught.value)


def test_modules_that_are_not_loaded_yet_are_still_imported_by_from() -> None:
    scope: dict[str, Any] = {}
    exec("from trainkit import plot, zoo, testing", scope)  # noqa: S102  # names that no checker resolves
    assert scope["testing"].__name__ == "trainkit.testing"
    with pytest.raises(ImportError, match="cannot import name 'nothing_like_it'"):
        exec("from trainkit import nothing_like_it", {})  # noqa: S102  # as above


@pytest.mark.parametrize(
    ("owner", "name", "hint"),
    [
        (tk, "PPO", "did you mean tk.PPOPolicy?"),
        (tk, "TRPO", "'TRPO': docs/migration.md leads to the names of other libraries"),
        (tk.presets, "PPO", "did you mean tk.presets.ppo?"),
        (tk.presets, "DQNPolicy", "did you mean tk.presets.dqn?"),
        (tk.presets, "TRPO", "'TRPO': docs/migration.md leads to the names of other libraries"),
        (batch_of(4), "n", "use len(batch)"),
        (batch_of(4), "rew", "use reward"),
        (batch_of(4), "done", "use discount"),
        (batch_of(4), "rewards", "did you mean 'reward'?"),
    ],
)
def test_an_attribute_of_another_library_says_ours(owner: Any, name: str, hint: str) -> None:
    with pytest.raises(AttributeError) as caught:
        getattr(owner, name)
    assert hint in str(caught.value)


def dqn() -> Any:
    return tk.DQNPolicy.for_envs(Spaces(FOUR_NUMBERS, spaces.Discrete(3)), hidden=(8,), device="cpu", seed=0)


def test_assigning_to_the_settings_of_a_preset_is_an_error_in_words() -> None:
    config = tk.presets.dqn.config("CartPole-v1")
    with pytest.raises(AttributeError, match="cannot assign to field 'lr'"):
        config.lr = 1e-3


# ---- files ----


def test_loading_a_buffer_by_another_class_names_its_own(tmp_path: Path) -> None:
    buffer = PrioritizedReplayBuffer(16)
    obs, flag = np.zeros((1, 1), np.float32), np.zeros(1, np.bool_)
    buffer.add(Transition(obs, np.zeros(1, np.int64), np.zeros(1), obs, flag, flag, np.arange(1), {}))
    buffer.save(tmp_path / "rows.npz")
    with pytest.raises(CheckpointError, match=r"it is a PrioritizedReplayBuffer: call PrioritizedReplayBuffer\.load"):
        tk.ReplayBuffer.load(tmp_path / "rows.npz")


@pytest.mark.parametrize("suffix", [".json", ".jsonl", ".csv", ".parquet", ".pkl"])
def test_an_error_says_how_to_read_a_dataset_of_another_format(suffix: str, tmp_path: Path) -> None:
    path = tmp_path / f"rows{suffix}"
    path.write_text("{}")
    with pytest.raises(tk.ConfigError, match=r"load_dataset reads npz and HDF5 .*ReplayBuffer\.from_arrays"):
        tk.load_dataset(path)


def test_weights_of_a_folder_of_checkpoints_are_those_of_the_newest(tmp_path: Path) -> None:
    trainer = tk.presets.dqn(
        "CartPole-v1", max_epoch=2, step_per_epoch=64, learning_starts=32, verbose=False, checkpoint=tmp_path
    )
    trainer.run()
    other = tk.load_policy(tmp_path)
    for values in other.state_dict().values():
        values.zero_()
    other.load_weights(tmp_path)
    for name, values in tk.load_policy(tmp_path).get_weights().items():
        np.testing.assert_array_equal(other.get_weights()[name], values)


# ---- methods advise as constructors do ----


def test_a_number_by_position_is_advised_to_be_an_option_that_takes_it() -> None:  # Tianshou's second is the ring
    buffer: Any = tk.PrioritizedReplayBuffer
    with pytest.raises(tk.ConfigError, match=r"takes only capacity by position.*such as n_envs=8$"):
        buffer(20_000, 8, alpha=0.6, beta=0.4)


OF_EVERY_STEP = pytest.mark.xfail(strict=True, raises=TypeError, reason="it is called in every step, and not wrapped")


@pytest.mark.parametrize(
    ("call", "hint"),
    [
        pytest.param(lambda: collector().collect(reset_before_collect=True), "reset", marks=OF_EVERY_STEP),
        (lambda: collector().reset(gym_reset_kwargs={}), "options"),
        (lambda: tk.export(dqn(), "x.pt2", format="onnx"), "formats"),
    ],
    ids=["collect", "reset", "export"],
)
def test_methods_advise_on_unknown_keywords_as_constructors_do(call: Any, hint: str) -> None:
    with pytest.raises(tk.ConfigError, match=hint):
        call()


def collector() -> Any:
    envs = tk.make_envs("CartPole-v1", 1)
    return tk.Collector(tk.RandomPolicy(envs.action_space, seed=0), envs)


@pytest.mark.parametrize("line", ["from trainkit.presets import base", "from trainkit.buffer import replay"])
def test_a_module_that_was_not_imported_is_imported_from_its_package(line: str) -> None:
    subprocess.run([sys.executable, "-c", line], check=True)
