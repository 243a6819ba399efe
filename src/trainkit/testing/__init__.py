"""Test doubles for users: environments without cost."""

from trainkit.testing.fake_envs import FakeVectorEnv

__all__ = ["FakeVectorEnv"]
