"""The pretend device in tests, which are skipped where it cannot be compiled."""

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

import pytest
import torch

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


@contextmanager
def computing_in_float32() -> Iterator[None]:
    """Let cuDNN compute convolutions and LSTMs in float32, which are in TF32 by torch's default."""
    cudnn: Any = torch.backends.cudnn  # whose annotations lack these switches
    switches = [cudnn.conv, cudnn.rnn]
    before = [switch.fp32_precision for switch in switches]
    for switch in switches:
        switch.fp32_precision = "ieee"
    try:
        yield
    finally:
        for switch, precision in zip(switches, before, strict=True):
            switch.fp32_precision = precision
