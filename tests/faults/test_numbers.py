"""Nan and infinity stop before the weights, and say where: FAULTS 1 to 3, 19, 58, 62, 63."""

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch

import trainkit as tk
from tests.helpers.accelerator import load_pretend_device
from tests.helpers.learning import FOUR_NUMBERS, Spaces, add_to, batch_of, made, parameters_of
from tests.trainer.toys import Walk, make_onpolicy_trainer, make_trainer
from trainkit.policy.update_result import DivergenceGuard, MeanMetrics

NAN, INF = float("nan"), float("inf")


class Spoilt(Walk):
    """Walk, and spoil one value of the 30th step."""

    def __init__(self, what: str, value: float) -> None:
        super().__init__()
        self.what, self.value, self.n_steps = what, value, 0

    def step(self, action: int) -> Any:
        obs, reward, terminated, truncated, info = super().step(action)
        self.n_steps += 1
        if self.n_steps == 30:
            if self.what == "reward":
                reward = self.value
            else:
                obs = np.array([obs[0], self.value], np.float32)
        return obs, reward, terminated, truncated, info


@pytest.mark.one_of_each
@pytest.mark.parametrize(
    ("what", "value"), [("reward", NAN), ("reward", INF), ("observation", NAN), ("observation", -INF)]
)
@pytest.mark.parametrize("kind", ["dqn", "ppo", "sac"])
def test_what_an_environment_spoils_never_reaches_the_weights(kind: str, what: str, value: float) -> None:
    trainer = trainer_of(kind, what, value)
    with pytest.raises(tk.errors.BadEnvDataError, match=rf"env 0.*{what}.* at episode \d+ step \d+"):
        trainer.run()
    assert all(bool(torch.isfinite(one).all()) for one in trainer.policy.parameters())
    assert all(np.isfinite(rows.reward).all() and np.isfinite(rows.obs).all() for rows in stored(trainer))


def trainer_of(kind: str, what: str, value: float) -> Any:
    quiet: dict[str, Any] = {"max_epoch": 3, "step_per_epoch": 24, "verbose": False, "show_progress": False, "seed": 1}
    if kind == "sac":
        envs = tk.make_envs(lambda: Pushed(what, value))
        policy: Any = tk.SACPolicy.for_envs(envs, hidden=(4,), device="cpu")
    else:
        envs = tk.make_envs(lambda: Spoilt(what, value))
        policy = {"dqn": tk.DQNPolicy, "ppo": tk.PPOPolicy}[kind].for_envs(envs, hidden=(4,), device="cpu")
    if kind == "ppo":
        train = tk.Collector(policy, envs, tk.RolloutBuffer())
        return tk.OnpolicyTrainer(policy, train, step_per_collect=12, batch_size=4, **quiet)
    return tk.OffpolicyTrainer(policy, tk.Collector(policy, envs, tk.ReplayBuffer(60)), batch_size=4, **quiet)


class Pushed(Spoilt):
    """The same, pushed by a number."""

    action_space = type(FOUR_NUMBERS)(-1.0, 1.0, (1,), np.float32)

    def step(self, action: Any) -> Any:
        return super().step(int(action[0] > 0))


def stored(trainer: Any) -> Iterator[tk.Transition]:
    return iter(()) if isinstance(trainer.buffer, tk.RolloutBuffer) else trainer.buffer.transitions()


# ---- updates ----


def spoilt_batch() -> tk.TransitionBatch:
    return batch_of(4, reward=np.array([1.0, NAN, 0.0, 1.0], np.float32), slots=np.array([7, 8, 9, 3]))


def test_an_update_that_is_not_finite_is_skipped_and_reports_why() -> None:
    policy = made(lr=0.25)
    policy.update(batch_of(4), step=1)
    before = parameters_of(policy)
    with pytest.raises(
        tk.errors.DivergedError, match=r"DQNPolicy: update 2 at step 5 .* at lr 0.25; it was not taken"
    ) as caught:
        policy.update(spoilt_batch(), step=5)
    facts = caught.value.facts
    assert (facts["update"], facts["step"], facts["lr"]) == (2, 5, 0.25)
    assert not np.isfinite(facts["loss"])
    np.testing.assert_array_equal(facts["slots"], [7, 8, 9, 3])
    torch.testing.assert_close(parameters_of(policy), before, rtol=0, atol=0)
    assert policy.n_updates == 1


def test_other_errors_of_divergence_have_no_facts() -> None:
    assert tk.errors.DivergedError("x").facts == {}


@pytest.mark.parametrize("kind", [tk.DQNPolicy, tk.SACPolicy])
def test_a_skipped_update_changes_no_weight_no_moment_and_no_mean(kind: Any) -> None:
    def run(*rewards: float) -> Any:
        space = type(FOUR_NUMBERS)(-1.0, 1.0, (2,), np.float32) if kind is tk.SACPolicy else None
        policy = kind.for_envs(
            Spaces() if space is None else Spaces(FOUR_NUMBERS, space), hidden=(8,), device="cpu", seed=0
        )
        policy.on_nan = "skip"
        for reward in rewards:
            action = {} if space is None else {"action": np.zeros((4, 2), np.float32)}
            policy.update(batch_of(4, reward=np.full(4, reward, np.float32), **action), step=1)
        return policy

    spoilt, fine = run(1.0, NAN), run(1.0)
    assert spoilt.n_updates == 2
    metrics, expected = spoilt.read_metrics(), fine.read_metrics()
    assert metrics.pop("skipped") == 0.5
    assert expected.pop("skipped") == 0.0
    metrics.pop("target_followed", None), expected.pop("target_followed", None)
    assert metrics == pytest.approx(expected)
    if kind is tk.DQNPolicy:  # of SAC the actor learns although the critics did not
        torch.testing.assert_close(parameters_of(spoilt), parameters_of(fine), rtol=0, atol=0)
    assert all(bool(torch.isfinite(one).all()) for one in spoilt.parameters())


def test_a_skipped_update_teaches_no_priority() -> None:
    policy = made()
    policy.on_nan = "skip"
    assert policy.update(spoilt_batch(), step=1).read_priority() is None
    assert policy.update(batch_of(4), step=2).read_priority() is not None


def test_ten_in_a_row_pass_and_the_eleventh_does_not() -> None:
    policy = made()
    policy.on_nan = "skip"
    for _ in range(10):
        policy.update(spoilt_batch(), step=1)
    policy.update(batch_of(4), step=1)
    for _ in range(10):
        policy.update(spoilt_batch(), step=1)
    with pytest.raises(tk.errors.DivergedError, match=r"11 updates in a row up to update 22 .* lets 10 pass"):
        policy.update(spoilt_batch(), step=1)
    policy.update(batch_of(4), step=1)  # and on it goes, for who wants it


def test_skips_are_counted_without_synchronization() -> None:
    guard = DivergenceGuard("Thing", torch.device("cpu"))
    for is_lost in [1.0] * 11 + [0.0]:
        masked = guard.mask_skipped({"loss": torch.tensor(NAN if is_lost else 2.0), "skipped": torch.tensor(is_lost)})
        assert masked["loss"] == (0.0 if is_lost else 2.0)
    with pytest.raises(tk.errors.DivergedError, match="11 updates in a row up to update 12"):
        guard.check_skipped(12)
    guard.check_skipped(13)


@pytest.mark.parametrize("on_nan", ["raise", "skip"])
def test_without_synchronization_an_update_is_reported_at_the_next_query(on_nan: Any) -> None:
    policy = made(device=load_pretend_device().device)
    policy.on_nan = on_nan

    def update(factor: float) -> None:
        parameter = next(policy.network.parameters())
        policy.minimize("network", lambda: (parameter * factor).sum(), step=1)
        policy.end_update(step=1)

    update(1.0)
    policy.check_divergence()
    for _ in range(11):
        update(NAN)
    message = {"raise": "among updates 1 to 12 was not finite", "skip": "11 updates in a row up to update 12"}[on_nan]
    policy.check_divergence()  # which starts to read what the next call knows
    with pytest.raises(tk.errors.DivergedError, match=message):
        policy.check_divergence()
    policy.check_divergence()
    policy.check_divergence()
    update(1.0)
    assert np.isfinite(policy.read_metrics()["loss"])


def test_means_leave_out_what_was_skipped() -> None:
    meter = MeanMetrics()
    for loss, skipped in ((2.0, 0.0), (0.0, 1.0), (4.0, 0.0), (0.0, 1.0)):
        add_to(meter, {"loss": torch.tensor(loss), "skipped": torch.tensor(skipped)}, lr=0.1)
    assert meter.total("skipped") == 2
    assert meter.read() == pytest.approx({"loss": 3.0, "skipped": 0.5, "lr": 0.1})
    add_to(meter, {"loss": torch.tensor(0.0), "skipped": torch.tensor(1.0)})
    assert meter.read() == {"skipped": 1.0}


def spoil(trainer: Any, every: Callable[[int], bool]) -> None:
    """Let the network give nan in the passes with gradients, one per update, of some numbers."""
    n_passes = 0

    def spoilt(_: Any, features: Any, output: Any) -> Any:
        nonlocal n_passes
        n_passes += torch.is_grad_enabled()
        is_spoilt = torch.is_grad_enabled() and every(n_passes)
        return type(output)(output[0] * NAN, *output[1:]) if is_spoilt else output

    trainer.policy.network.register_forward_hook(spoilt)


@pytest.mark.parametrize("make", [make_trainer, make_onpolicy_trainer])
def test_a_trainer_stops_at_an_update_or_skips_it(make: Any) -> None:
    stops, skips = make(), make()
    skips.policy.on_nan = "skip"
    spoil(stops, lambda number: number == 5)
    spoil(skips, lambda number: number % 5 == 0)
    with pytest.raises(tk.errors.DivergedError, match="update 5 at step"):
        stops.run()
    stops.run()  # the trainer stays usable: the fifth update is taken from another batch
    assert stops.info.epoch == 3
    result = next(skips)
    assert result.stats["update/skipped"] == pytest.approx(0.2, abs=0.1)
    skips.run()
    for trainer in (stops, skips):
        assert all(bool(torch.isfinite(one).all()) for one in trainer.policy.parameters())


def test_a_trainer_queries_once_per_collect(monkeypatch: pytest.MonkeyPatch) -> None:
    trainer = make_trainer()
    queries = []
    monkeypatch.setattr(trainer.policy, "check_divergence", lambda: queries.append(trainer.env_step))
    next(trainer)
    assert queries == list(range(2, 25, 2))


def test_on_nan_is_raise_or_skip() -> None:
    policy = make_trainer().policy
    with pytest.raises(tk.ConfigError, match=r"DQNPolicy.on_nan must be one of .* did you mean 'skip'"):
        policy.on_nan = "skp"
    assert policy.on_nan == "raise"


def test_a_preset_sets_what_its_policy_does_after_an_update_that_is_not_finite() -> None:
    with tk.presets.dqn("CartPole-v1", on_nan="skip", verbose=False) as trainer:
        assert trainer.policy.on_nan == "skip"
    with pytest.raises(tk.ConfigError, match=r"presets\.dqn\.on_nan must be 'raise' or 'skip', got 'skp'"):
        tk.presets.dqn("CartPole-v1", on_nan="skp")  # type: ignore[arg-type]
