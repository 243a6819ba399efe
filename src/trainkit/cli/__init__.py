"""The `trainkit` command: train, look, compare, from a shell."""

from trainkit.cli.main import main

__all__ = ["main"]
