"""Files of policies with a memory, which take and return its state."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from gymnasium import spaces

import trainkit as tk
from tests.extensions.export.exported_files import BOX, MASKED, VECTOR, make, thousand
from trainkit.core import tree

onnxruntime = pytest.importorskip("onnxruntime", reason="the extra `onnx` is not installed")


@pytest.mark.parametrize(
    ("kind", "options"),
    [
        (tk.DQNPolicy, {"recurrent": "lstm", "value": tk.QuantileValue(5)}),
        (tk.PPOPolicy, {"recurrent": "gru"}),
        pytest.param(tk.SACPolicy, {"recurrent": "transformer", "action_space": BOX}, marks=pytest.mark.slow),
    ],
    ids=["dqn", "ppo", "sac"],
)
def test_a_file_of_a_recurrent_policy_takes_and_returns_the_state(
    kind: Any, options: dict[str, Any], tmp_path: Path
) -> None:
    options = dict(options)
    space = options.pop("action_space", spaces.Discrete(4))
    hidden = (8, 8) if kind is tk.SACPolicy else (8,)
    policy = make(kind, VECTOR if kind is tk.SACPolicy else MASKED, space, hidden=hidden, **options)
    tk.export(policy, tmp_path / "policy", formats=("onnx", "torch"))
    session = onnxruntime.InferenceSession(tmp_path / "policy.onnx", providers=["CPUExecutionProvider"])
    program = torch.export.load(tmp_path / "policy.pt2").module()
    rows = thousand(policy.observation_space)
    state = by_onnx = by_torch = np.zeros((1, policy.state_size), np.float32)
    names = [output.name for output in session.get_outputs()]
    for step in range(100):  # `export` itself compares a thousand
        row = tree.map_tree(lambda leaf, step=step: leaf[step : step + 1], rows)
        action, state = policy.predict(row, state=state)
        inputs = {name or "obs": leaf for name, leaf in tree.named_leaves(row)} | {"state_in": by_onnx}
        results = dict(zip(names, session.run(names, inputs), strict=True))
        with torch.no_grad():
            outputs = program(tree.map_tree(torch.from_numpy, row), torch.from_numpy(by_torch))
        np.testing.assert_allclose(results["action"], action, atol=1e-4)
        np.testing.assert_allclose(outputs["action"], action, atol=1e-4)
        by_onnx, by_torch = results["state_out"], outputs["state_out"].numpy()
    np.testing.assert_allclose(by_onnx, state, atol=1e-4)
    assert np.abs(state).max() > 0.01
