"""Exported policies of nested actions."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import trainkit as tk
from tests.core.test_structured_actions import Dials, Signals, Turrets
from trainkit.core import tree
from trainkit.core.spaces import structure_of

pytest.importorskip("onnxscript", reason="the extra `onnx` is not installed")
onnxruntime = pytest.importorskip("onnxruntime", reason="the extra `onnx` is not installed")


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
    policy = kind.for_envs(env(), hidden=(8,), seed=1)
    tk.export(policy, tmp_path / "policy.onnx")
    session = onnxruntime.InferenceSession(tmp_path / "policy.onnx")
    obs = np.eye(3, dtype=np.float32)
    (rows,) = session.run(["action"], {session.get_inputs()[0].name: obs})
    structure = structure_of(policy.action_space)
    assert structure is not None
    reported, own = structure.unpack(rows), policy.predict(obs)
    for one, other in zip(tree.leaves(reported), tree.leaves(own), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-5)
