"""What holds for every test: one torch thread, repeatable hypothesis examples, no draw from a global generator."""

import functools
import gc
import os
import random
import signal
import time
from collections import defaultdict
from collections.abc import Generator, Iterator
from pathlib import Path

import hypothesis
import numpy as np
import pytest
import torch

from tests.helpers.accelerator import SKIPPED, build_pretend_device, load_pretend_device
from tests.helpers.tape import record_by_tapes
from tests.pretend import PretendDevice
from trainkit.engine.device import resolve_device

pytest.register_assert_rewrite("tests.extensions")  # of the modules that its tests share, too
torch.set_num_threads(1)  # the same bits on any number of cores
os.fsync = lambda _: None  # waits for the disk, which matters after a power cut alone
signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background jobs ignore Ctrl-C

hypothesis.settings.register_profile("trainkit", deadline=None, derandomize=True)
hypothesis.settings.load_profile("trainkit")  # --hypothesis-profile=default explores afresh


TRACED_SECONDS = 0.1  # of all cases of a test together; tracing takes two thirds of a case's time once more
_spent: defaultdict[str, float] = defaultdict(float)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, object, object]:
    """Measure coverage in the first cases of a test, and leave it out of the many that follow."""
    test, began = item.nodeid.partition("[")[0], time.process_time()
    if _spent[test] > TRACED_SECONDS:
        item.add_marker("no_cover")
    result = yield
    _spent[test] += time.process_time() - began
    return result


@pytest.hookimpl(tryfirst=True)  # before `-m` selects
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark as slow the cases that `one_of_each` and `fast_cases` leave out."""
    groups: defaultdict[str, list[pytest.Function]] = defaultdict(list)
    for item in items:
        if isinstance(item, pytest.Function) and {"one_of_each", "fast_cases"} & {
            one.name for one in item.iter_markers()
        }:
            groups[item.nodeid.partition("[")[0]].append(item)
    for cases in groups.values():
        fast_cases = cases[0].get_closest_marker("fast_cases")
        kept = _one_of_each(cases) if fast_cases is None else cases[:: -(-len(cases) // fast_cases.args[0])]
        for case in {*cases}.difference(kept):
            case.add_marker("slow")


def _one_of_each(cases: list[pytest.Function]) -> list[pytest.Function]:
    """Return few cases in which each value of each parameter occurs, by taking those with the rarest values first."""
    values = {case: {(name, id(value)) for name, value in case.callspec.params.items()} for case in cases}
    n_seen = dict.fromkeys((one for case in cases for one in values[case]), 0)
    left, kept = [*cases], list[pytest.Function]()
    while 0 in n_seen.values():
        kept.append(min(left, key=lambda case: sorted(n_seen[one] for one in values[case])))
        left.remove(kept[-1])
        for one in values[kept[-1]]:
            n_seen[one] += 1
    return kept


def pytest_collection_finish(session: pytest.Session) -> None:
    if any({"pretend", "accelerator", "taped"} & set(getattr(item, "fixturenames", ())) for item in session.items):
        build_pretend_device()  # outside of any test, whose timeout a machine at work may exceed
    gc.collect()
    gc.freeze()  # `gc.collect()` in a test looks only at what tests made, not at torch's and pytest's million objects


def pytest_runtest_setup(item: pytest.Item) -> None:
    if item.get_closest_marker("gpu") and not torch.cuda.is_available():
        pytest.skip("needs a CUDA device, torch finds none")


@pytest.fixture
def traced(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Let `torch.compile` trace graphs and run them, but not compile them; no compiler is needed."""
    monkeypatch.setattr(torch, "compile", functools.partial(torch.compile, backend="eager"))
    monkeypatch.setattr("trainkit.extensions.compile.compile_engine.missing", lambda device: None)
    yield
    torch._dynamo.reset()  # type: ignore[no-untyped-call]  # torch's own


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--device", default="pretend", help="of tests that compare a device with the CPU, such as cuda")


@pytest.fixture(scope="session")
def pretend() -> PretendDevice:
    """Load the pretend device, or skip where this machine cannot compile it."""
    return load_pretend_device()


@pytest.fixture
def taped(monkeypatch: pytest.MonkeyPatch) -> PretendDevice:
    """Let the pretend device record CUDA graphs and repeat them."""
    return record_by_tapes(monkeypatch)


@pytest.fixture(scope="session")
def accelerator(request: pytest.FixtureRequest) -> torch.device:
    """Return the device that is compared with the CPU: the pretend device, or the one that `--device` names."""
    name = request.config.getoption("--device")
    return load_pretend_device().device if name == "pretend" else resolve_device(name)


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Work in a folder of one's own."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture(autouse=True)
def no_trainer_of_another_test_handles_signals() -> None:
    """Restore the default handlers: a second SIGTERM passed on to a trainer that is not collected ends the process."""
    for number in {signal.SIGTERM, getattr(signal, "SIGUSR1", signal.SIGTERM)}:  # Windows has no SIGUSR1
        signal.signal(number, signal.SIG_DFL)


@pytest.fixture(autouse=True)
def global_generators_stand_still(request: pytest.FixtureRequest) -> Iterator[None]:
    """Fail a test that draws from or reseeds a global generator, unless marked `global_rng`."""
    before = _global_states()
    yield
    if request.node.get_closest_marker("global_rng"):
        return
    after = _global_states()
    moved = [name for name in before if before[name] != after[name]]
    assert not moved, f"the global generator of {', '.join(moved)} was drawn from or reseeded"


def _global_states() -> dict[str, object]:
    numpy_state = np.random.get_state(legacy=False)  # noqa: NPY002 - read, not drawn from
    return {
        "random": random.getstate(),
        "numpy": (numpy_state["state"]["key"].tobytes(), numpy_state["state"]["pos"], numpy_state["has_gauss"]),
        "torch": torch.get_rng_state().numpy().tobytes(),
    }


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Print how many tests were skipped for want of the pretend device, and why."""
    reasons = [
        report.longrepr[2] for report in terminalreporter.getreports("skipped") if len(report.longrepr or ()) == 3
    ]
    for reason in sorted({reason for reason in reasons if SKIPPED in reason}):
        terminalreporter.write_line(f"NOT RUN: {reasons.count(reason)} tests on the pretend device. {reason}")
