"""The device as all tests here see it: a copy that does not block is done when the CPU waits for it."""

from collections.abc import Iterator

import pytest

from tests.helpers.accelerator import load_pretend_device


@pytest.fixture(autouse=True)
def _delayed_copies(request: pytest.FixtureRequest) -> Iterator[None]:
    """Delay copies, where the device is the pretend device."""
    if request.config.getoption("--device") != "pretend":
        yield
        return
    with load_pretend_device().delaying():
        yield
