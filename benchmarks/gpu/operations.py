"""Count the operations of torch that an update and an action launch, eagerly by place, and compiled; needs no GPU.

    python -m benchmarks.gpu.operations        # rewrites benchmarks/results/operations.md, in some minutes

Eager operations are counted on the pretend device, whose kernels are the CPU's; views and allocations are none. What
is compiled is counted in the code that torch generates for the CPU: calls of fused functions, and of operations of
libraries such as products and convolutions; on CUDA torch may fuse otherwise.
"""

import re
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
from torch._inductor import config
from torch._inductor.graph import GraphLowering
from torch.utils._python_dispatch import TorchDispatchMode

from benchmarks import pages
from benchmarks.gpu.workloads import WORKLOADS, Workload, drawn
from tests.pretend import PretendDevice

N_ROWS = 32
WARM_UPS = 4  # updates, in which parameters are laid out and losses are compiled
N_PLACES = 8  # that are shown of each workload
OURS = "/src/trainkit/"
NO_WORK = {"empty", "empty_like", "new_empty", "empty_strided", "new_empty_strided", "_unsafe_view", "is_pinned"}
NO_WORK |= {"_pin_memory", "_local_scalar_dense", "lift_fresh"}
COMMAND = "python -m benchmarks.gpu.operations"
HOW = """
Operations of torch of one update of 32 rows, with rows in the CPU's memory, and of `act` for 32 rows; views and
allocations are none. *Eager* is `engine="torch"`, of which `"cuda_graph"` launches the same by one call, counted on the
pretend device. *Compiled* is `engine="compile"`: the calls in the code that torch generates for losses and gradients on
the CPU, and the eager operations around them; on CUDA torch may fuse otherwise.
"""


class _Places(TorchDispatchMode):
    """Count operations by the file and function of ours that calls them."""

    def __init__(self) -> None:
        super().__init__()
        self.called: Counter[str] = Counter()

    def __torch_dispatch__(self, operation: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        is_view = any(one.alias_info and not one.alias_info.is_write for one in operation._schema.returns)
        if not is_view and operation.overloadpacket.__name__ not in NO_WORK:
            frame: Any = sys._getframe(1)
            while frame is not None and OURS not in frame.f_code.co_filename:
                frame = frame.f_back
            code = None if frame is None else frame.f_code
            self.called["torch" if code is None else f"{code.co_filename.partition(OURS)[2]}:{code.co_name}"] += 1
        return operation(*args, **kwargs or {})


def places(work: Callable[[], Any]) -> Counter[str]:
    """Return how many operations some work launches, by place."""
    with _Places() as seen:
        work()
    return seen.called


@contextmanager
def generated() -> Iterator[list[str]]:
    """Collect the code that torch generates inside the block."""
    codes: list[str] = []
    codegen = GraphLowering.codegen

    def collecting(graph: Any) -> Any:
        made = codegen(graph)
        codes.append(made[0].value)
        return made

    GraphLowering.codegen = collecting  # type: ignore[method-assign]
    try:
        with config.patch(force_disable_caches=True):  # what is cached is not generated
            yield codes
    finally:
        GraphLowering.codegen = codegen  # type: ignore[method-assign]


def calls_in(code: str) -> int:
    """Count the calls of fused functions and of libraries in generated code."""
    body = code[re.search(r"def call\(", code).start() :]  # type: ignore[union-attr]
    return len(re.findall(r"\b(?:cpp_fused\w*|extern_kernels\.\w+|torch\.ops\.aten\.\w+\.\w+)\(", body))


def compiled_calls(workload: Workload) -> int:
    """Return the calls of an update's compiled losses and gradients."""
    update = workload.updates(workload.make("cpu", engine="compile"), N_ROWS)
    with generated() as codes:
        for _ in range(WARM_UPS):
            update()
    return sum(map(calls_in, codes))


def of_losses(called: Counter[str]) -> int:
    """Return the eager operations of losses and gradients, in whose place compiled calls come."""
    around = ("engine/device.py", "nets/noisy.py:_factors", "nets/noisy.py:<listcomp>")
    around += ("engine/gradient_step.py:apply", "engine/gradient_step.py:<listcomp>", "engine/update_rules.py")
    around += ("policy/update_result.py", "policy/target.py", "policy/advantages.py", "policy/on_policy.py")
    return sum(n for place, n in called.items() if not place.startswith(around))


def rows() -> Iterator[tuple[Workload, Counter[str], int, int]]:
    """Yield each workload with its operations of an update by place, compiled, and those of an action."""
    device = str(PretendDevice.load().device)
    for workload in WORKLOADS:
        policy = workload.make(device)
        update = workload.updates(policy, N_ROWS)
        for _ in range(WARM_UPS):
            update()
        called = places(update)
        obs = drawn(workload.obs, N_ROWS, np.random.default_rng(0))

        def act(policy: Any = policy, obs: Any = obs) -> None:
            policy.act(obs, step=10**6, explore=True)

        act()
        n_act = places(act).total()
        compiled = called.total() - of_losses(called) + compiled_calls(workload)
        print(f"{workload.name}: {called.total()} operations, compiled {compiled}, an action {n_act}", flush=True)
        yield workload, called, compiled, n_act


def main() -> None:
    """Count, and write the page."""
    pages.arguments(__doc__).parse_args()
    counted = list(rows())
    lines = [*pages.heading("Operations of an update, counted without a GPU", COMMAND), *HOW.strip().splitlines(), ""]
    columns = ("workload", "update, eager", "update, compiled", "act, eager")
    lines += pages.table(columns, ((one.name, called.total(), *others) for one, called, *others in counted))
    for workload, called, _, _ in counted:
        lines += [f"## {workload.name}", "", "The places in `src/trainkit` with most operations of an update:", ""]
        lines += pages.table(("place", "operations"), ((f"`{at}`", n) for at, n in called.most_common(N_PLACES)))
    pages.write("operations", lines)


if __name__ == "__main__":
    main()
