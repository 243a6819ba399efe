import json
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium import spaces

import trainkit as tk
from tests.extensions.export.exported_files import (
    BOX,
    MASKED,
    VECTOR,
    check_files,
    make,
    onnxruntime,
    play,
    play_torch,
    thousand,
)
from trainkit.core import tree
from trainkit.core.spaces import Spaces
from trainkit.extensions.export.export import describe_export, random_rows

pytest.importorskip("onnxscript", reason="the extra `onnx` is not installed")

IMAGE = spaces.Box(0, 255, (4, 84, 84), np.uint8)
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


@pytest.fixture(scope="module")
def exported(tmp_path_factory: pytest.TempPathFactory) -> tuple[tk.DQNPolicy, Any, Path]:
    """Return a policy with a mask and normalization, observations, and the folder of its two files."""
    envs = SimpleNamespace(observation_space=MASKED, action_space=spaces.Discrete(4), name="Doors-v3")
    policy = tk.DQNPolicy.for_envs(envs, dueling=True, normalize_obs=True, seed=1, device="cpu")
    obs = thousand(MASKED)
    obs["obs"] *= [1, 10, 100, 0.1]
    policy.preprocess.observe(tree.map_tree(torch.from_numpy, obs))
    policy.preprocess.fold()
    folder = tmp_path_factory.mktemp("exported")
    written = tk.export(policy, folder / "policy", formats=("onnx", "torch"))
    assert written == [folder / "policy.onnx", folder / "policy.pt2"]
    assert sorted(written) == sorted(folder.iterdir())
    return policy, obs, folder


@pytest.mark.parametrize(("name", "run"), [("policy.onnx", play), ("policy.pt2", play_torch)])
def test_a_file_takes_the_same_actions_on_a_thousand_observations(
    name: str, run: Callable[..., Any], exported: tuple[tk.DQNPolicy, Any, Path]
) -> None:
    policy, obs, folder = exported
    received, action = run(folder / name, obs), policy.predict(obs)
    np.testing.assert_array_equal(received["action"], action)
    np.testing.assert_allclose(received["q_values"], policy.action_values(obs), rtol=1e-4, atol=1e-4)
    unmasked = received["q_values"].argmax(axis=1)
    assert (obs["action_mask"][np.arange(1_000), action] == 1).all()
    assert (unmasked != action).any(), "the mask must have mattered somewhere"
    (one,) = run(folder / name, tree.map_tree(lambda leaf: leaf[:1], obs))["action"]
    assert one == action[0]


def test_both_files_hold_the_metadata(exported: tuple[tk.DQNPolicy, Any, Path]) -> None:
    _, _, folder = exported
    of_onnx = onnxruntime.InferenceSession(folder / "policy.onnx").get_modelmeta().custom_metadata_map
    files = {"metadata.json": ""}
    torch.export.load(folder / "policy.pt2", extra_files=files)
    of_torch = json.loads(files["metadata.json"])
    assert {name: of_onnx[name] for name in of_torch} == of_torch
    assert (of_torch["policy"], of_torch["env"]) == ("DQNPolicy", "Doors-v3")
    read = {name: json.loads(text) for name, text in of_torch.items() if name not in ("policy", "env")}
    found = Spaces.from_plain([read["observation_space"], read["action_space"]])
    assert (found.observation_space, found.action_space) == (MASKED, spaces.Discrete(4))
    assert read["inputs"] == ["action_mask", "obs"]
    assert read["outputs"] == ["action", "q_values"]
    assert read["versions"] == {
        "trainkit": tk.__version__, "torch": torch.__version__, "numpy": np.__version__,
        "gymnasium": gymnasium.__version__,
    }  # fmt: skip


def test_a_loaded_policy_knows_its_environments_still(tmp_path: Path) -> None:
    envs = tk.make_envs("CartPole-v1", 1)
    policy = tk.DQNPolicy.for_envs(envs, hidden=(8,), seed=1)
    assert describe_export(tk.load_policy(policy.save(tmp_path)), ["obs"], ["action"])["env"] == "CartPole-v1"
    assert "env" not in describe_export(make(tk.DQNPolicy, VECTOR, spaces.Discrete(2)), ["obs"], ["action"])


def test_a_file_has_the_requested_opset_or_is_rejected(tmp_path: Path) -> None:
    onnx = pytest.importorskip("onnx")
    policy = make(tk.DQNPolicy, VECTOR, spaces.Discrete(2))
    (written,) = tk.export(policy, tmp_path / "policy.onnx", opset=19)
    assert [one.version for one in onnx.load(written).opset_import if not one.domain] == [19]
    with pytest.raises(tk.ConfigError, match=r"export.opset must be a whole number >= 18, got 17"):
        tk.export(policy, tmp_path / "old.onnx", opset=17)
    with pytest.raises(tk.ConfigError, match=r"cannot write opset 999, only \d+: leave opset out"):
        tk.export(policy, tmp_path / "new.onnx", opset=999)
    with pytest.raises(tk.ConfigError, match=r"export.opset has no effect without the format onnx"):
        tk.export(policy, tmp_path / "policy.pt2", opset=18)
    assert [path.name for path in tmp_path.iterdir()] == ["policy.onnx"]


@pytest.mark.slow
@pytest.mark.parametrize("path", ["policy", "policy.onnx", "policy.pt2", "v1.2"])
def test_the_end_of_a_name_is_its_format_and_others_are_added_to(path: str, tmp_path: Path) -> None:
    (written,) = tk.export(make(tk.DQNPolicy, VECTOR, spaces.Discrete(3)), tmp_path / path, formats=["torch"])
    assert written.name == ("v1.2.pt2" if path == "v1.2" else "policy.pt2")


@pytest.mark.slow
def test_a_file_takes_any_number_of_rows(tmp_path: Path) -> None:
    policy = make(tk.PPOPolicy, VECTOR, spaces.Discrete(3))
    tk.export(policy, tmp_path / "policy.onnx")
    for n_rows in (1, 2, 777):
        received = play(tmp_path / "policy.onnx", np.ones((n_rows, 4), np.float32))
        assert [received[name].shape for name in ("action", "probability", "value")] == [
            (n_rows,),
            (n_rows, 3),
            (n_rows,),
        ]
        np.testing.assert_allclose(received["probability"].sum(axis=1), 1.0, rtol=1e-5)


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
        (tk.PPOPolicy, MASKED, spaces.Discrete(4), {}),
        (tk.PPOPolicy, VECTOR, BOX, {"normalize_obs": True}),
        (tk.PPOPolicy, VECTOR, BOX, {"action_bound_method": "tanh"}),
        (tk.A2CPolicy, VECTOR, GRID, {}),
        (tk.ReinforcePolicy, IMAGE, spaces.MultiBinary(3), {}),
        (tk.SACPolicy, NESTED, BOX, {"hidden": (32,)}),
    ],
)
def test_every_policy_and_network_can_be_written(
    kind: Any, observation_space: Any, action_space: Any, words: Any, tmp_path: Path
) -> None:
    check_files(make(kind, observation_space, action_space, **words), tmp_path)


class Liar(tk.DQNPolicy):
    """Says in `greedy` what it does not do in `act`."""

    def greedy(self, obs: Any) -> dict[str, torch.Tensor]:
        answer = super().greedy(obs)
        return answer | {"action": (answer["action"] + 1) % 3}


class TestRefusals:
    @pytest.mark.parametrize(
        ("name", "file"), [("policy.onnx", "onnx"), pytest.param("policy.pt2", "torch", marks=pytest.mark.slow)]
    )
    def test_a_file_that_disagrees_is_not_left_and_replaces_none(self, name: str, file: str, tmp_path: Path) -> None:
        path = tmp_path / name
        path.write_bytes(b"an older one")
        with pytest.raises(
            tk.errors.DivergedError, match=rf"export of Liar: the {file} file gives other actions in 256 of 256 rows"
        ):
            tk.export(make(Liar, VECTOR, spaces.Discrete(3)), path)
        assert path.read_bytes() == b"an older one"
        assert [path] == list(tmp_path.iterdir())

    def test_a_policy_without_greedy_is_refused_with_what_to_do(self, tmp_path: Path) -> None:
        with pytest.raises(tk.ConfigError, match=r"RandomPolicy cannot be exported: give it a method greedy"):
            tk.export(tk.RandomPolicy(spaces.Discrete(2)), tmp_path / "policy.onnx")

    def test_a_policy_without_a_space_is_rejected(self, tmp_path: Path) -> None:
        with pytest.raises(
            tk.ConfigError,
            match=r"^export needs the observation_space of DQNPolicy, and it has none: give one at construction$",
        ):
            tk.export(tk.DQNPolicy(torch.nn.Identity()), tmp_path / "policy.onnx")

    def test_a_name_or_a_format_that_says_nothing_is_refused(self, tmp_path: Path) -> None:
        policy = make(tk.DQNPolicy, VECTOR, spaces.Discrete(3))
        with pytest.raises(tk.ConfigError, match=r"policy.pt' must end in .onnx or .pt2, which is its format: give"):
            tk.export(policy, tmp_path / "policy.pt")
        with pytest.raises(
            tk.ConfigError, match=r"formats must be one of \['onnx', 'torch'\], got 'onx', did you mean"
        ):
            tk.export(policy, tmp_path / "policy", formats=["onx"])
        for formats in ("onnx", ()):
            with pytest.raises(tk.ConfigError, match=r"formats must be a sequence such as \(.onnx., .torch.\)"):
                tk.export(policy, tmp_path / "policy", formats=formats)
        assert list(tmp_path.iterdir()) == []

    def test_a_missing_package_is_named_with_its_extra(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setitem(sys.modules, "onnxruntime", None)
        with pytest.raises(tk.ConfigError, match=r"needs onnxruntime .*: pip install 'trainkit-rl\[onnx\]'"):
            tk.export(make(tk.DQNPolicy, VECTOR, spaces.Discrete(3)), tmp_path / "policy.onnx")


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
