"""Recorded episodes: written, read from files of several formats, and used to estimate what a policy would return."""

from trainkit.core.extensions import attach

__dir__, __getattr__ = attach(__name__)
