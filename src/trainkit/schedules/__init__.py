"""Schedules: values that depend on the environment step."""

from trainkit.core.schedules import Constant, Linear, Piecewise, Schedule

__all__ = ["Constant", "Linear", "Piecewise", "Schedule"]
