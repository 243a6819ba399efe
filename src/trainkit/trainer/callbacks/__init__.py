"""Callbacks: how events reach them, and those that are ready to use, which `trainkit.callbacks` lists."""
