"""When numpy or torch executes a policy: what the engine reports, and what a run continues with."""

import re
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.nn.modules.module import register_module_forward_hook

from tests.extensions.numpy_engine.numpy_passes import note_numpy_passes
from tests.helpers.learning import batch_of, made
from trainkit.extensions.numpy_engine import numpy_function


def test_an_engine_that_gave_numpy_up_is_part_of_the_training_state() -> None:
    first, second = made(), made()
    first.engine.give_up("a loss cannot be recorded")
    second.load_training_state(first.training_state())
    assert (second.engine.name, second.engine.reason) == ("torch", "a loss cannot be recorded")
    second.load_training_state(made().training_state())
    assert second.engine.name == "numpy"


HOOKS: dict[str, Callable[[Any], Any]] = {
    "module": lambda policy: policy.network.register_forward_hook(lambda *_: None),
    "parameter": lambda policy: next(policy.network.parameters()).register_hook(lambda _: None),
    "all modules": lambda _: register_module_forward_hook(lambda *_: None),
}


@pytest.mark.parametrize("engine", ["auto", "numpy"])
@pytest.mark.parametrize("hook", HOOKS)
def test_the_reported_engine_is_torch_while_a_hook_is_registered(
    hook: str, engine: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    runs: list[int] = []
    note_numpy_passes(monkeypatch, lambda: runs.append(1))
    policy = made(engine=engine)
    for step in range(3):
        assert policy.engine.name == "numpy"
        handle = HOOKS[hook](policy)
        assert policy.engine.name == "torch"
        n_runs = len(runs)
        policy.update(batch_of(16, seed=step), step=step)
        assert (policy.engine.name, len(runs)) == ("torch", n_runs)
        assert policy.engine.reason == "a hook is registered, so torch executes network"
        handle.remove()
        assert policy.engine.name == "numpy"
        policy.update(batch_of(16, seed=step), step=step)
        assert (policy.engine.name, len(runs)) == ("numpy", n_runs + 1)


def test_a_hook_on_the_target_network_leaves_acting_to_numpy() -> None:
    policy = made()
    policy.update(batch_of(16), step=0)
    policy.act(batch_of(4).obs)
    handle = policy.target_network.register_forward_hook(lambda *_: None)
    assert str(policy.engine) == "numpy (a hook is registered, so torch executes network)"
    handle.remove()
    assert str(policy.engine) == "numpy (on the CPU)"


def test_a_large_function_is_left_to_torch_and_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(numpy_function, "MOST_MULTIPLICATIONS", 1_000)
    policy, reference = made(), made(engine="torch")
    for one in (policy, reference):
        one.update(batch_of(16, seed=1), step=1)
        one.update(batch_of(16, seed=2), step=2)
    assert policy.engine.name == "torch"
    assert re.fullmatch(r"network takes [\d,]+ multiplications, for which torch is as fast", policy.engine.reason)
    for own, theirs in zip(policy.network.parameters(), reference.network.parameters(), strict=True):
        torch.testing.assert_close(own, theirs, rtol=0, atol=0)
