"""Names in the tables of docs/migration.md, of extensions too, are ours."""

import trainkit as tk
from tests.helpers.pages import rows_of
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
