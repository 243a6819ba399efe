"""A policy that one thread trains, and another one uses."""

import copy
import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import trainkit as tk
from examples.two_agents import TwoPoles


class InThread(tk.Callback):
    """Calls a function in another thread after each update of the first ones, and waits for its end."""

    def __init__(self, function: Callable[[Any], object]) -> None:
        self._function, self.errors, self.n_calls = function, list[Exception](), 0

    def on_update_end(self, trainer: Any) -> None:
        if self.n_calls < 3:
            self.n_calls += 1
            thread = threading.Thread(target=self._call, args=(trainer.policy,))
            thread.start()
            thread.join(timeout=60)
            assert not thread.is_alive()

    def _call(self, policy: Any) -> None:
        try:
            self._function(policy)
        except Exception as error:  # noqa: BLE001  # looked at by the test
            self.errors.append(error)


def weights_after(function: Callable[[Any], object] | None) -> tuple[dict[str, Any], list[Exception]]:
    calls = InThread(function or (lambda policy: None))
    settings: dict[str, Any] = {"seed": 1, "max_epoch": 1, "step_per_epoch": 400, "hidden": (16,), "zoo": False}
    settings |= {"learning_starts": 100, "batch_size": 16, "n_envs": 2, "evaluation": None, "verbose": False}
    with tk.presets.rainbow("CartPole-v1", callbacks=calls, **settings) as trainer:
        trainer.run()
        assert calls.n_calls == 3
        return trainer.policy.get_weights(), calls.errors


def evaluate(policy: Any) -> object:
    return tk.evaluate(policy, "CartPole-v1", n_episode=2, n_envs=2, seed=5)


def test_evaluating_a_policy_in_a_thread_while_it_trains_is_an_error_and_changes_nothing() -> None:
    plain, _ = weights_after(None)
    disturbed, errors = weights_after(evaluate)
    assert [type(error) for error in errors] == [tk.errors.BusyError] * 3
    assert "copy.deepcopy(policy)" in str(errors[0])
    for name, array in plain.items():
        np.testing.assert_array_equal(array, disturbed[name])


def test_a_copy_is_evaluated_in_a_thread_without_effect_on_training() -> None:
    plain, _ = weights_after(None)
    disturbed, errors = weights_after(lambda policy: evaluate(copy.deepcopy(policy)))
    assert errors == []
    for name, array in plain.items():
        np.testing.assert_array_equal(array, disturbed[name])


def test_evaluating_a_policy_of_a_game_in_a_thread_while_all_train_is_an_error() -> None:
    envs = tk.make_envs(TwoPoles, 2, seed=3)
    policy: Any = tk.MultiAgentPolicy(
        {name: tk.DQNPolicy.for_envs(envs, hidden=(4,), device="cpu") for name in ("left", "right")}
    )
    buffer = tk.MultiAgentBuffer({name: tk.ReplayBuffer(400) for name in ("left", "right")})
    calls = InThread(lambda policy: evaluate(policy["left"]))
    settings: dict[str, Any] = {"max_epoch": 1, "step_per_epoch": 60, "batch_size": 8, "verbose": False, "seed": 1}
    with tk.OffpolicyTrainer(policy, tk.Collector(policy, envs, buffer), callbacks=calls, **settings) as trainer:
        trainer.run()
    assert [type(error) for error in calls.errors] == [tk.errors.BusyError] * 3
    assert evaluate(policy["left"])


def test_a_game_cannot_be_collected_while_a_thread_plays_with_one_of_its_policies() -> None:
    envs, alone = tk.make_envs(TwoPoles, 1, seed=3), tk.make_envs("CartPole-v1", 1, seed=1)
    members = {name: tk.DQNPolicy.for_envs(alone, hidden=(4,), seed=1) for name in ("left", "right")}
    game, one = tk.Collector(tk.MultiAgentPolicy(members), envs), tk.Collector(members["right"], alone)
    errors: list[Exception] = []

    def collect() -> None:
        try:
            game.collect(n_step=2)
        except tk.errors.BusyError as error:
            errors.append(error)

    def from_another_thread() -> None:
        thread = threading.Thread(target=collect)
        thread.start()
        thread.join(timeout=60)

    one.between_steps = from_another_thread
    one.collect(n_step=1)
    assert len(errors) == 1
    collect()
    assert game.env_step == 2


def test_two_threads_cannot_collect_with_one_policy() -> None:
    envs = tk.make_envs("CartPole-v1", 1, seed=1)
    policy = tk.DQNPolicy.for_envs(envs, hidden=(8,), seed=1)
    found: list[type[Exception]] = []
    first = tk.Collector(policy, envs)
    second = tk.Collector(policy, tk.make_envs("CartPole-v1", 1, seed=2))

    def collect() -> None:
        try:
            second.collect(n_step=1)
        except tk.errors.BusyError as error:
            found.append(type(error))

    def from_another_thread() -> None:
        if not found:
            thread = threading.Thread(target=collect)
            thread.start()
            thread.join(timeout=60)

    first.between_steps = from_another_thread
    first.collect(n_step=3)
    assert found == [tk.errors.BusyError]
    collect()  # afterwards, and in this thread, it collects
    assert second.env_step == 1
    assert len(found) == 1


def test_a_trainer_collects_and_evaluates_in_its_own_thread() -> None:
    settings: dict[str, Any] = {"seed": 1, "max_epoch": 1, "step_per_epoch": 100, "verbose": False, "zoo": False}
    trainer = tk.presets.dqn("CartPole-v1", **settings)
    done: list[int] = []
    thread = threading.Thread(target=lambda: done.append(trainer.run().env_step))
    thread.start()
    thread.join(timeout=100)
    assert done
    assert evaluate(trainer.policy)
    trainer.close()


@pytest.mark.parametrize("kind", ["predict", "get_weights", "deepcopy"])
def test_reading_a_policy_in_a_thread_while_it_trains_changes_nothing(kind: str) -> None:
    plain, _ = weights_after(None)
    reads: dict[str, Callable[[Any], object]] = {
        "predict": lambda policy: policy.predict(np.zeros((2, 4), np.float32)),
        "get_weights": lambda policy: policy.get_weights(),
        "deepcopy": copy.deepcopy,
    }
    disturbed, errors = weights_after(reads[kind])
    assert errors == []
    for name, array in plain.items():
        np.testing.assert_array_equal(array, disturbed[name])
