"""What users test with: environments that cost nothing, and an accelerator that is none."""

from trainkit.testing.fake_envs import FakeVectorEnv
from trainkit.testing.pretend_device import DeviceCounts, PretendDevice

__all__ = ["DeviceCounts", "FakeVectorEnv", "PretendDevice"]
