"""Execute losses and forward passes as they are written, by torch or by numpy derived from them; see `engine`."""

from trainkit.engine.engine import Engine, EngineName
from trainkit.engine.loss import Loss

__all__ = ["Engine", "EngineName", "Loss"]
