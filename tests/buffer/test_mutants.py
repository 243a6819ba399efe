"""A fault planted in the buffer is noticed by a test."""

import pytest

from tests.buffer.mutants import MUTANTS
from tests.helpers.faults import assert_noticed


@pytest.mark.parametrize("name", MUTANTS)
def test_a_planted_fault_is_noticed(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    assert_noticed(MUTANTS[name], monkeypatch)
