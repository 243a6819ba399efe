"""Loggers: what is written comes back with the usual readers, at once; a run never shares a folder, nor dies of one."""

import gc
import io
import json
import logging
import math
import os
import shutil
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from tensorboard.plugins.hparams import plugin_data_pb2
from tensorboard.util import tensor_util
from torch.utils.tensorboard import SummaryWriter

import trainkit as tk
from tests.trainer.toys import make_trainer
from trainkit.loggers.logger import Loggers, as_logger
from trainkit.loggers.runs import RunFolder


def events(folder: Path) -> EventAccumulator:
    """Read a folder as tensorboard does."""
    reader = EventAccumulator(str(folder), size_guidance={"scalars": 0, "tensors": 0})
    reader.Reload()
    return reader


def scalars(folder: Path) -> dict[str, list[tuple[int, float]]]:
    reader = events(folder)
    return {tag: [(event.step, event.value) for event in reader.Scalars(tag)] for tag in reader.Tags()["scalars"]}


def lines(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / "numbers.jsonl").read_text().splitlines()]


# ---- tensorboard ----


def test_tensorboard_reads_back_every_number_at_its_step(tmp_path: Path) -> None:
    logger = tk.loggers.TensorboardLogger(tmp_path)
    logger.write(10, {"update/loss": 0.5, "train/n_step": 10})
    logger.write(2**40, {"update/loss": -1e30})
    logger.close()
    assert scalars(tmp_path) == {
        "update/loss": [(10, 0.5), (2**40, pytest.approx(-1e30))],
        "train/n_step": [(10, 10.0)],
    }


def test_each_report_is_on_disk_at_once_and_whole(tmp_path: Path) -> None:
    logger = tk.loggers.TensorboardLogger(tmp_path)
    for step in (1, 2, 3):
        logger.write(step, {f"a/{number}": float(number) for number in range(50)})
        assert {len(points) for points in scalars(tmp_path).values()} == {step}
        assert len(scalars(tmp_path)) == 50
    logger.close()


def test_nan_and_infinity_are_written_as_they_are(tmp_path: Path) -> None:
    logger = tk.loggers.TensorboardLogger(tmp_path)
    logger.write(1, {"nan": math.nan, "inf": math.inf})
    logged = scalars(tmp_path)
    assert math.isnan(logged["nan"][0][1])
    assert logged["inf"] == [(1, math.inf)]


def test_settings_are_a_text_and_hyper_parameters(tmp_path: Path) -> None:
    logger = tk.loggers.TensorboardLogger(tmp_path)
    logger.describe({"env": "CartPole-v1", "lr": 0.25, "n_envs": 8, "double": True, "odd": [(0, 1.0)], "none": None})
    reader = events(tmp_path)
    (text,) = reader.Tensors("run/settings")
    result = tensor_util.make_ndarray(text.tensor_proto)[0].decode()
    assert "| env | CartPole-v1 |" in result
    assert "| odd | [(0, 1.0)] |" in result
    assert reader.PluginTagToContent("text")
    (content,) = reader.PluginTagToContent("hparams").values()
    given = plugin_data_pb2.HParamsPluginData.FromString(content).session_start_info.hparams
    assert {name: getattr(value, value.WhichOneof("kind")) for name, value in given.items()} == {
        "env": "CartPole-v1", "lr": 0.25, "n_envs": 8.0, "double": True, "odd": "[(0, 1.0)]",
    }  # fmt: skip


def test_a_plain_string_or_path_means_lines_in_that_folder_and_tensorboard_below_it(tmp_path: Path) -> None:
    for folder in (str(tmp_path / "a"), tmp_path / "b"):
        trainer = make_trainer(logger=folder, max_epoch=1)
        assert trainer.info.run_dir == str(folder)
        trainer.run()
        trainer.close()
        assert scalars(Path(folder) / "events")["train/n_step"] == [(24, 24.0)]
        assert [line["train/n_step"] for line in lines(Path(folder)) if "step" in line] == [24.0]


FRAMES = np.zeros((3, 6, 4, 3), np.uint8)  # red, green, blue
FRAMES[np.arange(3), :, :, np.arange(3)] = 255


def test_a_video_is_a_gif_of_its_frames_at_its_speed(tmp_path: Path) -> None:
    class Film(tk.Callback):
        def on_epoch_end(self, trainer: tk.Trainer, result: tk.trainer.EpochResult) -> None:
            trainer.log_video("film", FRAMES, fps=10)

    loggers = [tk.loggers.TensorboardLogger(tmp_path / "events"), tk.JsonlLogger(tmp_path / "lines")]  # lines show none
    make_trainer(callbacks=[Film()], logger=loggers, max_epoch=2).run()
    reader = EventAccumulator(str(tmp_path / "events"))
    reader.Reload()
    first, second = reader.Images("custom/film")
    assert (first.step, second.step, first.height, first.width) == (24, 48, 6, 4)
    with Image.open(io.BytesIO(first.encoded_image_string)) as gif:
        assert (gif.format, gif.n_frames) == ("GIF", 3)  # type: ignore[attr-defined]  # a GIF has it
        for n in range(3):
            gif.seek(n)
            assert gif.info["duration"] == 100
            np.testing.assert_array_equal(np.asarray(gif.convert("RGB")), FRAMES[n])
    assert "film" not in (tmp_path / "lines" / "numbers.jsonl").read_text()


@pytest.mark.parametrize(
    ("frames", "fps", "message"),
    [
        (FRAMES.astype(np.float32), 30, r"frames must be uint8 \[T, H, W, 3\], got float32\[3, 6, 4, 3\]"),
        (FRAMES[0], 30, r"got uint8\[6, 4, 3\]"),
        (FRAMES[:0], 30, r"got uint8\[0, 6, 4, 3\]"),
        (FRAMES[..., :1], 30, r"got uint8\[3, 6, 4, 1\]"),
        (FRAMES, 0, r"log_video.fps must be in \(0, inf\), got 0"),
    ],
)
def test_what_is_no_video_is_refused(frames: Any, fps: float, message: str) -> None:
    with pytest.raises(tk.ConfigError, match=message):
        make_trainer().log_video("film", frames, fps)


def test_a_histogram_counts_every_number_once(tmp_path: Path) -> None:
    logger = tk.loggers.TensorboardLogger(tmp_path)
    logger.write_histograms(7, {"custom/x": np.array([0.0, 0.0, 1.0, 30.0]), "custom/same": np.array([2.0, 2.0])})
    reader = events(tmp_path)
    ((step, histogram),) = [(event.step, event.histogram_value) for event in reader.Histograms("custom/x")]
    assert (step, histogram.min, histogram.max, histogram.num, histogram.sum) == (7, 0.0, 30.0, 4, 31.0)
    assert histogram.sum_squares == 901.0
    assert {edge: n for edge, n in zip(histogram.bucket_limit, histogram.bucket, strict=True) if n} == {
        1: 2,
        2: 1,
        30: 1,
    }
    assert sum(reader.Histograms("custom/same")[0].histogram_value.bucket) == 2


# ---- lines of JSON ----


def test_every_report_is_one_line_of_json_on_disk_at_once(tmp_path: Path) -> None:
    logger = tk.JsonlLogger(tmp_path)
    logger.describe({"env": "CartPole-v1", "hidden": (64, 64), "folder": Path("x")})
    logger.write(10, {"update/loss": 0.5, "train/n_step": 10})
    assert lines(tmp_path) == [
        {"settings": {"env": "CartPole-v1", "hidden": [64, 64], "folder": "x"}},
        {"step": 10, "update/loss": 0.5, "train/n_step": 10},
    ]
    logger.close()


def test_nan_and_infinity_become_null_and_numbers_of_numpy_are_numbers(tmp_path: Path) -> None:
    logger = tk.JsonlLogger(tmp_path)
    logger.write(1, {"nan": math.nan, "inf": -math.inf, "numpy": np.float32(0.5)})
    assert lines(tmp_path) == [{"step": 1, "nan": None, "inf": None, "numpy": 0.5}]


# ---- folders ----


@pytest.mark.parametrize("kind", [tk.loggers.TensorboardLogger, tk.JsonlLogger])
def test_a_folder_in_use_gets_a_suffix_and_a_warning(
    tmp_path: Path, kind: Any, caplog: pytest.LogCaptureFixture
) -> None:
    folders = [Path(kind(tmp_path / "run").folder).name for _ in range(3)]
    assert folders == ["run", "run_2", "run_3"]
    messages = [record.getMessage() for record in caplog.records]
    assert messages == [
        f"{tmp_path / 'run'} already holds a run: this one writes to {tmp_path / name}" for name in ("run_2", "run_3")
    ]


def test_a_folder_with_other_things_in_it_is_used(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").touch()
    assert tk.JsonlLogger(tmp_path).folder == str(tmp_path)


@pytest.mark.parametrize(
    "kind", [tk.loggers.TensorboardLogger, tk.JsonlLogger, lambda folder: make_trainer(logger=folder)]
)
def test_a_folder_that_cannot_be_written_is_refused_at_construction(tmp_path: Path, kind: Any) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(tk.ConfigError) as caught:
        kind(tmp_path / "file")
    assert str(caught.value) == f"logger cannot write to {tmp_path / 'file'}, which is a file: name a folder"
    with pytest.raises(tk.ConfigError, match=r"logger cannot write to .*Not a directory"):
        kind(tmp_path / "file" / "below")


def test_a_read_only_folder_is_refused_at_construction() -> None:
    with pytest.raises(tk.ConfigError, match="logger cannot write to /proc/trainkit"):
        tk.JsonlLogger("/proc/trainkit")


# ---- several, and none ----


class Numbers:
    """A logger of one's own, which may fail."""

    folder: str | None = None

    def __init__(self, *, fails_at: tuple[int, ...] = ()) -> None:
        self.calls: list[tuple[Any, ...]] = []
        self.fails_at = fails_at

    def write(self, step: int, numbers: Mapping[str, float]) -> None:
        self.calls.append(("write", step))
        if step in self.fails_at:
            raise OSError(28, "No space left on device")

    def describe(self, settings: Mapping[str, Any]) -> None:
        self.calls.append(("describe",))

    def close(self) -> None:
        self.calls.append(("close",))


def test_several_loggers_write_the_same_at_once(tmp_path: Path) -> None:
    own = Numbers()
    trainer = make_trainer(
        logger=[tk.loggers.TensorboardLogger(tmp_path / "events"), [tk.JsonlLogger(tmp_path / "lines"), own]],
        log_every=10,
    )
    trainer.run()
    trainer.close()
    described, *reports = lines(tmp_path / "lines")
    assert described["settings"]["env"] == "<lambda>"
    logged = scalars(tmp_path / "events")
    assert {tag for report in reports for tag in report} - {"step"} == set(logged)
    for tag, points in logged.items():
        expected = [(report["step"], pytest.approx(report[tag])) for report in reports if tag in report]
        assert points == expected
    assert own.calls == [("describe",), *(("write", report["step"]) for report in reports), ("close",)]
    assert trainer.info.run_dir == str(tmp_path / "events")


def test_the_run_folder_is_the_first_there_is(tmp_path: Path) -> None:
    assert as_logger([Numbers(), tk.JsonlLogger(tmp_path / "a"), tk.JsonlLogger(tmp_path / "b")]).folder == str(
        tmp_path / "a"
    )
    assert as_logger([Numbers()]).folder is None
    assert as_logger(None).folder is None


def test_a_logger_that_cannot_write_warns_once_and_the_run_continues(caplog: pytest.LogCaptureFixture) -> None:
    failing, well = Numbers(fails_at=(10, 20, 34)), Numbers()
    make_trainer(logger=[failing, well], log_every=10, max_epoch=2).run()
    assert failing.calls == well.calls
    messages = [record.getMessage() for record in caplog.records]
    message = "Numbers cannot write, the run continues without: [Errno 28] No space left on device"
    assert messages == [message, message]  # at step 10, and again at 34 after 24 had gone well
    assert {record.levelno for record in caplog.records} == {logging.WARNING}


def test_a_folder_deleted_in_the_middle_of_a_run_is_made_again_with_a_word(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    trainer = make_trainer(
        logger=[tk.loggers.TensorboardLogger(tmp_path / "events"), tk.JsonlLogger(tmp_path / "lines")]
    )
    next(trainer)
    shutil.rmtree(tmp_path / "events")
    shutil.rmtree(tmp_path / "lines")
    assert trainer.run().epoch == 3
    trainer.close()
    assert [line["step"] for line in lines(tmp_path / "lines")] == [48, 72]
    assert [step for step, _ in scalars(tmp_path / "events")["buffer/size"]] == [48, 72]
    assert [record.message.split(" was deleted")[1] for record in caplog.records] == [
        ": the log continues in another file",
        ": the log starts again there",
    ]


def test_a_folder_that_cannot_be_made_again_is_reported_once_and_tried_each_time(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    trainer = make_trainer(
        logger=[tk.JsonlLogger(tmp_path / "lines"), tk.loggers.TensorboardLogger(tmp_path / "events")], max_epoch=4
    )
    next(trainer)
    for name in ("lines", "events"):
        shutil.rmtree(tmp_path / name)
        (tmp_path / name).touch()  # a file in its place
    next(trainer)
    next(trainer)
    messages = [record.message for record in caplog.records if "the run continues without" in record.message]
    assert len(messages) == 2
    for name in ("lines", "events"):
        (tmp_path / name).unlink()
    next(trainer)
    assert [line["step"] for line in lines(tmp_path / "lines")] == [96]
    assert [step for step, _ in scalars(tmp_path / "events")["buffer/size"]] == [96]


def test_a_full_disk_does_not_tear_the_events_written_before_and_after(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    logger = tk.loggers.TensorboardLogger(tmp_path)
    loggers = Loggers([logger])
    loggers.write(1, {"a": 1.0})

    def full(_: SummaryWriter) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(SummaryWriter, "flush", full)
        loggers.write(2, {"a": 2.0})
    later = time.time() + 1
    monkeypatch.setattr(time, "time", lambda: later)  # files are read in the order of the seconds in their names
    loggers.write(3, {"a": 3.0})  # to another file
    assert scalars(tmp_path) == {"a": [(1, 1.0), (2, 2.0), (3, 3.0)]}


@pytest.mark.parametrize("logger", [7, print, object(), [print], {"folder": "x"}])
def test_what_is_no_logger_is_refused(logger: Any) -> None:
    if isinstance(logger, dict):
        logger = set(logger)
    with pytest.raises(tk.ConfigError, match="logger must be a folder, a logger with folder, write, describe"):
        as_logger(logger)


def opened_in(folder: Path) -> list[str]:
    """Return the open files of this process in a folder."""
    files = [os.readlink(one) for one in Path("/proc/self/fd").iterdir() if one.is_symlink()]
    return [file for file in files if file.startswith(str(folder))]


@pytest.mark.parametrize("kind", [tk.loggers.TensorboardLogger, tk.JsonlLogger])
def test_a_forgotten_logger_closes_its_file_without_a_word(tmp_path: Path, kind: Any) -> None:
    logger = kind(tmp_path)
    logger.write(1, {"a": 1.0})
    assert opened_in(tmp_path)
    del logger
    gc.collect()
    assert opened_in(tmp_path) == []  # and no ResourceWarning: an error here


# ---- a resumed run ----


def await_another_second() -> None:
    """Wait, as TensorBoard sorts event files by second, and files of the same second by their number as a text."""
    time.sleep(1.0)


def run_log(tmp_path: Path, **options: Any) -> tk.OffpolicyTrainer:
    """Make a run with a folder of its own and one of lines."""
    is_resumed = "resume_from" in options
    both = [tmp_path / "run", tk.JsonlLogger(tmp_path / "lines", resume=is_resumed)]
    return make_trainer(logger=both, log_every=10, **options)


def test_a_resumed_run_writes_to_the_same_file_without_what_came_after_the_checkpoint(tmp_path: Path) -> None:
    straight = run_log(tmp_path / "straight", max_epoch=3)
    straight.run()
    killed = run_log(tmp_path / "killed", max_epoch=3)
    next(killed)
    killed.save(tmp_path / "saved")
    next(killed)
    with (tmp_path / "killed" / "lines" / "numbers.jsonl").open("a") as file:
        file.write('{"step": 60, "half of a li')  # when it was killed
    await_another_second()
    resumed = run_log(tmp_path / "killed", max_epoch=3, resume_from=tmp_path / "saved")
    assert resumed.info.run_dir == str(tmp_path / "killed" / "run")
    resumed.run()
    resumed.close()

    def result(folder: Path) -> tuple[Any, Any]:
        loss = dict(scalars(folder / "run" / "events")["update/loss"])
        steps = [step for step, _ in scalars(folder / "run" / "events")["update/loss"]]
        own = [[line["step"] for line in lines(folder / name) if "step" in line] for name in ("run", "lines")]
        assert len(steps) == len(loss)  # none twice
        assert own[0] == own[1]
        return loss, own[1]

    assert result(tmp_path / "killed") == result(tmp_path / "straight")
    assert sorted(path.name for path in (tmp_path / "killed").iterdir()) == ["lines", "run"]


def test_a_folder_with_a_suffix_is_found_again_and_the_other_run_is_left_alone(tmp_path: Path) -> None:
    for _ in range(2):
        trainer = make_trainer(logger=tmp_path / "run", max_epoch=1)
        trainer.run()
        trainer.close()
    assert trainer.info.run_dir == str(tmp_path / "run_2")
    before = scalars(tmp_path / "run" / "events")
    saved = trainer.save(tmp_path / "saved")
    resumed = make_trainer(logger=tmp_path / "run", max_epoch=2, resume_from=saved)
    resumed.run()
    resumed.close()
    assert resumed.info.run_dir == str(tmp_path / "run_2")
    assert scalars(tmp_path / "run" / "events") == before
    assert [step for step, _ in scalars(tmp_path / "run_2" / "events")["buffer/size"]] == [24, 48]


def test_a_run_that_resumes_in_another_folder_or_restarts_takes_none_from_others(tmp_path: Path) -> None:
    first = make_trainer(logger=tmp_path / "run", max_epoch=1)
    first.run()
    saved = first.save(tmp_path / "saved")
    other = make_trainer(logger=tmp_path / "other", resume_from=saved)
    assert other.info.run_dir == str(tmp_path / "other")
    restarted = make_trainer(logger=tmp_path / "run", checkpoint=tmp_path / "none", resume_from="auto")
    assert restarted.info.run_dir == str(tmp_path / "run_2")


def test_a_summary_writer_of_torch_is_a_logger_that_stays_open(tmp_path: Path) -> None:
    from torch.utils.tensorboard import SummaryWriter

    class Own(SummaryWriter):
        """A subclass of the user's."""

    writer = Own(str(tmp_path))  # type: ignore[no-untyped-call]  # torch's
    with make_trainer(logger=writer, max_epoch=1) as trainer:
        assert trainer.info.run_dir == str(tmp_path)
        trainer.run()
        trainer.log_video("film", FRAMES, fps=10)
    writer.add_scalar("mine", 7.0, 5)  # type: ignore[no-untyped-call]  # torch's
    writer.close()  # type: ignore[no-untyped-call]  # torch's
    logged = scalars(tmp_path)
    assert (logged["train/n_step"], logged["mine"]) == ([(24, 24.0)], [(5, 7.0)])
    reader = events(tmp_path)
    assert reader.Tensors("run/settings")
    assert reader.PluginTagToContent("hparams")
    assert reader.Tags()["images"] == ["custom/film"]


def test_a_resumed_run_hides_events_after_its_checkpoint_in_a_summary_writer(tmp_path: Path) -> None:
    from torch.utils.tensorboard import SummaryWriter

    def run(n_epochs: int, **options: Any) -> None:
        writer = SummaryWriter(str(tmp_path / "log"))  # type: ignore[no-untyped-call]  # torch's
        with make_trainer(logger=writer, max_epoch=n_epochs, **options) as trainer:
            for epoch, _, _ in trainer:
                if epoch == 2:
                    trainer.save(tmp_path / "saved")
        writer.close()  # type: ignore[no-untyped-call]  # torch's

    run(3)  # and its end is not saved
    await_another_second()
    run(4, resume_from=tmp_path / "saved")
    assert [step for step, _ in scalars(tmp_path / "log")["buffer/size"]] == [24, 48, 72, 96]


@pytest.mark.parametrize("kind", [tk.loggers.JsonlLogger, tk.loggers.CsvLogger, tk.loggers.TensorboardLogger])
def test_a_logger_that_was_closed_with_its_run_is_rejected(tmp_path: Path, kind: Any) -> None:
    logger = kind(tmp_path)
    with make_trainer(logger=logger, max_epoch=1) as trainer:
        trainer.run()
    with pytest.raises(tk.ConfigError, match=rf"logger is the {kind.__name__} of .*, which was closed with its run"):
        make_trainer(logger=logger, max_epoch=1)


@pytest.mark.parametrize("kind", [tk.loggers.JsonlLogger, tk.loggers.CsvLogger, tk.loggers.TensorboardLogger])
@pytest.mark.parametrize("n_epochs", [0, 1])
def test_a_logger_that_another_run_closed_is_named(tmp_path: Path, kind: Any, n_epochs: int) -> None:
    logger = kind(tmp_path)
    first, second = make_trainer(logger=logger), make_trainer(logger=logger)
    for _ in range(n_epochs):
        next(second)
    first.close()
    with pytest.raises(tk.ConfigError, match=rf"logger is the {kind.__name__} of .*, which was closed with its run"):
        second.run()
    second.close()


def test_an_evaluation_in_the_background_belongs_to_the_row_of_its_step(tmp_path: Path) -> None:
    logger = tk.JsonlLogger(tmp_path)
    for step, tags in [(100, "train"), (200, "train"), (100, "test"), (300, "test"), (300, "train"), (200, "train")]:
        logger.write(step, {f"{tags}/returns/mean": float(step)})
    logger.close()
    train, test = "train/returns/mean", "test/returns/mean"
    assert RunFolder.read(tmp_path).rows == [{"step": 100, test: 100.0, train: 100.0}, {"step": 200, train: 200.0}]
