"""The code of the page on the pretend device, which `tests/test_docs.py` leaves out, as it needs a compiler."""

import pytest

from tests.helpers.pages import ROOT, Example, examples

PAGE = ROOT / "tests" / "pretend" / "README.md"


@pytest.mark.parametrize("example", examples(PAGE), ids=lambda example: str(example.line))
def test_the_pages_code_runs(example: Example) -> None:
    exec(compile(example.source, str(PAGE), "exec"), {})  # noqa: S102 - our own page
