"""Test doubles for users: environments without cost, and a pretend accelerator."""

from trainkit.testing.fake_envs import FakeVectorEnv
from trainkit.testing.pretend_device import DeviceCounts, PretendDevice

__all__ = ["DeviceCounts", "FakeVectorEnv", "PretendDevice"]
