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

Closure = Callable[[], Tensor | tuple[Tensor, Any]]  # the number to minimize, and other results without gradients
Layout = Mapping[str, tuple[int, torch.Size]]  # {parameter: numbers, shape} of one flat tensor


def ask(loss: Closure) -> tuple[Tensor, Any]:
    """Return (the number to minimise, what else came of it, an empty tuple where nothing did)."""
    result = loss()
    return result if isinstance(result, tuple) else (result, ())


def check_compiler(subject: str, device: torch.device) -> None:
    """Raise `ConfigError` where torch cannot compile; the message names what is missing."""
    missing = _missing(device)
    if missing is not None:
        raise ConfigError(f"{subject}.engine='compile' needs {missing}: install it, or choose another engine")


def _missing(device: torch.device) -> str | None:
    """Name what there is not of all that compiling needs."""
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
    """Compute a loss and its gradients in one graph: compiled once, and again for other shapes or modes.

    A loss is traced: what it looks at may be tensors, modules and plain numbers, of which each other value makes
    another graph; what it returns besides is all that leaves it.
    """

    def __init__(self, module: nn.Module) -> None:
        self._caller = _Caller(module)
        compiled: Any = torch.compile  # whose types do not tell of `isolate_recompiles`
        how = {"fullgraph": True, "dynamic": False, "recompile_limit": 64, "isolate_recompiles": True}
        self._graph = compiled(_gradients, **how)

    def __call__(
        self, loss: Closure, layouts: Sequence[Layout], flats: Sequence[Tensor], gradients: Sequence[Tensor]
    ) -> tuple[Tensor, Any]:
        """Return (loss, what else it returned) and write the gradients of the flat tensors."""
        with torch.no_grad():
            told: tuple[Tensor, Any] = self._graph(self._caller, loss, layouts, flats, gradients)
        return told


class _Caller(nn.Module):
    """Call a loss with other tensors in the place of a module's parameters."""

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.module = module

    def forward(self, loss: Closure) -> tuple[Tensor, Any]:
        return ask(loss)


def _gradients(
    caller: _Caller, loss: Closure, layouts: Sequence[Layout], flats: Sequence[Tensor], gradients: Sequence[Tensor]
) -> tuple[Tensor, Any]:
    own: dict[str, Tensor] = {}
    for layout, flat in zip(layouts, flats, strict=True):
        pieces = torch.split(flat, [size for size, _ in layout.values()])
        for (name, (_, shape)), piece in zip(layout.items(), pieces, strict=True):
            own[f"module.{name}"] = piece.view(shape)
    slopes, (value, shown) = grad_and_value(lambda own: functional_call(caller, own, (loss,)), has_aux=True)(own)
    for layout, gradient in zip(layouts, gradients, strict=True):
        gradient.copy_(torch.cat([slopes[f"module.{name}"].flatten() for name in layout]))
    return value, shown
