"""Losses and forward passes of small networks in numpy, derived from what torch computes: an engine for the CPU."""

ENGINES = {"numpy": "numpy_engine:NumpyEngine"}
