"""Stable-Baselines3's side of `peers`, on its DummyVecEnv, a loop over single environments."""

from contextlib import AbstractContextManager
from typing import Any

import numpy as np
import stable_baselines3
import torch
from sb3_contrib import TQC
from stable_baselines3 import DQN, PPO, SAC, TD3
from stable_baselines3.common.noise import NormalActionNoise
from stable_baselines3.common.torch_layers import BaseFeaturesExtractor
from stable_baselines3.common.vec_env import DummyVecEnv

from benchmarks.sides import side
from benchmarks.sides.work import (
    ADAM_EPS,
    CLIP_RATIO,
    CONTINUOUS,
    DELAY,
    DROPPED,
    EPOCHS,
    LAMBDA,
    NOISE,
    QUANTILES,
    ROLLOUT_STEPS,
    TAU,
    VALUE_WEIGHT,
    Work,
    make_env,
)


class Features(BaseFeaturesExtractor):
    """The layers of a workload's network below the last one; Stable-Baselines3 scales the bytes."""

    def __init__(self, space: Any, work: Work) -> None:
        super().__init__(space, work.hidden[-1])
        self.layers = side.network(work)[:-1]

    def forward(self, obs: torch.Tensor) -> torch.Tensor:
        return self.layers(obs)


def make_dqn(work: Work, envs: DummyVecEnv, common: dict[str, Any]) -> DQN:
    """Make its DQN, whose loss is Huber's."""
    network: dict[str, Any] = {"net_arch": list(work.hidden)}
    if work.convolutions:
        features = {"features_extractor_class": Features, "features_extractor_kwargs": {"work": work}}
        network = {"net_arch": [], **features}
    return DQN(
        "CnnPolicy" if work.convolutions else "MlpPolicy",
        envs,
        buffer_size=work.capacity,
        learning_starts=0,
        train_freq=work.steps_per_update // work.n_envs,
        gradient_steps=1,
        target_update_interval=work.target_every * work.steps_per_update,
        exploration_initial_eps=work.epsilon,
        exploration_final_eps=work.epsilon,
        max_grad_norm=work.clip,
        policy_kwargs=network,
        **common,
    )


def make_model(work: Work, envs: DummyVecEnv) -> Any:
    """Make the learner."""
    common = {"learning_rate": work.lr, "batch_size": work.batch, "gamma": work.gamma, "device": "cpu", "seed": 1}
    if work.learner == "dqn":
        return make_dqn(work, envs, common)
    network: dict[str, Any] = {"net_arch": list(work.hidden)}
    if work.learner in CONTINUOUS:
        common |= {"buffer_size": work.capacity, "learning_starts": 0, "train_freq": 1, "gradient_steps": 1, "tau": TAU}
        if work.learner == "td3":
            noise = NormalActionNoise(np.zeros(work.n_outputs), np.full(work.n_outputs, NOISE))
            return TD3("MlpPolicy", envs, policy_delay=DELAY, action_noise=noise, policy_kwargs=network, **common)
        if work.learner == "tqc":
            network |= {"n_quantiles": QUANTILES, "n_critics": 2}
            return TQC("MlpPolicy", envs, top_quantiles_to_drop_per_net=DROPPED, policy_kwargs=network, **common)
        return SAC("MlpPolicy", envs, policy_kwargs=network, **common)
    adam = {"optimizer_class": torch.optim.Adam, "optimizer_kwargs": {"eps": ADAM_EPS}}
    return PPO(
        "MlpPolicy",
        envs,
        n_steps=ROLLOUT_STEPS,
        n_epochs=EPOCHS,
        gae_lambda=LAMBDA,
        clip_range=CLIP_RATIO,
        vf_coef=VALUE_WEIGHT,
        ent_coef=0.0,
        max_grad_norm=work.clip,
        policy_kwargs={**network, "activation_fn": torch.nn.Tanh, **adam},
        **common,
    )


class StableBaselines3:
    """Stable-Baselines3 with a workload.

    Its DQN draws one number per vector step: below epsilon all actions are random, and the network is not called.
    """

    def __init__(self, work: Work) -> None:
        self._work = work
        self._envs = DummyVecEnv([lambda: make_env(work)] * work.n_envs)
        self._model = make_model(work, self._envs)

    def collect(self, n_steps: int) -> int:
        train, self._model.train = self._model.train, lambda *_, **__: None
        n_collected = self.loop(n_steps)
        self._model.train = train
        return n_collected

    def loop(self, n_steps: int) -> int:
        before = self._model.num_timesteps
        self._model.learn(n_steps, log_interval=None, reset_num_timesteps=False)
        return self._model.num_timesteps - before

    def n_updates(self) -> int:
        is_continuous = self._work.learner in CONTINUOUS
        return side.n_steps_of((self._model.critic if is_continuous else self._model.policy).optimizer)

    def count_calls(self) -> AbstractContextManager[list[int]]:
        return side.calls_of(self._trained()[0])

    def _trained(self) -> list[torch.nn.Module]:
        """Return the trained networks, the acting one first."""
        model = self._model
        if self._work.learner in CONTINUOUS:
            return [model.actor, model.critic]
        return [model.q_net if self._work.learner == "dqn" else model.policy]

    def settings(self) -> dict[str, Any]:
        model = self._model
        return {
            "env": self._envs.get_attr("spec")[0].id,
            "envs": self._envs.num_envs,
            "gamma": model.gamma,
            "parameters": side.count_parameters(*self._trained()),
        }


if __name__ == "__main__":
    side.serve(StableBaselines3, stable_baselines3.__version__, flush=side.options().parse_args().flush)
