"""Random policies that learn by the numpy engine, each operation compared with torch."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import numpy as np
from gymnasium import Space, spaces

from tests.extensions.numpy_engine.agreement import Agreement
from tests.helpers.learning import Spaces, batch_of, observations
from tests.helpers.rollouts import played
from trainkit import (
    Adam,
    CategoricalValue,
    Clip,
    ConservativePenalty,
    DQNPolicy,
    ExpectedValue,
    ImplicitQuantileValue,
    MunchausenBackup,
    QuantileValue,
    Target,
)
from trainkit.core.spaces import flat_actions, legal_actions
from trainkit.engine.device import to_device

N_FAST, N_ALL = 9, 320  # in the fast tests, one of each kind
VECTOR = spaces.Box(-2.0, 2.0, (5,), np.float32)
OBSERVATIONS: dict[str, Space[Any]] = {
    "vector": VECTOR,
    "number": spaces.Box(-2.0, 2.0, (1,), np.float32),
    "long": spaces.Box(-1.0, 1.0, (60,), np.float32),
    "float64": spaces.Box(-2.0, 2.0, (7,), np.float64),
    "grid": spaces.Box(0, 9, (4, 3), np.uint8),
    "discrete": spaces.Discrete(6, start=2),
    "digits": spaces.MultiDiscrete([3, 4]),
    "dict": spaces.Dict({"a": VECTOR, "b": spaces.Box(-1.0, 1.0, (2, 2), np.float64), "c": spaces.Discrete(4)}),
    "tuple": spaces.Tuple((VECTOR, spaces.MultiBinary(3))),
}
FORCE, WIDE_FORCE = spaces.Box(-1.0, 1.0, (2,), np.float32), spaces.Box(-3.0, 5.0, (1, 3), np.float64)
CHOICES = spaces.MultiDiscrete([3, 2])
BOUNDED: list[Space[Any]] = [FORCE, WIDE_FORCE, spaces.Dict({"a": FORCE, "b": WIDE_FORCE})]
MIXED = spaces.Dict({"choice": spaces.Discrete(3, start=1), "force": FORCE})
ACTIONS: list[Space[Any]] = [
    spaces.Discrete(2),
    spaces.Discrete(9),
    CHOICES,
    spaces.MultiBinary(4),
    spaces.Box(-np.inf, np.inf, (2,), np.float32),
    *BOUNDED,
    MIXED,
    spaces.Tuple((spaces.MultiBinary(2), CHOICES)),
]


class Draw:
    """Random choices of one policy."""

    def __init__(self, seed: int) -> None:
        self.rng = np.random.default_rng(seed)

    def one(self, options: Any) -> Any:
        """Return one of several."""
        return options[int(self.rng.integers(len(options)))]

    def is_true(self, share: float = 0.5) -> bool:
        """Return True in a share of calls."""
        return bool(self.rng.random() < share)

    def number(self, low: int, high: int) -> int:
        """Return an integer in [low, high], each order of magnitude as likely."""
        return int(np.exp(self.rng.uniform(np.log(low), np.log(high + 1))))

    def layers(self, most: int = 3) -> tuple[int, ...]:
        """Return widths of hidden layers."""
        return tuple(self.number(1, 600) for _ in range(self.rng.integers(1, most + 1)))

    def optimizer(self) -> dict[str, Any]:
        """Return options of the gradient step."""
        decay = self.one([0.0, 1e-2])
        clip = self.one([None, Clip(0.5), Clip(0.1, by="norm"), Clip(0.01, by="value")])
        return {"optimizer": Adam(1e-3, weight_decay=decay), "clip": clip}

    def target(self) -> Target:
        """Return a hard or a soft target."""
        return Target(every=1, unit="updates", tau=self.one([1.0, 0.005, 0.3]))

    def observation_space(self, action_space: Space[Any], *, masks: bool) -> Space[Any]:
        """Return a space of observations, with a mask of Discrete actions if there may be one."""
        space = OBSERVATIONS[self.one(list(OBSERVATIONS))]
        if masks and isinstance(action_space, spaces.Discrete) and self.is_true(0.3):
            mask = spaces.MultiBinary(int(action_space.n))
            inner = space.spaces if isinstance(space, spaces.Dict) else {"obs": space}
            return spaces.Dict({**inner, "action_mask": mask})
        return space


def q_learner(draw: Draw, kind: Any = DQNPolicy, **options: Any) -> DQNPolicy:
    """Make a Q-learner of random parts."""
    huber, mse = ExpectedValue(delta=draw.one([0.3, 1.0])), ExpectedValue("mse")
    values = [huber, mse, ExpectedValue(rescale=1e-2), CategoricalValue(draw.number(2, 51), -3.0, 3.0)]
    values += [CategoricalValue(11, priority="ce"), QuantileValue(draw.number(1, 60)), QuantileValue(8, kappa=0.0)]
    values += [QuantileValue(5, rescale=1e-2), ImplicitQuantileValue(4, target_quantiles=3, acting_quantiles=5)]
    value = draw.one(values)
    if kind is DQNPolicy:
        options["double"] = draw.is_true()
        if draw.is_true(0.2) and not isinstance(value, CategoricalValue):
            options["double"], options["backup"] = False, MunchausenBackup(draw.one([0.03, 1.0]))
        if draw.is_true(0.2):
            options["penalty"] = ConservativePenalty(0.5)
        options["noisy"] = draw.is_true(0.3)
        options["normalize_obs"] = draw.is_true(0.3)
    action_space = draw.one([spaces.Discrete(2), spaces.Discrete(3), spaces.Discrete(18), CHOICES])
    options |= {"hidden": draw.layers(), "head": draw.layers(1) if draw.is_true(0.3) else (), "value": value}
    options |= {"dueling": draw.is_true(0.3), "target": draw.target(), **draw.optimizer()}
    at = Spaces(draw.observation_space(action_space, masks=True), action_space)
    return kind.for_envs(at, device="cpu", seed=draw.number(1, 1000), engine="numpy", **options)


def learn(policy: Any, draw: Draw, n_updates: int = 3) -> None:
    """Update a policy from random batches, and let it act on observations."""
    observation_space, action_space = policy.observation_space, flat_actions(policy.action_space)
    seed = int(draw.rng.integers(1000))
    if policy.statistics.observes:
        policy.preprocess.observe(to_device(observations(observation_space, 50, seed), policy.device))
        policy.preprocess.fold()
    n_rows = draw.number(1, 1024)
    if "learn" in policy.learning_methods:
        sizes = (n_rows, max(n_rows // 2, 1))
        rollout = played(policy, observation_space, sizes, seed=seed)
        for name, spread in (("log_prob", 0.3), ("value", 1.0)):  # as if the policy had changed since
            rollout.extras[name][...] += draw.rng.normal(0.0, spread, rollout.extras[name].shape)
        list(policy.learn(rollout, step=10, batch_size=max(n_rows // 2, 1)))
    else:
        discounts = draw.one([[0.99], [0.0], [0.0, 0.9], [0.97, 0.0, 0.9**3]])
        weights = draw.one([[1.0], [0.0, 0.4, 1.0], [0.0]])
        action_space.seed(seed)
        for i in range(n_updates):
            columns = {"discount": draw.rng.choice(discounts, n_rows), "weight": draw.rng.choice(weights, n_rows)}
            columns["action"] = np.stack([action_space.sample() for _ in range(n_rows)])
            batch = batch_of(n_rows, seed=seed + 2 * i, space=observation_space, **columns)
            legal = legal_actions(batch.obs)
            if legal is not None:
                batch = replace(
                    batch, action=np.where(legal[np.arange(n_rows), batch.action], batch.action, legal.argmax(axis=1))
                )
            policy.update(batch, step=10 * i)
    for n_obs in (1, 7):
        for explore in (False, True):
            policy.act(observations(observation_space, n_obs, seed), explore=explore)


def check(agreement: Agreement) -> None:
    """Check that every result is as exact as it must be, and that few were left out."""
    assert agreement.failures == []
    assert agreement.n_lucky < 0.01 * len(agreement.comparisons) + 3
    assert agreement.n_excluded < 0.01 * agreement.n_rows + 3


def learn_at_random(kinds: Mapping[int, Callable[[Draw], Any]], seeds: range) -> None:
    """Let random policies learn by numpy, each of the kind that the remainder of its seed divided by 9 names."""
    for seed in (seed for seed in seeds if seed % 9 in kinds):
        draw = Draw(seed)
        policy = kinds[seed % 9](draw)
        learn(policy, draw)
        assert policy.engine.name == "numpy"
