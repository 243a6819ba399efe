"""How often the CPU waits for the device and what is copied: exact numbers, each of which was a choice.

`TABLE` is printed in tests/pretend/README.md, where its columns are explained.
"""

from collections import defaultdict
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch

import trainkit as tk
from tests.accelerator.runs import Corridor, Push, make
from tests.helpers.learning import PARTS, add_to, batch_of, made
from tests.helpers.pages import ROOT
from tests.pretend import DeviceCounts, PretendDevice
from trainkit.core.worker_protocol import Requests
from trainkit.policy import support
from trainkit.policy.update_result import MeanMetrics


class Cost(NamedTuple):
    """Waits for the device, waits for an event, copies to the device, copies to the CPU."""

    waits: int = 0
    events: int = 0
    sent: int = 0
    read: int = 0

    def __str__(self) -> str:
        units = {"waits": "wait", "events": "event", "sent": "sent", "read": "read"}
        plural = {"wait": "waits", "event": "events"}
        named = {units[name]: n for name, n in self._asdict().items() if n}
        return ", ".join(f"{n} {unit if n == 1 else plural.get(unit, unit)}" for unit, n in named.items()) or "0"

    def times(self, n: int) -> "Cost":
        return Cost(*(n * one for one in self))

    def plus(self, other: "Cost") -> "Cost":
        return Cost(*map(sum, zip(self, other, strict=True)))

    def minus(self, other: "Cost") -> "Cost":
        return Cost(*(one - two for one, two in zip(self, other, strict=True)))


def cost_of(counts: DeviceCounts) -> Cost:
    return Cost(counts.waits, counts.event_waits, counts.copies_to_device, counts.copies_to_cpu)


# ---- the table ----


class Row(NamedTuple):
    """The costs of each vector step, collect, rollout, update and report of presets with some options."""

    presets: str
    name: str  # of the options
    options: dict[str, Any]
    step: Cost | None
    collect: Cost | None
    rollout: Cost | None
    update: Cost
    report: Cost = Cost(waits=1, read=1)


VALUE_BASED = "dqn double_dqn dueling_dqn noisy_dqn munchausen_dqn c51 qrdqn iqn rainbow"
ACT = Cost(waits=1, sent=1, read=1)
CHECK = Cost(events=1, read=1)  # for divergence
PRIORITIZED: dict[str, Any] = {"buffer": "prioritized"}
LATE = PRIORITIZED | {"refresh_priorities": "late"}
ROUND: dict[str, Any] = {"refresh_priorities": "round", "updates_per_round": 3, "update_per_step": 1.5}
SENT, AT_ONCE, LATER = Cost(sent=1), Cost(waits=1, sent=1, read=1), Cost(events=1, sent=1, read=1)
# fmt: off
TABLE = [
    Row(VALUE_BASED, "uniform", {"buffer": "uniform"}, ACT, CHECK, None, SENT),
    Row(VALUE_BASED, "uniform, round", ROUND | {"buffer": "uniform"}, ACT, CHECK, None, SENT),
    Row(VALUE_BASED, "prioritized", PRIORITIZED, ACT, CHECK, None, AT_ONCE),
    Row(VALUE_BASED, "prioritized, late", LATE, ACT, CHECK, None, LATER),
    Row(VALUE_BASED, "prioritized, round", PRIORITIZED | ROUND, ACT, CHECK, None, LATER),
    Row("dqn", "uniform, normalize_obs", {"normalize_obs": True}, Cost(1, 0, 2, 1), CHECK, None, SENT),
    Row("sac", "uniform", {}, ACT, CHECK, None, SENT),
    Row("sac", "prioritized", PRIORITIZED, ACT, CHECK, None, AT_ONCE),
    Row("sac", "prioritized, late", LATE, ACT, CHECK, None, LATER),
    Row("sac", "uniform, ColoredNoise", {"exploration": tk.ColoredNoise()}, ACT, CHECK, None, SENT),
    Row("ppo a2c reinforce", "", {}, ACT, CHECK, SENT, Cost()),
    Row("ppo", "actions in a Box", {"env": Push, "normalize_obs": False}, ACT, Cost(events=2, read=2), SENT, Cost()),
    Row("bc bcq cql", "", {}, None, None, None, SENT),
]
# fmt: on


class Ledger(tk.Callback):
    """Record the costs between events of one epoch; `counts` starts it."""

    counts: DeviceCounts | None = None

    def __init__(self) -> None:
        self.costs: defaultdict[str, list[Cost]] = defaultdict(list)  # by the event that ended an interval
        self.n_vector_steps: list[int] = []  # of each collect
        self._before = Cost()

    def _end_interval(self, name: str) -> None:
        if self.counts is not None:
            now = cost_of(self.counts)
            self.costs[name].append(now.minus(self._before))
            self._before = now

    def on_collect_start(self, trainer: tk.Trainer) -> None:
        self._end_interval("between")

    def on_collect_end(self, trainer: tk.Trainer, stats: tk.CollectStats) -> None:
        self._end_interval("collect")
        if self.counts is not None:
            self.n_vector_steps.append(stats.n_step // 2)

    def on_train_batch(self, trainer: tk.Trainer, batch: Any) -> None:
        self._end_interval("between")
        self._is_first = True

    def on_update_end(self, trainer: tk.Trainer) -> None:
        self._end_interval("first update" if self._is_first else "update")
        self._is_first = False

    def on_epoch_end(self, trainer: tk.Trainer, result: Any) -> None:
        self._end_interval("report")


@pytest.mark.parametrize("row", TABLE, ids=lambda row: f"{row.presets.split()[-1]} {row.name}".strip())
@pytest.mark.parametrize("is_whole", [False, pytest.param(True, marks=pytest.mark.accelerator)], ids=["one", "all"])
def test_presets_cost_what_the_table_says(row: Row, is_whole: bool, pretend: PretendDevice) -> None:
    names = row.presets.split()
    for name in names[:-1] if is_whole else names[-1:]:
        ledger = Ledger()
        options = row.options | ({"repeat_per_collect": 2} if row.rollout is not None else {})
        with make(name, pretend.device, evaluation=None, max_epoch=2, callbacks=[ledger], **options) as trainer:
            next(trainer)  # parameters are laid out, a first flag is on its way
            with pretend.counting() as ledger.counts:
                next(trainer)
        costs, lines = ledger.costs, ledger.counts.lines
        assert set(costs.pop("between")) == {Cost()}, lines
        assert costs.pop("report") == [row.report], lines
        if row.step is not None and row.collect is not None:
            steps = [row.step.times(n) for n in ledger.n_vector_steps]
            collects = [cost.plus(row.collect) for cost in steps]
            collects[0] = collects[0].minus(CHECK)  # the report has checked
            assert costs.pop("collect") == collects, lines
        if "round" in row.name:  # priorities are read when the last update of a round has been started
            updates = costs.pop("first update")
            assert Cost(*map(sum, zip(*updates, strict=True))) == row.update.times(len(updates)), lines
        elif row.rollout is not None:
            assert set(costs.pop("first update")) == {row.rollout.plus(row.update)}, lines
            assert set(costs.pop("update")) == {row.update}, lines
        else:
            assert set(costs.pop("first update")) == {row.update}, lines
        assert not costs


def test_the_page_has_the_table() -> None:
    heading = ("presets", "options", "vector step", "collect", "rollout", "update", "report")
    cells = [(row.presets.replace(" ", ", "), row.name, *row[3:]) for row in TABLE]
    lines = [heading, ("---",) * len(heading), *cells]
    table = "\n".join("| " + " | ".join("" if cell is None else str(cell) for cell in line) + " |" for line in lines)
    assert table in (ROOT / "tests" / "pretend" / "README.md").read_text(), table


# ---- single calls ----


@pytest.mark.parametrize("parts", PARTS)
@pytest.mark.parametrize("on_nan", ["raise", "skip"])
def test_a_q_learner_of_any_parts_costs_the_same(parts: Any, on_nan: Any, pretend: PretendDevice) -> None:
    policy = made(**parts, device=pretend.device)
    policy.on_nan = on_nan
    batch, obs = batch_of(16), np.zeros((4, 4), np.float32)
    for _ in range(3):
        costs = []
        for call in (
            lambda: policy.act(obs, step=10**9, explore=True),
            lambda: policy.update(batch, step=5),
            lambda: policy.update(batch, step=5).read_priority(),
            lambda: policy.update(batch, step=5).copy_priority()(),
            policy.check_divergence,
            policy.read_metrics,
        ):
            with pretend.counting() as counts:
                call()
            costs.append(cost_of(counts))
    assert costs == [ACT, SENT, AT_ONCE, LATER, CHECK, Cost(waits=1, read=1)]


# ---- the order of operations ----


def logged_run(pretend: PretendDevice, monkeypatch: pytest.MonkeyPatch, **options: Any) -> DeviceCounts:
    """Count a second epoch of 24 vector steps, and mark in the log where parts of the trainer are called."""
    policy, buffer = made(device=pretend.device), tk.PrioritizedReplayBuffer(100)
    envs = tk.make_envs(Corridor, 2, backend="async" if options.get("overlap") else "sync")
    common: dict[str, Any] = {"max_epoch": 2, "step_per_epoch": 48, "batch_size": 8, "log_every": 10**9, "seed": 1}
    common |= {"refresh_priorities": "late", "verbose": False, "show_progress": False}
    counts = DeviceCounts()

    def mark(owner: Any, name: str) -> None:
        original = getattr(owner, name)

        def marked(*args: Any, **kwargs: Any) -> Any:
            counts.log.append(f"start of {name}")
            result = original(*args, **kwargs)
            counts.log.append(f"end of {name}")
            return result

        monkeypatch.setattr(owner, name, marked)

    for owner, name in ((policy, "act"), (policy, "update"), (buffer, "update_priorities"), (Requests, "receive")):
        mark(owner, name)
    with tk.OffpolicyTrainer(policy, tk.Collector(policy, envs, buffer), **common, **options) as trainer:
        next(trainer)
        with pretend.counting() as counts:
            next(trainer)
    return counts


def between(log: list[str], start: str, end: str) -> list[list[str]]:
    """Return the parts of the log from each `start` to the next `end`."""
    starts = [i for i, entry in enumerate(log) if entry == start and end in log[i:]]
    return [log[i : log.index(end, i) + 1] for i in starts]


def waits_in(log: list[str]) -> list[str]:
    return [entry for entry in log if entry.startswith(("wait", "event wait"))]


def test_late_priorities_are_waited_for_when_the_next_update_has_been_started(
    pretend: PretendDevice, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = logged_run(pretend, monkeypatch, step_per_collect=8, update_per_step=0.5).log
    steps = between(log, "start of update", "end of update_priorities")
    assert len(steps) == 24
    for previous, step in pairwise(steps):
        (wait,) = waits_in(step)
        assert "operation aten::_fused_adam_" in step[: step.index("end of update")]
        assert step.index("end of update") < step.index(wait) < step.index("start of update_priorities")
        assert wait.replace("wait", "record") in previous
        assert wait.replace("wait", "record") not in step


@pytest.mark.accelerator
def test_overlapped_updates_start_while_environments_step(
    pretend: PretendDevice, monkeypatch: pytest.MonkeyPatch
) -> None:
    counts = logged_run(pretend, monkeypatch, overlap=True, step_per_collect=8, update_per_step=1.0)
    total = ACT.times(24).plus(CHECK.times(5)).plus(LATER.times(48)).plus(Cost(waits=1, read=1))
    assert cost_of(counts) == total, counts.lines
    steps = between(counts.log, "end of act", "start of receive")  # the actions have been sent
    assert [step.count("end of update") for step in steps] == [0] * 4 + [2] * 20  # the last 8 are at the epoch's end
    for step in steps[4:]:
        started = step.index("end of update", step.index("end of update") + 1)
        for wait in waits_in(step):
            assert wait.startswith("event wait")
            assert wait.replace("wait", "record") not in step[started:]


def test_a_mean_is_over_the_updates_that_have_it_where_sums_stay_on_the_device(pretend: PretendDevice) -> None:
    one = torch.ones((), device=pretend.device)
    meter, resumed = MeanMetrics(), MeanMetrics()
    add_to(meter, {"loss": one, "q": one})
    add_to(meter, {"loss": 3 * one})
    add_to(meter, {"loss": 5 * one, "q": 7 * one})
    for device in (pretend.device, torch.device("cpu")):
        resumed.load_state_dict(meter.state_dict(), device)
        assert resumed.read() == {"loss": 3.0, "q": 4.0}
    assert meter.read() == {"loss": 3.0, "q": 4.0}
    add_to(meter, {"loss": one})
    assert meter.read() == {"loss": 1.0}


def test_an_automatic_support_is_looked_at_with_one_wait_per_period(
    pretend: PretendDevice, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(support, "PERIOD", 5)
    policy = made(value=tk.CategoricalValue(11, v_min=-100.0), device=pretend.device)
    batch = batch_of(16, reward=np.zeros(16, np.float32))
    policy.update(batch, step=0)  # fits the support
    costs = []
    for _ in range(14):
        with pretend.counting() as counts:
            policy.update(batch, step=0)
        costs.append(cost_of(counts))
    look = SENT.plus(Cost(waits=1, read=1))
    assert costs == [*[SENT] * 3, look, *[SENT] * 4, look, *[SENT] * 4, look]


def test_a_support_that_was_widened_is_that_of_the_cpu(pretend: PretendDevice, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(support, "PERIOD", 5)
    policies = [
        made(value=tk.CategoricalValue(11), device=device, dueling=True, act_on="cpu", optimizer=tk.Adam(1e-2))
        for device in ("cpu", pretend.device)
    ]
    for policy in policies:
        for i in range(12):
            policy.update(batch_of(16, seed=i, reward=np.full(16, 1.0 + i, np.float32)), step=0)
    bounds = [(policy.value.v_min, policy.value.v_max) for policy in policies]
    assert bounds[0] == bounds[1] == pytest.approx((0.0, 4.4))
    np.testing.assert_allclose(*(policy.action_values(batch_of(8).obs) for policy in policies), rtol=1e-3, atol=1e-3)
