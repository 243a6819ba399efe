"""The CUDA graph engine: an update, and each function that a policy acts by, is one launch of a recorded graph."""

from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any

import torch
from numpy.typing import NDArray
from torch import Tensor

from trainkit.engine.device import DeviceBlock
from trainkit.engine.engine import Function, Kept, UpdateWork, drawn
from trainkit.engine.gradient_step import GradientStep
from trainkit.engine.recording_engine import GaveUpError, RecordingEngine
from trainkit.extensions.cuda.cuda_graph import CAPTURES, CudaGraph


class CudaGraphEngine(RecordingEngine):
    """Execute a policy's updates and functions by CUDA graphs; for arguments and attributes see `Engine`."""

    _own_name = "cuda_graph"
    _graphs: dict[tuple[str, str], CudaGraph]  # by purpose and name

    @classmethod
    def serves(cls, device: torch.device) -> bool:
        """Return whether the device has graphs."""
        return device.type in CAPTURES

    @classmethod
    def problem(cls, device: torch.device, precision: str) -> str | None:
        """Return why a policy cannot have this engine: its device has no graphs."""
        return None if cls.serves(device) else f"needs a policy on CUDA, got device {device}"

    def _uncopied(self) -> dict[str, Any]:
        return {**super()._uncopied(), "_graphs": {}}

    def _recorded(self) -> Iterable[CudaGraph]:
        return self._graphs.values()

    @property
    def is_recording(self) -> bool:
        """Whether a graph is being recorded now."""
        return any(graph.is_recording for graph in self._graphs.values())

    def check_steps(self, gradient_steps: Sequence[GradientStep]) -> None:
        """Give up if a graph cannot record one of these steps."""
        for gradient_step in gradient_steps:
            if self.gave_up is None and gradient_step.not_recordable is not None:
                self.give_up(gradient_step.not_recordable)

    # ---- execution ----

    def executable(self, work: UpdateWork) -> Callable[[Any, Any, Any], Kept]:
        """Return what does the work of an update, given its columns, inputs and frames: a graph of it."""
        self.check_steps(work.gradient_steps)
        return work if self.gave_up is not None else partial(self._update, work)

    def _update(self, work: UpdateWork, columns: Any, inputs: Any, frames: Any) -> Kept:
        def function(given: Any, fixed: Any) -> tuple[Any, Any]:
            columns, inputs, rates = given
            groups = [group for gradient_step in work.gradient_steps for group in gradient_step.groups]
            before = [group.gradients for group in groups]
            kept, others = work(columns, inputs, fixed[0], rates)
            own = [(one, one.gradients) for one, old in zip(groups, before, strict=True) if one.gradients is not old]
            return kept, (others, own)

        given, fixed = (columns, inputs, work.rates()), (frames, *work.written())
        how: dict[str, Any] = {"memory": work.memory, "variant": work.variant}
        kept, (others, own) = self._by_graph(self._graph("update", work.name), function, given, fixed, **how)
        for group, gradients in own:  # which each recording writes to memory of its own
            group.show(gradients)
        return kept, others

    def call(
        self, name: str, function: Function, inputs: Any, *, draw: Callable[[], Tensor] | None = None
    ) -> dict[str, NDArray[Any]]:
        """Return a function's results by name, in arrays; arguments as of `Engine.call`, and a graph draws itself."""
        if self.gave_up is not None:
            return super().call(name, function, inputs, draw=draw)
        with self._graph("call", name).lock:  # all replays write to the same memory
            return self._call_by_graph(name, function, inputs, draw).read()

    def call_on_device(
        self, name: str, function: Function, inputs: Any, *, draw: Callable[[], Tensor] | None = None
    ) -> dict[str, Tensor]:
        """Return a function's results as `call` does, as tensors on the device, without waiting."""
        if self.gave_up is not None:
            return super().call_on_device(name, function, inputs, draw=draw)
        with self._graph("call", name).lock:
            return self._call_by_graph(name, function, inputs, draw).copy()

    def _call_by_graph(
        self, name: str, function: Function, inputs: Any, draw: Callable[[], Tensor] | None
    ) -> DeviceBlock:
        """Return a function's results, without gradients, which the next call overwrites."""

        def work(given: Any, _: Any) -> tuple[Any, DeviceBlock]:
            with torch.no_grad():
                return (), DeviceBlock(function(drawn(given, draw)))

        block: DeviceBlock = self._by_graph(self._graph("call", name), work, inputs, variant=draw is not None)[1]
        return block

    def _graph(self, purpose: str, name: str) -> CudaGraph:
        """Return the graphs of a function."""
        if (purpose, name) not in self._graphs:
            subject = "an update" if purpose == "update" else f"the function {name!r}"
            self._graphs[purpose, name] = CudaGraph(subject, self._policy, self._ignored, keeps=purpose == "update")
        return self._graphs[purpose, name]

    def _by_graph(self, graph: CudaGraph, *given: Any, **facts: Any) -> Any:
        """Return a function's results by a graph."""
        try:
            return graph(*given, **facts)
        except GaveUpError as error:
            self.give_up(str(error))
            return error.results
