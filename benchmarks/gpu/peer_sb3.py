"""The process of Stable-Baselines3: prints the rates of its updates, or of a whole loop. It needs nothing of trainkit.

Updates draw their rows from its replay buffer, or learn from its rollout; the rates include that. The loop has the
games in ALE's vector environment, as trainkit has them, which is faster than environments one by one.
"""

import json
import sys
import time
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import stable_baselines3 as sb3
from stable_baselines3.common.utils import configure_logger
from stable_baselines3.common.vec_env import VecEnv

from benchmarks.gpu.record import Setup
from benchmarks.gpu.timing import rates

STORED = 2_000  # rows


class Still(gym.Env[Any, Any]):
    """Return the same observation at every step."""

    def __init__(self, shape: list[int], dtype: str, learner: str) -> None:
        is_image = dtype == "uint8"
        low, high = (0, 255) if is_image else (-10.0, 10.0)
        self.observation_space = gym.spaces.Box(low, high, shape, np.dtype(dtype).type)
        is_discrete = learner == "DQN" or is_image
        self.action_space = gym.spaces.Discrete(6) if is_discrete else gym.spaces.Box(-1.0, 1.0, (6,), np.float32)

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        return np.zeros_like(self.observation_space.low), {}

    def step(self, action: Any) -> Any:
        return self.reset()[0], 0.0, False, False, {}


class Games(VecEnv):
    """Games of ALE in threads, four frames a row, that are reset at once where they end."""

    def __init__(self, game: str, n_envs: int) -> None:
        from ale_py.vector_env import AtariVectorEnv

        how: dict[str, Any] = {"autoreset_mode": "SameStep", "reward_clipping": True, "noop_max": 0}
        self.games = AtariVectorEnv(game, n_envs, repeat_action_probability=0.25, **how)
        super().__init__(n_envs, self.games.single_observation_space, self.games.single_action_space)

    def reset(self) -> Any:
        return self.games.reset()[0]

    def step_async(self, actions: Any) -> None:
        self.games.send(np.asarray(actions))

    def step_wait(self) -> Any:
        obs, reward, terminated, truncated, info = self.games.recv()
        done = terminated | truncated
        infos: list[dict[str, Any]] = [{} for _ in done]
        for i in done.nonzero()[0]:
            infos[i] = {"terminal_observation": info["final_obs"][i], "TimeLimit.truncated": bool(truncated[i])}
        return obs, reward.astype(np.float32), done, infos

    def close(self) -> None:
        self.games.close()

    def get_attr(self, attr_name: str, indices: Any = None) -> list[Any]:
        return [None] * self.num_envs

    def set_attr(self, attr_name: str, value: Any, indices: Any = None) -> None:
        raise NotImplementedError

    def env_method(self, method_name: str, *args: Any, indices: Any = None, **kwargs: Any) -> list[Any]:
        raise NotImplementedError

    def env_is_wrapped(self, wrapper_class: Any, indices: Any = None) -> list[bool]:
        return [False] * self.num_envs


def loop_rate(work: dict[str, Any]) -> float:
    """Return the steps per second of a whole loop: an update for every fourth step."""
    n_envs, n_steps = work["n_envs"], work["n_steps"]
    model = sb3.DQN(
        *("CnnPolicy", Games(work["loop"], n_envs)),
        buffer_size=20_000, learning_starts=n_steps // 2, train_freq=1, gradient_steps=max(1, n_envs // 4),
        batch_size=work["n_rows"], device=work["device"], seed=1,
    )  # fmt: skip
    model.learn(n_steps)
    began = time.perf_counter()
    model.learn(n_steps, reset_num_timesteps=False)
    return n_steps / (time.perf_counter() - began)


def model_of(work: dict[str, Any]) -> Any:
    """Make its learner."""
    env = Still(*work["obs"], work["learner"])
    network = "CnnPolicy" if len(env.observation_space.shape) == 3 else "MlpPolicy"
    layers = {} if work["hidden"] is None else {"policy_kwargs": {"net_arch": list(work["hidden"])}}
    common: dict[str, Any] = {"batch_size": work["n_rows"], "device": work["device"], "seed": 1, **layers}
    if work["learner"] == "PPO":
        return sb3.PPO(network, env, n_steps=work["minibatches"] * work["n_rows"], n_epochs=work["repeat"], **common)
    return getattr(sb3, work["learner"])(network, env, buffer_size=STORED, learning_starts=0, **common)


def fill(model: Any) -> None:
    """Give it rows to learn from."""
    model.set_logger(configure_logger(verbose=0))
    if hasattr(model, "rollout_buffer"):
        _, callback = model._setup_learn(1)
        model.collect_rollouts(model.env, callback, model.rollout_buffer, model.n_steps)
        return
    for _ in range(STORED):
        obs, next_obs = (model.observation_space.sample()[None] for _ in range(2))
        action = np.asarray(model.action_space.sample()).reshape(1, -1)
        model.replay_buffer.add(obs, next_obs, action, np.zeros(1), np.zeros(1), [{}])


def main() -> None:
    """Measure what the command line describes in JSON."""
    work = json.loads(sys.argv[1])
    if "loop" in work:
        print(json.dumps([loop_rate(work)]))
        return
    setup = Setup(device=work["device"], is_rehearsal=work["is_rehearsal"], out=Path(), work=Path())
    model = model_of(work)
    fill(model)
    if work["learner"] == "PPO":
        found = [work["minibatches"] * work["repeat"] * rate for rate in rates(model.train, setup)]
    else:
        found = rates(lambda: model.train(gradient_steps=1, batch_size=work["n_rows"]), setup)
    print(json.dumps(found))


if __name__ == "__main__":
    main()
