"""Saving and continuing: everything comes back, nothing is executed, and a folder always holds a whole checkpoint."""

import contextlib
import hashlib
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import trainkit as tk
from tests.helpers.manifests import rewrite
from tests.trainer.toys import everything, make_trainer
from trainkit.core import checkpoint, files
from trainkit.core.checkpoint import load_checkpoint, save_checkpoint
from trainkit.core.data import Horizon

STATE = {
    "weights": {"tensor": torch.arange(3.0), "count": 2, "nested": [{"name": "a", "none": None}, 0.5]},
    "rows": {"array": np.arange(4, dtype=np.int8), "empty": {}, "big": 2**100},
}


def assert_is_state(loaded: dict[str, Any]) -> None:
    torch.testing.assert_close(loaded["weights"].pop("tensor"), STATE["weights"]["tensor"])
    np.testing.assert_array_equal(loaded["rows"].pop("array"), STATE["rows"]["array"])
    assert loaded["weights"] == {"count": 2, "nested": [{"name": "a", "none": None}, 0.5]}
    assert loaded["rows"] == {"empty": {}, "big": 2**100}


# ---- a folder ----


def test_components_come_back_as_they_were(tmp_path: Path) -> None:
    assert save_checkpoint(tmp_path / "deep" / "saved", STATE, {}) == tmp_path / "deep" / "saved"
    assert_is_state(load_checkpoint(tmp_path / "deep" / "saved"))


def test_a_folder_may_be_named_by_a_string(tmp_path: Path) -> None:
    save_checkpoint(str(tmp_path / "saved"), STATE, {})
    assert_is_state(load_checkpoint(str(tmp_path / "saved")))


def test_the_manifest_says_what_is_there_and_what_wrote_it(tmp_path: Path) -> None:
    save_checkpoint(tmp_path, STATE, {"settings": {"env": "CartPole-v1", "seed": 3, "odd": Path("x")}})
    manifest = json.loads((tmp_path / "manifest.json").read_text())
    assert manifest["format"] == 2
    assert manifest["settings"] == {"env": "CartPole-v1", "seed": 3, "odd": "x"}
    for name, file in (("weights", "weights-1.pt"), ("rows", "rows-1.npz")):
        content = (tmp_path / file).read_bytes()
        entry = {"file": file, "bytes": len(content), "sha256": hashlib.sha256(content).hexdigest()}
        assert manifest["components"][name] == entry
    assert manifest["versions"] == {
        "trainkit": tk.__version__, "torch": torch.__version__, "numpy": np.__version__,
        "gymnasium": manifest["versions"]["gymnasium"],
    }  # fmt: skip
    assert sorted(path.name for path in tmp_path.iterdir()) == ["manifest.json", "rows-1.npz", "weights-1.pt"]


def test_saving_again_replaces_the_former_and_leaves_what_is_not_ours_alone(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("mine")
    (tmp_path / "rows-0.npz").write_text("mine too")
    save_checkpoint(tmp_path, {"rows": {"n": 1}, "old": {"n": 1}}, {})
    save_checkpoint(tmp_path, {"rows": {"n": 2}}, {})
    assert load_checkpoint(tmp_path) == {"rows": {"n": 2}}
    names = sorted(path.name for path in tmp_path.iterdir())
    assert names == ["manifest.json", "notes.txt", "rows-0.npz", "rows-2.npz"]


def test_a_manifest_of_another_program_is_not_overwritten(tmp_path: Path) -> None:
    (tmp_path / "manifest.json").write_text('{"name": "my web page"}')
    with pytest.raises(tk.errors.CheckpointError, match="holds no readable checkpoint"):
        save_checkpoint(tmp_path, STATE, {})
    assert (tmp_path / "manifest.json").read_text() == '{"name": "my web page"}'


class Killed(BaseException):
    """Stands for SIGKILL: nothing is cleaned up after it."""


@pytest.mark.parametrize("died", [False, True])
@pytest.mark.parametrize("at", range(6))
def test_a_write_that_fails_anywhere_leaves_the_former_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, at: int, died: bool
) -> None:
    left = at

    def tick() -> None:
        nonlocal left
        left -= 1
        if left < 0:
            raise Killed if died else OSError(28, "No space left on device")

    def failing(path: Path, write: Any) -> None:
        tick()  # before anything is written
        whole(path, write)
        tick()  # in its place already

    save_checkpoint(tmp_path, STATE, {})
    whole = files.write_whole
    monkeypatch.setattr(files, "write_whole", failing)
    if died:
        monkeypatch.setattr(checkpoint, "_remove", lambda *_: None)
    newer = {"weights": {"tensor": torch.zeros(9)}, "rows": {"array": np.zeros(9)}}
    message = None if died else f"no checkpoint could be written to {tmp_path}: .*No space left on device; a former"
    with pytest.raises(Killed if died else tk.errors.CheckpointError, match=message):
        save_checkpoint(tmp_path, newer, {})
    monkeypatch.undo()
    is_written = at == 5  # the manifest is in its place: from here on the newer one counts
    if is_written and died:
        torch.testing.assert_close(load_checkpoint(tmp_path)["weights"]["tensor"], torch.zeros(9))
    elif not is_written:
        assert_is_state(load_checkpoint(tmp_path))
        if not died:
            assert len(list(tmp_path.iterdir())) == 3
    save_checkpoint(tmp_path, STATE, {})
    assert_is_state(load_checkpoint(tmp_path))


def test_a_component_that_cannot_be_written_is_rejected_and_the_former_stays(tmp_path: Path) -> None:
    save_checkpoint(tmp_path, STATE, {})
    with pytest.raises(tk.ConfigError, match=r"a state cannot be saved .*not JSON serializable"):
        save_checkpoint(tmp_path, {"weights": STATE["weights"], "rows": {"odd": {1, 2}}}, {})
    assert_is_state(load_checkpoint(tmp_path))


def test_a_folder_that_cannot_be_made_is_reported(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(tk.errors.CheckpointError, match="no checkpoint could be written to"):
        save_checkpoint(tmp_path / "file" / "saved", STATE, {})


# ---- damage ----


@pytest.mark.parametrize("name", ["weights-1.pt", "rows-1.npz", "manifest.json"])
def test_a_truncated_file_is_rejected(tmp_path: Path, name: str) -> None:
    save_checkpoint(tmp_path, STATE, {})
    whole = (tmp_path / name).read_bytes()
    for length in (0, 1, 10, len(whole) // 2, len(whole) - 1):
        (tmp_path / name).write_bytes(whole[:length])
        reported = rf"{name} is damaged: it has {length} of {len(whole)} bytes|holds no readable checkpoint"
        with pytest.raises(tk.errors.CheckpointError, match=reported):
            load_checkpoint(tmp_path)


@pytest.mark.parametrize("name", ["weights-1.pt", "rows-1.npz", "manifest.json"])
def test_a_missing_file_is_rejected(tmp_path: Path, name: str) -> None:
    save_checkpoint(tmp_path, STATE, {})
    (tmp_path / name).unlink()
    with pytest.raises(
        tk.errors.CheckpointError, match=rf"cannot be read.*{name}|holds no readable checkpoint: .*{name}"
    ):
        load_checkpoint(tmp_path)


FIELDS = {"format": 1, "serial": 1, "components": {}}
WRONG_TYPES = [
    json.dumps(FIELDS | change)
    for change in (
        *({name: value} for name in FIELDS for value in ("1", None, [], True, 1.5)),
        *({"components": {"policy": entry}} for entry in (7, [], {}, {"file": 1, "bytes": 2, "sha256": "a"})),
        {"components": {"policy": {"file": "a", "bytes": 1e999, "sha256": "a"}}},
        *({name: 7} for name in ("versions", "settings", "spaces", "progress", "policy", "logs")),
    )
]


@pytest.mark.parametrize(
    "content", ["[]", "7", "{}", '{"format": 1}', "null", "nonsense", "[" * 100_000, "\xff", *WRONG_TYPES]
)
def test_a_manifest_that_is_none_is_rejected(tmp_path: Path, content: str) -> None:
    (tmp_path / "manifest.json").write_text(content)
    with pytest.raises(tk.errors.CheckpointError, match="holds no readable checkpoint"):
        load_checkpoint(tmp_path)


def test_a_newer_format_is_rejected(tmp_path: Path) -> None:
    save_checkpoint(tmp_path, STATE, {})
    rewrite(tmp_path, format=3)
    with pytest.raises(tk.errors.CheckpointError, match="format 3, this trainkit reads 2: install a newer trainkit"):
        load_checkpoint(tmp_path)


@pytest.mark.parametrize("load", [load_checkpoint, tk.load_policy, tk.trainer.inspect_checkpoint])
@pytest.mark.parametrize(("versions", "writer"), [({"trainkit": "0.1.7"}, ", trainkit 0.1.7"), ({}, "")])
def test_a_former_format_is_rejected_by_name(load: Any, versions: Any, writer: str, tmp_path: Path) -> None:
    save_checkpoint(tmp_path, STATE, {})
    rewrite(tmp_path, format=1, versions=versions)
    with pytest.raises(tk.errors.CheckpointError) as caught:
        load(tmp_path)
    assert str(caught.value) == (
        f"{tmp_path} has checkpoint format 1, this trainkit reads 2: train again, or load it with the version that "
        f"wrote it{writer}"
    )


def test_a_checkpoint_of_a_former_format_is_replaced(tmp_path: Path) -> None:
    save_checkpoint(tmp_path, STATE, {})
    rewrite(tmp_path, format=1)
    save_checkpoint(tmp_path, STATE, {})
    assert load_checkpoint(tmp_path).keys() == STATE.keys()
    assert len(list(tmp_path.iterdir())) == 1 + len(STATE)


# ---- a run ----


def test_all_that_a_run_resumes_from_comes_back(tmp_path: Path) -> None:
    trainer = make_trainer(test=True, seed=5, max_epoch=2)
    trainer.run()
    trainer.save(tmp_path)
    resumed = make_trainer(test=True, seed=99, max_epoch=4, resume_from=tmp_path)
    assert everything(resumed) == everything(trainer)
    assert resumed.seed == 5
    for name in ("epoch", "env_step", "gradient_step", "n_episode", "best_score", "best_epoch", "best_env_step"):
        assert getattr(resumed.info, name) == getattr(trainer.info, name)
    assert resumed.info.seconds == pytest.approx(trainer.info.seconds)
    assert resumed.info.stop_reason is None


def test_a_resumed_run_trains_exactly_the_epochs_that_are_left(tmp_path: Path) -> None:
    make_trainer(max_epoch=2, step_per_collect=10, checkpoint=tmp_path).run()
    resumed = make_trainer(max_epoch=5, step_per_collect=10, resume_from=tmp_path)
    steps = [(result.epoch, result.info.env_step) for result in resumed]
    straight = make_trainer(max_epoch=5, step_per_collect=10)
    assert steps == [(result.epoch, result.info.env_step) for result in straight][2:]
    assert resumed.gradient_step == straight.gradient_step


def test_a_run_that_was_over_has_nothing_left(tmp_path: Path) -> None:
    make_trainer(max_epoch=2, checkpoint=tmp_path).run()
    resumed = make_trainer(max_epoch=2, resume_from=tmp_path)
    assert resumed.is_finished
    assert list(resumed) == []


def test_the_best_score_is_kept_so_that_a_worse_one_is_not_saved_over_it(tmp_path: Path) -> None:
    make_trainer(test=True, max_epoch=2, checkpoint=tmp_path, compute_score_fn=lambda stats: 7.0).run()
    saved: list[Any] = []
    resumed = make_trainer(
        test=True, resume_from=tmp_path, compute_score_fn=lambda stats: 6.0, save_best_fn=saved.append
    )
    info = resumed.run()
    assert saved == []
    assert (info.best_score, info.best_epoch, info.best_env_step) == (7.0, 1, 24)


def test_a_fraction_of_an_update_and_a_step_too_many_are_carried_over_a_checkpoint(tmp_path: Path) -> None:
    options = {"n_envs": 3, "step_per_epoch": 10, "step_per_collect": 4, "update_per_step": 0.3, "batch_size": 1}
    straight = [(r.info.env_step, r.info.gradient_step) for r in make_trainer(max_epoch=6, **options)]
    pieces = []
    for epoch in range(1, 7):
        resume = {"resume_from": tmp_path} if epoch > 1 else {}
        result = next(make_trainer(max_epoch=epoch, checkpoint=tmp_path, **resume, **options))
        pieces.append((result.info.env_step, result.info.gradient_step))
    assert pieces == straight


def test_open_episodes_that_cannot_be_played_again_are_cut_and_others_begin(tmp_path: Path) -> None:
    trainer = make_trainer(max_epoch=1, step_per_epoch=4, update_per_step=0, buffer=tk.ReplayBuffer(60))
    trainer.run()
    trainer.save(tmp_path, at="episode_end")
    resumed = make_trainer(
        max_epoch=2, step_per_epoch=4, update_per_step=0, buffer=tk.ReplayBuffer(60), resume_from=tmp_path
    )
    next(resumed)
    batch = resumed.buffer.sample(500, horizon=Horizon(3), columns=("t", "episode", "n", "env_id"))
    reported = np.stack([batch.extras[name] for name in ("env_id", "episode", "t", "n")], axis=1)
    # two environments, two steps in each before and two after: a window of three never spans both
    rows = [(env, episode, t, 2 - t) for env in (0, 1) for episode in (0, 1) for t in (0, 1)]
    assert sorted(set(map(tuple, reported.tolist()))) == sorted(rows)
    assert (batch.discount > 0).all()  # nothing was terminated
    np.testing.assert_array_equal(resumed.train_collector.envs.episodes, trainer.train_collector.envs.episodes + 1)


@pytest.mark.parametrize(("moment", "at"), [("collect", 33), ("warm-up", 3), ("update", 33), ("evaluate", 9)])
def test_a_run_saved_in_the_middle_of_an_epoch_continues_that_epoch(tmp_path: Path, moment: str, at: int) -> None:
    n_steps = 0

    def interrupt() -> None:
        nonlocal n_steps
        n_steps += 1
        if n_steps == at:
            raise KeyboardInterrupt

    class InUpdate(tk.Callback):
        def on_update_end(self, trainer: tk.Trainer) -> None:
            if moment == "update":
                interrupt()

    def reported(result: Any) -> tuple[int, int, int]:
        return result.epoch, result.info.env_step, result.info.gradient_step

    options: dict[str, Any] = {"test": True, "step_per_collect": 10, "max_epoch": 4}
    if moment == "warm-up":
        options |= {"learning_starts": 20, "warmup": "random"}
    straight = [reported(result) for result in make_trainer(**options)]
    trainer = make_trainer(callbacks=[InUpdate()], **options)
    if moment != "update":
        part = trainer.evaluation_schedule.evaluation.collector if moment == "evaluate" else trainer.train_collector
        step = part.envs.step
        part.envs.step = lambda *arguments: (interrupt(), step(*arguments))[1]  # type: ignore[method-assign]
    epochs = []
    with contextlib.suppress(KeyboardInterrupt):
        epochs.extend(reported(result) for result in trainer)
    assert n_steps == at
    epochs.clear()
    trainer.save(tmp_path)
    resumed = make_trainer(resume_from=tmp_path, **options)
    epochs += [reported(result) for result in resumed]
    assert 1 <= len(epochs) <= 4
    assert epochs == straight[-len(epochs) :]
    assert epochs[0][0] == trainer.epoch


def test_an_interrupted_warm_up_continues_at_random_in_a_resumed_run(tmp_path: Path) -> None:
    class Refuse(tk.Greedy):
        def choose(self, *arguments: Any, **more: Any) -> Any:
            raise AssertionError

    options: dict[str, Any] = {"learning_starts": 24, "warmup": "random", "step_per_collect": 12, "max_epoch": 1}
    options["policy"] = {"exploration": Refuse()}
    trainer = make_trainer(**options)
    step = trainer.train_collector.envs.step

    def interrupted(*arguments: Any) -> Any:
        if trainer.env_step == 6:
            raise KeyboardInterrupt
        return step(*arguments)

    trainer.train_collector.envs.step = interrupted  # type: ignore[method-assign]
    with pytest.raises(KeyboardInterrupt):
        next(trainer)
    trainer.save(tmp_path)
    assert next(make_trainer(resume_from=tmp_path, **options)).info.env_step == 24


# ---- of another run ----


def test_a_checkpoint_of_another_run_is_rejected_with_all_that_differs(tmp_path: Path) -> None:
    make_trainer(max_epoch=1).save(tmp_path)
    with pytest.raises(tk.errors.CheckpointError) as caught:
        make_trainer(n_envs=3, buffer=tk.ReplayBuffer(70), resume_from=tmp_path)
    assert str(caught.value).splitlines() == [
        f"{tmp_path} was saved with buffer 'PrioritizedReplayBuffer(60)', this run has 'ReplayBuffer(70)': "
        "make it as it was",
        f"{tmp_path} was saved with n_envs 2, this run has 3: make it as it was",
    ]


@pytest.mark.parametrize("name", ["trainer", "policy", "env"])
def test_another_kind_of_trainer_policy_or_environment_is_rejected(tmp_path: Path, name: str) -> None:
    make_trainer(max_epoch=1).save(tmp_path)
    rewrite(tmp_path, settings=lambda settings: settings | {name: "Other"})
    with pytest.raises(tk.errors.CheckpointError, match=f"was saved with {name} 'Other', this run has"):
        make_trainer(resume_from=tmp_path)


def test_other_spaces_are_rejected(tmp_path: Path) -> None:
    make_trainer(max_epoch=1).save(tmp_path)
    rewrite(tmp_path, spaces=lambda spaces: spaces | {"action_space": {"kind": "Discrete", "n": 3}})
    with pytest.raises(
        tk.errors.CheckpointError, match=r"was saved with action_space \{'kind': 'Discrete', 'n': 3\}, this run"
    ):
        make_trainer(resume_from=tmp_path)


def test_another_network_is_rejected_with_what_differs_and_nothing_is_half_loaded(tmp_path: Path) -> None:
    make_trainer(max_epoch=1, checkpoint=tmp_path).run()
    trainer = make_trainer(policy={"hidden": (9,), "dueling": True})
    before = everything(trainer)
    with pytest.raises(tk.errors.CheckpointError) as caught:
        trainer.load(tmp_path)
    reported = str(caught.value)
    assert reported.startswith("DQNPolicy has other parameters than those given:\n")
    assert "network.encoder.body.layers.0.weight: [9, 2] here, [8, 2] given" in reported
    assert "network.heads.state_value.layers.0.weight: [1, 9] here, none given" in reported
    assert everything(trainer) == before


def test_nothing_there_is_reported_before_anything_is_made(tmp_path: Path) -> None:
    with pytest.raises(tk.errors.CheckpointError, match="holds no readable checkpoint"):
        make_trainer(resume_from=tmp_path / "nowhere", logger=tmp_path / "run")
    assert list(tmp_path.iterdir()) == []
