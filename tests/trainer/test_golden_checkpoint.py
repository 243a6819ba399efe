"""Files that an earlier commit wrote: a checkpoint resumes with all that it holds, a policy acts as it did."""

import json
import shutil
from pathlib import Path

import pytest

import trainkit as tk
from tests.golden.run import FOLDER, OBS, contents, make

SAVED = json.loads((FOLDER / "contents.json").read_text())


def test_a_checkpoint_resumes_with_all_that_it_holds(tmp_path: Path) -> None:
    shutil.copytree(FOLDER / "trainer", tmp_path / "trainer")
    with make(resume_from=tmp_path / "trainer") as trainer:
        assert contents(trainer) == SAVED
        trainer.run()
        assert (trainer.epoch, trainer.env_step) == (2, 2 * SAVED["env_step"])
        assert trainer.gradient_step > SAVED["gradient_step"]


def test_a_saved_policy_acts_as_it_did() -> None:
    policy = tk.load_policy(FOLDER / "policy")
    assert isinstance(policy, tk.DQNPolicy)
    assert policy.act(OBS).action.tolist() == SAVED["actions"]
    assert {name: weight.tolist() for name, weight in policy.get_weights().items()} == SAVED["weights"]


@pytest.mark.parametrize("name", ["trainer", "policy"])
def test_files_name_neither_a_machine_nor_a_folder(name: str) -> None:
    text = (FOLDER / name / "manifest.json").read_text()
    assert str(Path.home()) not in text
    assert "/tmp" not in text  # no file of ours is there
