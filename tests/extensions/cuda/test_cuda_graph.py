"""CUDA graphs of updates and of acting, on the pretend device: the results of torch, whatever happens on the way.

A tape stands in for a graph: it repeats the operations of torch on the memory of the recording, and rejects what a
capture of CUDA rejects.
"""

import copy
import gc
import logging
import re
import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from gymnasium import spaces
from torch import Tensor
from torch.optim.lr_scheduler import OneCycleLR

from tests.extensions.cuda.graph_learners import (
    DEVICE,
    ELSEWHERE,
    IN_PLACE,
    N_WARM_UPS,
    NAN,
    Curious,
    charge_more,
)
from tests.helpers import rollouts, sac
from tests.helpers.engine import AUTO
from tests.helpers.learning import (
    FOUR_NUMBERS,
    NEVER,
    Spaces,
    assert_same,
    batch_of,
    made,
    observations,
    parameters_of,
    small_net,
)
from tests.helpers.of_extensions import learners_of_extensions
from tests.helpers.sac import PUSH
from tests.helpers.tape import TapeCapture
from tests.helpers.updates import MORE_PARTS, ON_POLICY, batches, learn_alike
from tests.pretend import DeviceCounts, PretendDevice
from trainkit import (
    Adam,
    Clip,
    ColoredNoise,
    ConfigError,
    DQNPolicy,
    EpsilonGreedy,
    ExpectedValue,
    MaxBackup,
    Policy,
    Target,
    load_policy,
)
from trainkit.engine import Loss, TensorBatch
from trainkit.engine.device import to_device
from trainkit.engine.engine import Engine
from trainkit.engine.gradient_step import GradientStep
from trainkit.engine.loss import OwnObjective
from trainkit.errors import DeviceError, DivergedError
from trainkit.extensions.cuda import cuda_graph
from trainkit.policy import ActOutput
from trainkit.policy.learning import Learning


def there(**options: Any) -> DQNPolicy:
    """Make a Q-learner on the pretend device."""
    return made(**{"engine": "cuda_graph", "device": DEVICE} | options)


def learn(policy: DQNPolicy, steps: range, **options: Any) -> list[Any]:
    return [policy.update(batch_of(16, seed=step, **options), step=step).read_priority() for step in steps]


IMAGES = spaces.Box(0, 255, (4, 36, 38), np.uint8)


# ---- every learner ----


class Modeler(Policy):
    """A user's policy: a model of the next observation, and a critic that learns from its errors, with noise."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.model = small_net((4, 8, 4))
        self.critic = small_net()
        self.add_gradient_step("model", self.model, Adam(1e-3), loss=self.model_loss)
        how: dict[str, Any] = {"loss": self.critic_loss, "reads": "model"}
        self.add_gradient_step("critic", self.critic, Adam([(0, 1e-3), (5, 0.0)]), Clip(0.5), **how)
        self.target_critic = self.add_target("critic", self.critic, Target(every=1, unit="updates", tau=0.1))

    def loss_inputs(self, n_rows: int, *, step: int) -> dict[str, Any]:
        return {"share": 1.0 / (1 + step), "shift": np.full((n_rows, 1), step, np.float32)}

    def loss_noise(self, n_rows: int) -> dict[str, Any]:
        return {"noise": torch.randn(n_rows, 4, generator=self.generator, device=self.device)}

    def model_loss(self, rows: TensorBatch) -> Loss:
        guess = self.model(rows.obs + rows.inputs["noise"]) + rows.inputs["shift"]
        error = (guess - rows.next_obs).square().mean(dim=1)
        return Loss(error, metrics={"error": error.mean()}, outputs={"error": error})

    def critic_loss(self, rows: TensorBatch) -> Loss:
        with torch.no_grad():
            target = rows.reward + rows.discount * self.target_critic(rows.next_obs).amax(dim=1)
        td = self.critic(rows.obs).gather(1, rows.action[:, None]).squeeze(1) - target
        return Loss(td.square() + rows.inputs["share"] * rows.inputs["error"], td.detach().abs())

    def values(self, given: Any) -> Mapping[str, Tensor]:
        obs, noise = given
        return {"values": self.critic(self.preprocess(obs)) if noise is None else self.critic(obs) + noise}

    def act(self, obs: Any, *, step: int = 0, explore: bool = False, **rest: Any) -> ActOutput:
        def draw() -> Tensor:
            return torch.randn(len(obs), 3, generator=self.generator, device=self.device)

        values = self.engine.call("values", self.values, (obs, None), draw=draw if explore else None)["values"]
        return ActOutput(values.argmax(axis=1), {}, None)


class Learner(NamedTuple):
    """A policy to make, and what it learns from."""

    make: Callable[..., Any]
    space: Any = FOUR_NUMBERS
    actions: Any = None  # as made up for the batches; None: three actions
    is_on_policy: bool = False
    tolerance: float = 1e-5

    def both(self) -> tuple[Any, Any]:
        """Return a policy that learns and acts by graphs and one by torch, both on the pretend device."""
        graph, plain = (self.make(device=DEVICE, engine=engine) for engine in ("cuda_graph", "torch"))
        return graph, plain

    def learn(self, policy: Any, step: int) -> Any:
        """Take an update, or eight on a rollout; return the priorities, if there are any."""
        if self.is_on_policy:
            rollout = rollouts.played(copy.deepcopy(self.make(device="cpu")), self.space, [20, 13, 7], seed=step)
            for _ in policy.learn(rollout, step=step, batch_size=10, repeat=2):
                pass
            return None
        columns = {} if self.actions is None else {"action": observations(self.actions, 16, step)}
        return policy.update(batch_of(16, seed=step, space=self.space, **columns), step=step).read_priority()


def by_spaces(kind: Any, actions: Any = None, **options: Any) -> Learner:
    envs = Spaces() if actions is None else Spaces(FOUR_NUMBERS, actions)
    return Learner(lambda **how: kind.for_envs(envs, hidden=(8,), seed=0, **options, **how), FOUR_NUMBERS, actions)


def q_learner(parts: dict[str, Any], tolerance: float = 1e-5) -> Learner:
    parts = {"target": NEVER, "exploration": EpsilonGreedy(0.0)} | parts
    return Learner(
        lambda **how: made(**copy.deepcopy(parts), **how), parts.get("space", FOUR_NUMBERS), None, False, tolerance
    )


def on_policy(kind: Any, space: Any, options: Any) -> Learner:
    return Learner(lambda **how: rollouts.made(kind, space, **options | how), space, None, True)


LEARNERS = {
    **{str(case.id): q_learner(case.values[0]) for case in MORE_PARTS},
    "images bf16": q_learner({"precision": "bf16", "space": IMAGES, "hidden": None, "head": (8,)}, 0.05),
    "sac": Learner(sac.made, FOUR_NUMBERS, PUSH),
    "sac scheduled": Learner(lambda **how: sac.made(temperature=[(0, 1.0), (9, 0.1)], **how), FOUR_NUMBERS, PUSH),
    "sac colored noise": Learner(lambda **how: sac.made(exploration=ColoredNoise(), **how), FOUR_NUMBERS, PUSH),
    **{str(case.id): on_policy(*case.values) for case in ON_POLICY},
    **{name: by_spaces(kind, actions, **own) for name, (kind, actions, own) in learners_of_extensions().items()},
    "of a user": Learner(lambda **how: Modeler(**Spaces()._asdict(), seed=0, **how)),
}
EVERY = pytest.mark.parametrize("name", LEARNERS)


@pytest.mark.fast_cases(9)
@EVERY
def test_updates_by_a_graph_are_those_of_torch_in_one_copy_and_one_launch(
    name: str, taped: PretendDevice, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Only a target network that moves in every update, and the columns of a rollout, take further launches."""
    learner = LEARNERS[name]
    graph, plain = learner.both()
    counted: list[tuple[DeviceCounts, Counter[str]]] = []
    own_update = Learning.update

    def update_once(learning: Learning, *given: Any, **facts: Any) -> Any:
        with taped.counting() as counts:
            results = own_update(learning, *given, **facts)
        counted.append((counts, counts.operations - TapeCapture.inside))
        return results

    for step in range(2 if learner.is_on_policy else N_WARM_UPS + 3):
        with monkeypatch.context() as patched:
            patched.setattr(Learning, "update", update_once)
            mine = learner.learn(graph, step)
        theirs = learner.learn(plain, step)
        if theirs is not None:
            np.testing.assert_allclose(mine, theirs, rtol=learner.tolerance, atol=learner.tolerance)
    assert TapeCapture.n_recorded == 1
    weights, close = plain.get_weights(), {"rtol": learner.tolerance, "atol": learner.tolerance}
    for path, weight in graph.get_weights().items():
        np.testing.assert_allclose(weight, weights[path], **close, err_msg=path)
    close = {"rel": 10 * learner.tolerance, "abs": 10 * learner.tolerance}
    expected = {metric: pytest.approx(number, **close) for metric, number in plain.read_metrics().items()}
    assert graph.read_metrics() == expected
    n_moved = sum(target.spec.every == 1 for target in graph._learning.targets.values())
    for counts, outside in counted[N_WARM_UPS + 1 :]:
        assert (counts.waits, counts.copies_to_device, counts.copies_to_cpu) == (0, 1, 0)
        assert outside.pop("aten::_foreach_lerp_", 0) == n_moved
        assert set(outside) <= ({"aten::_foreach_copy_"} if learner.is_on_policy else set())


@pytest.mark.fast_cases(9)
@EVERY
def test_acting_by_a_graph_has_the_bits_of_torch_and_waits_once(name: str, taped: PretendDevice) -> None:
    learner = LEARNERS[name]
    graph, plain = learner.both()
    for call in range(N_WARM_UPS + 2):
        for explore in (False, True):
            for n_rows in (4, 1):
                obs = observations(learner.space, n_rows, seed=call)
                with taped.counting() as counts:
                    mine = graph.act(obs, explore=explore, env_ids=np.arange(n_rows))
                theirs = plain.act(obs, explore=explore, env_ids=np.arange(n_rows))
                assert_same(mine.action, theirs.action)
                assert_same(mine.extras, theirs.extras)
    assert (counts.waits, counts.copies_to_device, counts.copies_to_cpu) == (1, 1, 1)
    assert counts.operations == TapeCapture.inside
    has_noise = not isinstance(graph, DQNPolicy) or graph.network.noise_size
    assert TapeCapture.n_recorded == (4 if has_noise else 2)
    assert_same(graph.streams_state(), plain.streams_state())


@pytest.mark.fast_cases(2)
@pytest.mark.parametrize("name", [name for name, learner in LEARNERS.items() if learner.is_on_policy])
def test_acting_on_tensors_waits_for_nothing_and_its_results_last(name: str, taped: PretendDevice) -> None:
    graph, plain = LEARNERS[name].both()
    results: list[Any] = []
    expected: list[Any] = []
    for call in range(N_WARM_UPS + 3):
        obs = to_device(observations(LEARNERS[name].space, 4, seed=call), taped.device)
        with taped.counting() as counts:
            results.append(graph.act_on_device(obs))
        expected.append(plain.act_on_device(obs))
    assert (counts.waits, counts.copies_to_device, counts.copies_to_cpu) == (0, 0, 0)
    assert TapeCapture.n_recorded == 1
    copies = {"aten::_foreach_copy_": 1, "aten::copy_": 1}  # of inputs, of results
    assert counts.operations - TapeCapture.inside == Counter(copies)
    for mine, theirs in zip(results, expected, strict=True):
        assert_same(mine, theirs)


# ---- what comes in and what goes out ----


@pytest.mark.usefixtures("taped")
def test_a_batch_may_be_overwritten_as_soon_as_update_returns() -> None:
    one, other = there(), there()
    for step in range(8):
        kept, spoilt = (batch_of(16, seed=step) for _ in range(2))
        one.update(kept, step=step)
        other.update(spoilt, step=step)
        spoilt.obs[:] = np.nan
        spoilt.reward[:] = np.nan
    assert_same(parameters_of(one), parameters_of(other))


@pytest.mark.usefixtures("taped")
def test_batches_stay_as_they_were() -> None:
    policy, given = there(), batches(8)
    for step, batch in enumerate(given):
        policy.update(batch, step=step)
    for batch, before in zip(given, batches(8), strict=True):
        assert_same([batch.obs, batch.reward], [before.obs, before.reward])


@pytest.mark.usefixtures("taped")
@pytest.mark.parametrize("on_nan", ["raise", "skip"])
def test_priorities_last_until_the_second_update_after_theirs(on_nan: Any) -> None:
    late, at_once = there(), there(engine="torch")
    late.on_nan = at_once.on_nan = on_nan
    results, expected = [], []
    for step in range(10):
        reward = {"reward": NAN} if on_nan == "skip" and step in (3, 7) else {}
        results.append(late.update(batch_of(16, seed=step, **reward), step=step))
        expected.append(at_once.update(batch_of(16, seed=step, **reward), step=step).read_priority())
        for one, priority in zip(results[-2:], expected[-2:], strict=True):
            mine = one.read_priority()
            assert (mine is None) == (priority is None)
            assert mine is None or mine == pytest.approx(priority, rel=1e-5)


@pytest.mark.usefixtures("taped")
def test_batches_of_another_size_have_a_recording_of_their_own() -> None:
    sizes = [batch for n in (16, 5, 16, 5, 3) for batch in batches(4, n_rows=n)]
    learn_alike(there(), there(engine="torch"), sizes)
    assert TapeCapture.n_recorded == 3


@pytest.mark.usefixtures("taped")
def test_the_recordings_of_most_shapes_are_bounded_and_the_least_recently_used_goes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(cuda_graph, "_MOST_RECORDINGS", 3)
    policy, plain = there(), there(engine="torch")
    for n_rows in (1, 2, 3, 4, 2, 1):
        for call in range(N_WARM_UPS + 2):
            obs = observations(FOUR_NUMBERS, n_rows, call)
            assert_same(policy.action_values(obs), plain.action_values(obs))
    assert TapeCapture.n_recorded == 5  # again of one row, which three others were used after; not again of two


@pytest.mark.usefixtures("taped")
def test_acting_between_updates_changes_nothing() -> None:
    recorded, plain = there(noisy=True), there(noisy=True, engine="torch")
    for start, batch in enumerate(batches(8)):
        for policy in (recorded, plain):
            policy.act(batch.obs, explore=True)
            policy.act(batch.obs[:3])
        learn_alike(recorded, plain, [batch], start)


# ---- what is replaced ----


@pytest.mark.fast_cases(5)
@pytest.mark.usefixtures("taped")
@pytest.mark.parametrize("meddle", [*IN_PLACE, *ELSEWHERE])
def test_training_continues_from_what_is_replaced(meddle: Callable[[DQNPolicy], None]) -> None:
    options: dict[str, Any] = {"noisy": True, "double": True, "normalize_obs": True}
    recorded, plain = there(**options), there(**options, engine="torch")
    given = batches(14)
    learn_alike(recorded, plain, given[:6])
    for policy in (recorded, plain):
        meddle(policy)
    learn_alike(recorded, plain, given[6:], 6)
    assert TapeCapture.n_recorded == (1 if meddle in IN_PLACE else 2)


@pytest.mark.usefixtures("taped")
def test_a_copy_learns_on_by_itself() -> None:
    one, plain = there(noisy=True), there(noisy=True, engine="torch")
    learn_alike(one, plain, batches(6))
    other = copy.deepcopy(one)
    learn_alike(other, copy.deepcopy(plain), batches(12)[6:])
    learn_alike(one, plain, batches(12)[6:])
    assert_same(parameters_of(one), parameters_of(other))


# ---- what goes wrong ----


@pytest.mark.usefixtures("taped")
def test_a_step_that_is_not_finite_is_skipped_and_reported_at_the_next_read() -> None:
    policy = there()
    learn(policy, range(6))
    policy.read_metrics()
    before = copy.deepcopy(policy.training_state())
    policy.update(batch_of(16, reward=NAN), step=6)
    assert_same(policy.training_state()["weights"], before["weights"])
    assert_same(policy.training_state()["optimizers"], before["optimizers"])
    with pytest.raises(DivergedError, match="among updates 7 to 7 was not finite"):
        policy.read_metrics()
    learn(policy, range(7, 9))
    assert np.isfinite(policy.read_metrics()["loss"])


@pytest.mark.usefixtures("taped")
def test_a_skipped_update_has_no_priorities() -> None:
    policy = there()
    policy.on_nan = "skip"
    learn(policy, range(6))
    assert policy.update(batch_of(16, reward=NAN), step=6).read_priority() is None
    assert policy.update(batch_of(16), step=7).read_priority() is not None
    metrics = policy.read_metrics()
    assert np.isfinite(list(metrics.values())).all()
    assert metrics["skipped"] == pytest.approx(1 / 8)


@pytest.mark.usefixtures("taped")
def test_the_rule_for_numbers_that_are_not_finite_may_change_after_a_recording() -> None:
    policy, plain = there(), there(engine="torch")
    for one in (policy, plain):
        learn(one, range(6))
        one.read_metrics()
        one.on_nan = "skip"
        learn(one, range(6, 11))
        assert one.update(batch_of(16, reward=NAN), step=11).read_priority() is None
    assert policy.read_metrics() == pytest.approx(plain.read_metrics(), rel=1e-4)
    for one in (policy, plain):
        one.on_nan = "raise"
        learn(one, range(12, 14))
        one.update(batch_of(16, reward=NAN), step=14)
        with pytest.raises(DivergedError):
            one.read_metrics()


class Hungry(MaxBackup):
    """A backup that runs out of memory when it is recorded."""

    n_calls = 0

    def __call__(self, *given: Any) -> tuple[Tensor, Tensor]:
        type(self).n_calls += 1
        if type(self).n_calls == N_WARM_UPS + 1:
            raise torch.OutOfMemoryError("Tried to allocate 20 GiB")
        return super().__call__(*given)


@pytest.mark.usefixtures("taped")
@pytest.mark.parametrize("engine", ["auto", "cuda_graph"])
def test_memory_that_runs_out_while_recording_is_reported_and_nothing_is_freed(
    engine: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    def empty_cache() -> None:
        pytest.fail("no memory may be freed while a graph is recorded")

    monkeypatch.setattr(torch.accelerator, "empty_cache", empty_cache)
    policy = there(backup=Hungry(), engine=engine)
    monkeypatch.setattr(Hungry, "n_calls", 0)
    learn(policy, range(N_WARM_UPS))
    with pytest.raises(DeviceError, match=r"a CUDA graph of an update cannot be recorded, as it does not fit .* lower"):
        learn(policy, range(1))


# ---- metrics and garbage ----


class Changing(DQNPolicy):
    """A policy that reports one more metric where a function of the number of rows returns True."""

    reports: Callable[[int], bool]

    def loss(self, rows: TensorBatch) -> Loss:
        loss = super().loss(rows)
        metrics = {**loss.metrics, "more": rows.reward.mean()} if self.reports(len(rows.reward)) else loss.metrics
        return Loss(loss.per_row, loss.priority, metrics)


def changing(reports: Callable[[int], bool], engine: str = "cuda_graph") -> Changing:
    policy = Changing.for_envs(Spaces(), hidden=(8,), seed=0, device=DEVICE, engine=engine)
    policy.reports = reports
    return policy


@pytest.mark.usefixtures("taped")
def test_a_part_that_is_replaced_may_report_more() -> None:
    recorded, plain = there(), there(engine="torch")
    for step in range(14):
        for policy in (recorded, plain):
            if step == 6:
                charge_more(policy)
            policy.update(batch_of(16, seed=step), step=step)
    assert TapeCapture.n_recorded == 2  # again with the other part
    expected = plain.read_metrics()
    assert "penalty_mean" in expected
    assert recorded.read_metrics() == {name: pytest.approx(mean, rel=1e-4) for name, mean in expected.items()}


@pytest.mark.usefixtures("taped")
def test_recordings_of_batches_of_other_sizes_may_report_more() -> None:
    recorded, plain = (changing(lambda n_rows: n_rows == 8, engine) for engine in ("cuda_graph", "torch"))
    for step in range(20):
        for policy in (recorded, plain):
            policy.update(batch_of(16 if step % 3 else 8, seed=step), step=step)
    assert TapeCapture.n_recorded == 2
    expected = plain.read_metrics()
    assert "more" in expected
    assert recorded.read_metrics() == {name: pytest.approx(mean, rel=1e-4) for name, mean in expected.items()}


@pytest.mark.usefixtures("taped")
def test_a_metric_that_is_new_in_the_update_that_is_recorded_is_an_error() -> None:
    calls: list[int] = []
    policy = changing(lambda n_rows: calls.append(n_rows) or len(calls) > N_WARM_UPS)
    learn(policy, range(N_WARM_UPS))
    with pytest.raises(ConfigError, match=r"the same names when a CUDA graph records .* got .*'more'.* after .*'loss'"):
        learn(policy, range(1))


@pytest.mark.usefixtures("taped")
def test_no_garbage_is_collected_while_a_graph_is_recorded() -> None:
    seen: list[bool] = []
    policy = changing(lambda n_rows: bool(seen.append(gc.isenabled())))
    learn(policy, range(N_WARM_UPS + 2))
    assert seen == [*[True] * N_WARM_UPS, False]
    assert gc.isenabled()


@pytest.mark.usefixtures("taped")
def test_garbage_is_collected_again_after_a_recording_has_failed() -> None:
    calls: list[int] = []
    policy = changing(lambda n_rows: calls.append(n_rows) or len(calls) > N_WARM_UPS)
    with pytest.raises(ConfigError):
        learn(policy, range(N_WARM_UPS + 1))
    assert gc.isenabled()


class Reader(DQNPolicy):
    """A policy that reads a number while it acts."""

    def _q_values(self, given: Any) -> dict[str, Tensor]:
        values = super()._q_values(given)["q_values"]
        return {"q_values": values if float(values.sum()) > 0 else 2 * values}


WAITING = {
    "an update": lambda **how: made(backup=Curious(), device=DEVICE, **how),
    "the function 'q_values'": lambda **how: Reader.for_envs(Spaces(), hidden=(8,), device=DEVICE, seed=0, **how),
}


@pytest.mark.usefixtures("taped")
@pytest.mark.parametrize("name", WAITING)
def test_auto_uses_torch_for_what_waits_before_it_is_recorded(name: str, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "trainkit.engine.recording_engine")
    policy, plain = (WAITING[name](engine=engine) for engine in ("auto", "torch"))
    assert str(policy.engine) == "cuda_graph (on pretend)"
    for step in range(N_WARM_UPS + 3):
        batch = batch_of(16, seed=step)
        assert_same(policy.act(batch.obs).action, plain.act(batch.obs).action)
        mine, theirs = (one.update(batch, step=step).read_priority() for one in (policy, plain))
        assert mine == pytest.approx(theirs, rel=1e-5)
    assert policy.engine.name == "torch"
    assert policy.engine.reason.startswith(f"{name} waits for the device, or makes a tensor from Python numbers, at /")
    assert re.search(r"(graph_learners|test_cuda_graph)\.py:", policy.engine.reason)
    assert TapeCapture.n_recorded == 0
    assert caplog.messages == [f"{type(policy).__name__} uses the engine torch: {policy.engine.reason}"]
    resumed = WAITING[name](engine="auto")
    resumed.load_training_state(policy.training_state())
    assert str(resumed.engine) == str(policy.engine)


@pytest.mark.usefixtures("taped")
def test_a_fallback_to_numpy_does_not_concern_graphs() -> None:
    policy = there(engine="auto")
    state = policy.training_state() | {"engine": {"gave_up": "a loss calls item", "counts": []}}
    policy.load_training_state(state)
    assert policy.engine.name == "cuda_graph"


@pytest.mark.usefixtures("taped")
@pytest.mark.parametrize("name", WAITING)
def test_a_policy_that_waits_raises_where_graphs_are_required_before_it_is_recorded(name: str) -> None:
    policy = WAITING[name](engine="cuda_graph")
    match = f"engine 'cuda_graph' cannot execute its functions: {name} waits for the device.* Use 'auto' or 'torch'"

    def train() -> None:
        for step in range(2 * N_WARM_UPS):
            policy.act(batch_of(16).obs)
            policy.update(batch_of(16), step=step)

    with pytest.raises(ConfigError, match=match):
        train()
    assert TapeCapture.n_recorded == 0
    policy.engine = "torch"
    policy.act(batch_of(16).obs)
    assert policy.update(batch_of(16), step=9).read_priority() is not None


@pytest.mark.usefixtures("taped")
@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"optimizer": torch.optim.SGD}, "the CPU has to know whether to skip a step of SGD"),
        ({"lr": partial(OneCycleLR, max_lr=1e-2, total_steps=20)}, "OneCycleLR changes betas"),
    ],
    ids=["sgd", "one cycle"],
)
def test_auto_uses_torch_for_optimizers_that_cannot_be_recorded(options: Any, reason: str) -> None:
    policy, plain = there(**options, engine="auto"), there(**options, engine="torch")
    for _ in range(2):
        learn_alike(policy, plain, batches(5))
        assert str(policy.engine).startswith(f"torch ({reason}")
        policy.load_training_state(policy.training_state())
    with pytest.raises(ConfigError, match=f"engine 'cuda_graph' cannot execute its functions: {reason}"):
        learn(there(**options), range(2))


@pytest.mark.usefixtures("taped")
def test_auto_uses_torch_where_an_attribute_changes_before_every_update(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "trainkit.engine.recording_engine")
    policy, plain = there(engine="auto"), there(engine="torch")
    for step in range(12):
        for one in (policy, plain):
            one.network.counter = step  # type: ignore[assignment]
            one.update(batch_of(16, seed=step), step=step)
    assert_same(policy.get_weights(), plain.get_weights())
    assert str(policy.engine) == "torch (QNetwork.counter changes between all calls of an update)"
    assert len(caplog.messages) == 1


@pytest.mark.usefixtures("taped")
def test_a_learning_rate_on_the_device_moves_parameters_by_the_same_bits() -> None:
    """It is a float32 there, and 0.0007 is not one: as a float64 it moves some of the parameters otherwise."""
    lr, moved = 7e-4, []
    for on_device in (None, torch.tensor(lr, device=DEVICE)):
        net = small_net((100, 100)).to(DEVICE)
        step, engine = GradientStep(net, Adam(lr)), Engine(net, "torch", torch.device(DEVICE))
        for power in range(1, 6):
            loss = partial(lambda net, power: net(torch.eye(100).to(DEVICE)).pow(power).mean(), net, power)
            engine.minimize(step, OwnObjective(loss), (), step=0, lr=on_device)
        moved.append(parameters_of(net.cpu()))
    assert_same(*moved)


@pytest.mark.usefixtures("taped")
def test_a_hook_is_called_at_every_update_and_action() -> None:
    policy, calls = there(engine="auto"), []
    learn(policy, range(N_WARM_UPS + 2))
    handle = policy.network.register_forward_hook(lambda *given: calls.append(1))
    for step in range(N_WARM_UPS + 2):
        learn(policy, range(step, step + 1))
        policy.act(batch_of(4).obs)
    assert len(calls) == 2 * (N_WARM_UPS + 2)
    assert policy.engine.name == "torch"
    assert "a hook is registered, so torch executes an update" in policy.engine.reason
    handle.remove()
    learn(policy, range(N_WARM_UPS + 2))
    assert TapeCapture.n_recorded == 2  # again without the hook
    assert policy.engine.name == "cuda_graph"


def test_it_is_rejected_without_cuda() -> None:
    with pytest.raises(ConfigError, match="engine 'cuda_graph' needs a policy on CUDA, got device cpu: use 'auto'"):
        made(engine="cuda_graph")


@pytest.mark.usefixtures("taped")
def test_who_saved_a_policy_with_a_graph_needs_none_to_load_it(tmp_path: Path) -> None:
    policy = there(value=ExpectedValue("mse"))
    learn(policy, range(5))
    loaded = load_policy(policy.save(tmp_path / "saved"), device="cpu")
    assert loaded.engine.name == AUTO
    assert_same(loaded.get_weights(), policy.get_weights())


# ---- torch's side of it, as far as it shows without a GPU ----


class Pretended:
    """What is requested of `torch.cuda`, written down; streams and graphs that do nothing."""

    def __init__(self) -> None:
        self.log: list[str] = []

    def Stream(self, device: Any) -> "Stream":  # noqa: N802 - torch's name
        return Stream("side", self.log)

    def current_stream(self, device: Any) -> "Stream":
        return Stream("main", self.log)

    @contextmanager
    def stream(self, stream: "Stream") -> Iterator[None]:
        self.log.append(f"enter {stream.name}")
        yield
        self.log.append(f"leave {stream.name}")

    def device(self, device: Any) -> Any:
        return nullcontext()

    def graph_pool_handle(self) -> str:
        return "pool"

    def get_sync_debug_mode(self) -> int:
        return 0

    def set_sync_debug_mode(self, mode: int | str) -> None:
        self.log.append(f"debug {mode}")

    def CUDAGraph(self) -> "Pretended":  # noqa: N802 - torch's name
        return self

    def register_generator_state(self, generator: Any) -> None:
        self.log.append(f"register {generator}")

    @contextmanager
    def graph(self, graph: Any, pool: str, stream: "Stream", capture_error_mode: str) -> Iterator[None]:
        self.log.append(f"record on {stream.name} in {pool}, {capture_error_mode}")
        yield
        self.log.append("recorded")

    def replay(self) -> None:
        self.log.append("replay")


class Stream(NamedTuple):
    name: str
    log: list[str]

    def wait_stream(self, other: "Stream") -> None:
        self.log.append(f"{self.name} waits for {other.name}")


def test_work_is_warmed_up_on_the_stream_that_records_it(monkeypatch: pytest.MonkeyPatch) -> None:
    pretended = Pretended()
    for name in ("Stream", "current_stream", "stream", "device", "CUDAGraph", "graph", "graph_pool_handle"):
        monkeypatch.setattr(torch.cuda, name, getattr(pretended, name))
    log, capture = pretended.log, cuda_graph.Capture(torch.device("cuda"))

    assert capture.warm_up(lambda: log.append("work") or "done") == "done"  # type: ignore[func-returns-value]
    assert log == ["side waits for main", "enter side", "work", "leave side", "main waits for side"]
    log.clear()
    result, replay = capture.record(lambda: log.append("work") or "result", "generator")  # type: ignore[arg-type, func-returns-value]
    assert result == "result"
    assert log == [
        "register generator",
        "enter main",
        "record on side in pool, thread_local",
        "work",
        "recorded",
        "leave main",
    ]
    replay()
    assert log[-1] == "replay"


def test_the_last_warm_up_reports_the_line_that_waits_and_repeats_other_warnings(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    pretended = Pretended()
    for name in (
        "Stream",
        "current_stream",
        "stream",
        "graph_pool_handle",
        "get_sync_debug_mode",
        "set_sync_debug_mode",
    ):
        monkeypatch.setattr(torch.cuda, name, getattr(pretended, name))
    capture = cuda_graph.Capture(torch.device("cuda"))

    def work() -> str:
        warnings.warn("called a synchronizing CUDA operation (Triggered internally at CUDAFunctions.cpp)", stacklevel=1)
        warnings.warn("something else", stacklevel=1)
        return "done"

    with pytest.warns(UserWarning, match="something else") as caught:
        results, line = capture.rehearse(work)
    assert (results, len(caught)) == ("done", 1)
    assert line is not None
    assert line.startswith(f"{__file__}:")
    assert [entry for entry in pretended.log if "debug" in entry] == ["debug warn", "debug 0"]
    assert capture.rehearse(lambda: "done") == ("done", None)
