"""A leak is named by the line that holds it."""

import tracemalloc
from typing import Any

import pytest

import trainkit as tk
from tests.trainer.toys import make_trainer

HELD: list[bytes] = []


def leak(trainer: tk.Trainer, *_: object) -> None:
    HELD.append(bytes(500_000))


@pytest.mark.parametrize("is_tracing", [False, True])
def test_the_line_that_leaks_is_first_and_tracing_is_left_as_it_was(is_tracing: bool, capsys: Any) -> None:
    if is_tracing:
        tracemalloc.start()
    try:
        callback = tk.callbacks.TrackMemory(top=2)
        trainer = make_trainer(max_epoch=3, callbacks=[callback, tk.on(epoch_reported=leak)], verbose=True)
        results = list(trainer)
        assert tracemalloc.is_tracing() is is_tracing
    finally:
        tracemalloc.stop()
        HELD.clear()
    (line, n_bytes), *_ = callback.growth
    assert line.startswith(f"{__file__}:")
    assert n_bytes == pytest.approx(1_000_000, rel=0.1)
    assert len(callback.growth) <= 2
    first, _, last = [result.stats["custom/memory/python_mb"] for result in results]
    assert first is not None
    assert last is not None
    assert last - first > 0.4  # of other lines some is released
    peak = results[-1].stats["custom/memory/python_peak_mb"]
    assert peak is not None
    assert peak >= last
    assert "growth since the first epoch:\n     " in capsys.readouterr().out


def test_a_list_every_few_epochs_and_what_is_no_number_is_refused() -> None:
    callback = tk.callbacks.TrackMemory(every=5)
    make_trainer(max_epoch=3, callbacks=callback).run()
    assert callback.growth == []
    with pytest.raises(tk.ConfigError, match=r"TrackMemory\.top must be"):
        tk.callbacks.TrackMemory(top=0)
