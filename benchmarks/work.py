"""The work every measurement does, in numbers that all sides share.

A side is a script that runs in an environment of its own and prints one line of JSON: `rates` are what is compared,
`done` is what was done and must be equal on all sides.
"""

N_ENVS = 10
HIDDEN = (128, 128, 128)
BATCH = 64
N_STEP = 3
GAMMA = 0.9
LR = 1e-3
EPSILON = 1.0  # random acting: a better policy must not look faster because its episodes are longer
TARGET_EVERY = 320  # updates
CAPACITY = 20_000
WARMUP_STEPS = 1_000
COLLECT_STEPS = 10_000
UPDATES = 500
LOOP_STEPS = 5_000  # one update per N_ENVS steps

# What must be equal, to be printed as `done`.
DONE = {
    "collected": COLLECT_STEPS,
    "updates": UPDATES,
    "loop_updates": LOOP_STEPS // N_ENVS,
    "parameters": 4 * 128 + 128 + 2 * (128 * 128 + 128) + 128 * 2 + 2,
    "threads": 1,
}
