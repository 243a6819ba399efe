"""How many operations the gradient steps of an update launch on a device: exact numbers, each of which was a choice."""

from collections import Counter
from typing import Any

import pytest

from tests.accelerator.runs import make
from trainkit.testing import PretendDevice

# Of one update of a small preset, from its columns on the device to the optimizer's step.
N_OPERATIONS = {"dqn": 55, "rainbow": 199, "sac": 185, "ppo": 79}
N_GRADIENT_STEPS = {"dqn": 1, "rainbow": 1, "sac": 3, "ppo": 1}


def operations_of_an_update(name: str, pretend: PretendDevice, **options: Any) -> Counter[str]:
    """Return the operations of the gradient steps of a preset's last update, whose parameters are laid out."""
    with make(name, pretend.device, evaluation=None, **options) as trainer:
        operations, take_steps = Counter[str](), trainer.policy._take_steps

        def counted(*args: Any, **kwargs: Any) -> Any:
            operations.clear()
            with pretend.counting() as counts:
                results = take_steps(*args, **kwargs)
            operations.update(counts.operations)
            return results

        trainer.policy._take_steps = counted
        trainer.run()
    return operations


@pytest.mark.parametrize("name", N_OPERATIONS)
def test_an_update_launches_so_many_operations(name: str, pretend: PretendDevice) -> None:
    operations = operations_of_an_update(name, pretend)
    assert operations.total() == N_OPERATIONS[name], operations
    assert operations["aten::_fused_adam_"] == N_GRADIENT_STEPS[name]


@pytest.mark.parametrize("name", ["dqn", "sac"])
def test_the_number_of_layers_adds_no_operation_to_a_step_along_the_gradients(
    name: str, pretend: PretendDevice
) -> None:
    def n_operations(hidden: tuple[int, ...]) -> dict[str, int]:
        operations = operations_of_an_update(name, pretend, hidden=hidden)
        return {kind: operations[f"aten::{kind}"] for kind in ("cat", "add", "add_", "zero_", "_fused_adam_")}

    assert n_operations((8, 8, 8, 8)) == n_operations((8,))
