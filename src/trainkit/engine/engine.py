"""Execute what a policy has written: its losses with their gradients, and its forward passes for acting.

| engine | how | for |
|---|---|---|
| "torch" | autograd, eagerly | any device; debugging |
| "numpy" | recorded once, derived into numpy calls, compared with torch | small networks on the CPU |
| "compile" | `torch.compile` of the same loss | larger networks |
| "cuda_graph" | one launch of a recorded CUDA graph, optimizer included | CUDA |
| "auto" | "numpy" on the CPU, for functions that are not large and can be recorded, else "torch" | the default |

All execute the same functions. Which one does is nobody's matter but the engine's.
"""

import copy
import logging
from collections.abc import Callable, Mapping
from typing import Any, Literal, Self, get_args

import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from trainkit.core.errors import Checks, ConfigError
from trainkit.engine.arguments import tensors_of
from trainkit.engine.compiling import check_compiler
from trainkit.engine.cuda_graph import check_cuda_graph
from trainkit.engine.derived import Named
from trainkit.engine.gradient_step import GradientStep, Taken
from trainkit.engine.watch import Watch
from trainkit.engine.watched import Function, GaveUpError, WatchedFunction

_log = logging.getLogger(__name__)

EngineName = Literal["auto", "torch", "numpy", "compile", "cuda_graph"]


class Engine:
    """Execute a policy's functions in the way that was asked for.

    Args:
        policy: whose functions they are.
        wanted: one of the module's table.
        device: of the policy.
        ignored: attributes of the policy that no loss reads.

    Attributes:
        wanted: what was asked for.
        is_numpy: whether functions are derived into numpy, as far as they can be.
        gave_up: why numpy is not used any more, None while it is.
    """

    def __init__(
        self, policy: nn.Module, wanted: EngineName, device: torch.device, ignored: frozenset[str] = frozenset()
    ) -> None:
        subject = type(policy).__name__
        checks = Checks(subject)
        is_known = checks.one_of("engine", wanted, list(get_args(EngineName)))
        if is_known and wanted == "numpy":
            checks.require(device.type == "cpu", f".engine 'numpy' needs device 'cpu', got {device}: use 'auto'")
        checks.done()
        if wanted == "compile":
            check_compiler(subject, device)
        if wanted == "cuda_graph":
            check_cuda_graph(subject, device)
        self._policy, self.wanted, self._device, self._ignored = policy, wanted, device, ignored
        self._start()

    def _start(self) -> None:
        """Use what was asked for; nothing is known against numpy."""
        self._functions: dict[tuple[str, str, str], WatchedFunction] = {}  # by name, purpose and the policy's mode
        self._counts: dict[tuple[str, str, str], dict[str, int]] = {}  # of functions when a state was saved
        self.gave_up: str | None = None  # why numpy is not used any more
        self.is_numpy = self._device.type == "cpu" and self.wanted in ("auto", "numpy")  # as far as it can be

    @property
    def name(self) -> str:
        """The engine that executes now: never "auto"."""
        if self.wanted in ("compile", "cuda_graph"):
            return self.wanted
        large = [one.n_multiplications > 0 for one in self._functions.values()]
        return "numpy" if self.is_numpy and not (large and all(large)) else "torch"

    @property
    def reason(self) -> str:
        """Why it is that one."""
        if self.gave_up is not None:
            return self.gave_up
        if self.wanted != "auto":
            return "as asked for"
        large = {name: one.n_multiplications for (name, *_), one in self._functions.items() if one.n_multiplications}
        told = [f"{name} takes {n:,} multiplications, for which torch is as fast" for name, n in large.items()]
        return "; ".join(told) or f"on {'the CPU' if self._device.type == 'cpu' else self._device.type}"

    def __str__(self) -> str:
        return f"{self.name} ({self.reason})"

    __repr__ = __str__

    # ---- what a policy asks for ----

    def minimize(
        self,
        gradient_step: GradientStep,
        name: str,
        prepare: Callable[[Any], Any],
        function: Function,
        inputs: Any,
        *,
        step: int,
    ) -> Taken:
        """Take one step down what a function of rows returns as "loss".

        Args:
            gradient_step: whose parameters to move.
            name: of the function.
            prepare: inputs -> rows, without gradients; it is not compiled.
            function: rows -> results by name, scalars and tensors.
            inputs: a tree of arrays or tensors, all that changes from call to call.
            step: the environment step.

        Returns:
            What came of it; `outputs` has the other results by name.
        """
        with gradient_step.denormals_flushed():
            if self.is_numpy:
                results = self._by_numpy(name, lambda given: function(prepare(given)), inputs, gradient_step)
                if results is not None:
                    loss = results.pop("loss")
                    return gradient_step.move(loss, results, step=step)
            rows = prepare(tensors_of(inputs, self._device))

            def loss_and_results() -> tuple[Tensor, Any]:
                results = dict(function(rows))
                return results.pop("loss"), results

            return gradient_step(loss_and_results, step=step)

    def call(self, name: str, function: Function, inputs: Any) -> dict[str, NDArray[Any]]:
        """Return a function's results by name, in arrays, without gradients."""
        if self.is_numpy:
            results = self._by_numpy(name, function, inputs)
            if results is not None:
                return results
        with torch.no_grad():
            tensors = function(tensors_of(inputs, self._device))
            return {key: tensor.cpu().numpy() for key, tensor in tensors.items()}

    def _by_numpy(
        self, name: str, function: Function, inputs: Any, gradient_step: GradientStep | None = None
    ) -> Named | None:
        """Return what a function returns, by numpy; None where torch should compute it."""
        purpose, mode = "call" if gradient_step is None else "minimize", "train" if self._policy.training else "eval"
        key = name, purpose, mode
        if key not in self._functions:
            watch, counts = Watch(self._policy, self._ignored), self._counts.get(key, {})
            how: dict[str, Any] = {"limited": self.wanted == "auto", **counts}
            self._functions[key] = WatchedFunction(name, watch, **how)
        try:
            return self._functions[key](function, inputs, gradient_step)
        except GaveUpError as error:
            self.give_up(str(error))
            return error.results

    def give_up(self, reason: str) -> None:
        """Leave numpy for good."""
        if self.wanted == "numpy":
            raise ConfigError(
                f"{type(self._policy).__name__}.engine 'numpy' cannot execute its functions: {reason}. "
                "Use 'auto' or 'torch'"
            )
        self.gave_up, self.is_numpy = reason, False
        self._functions.clear()
        _log.info("%s uses the engine torch: %s", type(self._policy).__name__, reason)

    # ---- copies and checkpoints ----

    def state_dict(self) -> dict[str, Any]:
        """Return what a resumed run has to know."""
        counts = {key: {"n_changed": one.n_changed, "n_new": one.n_new} for key, one in self._functions.items()}
        return {"gave_up": self.gave_up, "counts": [[*key, own] for key, own in counts.items() if any(own.values())]}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue as the saved engine would."""
        self._start()
        self._counts = {(name, purpose, mode): counts for name, purpose, mode, counts in state.get("counts", ())}
        reason = state["gave_up"]
        if reason is not None and self.is_numpy:
            self.give_up(str(reason))

    def forget(self) -> None:
        """Record everything again."""
        self._functions.clear()

    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        twin = copy.copy(self)
        memo[id(self)] = twin
        twin._policy, twin._functions = copy.deepcopy(self._policy, memo), {}
        return twin

    def __getstate__(self) -> dict[str, Any]:
        return {**vars(self), "_functions": {}}
