"""The pretend device in tests, which are skipped where it cannot be compiled."""

from contextlib import suppress

import pytest

from trainkit.errors import DeviceError
from trainkit.testing import PretendDevice, pretend_device

SKIPPED = "no pretend device"  # how the reason begins: `tests/conftest.py` counts these skips and prints the reason


def build_pretend_device() -> None:
    """Compile the pretend device, unless that was done before; `load_pretend_device` reports what is missing."""
    with suppress(DeviceError):
        pretend_device._built()


def load_pretend_device() -> PretendDevice:
    """Return the pretend device; skip the test without a compiler, and fail where one reports errors."""
    try:
        return PretendDevice.load()
    except DeviceError as error:
        if "did not compile" in str(error):
            raise
        pytest.skip(f"{SKIPPED}: {error}")
