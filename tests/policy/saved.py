"""Policies of all kinds, made by the options that are saved with them."""

from typing import Any

import gymnasium as gym
import numpy as np

import trainkit as tk
from trainkit.core.spaces import Spaces

BOX = gym.spaces.Box(-1, 1, (3,), np.float32)
FEW = gym.spaces.Discrete(4)
PLACES = Spaces(observation_space=BOX, action_space=FEW)
PUSHES = Spaces(observation_space=BOX, action_space=gym.spaces.Box(-2, 2, (2,), np.float32))
SEEN = Spaces(
    observation_space=gym.spaces.Dict(
        {"obs": gym.spaces.Tuple([BOX, gym.spaces.Discrete(5)]), "action_mask": gym.spaces.MultiBinary(4)}
    ),
    action_space=FEW,
)

MADE: dict[str, Any] = {
    "dqn": lambda: tk.DQNPolicy.for_envs(PLACES, hidden=(8,), device="cpu", seed=3),
    "rainbow": lambda: tk.DQNPolicy.for_envs(
        PLACES, hidden=(8,), head=[4], dueling=True, noisy=True, double=True, n_step=(1, 3), device="cpu", seed=3,
        value=tk.CategoricalValue(7, -3.0, 3.0, priority="ce"), lr=[(0, 1e-3), (9, 1e-4)], target=tk.Target(9, tau=0.5),
    ),
    "quantiles": lambda: tk.DQNPolicy.for_envs(
        PLACES, hidden=(8,), value=tk.QuantileValue(9, kappa=0.5, rescale=1e-3), exploration=tk.SoftQ([(0, 1), (9, 2)]),
        backup=tk.MunchausenBackup(0.1, alpha=0.5), reward=(-1.0, 1.0), device="cpu", seed=3,
    ),
    "implicit": lambda: tk.DQNPolicy.for_envs(
        PLACES, hidden=(8,), value=tk.ImplicitQuantileValue(5, target_quantiles=6, acting_quantiles=7), device="cpu",
        exploration=tk.EpsilonGreedy(0.1, per_env=[1, 0.5]), penalty=tk.ConservativePenalty(0.5), seed=3,
    ),
    "normalised": lambda: tk.DQNPolicy.for_envs(
        PLACES, hidden=(8,), normalize_obs=True, reward="return_scale", optimizer=tk.Adam([(0, 1e-3), (5, 0)]),
        clip=tk.Clip(1.0, by="value"), device="cpu", seed=3,
    ),
    "ppo": lambda: tk.PPOPolicy.for_envs(PUSHES, hidden=(8,), normalize_obs=True, log_std=-1.0, device="cpu", seed=3),
    "squashed ppo": lambda: tk.PPOPolicy.for_envs(
        PUSHES, action_bound_method="tanh", shared=True, device="cpu", seed=3
    ),
    "a2c": lambda: tk.A2CPolicy.for_envs(PLACES, hidden=(8,), device="cpu", seed=3),
    "reinforce": lambda: tk.ReinforcePolicy.for_envs(PLACES, hidden=(8,), device="cpu", seed=3),
    "sac": lambda: tk.SACPolicy.for_envs(PUSHES, hidden=(8,), temperature=0.5, device="cpu", seed=3),
}  # fmt: skip
