"""A policy back from a file acts as it did, without an environment; what cannot be made again says how to help."""

import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.testing import assert_array_equal

import trainkit as tk
from tests.policy.learners import BOX, FEW, MADE, PLACES, SEEN
from trainkit.core.checkpoint import read_manifest
from trainkit.policy.persistence import config_of

OBS = np.random.default_rng(0).uniform(-1, 1, (5, 3)).astype(np.float32)


@pytest.mark.parametrize("kind", MADE)
def test_a_policy_acts_as_it_did(kind: str, tmp_path: Path) -> None:
    policy = MADE[kind]()
    if policy.statistics.observes and kind == "normalised":
        policy.preprocess.observe(torch.as_tensor(OBS))
        policy.preprocess.fold()
    policy.last_step = 1234
    loaded = tk.load_policy(policy.save(tmp_path), device="cpu")
    assert type(loaded) is type(policy)
    assert loaded.last_step == 1234
    assert_array_equal(loaded.predict(OBS), policy.predict(OBS))
    for one, other in zip(policy.state_dict().values(), loaded.state_dict().values(), strict=True):
        torch.testing.assert_close(one, other, rtol=0, atol=0)
    assert loaded.config == policy.config
    assert (loaded.observation_space, loaded.action_space) == (policy.observation_space, policy.action_space)


def test_masked_dicts_and_tuples_come_back_too(tmp_path: Path) -> None:
    policy = tk.DQNPolicy.for_envs(SEEN, hidden=(8,), device="cpu", seed=3)
    loaded = tk.load_policy(policy.save(tmp_path), device="cpu")
    obs = {"obs": (OBS[0], 3), "action_mask": np.array([0, 1, 0, 1], np.int8)}
    assert loaded.predict(obs) == policy.predict(obs)


@pytest.mark.parametrize(
    "preset", ["rainbow", *(pytest.param(name, marks=pytest.mark.slow) for name in ("ppo", "iqn"))]
)
def test_a_preset_run_can_be_loaded_to_act_in_a_process_that_knows_nothing_of_it(preset: str, tmp_path: Path) -> None:
    trainer = getattr(tk.presets, preset)(
        "CartPole-v1", n_envs=2, max_epoch=1, step_per_epoch=40, batch_size=8, n_test_envs=1, episode_per_test=1,
        hidden=(8,), seed=1, verbose=False, show_progress=False, device="cpu", checkpoint=tmp_path,
    )  # fmt: skip
    trainer.run()
    obs = np.random.default_rng(1).normal(size=(6, 4)).astype(np.float32)
    code = (
        "import sys, numpy as np, trainkit as tk\n"
        "policy = tk.load_policy(sys.argv[1], device='cpu')\n"
        "obs = np.random.default_rng(1).normal(size=(6, 4)).astype(np.float32)\n"
        "print(policy.predict(obs).tolist())\n"
    )
    done = subprocess.run([sys.executable, "-c", code, tmp_path], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == str(trainer.policy.predict(obs).tolist())


def test_what_was_saved_is_replaced_and_stays_whole(tmp_path: Path) -> None:
    for seed in (3, 4):
        policy = tk.DQNPolicy.for_envs(PLACES, hidden=(8,), device="cpu", seed=seed)
        policy.save(tmp_path)
    assert len(list(tmp_path.iterdir())) == 2
    assert_array_equal(tk.load_policy(tmp_path, device="cpu").predict(OBS), policy.predict(OBS))


# ---- what cannot be made again ----


class Own(torch.nn.Module):
    def __init__(self, width: int = 6) -> None:
        super().__init__()
        self.body = torch.nn.Sequential(torch.nn.Linear(3, width), torch.nn.ReLU(), torch.nn.Linear(width, 4))

    def forward(self, obs: torch.Tensor) -> torch.Tensor:
        return self.body(obs)


def with_own(width: int = 6) -> tk.DQNPolicy:
    with torch.random.fork_rng():
        torch.random.manual_seed(0)
        return tk.DQNPolicy(Own(width), observation_space=BOX, action_space=FEW, device="cpu")


def test_a_network_of_ones_own_is_loaded_into_a_policy_made_like_it(tmp_path: Path) -> None:
    policy = with_own()
    with torch.no_grad():
        policy.network.module.body[0].weight.add_(1.0)  # type: ignore[union-attr, operator]  # moved
    policy.save(tmp_path)
    with pytest.raises(
        tk.errors.CheckpointError, match=r"as no `for_envs` of trainkit made it: make one like it and give it"
    ):
        tk.load_policy(tmp_path)
    loaded = tk.load_policy(tmp_path, policy=with_own())
    assert_array_equal(loaded.predict(OBS), policy.predict(OBS))


def test_a_policy_that_is_not_like_it_is_refused_with_what_differs(tmp_path: Path) -> None:
    with_own(6).save(tmp_path)
    with pytest.raises(tk.errors.CheckpointError, match=r"network.module.body.0.weight: \[7, 3\] here, \[6, 3\] given"):
        tk.load_policy(tmp_path, policy=with_own(7))


def test_an_argument_that_no_file_can_hold_is_named_if_acting_needs_it(tmp_path: Path) -> None:
    class Value(tk.ExpectedValue):
        pass

    policy = tk.DQNPolicy.for_envs(PLACES, hidden=(8,), value=Value(), device="cpu")
    policy.save(tmp_path)
    with pytest.raises(
        tk.errors.CheckpointError,
        match=r"cannot restore value=Value\(\) of its policy, which is not trainkit's: give it to load_policy",
    ):
        tk.load_policy(tmp_path)


def test_another_argument_in_the_place_of_one_that_no_file_can_hold_is_warned_of(tmp_path: Path, caplog: Any) -> None:
    class Value(tk.ExpectedValue):
        pass

    tk.DQNPolicy.for_envs(PLACES, hidden=(8,), value=Value(delta=2.0), device="cpu").save(tmp_path)
    tk.load_policy(tmp_path, value=Value(delta=2.0))
    assert caplog.text == ""
    tk.load_policy(tmp_path, value=Value())
    assert "had value=Value(delta=2.0), and gets Value()" in caplog.text


def test_an_argument_of_learning_that_no_file_can_hold_is_left_out_with_a_word(tmp_path: Path, caplog: Any) -> None:
    policy = tk.DQNPolicy.for_envs(PLACES, hidden=(8,), lr=lambda step: 1e-3, device="cpu", seed=3)
    loaded = tk.load_policy(policy.save(tmp_path), device="cpu")
    assert_array_equal(loaded.predict(OBS), policy.predict(OBS))
    assert "cannot say what lr of its policy was: made without" in caplog.text


def test_there_must_be_something_to_load(tmp_path: Path) -> None:
    with pytest.raises(tk.errors.CheckpointError, match="holds no readable checkpoint"):
        tk.load_policy(tmp_path)


def test_weights_alone_go_into_a_policy_that_is_there(tmp_path: Path) -> None:
    one, other = (tk.DQNPolicy.for_envs(PLACES, hidden=(8,), device="cpu", seed=seed) for seed in (3, 4))
    other.load_weights(one.save(tmp_path))
    assert_array_equal(other.predict(OBS), one.predict(OBS))
    third = tk.DQNPolicy.for_envs(PLACES, hidden=(8,), device="cpu", seed=5)
    third.load_weights(one.state_dict())
    assert_array_equal(third.predict(OBS), one.predict(OBS))


# ---- configs ----


def test_a_recipe_leaves_out_what_is_this_machines_affair_and_names_what_is_unknown(tmp_path: Path) -> None:
    config = config_of(
        tk.DQNPolicy, {"device": "cuda:7", "seed": 3, "hidden": (8,), "lr": print, "gamma": np.float64(1)}
    )
    assert config == {
        "class": "DQNPolicy",
        "arguments": {"hidden": [8], "gamma": 1.0},
        "unknown": {"lr": "<built-in function print>"},
    }


def test_a_manifest_says_how_its_policy_was_made(tmp_path: Path) -> None:
    tk.DQNPolicy.for_envs(PLACES, hidden=(8,), double=True, device="cpu").save(tmp_path)
    assert read_manifest(tmp_path)["policy"]["arguments"] == {"hidden": [8], "double": True}


def test_inspect_returns_plain_values(tmp_path: Path) -> None:
    tk.DQNPolicy.for_envs(PLACES, hidden=(8,), device="cpu").save(tmp_path)
    received = tk.trainer.inspect_checkpoint(tmp_path)
    assert (received["problem"], received["path"], received["format"]) == (None, str(tmp_path), 2)
    assert received["spaces"]["action_space"] == {"kind": "Discrete", "shape": [], "dtype": "<i8", "n": 4, "start": 0}
    (file,) = tmp_path.glob("policy-*.pt")
    assert received["components"]["policy"]["bytes"] == file.stat().st_size
    file.write_bytes(b"short")
    assert "policy-1.pt is damaged: it has 5 of" in tk.trainer.inspect_checkpoint(tmp_path)["problem"]
    with pytest.raises(tk.errors.CheckpointError, match="holds no readable checkpoint"):
        tk.trainer.inspect_checkpoint(tmp_path / "nowhere")


def test_weights_that_torch_saved_are_taken_too_and_nothing_else_is(tmp_path: Path) -> None:
    one, other = (tk.DQNPolicy.for_envs(PLACES, hidden=(8,), device="cpu", seed=seed) for seed in (3, 4))
    torch.save(one.state_dict(), tmp_path / "best.pt")
    other.load_weights(tmp_path / "best.pt")
    assert_array_equal(other.predict(OBS), one.predict(OBS))
    torch.save({"weights": Path("x")}, tmp_path / "odd.pt")
    with pytest.raises(tk.errors.CheckpointError, match=r"odd.pt cannot be read as .* holds more than tensors"):
        other.load_weights(tmp_path / "odd.pt")
