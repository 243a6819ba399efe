"""The tables of the Q-learners: what each paper adds to DQN, and the numbers it is run with.

`parts` are the algorithm; `classic` are the numbers for vectors, found on CartPole-v1; `atari` those of the paper.
What is not named is as in DQN's table.
"""

from trainkit.core.schedules import Linear
from trainkit.presets.atari import ATARI_ENVS
from trainkit.presets.q_learning import QPreset, QSettings

# From rl-zoo's DQN for CartPole-v1. Nearer to its lr, gamma and batch the returns go on swinging after 475 is reached;
# the deviations named below hold them there. Found on seeds 11 to 15; benchmarks/learning.py judges on others.
_CLASSIC = QSettings(
    n_envs=8,
    test_env=None,  # the same again
    n_test_envs=10,
    env_options={},
    lives_key=None,
    hidden=(128, 128),  # rl-zoo: 256, 256
    normalize_obs=False,
    head=(),
    dueling=False,
    noisy=False,
    sigma0=0.5,
    value="expected",
    loss="huber",
    rescale=None,
    atoms=51,
    v_min=0.0,
    v_max=50.0,  # 1 / (1 - gamma): a return that never ends, at one reward per step
    quantiles=None,
    double=False,
    munchausen=False,
    entropy_temperature=0.03,
    n_step=1,
    gamma=0.98,  # rl-zoo: 0.99
    reward=None,
    lr=[(0, 1e-3), (30_000, 2e-4), (60_000, 2e-5)],  # rl-zoo: 2.3e-3 throughout
    adam_eps=1.5e-4,  # Hessel et al. (2018); rl-zoo: 1e-8
    max_grad_norm=10.0,  # rl-zoo (stable-baselines3's default)
    epsilon=[(0, 1.0), (8_000, 0.04)],  # rl-zoo: to 0.04
    temperature=None,
    target_every=80,  # 40 updates; rl-zoo: once per 128
    target_tau=1.0,
    prioritized=False,
    alpha=0.6,
    beta=Linear(0.4, 1.0),
    capacity=100_000,  # rl-zoo
    batch_size=128,  # rl-zoo: 64
    step_per_collect=8,
    update_per_step=0.5,  # rl-zoo: 128 updates per 256 steps
    learning_starts=1_000,  # rl-zoo
    warmup="policy",
    max_epoch=12,
    step_per_epoch=5_000,
    stop_return=None,
    device="auto",
)

# Mnih et al. (2015) as Dopamine runs it (Castro et al., 2018), in environment steps of 4 frames: Adam in RMSProp's
# place. 8 environments are stepped together, with as many updates per step.
_ATARI = QSettings(
    **{
        **_CLASSIC,
        "n_test_envs": 8,
        "env_options": ATARI_ENVS,
        "hidden": (),
        "head": (512,),
        "v_min": -10.0,  # Bellemare et al. (2017)
        "v_max": 10.0,
        "gamma": 0.99,
        "reward": "sign",
        "lr": 6.25e-5,
        "adam_eps": 1.5e-4,
        "epsilon": [(0, 1.0), (250_000, 0.01)],  # Mnih et al.: to 0.1 over 1,000,000
        "target_every": 8_000,  # Mnih et al.: 10,000 updates
        "capacity": 1_000_000,
        "batch_size": 32,
        "update_per_step": 0.25,
        "learning_starts": 20_000,  # Mnih et al.: 50,000
        "max_epoch": 200,
        "step_per_epoch": 250_000,
    }
)

_TABLES: dict[str, QSettings] = {"classic": _CLASSIC, "atari": _ATARI}

dqn = QPreset(
    "dqn",
    "DQN: a replay buffer and a target network (Mnih et al., 2015)",
    _TABLES,
)

double_dqn = QPreset(
    "double_dqn",
    "Double DQN: the online network chooses, the target network judges (van Hasselt et al., 2016)",
    _TABLES,
    parts={"double": True},
)

dueling_dqn = QPreset(
    "dueling_dqn",
    "Dueling double DQN: a value and advantages (Wang et al., 2016)",
    _TABLES,
    parts={"double": True, "dueling": True},
    classic={"head": (128,)},
)

prioritized_dqn = QPreset(
    "prioritized_dqn",
    "Double DQN with proportional prioritised replay (Schaul et al., 2016)",
    _TABLES,
    parts={"double": True, "prioritized": True, "alpha": 0.6, "beta": Linear(0.4, 1.0)},
)

noisy_dqn = QPreset(
    "noisy_dqn",
    "NoisyNet-DQN: noise in the weights explores (Fortunato et al., 2018)",
    _TABLES,
    parts={"noisy": True, "epsilon": None, "warmup": "random"},  # else a first guess may never meet another action
    classic={"head": (128,), "sigma0": 0.1},  # paper: 0.5
)

c51 = QPreset(
    "c51",
    "C51: a distribution over 51 fixed returns (Bellemare et al., 2017)",
    _TABLES,
    parts={"value": "categorical", "atoms": 51},
    atari={"lr": 2.5e-4, "adam_eps": 0.01 / 32},
)

qrdqn = QPreset(
    "qrdqn",
    "QR-DQN: quantiles of the return at fixed fractions (Dabney et al., 2018)",
    _TABLES,
    parts={"value": "quantile"},
    classic={"quantiles": 21},  # paper: 200
    atari={"lr": 5e-5, "adam_eps": 0.01 / 32},
)

iqn = QPreset(
    "iqn",
    "IQN: quantiles of the return at drawn fractions (Dabney et al., 2018)",
    _TABLES,
    parts={"value": "implicit"},
    classic={"quantiles": 8},  # paper: 64
    atari={"lr": 5e-5, "adam_eps": 0.01 / 32},
)

munchausen_dqn = QPreset(
    "munchausen_dqn",
    "Munchausen DQN: a soft policy, rewarded for being sure (Vieillard et al., 2020)",
    _TABLES,
    parts={"munchausen": True, "entropy_temperature": 0.03, "loss": "mse"},
    atari={"lr": 5e-5, "adam_eps": 0.01 / 32},
)

# Hessel et al. (2018): all six parts, with their alpha 0.5, beta 0.4 -> 1, 51 atoms and n = 3. What else differs for
# vectors is named; sigma0 matters most: at their 0.5 no seed tried reached 475.
rainbow = QPreset(
    "rainbow",
    "Rainbow: double, dueling, noisy, categorical, 3-step, prioritised (Hessel et al., 2018)",
    _TABLES,
    parts={
        "double": True,
        "dueling": True,
        "noisy": True,
        "epsilon": None,
        "value": "categorical",
        "atoms": 51,
        "n_step": 3,
        "prioritized": True,
        "alpha": 0.5,
        "beta": Linear(0.4, 1.0),
    },
    classic={
        "head": (128,),
        "sigma0": 0.1,  # Tianshou's Rainbow for CartPole
        "gamma": 0.97,
        "v_max": 34.0,  # 1 / (1 - gamma)
        "lr": 2e-3,
        "target_every": 50,  # 12 updates
        "update_per_step": 0.25,
    },
)
