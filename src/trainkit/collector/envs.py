"""N environments as one: what the policy may act on now, and the true outcome of each step.

Here stacks of frames are made for acting, masks lifted into the observation, lives counted, episodes seeded, and data
checked, so that no row leaves this file that must not be learnt from.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple, NoReturn

import gymnasium as gym
import numpy as np
from numpy.typing import NDArray

from trainkit import seeding, tree
from trainkit.collector.actions import Actions
from trainkit.collector.backends import Backend, Begun, Failure, Ids, Options
from trainkit.collector.frames import checked_frames
from trainkit.collector.processing import Processed
from trainkit.collector.reading import Column, Infos, is_finite, read_infos
from trainkit.collector.replays import PlayedActions
from trainkit.collector.stacks import repeat, shift
from trainkit.data import ACTION_MASK, Obs
from trainkit.errors import BadEnvDataError, ConfigError, EnvError
from trainkit.spaces import masked_space, stacked_space, zeros_of


class VectorStep(NamedTuple):
    """The true outcome of one vector step, K rows."""

    next_obs: Obs  # [K, ...], before any reset
    reward: NDArray[np.float64]  # [K]
    terminated: NDArray[np.bool_]  # [K], by the game or, for the learner alone, by a lost life
    truncated: NDArray[np.bool_]  # [K]
    over: NDArray[np.bool_]  # [K], whose game ended: to be counted and begun again
    infos: Infos  # of K rows


class Envs:
    """Environments stepped together; `make_envs` makes one.

    `obs` [N, ...] is what to act on, `ready` the ids of the environments that await an action. A collector calls
    `reset` once, then `step` and, where episodes ended, `begin`.

    Attributes:
        n: number of environments; where agents share a game, of agents in all games, each by itself a row.
        agents: their names, the rows of a game in order; empty where an environment has one.
        n_agents: per game.
        observation_space: of one environment as the policy sees it: stacked, with the mask in.
        action_space: of one environment as the policy sees it: a Discrete space starts at 0.
        frame_space: of one environment as the buffer stores it: one frame, with the mask in.
        stack: frames per observation.
    """

    def __init__(
        self,
        backend: Backend,
        *,
        stack: int = 1,
        mask_key: str | None = None,
        lives_key: str | None = None,
        seed: int | None = None,
        name: str = "custom",
        agents: Sequence[str] = (),
    ) -> None:
        self._backend = backend
        self.n = backend.n
        self.agents = tuple(agents)
        self.n_agents = max(1, len(self.agents))
        self.name = name
        self.stack = stack
        self._mask_key = mask_key
        self._lives_key = lives_key
        space = backend.observation_space
        self._actions = Actions(backend.action_space)
        self.action_space: gym.Space[Any] = self._actions.space
        self._is_bare = not isinstance(space, gym.spaces.Dict)  # whether a lifted mask needs a dict around the rest
        self.frame_space: gym.Space[Any] = space if mask_key is None else masked_space(space, self.action_space)
        self.observation_space = stacked_space(self.frame_space, stack)
        self.is_seeded = seed is not None
        self._root = seeding.fresh_root() if seed is None else seed
        self.all_ids: Ids = np.arange(self.n)
        self.ready: Ids = self.all_ids
        self.obs: Obs = None
        self.episodes = np.full(self.n, -1, np.int64)  # [N], number of the episode that runs
        self._steps = np.zeros(self.n, np.int64)  # [N], steps of the episode that runs
        self._lives = np.zeros(self.n, np.int64)  # [N], left; only where they are counted
        self._options: Options = None
        self._played = PlayedActions(self.n, keeps=backend.seeds_episodes)
        self._is_closed = False

    def __repr__(self) -> str:
        return f"Envs({self.name!r}, n={self.n}, {self.observation_space} -> {self.action_space})"

    def seed(self, root: int) -> None:
        """Seed every episode that begins from now on by (root, environment, episode)."""
        self._root = root
        self.is_seeded = True

    @property
    def takes_options(self) -> bool:
        """Whether `options` can reach the environments: not those that reset themselves."""
        return self._backend.takes_options

    @property
    def options(self) -> Options:
        """What every environment's next reset is told, Gymnasium's `reset(options=)`: a task, a level. Set it."""
        return self._options

    @options.setter
    def options(self, options: Options) -> None:
        if options is not None and not isinstance(options, dict):
            raise ConfigError(f"Envs.options must be a dict or None, got {options!r}")
        if options and not self.takes_options:
            raise ConfigError(
                f"Envs.options cannot reach the environments of {self.name}, which reset themselves: have the vector "
                "environment made with AutoresetMode.DISABLED, or give make_envs an id or factories"
            )
        self._options = options

    def reset(self, *, seed: int | None = None, options: Options = None) -> Obs:
        """Begin an episode everywhere and return the observations [N, ...].

        With a `seed` the same episodes follow as the last time it was given, where the environments allow it. What
        `options` say goes before this object's own.
        """
        if seed is not None:
            self.seed(seed)
            self.episodes[:] = -1
        self.episodes += 1
        self._steps[:] = 0
        options = self._options if options is None else options
        self._played.begin(self.all_ids, options)
        try:
            begun = self._backend.reset(self._seeds_of(self.all_ids), options)
        except Failure as failure:
            raise self._explain(failure) from failure.__cause__
        self.ready = self.all_ids
        if len(begun.env_ids) == self.n:
            self.obs = self._first_obs(begun)
        else:  # an agent may be missing when its game begins
            self.obs = zeros_of(self.observation_space, self.n)
            self._take(begun)
            self.ready = begun.env_ids
        return self.obs

    def step(self, action: NDArray[Any], env_ids: Ids) -> VectorStep:
        """Step environments [K] with actions [K, ...] and return what came of it.

        Raises:
            EnvError: an environment raised, or returned what must not be learnt from; reset before going on.
        """
        self._actions.check(action, env_ids, self._when)
        try:
            raw = self._backend.step(self._actions.as_taken(action), env_ids)
        except Failure as failure:
            raise self._explain(failure, (action, env_ids)) from failure.__cause__
        everyone = len(env_ids) == self.n
        if everyone:
            self._steps += 1
        else:
            self._steps[env_ids] += 1
        self._check_reward(raw.reward, action, env_ids)
        self._played.add(action, env_ids)
        next_obs = frame = self._frame(raw.next_obs, raw.infos, env_ids)
        if self.stack > 1:
            next_obs = shift(self.obs if everyone else _rows(self.obs, env_ids), frame)
        self.obs = next_obs if everyone else _put(self.obs, env_ids, next_obs)
        terminated, over = raw.terminated, raw.terminated | raw.truncated
        if raw.over is not None:
            self._turn(env_ids[over], self.all_ids[:0])  # an agent that leaves awaits another game
            over = raw.over
        if self._lives_key is not None:
            lost = self._lose_lives(raw.infos, env_ids, over)
            terminated = terminated | lost
            if self.stack > 1 and np.count_nonzero(lost):  # the buffer's next episode begins with this frame
                anew = np.flatnonzero(lost)
                self.obs = _put(self.obs, env_ids[anew], repeat(_rows(frame, anew), self.stack))
        if raw.begun is not None:
            self._take(raw.begun)
            self._turn(self.all_ids[:0], raw.begun.env_ids)
        return VectorStep(next_obs, raw.reward, terminated, raw.truncated, over, raw.infos)

    def begin(self, env_ids: Ids) -> None:
        """Begin the next episode of environments whose episode ended; some are `ready` a step later only."""
        self.episodes[env_ids] += 1
        self._steps[env_ids] = 0
        self._played.begin(env_ids, self._options)
        try:
            begun = self._backend.begin(env_ids, self._seeds_of(env_ids), self._options)
        except Failure as failure:
            raise self._explain(failure) from failure.__cause__
        if begun is not None:
            if len(begun.env_ids) < len(env_ids):  # nothing of the last game is left where an agent is missing
                self.obs = _put(self.obs, env_ids, zeros_of(self.observation_space, len(env_ids)))
            self._take(begun)
        if begun is None or self.agents:
            self._turn(env_ids, env_ids[:0] if begun is None else begun.env_ids)

    def whole_games(self, env_ids: Ids) -> Ids:
        """Return the rows of all agents in the games that these rows are of."""
        if self.n_agents == 1:
            return env_ids
        games: Ids = np.unique(env_ids // self.n_agents)
        return (games[:, None] * self.n_agents + np.arange(self.n_agents)).ravel()

    def call(self, name: str, *args: Any, env_ids: Ids | None = None) -> list[Any]:
        """Call a method of single environments, or read an attribute; answers [K], of all where no ids are given."""
        try:
            return self._backend.call(name, args, self.all_ids if env_ids is None else np.asarray(env_ids))
        except Failure as failure:
            raise self._explain(failure) from failure.__cause__

    def render(self, env_ids: Ids | None = None) -> list[NDArray[np.uint8]]:
        """Return a picture of each, [height, width, 3]; refuse environments that were not made to render arrays."""
        return checked_frames(self.call("render", env_ids=env_ids), self.all_ids if env_ids is None else env_ids)

    def close(self) -> None:
        """Close the environments; closing twice is fine."""
        if not self._is_closed:
            self._is_closed = True
            self._backend.close()

    def state_dict(self, *, with_running: bool = True) -> dict[str, Any]:
        """Return what the next episodes are seeded by, what processors keep, and how those that run came to be."""
        played = self._played.state_dict(self.obs) if with_running else None
        state: dict[str, Any] = {"root": self._root, "episodes": self.episodes.copy(), "played": played}
        return state | ({"processors": self._backend.state_dict()} if isinstance(self._backend, Processed) else {})

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on with the seeds of the episodes after those saved; a reset must follow."""
        self._root = state["root"]
        self.episodes[:] = state["episodes"]
        self.is_seeded = True
        if isinstance(self._backend, Processed):
            self._backend.load_state_dict(state.get("processors", []))

    def _seeds_of(self, env_ids: Ids) -> list[int]:
        rows = [(env_id // self.n_agents, int(self.episodes[env_id])) for env_id in env_ids.tolist()]
        return [seeding.episode_seed(self._root, *row) for row in rows]

    def _turn(self, away: Ids, here: Ids) -> None:
        """Let some environments await an action no longer, and others from now on."""
        ready = np.union1d(np.setdiff1d(self.ready, away), here)
        self.ready = self.all_ids if len(ready) == self.n else ready

    def _take(self, begun: Begun) -> None:
        """Let begun episodes' first observations be acted on next."""
        self.obs = _put(self.obs, begun.env_ids, self._first_obs(begun))

    def _first_obs(self, begun: Begun) -> Obs:
        frame = self._frame(begun.obs, begun.infos, begun.env_ids)
        if self._lives_key is not None:
            self._lives[begun.env_ids] = self._read_lives(begun.infos.column(self._lives_key), begun.env_ids)
        return repeat(frame, self.stack) if self.stack > 1 else frame

    def _frame(self, obs: Obs, infos: Infos, env_ids: Ids) -> Obs:
        """Return single frames [K, ...], checked, with the mask in."""
        for path, leaf in tree.named_leaves(obs):
            if leaf.dtype.kind == "f" and not is_finite(leaf):
                name = f"observation[{path}]" if path else "observation"
                through = " (through its processors)" if isinstance(self._backend, Processed) else ""
                self._refuse_first(~np.isfinite(leaf), env_ids, f"returned{through} {name}", leaf)
        if self._mask_key is None:
            return obs
        inner = {"obs": obs} if self._is_bare else obs
        return {**inner, ACTION_MASK: self._read_masks(infos.column(self._mask_key), env_ids)}

    def _read_masks(self, masks: Column, env_ids: Ids) -> NDArray[np.int8]:
        """Read the masks [K, A] of K infos."""
        n_actions = int(self.action_space.n)  # type: ignore[attr-defined]  # masked_space lets only Discrete through
        rule = f"info[{self._mask_key!r}] must be {n_actions} bools, one per action"
        legal: NDArray[np.bool_] = read_infos(rule, masks, env_ids, self._when, shape=(n_actions,), kinds="biu") != 0
        return legal.astype(np.int8)

    def _read_lives(self, lives: Column, env_ids: Ids) -> NDArray[Any]:
        """Read the lives [K] of K infos."""
        return read_infos(f"info[{self._lives_key!r}] must be a whole number", lives, env_ids, self._when, kinds="iu")

    def _lose_lives(self, infos: Infos, env_ids: Ids, over: NDArray[np.bool_]) -> NDArray[np.bool_]:
        """Write down what lives are left and return where one was lost [K]."""
        assert self._lives_key is not None, "asked only where lives are counted"
        before = self._lives[env_ids]
        lives = infos.column(self._lives_key)
        if np.count_nonzero(over):  # ale-py's SAME_STEP keeps a game's last info to itself: no life was lost there
            known = zip(lives, before, over, strict=True)
            lives = [left if ended and own is None else own for own, left, ended in known]
        after = self._read_lives(lives, env_ids)
        self._lives[env_ids] = after
        return after < before

    def _check_reward(self, reward: NDArray[np.float64], action: NDArray[Any], env_ids: Ids) -> None:
        if not is_finite(reward):
            self._refuse_first(~np.isfinite(reward), env_ids, "returned reward", reward, action)

    def _refuse_first(
        self, bad: NDArray[np.bool_], env_ids: Ids, what: str, values: NDArray[Any], action: NDArray[Any] | None = None
    ) -> NoReturn:
        """Refuse the first bad value, saying which environment, when, and after which action."""
        at = np.argwhere(bad)[0]
        env_id = int(env_ids[at[0]])
        where = f" at index {tuple(at[1:].tolist())}" if len(at) > 1 else ""
        acted = "" if action is None else f" (action {action[at[0]]})"
        raise BadEnvDataError(f"env {env_id}: {what} {values[tuple(at)]}{where}, at {self._when(env_id)}{acted}")

    def _when(self, env_id: int) -> str:
        when = f"episode {self.episodes[env_id]} step {self._steps[env_id]}"
        game, agent = divmod(env_id, self.n_agents)
        return f"{when} of agent {self.agents[agent]!r} in game {game}" if self.agents else when

    def _explain(self, failure: Failure, acted: tuple[NDArray[Any], Ids] | None = None) -> EnvError:
        """Turn a backend's failure into an error that says which environment, when, and after which action."""
        kind = EnvError if failure.__cause__ is not None else BadEnvDataError
        env_id = failure.env_id
        if env_id is None:
            return kind(f"{self.name}: {failure.what}")
        when = self._when(env_id)
        if acted is not None:
            action, env_ids = acted
            when += f" (action {action[np.flatnonzero(env_ids == env_id)[0]]})"
        (seed,) = self._seeds_of(np.array([env_id]))
        return kind(f"env {env_id} {failure.what}, at {when}, episode seed {seed}")


def _rows(obs: Obs, env_ids: Ids) -> Obs:
    return tree.map_tree(lambda leaf: leaf[env_ids], obs)


def _put(obs: Obs, env_ids: Ids, rows: Obs) -> Obs:
    """Return a copy of [N, ...] leaves with rows [K, ...] in their places."""
    copy = tree.map_tree(np.copy, obs)
    for leaf, new in zip(tree.leaves(copy), tree.leaves(rows), strict=True):
        leaf[env_ids] = new
    return copy
