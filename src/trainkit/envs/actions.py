"""Actions on their way to the environments: refused where none can take them, else as they take them."""

from collections.abc import Callable
from typing import Any

import gymnasium as gym
import numpy as np
from numpy.typing import NDArray

from trainkit.core.arrays import any_true, is_finite
from trainkit.core.errors import BadEnvDataError, EnvError
from trainkit.core.spaces import discrete_bounds
from trainkit.core.structured_actions import StructuredHybrid, flat_actions, structure_of
from trainkit.envs.backends import Ids

_UNSIGNED = np.dtype(np.uint64)  # numpy looks a scalar's type up at every call, a dtype it does not


class NestedActions(gym.ActionWrapper[Any, Any, Any]):
    """Let flat rows be the actions of an environment whose action space is a Dict or Tuple."""

    def __init__(self, env: gym.Env[Any, Any]) -> None:
        super().__init__(env)
        self.action_space = flat_actions(env.action_space)
        self._structure = structure_of(self.action_space)

    def action(self, action: Any) -> Any:
        """Return a flat row [W] nested."""
        assert self._structure is not None, "only nested actions are wrapped"
        return self._structure.unpack(action)


def with_flat_actions(env: gym.Env[Any, Any]) -> gym.Env[Any, Any]:
    """Return an environment that takes flat rows, itself where its actions are not nested, or those of a game."""
    space: object = getattr(env, "action_space", None)  # a method, of a game
    return NestedActions(env) if isinstance(space, (gym.spaces.Dict, gym.spaces.Tuple)) else env


class Actions:
    """What a policy may answer: the environments' own actions, a Discrete space counted from 0.

    Attributes:
        space: of one environment as the policy sees it.
    """

    def __init__(self, space: gym.Space[Any]) -> None:
        self._first = 0
        if isinstance(space, gym.spaces.Discrete):
            self._first = int(space.start)
            space = gym.spaces.Discrete(int(space.n))
        self.space: gym.Space[Any] = space
        self._shape = space.shape or ()
        self._hybrid = space if isinstance(space, StructuredHybrid) else None
        self._box = space if isinstance(space, gym.spaces.Box) else self._hybrid  # has floats, and bounds for each
        if self._box is None:
            low, high = discrete_bounds(space)
            self._low = low.astype(np.int64) if np.any(low) else None
            self._span = np.asarray(high - low, _UNSIGNED)

    def check(self, action: NDArray[Any], env_ids: Ids, when: Callable[[int], str]) -> None:
        """Refuse what no environment can take, before one sees it; `when(env_id)` says where that one stands."""
        if len(action) != len(env_ids) or action.shape[1:] != self._shape:
            raise EnvError(
                f"the policy produced actions of shape {action.shape} for {len(env_ids)} environments of "
                f"{self.space}: it must be {(len(env_ids), *self._shape)}"
            )
        if self._box is not None:
            if action.dtype.kind == "f" and not is_finite(action):
                self._refuse_first(~np.isfinite(action), action, env_ids, when, "action")
            if self._hybrid is not None:
                invalid = self._hybrid.invalid_choices(action)
                if any_true(invalid):
                    self._refuse_first(invalid, action, env_ids, when, f"an action outside {self.space}:")
            return
        if action.dtype.kind not in "biu":
            raise EnvError(f"the policy produced {action.dtype} actions for {self.space}: make them whole numbers")
        above = action if self._low is None else action.astype(np.int64, copy=False) - self._low
        outside = above.astype(_UNSIGNED) > self._span  # where what is too low is huge
        if any_true(outside):
            self._refuse_first(outside, action, env_ids, when, f"an action outside {self.space}:")

    def as_taken(self, action: NDArray[Any]) -> NDArray[Any]:
        """Return actions as the environments take them: counted from the space's first, in a Box within its bounds."""
        if self._box is not None:
            clipped: NDArray[Any] = np.clip(action, self._box.low, self._box.high)
            return clipped
        return action + self._first if self._first else action

    def _refuse_first(
        self, bad: NDArray[np.bool_], action: NDArray[Any], env_ids: Ids, when: Callable[[int], str], what: str
    ) -> None:
        at = np.argwhere(bad)[0]
        env_id = int(env_ids[at[0]])
        where = f" at index {tuple(at[1:].tolist())}" if len(at) > 1 else ""
        raise BadEnvDataError(f"env {env_id}: the policy produced {what} {action[tuple(at)]}{where}, at {when(env_id)}")
