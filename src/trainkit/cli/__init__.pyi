"""The `trainkit` command: train, evaluate and compare runs from a shell."""
# Written by `python -m tests.stubs`

from trainkit.cli.check import add_bench, add_check_env
from trainkit.cli.commands import main
from trainkit.cli.compare import add_compare, add_plot
from trainkit.cli.completion import add_completion
from trainkit.cli.evaluate import add_eval, add_export
from trainkit.cli.inspect import add_inspect
from trainkit.cli.train import add_presets, add_train, add_train_of_each_preset
from trainkit.cli.zoo import add_zoo

__all__ = [
    "add_bench",
    "add_check_env",
    "add_compare",
    "add_completion",
    "add_eval",
    "add_export",
    "add_inspect",
    "add_plot",
    "add_presets",
    "add_train",
    "add_train_of_each_preset",
    "add_zoo",
    "main",
]
