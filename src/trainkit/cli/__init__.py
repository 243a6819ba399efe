"""The `trainkit` command: train, evaluate and compare runs from a shell.

`add_NAME` adds the arguments of the command `trainkit NAME`; its module is imported when the command is used.
"""

from trainkit.core.extensions import attach

__dir__, __getattr__ = attach(
    __name__,
    {
        "cli.check": "add_bench add_check_env",
        "cli.commands": "main",
        "cli.compare": "add_compare add_plot",
        "cli.completion": "add_completion",
        "cli.evaluate": "add_eval add_export",
        "cli.inspect": "add_inspect",
        "cli.train": "add_presets add_train add_train_of_each_preset",
        "cli.zoo": "add_zoo",
    },
)
