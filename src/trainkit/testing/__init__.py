"""What users test with: environments that cost nothing."""

from trainkit.testing.environments import FakeVectorEnv

__all__ = ["FakeVectorEnv"]
