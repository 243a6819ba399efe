"""Collecting: the only room that knows the environment."""

from trainkit.collector.checking import Finding, check_env
from trainkit.collector.collector import Collector
from trainkit.collector.context import EnvContext
from trainkit.collector.envs import Envs
from trainkit.collector.make import make_envs
from trainkit.collector.processing import Processor
from trainkit.collector.processors import DiscretizeActions, Flatten, MapActions, MapObs, PreviousStep, TimeFeature
from trainkit.collector.watching import Episode, Watch

__all__ = [
    "Collector",
    "DiscretizeActions",
    "EnvContext",
    "Envs",
    "Episode",
    "Finding",
    "Flatten",
    "MapActions",
    "MapObs",
    "PreviousStep",
    "Processor",
    "TimeFeature",
    "Watch",
    "check_env",
    "make_envs",
]
