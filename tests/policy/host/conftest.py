"""Passes in numpy are tested as AVX-512 makes them, whatever this machine has."""

import pytest

from trainkit.policy.host import layers, products


@pytest.fixture(autouse=True)
def packing_is_spared(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Say that small products are made of matrices as they lie; a test may say by a parameter that they are not."""
    is_spared = getattr(request, "param", True)
    for module in (layers, products):
        monkeypatch.setattr(module, "spares_packing", lambda: is_spared)
