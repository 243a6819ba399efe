"""The works that every measurement of off-policy learners does, in numbers that all sides share."""

import itertools
from dataclasses import dataclass
from typing import Any, Literal

COLLECT, UPDATES, LOOP = RATES = ("collect steps/s", "updates/s", "loop steps/s")
LR = 1e-3
GAMMA = 0.9
ATOMS, RETURNS = 51, (-10.0, 10.0)  # Rainbow's


@dataclass(frozen=True, slots=True, kw_only=True)
class Work:
    """One work: what is stepped, what is learnt, how often. One update per vector step."""

    learner: Literal["dqn", "rainbow", "sac"] = "dqn"
    env: str = "CartPole-v1"
    n_envs: int = 10
    has_own_vector_env: bool = False  # of its id; on our side, instead of a loop over single ones
    n_inputs: int = 4
    n_outputs: int = 2  # actions, or their places
    hidden: tuple[int, ...] = (128, 128, 128)  # after a Nature CNN where images are seen
    sees_images: bool = False
    epsilon: float = 1.0  # random: a better policy must not look faster because its episodes are longer
    batch: int = 64
    loss: Literal["huber", "mse"] = "huber"
    clip: float | None = None  # of the gradients' norm
    n_step: int = 1
    double: bool = False
    prioritized: bool = False
    target_every: int = 320  # updates
    capacity: int = 20_000
    per_round: int = 1  # vector steps per collect, and updates after it
    warmup_steps: int = 1_000
    collect_steps: int = 3_200  # of a block; `peers` has as many blocks in a turn as take half a second
    updates: int = 160
    loop_steps: int = 3_200

    @property
    def n_parameters(self) -> int:
        """Count the numbers that are learnt, from the sizes alone."""
        if self.learner == "sac":
            actor = _dense(self.n_inputs, *self.hidden, 2 * self.n_outputs)
            return actor + 2 * _dense(self.n_inputs + self.n_outputs, *self.hidden, 1)
        if self.learner == "rainbow":  # heads of advantages and a value, each weight with its noise's size
            return _dense(self.n_inputs, *self.hidden) + 2 * _dense(self.hidden[-1], (self.n_outputs + 1) * ATOMS)
        if self.sees_images:
            convolutions = (4 * 8 * 8 + 1) * 32 + (32 * 4 * 4 + 1) * 64 + (64 * 3 * 3 + 1) * 64
            return convolutions + _dense(64 * 7 * 7, *self.hidden, self.n_outputs)
        return _dense(self.n_inputs, *self.hidden, self.n_outputs)

    def done(self, rates: tuple[str, ...] = RATES, threads: int = 1) -> dict[str, Any]:
        """Return what must be equal on all sides that measured these rates."""
        parts = {
            COLLECT: {"collected": self.collect_steps},
            UPDATES: {"updates": self.updates},
            LOOP: {"loop_steps": self.loop_steps, "loop_updates": self.loop_steps // self.n_envs},
        }
        settings = {"env": self.env, "envs": self.n_envs, "gamma": GAMMA, "n_step": self.n_step}
        counts = {name: count for rate in rates for name, count in parts[rate].items()}
        return counts | settings | {"parameters": self.n_parameters, "threads": threads}


def _dense(*sizes: int) -> int:
    return sum((before + 1) * after for before, after in itertools.pairwise(sizes))


# What a peer can do decides what both sides do.
WORKS = {
    "huber": Work(clip=10.0),
    "small": Work(clip=10.0, hidden=(64, 64)),
    "mse": Work(loss="mse"),
    "prioritised": Work(loss="mse", n_step=3, double=True, prioritized=True),
    "rainbow": Work(learner="rainbow", hidden=(128, 128), batch=32, n_step=3, double=True, prioritized=True),
    "rounds": Work(loss="mse", has_own_vector_env=True, per_round=16),
    "acting": Work(loss="mse", epsilon=0.05),
    "acting, own": Work(loss="mse", epsilon=0.05, has_own_vector_env=True, per_round=16),
    "many": Work(clip=10.0, n_envs=64, warmup_steps=1_280, collect_steps=6_400, loop_steps=6_400),
    "many, own": Work(
        loss="mse", n_envs=64, has_own_vector_env=True, warmup_steps=1_280, collect_steps=6_400, loop_steps=6_400
    ),
    "sac": Work(
        learner="sac",
        env="Pendulum-v1",
        n_envs=1,
        n_inputs=3,
        n_outputs=1,
        hidden=(256, 256),
        batch=256,
        loop_steps=320,
        updates=100,
    ),
    "pong": Work(
        env="ALE/Pong-v5",
        n_envs=8,
        has_own_vector_env=True,
        n_outputs=6,
        hidden=(512,),
        sees_images=True,
        batch=32,
        clip=10.0,
        capacity=4_000,
        warmup_steps=400,
        collect_steps=1_600,
        updates=16,
        loop_steps=128,
    ),
}
