"""A package outside of trainkit that adds to it by public names: a policy, a preset, a backend and a callback."""

from plainq.backend import ScaleReward
from plainq.callback import BestReturn
from plainq.policy import PlainQ
from plainq.preset import plainq

__all__ = ["BestReturn", "PlainQ", "ScaleReward", "plainq"]
