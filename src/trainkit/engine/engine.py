"""The engine of a policy: executes its losses with their gradients, and its forward passes for acting.

| engine | how | for |
|---|---|---|
| "torch" | autograd, eagerly | any device; debugging |
| "numpy" | recorded once, derived into numpy calls, compared with torch | small networks on the CPU |
| "compile" | `torch.compile` of the same loss | larger networks |
| "cuda_graph" | one launch of a recorded CUDA graph, optimizer included | CUDA |
| "auto" | "numpy" on the CPU, "cuda_graph" on CUDA, for functions that can be recorded, else "torch" | the default |

All execute the same functions; nothing outside this package depends on which one does.
"""

import copy
import logging
from collections.abc import Callable, Hashable, Mapping
from typing import Any, Literal, Self, get_args

import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from trainkit.core import tree, user_code
from trainkit.core.errors import Checks, ConfigError
from trainkit.engine.changes import Changes
from trainkit.engine.compiling import LossGraph, check_compiler
from trainkit.engine.cuda_graph import CAPTURES, CudaGraph, check_cuda_graph
from trainkit.engine.device import BatchMemory, DeviceBlock, to_arrays, to_device
from trainkit.engine.gradient_step import GradientStep, Scalar, Taken, denormals_flushed
from trainkit.engine.loss import Objective, OwnObjective
from trainkit.engine.moving_buffers import copied, movable_buffers, move, undo_where
from trainkit.engine.numpy_function import Function, GaveUpError, NumpyFunction
from trainkit.engine.precision import LearningPrecision
from trainkit.engine.recording import Results

_log = logging.getLogger(__name__)

EngineName = Literal["auto", "torch", "numpy", "compile", "cuda_graph"]


class Engine:
    """Execute a policy's functions by the chosen engine.

    Args:
        policy: whose functions they are.
        wanted: one of the module's table.
        device: of the policy.
        precision: in which the policy's networks multiply while they learn, default float32; numpy has no "bf16".
        ignored: attributes of the policy that no loss reads.

    Attributes:
        wanted: as given.
        is_numpy: whether functions are derived into numpy, as far as they can be.
        is_graph: whether functions are recorded in CUDA graphs, as far as they can be.
        gave_up: why numpy or graphs are not used any more, None while they are.
    """

    def __init__(
        self,
        policy: nn.Module,
        wanted: EngineName,
        device: torch.device,
        precision: LearningPrecision | None = None,
        ignored: frozenset[str] = frozenset(),
    ) -> None:
        subject = type(policy).__name__
        with Checks(subject) as checks:
            is_known = checks.one_of("engine", wanted, list(get_args(EngineName)))
            if is_known and wanted == "numpy":
                checks.require(device.type == "cpu", f".engine 'numpy' needs device 'cpu', got {device}: use 'auto'")
                is_known_to_numpy = precision is None or precision.name != "bf16"
                checks.require(is_known_to_numpy, ".engine 'numpy' has no precision 'bf16': use 'auto', or 'float32'")
        if wanted == "compile":
            check_compiler(subject, device)
        if wanted == "cuda_graph":
            check_cuda_graph(subject, device)
        self._policy, self.wanted, self._device, self._ignored = policy, wanted, device, ignored
        self._precision = LearningPrecision(policy, "float32", device) if precision is None else precision
        self._movable_buffers: dict[str, Tensor] | None = None
        self._start()

    @property
    def _movable(self) -> dict[str, Tensor]:
        """The buffers that a loss of the policy may write, by name; where there are any, they may be replaced."""
        if self._movable_buffers is None or self._movable_buffers:
            self._movable_buffers = movable_buffers(self._policy)
        return self._movable_buffers

    def _start(self) -> None:
        """Start with the chosen engine and without recordings."""
        self._functions: dict[tuple[str, str, str], NumpyFunction] = {}  # by name, purpose and the policy's mode
        self._counts: dict[tuple[str, str, str], dict[str, int]] = {}  # of functions when a state was saved
        self._graphs: dict[tuple[str, str], CudaGraph] = {}  # by purpose and name
        self._compiled_graphs: dict[GradientStep, LossGraph] = {}
        self.gave_up: str | None = None
        is_possible = self._device.type == "cpu" and self._precision.name != "bf16"
        self.is_numpy = is_possible and self.wanted in ("auto", "numpy")
        self.is_graph = not self.is_numpy and self._device.type in CAPTURES and self.wanted in ("auto", "cuda_graph")

    @property
    def name(self) -> str:
        """The engine that executes now: never "auto"."""
        if self.wanted == "compile":
            return self.wanted
        if (self.is_numpy or self.is_graph) and None in self._reasons_for_torch():
            return "numpy" if self.is_numpy else "cuda_graph"
        return "torch"

    @property
    def reason(self) -> str:
        """The reason why this engine executes."""
        if self.gave_up is not None:
            return self.gave_up
        if (self.is_numpy or self.is_graph) and (
            reasons := [reason for reason in self._reasons_for_torch() if reason is not None]
        ):
            return "; ".join(reasons)
        if self.wanted != "auto":
            return "as requested"
        if self._device.type != "cpu":
            return f"on {self._device.type}"
        return "on the CPU" if self.is_numpy else "numpy has no precision 'bf16'"

    def _reasons_for_torch(self) -> list[str | None]:
        """Return why torch executes each function for now, None for one that numpy executes."""
        functions: list[NumpyFunction | CudaGraph] = [*self._functions.values(), *self._graphs.values()]
        if not functions:  # none has been called
            return ["a hook is registered" if Changes(self._policy, self._ignored).is_observed else None]
        return [function.reason_for_torch for function in functions]

    def __str__(self) -> str:
        return f"{self.name} ({self.reason})"

    __repr__ = __str__

    # ---- execution ----

    def minimize(
        self,
        gradient_step: GradientStep,
        objective: Objective | OwnObjective,
        given: Any,
        *,
        step: int,
        lr: Tensor | None = None,
    ) -> Taken:
        """Take one gradient step on an objective.

        Args:
            gradient_step: whose parameters to move.
            objective: what to minimize, a function of rows.
            given: (columns, inputs), a tree of arrays or tensors: all that changes from call to call.
            step: the environment step.
            lr: a learning rate on the device in the place of the step's, for a step that is recorded.

        Returns:
            The outcome; its `results` are the objective's other results by name.
        """
        with denormals_flushed(gradient_step.flush_denormals):
            results: Results | None = None
            if self.is_numpy and objective.name is not None:
                results = self._by_numpy(objective.name, objective.evaluate, given, gradient_step)
            if results is None:
                rows = objective.rows(to_device(given, self._device))
                buffers_before = copied(self._movable)
                graph = self._compiled(gradient_step)
                how: dict[str, Any] = {"is_compiled": graph is not None}
                precision = self._precision.during_step(gradient_step.trainable, **how)
                with user_code.running(), gradient_step.differentiation(), precision:
                    if graph is None:
                        results = objective(rows)
                        gradient_step.differentiate(results["loss"])
                    else:
                        results = graph(objective, rows, gradient_step.groups)
                taken = gradient_step.apply(results.pop("loss").detach(), results, step=step, lr=lr)
                undo_where(taken.skipped, self._movable, buffers_before)
            else:
                moved = results.pop("buffers", {})
                taken = gradient_step.apply(results.pop("loss"), results, step=step)
                if moved and not taken.skipped:
                    move(self._movable, moved)
            if gradient_step.after is not None:
                self._follow_step(gradient_step, objective.name, taken.skipped)
            return taken

    def _compiled(self, gradient_step: GradientStep) -> LossGraph | None:
        """Return the graph of a step's loss and gradients, from its second step on; None for another engine."""
        if self.wanted != "compile" or not gradient_step.is_laid_out:
            return None
        if gradient_step not in self._compiled_graphs:
            self._compiled_graphs[gradient_step] = LossGraph(gradient_step.module, lambda: self._movable)
        return self._compiled_graphs[gradient_step]

    def _follow_step(self, gradient_step: GradientStep, name: str | None, skipped: Scalar) -> None:
        """Give the parameters the values that the step's `after` returns, if it was taken."""
        after, module = gradient_step.after, gradient_step.module
        assert after is not None, "the caller has looked"
        if not isinstance(skipped, Tensor) and skipped:
            return

        def values(_: Any) -> Mapping[str, Tensor]:
            return after({path: parameter.detach() for path, parameter in module.named_parameters()})

        results: Mapping[str, Any] | None = None
        if self.is_numpy and name is not None:
            results = self._by_numpy(f"{name}.after", values, ())
        if results is None:
            with torch.no_grad():
                results = values(())
        gradient_step.assign(tree.map_tree(torch.as_tensor, dict(results)), skipped)

    def update(
        self,
        work: Callable[[Any, Any], tuple[Mapping[str, Any], Any]],
        inputs: Any,
        fixed: Any = None,
        *,
        name: str = "",
        memory: BatchMemory | None = None,
        variant: Hashable = None,
    ) -> tuple[Mapping[str, Any], Any]:
        """Do the work of an update, which takes gradient steps, by a CUDA graph.

        Args:
            work: (inputs, fixed) -> (results to keep, other results). The first are overwritten by the second update
                after this one, the others by the next.
            inputs: a tree of arrays, numbers, tensors on the device and None: all that changes from call to call.
            fixed: a tree of objects that a graph reads and writes where they are.
            name: of the kind of update; each has graphs of its own.
            memory: has some of the arrays in pinned memory already.
            variant: what else a graph depends on.
        """
        results: tuple[Mapping[str, Any], Any]
        results = self._by_graph(self._graph("update", name), work, inputs, fixed, memory=memory, variant=variant)
        return results

    def call(
        self, name: str, function: Function, inputs: Any, *, draw: Callable[[], Tensor] | None = None
    ) -> dict[str, NDArray[Any]]:
        """Return a function's results by name, in arrays, without gradients.

        Args:
            name: of the function.
            function: inputs -> tensors by name.
            inputs: a tree of arrays, numbers and None.
            draw: samples the last of `inputs`, which is None, on the policy's generator; a CUDA graph does so itself.
        """
        if self.is_graph:
            with self._graph("call", name).lock:  # all replays write to the same memory
                return self._call_by_graph(name, function, inputs, draw).read()
        inputs = _drawn(inputs, draw)
        if self.is_numpy:
            results = self._by_numpy(name, function, inputs)
            if results is not None:
                return results
        with user_code.running(), torch.no_grad():
            return to_arrays(function(to_device(inputs, self._device)))

    def call_on_device(
        self, name: str, function: Function, inputs: Any, *, draw: Callable[[], Tensor] | None = None
    ) -> dict[str, Tensor]:
        """Return a function's results as `call` does, of tensors on the device, as tensors there, without waiting."""
        if self.is_graph:
            with self._graph("call", name).lock:
                return self._call_by_graph(name, function, inputs, draw).copy()
        with torch.no_grad():
            return dict(function(to_device(_drawn(inputs, draw), self._device)))

    def _call_by_graph(
        self, name: str, function: Function, inputs: Any, draw: Callable[[], Tensor] | None
    ) -> DeviceBlock:
        """Return a function's results, without gradients, which the next call overwrites."""

        def work(given: Any, _: Any) -> tuple[Any, DeviceBlock]:
            with torch.no_grad():
                return (), DeviceBlock(function(_drawn(given, draw)))

        block: DeviceBlock = self._by_graph(self._graph("call", name), work, inputs, variant=draw is not None)[1]
        return block

    def _graph(self, purpose: str, name: str = "") -> CudaGraph:
        """Return the graphs of a function."""
        if (purpose, name) not in self._graphs:
            subject = "an update" if purpose == "update" else f"the function {name!r}"
            self._graphs[purpose, name] = CudaGraph(subject, self._policy, self._ignored, keeps=purpose == "update")
        return self._graphs[purpose, name]

    def _by_graph(self, graph: CudaGraph, *given: Any, **facts: Any) -> Any:
        """Return a function's results by a CUDA graph."""
        try:
            return graph(*given, **facts)
        except GaveUpError as error:
            self.give_up(str(error))
            return error.results

    @property
    def is_recording(self) -> bool:
        """Whether a CUDA graph is being recorded now, so that nothing may wait or free memory."""
        return any(graph.is_recording for graph in self._graphs.values())

    def _by_numpy(
        self, name: str, function: Function, inputs: Any, gradient_step: GradientStep | None = None
    ) -> Results | None:
        """Return a function's results by numpy, None if torch should compute them."""
        purpose, mode = "call" if gradient_step is None else "minimize", "train" if self._policy.training else "eval"
        key = name, purpose, mode
        if key not in self._functions:
            changes = Changes(self._policy, self._ignored, for_gradients=gradient_step is not None)
            counts = self._counts.get(key, {})
            how: dict[str, Any] = {"is_limited": self.wanted == "auto", "movable": lambda: self._movable, **counts}
            self._functions[key] = NumpyFunction(name, changes, **how)
        try:
            return self._functions[key](function, inputs, gradient_step)
        except GaveUpError as error:
            self.give_up(str(error))
            results: Results | None = error.results
            return results

    def give_up(self, reason: str) -> None:
        """Use torch from now on, instead of numpy or graphs."""
        if self.wanted != "auto":
            raise ConfigError(
                f"{type(self._policy).__name__}.engine {self.wanted!r} cannot execute its functions: {reason}. "
                "Use 'auto' or 'torch'"
            )
        self.gave_up, self.is_numpy, self.is_graph = reason, False, False
        self.forget()
        _log.info("%s uses the engine torch: %s", type(self._policy).__name__, reason)

    # ---- copies and checkpoints ----

    def state_dict(self) -> dict[str, Any]:
        """Return the state from which a resumed run continues with the same bits."""
        counts = {key: {"n_changed": one.n_changed, "n_new": one.n_new} for key, one in self._functions.items()}
        state = {"gave_up": self.gave_up, "counts": [[*key, own] for key, own in counts.items() if any(own.values())]}
        return state if self.gave_up is None else {**state, "device": self._device.type}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Load a saved state."""
        self._start()
        self._counts = {(name, purpose, mode): counts for name, purpose, mode, counts in state["counts"]}
        reason = state["gave_up"]
        is_same = state.get("device", "cpu") == self._device.type
        if reason is not None and is_same and (self.is_numpy or self.is_graph):
            self.give_up(str(reason))

    def forget(self) -> None:
        """Record everything again."""
        self._functions.clear()
        self._graphs.clear()
        self._compiled_graphs.clear()
        self._movable_buffers = None

    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        clone = copy.copy(self)
        memo[id(self)] = clone
        own = {name: copy.deepcopy(vars(self)[name], memo) for name in ("_policy", "_precision")}
        vars(clone).update(_uncopied(), **own)
        return clone

    def __getstate__(self) -> dict[str, Any]:
        return {**vars(self), **_uncopied()}


def _uncopied() -> dict[str, Any]:
    """Return the attributes of a copy of an engine that has executed nothing yet."""
    return {"_functions": {}, "_graphs": {}, "_compiled_graphs": {}, "_movable_buffers": None}


def _drawn(inputs: Any, draw: Callable[[], Tensor] | None) -> Any:
    """Return inputs with what `draw` samples as the last of them."""
    return inputs if draw is None else (*inputs[:-1], draw())
