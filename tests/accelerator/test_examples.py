"""Every example on an accelerator, shortened: its trainers learn there what they learn on the CPU."""

import functools
import json
import sys
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch

import trainkit as tk
from tests.accelerator.runs import assert_equal_runs, assert_finite_runs, tolerance_of
from tests.helpers.pages import ROOT
from trainkit.extensions.numpy_engine.numpy_engine import NumpyEngine
from trainkit.extensions.simulators import classic_control
from trainkit.policy import base

pytestmark = [pytest.mark.accelerator, pytest.mark.timeout(600)]

EXAMPLES = ROOT / "examples"
TRAINERS = (tk.OffpolicyTrainer, tk.OnpolicyTrainer, tk.OfflineTrainer)
AT_MOST = {  # of each option
    "max_epoch": 2,
    "step_per_epoch": 64,
    "update_per_epoch": 4,
    "step_per_collect": 64,
    "batch_size": 16,
    "repeat_per_collect": 2,
    "learning_starts": 48,
    "episode_per_test": 2,
}


def script(name: str, *arguments: Any, **options: Any) -> Callable[[Path], Any]:
    """Return what runs an example's `main`; a list of words is its command line."""

    def run(folder: Path) -> None:
        words = [[str(folder / "run") if word == "LOGDIR" else word for word in words] for words in arguments]
        import_module(f"examples.{name}").main(*words, **options)

    return run


def notebook(name: str) -> Callable[[Path], Any]:
    """Return what runs the code of a notebook."""

    def run(folder: Path) -> None:
        cells = json.loads((EXAMPLES / f"{name}.ipynb").read_text())["cells"]
        code = ["".join(cell["source"]) for cell in cells if cell["cell_type"] == "code"]
        source = "\n".join(code).replace("%matplotlib inline", "").replace("n_step=20_000", "n_step=400")
        source = source.replace("add_every=100", "add_every=16")  # so that a shortened run adds copies
        exec(compile(source, name, "exec"), {"__name__": "__main__"})  # noqa: S102 - our own notebook

    return run


ATARI = [
    "--steps", "128", "--epochs", "1", "--capacity", "300", "--learning-starts", "48", "--logdir", "LOGDIR",
]  # fmt: skip
TUNING = ["--folder", "LOGDIR", "--trials", "2", "--steps", "128", "--epochs", "2"]
RUNS = {
    "dqn_cartpole": script("dqn_cartpole"),
    "inventory": script("inventory", max_epoch=1, n_episode=2),
    "league": script("league"),
    "offline_cql": script("offline_cql", n_rows=300, max_epoch=1, update_per_epoch=4),
    "own_algorithm": script("own_algorithm"),
    "own_dataset": script("own_dataset", max_epoch=1, update_per_epoch=4),
    "ppo_cartpole": script("ppo_cartpole"),
    "ppo_simulator": script("ppo_simulator", n=8, max_epoch=2),
    "rainbow_atari": script("rainbow_atari", ATARI),
    "rainbow_cartpole": script("rainbow_cartpole"),
    "sac_pendulum": script("sac_pendulum"),
    "td3": script("td3"),
    "tune_optuna": script("tune_optuna", TUNING),
    "two_agents": script("two_agents"),
    "offline": notebook("offline"),
    "parts": notebook("parts"),
    "quickstart": notebook("quickstart"),
    "recurrent": notebook("recurrent"),
    "self_play": notebook("self_play"),
}
NEEDS = {"rainbow_atari": "ale_py", "tune_optuna": "optuna"}


def policies_of(trainer: Any) -> list[tuple[Any, bool]]:
    """Return the policy of a trainer, or those of several, and whether each learns: copies in a pool do not."""
    policy = trainer.policy
    if not isinstance(policy, tk.MultiAgentPolicy):
        return [(policy, True)]
    return [(one, name in policy.policies_to_train) for name, one in policy.policies.items()]


def test_every_example_but_ported_scripts_is_run() -> None:
    own = [path.stem for path in EXAMPLES.glob("[!_]*.*") if not path.stem.startswith("from_")]
    assert sorted(RUNS) == sorted(own)


@pytest.fixture
def trained(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[Any]:
    """Shorten all trainers, and list those that were made."""
    trainers: list[Any] = []

    def shortened(trainer: Any) -> Callable[..., None]:
        original = trainer.__init__

        @functools.wraps(original)
        def start(self: Any, *arguments: Any, **options: Any) -> None:
            shorter = {
                name: min(value, AT_MOST[name]) if name in AT_MOST and value is not None else value
                for name, value in options.items()
            }
            trainers.append(self)
            original(self, *arguments, **shorter | {"verbose": False, "show_progress": False})

        return start

    for trainer in TRAINERS:
        monkeypatch.setattr(trainer, "__init__", shortened(trainer))
    display = ModuleType("IPython.display")
    display.display = display.clear_output = lambda *given, **options: None  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "IPython.display", display)
    monkeypatch.setenv("MPLBACKEND", "agg")
    return trainers


@pytest.mark.global_rng  # drawing figures does, and so may a user's script
@pytest.mark.parametrize("name", RUNS)
def test_an_example_learns_there_as_on_the_cpu(
    name: str, accelerator: torch.device, trained: list[Any], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    if name in NEEDS:
        pytest.importorskip(NEEDS[name], reason=f"{NEEDS[name]} is not installed")
    monkeypatch.setattr(NumpyEngine, "serves", lambda device: False)
    results = []
    for device in (torch.device("cpu"), accelerator):
        folder = tmp_path / device.type
        folder.mkdir()
        monkeypatch.chdir(folder)
        for module in (base, classic_control):
            monkeypatch.setattr(module, "resolve_device", lambda given, device=device: device)
        RUNS[name](folder)
        policies = [policy for trainer in trained for policy in policies_of(trainer)]
        assert {policy.device for policy, _ in policies} == {device}
        assert all(policy.n_updates > 0 for policy, learns in policies if learns)
        results.append([(policy.n_updates, policy.get_weights()) for policy, _ in policies])
        trained.clear()
    here, there = results
    assert len(here) == len(there) >= 1
    for (n_here, weights), (n_there, weights_there) in zip(here, there, strict=True):
        if accelerator.type == "pretend":
            assert n_here == n_there
            assert_equal_runs(weights_there, weights, tolerance_of(accelerator))
        else:  # many draw actions or noise
            assert_finite_runs(weights_there, weights)
