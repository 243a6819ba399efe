"""The pretend device in tests, which are skipped where it cannot be compiled."""

from collections.abc import Iterator
from contextlib import contextmanager, suppress

import pytest
import torch

from tests.pretend import PretendDevice, pretend_device
from trainkit.errors import DeviceError

SKIPPED = "no pretend device"  # how the reason begins: `tests/conftest.py` counts these skips and prints the reason


def build_pretend_device() -> None:
    """Compile the pretend device, unless that was done before; `load_pretend_device` reports what is missing."""
    with suppress(DeviceError):
        pretend_device.build()


def load_pretend_device() -> PretendDevice:
    """Return the pretend device; skip the test without a compiler, and fail where one reports errors."""
    try:
        return PretendDevice.load()
    except DeviceError as error:
        if "did not compile" in str(error):
            raise
        pytest.skip(f"{SKIPPED}: {error}")


@contextmanager
def computing_in_float32() -> Iterator[None]:
    """Let cuDNN compute convolutions and LSTMs in float32, which are in TF32 by torch's default.

    By the switch that torch.export reads, too: it fails where only `fp32_precision` of one operation is set.
    """
    before = torch.backends.cudnn.allow_tf32
    torch.backends.cudnn.allow_tf32 = False
    try:
        yield
    finally:
        torch.backends.cudnn.allow_tf32 = before
