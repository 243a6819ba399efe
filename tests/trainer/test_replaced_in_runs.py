"""What users' code replaces in the middle of a run is acted on in the next step, wherever a trainer calls that code."""

from collections.abc import Callable
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch

import trainkit as tk
from tests.helpers.engine import engines
from trainkit.core import user_code
from trainkit.engine.changes import Changes
from trainkit.trainer.callbacks.base import Callback

OF_UPDATES = "on_train_batch", "on_update_end"
OF_EPISODES = "on_episode_created", "on_episode_start", "on_episode_end"
EVENTS = (
    *("on_collect_start", *OF_EPISODES, "on_episode_step", "on_collect_end", *OF_UPDATES),
    *("on_evaluate_start", "on_evaluate_end", "on_epoch_end"),
)
AT_STEP = 50  # at which the user's code registers the hook; comparisons with torch, which look too, are at 32 and 64


class Steps(gym.Env[Any, Any]):
    """Episodes of some steps.

    Args:
        length: of an episode.
        on_reset: called by `reset`.
    """

    observation_space = gym.spaces.Box(-1.0, 1.0, (2,), np.float32)
    action_space = gym.spaces.Discrete(2)

    def __init__(self, length: int = 1_000, on_reset: Callable[[], object] = lambda: None) -> None:
        self.length, self.on_reset = length, on_reset

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        super().reset(seed=seed)
        self.n_steps = 0
        self.on_reset()
        return np.zeros(2, np.float32), {}

    def step(self, action: Any) -> Any:
        self.n_steps += 1
        return np.zeros(2, np.float32), 0.0, self.n_steps == self.length, False, {}


class Run:
    """A run whose greedy action is 0 until the user's code has registered a hook, and 1 from then on."""

    def __init__(self, kind: type[tk.DQNPolicy] = tk.DQNPolicy, *, length: int = 1_000, **options: Any) -> None:
        envs = tk.make_envs(lambda: Steps(length), 1)
        chosen: dict[str, Any] = {"hidden": (8,), "lr": 1e-12, "exploration": tk.EpsilonGreedy(0.0)}
        self.policy = kind.for_envs(envs, seed=1, device="cpu", **chosen)
        self.last_layer: Any = self.policy.network.heads.advantage.layers[-1]
        with torch.no_grad():
            self.last_layer.weight.zero_()
            self.last_layer.bias.copy_(torch.tensor([1_000.0, 0.0]))
        self.buffer = tk.ReplayBuffer(1_000)
        self.collector = tk.Collector(self.policy, envs, self.buffer)
        self.options = options
        self.changed_at: int | None = None

    def turn(self) -> None:
        """Turn the order of the values around, by a hook that no recorded program knows."""
        self.last_layer.register_forward_hook(lambda layer, given, values: values.flip(-1))

    def user(self, *_: Any) -> Any:
        """Register it in the first call from a step on."""
        if self.changed_at is None and self.collector.env_step >= AT_STEP:
            self.turn()
            self.changed_at = self.collector.env_step

    def evaluate(self) -> None:
        """Evaluate after every epoch."""
        self.options["test_collector"] = tk.Collector(self.policy, tk.make_envs(lambda: Steps(5), 1))
        self.options["episode_per_test"] = 1

    def train(self) -> None:
        """Train for a few short epochs."""
        settings: dict[str, Any] = {"batch_size": 4, "step_per_collect": 4, "learning_starts": 1_000}
        settings |= {"verbose": False, "show_progress": False}
        settings |= {"max_epoch": 3, "step_per_epoch": 40}
        tk.OffpolicyTrainer(self.policy, self.collector, **settings | self.options).run()

    def assert_acted_on(self) -> None:
        """Assert that the hook was registered in time, and that all actions after it show that."""
        assert getattr(self.policy.engine, "gave_up", None) is None
        action = np.concatenate([rows.action for rows in self.buffer.transitions()])
        assert self.changed_at is not None
        assert len(action) > self.changed_at + 5
        assert (action[: self.changed_at] == 0).all()
        assert (action[self.changed_at + 1 :] == 1).all()


@pytest.mark.parametrize("event", EVENTS)
def test_what_a_callback_replaces_is_acted_on(event: str) -> None:
    class Own(Callback):
        pass

    setattr(Own, event, lambda self, trainer, *arguments: run.user())
    run = Run(callbacks=[Own()], length=7 if event in OF_EPISODES else 1_000)
    if event in OF_UPDATES:
        run.options["learning_starts"] = 4
    if "evaluate" in event:
        run.evaluate()
    run.train()
    run.assert_acted_on()


def test_what_the_score_of_an_evaluation_within_an_epoch_replaces_is_acted_on() -> None:
    run = Run(compute_score_fn=lambda stats: run.user() or 0.0)
    own = tk.Collector(run.policy, tk.make_envs(lambda: Steps(5), 1))
    run.options["evaluation"] = tk.Evaluation(own, duration=1, every=10, unit="env_steps")
    run.train()
    run.assert_acted_on()


def test_what_a_score_of_training_episodes_replaces_is_acted_on() -> None:
    run = Run(length=7, compute_score_fn=lambda stats: run.user() or 0.0, stop_fn=lambda score: False)
    run.evaluate()
    run.options["test_in_train"] = True
    run.train()
    run.assert_acted_on()


@pytest.mark.parametrize("option", ["train_fn", "test_fn", "compute_score_fn", "stop_fn", "reward_metric"])
def test_what_a_function_replaces_is_acted_on(option: str) -> None:
    def returns(*given: Any) -> Any:
        run.user()
        return {"compute_score_fn": 0.0, "stop_fn": False, "reward_metric": given[0]}.get(option)

    run = Run(**{option: returns}, length=7 if option == "reward_metric" else 1_000)
    if option in ("test_fn", "compute_score_fn", "stop_fn"):
        run.evaluate()
    run.train()
    run.assert_acted_on()


def test_what_is_replaced_between_steps_is_acted_on() -> None:
    run = Run()
    run.collector.between_steps = run.user
    run.train()
    run.assert_acted_on()


def test_what_a_recorder_replaces_is_acted_on() -> None:
    class Own:
        def add(self, transition: Any) -> None:
            run.user()

        def cut(self, env_ids: Any) -> None: ...

        drop = cut

    run = Run()
    run.collector.recorders.append(Own())
    run.train()
    run.assert_acted_on()


def test_what_a_logger_replaces_is_acted_on() -> None:
    class Own:
        folder = None

        def write(self, step: int, numbers: Any) -> None:
            run.user()

        def describe(self, settings: Any) -> None: ...

        def close(self) -> None: ...

    run = Run(logger=Own(), log_every=10)
    run.train()
    run.assert_acted_on()


@pytest.mark.parametrize("does", ["act", "update"])
def test_where_torch_computes_the_networks_are_users_code(does: str) -> None:
    run = Run()
    run.policy.engine = "torch"
    run.collector.collect(n_step=10)
    batch = run.buffer.sample(4, horizon=run.policy.horizon)
    with user_code.known():
        before = user_code.moment()
        if does == "act":
            run.policy.act(batch.obs)
        else:
            run.policy.update(batch, step=10)
        assert user_code.moment() != before


def test_what_an_environment_replaces_at_a_reset_is_acted_on() -> None:
    run = Run()
    envs = tk.make_envs(lambda: Steps(7, run.user), 1)
    run.collector = tk.Collector(run.policy, envs, run.buffer)
    run.train()
    run.assert_acted_on()


def test_what_is_replaced_between_two_collects_is_acted_on() -> None:
    run = Run()
    run.collector.collect(n_step=AT_STEP)
    run.user()
    run.collector.collect(n_step=20)
    run.assert_acted_on()


def test_a_policy_of_the_users_own_class_may_replace_anything_anywhere() -> None:
    class Own(tk.DQNPolicy):
        def act(self, *given: Any, **options: Any) -> Any:
            run.user()
            return super().act(*given, **options)

    run = Run(Own)
    run.collector.collect(n_step=60)
    run.assert_acted_on()


@pytest.mark.skipif(not engines("numpy"), reason="only the numpy engine's programs are compared with their policy")
def test_within_an_epoch_a_policy_is_compared_when_code_has_run(monkeypatch: pytest.MonkeyPatch) -> None:
    looks: list[int] = []
    differs = Changes._differs
    monkeypatch.setattr(Changes, "_differs", lambda self: looks.append(1) or differs(self))
    run = Run(length=20)
    run.collector.collect(n_step=300)  # after the comparisons at 4, 8, 16 ... 256
    looks.clear()
    run.collector.collect(n_step=100)
    assert len(looks) == 100 // 20
