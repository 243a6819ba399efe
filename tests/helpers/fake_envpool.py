"""A slow envpool: the API of envpool 1.2's Gymnasium environments, over environments of Gymnasium.

As there: one class is both a vector environment and an environment, autoreset is NEXT_STEP, `reset(seed=)` is ignored
with a warning, since the seed is one of construction, infos name the rows, and `spec` is no Gymnasium spec.
"""

import warnings
from types import SimpleNamespace
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium.vector import AutoresetMode, VectorEnv
from numpy.typing import NDArray


class GymnasiumEnvPool(VectorEnv[Any, Any, Any], gym.Env[Any, Any]):
    """Environments of one id; `recv` returns `batch_size` rows, first come first served."""

    metadata = {"render_modes": ["rgb_array", "human"], "autoreset_mode": AutoresetMode.NEXT_STEP}  # noqa: RUF012

    def __init__(self, task_id: str, num_envs: int, batch_size: int, seed: int, max_episode_steps: int | None) -> None:
        self._envs = [gym.make(task_id, max_episode_steps=max_episode_steps) for _ in range(num_envs)]
        for env_id, env in enumerate(self._envs):
            env.reset(seed=seed + env_id)
        self.num_envs, self._batch_size = num_envs, batch_size
        self.single_observation_space = self._envs[0].observation_space
        self.single_action_space = self._envs[0].action_space
        self.observation_space, self.action_space = self.single_observation_space, self.single_action_space
        self.spec = SimpleNamespace(num_envs=num_envs, batch_size=batch_size, seed=seed)
        self.config = dict(vars(self.spec))
        self._is_over = np.zeros(num_envs, np.bool_)
        self._elapsed = np.zeros(num_envs, np.int32)
        self._ready: list[tuple[Any, ...]] = []

    def reset(
        self,
        env_id: NDArray[np.int32] | None = None,
        *,
        seed: int | list[int] | None = None,
        options: dict[str, Any] | None = None,
    ) -> tuple[Any, dict[str, Any]]:
        if seed is not None:
            warnings.warn(
                "EnvPool seeds are fixed when the environment is created. reset(seed=...) is ignored; pass seed to "
                "envpool.make instead.",
                stacklevel=2,
            )
        for one in range(self.num_envs) if env_id is None else env_id.tolist():
            self._ready.append(self._begun(one))
        obs, *_, info = self.recv()
        return obs, info

    def step(self, action: NDArray[Any], env_id: NDArray[np.int32] | None = None) -> tuple[Any, ...]:
        self.send(action, env_id)
        return self.recv()

    def send(self, action: NDArray[Any], env_id: NDArray[np.int32] | None = None) -> None:
        for one, own in zip(range(self.num_envs) if env_id is None else env_id.tolist(), action, strict=True):
            self._ready.append(self._begun(one) if self._is_over[one] else self._stepped(one, own))

    def recv(self) -> tuple[Any, ...]:
        rows, self._ready = self._ready[: self._batch_size], self._ready[self._batch_size :]
        ids, obs, reward, terminated, truncated, elapsed = zip(*rows, strict=True)
        env_id = np.array(ids, np.int32)
        info = {"env_id": env_id, "players": {"env_id": env_id.copy()}, "elapsed_step": np.array(elapsed, np.int32)}
        return np.stack(obs), np.array(reward, np.float32), np.array(terminated), np.array(truncated), info

    def close(self, **_: Any) -> None:
        for env in self._envs:
            env.close()
        self.closed = True

    def _begun(self, one: int) -> tuple[Any, ...]:
        self._is_over[one], self._elapsed[one] = False, 0
        return one, self._envs[one].reset()[0], 0.0, False, False, 0

    def _stepped(self, one: int, action: Any) -> tuple[Any, ...]:
        obs, reward, terminated, truncated, _ = self._envs[one].step(action)
        self._elapsed[one] += 1
        self._is_over[one] = terminated or truncated
        return one, obs, reward, terminated, truncated, int(self._elapsed[one])


def make_gymnasium(
    task_id: str,
    num_envs: int = 1,
    batch_size: int | None = None,
    seed: int = 42,
    max_episode_steps: int | None = None,
) -> GymnasiumEnvPool:
    """Make environments as `envpool.make_gymnasium` does."""
    return GymnasiumEnvPool(task_id, num_envs, batch_size or num_envs, seed, max_episode_steps)
