"""Collecting: the only room that knows the environment."""

from trainkit.collector.checking import Finding, check_env
from trainkit.collector.collector import Collector
from trainkit.collector.context import EnvContext
from trainkit.collector.envs import Envs
from trainkit.collector.make import make_envs
from trainkit.collector.watching import Episode, Watch

__all__ = ["Collector", "EnvContext", "Envs", "Episode", "Finding", "Watch", "check_env", "make_envs"]
