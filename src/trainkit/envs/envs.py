"""N environments as one: what the policy may act on now, and the true outcome of each step.

Here stacks of frames are made for acting, masks lifted into the observation, lives counted, episodes seeded, and data
checked, so that no row leaves this file that must not be learnt from.
"""

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, TypeVar

import gymnasium as gym
import numpy as np
from numpy.typing import NDArray

from trainkit.core import seeding
from trainkit.core.arrays import any_true
from trainkit.core.data import Obs
from trainkit.core.errors import BadEnvDataError, ConfigError, EnvError, NoLegalActionError
from trainkit.core.spaces import stacked_space, zeros_of
from trainkit.envs.actions import Actions
from trainkit.envs.backends import Backend, Begun, Failure, Ids, Options, RawStep, Work, no_work
from trainkit.envs.conversion import Infos
from trainkit.envs.counting import Spent, StepCounts
from trainkit.envs.frames import checked_frames
from trainkit.envs.ownership import Ownership, Use
from trainkit.envs.processors import Processed
from trainkit.envs.recovery import PlayedActions, Restarts, differences
from trainkit.envs.stacks import put_rows, repeat, rows_of, shift
from trainkit.envs.validation import Acted, Vetting, action_of

_Rows = TypeVar("_Rows", Begun, RawStep)
_Read = TypeVar("_Read")
_Result = TypeVar("_Result")

_NONE: Mapping[int, EnvError] = {}


class VectorStep(NamedTuple):
    """The true outcome of one vector step, K rows."""

    env_ids: Ids  # [K], those that answered
    next_obs: Obs  # [K, ...], before any reset
    reward: NDArray[np.float64]  # [K]
    terminated: NDArray[np.bool_]  # [K], by the game or, for the learner alone, by a lost life
    truncated: NDArray[np.bool_]  # [K]
    ended: NDArray[np.bool_]  # [K], by either; the environments' own, where they are what `over` says
    over: NDArray[np.bool_]  # [K], whose game ended: to be counted and begun again
    infos: Infos  # of K rows
    lost: Mapping[int, EnvError]  # environments that failed, and by what; to be begun again
    late_rewards: Mapping[int, float]  # of agents that did not act in this step, by row


class Envs:
    """Environments stepped together; `make_envs` makes one.

    `obs` [N, ...] is what to act on, `ready` the ids of the environments that await an action. A collector calls
    `reset` once, then `step` and, where episodes ended, `begin`. They have one owner, a `Collector`; without one they
    may be reset and stepped by hand.

    Attributes:
        n: number of environments; where agents share a game, of agents in all games, each by itself a row.
        agents: their names, the rows of a game in order; empty where an environment has one.
        n_agents: per game.
        observation_space: of one environment as the policy sees it: stacked, with the mask in.
        action_space: of one environment as the policy sees it: a Discrete space starts at 0.
        frame_space: of one environment as the buffer stores it: one frame, with the mask in.
        stack: frames per observation.
        restarts: of environments that failed.
        max_episode_steps: the environments' own time limit, where it is known: given to `make_envs`, or the id's.
        ownership: their one owner, and the thread that uses them.
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
        restarts: Restarts | None = None,
        max_episode_steps: int | None = None,
    ) -> None:
        self._backend = backend
        self.n = backend.n
        self.agents = tuple(agents)
        self.n_agents = max(1, len(self.agents))
        self.name = name
        self.made_with: dict[str, Any] = {}  # what a resumed run compares: arguments of make_envs, in words
        self.stack = stack
        self.max_episode_steps = max_episode_steps
        self.restarts = Restarts(backend.n) if restarts is None else restarts
        self._lives_key = lives_key
        self._actions = Actions(backend.action_space)
        self.action_space: gym.Space[Any] = self._actions.space
        self._vetting = Vetting(
            backend.observation_space,
            self.action_space,
            mask_key=mask_key,
            lives_key=lives_key,
            when=self._when,
            through=" (through its processors)" if isinstance(backend, Processed) else "",
        )
        self.frame_space = self._vetting.frame_space
        self.observation_space = stacked_space(self.frame_space, stack)
        self.is_seeded = seed is not None
        self._root = seeding.fresh_root() if seed is None else seed
        self.all_ids: Ids = np.arange(self.n)
        self.ready: Ids = self.all_ids
        self._is_ready = np.ones(self.n, np.bool_)  # [N], the same as a mask
        self.obs: Obs = None
        self.episodes = np.full(self.n, -1, np.int64)  # [N], number of the episode that runs
        self._steps = StepCounts(self.n)  # of the episodes that run
        self._lives = np.zeros(self.n, np.int64)  # [N], left; only where they are counted
        self._options: Options = None
        self.spent = backend.spent if isinstance(backend, Processed) else Spent()  # seconds, ever
        self._broken: dict[int, EnvError] = {}  # environments that failed and are not made anew yet
        self._played = PlayedActions(self.n, keeps=backend.seeds_episodes)
        self.ownership = Ownership(f"the environments of {name}")

    def __repr__(self) -> str:
        return f"Envs({self.name!r}, n={self.n}, {self.observation_space} -> {self.action_space})"

    def seed(self, root: int) -> None:
        """Seed every episode that begins from now on by (root, environment, episode)."""
        self._root = root
        self.is_seeded = True

    @property
    def root(self) -> int:
        """Root of the episodes' seeds; drawn from the operating system where no seed was given."""
        return self._root

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

        Raises:
            ConfigError: they are closed, or belong to a collector that is not resetting them.
            BusyError: they are in use.
        """
        if self.ownership.thread != threading.get_ident():
            return self._directly(self.reset, seed=seed, options=options)
        if seed is not None:
            self.seed(seed)
            self.episodes[:] = -1
        self._turn(self.all_ids[:0], self.all_ids)
        if self.obs is None:
            self.obs = zeros_of(self.observation_space, self.n)
        self._start(self.all_ids, self._options if options is None else options, is_reset=True)
        return self.obs

    def step(self, action: NDArray[Any], env_ids: Ids, work: Work = no_work) -> VectorStep:
        """Step environments [K] with actions [K, ...] and return what came of it; call `work` while they step.

        Raises:
            EnvError: an environment raised, or returned what must not be learnt from, and is not to be made anew;
                reset before going on.
            ConfigError, BusyError: as `reset`.
        """
        if self.ownership.thread != threading.get_ident():
            return self._directly(self.step, action, env_ids, work)
        clock, spent = time.perf_counter, self.spent
        began = clock()
        self._actions.check(action, env_ids, self._when)
        acted = action, env_ids
        taken = self._actions.as_taken(action)
        spent.action += clock() - began
        try:
            raw = self._backend.step(taken, env_ids, work)
        except Failure as failure:
            raise self._explain(failure, acted) from failure.__cause__
        stepped = clock()
        for lost in raw.failures.values():
            self._lose(self._explain(lost, acted))
        self._steps.add(env_ids)
        raw, (frame, lives) = self._sound(raw, self._vetted, acted)
        if len(raw.env_ids) < len(env_ids):
            action, env_ids = action[np.isin(env_ids, raw.env_ids)], raw.env_ids
        self._played.add(action, env_ids)
        everyone = len(env_ids) == self.n
        next_obs = frame if self.stack == 1 else shift(self.obs if everyone else rows_of(self.obs, env_ids), frame)
        self.obs = next_obs if everyone else put_rows(self.obs, env_ids, next_obs)
        terminated, ended, over = raw.terminated, raw.over, raw.over
        if self.agents:
            ended = terminated | raw.truncated
            self._turn(env_ids[ended], self.all_ids[:0])  # who leaves awaits another game
        if lives is not None:
            has_lost = lives < self._lives[env_ids]
            self._lives[env_ids] = lives
            terminated = terminated | has_lost
            ended = terminated | raw.truncated
            if self.stack > 1 and any_true(has_lost):  # the buffer's next episode begins with this frame
                anew = np.flatnonzero(has_lost)
                self.obs = put_rows(self.obs, env_ids[anew], repeat(rows_of(frame, anew), self.stack))
        spent.obs += clock() - stepped
        if raw.begun is not None:
            self._take(raw.begun)
            self._turn(self.all_ids[:0], raw.begun.env_ids)
        if self.restarts.are_allowed and any_true(over):
            self.restarts.forgive(env_ids[over].tolist())
        failed = dict(self._broken) if self._broken else _NONE
        flags = terminated, raw.truncated, ended, over
        return VectorStep(env_ids, next_obs, raw.reward, *flags, raw.infos, failed, raw.late_rewards)

    def begin(self, env_ids: Ids) -> None:
        """Begin the next episode where one ended or an environment failed; some are `ready` a step later only.

        Raises:
            EnvError: an environment failed too often in a row.
            ConfigError, BusyError: as `reset`.
        """
        if self.ownership.thread != threading.get_ident():
            return self._directly(self.begin, env_ids)
        self._start(env_ids, self._options)

    def call(self, name: str, *args: Any, env_ids: Ids | None = None) -> list[Any]:
        """Call a method of single environments, or read an attribute; answers [K], of all where no ids are given.

        Raises:
            ConfigError: they are closed.
            BusyError: another thread uses them.
        """
        use = Use()
        try:
            if self.ownership.thread != use.thread:  # else within a collect, as in a callback
                self.ownership.enter_call(use)
            return self._backend.call(name, args, self.all_ids if env_ids is None else np.asarray(env_ids))
        except Failure as failure:
            raise self._explain(failure) from failure.__cause__
        finally:
            self.ownership.leave(use)

    def render(self, env_ids: Ids | None = None) -> list[NDArray[np.uint8]]:
        """Return a picture of each, [height, width, 3]; refuse environments that were not made to render arrays."""
        began = time.perf_counter()
        frames = checked_frames(self.call("render", env_ids=env_ids), self.all_ids if env_ids is None else env_ids)
        self.spent.render += time.perf_counter() - began
        return frames

    def close(self) -> None:
        """Close the environments; closing twice is fine, any other use after it raises a ConfigError."""
        if self.ownership.close():
            self._backend.close()

    def detach(self) -> None:
        """Give the environments back to whoever passed them in, open; this object is closed."""
        if self.ownership.close():
            self._backend.detach()

    def state_dict(self, *, with_running: bool = True) -> dict[str, Any]:
        """Return what the next episodes are seeded by, what processors keep, and how those that run came to be."""
        played = self._played.state_dict(self.obs) if with_running else None
        state: dict[str, Any] = {"root": self._root, "episodes": self.episodes.copy(), "played": played}
        if played is not None:
            state["fingerprints"] = self._backend.fingerprints()
        return state | ({"processors": self._backend.state_dict()} if isinstance(self._backend, Processed) else {})

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on with the seeds of the episodes after those saved; a reset must follow."""
        self._root = state["root"]
        self.episodes[:] = state["episodes"]
        self.is_seeded = True
        if isinstance(self._backend, Processed):
            self._backend.load_state_dict(state.get("processors", []))

    def lost_attributes(self, state: dict[str, Any]) -> dict[int, list[str]]:
        """Return the attributes that differ from a saved state's, by environment; none where it has no fingerprints."""
        saved = state.get("fingerprints")
        return differences(saved, self._backend.fingerprints()) if saved else {}

    def _seeds_of(self, env_ids: Ids) -> list[int]:
        rows = [(env_id // self.n_agents, int(self.episodes[env_id])) for env_id in env_ids.tolist()]
        return [seeding.episode_seed(self._root, *row) for row in rows]

    def _directly(self, method: Callable[..., _Result], *args: Any, **options: Any) -> _Result:
        """Call a method of this object on behalf of nobody, which raises where they have an owner."""
        use = Use()
        try:
            self.ownership.enter(use)
            return method(*args, **options)
        finally:
            self.ownership.leave(use)

    def _turn(self, away: Ids, here: Ids) -> None:
        """Let some environments await an action no longer, and others from now on."""
        self._is_ready[away], self._is_ready[here] = False, True
        (ready,) = self._is_ready.nonzero()
        self.ready = self.all_ids if len(ready) == self.n else ready

    # ---- episodes that begin ----

    def _start(self, env_ids: Ids, options: Options, *, is_reset: bool = False) -> None:
        """Begin the next episode of environments [K], those anew that failed."""
        self.episodes[env_ids] += 1
        self._steps.begin(env_ids)
        self._played.begin(env_ids, options)
        broken = [env_id for env_id in env_ids.tolist() if env_id in self._broken] if self._broken else []
        well = np.setdiff1d(env_ids, broken) if broken else env_ids
        if len(well):
            self._start_well(well, options, is_reset=is_reset and not broken)
        for env_id in list(self._broken):
            self._mend(env_id, options)

    def _start_well(self, env_ids: Ids, options: Options, *, is_reset: bool) -> None:
        seeds = self._seeds_of(env_ids) if is_reset or self._backend.seeds_episodes else []
        begun: Begun | None = None
        try:
            begun = self._backend.reset(seeds, options) if is_reset else self._backend.begin(env_ids, seeds, options)
        except Failure as failure:
            raise self._explain(failure) from failure.__cause__
        if begun is not None:
            for lost in begun.failures.values():
                self._lose(self._explain(lost))
            if len(begun.env_ids) < len(env_ids):  # nothing of the last game is left where an agent is missing
                self.obs = put_rows(self.obs, env_ids, zeros_of(self.observation_space, len(env_ids)))
            self._take(begun)
            if self._broken:
                self.restarts.reset_failed(sum(env_id in self._broken for env_id in env_ids.tolist()))
        if begun is None or self.agents:  # an agent may be missing when its game begins
            self._turn(env_ids, env_ids[:0] if begun is None else begun.env_ids)

    def _take(self, begun: Begun) -> None:
        """Let begun episodes' first observations be acted on next."""
        began = time.perf_counter()
        begun, first = self._sound(begun, self._first_obs)
        self.obs = first if len(begun.env_ids) == self.n else put_rows(self.obs, begun.env_ids, first)
        self.spent.obs += time.perf_counter() - began

    def _first_obs(self, begun: Begun) -> Obs:
        frame = self._vetting.frames(begun.obs, begun.infos, begun.env_ids)
        if self._lives_key is not None:
            self._lives[begun.env_ids] = self._vetting.lives(begun.infos.column(self._lives_key), begun.env_ids)
        return repeat(frame, self.stack) if self.stack > 1 else frame

    # ---- what goes wrong ----

    def _vetted(self, raw: RawStep, acted: Acted) -> tuple[Obs, NDArray[Any] | None]:
        """Return the frames of a step, and the lives that are left where they are counted [K]."""
        self._vetting.check_reward(raw.reward, raw.env_ids, acted)
        frame = self._vetting.frames(raw.next_obs, raw.infos, raw.env_ids, acted)
        if any_true(raw.truncated):
            self._vetting.check_bootstrap(frame, raw.truncated & ~raw.terminated, raw.env_ids, acted)
        if self._lives_key is None:
            return frame, None
        lives, over = raw.infos.column(self._lives_key), raw.over
        if any_true(over):  # ale-py's SAME_STEP keeps a game's last info to itself: no life was lost there
            known = zip(lives, self._lives[raw.env_ids], over, strict=True)
            lives = [left if ended and own is None else own for own, left, ended in known]
        return frame, self._vetting.lives(lives, raw.env_ids)

    def _sound(self, rows: _Rows, read: Callable[..., _Read], *known: Any) -> tuple[_Rows, _Read]:
        """Read rows, without those whose environment returned what must not be learnt from."""
        while True:
            try:
                return rows, read(rows, *known)
            except BadEnvDataError as error:
                rows = rows.without(self._lose(error))

    def _lose(self, error: EnvError) -> int:
        """Note that an environment is to be made anew and return its id, or raise."""
        if error.env_id is None or not self.restarts.are_allowed:
            raise error
        self._broken[error.env_id] = error
        return error.env_id

    def _mend(self, env_id: int, options: Options) -> None:
        """Make an environment anew and begin an episode in it, as often as it takes and is allowed."""
        while env_id in self._broken:
            self.restarts.allow(env_id, self._broken[env_id])
            before = self._broken.pop(env_id)
            try:
                self._backend.rebuild(env_id)
                self._start_well(np.array([env_id]), options, is_reset=False)
            except EnvError as error:
                self._broken[env_id] = error
            except BaseException:  # Ctrl-C: it is not whole yet
                self._broken[env_id] = before
                raise
            self.episodes[env_id] += env_id in self._broken  # another seed, should it be the seed's fault

    def explain_no_action(self, error: NoLegalActionError) -> NoLegalActionError:
        """Return an error that names the agent and the way out, where agents share games; else the same."""
        if not self.agents or error.env_id is None:
            return error
        return NoLegalActionError(
            f"env {error.env_id} allows no action: its action_mask is all False, at {self._when(error.env_id)}. All "
            "agents that are observed act in each step: where they take turns, as after turn_based_aec_to_parallel, a "
            "wrapper must let those who wait take an action that has no effect",
            env_id=error.env_id,
        )

    def _when(self, env_id: int, acted: Acted | None = None) -> str:
        """Say where an environment stands, and all it takes to come there again."""
        one = np.array([env_id])
        (seed,), (n_steps,) = self._seeds_of(one), self._steps[one]
        game, agent = divmod(env_id, self.n_agents)
        who = f" of agent {self.agents[agent]!r} in game {game}" if self.agents else ""
        action = "" if acted is None else f" (action {action_of(env_id, acted)})"
        return f"episode {self.episodes[env_id]} step {n_steps}{who}{action}, episode seed {seed}"

    def _explain(self, failure: Failure, acted: Acted | None = None) -> EnvError:
        """Turn a backend's failure into an error that says which environment, when, and after which action."""
        env_id = failure.env_id
        who = self.name if env_id is None else f"env {env_id}"
        where = "" if env_id is None else f", at {self._when(env_id, acted)}"
        error = failure.kind(f"{who}{':' if env_id is None else ''} {failure.what}{where}", env_id=env_id)
        error.__cause__ = failure.__cause__
        return error
