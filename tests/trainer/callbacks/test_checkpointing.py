"""The callback that saves: when, how many are kept, which is the best, and what happens when it cannot."""

import dataclasses
import logging
import math
import os
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import trainkit as tk
from tests.trainer.full_disk import check_that_a_best_may_fail, fill_disk
from tests.trainer.toys import Log, everything, make_onpolicy_trainer, make_policy, make_trainer
from trainkit.core import files
from trainkit.core.checkpoint import damage, find_checkpoints, numbered, read_manifest


def saved(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def progress(folder: Path) -> tuple[int, int, int]:
    received = read_manifest(folder)["progress"]
    return received["epoch"], received["env_step"], received["gradient_step"]


# ---- when ----


@pytest.mark.parametrize(("every", "expected"), [(1, [1, 2, 3, 4, 5]), (2, [2, 4, 5]), (9, [5])])
def test_it_saves_every_n_epochs_and_at_the_end(every: int, expected: list[int], tmp_path: Path) -> None:
    checkpoint = tk.Checkpoint(tmp_path, every=every, keep_last=9)
    make_trainer(max_epoch=5, step_per_epoch=4, callbacks=[checkpoint]).run()
    assert [progress(path)[0] for _, path in numbered(tmp_path)] == expected


def test_it_saves_every_n_environment_steps_in_the_middle_of_epochs(tmp_path: Path) -> None:
    checkpoint = tk.Checkpoint(tmp_path, every=10, unit="env_steps", keep_last=99)
    make_trainer(max_epoch=2, step_per_epoch=24, step_per_collect=4, checkpoint=checkpoint).run()
    assert [progress(path)[1] for _, path in numbered(tmp_path)] == [12, 20, 32, 40, 48]


def test_it_saves_every_n_updates_when_all_pending_ones_are_made(tmp_path: Path) -> None:
    checkpoint = tk.Checkpoint(tmp_path, every=4, unit="updates", keep_last=99)
    make_onpolicy_trainer(max_epoch=2, checkpoint=checkpoint).run()  # rollouts of 3 updates
    assert [progress(path)[2] for _, path in numbered(tmp_path)] == [6, 9, 12, 12]  # the last is of the end


def test_it_saves_every_n_seconds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    now = 0.0
    monkeypatch.setattr("trainkit.trainer.callbacks.checkpointing.time.monotonic", lambda: now)

    class Clock(tk.Callback):
        def on_collect_end(self, trainer: tk.Trainer, stats: tk.CollectStats) -> None:
            nonlocal now
            now += 7.0

    checkpoint = tk.Checkpoint(tmp_path, every=20, unit="seconds", keep_last=99)
    make_trainer(max_epoch=1, step_per_epoch=16, callbacks=[Clock()], checkpoint=checkpoint).run()  # 2 steps a collect
    assert [progress(path)[1] for _, path in numbered(tmp_path)] == [6, 12, 16]


@pytest.mark.parametrize("unit", ["env_steps", "updates"])
def test_a_resumed_run_saves_when_an_uninterrupted_one_does(unit: Any, tmp_path: Path) -> None:
    def run(folder: Path, **options: Any) -> list[tuple[int, int, int]]:
        checkpoint = tk.Checkpoint(folder, every=7, unit=unit, keep_last=99)
        make_trainer(step_per_collect=4, checkpoint=checkpoint, **options).run()
        return [progress(path) for _, path in numbered(folder)]

    straight = run(tmp_path / "straight", max_epoch=3)
    run(tmp_path / "pieces", max_epoch=1)
    pieces = run(tmp_path / "pieces", max_epoch=3, resume_from="auto")
    assert [place for place in pieces if place[1] != 24] == [place for place in straight if place[1] != 24]


def test_a_run_saved_within_an_epoch_continues_to_the_same_bits(tmp_path: Path) -> None:
    straight = make_trainer(test=True, max_epoch=2, step_per_collect=4)
    straight.run()
    checkpoint = tk.Checkpoint(tmp_path, every=10, unit="env_steps", keep_last=99)
    make_trainer(test=True, max_epoch=2, step_per_collect=4, checkpoint=checkpoint).run()
    for _, folder in numbered(tmp_path):
        resumed = make_trainer(test=True, max_epoch=2, step_per_collect=4, resume_from=folder)
        resumed.run()
        assert everything(resumed) == everything(straight), folder


# ---- which are kept ----


def test_the_last_are_kept(tmp_path: Path) -> None:
    make_trainer(max_epoch=5, checkpoint=tk.Checkpoint(tmp_path, keep_last=2)).run()
    assert saved(tmp_path) == ["save-000004", "save-000005"]
    assert [progress(path)[0] for path in find_checkpoints(tmp_path)] == [5, 4]


def test_a_finished_run_removes_what_it_was_killed_before_removing(tmp_path: Path) -> None:
    make_trainer(max_epoch=5, checkpoint=tk.Checkpoint(tmp_path, keep_last=3)).run()
    make_trainer(max_epoch=5, checkpoint=tk.Checkpoint(tmp_path, keep_last=2), resume_from="auto").run()
    assert saved(tmp_path) == ["save-000004", "save-000005"]


def test_what_a_damaged_checkpoint_is_replaced_by_is_not_removed(tmp_path: Path) -> None:
    make_trainer(max_epoch=5, checkpoint=tk.Checkpoint(tmp_path, keep_last=3)).run()
    next((tmp_path / "save-000005").glob("policy*")).write_bytes(b"damaged")
    make_trainer(max_epoch=4, checkpoint=tk.Checkpoint(tmp_path, keep_last=1), resume_from="auto").run()
    assert saved(tmp_path) == ["save-000004", "save-000005"]


def test_a_run_that_resumes_from_its_folder_continues_the_numbers(tmp_path: Path) -> None:
    make_trainer(max_epoch=2, checkpoint=tmp_path).run()
    for number, place in ((3, "auto"), (4, tmp_path), (5, tmp_path / "save-000004")):
        make_trainer(max_epoch=number, checkpoint=tmp_path, resume_from=place).run()
        assert saved(tmp_path) == [f"save-{number:06d}"]


def test_what_is_not_ours_stays_and_leftovers_of_killed_saves_go(tmp_path: Path) -> None:
    (tmp_path / "save-mine").mkdir()
    (tmp_path / "save-000001").mkdir()
    (tmp_path / "save-000001" / "policy-1.pt").touch()  # and no manifest
    (tmp_path / ".old-save-000000").mkdir()
    make_trainer(max_epoch=2, checkpoint=tmp_path).run()
    assert saved(tmp_path) == ["save-000003", "save-mine"]


def test_a_checkpoint_that_cannot_be_removed_now_is_removed_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def busy(*_: Any, **__: Any) -> None:
        raise OSError("busy")

    with monkeypatch.context() as patch:
        patch.setattr(Path, "rename", busy)
        make_trainer(max_epoch=2, checkpoint=tmp_path).run()
    assert saved(tmp_path) == ["save-000001", "save-000002"]
    make_trainer(max_epoch=3, checkpoint=tmp_path, resume_from="auto").run()
    assert saved(tmp_path) == ["save-000003"]


def test_the_best_epoch_has_a_checkpoint_of_its_own_without_a_buffer(tmp_path: Path) -> None:
    class Score(tk.Callback):
        def on_collect_end(self, trainer: tk.Trainer, stats: tk.CollectStats) -> None:
            if trainer.epoch > 1:
                trainer.log("own", [3.0, 5.0, math.nan, 5.0, 4.0][trainer.epoch - 2])

    checkpoint = tk.Checkpoint(tmp_path, keep_best="custom/own")
    trainer = make_trainer(max_epoch=6, step_per_epoch=4, callbacks=[Score(), checkpoint])
    best = [progress(tmp_path / "best")[0] if (tmp_path / "best").exists() else None for _ in trainer]
    assert best == [None, 2, 3, 3, 3, 3]
    assert sorted(read_manifest(tmp_path / "best")["components"]) == ["collector", "policy", "trainer"]


def test_a_best_that_was_reached_before_a_stop_is_not_covered_by_a_worse_one(tmp_path: Path) -> None:
    make_trainer(test=True, max_epoch=1, checkpoint=tmp_path).run()
    before = read_manifest(tmp_path / "best")
    value = before["progress"]["best_score"]
    trainer = make_trainer(
        test=True, max_epoch=3, checkpoint=tmp_path, resume_from="auto", reward_metric=lambda returns: returns - 99
    )
    trainer.run()
    assert read_manifest(tmp_path / "best") == before
    assert value > trainer.history[-1]["test/returns/mean"]


# ---- what is in them ----


def test_without_a_saved_buffer_a_run_collects_before_it_learns(tmp_path: Path, caplog: Any) -> None:
    checkpoint = tk.Checkpoint(tmp_path, with_buffer=False)
    make_trainer(max_epoch=1, learning_starts=12, checkpoint=checkpoint).run()
    resumed = make_trainer(max_epoch=3, learning_starts=12, resume_from=tmp_path)
    assert "was saved without its buffer: the run continues with none of the rows it had" in caplog.text
    assert (resumed.env_step, len(resumed.buffer)) == (24, 0)
    sizes: list[int] = []

    class Sizes(tk.Callback):
        def on_update_end(self, trainer: tk.Trainer) -> None:
            sizes.append(len(trainer.buffer))

    resumed = make_trainer(max_epoch=3, learning_starts=12, resume_from=tmp_path, callbacks=[Sizes()])
    resumed.run()
    assert min(sizes) == 12
    again = make_trainer(max_epoch=3, learning_starts=12, resume_from=resumed.save(tmp_path / "again"))
    assert again.state_dict()["learns_from"] == 36


def test_a_buffer_that_is_not_wanted_is_taken_over_with_a_word(tmp_path: Path, caplog: Any) -> None:
    make_trainer(max_epoch=1, checkpoint=tmp_path).run()
    checkpoint = tk.Checkpoint(tmp_path, with_buffer=False)
    resumed = make_trainer(checkpoint=checkpoint, resume_from="auto")
    assert len(resumed.buffer) == 24
    assert "has a buffer, which is restored; this run's own checkpoints leave it out" in caplog.text


def test_components_can_be_left_out_and_loaded_alone(tmp_path: Path) -> None:
    trainer = make_trainer(max_epoch=1)
    trainer.run()
    trainer.save(tmp_path / "policy", include=["policy"])
    assert sorted(read_manifest(tmp_path / "policy")["components"]) == ["policy"]
    other = make_trainer(seed=5)
    other.load(tmp_path / "policy", include=["policy"])
    assert other.gradient_step == trainer.gradient_step
    assert (other.epoch, other.env_step, other.seed) == (0, 0, 5)
    with pytest.raises(
        tk.errors.CheckpointError, match=r"was saved without buffer, collector, trainer: load it with exclude="
    ):
        other.load(tmp_path / "policy")


def test_components_that_are_none_are_refused(tmp_path: Path) -> None:
    trainer = make_trainer()
    with pytest.raises(tk.ConfigError) as caught:
        trainer.save(tmp_path, include="policy", exclude=["bufer"])
    assert str(caught.value).splitlines() == [
        "Trainer.save.include must be a list of names, got 'policy': give ['policy']",
        "Trainer.save.exclude must be one of ['policy', 'buffer', 'collector', 'trainer'], got 'bufer', "
        "did you mean 'buffer'?",
    ]
    with pytest.raises(tk.ConfigError, match=r"Trainer.save.at must be one of \['now', 'episode_end'\], got 'end'"):
        trainer.save(tmp_path, at="end")  # type: ignore[arg-type]  # refused


# ---- the newest whole one ----


def test_auto_starts_over_without_a_checkpoint_and_says_so(tmp_path: Path, caplog: Any) -> None:
    caplog.set_level(logging.INFO)
    trainer = make_trainer(checkpoint=tmp_path / "saved", resume_from="auto")
    assert trainer.epoch == 0
    assert "holds no checkpoint: the run starts from the beginning" in caplog.text


def test_auto_resumes_from_the_newest_and_says_so(tmp_path: Path, caplog: Any) -> None:
    caplog.set_level(logging.INFO)
    make_trainer(max_epoch=2, checkpoint=tk.Checkpoint(tmp_path, keep_last=2)).run()
    assert make_trainer(checkpoint=tmp_path, resume_from="auto").epoch == 2
    assert f"resumed from {tmp_path / 'save-000002'}, epoch 2" in caplog.text


@pytest.mark.fast_cases(2)
@pytest.mark.parametrize("harm", ["truncated", "flipped", "missing", "manifest"])
def test_auto_takes_the_one_before_a_damaged_one_and_says_so(harm: str, tmp_path: Path, caplog: Any) -> None:
    make_trainer(max_epoch=3, checkpoint=tk.Checkpoint(tmp_path, keep_last=2)).run()
    file = tmp_path / "save-000003" / ("manifest.json" if harm == "manifest" else "policy-1.pt")
    content = file.read_bytes()
    if harm == "missing":
        file.unlink()
    else:
        file.write_bytes(content[:-9] if harm == "truncated" else bytes([content[0] ^ 1]) + content[1:])
    assert make_trainer(checkpoint=tmp_path, resume_from="auto").epoch == 2
    assert "; trying the one before" in caplog.text
    with pytest.raises(tk.errors.CheckpointError):
        make_trainer(resume_from=tmp_path)  # what was named is taken, or refused


def test_auto_does_not_start_over_where_all_are_damaged(tmp_path: Path) -> None:
    make_trainer(max_epoch=1, checkpoint=tmp_path).run()
    (tmp_path / "save-000001" / "policy-1.pt").unlink()
    with pytest.raises(
        tk.errors.CheckpointError, match=r"no checkpoint in .* is intact: remove them to start from the beginning"
    ):
        make_trainer(checkpoint=tmp_path, resume_from="auto")


def test_auto_does_not_pass_over_the_checkpoint_of_another_run(tmp_path: Path) -> None:
    make_trainer(max_epoch=1, checkpoint=tmp_path).run()
    with pytest.raises(tk.errors.CheckpointError, match="was saved with n_envs 2, this run has 3"):
        make_trainer(n_envs=3, checkpoint=tmp_path, resume_from="auto")


def test_auto_without_a_checkpoint_is_refused() -> None:
    with pytest.raises(tk.ConfigError, match='resume_from="auto" needs checkpoint='):
        make_trainer(resume_from="auto")


# ---- when it cannot ----


def test_a_full_disk_keeps_the_former_checkpoint_and_the_run_continues(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: Any
) -> None:
    fill_disk(monkeypatch, lambda path: trainer.epoch in (2, 3) and path.name.startswith("buffer"))
    trainer = make_trainer(max_epoch=4, checkpoint=tmp_path)
    epochs = []
    for epoch, _, _ in trainer:
        epochs.append((epoch, [progress(path)[0] for path in find_checkpoints(tmp_path)]))
        assert all(damage(path) is None for path in find_checkpoints(tmp_path))
    assert epochs == [(1, [1]), (2, [1]), (3, [1]), (4, [4])]
    assert caplog.text.count("No space left on device; a former one is whole; the run continues") == 2
    assert saved(tmp_path) == ["save-000002"]


def test_the_best_is_the_best_that_could_be_saved(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Score(tk.Callback):
        def on_epoch_end(self, trainer: tk.Trainer, result: Any) -> None:
            trainer.log("own", [5.0, 9.0, 7.0, 6.0, 8.0][trainer.epoch - 1])

    checkpoint = tk.Checkpoint(tmp_path, keep_best="custom/own")
    trainer = make_trainer(max_epoch=5, step_per_epoch=4, callbacks=[Score(), checkpoint])
    fill_disk(monkeypatch, lambda path: trainer.epoch == 2 and path.parent.name == "best")
    assert [progress(tmp_path / "best")[0] for _ in trainer] == [1, 1, 3, 3, 5]


def test_a_best_that_cannot_be_saved_does_not_end_the_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: Any
) -> None:
    check_that_a_best_may_fail(tk.Evaluation(), tmp_path, monkeypatch, caplog)


def test_a_last_save_that_fails_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: Any, **__: Any) -> None:
        raise OSError(28, "No space left on device")

    trainer = make_trainer(max_epoch=1, checkpoint=tmp_path)
    monkeypatch.setattr(files, "write_whole", full)
    with pytest.raises(tk.errors.CheckpointError, match="No space left on device"):
        next(trainer)


def test_a_reader_keeps_what_it_opened_while_it_is_dropped(tmp_path: Path) -> None:
    trainer = make_trainer(max_epoch=2, checkpoint=tmp_path)
    next(trainer)
    with (tmp_path / "save-000001" / "policy-1.pt").open("rb") as file:
        next(trainer)
        assert not (tmp_path / "save-000001").exists()
        assert len(file.read()) == os.fstat(file.fileno()).st_size


def test_what_it_cannot_be_is_refused_at_once(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(tk.ConfigError) as caught:
        tk.Checkpoint(
            tmp_path / "file",
            every=0,
            unit="epoch",  # type: ignore[arg-type]  # refused
            keep_last=0,
            keep_best="tests/returns/mean",
            at="then",  # type: ignore[arg-type]  # refused
        )
    assert str(caught.value).splitlines() == [
        "Checkpoint.every must be a whole number >= 1, got 0",
        "Checkpoint.unit must be one of ['epochs', 'env_steps', 'updates', 'seconds'], got 'epoch', did you mean "
        "'epochs'?",
        "Checkpoint.keep_last must be a whole number >= 1, got 0",
        "Checkpoint.at must be one of ['now', 'episode_end'], got 'then'",
        "Checkpoint.keep_best must be the tag of a number, such as 'test/returns/mean', got 'tests/returns/mean', did "
        "you mean 'test'?",
        f"Checkpoint.folder {tmp_path / 'file'} is a file: name a folder",
    ]


def test_other_callbacks_receive_every_checkpoint(tmp_path: Path) -> None:
    log = Log()
    make_trainer(test=True, max_epoch=1, callbacks=[log], checkpoint=tmp_path).run()
    received = [news for event, news in zip(log.events, log.news, strict=True) if event == "on_checkpoint_saved"]
    assert received == [(tmp_path / "best",), (tmp_path / "save-000001",)]
    shutil.rmtree(tmp_path)


# ---- policies saved for acting alone: the best, confirmed on fresh seeds, and periodic ones ----


def received(trainer: tk.Trainer, scores: list[float]) -> None:
    """Have the evaluations of a trainer find these mean returns, first and second looks alike."""
    evaluation = trainer.evaluation_schedule.evaluation
    assert evaluation is not None
    run, left = evaluation.run, iter(scores)

    def found(*arguments: Any, **options: Any) -> tk.CollectStats:
        stats = run(*arguments, **options)
        return dataclasses.replace(stats, returns=dataclasses.replace(stats.returns, mean=next(left)))

    evaluation.run = found  # type: ignore[method-assign]  # as if it had played so


def loaded(path: Path, like: tk.Trainer) -> Any:
    assert like.train_collector is not None
    return tk.load_policy(path, policy=make_policy(like.train_collector.envs))


def test_the_policy_that_is_kept_is_the_best_on_fresh_seeds(tmp_path: Path) -> None:
    best = tk.callbacks.SaveBest(tmp_path / "best")
    trainer = make_trainer(test=True, max_epoch=4, callbacks=[best])
    # first looks 1, 5, 9, 7; second looks 3 (kept), 2 (luck), 4 (kept), none: 7 is no best
    received(trainer, [1.0, 3.0, 5.0, 2.0, 9.0, 4.0, 7.0])
    policy: Any = trainer.policy
    weights = [{name: leaf.clone() for name, leaf in policy.state_dict().items()} for _ in trainer]
    assert best.score == 4.0
    kept = loaded(tmp_path / "best", trainer).state_dict()
    assert all(np.array_equal(kept[name], weights[2][name]) for name in kept)
    assert not all(np.array_equal(kept[name], weights[3][name]) for name in kept)


def test_save_best_is_deprecated_and_names_its_replacement(tmp_path: Path) -> None:
    with pytest.warns(DeprecationWarning, match=r"SaveBest is deprecated: use Checkpoint\(folder\)"):
        tk.callbacks.SaveBest(tmp_path / "best")


def test_the_best_score_outlives_a_run(tmp_path: Path) -> None:
    trainer = make_trainer(test=True, callbacks=[tk.callbacks.SaveBest(tmp_path / "best")])
    received(trainer, [1.0, 8.0])
    next(trainer)
    trainer.save(tmp_path / "run")
    again = tk.callbacks.SaveBest(tmp_path / "best")
    resumed = make_trainer(test=True, callbacks=[again], resume_from=tmp_path / "run")
    assert again.score == 8.0
    received(resumed, [2.0, 7.0])  # a best, which its second look does not confirm
    next(resumed)
    assert again.score == 8.0


@pytest.mark.parametrize(
    ("unit", "every", "steps"),
    [("epochs", 2, [48]), ("env_steps", 20, [20, 40, 60]), ("updates", 10, [20, 40, 60])],
)
def test_policies_are_kept_now_and_then(tmp_path: Path, unit: Any, every: int, steps: list[int]) -> None:
    trainer = make_trainer(callbacks=[tk.callbacks.SaveEvery(tmp_path, every=every, unit=unit)], step_per_collect=4)
    trainer.run()
    assert sorted(path.name for path in tmp_path.iterdir()) == [f"step-{step:09d}" for step in steps]
    first = loaded(tmp_path / f"step-{steps[0]:09d}", trainer)
    assert first.last_step <= steps[0]
    obs = np.zeros((3, 2), np.float32)
    assert first.predict(obs).shape == (3,)


def test_what_cannot_be_kept_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(tk.ConfigError, match=r"SaveBest.folder .* is a file: name a folder"):
        tk.callbacks.SaveBest(tmp_path / "file")
    with pytest.raises(tk.ConfigError, match=r"SaveEvery.unit must be one of .*, got 'steps'"):
        tk.callbacks.SaveEvery(tmp_path, unit="steps")  # type: ignore[arg-type]  # refused
    with pytest.raises(tk.ConfigError, match="SaveBest needs evaluations: give a test_collector or an evaluation"):
        make_trainer(callbacks=[tk.callbacks.SaveBest(tmp_path)])


def test_a_second_evaluation_on_fresh_seeds_fires_no_event(tmp_path: Path) -> None:
    class Count(tk.Callback):
        n_reported = 0

        def on_episode_end(self, trainer: tk.Trainer, episode: tk.collector.Episode) -> None:
            self.n_reported += episode.in_evaluation

    count = Count()
    make_trainer(test=True, max_epoch=2, callbacks=[tk.callbacks.SaveBest(tmp_path / "best"), count]).run()
    assert count.n_reported == 2 * 3


def test_a_checkpoint_saves_the_others_states_wherever_it_stands(tmp_path: Path) -> None:
    class Epochs(tk.Callback):
        n_received = 0

        def on_epoch_end(self, trainer: tk.Trainer, result: Any) -> None:
            self.n_received += 1

        def state_dict(self) -> dict[str, Any]:
            return {"n_received": self.n_received}

        def load_state_dict(self, state: dict[str, Any]) -> None:
            self.n_received = state["n_received"]

    next(make_trainer(callbacks=[tk.Checkpoint(tmp_path), Epochs()]))
    again = Epochs()
    make_trainer(callbacks=[tk.Checkpoint(tmp_path), again], resume_from="auto")
    assert again.n_received == 1


@pytest.mark.parametrize("tag", ["train/returns", "train/nosuch", "test/returns/middle", "time", "update", "loss", ""])
def test_a_tag_that_is_no_number_is_refused_when_the_checkpoint_is_made(tag: str, tmp_path: Path) -> None:
    with pytest.raises(tk.ConfigError, match=r"Checkpoint.keep_best must be the tag of a number, such as"):
        tk.Checkpoint(tmp_path, keep_best=tag)


@pytest.mark.parametrize(
    "tag",
    ["train/returns/mean", "test/lengths/max", "time/steps_per_second", "update/loss", "custom/a/b", "test/n_step"],
)
def test_a_tag_of_a_number_is_taken(tag: str, tmp_path: Path) -> None:
    tk.Checkpoint(tmp_path, keep_best=tag)
