"""The tables of other libraries' options in the docs."""

import re

TABLES = {  # of options by name: {library: (page, section)}
    "Tianshou": ("howto/tianshou_names.md", "Tianshou 2.0, and arguments of its scripts"),
    "Stable-Baselines3": ("howto/sb3_names.md", "Options by name"),
    "CleanRL": ("howto/port_cleanrl.md", "Options by name"),
}


def options_in(text: str) -> list[str]:
    """Return the options that a cell names in code: `lr` and `optimizer=Adam(lr)`."""
    return [span.partition("=")[0] for span in re.findall(r"`([^`]+)`", text)]
