"""Exported policies of nested actions."""

from pathlib import Path
from typing import Any

import pytest

import trainkit as tk
from tests.extensions.export.exported_files import check_that_an_exported_graph_gives_the_flat_rows
from tests.helpers.nested_actions import Dials, Signals, Turrets

pytest.importorskip("onnxscript", reason="the extra `onnx` is not installed")


@pytest.mark.parametrize(
    ("env", "kind"),
    [
        (Signals, tk.DQNPolicy),
        pytest.param(Dials, tk.SACPolicy, marks=pytest.mark.slow),
        (Turrets, tk.PPOPolicy),
        pytest.param(Signals, tk.PPOPolicy, marks=pytest.mark.slow),
    ],
)
@pytest.mark.no_cover  # most of it is torch's exporter
def test_an_exported_graph_gives_the_flat_rows(env: Any, kind: Any, tmp_path: Path) -> None:
    check_that_an_exported_graph_gives_the_flat_rows(env, kind, tmp_path)
