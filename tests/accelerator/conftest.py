"""The pretend device as all tests here see it: a copy that does not block is done when the CPU waits for it."""

from collections.abc import Iterator

import pytest

from trainkit.testing import PretendDevice


@pytest.fixture
def pretend(pretend: PretendDevice) -> Iterator[PretendDevice]:
    """Delay copies on the pretend device."""
    with pretend.delaying():
        yield pretend
