"""The work of `recurrent_speed` and `recurrent_curves`: recurrent PPO on CartPole without velocities.

A side is given its seed, and reads lines: for "block" it trains a block of steps, and prints its seconds of CPU and
what was done; for "evaluate" it plays greedy episodes, and prints their returns.
"""

N_ENVS, ROLLOUT, BATCH, EPOCHS, SIZE = 8, 128, 256, 10, 64  # environments, steps of each, rows, passes, LSTM units
LR, GAMMA, LAMBDA, CLIP_RATIO, VALUE_WEIGHT, MAX_NORM, ADAM_EPS = 3e-4, 0.99, 0.95, 0.2, 0.5, 0.5, 1e-5
BLOCK = N_ENVS * ROLLOUT * 8  # environment steps of a block
UPDATES = BLOCK // (N_ENVS * ROLLOUT) * EPOCHS * (N_ENVS * ROLLOUT // BATCH)
PARAMETERS = 2 * (4 * SIZE * (2 + SIZE) + 8 * SIZE) + (SIZE + 1) * (2 + 1)  # two LSTMs on two inputs, two heads
WORK = {"steps": BLOCK, "updates": UPDATES, "parameters": PARAMETERS, "environments": N_ENVS}

BLOCKS, EPISODES = 13, 20  # of a learning curve, and of an evaluation after each block


def evaluation_seed(seed: int, n_updates: int) -> int:
    """Return the seed of an evaluation's environments, which neither training nor another evaluation has."""
    return 1_000_000 * seed + n_updates
