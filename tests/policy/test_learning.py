"""The books of learning: several gradient steps and targets, what they show, and what a bad step leaves."""

import copy
import math
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from tests.helpers.learning import assert_same, linear, parameters_of
from trainkit import Adam, Clip, Policy, Target
from trainkit.errors import DeviceError, DivergedError
from trainkit.policy import UpdateResult, base


class Several(Policy):
    """Pull the weights [1, 2] of each module towards goals, module by module, at learning rates of their own."""

    def __init__(self, names: tuple[str, ...] = ("actor", "critic"), **options: Any) -> None:
        super().__init__(device="cpu", seed=0)
        self.names = names
        for i, name in enumerate(names):
            setattr(self, name, linear([[0.0, 0.0]]).requires_grad_(True))
            getattr(self, name).bias.requires_grad_(False)
            self.add_gradient_step(name, getattr(self, name), Adam([(0, 0.1 * (i + 1)), (100, 0.0)]), **options)
            spec = Target(every=i + 1, unit="updates")
            setattr(self, f"{name}_target", self.add_target(name, getattr(self, name), spec))

    def weight(self, name: str) -> Tensor:
        module = getattr(self, name)
        assert isinstance(module, nn.Linear)
        return module.weight

    def pull(self, step: int = 0, **goals: float) -> UpdateResult:
        for name in self.names:
            goal = goals.get(name, 1.0)
            self.minimize(name, lambda name=name, goal=goal: ((self.weight(name) - goal) ** 2).sum(), step=step)
        return self.end_update(step=step, priority=torch.ones(3), extra=torch.tensor(5.0))


class TestMetrics:
    def test_of_several_gradient_steps_carry_their_names(self) -> None:
        policy = Several()
        policy.pull(actor=3.0, critic=4.0)

        # Two weights at 0: losses 2 * 9 and 2 * 16, gradients 2 * 3 and 2 * 4 in two places.
        assert policy.read_metrics() == pytest.approx(
            {
                "actor_loss": 18.0,
                "actor_grad_norm": 6 * math.sqrt(2),
                "actor_lr": 0.1,
                "critic_loss": 32.0,
                "critic_grad_norm": 8 * math.sqrt(2),
                "critic_lr": 0.2,
                "extra": 5.0,
                "target_followed": 1 / 2,  # one follows after every update, the other after every second
            }
        )

    def test_of_a_single_gradient_step_need_no_name(self) -> None:
        policy = Several(("actor",))
        policy.pull(actor=3.0)

        assert policy.read_metrics().keys() == {"loss", "grad_norm", "lr", "extra", "target_followed"}

    def test_are_means_over_updates_and_restart(self) -> None:
        policy = Several(("actor",))
        policy.pull(step=0)
        policy.pull(step=50)
        assert policy.read_metrics()["lr"] == pytest.approx((0.1 + 0.05) / 2)
        assert policy.read_metrics() == {}
        policy.pull(step=100)

        assert policy.read_metrics()["lr"] == 0.0

    def test_grad_norm_is_of_before_the_clip(self) -> None:
        policy = Several(("actor",), clip=Clip(0.5))
        policy.pull(actor=3.0)

        assert policy.read_metrics()["grad_norm"] == pytest.approx(6 * math.sqrt(2))


class TestUpdates:
    def test_move_each_module_by_its_own_step(self) -> None:
        policy = Several()
        policy.pull(actor=3.0, critic=-4.0)

        assert policy.weight("actor").tolist() == [pytest.approx([0.1, 0.1])]  # Adam's first step is its learning rate
        assert policy.weight("critic").tolist() == [pytest.approx([-0.2, -0.2])]

    def test_are_counted_and_remember_the_step(self) -> None:
        policy = Several()
        for step in (3, 9):
            policy.pull(step=step)

        assert (policy.n_updates, policy.last_step) == (2, 9)

    def test_let_every_target_follow_by_its_own_clock_after_the_step(self) -> None:
        policy = Several()
        same = []
        for step in range(4):
            policy.pull(step=step)
            same.append([torch.equal(policy.weight(name), policy.weight(f"{name}_target")) for name in policy.names])

        assert same == [[True, False], [True, True], [True, False], [True, True]]

    def test_hand_priorities_on(self) -> None:
        assert Several().pull().read_priority().tolist() == [1, 1, 1]

    def test_without_priorities_have_none(self) -> None:
        policy = Several(("actor",))
        policy.minimize("actor", lambda: policy.weight("actor").sum(), step=0)

        assert policy.end_update(step=0).read_priority() is None

    def test_may_take_one_gradient_step_several_times(self) -> None:
        policy = Several(("actor",))
        for goal in (3.0, 4.0):
            policy.minimize("actor", lambda goal=goal: ((policy.weight("actor") - goal) ** 2).sum(), step=0)
        policy.end_update(step=0)

        assert policy.n_updates == 1
        assert policy.read_metrics()["loss"] == pytest.approx(2 * 3.9**2)  # the last one's, after a step of 0.1


class TestDivergence:
    def test_of_the_first_step_leaves_nothing_moved_and_nothing_noted(self) -> None:
        policy, straight = Several(), Several()
        for one in (policy, straight):
            one.pull(step=1)
        before = copy.deepcopy(policy.training_state())
        with pytest.raises(DivergedError) as stop:
            policy.pull(step=7, actor=math.nan)

        assert_same(policy.training_state(), before)
        for part in ("Several: update 2 at step 7", "gradient norm nan", "loss nan", "was not taken"):
            assert part in str(stop.value)
        for one in (policy, straight):
            one.pull(step=2)
        assert_same(policy.training_state(), straight.training_state())
        assert policy.read_metrics() == straight.read_metrics()

    def test_of_a_later_step_leaves_its_own_module_and_the_books_as_they_were(self) -> None:
        policy = Several()
        critic = parameters_of(policy.critic)
        with pytest.raises(DivergedError):
            policy.pull(critic=math.inf)

        assert_same(parameters_of(policy.critic), critic)
        assert (policy.n_updates, policy.last_step) == (0, 0)
        assert policy.read_metrics() == {}

    def test_of_a_later_step_notes_nothing_of_the_steps_before_it(self) -> None:
        policy = Several()
        with pytest.raises(DivergedError):
            policy.pull(critic=math.inf)
        policy.minimize("critic", lambda: policy.weight("critic").sum(), step=0)
        policy.end_update(step=0)

        assert "actor_loss" not in policy.read_metrics()

    def test_seen_only_at_the_read_sums_the_steps_not_taken_and_names_the_updates(self) -> None:
        policy = Several()
        policy.pull()
        policy.read_metrics()
        policy._device = torch.device("meta")  # any but the CPU: nothing waits for the numbers there
        for goals in ({}, {"actor": math.nan}, {"critic": math.nan}, {}):
            policy.pull(**goals)

        with pytest.raises(DivergedError, match="Several: a loss or gradient among updates 2 to 5 was not finite"):
            policy.read_metrics()
        policy.pull()
        assert policy.read_metrics().keys() == {
            *(f"{name}_{what}" for name in policy.names for what in ("loss", "grad_norm", "lr")),
            "extra",
            "target_followed",
        }

    def test_of_one_step_is_not_hidden_by_a_good_one_after_it(self) -> None:
        policy = Several()
        policy._device = torch.device("meta")
        policy.pull(actor=math.nan)

        with pytest.raises(DivergedError):
            policy.read_metrics()


class TestState:
    def test_continues_bit_by_bit_with_all_steps_and_targets(self) -> None:
        straight, resumed = Several(), Several()
        for step in range(5):
            straight.pull(step=step, actor=2.0, critic=3.0)
        resumed.pull(step=50)  # it may have lived before
        resumed.read_metrics()
        straight.read_metrics()
        resumed.load_training_state(copy.deepcopy(straight.training_state()))
        assert_same(resumed.training_state(), straight.training_state())
        for step in range(5, 10):
            for policy in (straight, resumed):
                policy.pull(step=step, actor=2.0, critic=3.0)

        assert_same(resumed.training_state(), straight.training_state())
        assert resumed.read_metrics() == straight.read_metrics()

    def test_names_steps_and_targets(self) -> None:
        state = Several().training_state()

        assert state["optimizers"].keys() == state["targets"].keys() == {"actor", "critic"}


# ---- memory ----


class Hungry(Several):
    """Run out of memory in the first looks at a loss."""

    def __init__(self, n_failures: int) -> None:
        super().__init__(("actor",))
        self.n_left = n_failures

    def pull(self, step: int = 0, **goals: float) -> UpdateResult:
        def loss() -> Tensor:
            value = ((self.weight("actor") - 3.0) ** 2).sum()
            if self.n_left:
                self.n_left -= 1
                value.backward()  # type: ignore[no-untyped-call]  # torch's own
                raise torch.OutOfMemoryError("Tried to allocate 20.00 GiB")
            return value

        self.minimize("actor", loss, step=step)
        return self.end_update(step=step)


@pytest.fixture
def on_a_device(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let policies take the CPU for a device whose memory may run out."""
    monkeypatch.setattr(base, "CPU", torch.device("meta"))


@pytest.mark.usefixtures("on_a_device")
@pytest.mark.parametrize("n_before", [0, 3])
def test_memory_that_runs_out_once_is_given_back_and_the_update_taken(
    n_before: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    given_back: list[bool] = []
    monkeypatch.setattr(torch.accelerator, "empty_cache", lambda: given_back.append(True))
    short, plain = Hungry(0), Hungry(0)
    for policy in (short, plain):
        for _ in range(n_before):
            policy.pull()
    short.n_left = 1
    for policy in (short, plain):
        policy.pull()
        policy.pull()
    assert given_back == [True]
    assert_same(parameters_of(short), parameters_of(plain))
    assert short.read_metrics() == plain.read_metrics()


@pytest.mark.usefixtures("on_a_device")
@pytest.mark.parametrize("n_before", [0, 3])
def test_running_out_of_memory_twice_is_an_error_that_moves_no_weight(
    n_before: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.accelerator, "empty_cache", lambda: None)
    policy = Hungry(0)
    for _ in range(n_before):
        policy.pull()
    before = copy.deepcopy(parameters_of(policy))
    policy.n_left = 2
    received = rf"Hungry: update {n_before + 1} at step 7 does not fit .* lower batch_size.*Tried to allocate 20"
    with pytest.raises(DeviceError, match=received):
        policy.pull(step=7)
    assert_same(parameters_of(policy), before)
    assert policy.n_updates == n_before
    policy.pull()
    assert policy.n_updates == n_before + 1
