"""Stable-Baselines3's side: collect, update and the whole loop, on its DummyVecEnv, a bare loop over environments."""

from typing import Any

import gymnasium as gym
import stable_baselines3
from stable_baselines3 import DQN, SAC
from stable_baselines3.common.env_util import make_atari_env
from stable_baselines3.common.vec_env import DummyVecEnv, VecEnv, VecFrameStack

from benchmarks import side
from benchmarks.work import GAMMA, LR, Work

NEVER = 10**9  # environment steps


def make_envs(work: Work) -> VecEnv:
    """Make the environments; Atari as `ATARI_ENVS` of trainkit has it."""
    if not work.sees_images:
        return DummyVecEnv([lambda: gym.make(work.env) for _ in range(work.n_envs)])
    import ale_py

    gym.register_envs(ale_py)
    wrappers = {"noop_max": 0, "terminal_on_life_loss": False, "clip_reward": False}
    bare = {"frameskip": 1, "repeat_action_probability": 0.25}
    return VecFrameStack(make_atari_env(work.env, work.n_envs, env_kwargs=bare, wrapper_kwargs=wrappers), 4)


class StableBaselines3:
    """Its DQN or SAC; without a network it draws actions from the space until learning starts."""

    version = stable_baselines3.__version__

    def __init__(self, work: Work) -> None:
        self._work = work
        self._envs = make_envs(work)
        own: dict[str, Any] = {}
        if work.learner == "dqn":
            own = {
                "target_update_interval": work.target_every * work.n_envs,
                "exploration_initial_eps": work.epsilon,
                "exploration_final_eps": work.epsilon,
                "max_grad_norm": work.clip,
            }
        self._model = (DQN if work.learner == "dqn" else SAC)(
            "CnnPolicy" if work.sees_images else "MlpPolicy",
            self._envs,
            learning_rate=LR,
            buffer_size=work.capacity,
            batch_size=work.batch,
            gamma=GAMMA,
            train_freq=1,
            gradient_steps=1,
            policy_kwargs={"net_arch": [] if work.sees_images else list(work.hidden)},
            device="cpu",
            seed=1,
            **own,
        )

    def collect(self, n_steps: int) -> int:
        return self._learn(n_steps, learning_starts=NEVER)

    def update(self) -> None:
        self._model.train(gradient_steps=1, batch_size=self._work.batch)

    def loop(self, n_steps: int) -> int:
        return self._learn(n_steps, learning_starts=0)

    def _learn(self, n_steps: int, learning_starts: int) -> int:
        before, self._model.learning_starts = self._model.num_timesteps, learning_starts
        self._model.learn(n_steps, log_interval=None, reset_num_timesteps=False)
        return self._model.num_timesteps - before

    def n_updates(self) -> int:
        return self._model._n_updates

    def told(self) -> dict[str, Any]:
        model = self._model
        learnt = [model.q_net] if self._work.learner == "dqn" else [model.actor, model.critic]
        return {
            "env": self._envs.get_attr("spec")[0].id,
            "envs": self._envs.num_envs,
            "gamma": model.gamma,
            "n_step": model.n_steps,
            "parameters": sum(parameter.numel() for module in learnt for parameter in module.parameters()),
        }


if __name__ == "__main__":
    side.play(StableBaselines3, side.options().parse_args())
