"""What users test with: environments that cost nothing."""

from trainkit.testing.fake_envs import FakeVectorEnv

__all__ = ["FakeVectorEnv"]
