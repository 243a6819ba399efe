"""A loss and its gradients as one compiled graph, where there is a compiler."""

import inspect
import os
import shutil
import sys
import sysconfig
from collections.abc import Callable, Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call, grad_and_value

from trainkit.core.errors import ConfigError
from trainkit.engine.flat_storage import FlatGroup

Closure = Callable[[], Tensor | tuple[Tensor, Any]]  # the number to minimize, and other results without gradients
Layout = Mapping[str, tuple[int, torch.Size]]  # {parameter: number of elements, shape} of one flat tensor


def evaluate(loss: Closure) -> tuple[Tensor, Any]:
    """Return (the scalar to minimize, the loss's other results), with an empty tuple for no other results."""
    result = loss()
    return result if isinstance(result, tuple) else (result, ())


def check_compiler(subject: str, device: torch.device) -> None:
    """Raise `ConfigError` where torch cannot compile; the message names what is missing."""
    missing = _missing(device)
    if missing is not None:
        raise ConfigError(f"{subject}.engine='compile' needs {missing}: install it, or choose another engine")


def _missing(device: torch.device) -> str | None:
    """Name a requirement of compiling that is not met, None where all are."""
    if "isolate_recompiles" not in inspect.signature(torch.compile).parameters:
        return f"torch 2.13 or newer, which keeps the graphs of several policies apart, and this is {torch.__version__}"
    if device.type == "cuda":
        return None if find_spec("triton") is not None else "the package triton"
    usual = {"darwin": "clang++", "win32": "cl"}.get(sys.platform, "g++")
    compiler = os.environ.get("CXX", usual)
    if shutil.which(compiler) is None:
        return f"the C++ compiler {compiler}"
    headers = Path(sysconfig.get_path("include"))
    return None if (headers / "Python.h").exists() else f"Python's headers, of which {headers} has none"


class LossGraph:
    """A loss and its gradients in one graph: compiled once, and again for other shapes or modes.

    A loss is traced: it may read tensors, modules and Python numbers, of which every new value compiles another graph;
    what it returns is all that leaves the graph.
    """

    def __init__(self, module: nn.Module) -> None:
        self._caller = _Caller(module)
        compiled: Any = torch.compile  # whose annotations lack `isolate_recompiles`
        options = {"fullgraph": True, "dynamic": False, "recompile_limit": 64, "isolate_recompiles": True}
        self._graph = compiled(_gradients, **options)

    def __call__(self, loss: Closure, groups: Sequence[FlatGroup]) -> tuple[Tensor, Any]:
        """Return (loss, its other results) and write the gradients of the parameters' groups."""
        layouts = [group.layout for group in groups]
        parameters, gradients = [group.parameters for group in groups], [group.gradient for group in groups]
        with torch.no_grad():
            results: tuple[Tensor, Any] = self._graph(self._caller, loss, layouts, parameters, gradients)
        return results


class _Caller(nn.Module):
    """Call a loss with other tensors in the place of a module's parameters."""

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.module = module

    def forward(self, loss: Closure) -> tuple[Tensor, Any]:
        return evaluate(loss)


def _gradients(
    caller: _Caller, loss: Closure, layouts: Sequence[Layout], flats: Sequence[Tensor], gradients: Sequence[Tensor]
) -> tuple[Tensor, Any]:
    parameters: dict[str, Tensor] = {}
    for layout, flat in zip(layouts, flats, strict=True):
        pieces = torch.split(flat, [size for size, _ in layout.values()])
        for (name, (_, shape)), piece in zip(layout.items(), pieces, strict=True):
            parameters[f"module.{name}"] = piece.view(shape)
    grads, (value, outputs) = grad_and_value(lambda own: functional_call(caller, own, (loss,)), has_aux=True)(
        parameters
    )
    for layout, gradient in zip(layouts, gradients, strict=True):
        gradient.copy_(torch.cat([grads[f"module.{name}"].flatten() for name in layout]))
    return value, outputs
