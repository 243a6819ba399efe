"""Collecting: the only room that knows the environment."""

from trainkit.collector.collector import Collector
from trainkit.collector.envs import Envs
from trainkit.collector.make import make_envs
from trainkit.collector.processing import Processor
from trainkit.collector.processors import DiscretizeActions, MapActions, MapObs, PreviousStep, TimeFeature

__all__ = [
    "Collector",
    "DiscretizeActions",
    "Envs",
    "MapActions",
    "MapObs",
    "PreviousStep",
    "Processor",
    "TimeFeature",
    "make_envs",
]
