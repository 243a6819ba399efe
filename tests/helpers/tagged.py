"""An environment whose observation says where it was made, so that no row can lie about its origin.

Everything follows from the tag (environment, episode, step): the length of the episode, how it ends, the reward, which
actions are legal, how many lives are left. The functions below are those rules, for numbers and arrays alike: the slow
truth that tests compare with.
"""

from collections.abc import Callable
from typing import Any, Literal

import gymnasium as gym
import numpy as np
from numpy.typing import NDArray

from trainkit.core.data import ACTION_MASK, Obs

N_ACTIONS = 3
LIVES = np.array([3, 3, 2, 2, 3, 1, 1, 1, 0, 2, 2, 1])  # lost by one, by two and at an episode's end; also gained
Form = Literal["array", "dict", "masked"]


def length(env: Any, episode: Any) -> Any:
    """Say how long an episode is, 1 to 11 steps: environments end at different times."""
    return 1 + (5 * env + 3 * episode) % 11


def is_terminated(env: Any, episode: Any) -> Any:
    """Say whether an episode ends in termination; every third one does not."""
    return (env + episode) % 3 != 1


def is_truncated(env: Any, episode: Any) -> Any:
    """Say whether an episode ends in truncation; every third one ends in both."""
    return (env + episode) % 3 != 0


def reward(env: Any, episode: Any, step: Any) -> Any:
    """Return the step's own number; sums of 5 with gamma 1/2 are exact in float32."""
    return 1.0 + env * 4096 + episode % 64 * 64 + step % 64


def legal(env: Any, episode: Any, step: Any) -> NDArray[np.int8]:
    """Return the mask [..., 3], never empty."""
    bits = 1 + np.asarray(env + episode + step) % 7
    return (bits[..., None] >> np.arange(N_ACTIONS) & 1).astype(np.int8)


def lives(env: Any, episode: Any, step: Any) -> Any:
    """Say how many lives are left before a step, another number at the begin of each episode."""
    return LIVES[(env + 2 * episode + step) % len(LIVES)]


def is_lost(env: Any, episode: Any, step: Any) -> Any:
    """Say whether a step loses a life."""
    return lives(env, episode, step + 1) < lives(env, episode, step)


def spawn(env: int, episode: int, step: int) -> int:
    """Say the step with which the life began that a step belongs to."""
    return next((at for at in range(step, 0, -1) if is_lost(env, episode, at - 1)), 0)


def encode(form: Form, env: int, episode: int, step: int, action: int) -> Obs:
    """Write a tag, and the action that led here (-1: none), as an observation."""
    if form == "dict":
        frame = np.full((2, 2), step % 256, np.uint8)
        return {
            "where": np.array([env, episode], np.int32),
            "when": (step, frame),
            "last": np.array([action], np.float32),
        }
    array = np.array([env, episode, step, action], np.float32)
    return {"obs": array, ACTION_MASK: legal(env, episode, step)} if form == "masked" else array


def decode(obs: Obs) -> NDArray[np.int64]:
    """Read tags [..., 4] back from observations, checking that their leaves agree."""
    if not isinstance(obs, dict):
        return np.asarray(obs).astype(np.int64)
    if "obs" in obs:
        tags = decode(obs["obs"])
    else:
        step, frame = obs["when"]
        tags = np.concatenate([obs["where"], step[..., None], obs["last"]], axis=-1).astype(np.int64)
        np.testing.assert_array_equal(frame, np.broadcast_to(step[..., None, None] % 256, frame.shape))
    if ACTION_MASK in obs:
        mask = obs[ACTION_MASK]
        newest = tags if tags.ndim == mask.ndim else tags[..., -1, :]  # a stack has the newest frame's mask
        np.testing.assert_array_equal(mask, legal(*np.moveaxis(newest[..., :3], -1, 0)))
    return tags


def spaces_of(form: Form) -> gym.Space[Any]:
    """Return the observation space of a form."""
    if form == "dict":
        return gym.spaces.Dict(
            {
                "where": gym.spaces.Box(0, 2**20, (2,), np.int32),
                "when": gym.spaces.Tuple((gym.spaces.Discrete(2**20), gym.spaces.Box(0, 255, (2, 2), np.uint8))),
                "last": gym.spaces.Box(-1, N_ACTIONS, (1,), np.float32),
            }
        )
    array = gym.spaces.Box(-1, 2**20, (4,), np.float32)
    if form == "masked":
        return gym.spaces.Dict({"obs": array, ACTION_MASK: gym.spaces.MultiBinary(N_ACTIONS)})
    return array


class TaggedEnv(gym.Env[Any, Any]):
    """Live by the rules above and keep a log of what was really done: {episode: [action, ...]}."""

    def __init__(self, env: int, form: Form = "array", length_of: Callable[[Any, Any], Any] = length) -> None:
        self.observation_space = spaces_of(form)
        self.action_space = gym.spaces.Discrete(N_ACTIONS)
        self.env, self.form, self.length_of = env, form, length_of
        self.episode = -1
        self.log: dict[int, list[int]] = {}
        self.seeds: list[int | None] = []  # of each reset
        self.options: list[dict[str, Any] | None] = []
        self.is_over = True
        self.n_closed = 0

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Obs, dict[str, Any]]:
        self.seeds.append(seed)
        self.options.append(options)
        self.episode += 1
        self.log[self.episode] = []
        self.is_over = False
        return self._observe(-1)

    def step(self, action: Any) -> tuple[Obs, float, bool, bool, dict[str, Any]]:
        assert not self.is_over, "stepped past the end of an episode"
        actions = self.log[self.episode]
        step = len(actions)
        actions.append(int(action))
        gain = reward(self.env, self.episode, step)
        self.is_over = step + 1 == self.length_of(self.env, self.episode)
        terminated = self.is_over and is_terminated(self.env, self.episode)
        truncated = self.is_over and is_truncated(self.env, self.episode)
        obs, info = self._observe(int(action))
        return obs, gain, terminated, truncated, info

    def close(self) -> None:
        self.n_closed += 1

    def _observe(self, action: int) -> tuple[Obs, dict[str, Any]]:
        step = len(self.log[self.episode])
        obs = encode(self.form, self.env, self.episode, step, action)
        where = self.env, self.episode, step
        return obs, {"legal": legal(*where), "lives": int(lives(*where))}
