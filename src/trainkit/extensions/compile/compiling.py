"""A loss and its gradients as one compiled graph, where there is a compiler."""

import itertools
import os
import shutil
import sys
import sysconfig
from collections.abc import Callable, Container, Mapping
from pathlib import Path
from types import FunctionType
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call, grad_and_value

from trainkit.core.extras import is_installed
from trainkit.engine.loss import Objective, OwnObjective

_MOST_GRAPHS = 64  # of one loss, for other shapes and modes; torch's default is 8
_numbers = itertools.count()


def missing(device: torch.device) -> str | None:
    """Name a requirement of compiling that is not met, None where all are."""
    if device.type == "cuda":
        if not is_installed("triton"):
            return "the package triton"
        language, variable, usual = "C", "CC", ["gcc", "clang"]  # in this order, as triton does
    else:
        language, variable, usual = "C++", "CXX", [{"darwin": "clang++", "win32": "cl"}.get(sys.platform, "g++")]
    compilers = [os.environ[variable]] if variable in os.environ else usual
    if not any(map(shutil.which, compilers)):
        return f"the {language} compiler {' or '.join(compilers)}"
    headers = Path(sysconfig.get_path("include"))
    return None if (headers / "Python.h").exists() else f"Python's headers, of which {headers} has none"


class LossGraph:
    """An objective and its gradients in one graph: compiled once, and again for other shapes or modes.

    An objective is traced: it may read tensors, modules and Python numbers, of which every new value compiles another
    graph; what it returns is all that leaves the graph.

    Args:
        module: whose parameters the gradients are of.
        movable: returns buffers by name that the objective may write; they are written when the graph has run.
    """

    def __init__(self, module: nn.Module, movable: Callable[[], Mapping[str, Tensor]]) -> None:
        self._caller, self._movable = _Caller(module), movable
        dynamo: Any = torch._dynamo
        dynamo.config.recompile_limit = max(dynamo.config.recompile_limit, _MOST_GRAPHS)
        self._graph: Any = torch.compile(_with_own_graphs(_gradients), fullgraph=True, dynamic=False)

    def __call__(
        self, objective: Objective | OwnObjective, given: Any, moving: Container[nn.Parameter]
    ) -> tuple[dict[str, Any], dict[nn.Parameter, Tensor]]:
        """Return the objective's results, and the gradients of the module's parameters that move."""
        module = self._caller.module
        trainable = {f"module.{path}": one for path, one in module.named_parameters() if one in moving}
        with torch.no_grad():
            own = {id(buffer): f"module.{path}" for path, buffer in module.named_buffers()}
            buffers = {own[id(one)]: one for one in self._movable().values() if id(one) in own}
            parameters = {path: one.detach() for path, one in trainable.items()}
            results, gradients, moved = self._graph(self._caller, objective, given, parameters, buffers)
            for name, buffer in buffers.items():
                buffer.copy_(moved[name])
        return results, {trainable[path]: gradient for path, gradient in gradients.items()}


def _with_own_graphs(function: Any) -> Any:
    """Return the same function with code of its own, as torch keeps graphs, and their limit, by code."""
    code = function.__code__.replace(co_name=f"{function.__name__}_{next(_numbers)}")
    return FunctionType(code, function.__globals__, code.co_name, function.__defaults__, function.__closure__)


class _Caller(nn.Module):
    """Evaluate an objective with other tensors in the place of a module's parameters."""

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.module = module

    def forward(self, objective: Objective | OwnObjective, given: Any) -> dict[str, Any]:
        return objective.evaluate(given)


def _gradients(
    caller: _Caller,
    objective: Objective | OwnObjective,
    given: Any,
    parameters: dict[str, Tensor],
    buffers: Mapping[str, Tensor],
) -> tuple[dict[str, Any], dict[str, Tensor], dict[str, Tensor]]:
    def loss_and_more(own: dict[str, Tensor], moved: dict[str, Tensor]) -> tuple[Tensor, Any]:
        results = functional_call(caller, {**own, **moved}, (objective, given))
        return results["loss"], (results, moved)

    moved = {name: buffer.clone() for name, buffer in buffers.items()}
    gradients, (value, (results, moved)) = grad_and_value(loss_and_more, has_aux=True)(parameters, moved)
    return {**results, "loss": value}, gradients, moved
