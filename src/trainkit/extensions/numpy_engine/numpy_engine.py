"""The numpy engine: functions of a policy, recorded once, derived into numpy calls, and compared with torch."""

from collections.abc import Callable, Iterable, Mapping
from types import MappingProxyType
from typing import Any

import torch
from numpy.typing import NDArray
from torch import Tensor

from trainkit.engine.changes import Changes
from trainkit.engine.engine import Function, Results, drawn
from trainkit.engine.gradient_step import GradientStep, Taken, denormals_flushed
from trainkit.engine.loss import Objective, OwnObjective
from trainkit.engine.recording_engine import GaveUpError, RecordingEngine
from trainkit.extensions.numpy_engine.numpy_function import NumpyFunction

_Key = tuple[str, str, str]  # of a function: its name, its purpose and the policy's mode


class NumpyEngine(RecordingEngine):
    """Execute by numpy the functions of a policy that can be derived; for arguments and attributes see `Engine`."""

    _own_name = "numpy"
    _functions: dict[_Key, NumpyFunction]
    _counts: Mapping[_Key, Mapping[str, int]] = MappingProxyType({})  # of functions when a state was saved

    @classmethod
    def serves(cls, device: torch.device) -> bool:
        """Return whether it is the CPU."""
        return device.type == "cpu"

    @classmethod
    def problem(cls, device: torch.device, precision: str) -> str | None:
        """Return why a policy cannot have this engine: it is elsewhere, or multiplies in bfloat16."""
        if device.type != "cpu":
            return f"needs device 'cpu', got {device}"
        return "has no precision 'bf16'" if precision == "bf16" else None

    def _uncopied(self) -> dict[str, Any]:
        return {**super()._uncopied(), "_functions": {}}

    def _recorded(self) -> Iterable[NumpyFunction]:
        return self._functions.values()

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
        """Take one gradient step on an objective; arguments as of `Engine.minimize`."""
        with denormals_flushed(gradient_step.flush_denormals):
            results = self._by_numpy(objective.name, objective.evaluate, given, gradient_step)
            if results is None:
                return super().minimize(gradient_step, objective, given, step=step, lr=lr)
            moved = results.pop("buffers", {})
            taken = gradient_step.apply(results.pop("loss"), results, step=step)
            if moved and not taken.skipped:
                self._move(moved)
            self._follow_step(gradient_step, objective.name, taken.skipped)
            return taken

    @torch.no_grad()
    def _move(self, buffers: Mapping[str, NDArray[Any]]) -> None:
        """Give buffers the values that a loss computed."""
        own = self._movable
        for name, value in buffers.items():
            own[name].copy_(torch.as_tensor(value))

    def _evaluate(self, name: str | None, function: Function) -> Mapping[str, Any]:
        results = self._by_numpy(name, function, ())
        return super()._evaluate(name, function) if results is None else results

    def call(
        self, name: str, function: Function, inputs: Any, *, draw: Callable[[], Tensor] | None = None
    ) -> dict[str, NDArray[Any]]:
        """Return a function's results by name, in arrays, without gradients; arguments as of `Engine.call`."""
        inputs = drawn(inputs, draw)
        results = self._by_numpy(name, function, inputs)
        return super().call(name, function, inputs) if results is None else results

    def _by_numpy(
        self, name: str | None, function: Function, inputs: Any, gradient_step: GradientStep | None = None
    ) -> Results | None:
        """Return a function's results by numpy, None if torch should compute them, as those without a name."""
        if name is None or self.gave_up is not None:
            return None
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

    # ---- checkpoints ----

    def state_dict(self) -> dict[str, Any]:
        """Return the state from which a resumed run continues with the same bits."""
        counts = {key: {"n_changed": one.n_changed, "n_new": one.n_new} for key, one in self._functions.items()}
        return {**super().state_dict(), "counts": [[*key, own] for key, own in counts.items() if any(own.values())]}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Load a saved state, of this engine or of another one."""
        counts = state.get("counts", [])
        self._counts = {(name, purpose, mode): own for name, purpose, mode, own in counts}
        super().load_state_dict(state)
