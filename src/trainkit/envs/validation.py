"""What environments returned, as it is learnt from: finite numbers, with the mask in; anything else refused by name."""

from collections.abc import Callable
from typing import Any, NoReturn

import gymnasium as gym
import numpy as np
from numpy.typing import NDArray

from trainkit.core import tree
from trainkit.core.arrays import any_true, is_finite
from trainkit.core.data import ACTION_MASK, Obs
from trainkit.core.errors import BadEnvDataError, NoLegalActionError
from trainkit.core.spaces import legal_actions, masked_space
from trainkit.envs.backends import Ids
from trainkit.envs.bounds import BoundsWatch, DiscreteLeaves
from trainkit.envs.conversion import Column, Infos, read_infos

Acted = tuple[NDArray[Any], Ids]  # actions [K, ...], and whose they were [K]


class Vetting:
    """Check rows of N environments.

    Args:
        space: of one observation.
        action_space: of one action.
        mask_key: of the info that holds the legal actions.
        lives_key: of the info that counts lives.
        when: says where an environment stands, by its id and the actions [K] and ids [K] of a step that was made.
        through: what observations came through before they are seen here.

    Attributes:
        frame_space: of one observation with the mask in.
    """

    def __init__(
        self,
        space: gym.Space[Any],
        action_space: gym.Space[Any],
        *,
        mask_key: str | None,
        lives_key: str | None,
        when: Callable[..., str],
        through: str = "",
    ) -> None:
        self._mask_key, self._lives_key, self._when = mask_key, lives_key, when
        self._through = through
        self._bounds = BoundsWatch(space)
        self._discrete = DiscreteLeaves(space)
        self._is_bare = not isinstance(space, gym.spaces.Dict)  # whether a lifted mask needs a dict around the rest
        self._n_actions = int(getattr(action_space, "n", 0))  # masked_space lets only Discrete through
        self.frame_space: gym.Space[Any] = space if mask_key is None else masked_space(space, action_space)

    def frames(self, obs: Obs, infos: Infos, env_ids: Ids, acted: Acted | None = None) -> Obs:
        """Return single frames [K, ...], checked, with the mask in; `acted` led there."""
        for leaf in tree.leaves(obs):
            if leaf.dtype.kind == "f" and not is_finite(leaf):
                self._refuse_obs(obs, env_ids, acted)
        outside = self._discrete.outside(obs)
        if outside is not None:
            path, space, values, bad = outside
            name = f"observation[{path}]" if path else "observation"
            self._refuse_first(bad, env_ids, f"returned{self._through} {name} outside {space}:", values, acted)
        self._bounds.look(obs)
        if self._mask_key is None:
            return obs
        inner = {"obs": obs} if self._is_bare else obs
        return {**inner, ACTION_MASK: self._masks(infos.column(self._mask_key), env_ids)}

    def check_reward(self, reward: NDArray[np.float64], env_ids: Ids, acted: Acted) -> None:
        """Refuse rewards [K] that are not finite."""
        if not is_finite(reward):
            self._refuse_first(~np.isfinite(reward), env_ids, "returned reward", reward, acted)

    def check_bootstrap(self, obs: Obs, is_cut: NDArray[np.bool_], env_ids: Ids, acted: Acted) -> None:
        """Raise `NoLegalActionError` where an episode is truncated in an observation whose mask allows no action."""
        legal = legal_actions(obs)
        if legal is None:
            return
        bad = is_cut & ~legal.any(axis=1)
        if any_true(bad):
            env_id = int(env_ids[bad.argmax()])
            raise NoLegalActionError(
                f"env {env_id} truncated an episode in an observation that allows no action, so it has no value to "
                f"bootstrap from: its {ACTION_MASK} is all False; return terminated=True, or leave one legal, at "
                f"{self._when(env_id, acted)}",
                env_id=env_id,
            )

    def lives(self, lives: Column, env_ids: Ids) -> NDArray[Any]:
        """Read the lives [K] of K infos."""
        return read_infos(f"info[{self._lives_key!r}] must be a whole number", lives, env_ids, self._when, kinds="iu")

    def _masks(self, masks: Column, env_ids: Ids) -> NDArray[np.int8]:
        """Read the masks [K, A] of K infos."""
        shape = (self._n_actions,)
        rule = f"info[{self._mask_key!r}] must be {self._n_actions} bools, one per action"
        legal: NDArray[np.bool_] = read_infos(rule, masks, env_ids, self._when, shape=shape, kinds="biu") != 0
        return legal.astype(np.int8)

    def _refuse_obs(self, obs: Obs, env_ids: Ids, acted: Acted | None) -> NoReturn:
        """Refuse the first value that is not finite, of the first leaf that has one."""
        floats = [(path, leaf) for path, leaf in tree.named_leaves(obs) if leaf.dtype.kind == "f"]
        path, leaf = next((path, leaf) for path, leaf in floats if not is_finite(leaf))
        name = f"observation[{path}]" if path else "observation"
        self._refuse_first(~np.isfinite(leaf), env_ids, f"returned{self._through} {name}", leaf, acted)

    def _refuse_first(
        self,
        bad: NDArray[np.bool_],
        env_ids: Ids,
        what: str,
        values: NDArray[Any],
        acted: Acted | None,
    ) -> NoReturn:
        """Refuse the first bad value, saying which environment, when, and after which action."""
        at = np.argwhere(bad)[0]
        env_id = int(env_ids[at[0]])
        where = f" at index {tuple(at[1:].tolist())}" if len(at) > 1 else ""
        text = f"env {env_id}: {what} {values[tuple(at)]}{where}, at {self._when(env_id, acted)}"
        raise BadEnvDataError(text, env_id=env_id)


def action_of(env_id: int, acted: Acted) -> Any:
    """Return one environment's action among those of several."""
    action, env_ids = acted
    return action[np.flatnonzero(env_ids == env_id)[0]]
