"""The device as all tests here see it: copies are done when the CPU waits for them, and a GPU computes in float32."""

from collections.abc import Iterator

import pytest

from tests.helpers.accelerator import computing_in_float32, load_pretend_device


@pytest.fixture(autouse=True)
def _device(request: pytest.FixtureRequest) -> Iterator[None]:
    """Delay copies on the pretend device; compute in float32 on a GPU, as the CPU does."""
    is_pretend = request.config.getoption("--device") == "pretend"
    with load_pretend_device().delaying() if is_pretend else computing_in_float32():
        yield
