"""An update recorded as a graph: the numbers of one that is not, whatever happens on the way.

A tape stands in for CUDA here: it plays back what torch was asked to do on the memory it was asked to do it on.
"""

import copy
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from gymnasium import spaces
from torch import Tensor

from tests.engine.test_compiling import MORE_PARTS, ON_POLICY, batches, learn_alike, learn_rollouts_alike
from tests.engine.test_gradient_step import Ours, Reference, assert_nets_close, small_net, square_loss
from tests.helpers.engine import torch_only
from tests.helpers.learning import PARTS, Spaces, assert_same, batch_of, made, parameters_of
from tests.helpers.tape import TapeCapture
from tests.policy import test_sac
from trainkit import (
    Adam,
    BCPolicy,
    Clip,
    ConfigError,
    ConservativePenalty,
    DiscreteBCQPolicy,
    DQNPolicy,
    ExpectedValue,
    MaxBackup,
    Policy,
    Target,
    load_policy,
)
from trainkit.core import tree
from trainkit.engine import cuda_graph, engine
from trainkit.errors import DeviceError, DivergedError
from trainkit.policy import base

IMAGES = spaces.Box(0, 255, (4, 36, 38), np.uint8)
ALL_PARTS = [
    *MORE_PARTS,
    pytest.param({"precision": "bf16", "double": True, "space": IMAGES, "channels_last": True}, id="bf16 images"),
]
N_WARM_UPS = cuda_graph._N_WARM_UPS
NAN = np.full(16, np.nan, np.float32)


@pytest.fixture
def taped(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the CPU record and play back."""
    monkeypatch.setattr(cuda_graph, "Capture", TapeCapture)
    monkeypatch.setattr(engine, "check_cuda_graph", lambda *given: None)
    monkeypatch.setattr(Policy, "_replay", _with_tensors(Policy._replay))
    monkeypatch.setattr(TapeCapture, "n_recorded", 0)


def _with_tensors(replay: Callable[..., Any]) -> Callable[..., Any]:
    """Hand over tensors, as on CUDA, in the place of the arrays that updates on the CPU are made of."""

    def tensor_of(leaf: Any) -> Any:
        return torch.from_numpy(leaf) if isinstance(leaf, np.ndarray) else leaf

    return lambda policy, given, *frames, step: replay(policy, tree.map_tree(tensor_of, given), *frames, step=step)


def never_recorded(monkeypatch: pytest.MonkeyPatch, **options: Any) -> DQNPolicy:
    """Make a policy that does what is recorded, and never records it."""
    policy = made(**options, engine="cuda_graph")
    assert policy._graph is not None
    monkeypatch.setattr(
        policy._graph,
        "_warm_up_or_record",
        lambda shapes, inputs, fixed, facts: policy._graph_steps(inputs, fixed, **facts),
    )
    return policy


def learn(policy: DQNPolicy, steps: range, **options: Any) -> list[Any]:
    return [policy.update(batch_of(16, seed=step, **options), step=step).read_priority() for step in steps]


# ---- the same numbers ----


@pytest.mark.fast_cases(5)
@pytest.mark.usefixtures("taped")
@pytest.mark.parametrize("parts", ALL_PARTS)
def test_a_q_learner_of_any_parts_learns_as_without(parts: dict[str, Any]) -> None:
    parts = {"target": Target(3, "updates")} | parts
    learn_alike(made(**parts, engine="cuda_graph"), torch_only(made(**parts)), batches(10, parts.get("space")))
    assert TapeCapture.n_recorded == 1


@pytest.mark.usefixtures("taped")
@pytest.mark.parametrize("parts", PARTS)
def test_a_recording_changes_no_bit(parts: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    one, other = made(**parts, engine="cuda_graph"), never_recorded(monkeypatch, **parts)
    assert_same(learn(one, range(10)), learn(other, range(10)))
    assert_same(one.training_state(), other.training_state())
    assert one.read_metrics() == other.read_metrics()
    assert TapeCapture.n_recorded == 1


@pytest.mark.usefixtures("taped")
def test_both_networks_of_bcq_learn_as_without() -> None:
    recorded, plain = (
        DiscreteBCQPolicy.for_envs(Spaces(), hidden=(8,), device="cpu", seed=0, engine=engine)
        for engine in ("cuda_graph", "torch")
    )
    learn_alike(recorded, plain, batches(8))
    assert TapeCapture.n_recorded == 1


@pytest.mark.usefixtures("taped")
def test_all_gradient_steps_of_sac_are_learned_as_without() -> None:
    recorded, plain = (test_sac.made(engine=engine) for engine in ("cuda_graph", "torch"))
    learn_alike(recorded, plain, [test_sac.rows(16, seed=seed) for seed in range(8)])
    assert TapeCapture.n_recorded == 1


@pytest.mark.usefixtures("taped")
def test_a_cloner_learns_as_without() -> None:
    options: dict[str, Any] = {"hidden": (8,), "device": "cpu", "seed": 0}
    recorded, plain = (BCPolicy.for_envs(Spaces(), engine=engine, **options) for engine in ("cuda_graph", "torch"))
    learn_alike(recorded, plain, batches(8))
    assert TapeCapture.n_recorded == 1


@pytest.mark.usefixtures("taped")
@pytest.mark.parametrize(("kind", "space", "options"), ON_POLICY)
def test_an_on_policy_learner_learns_as_without(kind: Any, space: Any, options: Any) -> None:
    learn_rollouts_alike(kind, 3, space, ("cuda_graph", "torch"), **options)
    assert TapeCapture.n_recorded == 1


@pytest.mark.usefixtures("taped")
def test_every_update_counts_once_those_that_warm_up_too() -> None:
    policy = made(engine="cuda_graph")
    for n_updates in range(1, N_WARM_UPS + 4):
        learn(policy, range(n_updates, n_updates + 1))
        moments = policy.training_state()["optimizers"]["network"]["state"]
        assert {float(moment["step"]) for moment in moments.values()} == {n_updates}


@pytest.mark.parametrize("clip", [None, Clip(0.5), Clip(0.2, by="norm"), Clip(0.02, by="value")], ids=str)
def test_a_step_that_looks_at_nothing_moves_like_torchs_adam(clip: Clip | None) -> None:
    net, adam = small_net(), Adam([(0, 1e-2), (30, 1e-3)], weight_decay=0.1)
    ours, reference = Ours(copy.deepcopy(net), adam, clip), Reference(net, adam, clip)
    for i in range(40):
        lr = torch.tensor(ours.step.lr(i), dtype=torch.float32)
        norm = float(ours.step(lambda i=i: square_loss(ours.net, i), step=i, lr=lr).norm)
        torch.testing.assert_close([norm], reference.train(range(i, i + 1)), rtol=1e-4, atol=1e-6)
    assert_nets_close(ours.net, reference.net)


# ---- what comes in and what goes out ----


@pytest.mark.usefixtures("taped")
def test_a_batch_may_be_overwritten_as_soon_as_update_returns() -> None:
    one, other = made(engine="cuda_graph"), made(engine="cuda_graph")
    for step in range(8):
        kept, spoilt = (batch_of(16, seed=step) for _ in range(2))
        one.update(kept, step=step)
        other.update(spoilt, step=step)
        spoilt.obs[:] = np.nan
        spoilt.reward[:] = np.nan
    assert_same(parameters_of(one), parameters_of(other))


@pytest.mark.usefixtures("taped")
def test_batches_stay_as_they_were() -> None:
    policy, given = made(engine="cuda_graph"), batches(8)
    for step, batch in enumerate(given):
        policy.update(batch, step=step)
    for batch, before in zip(given, batches(8), strict=True):
        assert_same([batch.obs, batch.reward], [before.obs, before.reward])


@pytest.mark.usefixtures("taped")
def test_priorities_may_be_read_after_the_next_updates() -> None:
    late, at_once = made(engine="cuda_graph"), made(engine="cuda_graph")
    results = [late.update(batch_of(16, seed=step), step=step) for step in range(8)]
    assert_same([result.read_priority() for result in results], learn(at_once, range(8)))


@pytest.mark.usefixtures("taped")
def test_batches_of_another_size_have_a_recording_of_their_own() -> None:
    sizes = [batch for n in (16, 5, 16, 5, 3) for batch in batches(4, n_rows=n)]
    learn_alike(made(engine="cuda_graph"), torch_only(made()), sizes)
    assert TapeCapture.n_recorded == 3


@pytest.mark.usefixtures("taped")
def test_acting_between_updates_changes_nothing() -> None:
    recorded, plain = made(noisy=True, engine="cuda_graph"), torch_only(made(noisy=True))
    for start, batch in enumerate(batches(8)):
        for policy in (recorded, plain):
            policy.act(batch.obs, explore=True)
        learn_alike(recorded, plain, [batch], start)


# ---- what is replaced ----


def load_all(policy: DQNPolicy) -> None:
    policy.load_training_state(copy.deepcopy(policy.training_state()))


def load_twice(policy: DQNPolicy) -> None:
    load_all(policy)
    load_all(policy)


def load_weights(policy: DQNPolicy) -> None:
    policy.load_weights({name: 0.5 * tensor for name, tensor in policy.state_dict().items()})


def assign(policy: DQNPolicy) -> None:
    state = {name: 0.5 * tensor for name, tensor in policy.state_dict().items()}
    policy.load_state_dict(state, assign=True)


def seed_again(policy: DQNPolicy) -> None:
    policy.start_streams(7)


def rewind_the_stream(policy: DQNPolicy) -> None:
    policy.load_streams_state(made(noisy=True).streams_state())


def move_the_target(policy: DQNPolicy) -> None:
    for parameter in policy.target_network.parameters():
        parameter.data = 0.5 * parameter.data


def replace_the_target(policy: DQNPolicy) -> None:
    policy.target_network = copy.deepcopy(policy.network).requires_grad_(False)


def observe(policy: DQNPolicy) -> None:
    policy.preprocess.normalizers[0].observe(torch.arange(20.0, device=policy.device).view(5, 4))
    policy.preprocess.normalizers[0].fold()


def forget_gradients(policy: DQNPolicy) -> None:
    policy.zero_grad()


IN_PLACE = [load_weights, rewind_the_stream, observe, forget_gradients]


def freeze_the_encoder(policy: DQNPolicy) -> None:
    policy.network.encoder.requires_grad_(False)  # type: ignore[operator, union-attr]


def charge_more(policy: DQNPolicy) -> None:
    policy.penalty = ConservativePenalty(1.0)


def follow_otherwise(policy: DQNPolicy) -> None:
    policy.backup = MaxBackup()


OTHER_PARTS = [freeze_the_encoder, charge_more, follow_otherwise]
ELSEWHERE = [load_all, load_twice, assign, seed_again, move_the_target, replace_the_target, *OTHER_PARTS]


@pytest.mark.fast_cases(5)
@pytest.mark.usefixtures("taped")
@pytest.mark.parametrize("meddle", [*IN_PLACE, *ELSEWHERE])
def test_training_continues_from_what_is_replaced(meddle: Callable[[DQNPolicy], None]) -> None:
    options: dict[str, Any] = {"noisy": True, "double": True, "normalize_obs": True}
    recorded, plain = made(**options, engine="cuda_graph"), torch_only(made(**options))
    given = batches(14)
    learn_alike(recorded, plain, given[:6])
    for policy in (recorded, plain):
        meddle(policy)
    learn_alike(recorded, plain, given[6:], 6)
    assert TapeCapture.n_recorded == (1 if meddle in IN_PLACE else 2)


@pytest.mark.usefixtures("taped")
def test_a_copy_learns_on_by_itself() -> None:
    one, plain = made(noisy=True, engine="cuda_graph"), torch_only(made(noisy=True))
    learn_alike(one, plain, batches(6))
    other = copy.deepcopy(one)
    learn_alike(other, copy.deepcopy(plain), batches(12)[6:])
    learn_alike(one, plain, batches(12)[6:])
    assert_same(parameters_of(one), parameters_of(other))


# ---- what goes wrong ----


@pytest.mark.usefixtures("taped")
def test_a_step_that_is_not_finite_is_skipped_and_reported_at_the_next_read() -> None:
    policy = made(engine="cuda_graph")
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
    policy = made(engine="cuda_graph")
    policy.on_nan = "skip"
    learn(policy, range(6))
    assert policy.update(batch_of(16, reward=NAN), step=6).read_priority() is None
    assert policy.update(batch_of(16), step=7).read_priority() is not None
    metrics = policy.read_metrics()
    assert np.isfinite(list(metrics.values())).all()
    assert metrics["skipped"] == pytest.approx(1 / 8)


class Hungry(MaxBackup):
    """A backup that runs out of memory when it is told to."""

    n_calls = 0

    def __call__(self, *given: Any) -> tuple[Tensor, Tensor]:
        type(self).n_calls += 1
        if type(self).n_calls == N_WARM_UPS + 1:
            raise torch.OutOfMemoryError("Tried to allocate 20 GiB")
        return super().__call__(*given)


@pytest.mark.usefixtures("taped")
def test_memory_that_runs_out_while_recording_is_told_as_such_and_nothing_is_freed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def empty_cache() -> None:
        pytest.fail("no memory may be freed while a graph is recorded")

    monkeypatch.setattr(torch.accelerator, "empty_cache", empty_cache)
    policy = made(backup=Hungry(), engine="cuda_graph")
    monkeypatch.setattr(Hungry, "n_calls", 0)
    monkeypatch.setattr(base, "CPU", torch.device("meta"))  # so that the CPU is a device whose memory may run out
    monkeypatch.setattr(base, "PinnedBatch", lambda arrays: arrays)
    learn(policy, range(N_WARM_UPS))
    with pytest.raises(DeviceError, match=r"cannot record an update, which does not fit .* lower batch_size"):
        learn(policy, range(1))
    monkeypatch.setattr(Hungry, "n_calls", 100)
    learn(policy, range(N_WARM_UPS + 2))


class Curious(MaxBackup):
    """A backup that looks at a number."""

    def __call__(self, *given: Any) -> tuple[Tensor, Tensor]:
        after, reward = super().__call__(*given)
        return after, reward * 2 if float(reward.sum()) > 0 else reward


@pytest.mark.usefixtures("taped")
def test_a_part_that_looks_at_a_number_is_refused_when_it_is_recorded() -> None:
    policy = made(backup=Curious(), engine="cuda_graph")
    learn(policy, range(N_WARM_UPS))
    before = parameters_of(policy)
    with pytest.raises(
        ConfigError, match="engine='cuda_graph' cannot record an update: a part of it waits for the device"
    ):
        learn(policy, range(1))
    assert_same(parameters_of(policy), before)
    learn(policy, range(N_WARM_UPS))
    assert all(tensor.isfinite().all() for tensor in parameters_of(policy).values())


def test_it_is_refused_without_cuda() -> None:
    with pytest.raises(ConfigError, match="engine='cuda_graph' needs a policy on CUDA, got device cpu: use 'auto'"):
        made(engine="cuda_graph")


@pytest.mark.usefixtures("taped")
def test_who_saved_a_policy_with_a_graph_needs_none_to_load_it(tmp_path: Path) -> None:
    policy = made(value=ExpectedValue("mse"), engine="cuda_graph")
    learn(policy, range(5))
    loaded = load_policy(policy.save(tmp_path / "saved"), device="cpu")
    assert loaded._graph is None
    assert_same(parameters_of(loaded), parameters_of(policy))


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

    def CUDAGraph(self) -> "Pretended":  # noqa: N802 - torch's name
        return self

    def register_generator_state(self, generator: Any) -> None:
        self.log.append(f"register {generator}")

    @contextmanager
    def graph(self, graph: Any, stream: "Stream", capture_error_mode: str) -> Iterator[None]:
        self.log.append(f"record on {stream.name}, {capture_error_mode}")
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
    for name in ("Stream", "current_stream", "stream", "device", "CUDAGraph", "graph"):
        monkeypatch.setattr(torch.cuda, name, getattr(pretended, name))
    log, capture = pretended.log, cuda_graph.Capture(torch.device("cuda"))

    assert capture.warm_up(lambda: log.append("work") or "done") == "done"  # type: ignore[func-returns-value]
    assert log == ["side waits for main", "enter side", "work", "leave side", "main waits for side"]
    log.clear()
    result, replay = capture.record(lambda: log.append("work") or "result", "generator")  # type: ignore[arg-type, func-returns-value]
    assert result == "result"
    assert log == ["register generator", "enter main", "record on side, thread_local", "work", "recorded", "leave main"]
    replay()
    assert log[-1] == "replay"
