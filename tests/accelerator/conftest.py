"""The pretend device, for tests of everything that learns off the CPU."""

import pytest

from tests.helpers.accelerator import load_pretend_device
from trainkit.testing import PretendDevice


@pytest.fixture(scope="session")
def pretend() -> PretendDevice:
    """Load the pretend device, or skip where this machine cannot compile it."""
    return load_pretend_device()
