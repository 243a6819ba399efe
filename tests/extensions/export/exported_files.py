"""Policies to export, and the check that their files act as they do."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from gymnasium import spaces

import trainkit as tk
from trainkit.core import tree
from trainkit.core.spaces import Spaces, structure_of
from trainkit.extensions.export.export import random_rows

onnxruntime = pytest.importorskip("onnxruntime", reason="the extra `onnx` is not installed")

VECTOR = spaces.Box(-np.inf, np.inf, (4,), np.float32)
MASKED = spaces.Dict({"obs": VECTOR, "action_mask": spaces.MultiBinary(4)})
BOX = spaces.Box(-2, np.array([3, 1], np.float32), (2,), np.float32)


def make(kind: Any, observation_space: Any, action_space: Any, **words: Any) -> Any:
    envs = Spaces(observation_space=observation_space, action_space=action_space)
    return kind.for_envs(envs, **{"seed": 1, "device": "cpu"} | words)


def play(path: Path, obs: Any) -> dict[str, Any]:
    """Run a file in onnxruntime alone, by the names of a tree's leaves."""
    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    outputs = [output.name for output in session.get_outputs()]
    inputs = {name or "obs": leaf for name, leaf in tree.named_leaves(obs)}
    return dict(zip(outputs, session.run(outputs, inputs), strict=True))


def play_torch(path: Path, obs: Any) -> dict[str, Any]:
    """Run a file's program in torch alone, by the observation as it is."""
    program = torch.export.load(path).module()
    with torch.no_grad():
        return {name: leaf.numpy() for name, leaf in program(tree.map_tree(torch.from_numpy, obs)).items()}


def thousand(space: Any) -> Any:
    return random_rows(space, 1_000, np.random.default_rng(7))


def check_files(policy: Any, folder: Path) -> None:
    """Write a policy, and compare the actions of both files with its own."""
    tk.export(policy, folder / "policy", formats=("onnx", "torch"))
    obs = thousand(policy.observation_space)
    action = policy.predict(obs)
    for received in (play(folder / "policy.onnx", obs)["action"], play_torch(folder / "policy.pt2", obs)["action"]):
        assert received.dtype == action.dtype
        if action.dtype.kind == "f":
            np.testing.assert_allclose(received, action, rtol=1e-4, atol=1e-4)
        else:
            np.testing.assert_array_equal(received, action)


onnxruntime = pytest.importorskip("onnxruntime", reason="the extra `onnx` is not installed")


def check_that_an_exported_graph_gives_the_flat_rows(env: Any, kind: Any, tmp_path: Path) -> None:
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
