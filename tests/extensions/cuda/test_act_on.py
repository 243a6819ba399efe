"""Where a Q-learner acts: the same actions by its copy on the CPU.

The policies are on the CPU, where `copies` gives them a copy as those on CUDA have.
"""

import copy
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from gymnasium import spaces
from numpy.typing import NDArray
from torch import Tensor, nn

import trainkit as tk
from tests.helpers.learning import FOUR_NUMBERS, MASKED, PARTS, Spaces, assert_same, batch_of, made, small_net
from tests.helpers.of_extensions import learners_of_extensions
from trainkit.extensions.cuda import cpu_copy
from trainkit.extensions.cuda.cpu_copy import CpuCopy, copy_for
from trainkit.policy.acting_copy import ActOn

CUDA = torch.device("cuda")
IMAGES = spaces.Box(0, 255, (2, 36, 37), np.uint8)
KINDS = [
    *PARTS,
    pytest.param({"space": MASKED, "dueling": True, "normalize_obs": True}, id="masked dueling normalised"),
    pytest.param({"space": IMAGES, "hidden": None, "head": (8,)}, id="images"),
]


@pytest.fixture(autouse=True)
def copies(monkeypatch: pytest.MonkeyPatch) -> list[CpuCopy]:
    """Give policies on the CPU a copy too, and return all copies."""
    made: list[CpuCopy] = []
    monkeypatch.setattr(cpu_copy, "copy_for", lambda device: made.append(CpuCopy()) or made[-1])
    return made


def plain(space: Any = None, **options: Any) -> tk.DQNPolicy:
    """Make a policy that acts by its own network, seldom at random."""
    return made(space, **{"exploration": tk.EpsilonGreedy(0.2)} | options)


def copied(space: Any = None, **options: Any) -> tk.DQNPolicy:
    """Make a policy that acts by a copy, as on CUDA."""
    return plain(space, **options, act_on="cpu")


def live(policy: tk.DQNPolicy, n_turns: int, space: Any = None) -> list[Any]:
    """Act, observe and learn in turn; return the actions, those of evaluation too."""
    space, actions = FOUR_NUMBERS if space is None else space, []
    for turn in range(n_turns):
        for seed in range(2):
            obs = batch_of(6, seed=10 * turn + seed, space=space).obs
            actions += [policy.act(obs, step=turn, explore=True).action, policy.act(obs).action]
        rows, no = batch_of(6, seed=turn, space=space), np.zeros(6, np.bool_)
        if policy.observes:
            policy.observe(tk.Transition(rows.obs, rows.action, rows.reward, rows.next_obs, no, no, np.arange(6), {}))
        policy.update(rows, step=turn)
    return actions


# ---- no one notices who acted ----


@pytest.mark.fast_cases(4)
@pytest.mark.parametrize("kind", KINDS)
def test_a_life_is_the_same_wherever_it_acts(kind: dict[str, Any]) -> None:
    one, other = copied(**kind), plain(**kind)
    assert_same(live(one, 12, kind.get("space")), live(other, 12, kind.get("space")))
    assert_same(one.training_state(), other.training_state())
    assert_same(one.read_metrics(), other.read_metrics())


def test_the_copy_is_nobodys_module() -> None:
    one, other = copied(normalize_obs=True), plain(normalize_obs=True)
    for policy in (one, other):
        policy.act(batch_of(3).obs, explore=True)
    assert [name for name, _ in one.named_modules()] == [name for name, _ in other.named_modules()]
    for kept in ("state_dict", "get_weights"):
        assert_same(getattr(one, kept)(), getattr(other, kept)())
    assert [name for name, _ in one.named_buffers()] == [name for name, _ in other.named_buffers()]
    assert sum(1 for _ in one.parameters()) == sum(1 for _ in other.parameters())


def test_a_deep_copy_acts_by_weights_of_its_own() -> None:
    one = copied(noisy=True)
    live(one, 3)
    reference = copy.deepcopy(one)
    for policy in (one, reference):
        other = plain(noisy=True)
        other.load_training_state(copy.deepcopy(policy.training_state()))
        policy.load_training_state(copy.deepcopy(policy.training_state()))
        assert_same(live(policy, 4), live(other, 4))


def test_seeds_draw_the_same_weights_and_noise() -> None:
    one, other = copied(noisy=True, seed=None), plain(noisy=True, seed=None)
    obs = batch_of(4).obs
    for policy in (one, other):
        policy.act(obs)
        policy.seed(5)
    assert_same(*(policy.action_values(obs, explore=True) for policy in (one, other)))


def test_predictions_and_probabilities_follow_every_update() -> None:
    one, other = (
        policy(observation_space=FOUR_NUMBERS, exploration=tk.SoftQ(1.0), store_action_prob=True)
        for policy in (copied, plain)
    )
    for step in range(4):
        obs = batch_of(5, seed=step).obs
        assert_same(one.predict(obs), other.predict(obs))
        assert_same(one.action_probability(obs, explore=True), other.action_probability(obs, explore=True))
        assert_same(one.act(obs, explore=True).extras, other.act(obs, explore=True).extras)
        for policy in (one, other):
            policy.update(batch_of(8, seed=step), step=step)


def test_who_saved_it_says_nothing_of_where_it_acted(copies: list[CpuCopy], tmp_path: Path) -> None:
    policy = made(act_on="cpu")
    assert policy.config is not None
    assert "act_on" not in policy.config["arguments"]
    tk.load_policy(policy.save(tmp_path / "saved"), device="cpu")
    assert len(copies) == 1, "the loaded policy has none"


def test_a_run_is_the_same_run() -> None:
    def run(act_on: ActOn) -> Any:
        envs, tests = (tk.make_envs("CartPole-v1", n, seed=n) for n in (2, 3))
        policy = tk.DQNPolicy.for_envs(envs, hidden=(16,), double=True, normalize_obs=True, device="cpu", act_on=act_on)
        trainer = tk.OffpolicyTrainer(
            policy,
            tk.Collector(policy, envs, tk.PrioritizedReplayBuffer(500)),
            test_collector=tk.Collector(policy, tests),
            episode_per_test=3,
            max_epoch=2,
            step_per_epoch=200,
            step_per_collect=4,
            update_per_step=0.25,
            batch_size=16,
            seed=1,
            verbose=False,
            show_progress=False,
        )
        with trainer:
            results = list(trainer)
        return policy.training_state(), [result.stats["test/returns/mean"] for result in results]

    assert_same(run("cpu"), run("policy"))


def test_acting_whose_hooks_wait_stays_where_they_are() -> None:
    policy, delivered = copied(), []
    policy.network.register_forward_hook(lambda *received: delivered.append(received))
    for explore in (False, True):
        policy.action_values(batch_of(3).obs, explore=explore)
    assert len(delivered) == 2


# ---- what is refused ----


def test_a_policy_on_the_cpu_acts_there_without_a_copy() -> None:
    assert copy_for(torch.device("cpu")) is None
    assert copy_for(CUDA) is not None


def test_the_default_is_to_act_where_the_policy_is(copies: list[CpuCopy]) -> None:
    for options in ({}, {"act_on": "policy"}):
        made(**options)
    assert copies == []


@pytest.mark.parametrize("wanted", ["gpu", None, 1, True, ["cpu"]])
def test_another_place_is_refused(wanted: Any) -> None:
    with pytest.raises(tk.ConfigError, match=r"DQNPolicy\.act_on must be one of \['policy', 'cpu'\], got"):
        made(act_on=wanted)


class Cautious(tk.DQNPolicy):
    """A policy with values of its own."""

    def action_values(self, obs: Any, *, explore: bool = False) -> NDArray[np.float32]:
        return np.minimum(super().action_values(obs, explore=explore), np.float32(0.0))


@pytest.mark.parametrize("kind", [Cautious, *(kind for kind, _ in learners_of_extensions("TD_LEARNERS").values())])
def test_acting_of_ones_own_is_not_copied(kind: type[tk.DQNPolicy]) -> None:
    with pytest.raises(tk.ConfigError, match=r"\.act_on must be 'policy', got 'cpu': it has its own action_values"):
        kind.for_envs(Spaces(), hidden=(8,), device="cpu", act_on="cpu")
    kind.for_envs(Spaces(), hidden=(8,), device="cpu", act_on="policy")


class Uncopied(nn.Module):
    """A network that no copy of can answer."""

    def __init__(self) -> None:
        super().__init__()
        self.inner, self.is_original = small_net(), True

    def forward(self, features: Tensor) -> Tensor:
        if not self.is_original:
            raise RuntimeError("these weights are on cuda")
        numbers: Tensor = self.inner(features)
        return numbers

    def __deepcopy__(self, memo: dict[int, Any]) -> "Uncopied":
        reference = Uncopied()
        reference.is_original = False
        return reference


def test_a_network_whose_copy_cannot_answer_is_refused_when_it_is_bound() -> None:
    policy = tk.DQNPolicy(Uncopied(), device="cpu", act_on="cpu")
    policy.target_network = policy.network  # type: ignore[assignment]  # the other copy is not of interest
    refusal = r"act_on needs a network .* leave act_on out. RuntimeError: these weights are on cuda"
    for _ in range(2):
        with pytest.raises(tk.ConfigError, match=refusal):
            policy.check_spaces(*Spaces())


class Hidden(nn.Module):
    """A network with a number that is no buffer."""

    def __init__(self, number: Any) -> None:
        super().__init__()
        self.inner, self.number = small_net(), number

    def forward(self, features: Tensor) -> Tensor:
        numbers: Tensor = self.inner(features) * torch.as_tensor(self.number)
        return numbers


@pytest.mark.parametrize("number", [torch.tensor(1.0), np.ones(1, np.float32)])
def test_parts_that_may_change_unseen_are_not_copied_with_a_warning(
    number: Any, caplog: pytest.LogCaptureFixture
) -> None:
    policy = tk.DQNPolicy(Hidden(number), device="cpu", exploration=tk.Greedy(), act_on="cpu")
    policy.check_spaces(*Spaces())
    assert "parts with hooks are not copied" in caplog.text
    obs = batch_of(3).obs
    before = policy.action_values(obs)
    policy.network.module.number *= 10  # type: ignore[union-attr]  # of our network
    np.testing.assert_allclose(policy.action_values(obs), 10 * before, rtol=1e-5)


def test_a_plain_number_is_seen_when_it_is_replaced(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[int] = []
    own = CpuCopy.action_values
    monkeypatch.setattr(CpuCopy, "action_values", lambda *given, **facts: calls.append(1) or own(*given, **facts))
    policy = tk.DQNPolicy(Hidden(1.0), device="cpu", exploration=tk.Greedy(), act_on="cpu")
    obs = batch_of(3).obs
    before = policy.action_values(obs)
    assert calls
    policy.network.module.number = 10.0  # type: ignore[union-attr]  # of our network
    np.testing.assert_allclose(policy.action_values(obs), 10 * before, rtol=1e-5)
