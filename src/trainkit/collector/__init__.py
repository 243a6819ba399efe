"""Collecting: the only room that knows the environment."""

from trainkit.collector.collector import Collector
from trainkit.collector.envs import Envs
from trainkit.collector.make import make_envs

__all__ = ["Collector", "Envs", "make_envs"]
