"""Collecting: the only room that knows the environment."""

from trainkit.collector.collector import Collector
from trainkit.collector.envs import Envs
from trainkit.collector.make import make_envs
from trainkit.collector.watching import Episode, Watch

__all__ = ["Collector", "Envs", "Episode", "Watch", "make_envs"]
