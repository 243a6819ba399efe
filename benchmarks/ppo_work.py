"""The work every side of PPO's speed does, in numbers that all share.

A side is a script that runs in an environment of its own, takes `--lr --seed`, and prints one line of JSON: `rates` are
what is compared, `done` is what was done and must be equal on all sides, `episodes` says how much resetting there was.
"""

TASK = "CartPole-v1"
N_ENVS = 8
N_STEPS = 128  # of each environment per rollout
EPOCHS = 10  # over each rollout
BATCH = 256
HIDDEN = (64, 64)  # tanh, for actor and critic each
GAMMA, LAM = 0.99, 0.95
CLIP_RATIO = 0.2
VALUE_WEIGHT, ENTROPY_WEIGHT = 0.5, 0.0
MAX_GRAD_NORM = 0.5
ADAM_EPS = 1e-5

ROLLOUT = N_ENVS * N_STEPS
WARMUP_ROLLOUTS, ROLLOUTS = 3, 20

# With the second, the policy stays as random as it began: episodes are equally short on all sides.
LRS = {"learning": 3e-4, "standing still": 1e-12}

_TORSO = 4 * 64 + 64 + 64 * 64 + 64

# What must be equal, to be printed as `done`.
DONE = {
    "rows": ROLLOUTS * ROLLOUT,
    "minibatches": ROLLOUTS * EPOCHS * ROLLOUT // BATCH,  # Adam's steps
    "parameters": 2 * _TORSO + 64 * 2 + 2 + 64 + 1,
    "threads": 1,
}
