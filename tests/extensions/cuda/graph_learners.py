"""Policies that learn by CUDA graphs on the pretend device, and what must equal torch."""

import copy
from collections import Counter
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from torch import Tensor

from tests.helpers import rollouts
from tests.helpers.learning import (
    FOUR_NUMBERS,
    Spaces,
    assert_same,
    batch_of,
    made,
    observations,
)
from tests.helpers.tape import TapeCapture
from tests.pretend import DeviceCounts, PretendDevice
from trainkit import (
    ConservativePenalty,
    DQNPolicy,
    MaxBackup,
)
from trainkit.policy.learning import Learning

DEVICE = "pretend"
N_WARM_UPS = 3  # calls before a recording
NAN = np.full(16, np.nan, np.float32)


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


def check_that_updates_are_those_of_torch_in_one_copy_and_one_launch(
    learner: Learner, taped: PretendDevice, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Only a target network that moves in every update, and the columns of a rollout, take further launches."""
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
        assert outside.pop("aten::lerp", 0) == n_moved
        assert set(outside) <= ({"aten::copy_"} if learner.is_on_policy else set())


def check_that_acting_has_the_bits_of_torch_and_waits_once(learner: Learner, taped: PretendDevice) -> None:
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


class Curious(MaxBackup):
    """A backup that reads a number."""

    def __call__(self, *given: Any) -> tuple[Tensor, Tensor]:
        after, reward = super().__call__(*given)
        return after, reward * 2 if float(reward.sum()) > 0 else reward
