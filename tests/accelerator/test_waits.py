"""How often the CPU waits for the device and what it sends there: exact numbers, each of which was a choice."""

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch

import trainkit as tk
from tests.accelerator.runs import make
from tests.helpers.learning import PARTS, batch_of, made
from trainkit.errors import ConfigError
from trainkit.policy.update_result import MeanMetrics
from trainkit.testing import DeviceCounts, PretendDevice

OBS = np.zeros((4, 4), np.float32)
BATCH = batch_of(16)


class Cost(NamedTuple):
    """Of one call: waits, waits for an event that is long over, copies to the device, copies to the CPU."""

    waits: int = 0
    event_waits: int = 0
    to_device: int = 0
    to_cpu: int = 0


def cost_of(counts: DeviceCounts) -> Cost:
    return Cost(counts.waits, counts.event_waits, counts.copies_to_device, counts.copies_to_cpu)


def update(policy: Any) -> None:
    policy.update(BATCH, step=5)


CALLS: dict[str, tuple[Callable[[Any], Any], Cost]] = {
    "act": (lambda policy: policy.act(OBS), Cost(waits=1, to_device=1, to_cpu=1)),
    "explore": (lambda policy: policy.act(OBS, step=10**9, explore=True), Cost(waits=1, to_device=1, to_cpu=1)),
    "update": (update, Cost(to_device=1)),
    "update and priorities": (
        lambda policy: policy.update(BATCH, step=5).read_priority(),
        Cost(waits=1, to_device=1, to_cpu=1),
    ),
    "check for divergence": (lambda policy: policy.check_divergence(), Cost(event_waits=1, to_cpu=1)),
    "report": (lambda policy: policy.read_metrics(), Cost(waits=1, to_cpu=1)),
}


@pytest.mark.parametrize("on_nan", ["raise", "skip"])
@pytest.mark.parametrize("call", CALLS)
@pytest.mark.parametrize("parts", PARTS)
def test_a_q_learner_costs(parts: Any, call: str, on_nan: Any, pretend: PretendDevice) -> None:
    policy = made(**parts, device=pretend.device)
    policy.on_nan = on_nan
    for _ in range(3):  # parameters are laid out at the first
        update(policy)
        policy.check_divergence()
        policy.act(OBS, step=10**9, explore=True)
    work, expected = CALLS[call]
    if call == "update and priorities" and on_nan == "skip":
        expected = Cost(waits=2, to_device=1, to_cpu=1)  # one for whether the update was skipped
    with pretend.counting() as counts:
        work(policy)
    assert cost_of(counts) == expected, counts.lines


@pytest.mark.parametrize(
    ("buffer", "per_update", "per_round"),
    [
        (tk.ReplayBuffer(200), Cost(to_device=1), Cost(waits=1, event_waits=1, to_device=1, to_cpu=2)),
        (tk.PrioritizedReplayBuffer(200), Cost(1, 0, 1, 1), Cost(waits=1, event_waits=1, to_device=1, to_cpu=2)),
    ],
    ids=["uniform", "prioritized"],
)
def test_a_run_costs_so_much_for_each_update_and_each_step_of_the_environments(
    buffer: Any, per_update: Cost, per_round: Cost, pretend: PretendDevice
) -> None:
    def total(n_updates_per_round: int, n_rounds: int) -> np.ndarray[Any, Any]:
        envs = tk.make_envs("CartPole-v1", 4)
        policy = tk.DQNPolicy.for_envs(
            envs, hidden=(8,), device=pretend.device, seed=1, exploration=tk.EpsilonGreedy(0.01)
        )
        buffer.clear()
        trainer = tk.OffpolicyTrainer(
            policy,
            tk.Collector(policy, envs, buffer),
            max_epoch=2,
            step_per_epoch=4 * n_rounds,
            step_per_collect=4,
            update_per_step=n_updates_per_round / 4,
            batch_size=8,
            log_every=10**9,
            seed=1,
            verbose=False,
            show_progress=False,
        )
        with trainer:
            next(trainer)
            with pretend.counting() as counts:
                next(trainer)
        return np.array(cost_of(counts))

    np.testing.assert_array_equal((total(2, 40) - total(1, 40)) / 40, per_update)
    np.testing.assert_array_equal((total(1, 80) - total(1, 40)) / 40 - per_update, per_round)


@pytest.mark.parametrize(("name", "n_waits"), [("ppo", 24), ("sac", 2)])
def test_other_learners_wait_to_act_and_to_report_only(name: str, n_waits: int, pretend: PretendDevice) -> None:
    with make(name, pretend.device, evaluation=None) as trainer, pretend.counting() as counts:
        trainer.run()
    assert counts.waits == n_waits + 1, counts.lines


def test_metrics_of_other_names_than_before_are_an_error_where_sums_stay_on_the_device(pretend: PretendDevice) -> None:
    one = torch.ones((), device=pretend.device)
    meter = MeanMetrics()
    meter.add({"loss": one, "q": one})
    with pytest.raises(ConfigError, match=r"the same names at every update, got \['loss'\] after \['loss', 'q'\]"):
        meter.add({"loss": one})
    assert meter.read() == {"loss": 1.0, "q": 1.0}
    meter.add({"loss": one})
    assert meter.read() == {"loss": 1.0}
