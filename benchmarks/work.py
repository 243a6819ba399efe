"""The work every measurement of Q-learning does, in numbers that all sides share.

A side is a script that runs in an environment of its own, takes the name of a learner, and prints one line of JSON:
`rates` are what is compared, `done` is what was done and must be equal on all sides. Seconds are of CPU time, so that
what else the core did does not count.
"""

import itertools

N_ENVS = 10
HIDDEN = (128, 128, 128)
BATCH = 64
GAMMA = 0.9
LR = 1e-3
EPSILON = 1.0  # random acting: a better policy must not look faster because its episodes are longer
TARGET_EVERY = 320  # updates
CAPACITY = 20_000
WARMUP_STEPS = 1_000
COLLECT_STEPS = 10_000
UPDATES = 500
LOOP_STEPS = 9_600  # one update per N_ENVS steps; whole rounds of them
PER_ROUND = 16  # updates, where they are saved up

# What a peer can do decides what both sides do: {learner: loss, clip of the gradients' norm, n-step, double, replay}.
LEARNERS = {
    "huber": {"loss": "huber", "clip": 10.0, "n_step": 1, "double": False, "prioritized": False},
    "mse": {"loss": "mse", "clip": None, "n_step": 1, "double": False, "prioritized": False},
    "prioritised": {"loss": "mse", "clip": None, "n_step": 3, "double": True, "prioritized": True},
}


def parameters(hidden: tuple[int, ...]) -> int:
    """Return how many numbers the network of CartPole's values has."""
    sizes = (4, *hidden, 2)
    return sum((before + 1) * after for before, after in itertools.pairwise(sizes))


def done(hidden: tuple[int, ...] = HIDDEN) -> dict[str, int]:
    """Return what must be equal on all sides."""
    updates = {"updates": UPDATES, "loop_updates": LOOP_STEPS // N_ENVS}
    return {"collected": COLLECT_STEPS, **updates, "parameters": parameters(hidden), "threads": 1}
