"""The pretend device in tests, which are skipped where it cannot be compiled."""

import pytest

from trainkit.errors import DeviceError
from trainkit.testing import PretendDevice

SKIPPED = "no pretend device"  # how the reason begins: `tests/conftest.py` counts these skips and prints the reason


def load_pretend_device() -> PretendDevice:
    """Return the pretend device, or skip the test."""
    try:
        return PretendDevice.load()
    except DeviceError as error:
        pytest.skip(f"{SKIPPED}: {error}")
