"""A pretend accelerator for tests; README.md describes it."""

from tests.pretend.pretend_device import DeviceCounts, PretendDevice

__all__ = ["DeviceCounts", "PretendDevice"]
