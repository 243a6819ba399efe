"""How many operations the gradient steps of an update launch on a device: exact numbers, each of which was a choice.

`TABLE` is printed in tests/pretend/README.md.
"""

from collections import Counter
from typing import Any

import numpy as np
import pytest

from tests.accelerator.runs import N_UPDATES, make
from tests.helpers.pages import ROOT
from tests.pretend import PretendDevice

# Of one update of a small preset, from its columns on the device to the optimizer's step.
N_OPERATIONS = {
    "dqn": {"float32": 58, "bf16": 71},
    "rainbow": {"float32": 232, "bf16": 281},
    "sac": {"float32": 187, "bf16": 205},
    "ppo": {"float32": 89, "bf16": 97},
    "drqn": {"float32": 1522, "bf16": 1681},  # an LSTM's step is one operation on CUDA, here its parts are
    "r2d2": {"float32": 1811, "bf16": 1998},
    "recurrent_ppo": {"float32": 699, "bf16": 789},
}
N_GRADIENT_STEPS = {"dqn": 1, "rainbow": 1, "sac": 3, "ppo": 1, "drqn": 1, "r2d2": 1, "recurrent_ppo": 1}
CASES = [(name, precision) for name, counts in N_OPERATIONS.items() for precision in counts]


def operations_of_an_update(name: str, pretend: PretendDevice, **options: Any) -> Counter[str]:
    """Return the operations of the gradient steps of a preset's last update, whose parameters are laid out."""
    with make(name, pretend.device, evaluation=None, **options) as trainer:
        operations, policy = Counter[str](), trainer.policy
        minimize, first = policy.engine.minimize, next(iter(policy.gradient_steps.values()))

        def counted(gradient_step: Any, *args: Any, **kwargs: Any) -> Any:
            if gradient_step is first:  # another update begins
                operations.clear()
            with pretend.counting() as counts:
                results = minimize(gradient_step, *args, **kwargs)
            operations.update(counts.operations)
            return results

        policy.engine.minimize = counted
        trainer.run()
    return operations


@pytest.mark.parametrize(("name", "precision"), CASES)
def test_an_update_launches_so_many_operations(name: str, precision: str, pretend: PretendDevice) -> None:
    operations = operations_of_an_update(name, pretend, precision=precision)
    assert operations.total() == N_OPERATIONS[name][precision], operations
    assert operations["aten::_fused_adam_"] == N_GRADIENT_STEPS[name]


def operations_of_three_layers(name: str, pretend: PretendDevice, **options: Any) -> dict[str, int]:
    """Return the operations that three more hidden layers add to an update."""
    few, many = (
        operations_of_an_update(name, pretend, hidden=(8,) * n, network={"norm": None}, **options) for n in (1, 4)
    )
    return {kind: n - few[kind] for kind, n in many.items() if n > few[kind]}


@pytest.mark.parametrize("name", ["dqn", "ppo"])
def test_a_layer_adds_its_forward_and_backward_pass_alone(name: str, pretend: PretendDevice) -> None:
    added = operations_of_three_layers(name, pretend)
    activations = {"dqn": {"aten::relu", "aten::threshold_backward"}, "ppo": {"aten::tanh", "aten::tanh_backward"}}
    assert added.keys() == {"aten::addmm", "aten::mm", "aten::sum"} | activations[name]


@pytest.mark.parametrize("name", ["dqn", "sac", "ppo"])
def test_bf16_casts_the_weights_of_all_layers_at_once(name: str, pretend: PretendDevice) -> None:
    added = operations_of_three_layers(name, pretend, precision="bf16")
    assert added == operations_of_three_layers(name, pretend)


@pytest.mark.parametrize("name", ["rainbow", "sac", "ppo"])
def test_bf16_learns_there_as_on_the_cpu(name: str, pretend: PretendDevice) -> None:
    epochs, policies = [], []
    for device in ("cpu", pretend.device):
        with make(name, device, precision="bf16", evaluation=None, network={"norm": None}) as trainer:
            epochs += list(trainer)
        policies.append(trainer.policy)
    here, there = (epoch.stats.update for epoch in epochs)
    assert epochs[0].info.gradient_step == N_UPDATES
    assert there == {key: pytest.approx(value, rel=1e-5, abs=1e-6) for key, value in here.items()}
    for key, weights in policies[0].get_weights().items():
        np.testing.assert_allclose(policies[1].get_weights()[key], weights, rtol=1e-5, atol=1e-6, err_msg=key)


def test_the_page_has_the_table() -> None:
    rows = [f"| `{name}` | {counts['float32']} | {counts['bf16']} |" for name, counts in N_OPERATIONS.items()]
    table = "\n".join(['| preset | `precision="float32"` | `precision="bf16"` |', "|---|---|---|", *rows])
    assert table in (ROOT / "tests" / "pretend" / "README.md").read_text(), table
