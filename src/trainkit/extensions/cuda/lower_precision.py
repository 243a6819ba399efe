"""Products of networks in TF32, or in bfloat16 on one copy of the weights, while they learn."""

import contextlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.nn.utils import parametrize

from trainkit.engine.parameter_storage import Placement
from trainkit.engine.precision import LearningPrecision


class Tf32(LearningPrecision):
    """On CUDA, products of numbers rounded to TF32, with 10 bits of mantissa; elsewhere float32.

    Args:
        policy: whose networks they are.
        device: of the policy.
    """

    name = "tf32"

    def __init__(self, policy: nn.Module, device: torch.device) -> None:
        self._is_switched = device.type == "cuda"

    def during_step(
        self, trainable: Sequence[nn.Parameter], *, is_compiled: bool = False
    ) -> contextlib.AbstractContextManager[None]:
        """Return a context for a loss and its backward pass; arguments as of `LearningPrecision.during_step`."""
        return _tf32() if self._is_switched else contextlib.nullcontext()


class Bfloat16(LearningPrecision):
    """Products of numbers rounded to bfloat16, with 7 bits of mantissa, in which activations are stored too.

    Sums are in float32.

    Args:
        policy: whose networks they are.
        device: of the policy.
    """

    name = "bf16"

    def __init__(self, policy: nn.Module, device: torch.device) -> None:
        self._networks = _Bfloat16Networks(policy, device)

    def during_step(
        self, trainable: Sequence[nn.Parameter], *, is_compiled: bool = False
    ) -> contextlib.AbstractContextManager[None]:
        """Return a context for a loss and its backward pass; arguments as of `LearningPrecision.during_step`."""
        return self._networks.during_step(trainable, copies_weights=not is_compiled)


@contextlib.contextmanager
def _tf32() -> Iterator[None]:
    """Let CUDA multiply float32 in TF32, by torch's switches, which are those of the process."""
    cudnn: Any = torch.backends.cudnn  # whose annotations lack these switches
    switches: list[Any] = [torch.backends.cuda.matmul, cudnn.conv, cudnn.rnn]
    before = [switch.fp32_precision for switch in switches]
    for switch in switches:
        switch.fp32_precision = "tf32"
    try:
        yield
    finally:
        for switch, precision in zip(switches, before, strict=True):
            switch.fp32_precision = precision


class _Bfloat16Networks:
    """Networks of a policy that multiply in bfloat16 during a gradient step, and return float32.

    A network is any module within the policy that a loss calls. It runs under `torch.autocast`, on copies in bfloat16
    of the weights: the float32 parameters of modules that have one of two or more dimensions. All copies are written by
    one operation when the step first calls a network, and one converts their gradients to float32.
    Weights that parametrizations compute are converted by autocast.
    """

    def __init__(self, policy: nn.Module, device: torch.device) -> None:
        self._policy, self._device = policy, device
        self._forget()

    def _forget(self) -> None:
        """Find everything again in the next step."""
        self._placement: Placement | None = None  # of the policy's modules and parameters when they were found
        self._networks: list[nn.Module] = []  # with weights of their own, or of modules in them
        self._weights: list[tuple[dict[str, Any], str, nn.Parameter]] = []  # with the tables that name them
        self._copies: dict[nn.Parameter, Tensor] = {}
        self._trainable: Sequence[nn.Parameter] = ()  # of this step
        self._used: dict[nn.Parameter, Tensor] | None = None  # the copies, once this step has written them

    def _find(self) -> None:
        """Find the networks and weights of the policy, and make room for the copies."""
        self._forget()
        policy = self._policy
        modules = [module for module in policy.modules() if module is not policy]
        self._networks = [module for module in modules if any(map(_multiplies, module.modules()))]
        owners = [m for m in modules if _multiplies(m) and not isinstance(m, parametrize.ParametrizationList)]
        tables = [(module._parameters, name, p) for module in owners for name, p in module._parameters.items()]
        self._weights = [(table, name, p) for table, name, p in tables if p is not None and p.dtype == torch.float32]
        weights = list(dict.fromkeys(p for _, _, p in self._weights))
        self._copies = {p: torch.empty_like(p, dtype=torch.bfloat16, requires_grad=False) for p in weights}
        self._placement = Placement(policy)

    @contextlib.contextmanager
    def during_step(self, trainable: Sequence[nn.Parameter], *, copies_weights: bool) -> Iterator[None]:
        """Let networks multiply in bfloat16, on copies of the weights or on weights that autocast converts."""
        if self._placement is None or not self._placement.is_current():
            self._find()
        self._trainable, self._used = trainable, None
        weights = self._copied_weights if copies_weights else contextlib.nullcontext
        tables = [vars(network) for network in self._networks]
        before = [table.get("forward") for table in tables]
        for table, network in zip(tables, self._networks, strict=True):
            table["forward"] = self._in_bfloat16(network.forward, weights)
        try:
            yield
        finally:
            self._trainable, self._used = (), None
            for table, forward in zip(tables, before, strict=True):
                if forward is None:
                    del table["forward"]
                else:
                    table["forward"] = forward

    def _in_bfloat16(
        self, forward: Callable[..., Any], weights: Callable[[], contextlib.AbstractContextManager[None]]
    ) -> Callable[..., Any]:
        """Return a network's forward pass in bfloat16; within that of another network it is unchanged."""
        device_type = self._device.type

        def forward_in_bfloat16(*args: Any, **kwargs: Any) -> Any:
            if torch.is_autocast_enabled(device_type):
                return forward(*args, **kwargs)
            # Autocast's cache would keep weights that were cast where no gradient was wanted.
            with weights(), torch.autocast(device_type, dtype=torch.bfloat16, cache_enabled=False):
                outputs = forward(*args, **kwargs)
            return _as_float32(outputs)

        return forward_in_bfloat16

    @contextlib.contextmanager
    def _copied_weights(self) -> Iterator[None]:
        """Replace the weights by their copies."""
        if self._used is None:
            with torch.no_grad():
                if self._copies:  # none where all weights are computed
                    torch._foreach_copy_(list(self._copies.values()), list(self._copies))
            trained = [parameter for parameter in self._trainable if parameter in self._copies]
            with torch.enable_grad():
                apply: Callable[..., tuple[Tensor, ...]] = _Copies.apply
                used = apply([self._copies[parameter] for parameter in trained], *trained)
            self._used = {**self._copies, **dict(zip(trained, used, strict=True))}
        for table, name, weight in self._weights:
            table[name] = self._used[weight]
        try:
            yield
        except RuntimeError as error:
            if "dtype" in str(error):  # of an operation that neither promotes types nor is known to autocast
                error.add_note(_NOTE)
            raise
        finally:
            for table, name, weight in self._weights:
                table[name] = weight


_NOTE = (
    "In a policy with precision='bf16' weights are bfloat16 while it learns: convert them or the other tensor in the "
    "network's forward, or choose another precision"
)


class _Copies(torch.autograd.Function):
    """Copies of parameters in another dtype, which are already written, as functions of the parameters."""

    @staticmethod
    def forward(ctx: Any, copies: Sequence[Tensor], *parameters: Tensor) -> tuple[Tensor, ...]:
        ctx.set_materialize_grads(False)
        return tuple(copy.view_as(copy) for copy in copies)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Tensor | None) -> tuple[Tensor | None, ...]:
        given = [gradient for gradient in gradients if gradient is not None]
        converted = [torch.empty_like(gradient, dtype=torch.float32) for gradient in given]
        torch._foreach_copy_(converted, given)
        of_each = iter(converted)
        return None, *(None if gradient is None else next(of_each) for gradient in gradients)


def _multiplies(module: nn.Module) -> bool:
    """Return whether a module has parameters that products take, which have two or more dimensions."""
    return any(p is not None and p.dim() > 1 and p.dtype == torch.float32 for p in module._parameters.values())


def _as_float32(outputs: Any) -> Any:
    """Convert the tensors of bfloat16 in a network's outputs: a tensor, or tuples, lists and dicts of them."""
    if isinstance(outputs, Tensor):
        return outputs.float() if outputs.dtype == torch.bfloat16 else outputs
    if isinstance(outputs, dict):
        return {name: _as_float32(child) for name, child in outputs.items()}
    if isinstance(outputs, (tuple, list)):
        children = map(_as_float32, outputs)
        return type(outputs)(*children) if hasattr(outputs, "_fields") else type(outputs)(children)
    return outputs
