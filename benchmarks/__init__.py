"""Measurements, by what they ask: `speed`, `learning`, `replay`, `faults`, `gpu`. `python -m benchmarks.FOLDER.NAME`.

Results are in `results`, a page each, with the command that makes it. `sides` has the libraries of `speed.peers`, each
with the same work. `measuring` runs sides in processes, and `pages` writes pages.
"""
