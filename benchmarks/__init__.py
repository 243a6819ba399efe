"""Measurements: how fast, how well, and beside whom. Each runs alone as `python -m benchmarks.NAME`."""
