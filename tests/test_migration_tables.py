"""Names in the tables of docs/migration.md, of extensions too, are ours."""

import pytest

import trainkit as tk
from tests.helpers.option_tables import TABLES, options_in
from tests.helpers.pages import rows_of
from trainkit import presets
from trainkit.core.signatures import options_by_owner
from trainkit.trainer.callbacks.base import EVENTS


def test_events_attributes_and_classes_in_the_tables_are_ours() -> None:
    trainer, found = tk.OffpolicyTrainer, 0
    for title in ("Events and attributes by name", "Classes and functions by name"):
        for theirs, ours in rows_of(title):
            name = ours.strip("`")
            found += len(theirs)
            assert not [one for one in theirs if one in EVENTS or hasattr(tk, one)]
            if name.startswith("none: "):
                continue
            if name.startswith("on_"):
                assert name in EVENTS
                continue
            owner, *parts = name.split(".")
            part: object = {"tk": tk, "trainer": trainer}[owner]
            for own in parts:
                part = getattr(part, own)
            assert part is not None
    assert found > 50


def our_options() -> set[str]:
    """Return every option of a public call or preset."""
    settings = {name for preset in presets.PRESETS.values() for name in preset.option_types}
    required = {"env", "max_epoch", "step_per_epoch", "batch_size", "train_collector", "update_per_epoch"}
    return {*options_by_owner(), *settings, *required}


@pytest.mark.parametrize("library", TABLES)
def test_options_in_the_tables_are_ours(library: str) -> None:
    page, section = TABLES[library]
    rows = rows_of(section, page)
    assert len(rows) > 15
    assert {own for _, ours in rows for own in options_in(ours)} - our_options() == set()
