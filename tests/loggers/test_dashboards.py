"""The dashboard opens sorted: what belongs together shares a chart, in reading order, and no chart is empty."""

import re
from collections.abc import Iterable
from pathlib import Path

from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from tensorboard.plugins.custom_scalar import layout_pb2, metadata
from tensorboard.util import tensor_util

import trainkit as tk
from trainkit.loggers.tensorboard import CHARTS, charts_of

DOCS = Path(__file__).parents[2] / "docs"


def layouts(folder: Path) -> list[dict[str, dict[str, str]]]:
    """Read every layout that was written, as {group: {title: pattern}}; a dashboard takes the last."""
    reader = EventAccumulator(str(folder), size_guidance={"tensors": 0})
    reader.Reload()
    if metadata.CONFIG_SUMMARY_TAG not in reader.Tags()["tensors"]:
        return []
    assert list(reader.PluginTagToContent(metadata.PLUGIN_NAME)) == [metadata.CONFIG_SUMMARY_TAG]
    events = reader.Tensors(metadata.CONFIG_SUMMARY_TAG)
    result = [layout_pb2.Layout.FromString(tensor_util.make_ndarray(event.tensor_proto).item()) for event in events]
    return [{g.title: {c.title: "".join(c.multiline.tag) for c in g.chart} for g in one.category} for one in result]


def shown(charts: dict[str, dict[str, str]]) -> dict[str, list[str]]:
    return {group: list(titles) for group, titles in charts.items()}


def matched(pattern: str, tags: Iterable[str]) -> list[str]:
    """Match as tensorboard does: from the beginning, not to the end."""
    return [tag for tag in tags if re.match(pattern, tag)]


def test_groups_stand_in_reading_order() -> None:
    assert list(CHARTS) == ["returns", "learning", "exploration", "buffer", "time", "system", "custom"]


def test_test_and_train_returns_share_the_first_chart() -> None:
    tags = ["train/returns/mean", "train/returns/max", "test/returns/mean", "update/loss"]
    ((_, charts), _) = charts_of(tags).items()
    assert [tag for tag in tags if re.fullmatch(charts["mean return: test, train"], tag)] == [tags[0], tags[2]]


def test_a_chart_that_has_nothing_to_show_is_left_out() -> None:
    assert charts_of([]) == {}
    assert shown(charts_of(["explore/epsilon"])) == {"exploration": ["epsilon, or a temperature"]}
    assert shown(charts_of(["train/act_ms", "update/actor_lr"])) == {
        "learning": ["learning rate"],
        "time": ["milliseconds per vector step"],
    }


def test_every_chart_shows_something_that_the_docs_name() -> None:
    pages = "\n".join(page.read_text() for page in DOCS.rglob("*.md"))
    rows = re.findall(r"`((?:\w+/)+(?:\w+|\{[\w,]+\})(?:_\w+)?)`", pages)
    tags = {tag for row in rows for tag in spread(row)} | {"custom/name"}
    for charts in CHARTS.values():
        for title, pattern in charts.items():
            assert any(re.fullmatch(pattern, tag) for tag in tags), title


def spread(tag: str) -> list[str]:
    head, *rest = re.split(r"[{}]", tag)
    return [f"{head}{word}{rest[1]}" for word in rest[0].split(",")] if rest else [head]


def test_tensorboard_gets_a_layout_that_grows_with_what_is_written(tmp_path: Path) -> None:
    logger = tk.loggers.TensorboardLogger(tmp_path)
    logger.describe({"seed": 1})
    assert layouts(tmp_path) == []
    logger.write(1, {"train/returns/mean": 1.0, "unknown": 2.0})
    logger.write(2, {"train/returns/mean": 2.0})
    assert [shown(one) for one in layouts(tmp_path)] == [{"returns": ["mean return: test, train"]}]
    logger.write(3, {"update/loss": 2.0, "test/seconds": 1.0})
    logger.write(4, {"update/loss": 2.0, "another": 1.0})
    once, last = layouts(tmp_path)
    assert shown(last) == {"returns": ["mean return: test, train"], "learning": ["loss"]}
    assert last["returns"] == once["returns"]  # the same chart in every run, so that runs side by side share it


def test_tensorboards_patterns_match_whole_tags(tmp_path: Path) -> None:
    logger = tk.loggers.TensorboardLogger(tmp_path)
    tags = ["update/loss", "update/actor_loss", "update/loss_scale", "update/lr", "update/lr_scale"]
    logger.write(1, dict.fromkeys(tags, 1.0))
    (charts,) = layouts(tmp_path)
    assert matched(charts["learning"]["loss"], tags) == ["update/loss", "update/actor_loss"]
    assert matched(charts["learning"]["learning rate"], tags) == ["update/lr"]
