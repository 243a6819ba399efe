"""Folders of runs, written by the logger that runs use."""

from pathlib import Path
from typing import Any

import trainkit as tk
from trainkit.loggers.runs import RunFolder, write_config


def make_run(folder: Path, *rows: dict[str, Any], **config: Any) -> RunFolder:
    """Write a run's folder, by the logger that runs use."""
    logger = tk.JsonlLogger(folder)
    logger.describe({"policy": "DQNPolicy", "env": "Walk", "seed": 4})
    for row in rows:
        logger.write(row["step"], {tag: x for tag, x in row.items() if tag != "step"})
    logger.close()
    if config:
        write_config(folder, config)
    return RunFolder.read(folder)
