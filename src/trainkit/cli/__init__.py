"""The `trainkit` command: train, evaluate and compare runs from a shell."""

from trainkit.cli.main import main

__all__ = ["main"]
