import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from gymnasium import spaces

import trainkit as tk
from trainkit.core import tree
from trainkit.core.spaces import Spaces
from trainkit.policy.export import random_rows

pytest.importorskip("onnxscript", reason="the extra `onnx` is not installed")
onnxruntime = pytest.importorskip("onnxruntime", reason="the extra `onnx` is not installed")

VECTOR = spaces.Box(-np.inf, np.inf, (4,), np.float32)
IMAGE = spaces.Box(0, 255, (4, 84, 84), np.uint8)
MASKED = spaces.Dict({"obs": VECTOR, "action_mask": spaces.MultiBinary(4)})
BOX = spaces.Box(-2, np.array([3, 1], np.float32), (2,), np.float32)
NESTED = spaces.Dict(
    {
        "grid": spaces.Box(-1, 1, (3, 2), np.float64),
        "card": spaces.Discrete(5, start=2),
        "dice": spaces.MultiDiscrete([3, 4]),
        "photo": spaces.Box(0, 255, (40, 40, 3), np.uint8),
        "coins": spaces.MultiBinary(3),
        "pair": spaces.Tuple([spaces.Box(-1, 1, (2,), np.float32), spaces.Discrete(3)]),
    }
)
GRID = spaces.MultiDiscrete([[2, 3], [4, 5]], start=[[1, 0], [0, 2]])


def make(kind: Any, observation_space: Any, action_space: Any, **words: Any) -> Any:
    envs = Spaces(observation_space=observation_space, action_space=action_space)
    return kind.for_envs(envs, **{"seed": 1, "device": "cpu"} | words)


def play(path: Path, obs: Any) -> dict[str, Any]:
    """Ask a file in onnxruntime alone, by the names of a tree's leaves."""
    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    outputs = [output.name for output in session.get_outputs()]
    inputs = {name or "obs": leaf for name, leaf in tree.named_leaves(obs)}
    return dict(zip(outputs, session.run(outputs, inputs), strict=True))


def thousand(space: Any) -> Any:
    return random_rows(space, 1_000, np.random.default_rng(7))


def test_a_file_takes_the_same_actions_on_a_thousand_observations(tmp_path: Path) -> None:
    policy = make(tk.DQNPolicy, MASKED, spaces.Discrete(4), dueling=True, normalize_obs=True)
    obs = thousand(MASKED)
    obs["obs"] *= [1, 10, 100, 0.1]
    policy.preprocess.observe(tree.map_tree(torch.from_numpy, obs))
    policy.preprocess.fold()
    path = tmp_path / "policy.onnx"

    policy.export(path)

    told, action = play(path, obs), policy.predict(obs)
    np.testing.assert_array_equal(told["action"], action)
    np.testing.assert_allclose(told["q_values"], policy.action_values(obs), rtol=1e-4, atol=1e-4)
    unmasked = told["q_values"].argmax(axis=1)
    assert (obs["action_mask"][np.arange(1_000), action] == 1).all()
    assert (unmasked != action).any(), "the mask must have mattered somewhere"
    assert [path] == list(tmp_path.iterdir())


@pytest.mark.slow
def test_a_file_takes_any_number_of_rows(tmp_path: Path) -> None:
    policy = make(tk.PPOPolicy, VECTOR, spaces.Discrete(3))
    policy.export(tmp_path / "policy.onnx")
    for n_rows in (1, 2, 777):
        told = play(tmp_path / "policy.onnx", np.ones((n_rows, 4), np.float32))
        assert [told[name].shape for name in ("action", "probability", "value")] == [(n_rows,), (n_rows, 3), (n_rows,)]
        np.testing.assert_allclose(told["probability"].sum(axis=1), 1.0, rtol=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "observation_space", "action_space", "words"),
    [
        (tk.DQNPolicy, VECTOR, spaces.Discrete(3), {}),
        (tk.DQNPolicy, VECTOR, spaces.Discrete(3), {"dueling": True, "noisy": True, "head": (16,)}),
        (tk.DQNPolicy, VECTOR, spaces.Discrete(3), {"value": tk.ExpectedValue(rescale=1e-3)}),
        (tk.DQNPolicy, VECTOR, spaces.Discrete(3), {"value": tk.CategoricalValue(), "dueling": True}),
        (tk.DQNPolicy, VECTOR, spaces.Discrete(3), {"value": tk.QuantileValue(20)}),
        (tk.DQNPolicy, MASKED, spaces.Discrete(4), {"value": tk.ImplicitQuantileValue(8), "dueling": True}),
        (tk.DQNPolicy, IMAGE, spaces.Discrete(6), {"value": tk.CategoricalValue(), "dueling": True, "noisy": True}),
        (tk.DQNPolicy, NESTED, spaces.Discrete(6), {"normalize_obs": True}),
        (tk.DQNPolicy, spaces.Discrete(16), spaces.Discrete(4), {}),
        (tk.DiscreteBCQPolicy, MASKED, spaces.Discrete(4), {}),
        (tk.PPOPolicy, MASKED, spaces.Discrete(4), {}),
        (tk.PPOPolicy, VECTOR, BOX, {"normalize_obs": True}),
        (tk.PPOPolicy, VECTOR, BOX, {"action_bound_method": "tanh"}),
        (tk.A2CPolicy, VECTOR, GRID, {}),
        (tk.ReinforcePolicy, IMAGE, spaces.MultiBinary(3), {}),
        (tk.SACPolicy, NESTED, BOX, {"hidden": (32,)}),
        (tk.BCPolicy, VECTOR, spaces.Discrete(3), {}),
        (tk.BCPolicy, VECTOR, BOX, {"loss": "mse"}),
    ],
)
def test_every_policy_and_network_can_be_written(
    kind: Any, observation_space: Any, action_space: Any, words: Any, tmp_path: Path
) -> None:
    policy = make(kind, observation_space, action_space, **words)
    policy.export(tmp_path / "policy.onnx")
    obs = thousand(observation_space)
    told, action = play(tmp_path / "policy.onnx", obs)["action"], policy.predict(obs)
    assert told.dtype == action.dtype
    if action.dtype.kind == "f":
        np.testing.assert_allclose(told, action, rtol=1e-4, atol=1e-4)
    else:
        np.testing.assert_array_equal(told, action)


class Liar(tk.DQNPolicy):
    """Says in `greedy` what it does not do in `act`."""

    def greedy(self, obs: Any) -> dict[str, torch.Tensor]:
        answer = super().greedy(obs)
        return answer | {"action": (answer["action"] + 1) % 3}


class TestRefusals:
    def test_a_file_that_disagrees_is_not_left_and_replaces_none(self, tmp_path: Path) -> None:
        path = tmp_path / "policy.onnx"
        path.write_bytes(b"an older one")
        with pytest.raises(
            tk.errors.DivergedError, match=r"Liar.export: onnxruntime gives other actions in 256 of 256 rows"
        ):
            make(Liar, VECTOR, spaces.Discrete(3)).export(path)
        assert path.read_bytes() == b"an older one"
        assert [path] == list(tmp_path.iterdir())

    def test_a_policy_without_greedy_is_refused_with_what_to_do(self, tmp_path: Path) -> None:
        with pytest.raises(tk.ConfigError, match=r"RandomPolicy cannot be exported: give it a method greedy"):
            tk.RandomPolicy(spaces.Discrete(2)).export(tmp_path / "policy.onnx")

    def test_a_policy_that_was_told_no_space_is_refused(self, tmp_path: Path) -> None:
        with pytest.raises(tk.ConfigError, match=r"DQNPolicy.export needs an observation_space"):
            tk.DQNPolicy(torch.nn.Identity()).export(tmp_path / "policy.onnx")

    def test_a_missing_package_is_named_with_its_extra(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setitem(sys.modules, "onnxruntime", None)
        with pytest.raises(tk.ConfigError, match=r"needs onnxruntime .*: pip install 'trainkit-rl\[onnx\]'"):
            make(tk.DQNPolicy, VECTOR, spaces.Discrete(3)).export(tmp_path / "policy.onnx")


class TestRandomRows:
    def test_every_row_is_of_the_space(self) -> None:
        rows = random_rows(NESTED, 50, np.random.default_rng(0))
        for k in range(50):
            assert NESTED.contains(tree.map_tree(lambda leaf, k=k: leaf[k], rows))

    def test_every_row_of_a_mask_allows_something(self) -> None:
        rows = random_rows(MASKED, 200, np.random.default_rng(0))
        assert rows["action_mask"].any(axis=1).all()
        assert not rows["action_mask"].all()

    def test_bounds_for_form_are_not_drawn_from(self) -> None:
        wide = spaces.Box(-3.4e38, 3.4e38, (3,), np.float32)
        assert np.abs(random_rows(wide, 1_000, np.random.default_rng(0))).max() < 10
