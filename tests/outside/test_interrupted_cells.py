"""A cell of a notebook that is interrupted while it trains: one line that says how to continue, and nothing hidden."""

import signal
import traceback
from typing import Any

import pytest

import trainkit as tk

TINY: dict[str, Any] = {
    "max_epoch": 2, "step_per_epoch": 60, "learning_starts": 32, "batch_size": 16, "hidden": (8,), "zoo": False,
    "n_envs": 2, "step_per_collect": 2, "evaluation": None, "device": "cpu", "verbose": False, "show_progress": False,
}  # fmt: skip


def says(trainer: tk.Trainer) -> str:
    at = f"stopped in epoch 1, at step {trainer.clock}"
    return f"KeyboardInterrupt: OffpolicyTrainer {at}: trainer.run(), or the loop, continues there"


class PressCtrlC(tk.Callback):
    """Press Ctrl-C once at step 40, as many times at once as given."""

    def __init__(self, times: int = 1) -> None:
        self.times = times

    def on_collect_end(self, trainer: tk.Trainer, stats: tk.CollectStats) -> None:
        if trainer.clock == 40:
            for _ in range(self.times):
                signal.raise_signal(signal.SIGINT)


def interrupted(trainer: tk.Trainer) -> KeyboardInterrupt:
    with pytest.raises(KeyboardInterrupt) as caught:
        trainer.run()
    return caught.value


def test_an_interrupted_run_is_one_line_in_a_notebook_that_says_how_to_continue() -> None:
    trainer = tk.presets.dqn("CartPole-v1", seed=1, callbacks=[PressCtrlC()], **TINY)
    error: Any = interrupted(trainer)
    assert error._render_traceback_() == [says(trainer)]
    assert trainer.run().epoch == 2


def test_elsewhere_an_interrupted_run_is_the_same_error_with_its_whole_traceback() -> None:
    error = interrupted(tk.presets.dqn("CartPole-v1", seed=1, callbacks=[PressCtrlC()], **TINY))
    assert type(error) is KeyboardInterrupt
    shown = traceback.format_exception(error)
    assert shown[-1] == "KeyboardInterrupt\n"
    assert sum("File " in line for line in shown) > 5


def test_a_second_ctrl_c_shows_where_the_run_hangs_in_notebooks_too() -> None:
    error = interrupted(tk.presets.dqn("CartPole-v1", seed=1, callbacks=[PressCtrlC(times=2)], **TINY))
    assert not hasattr(error, "_render_traceback_")


def test_ipython_shows_the_line_alone(capsys: pytest.CaptureFixture[str]) -> None:
    shells = pytest.importorskip("IPython.core.interactiveshell", reason="IPython is not installed")
    shell = shells.InteractiveShell.instance()
    trainer = tk.presets.dqn("CartPole-v1", seed=1, callbacks=[PressCtrlC()], **TINY)
    shell.user_ns["trainer"] = trainer
    shell.run_cell("trainer.run()")
    shown = capsys.readouterr()
    assert (shown.out + shown.err).strip().splitlines() == [says(trainer)]
    assert trainer.clock == 40
