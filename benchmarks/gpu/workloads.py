"""The updates that are measured: policies, and batches of made-up rows."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from gymnasium import Space, spaces
from torch.utils.flop_counter import FlopCounterMode

import trainkit as tk
from trainkit.buffer import Rollout
from trainkit.core.spaces import Spaces

FRAMES = spaces.Box(0, 255, (4, 84, 84), np.uint8)
SIX = spaces.Discrete(6)
NUMBERS = spaces.Box(-10.0, 10.0, (17,), np.float32)  # HalfCheetah's
FORCES = spaces.Box(-1.0, 1.0, (6,), np.float32)
MINIBATCHES = 8  # of a rollout, which is learned from `REPEAT` times
REPEAT = 4
COUNTED_ROWS = 4

Update = Callable[[], Any]


@dataclass(frozen=True, kw_only=True)
class Workload:
    """A policy and the spaces that it learns in.

    Args:
        name: of the table.
        policy: its class.
        options: of `for_envs`.
        obs, action: the spaces.
    """

    name: str
    policy: Any
    options: dict[str, Any]
    obs: Space[Any]
    action: Space[Any]

    def make(self, device: str, *, engine: str = "torch", precision: str = "float32", **options: Any) -> Any:
        """Return a policy."""
        at = Spaces(observation_space=self.obs, action_space=self.action)
        return self.policy.for_envs(
            at, device=device, engine=engine, precision=precision, seed=1, **self.options, **options
        )

    def updates(self, policy: Any, n_rows: int) -> Update:
        """Return a function that takes one update with rows that are there already."""
        if isinstance(policy, tk.PPOPolicy):
            learning = self._minibatches(policy, n_rows)
            return lambda: next(learning)
        batches = [self.batch(n_rows, seed) for seed in range(4)]
        state = {"n": 0}

        def update() -> None:
            policy.update(batches[state["n"] % 4], step=state["n"])
            state["n"] += 1

        return update

    def batch(self, n_rows: int, seed: int) -> tk.TransitionBatch:
        """Make up a batch."""
        rng = np.random.default_rng(seed)
        ones = np.ones(n_rows, np.float32)
        return tk.TransitionBatch(
            obs=drawn(self.obs, n_rows, rng),
            action=drawn(self.action, n_rows, rng),
            reward=rng.choice([-1.0, 0.0, 1.0], n_rows).astype(np.float32),
            discount=0.99 * ones,
            next_obs=drawn(self.obs, n_rows, rng),
            weight=ones,
            slots=np.arange(n_rows),
        )

    def rollout(self, n_rows: int, n_envs: int = 8) -> Rollout:
        """Make up a rollout of `MINIBATCHES` times so many rows, without an end of an episode but the last."""
        rng, n_steps = np.random.default_rng(0), MINIBATCHES * n_rows // n_envs
        ended = np.zeros((n_steps, n_envs), np.bool_)
        ended[-1] = True

        def column(space: Space[Any]) -> Any:
            rows = drawn(space, n_steps * n_envs, rng)
            return rows.reshape(n_steps, n_envs, *rows.shape[1:])

        action, numbers = column(self.action), np.zeros((n_steps, n_envs), np.float32)
        return Rollout(
            obs=column(self.obs),
            action=action,
            reward=rng.normal(size=(n_steps, n_envs)).astype(np.float32),
            terminated=np.zeros((n_steps, n_envs), np.bool_),
            ended=ended,
            n_rows=np.full(n_envs, n_steps),
            last_rows=np.arange((n_steps - 1) * n_envs, n_steps * n_envs),
            last_obs=drawn(self.obs, n_envs, rng),
            extras={"log_prob": numbers - 5.0, "value": numbers, "policy_action": action},
        )

    def _minibatches(self, policy: Any, n_rows: int) -> Iterator[Any]:
        rollout = self.rollout(n_rows)
        while True:
            yield from policy.learn(rollout, step=0, batch_size=n_rows, repeat=REPEAT)

    def flops(self, n_rows: int) -> float:
        """Count the floating-point operations of an update's products, by torch's counter on the CPU."""
        update = self.updates(self.make("cpu"), COUNTED_ROWS)
        update()  # PPO's first one computes advantages
        with FlopCounterMode(display=False) as counter:
            update()
        return counter.get_total_flops() * n_rows / COUNTED_ROWS

    def n_parameters(self) -> int:
        """Count the parameters that are trained."""
        return sum(parameter.numel() for parameter in self.make("cpu").parameters() if parameter.requires_grad)


def drawn(space: Space[Any], n_rows: int, rng: np.random.Generator) -> Any:
    """Draw elements [n_rows, ...] of a space."""
    if isinstance(space, spaces.Discrete):
        return rng.integers(int(space.n), size=n_rows)
    assert isinstance(space, spaces.Box)
    if space.dtype == np.uint8:
        return rng.integers(0, 255, (n_rows, *space.shape), np.uint8)
    return rng.uniform(-1.0, 1.0, (n_rows, *space.shape)).astype(np.float32)


TARGET = tk.Target(2_000, "updates")
WORKLOADS = [
    Workload(
        name="DQN, 256-256",
        policy=tk.DQNPolicy,
        options={"hidden": (256, 256), "double": True, "target": TARGET},
        obs=NUMBERS,
        action=SIX,
    ),
    Workload(
        name="DQN, Nature CNN",
        policy=tk.DQNPolicy,
        options={"double": True, "target": TARGET},
        obs=FRAMES,
        action=SIX,
    ),
    Workload(
        name="Rainbow, Nature CNN",
        policy=tk.DQNPolicy,
        options={
            "double": True,
            "dueling": True,
            "noisy": True,
            "value": tk.CategoricalValue(51, -10, 10),
            "target": TARGET,
        },
        obs=FRAMES,
        action=SIX,
    ),
    Workload(
        name="IQN, Impala x2",
        policy=tk.DQNPolicy,
        options={"encoder": "impala_x2", "value": tk.ImplicitQuantileValue(64, target_quantiles=64), "target": TARGET},
        obs=FRAMES,
        action=SIX,
    ),
    Workload(name="SAC, 256-256", policy=tk.SACPolicy, options={"hidden": (256, 256)}, obs=NUMBERS, action=FORCES),
    Workload(name="PPO, 64-64", policy=tk.PPOPolicy, options={"hidden": (64, 64)}, obs=NUMBERS, action=FORCES),
    Workload(name="PPO, Nature CNN", policy=tk.PPOPolicy, options={}, obs=FRAMES, action=SIX),
]
