"""The collector of rollouts from a simulator, none of which visits the host."""

import logging
import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from trainkit.collector.episodes import RewardMetric, Tally
from trainkit.core import seeding, tree
from trainkit.core.errors import BadEnvDataError, Checks, ConfigError, DivergedError
from trainkit.core.policy_use import PolicyUse
from trainkit.core.protocols import Deliver
from trainkit.core.signatures import checked
from trainkit.core.stats import CollectStats, Summary, html_table
from trainkit.engine.device import to_arrays
from trainkit.extensions.simulators.simulator import Simulator
from trainkit.extensions.simulators.tensor_envs import TensorEnvs
from trainkit.extensions.simulators.tensor_rollout_buffer import TensorRolloutBuffer, shaped
from trainkit.policy.base import Policy
from trainkit.policy.on_policy import OnpolicyPolicy

_log = logging.getLogger(__name__)


@checked
class TensorCollector:
    """Collect the rollouts of an on-policy policy from a simulator, without waiting for the device between steps.

    An `OnpolicyTrainer` uses it as it uses a `Collector`. What a callback could receive of single episodes and steps
    would wait for the device, so that there are no such events; `on_collect_end` receives the statistics. At the end of
    a collect the CPU waits once, for the episodes' statistics and for whether all numbers were finite.

    Args:
        policy: chooses the actions; on the simulator's device.
        simulator: belongs to the collector until `release` or `close`.
        reward_metric: maps the returns [episodes] of finished episodes to those reported in statistics.
        seed: root of the seeds of resets; None: the trainer's.

    Attributes:
        between_steps: called before every vector step when set; after an exception of it `resume` continues.
    """

    def __init__(
        self,
        policy: Policy,
        simulator: Simulator,
        *,
        reward_metric: RewardMetric | None = None,
        seed: int | None = None,
    ) -> None:
        with Checks("TensorCollector") as checks:
            checks.integer("seed", seed, low=0, optional=True)
            is_metric = reward_metric is None or callable(reward_metric)
            checks.require(is_metric, f".reward_metric must be callable, got {reward_metric!r}")
        if not isinstance(policy, OnpolicyPolicy):
            raise ConfigError(
                f"TensorCollector.policy must learn from rollouts, as PPOPolicy, got {type(policy).__name__}: for a "
                "replay buffer, tk.Collector(policy, tk.make_envs(tk.simulators.SimulatorVectorEnv(simulator)), buffer)"
            )
        self._envs = envs = TensorEnvs(simulator)
        try:
            policy.check_spaces(envs.observation_space, envs.action_space)
            if policy.device != envs.device:
                raise ConfigError(
                    f"TensorCollector: {type(policy).__name__} is on {policy.device}, {envs.name} on {envs.device}: "
                    f"make the policy with device={str(envs.device)!r}"
                )
            shaped(policy.horizon.reward, torch.zeros(0))
            if policy.exploration is not None:
                raise ConfigError(
                    f"TensorCollector: {type(policy).__name__}.exploration must be None, as sequences of correlated "
                    f"noise are made on the CPU, got a {type(policy.exploration).__name__}: leave it out"
                )
        except BaseException:
            envs.release()
            raise
        self._policy = policy
        self._policy_use = PolicyUse(policy)
        self._buffer = TensorRolloutBuffer(envs, policy.extras_spec)
        self._env_step = self._n_episode = 0
        self.between_steps: Callable[[], None] | None = None
        self._interrupt: Callable[[], None] | None = None
        self._is_interrupted = False
        self._root, self._is_seeded = (seeding.fresh_root(), False) if seed is None else (seed, True)
        self._n_resets = 0
        self._needs_reset = True
        self._n_left = 0  # steps of the current collect; negative where the last one made more
        self._metric = reward_metric
        self._recent: deque[float] = deque(maxlen=100)
        self._running = torch.zeros(
            (2, envs.n), device=envs.device, dtype=torch.float32
        )  # return and length of the current episodes
        self._finished: list[Tensor] = []  # [2, N] of each step of this collect, nan where no episode ended
        self._tally = Tally()  # of this collect

    def _repr_html_(self) -> str:
        rows = {"policy": type(self._policy).__name__, "environments": self._envs, "buffer": self._buffer}
        return html_table(
            type(self).__name__, (rows | {"env_step": self._env_step, "n_episode": self._n_episode}).items()
        )

    @property
    def policy(self) -> Policy:
        """What chooses the actions; another one needs another collector."""
        return self._policy

    @property
    def max_lag(self) -> int:
        """0: the current weights act in every step."""
        return 0

    @property
    def envs(self) -> TensorEnvs:
        """The simulator's environments; others need another collector."""
        return self._envs

    @property
    def buffer(self) -> TensorRolloutBuffer:
        """The rollout; the collector makes it."""
        return self._buffer

    @property
    def env_step(self) -> int:
        """The clock: steps ever stored; `restart()` starts it over."""
        return self._env_step

    @property
    def n_episode(self) -> int:
        """Total number of finished episodes; `restart()` starts it over."""
        return self._n_episode

    @property
    def is_seeded(self) -> bool:
        """Whether there is a seed; `seed(root)` sets one."""
        return self._is_seeded

    @property
    def counts_episodes(self) -> bool:
        """False: the CPU does not wait for what ended within a collect."""
        return False

    @property
    def single_env_ids(self) -> Sequence[int]:
        """Empty: the environments are one simulator."""
        return ()

    @checked
    def subscribe(self, deliver: Deliver, events: Sequence[str], *, in_evaluation: bool) -> None:
        """Raise `ConfigError` for any event of single episodes, which would wait for the device."""
        if events:
            raise ConfigError(
                f"{events[0]}: a TensorCollector has no events of single episodes: use on_collect_end, whose "
                "statistics have every return and length"
            )

    @property
    def is_interrupted(self) -> bool:
        """Whether a collect has not returned, as it raised or still runs; `resume()` continues one that raised."""
        return self._is_interrupted

    def use_reward_metric(self, metric: RewardMetric) -> None:
        """Use `metric(returns [episodes])` for the reported returns of episodes that finish from now on."""
        self._metric = metric

    def seed(self, root: int) -> None:
        """Set the root of the seeds of resets."""
        self._root, self._is_seeded = root, True

    @checked
    def release(self) -> None:
        """Release the simulator, for an evaluation or another collector; a later collect claims and resets it."""
        self._needs_reset = True
        self._envs.release()

    def close(self) -> None:
        """Close the simulator; a later collect raises a ConfigError."""
        self._needs_reset = True
        self._envs.close()

    @checked
    def restart(self) -> None:
        """Start again from step 0: discard all counts, the statistics of episodes, and a rollout in progress."""
        self.require_reset()
        self._env_step = self._n_episode = self._n_left = 0
        self._is_interrupted = False
        self._recent.clear()
        self._finished.clear()
        self._buffer.clear()

    def require_reset(self) -> None:
        """Make the next collect cut the open episodes and reset every environment."""
        self._needs_reset = True

    # ---- collecting ----

    def collect(self, *, n_step: int | None = None, n_episode: int | None = None) -> CollectStats:
        """Collect a number of steps in all environments together, exploring.

        It ends with the vector step that reaches the number; the excess is subtracted from the next call.

        Raises:
            ConfigError: `n_episode` was given: a rollout of tensors has equally many steps of every environment.
            BadEnvDataError: the simulator returned other tensors than its contract says, or a number that is not
                finite; the next collect resets it.
            DivergedError: the policy returned one.
        """
        with Checks("TensorCollector.collect") as checks:
            checks.require(n_episode is None, " collects steps, not episodes: give n_step instead of n_episode")
            checks.integer("n_step", n_step, low=1, optional=n_episode is not None)
        self._n_left += n_step or 0
        self._finished.clear()
        self._tally = Tally()
        self._is_interrupted = True
        return self.resume()

    def interrupt_with(self, check: Callable[[], None] | None) -> None:
        """Call `check` before every vector step, before `between_steps`: it only ever raises. None: stop."""
        self._interrupt = check

    @checked
    def resume(self) -> CollectStats:
        """Continue a collect that an exception interrupted; the statistics cover all of it."""
        started = time.perf_counter()
        self._buffer.reserve(max(0, -(-self._n_left // self._envs.n)))
        with self._policy_use.by_this_thread():
            return self._resumed(started)

    def _resumed(self, started: float) -> CollectStats:
        """Make the steps that are left, and return the statistics of the whole collect."""
        try:
            while self._n_left > 0:
                if self._interrupt is not None:
                    self._interrupt()
                if self.between_steps is not None:
                    self.between_steps()
                if self._needs_reset:
                    self._reset()
                self._vector_step()
            read = self._read()
        finally:
            self._tally.seconds += time.perf_counter() - started
        self._is_interrupted = False
        return self._stats(read)

    def _reset(self) -> None:
        """Cut the open episodes, and reset every environment."""
        self._envs.claim()
        self._buffer.cut()
        self._running.zero_()
        seed = seeding.derive(self._root, "simulator", self._n_resets) % 2**31  # simulators accept no larger one
        self._n_resets += 1
        self._buffer.start(self._envs.reset(seed))
        self._needs_reset = False

    def _vector_step(self) -> None:
        """Act, step and store once in every environment."""
        clock, tally = time.perf_counter, self._tally
        started = clock()
        action, extras = self._policy.act_on_device(self._buffer.obs)
        acted = clock()
        self._needs_reset = True  # should anything fail before the step is whole
        step = self._envs.step(action)
        stepped = clock()
        self._buffer.add(action, extras, step)
        self._running[0] += step.reward
        self._running[1] += 1
        self._finished.append(self._running.masked_fill(~step.over, torch.nan))
        self._running.masked_fill_(step.over, 0.0)
        self._needs_reset = False
        self._n_left -= self._envs.n
        self._env_step += self._envs.n
        tally.n_step += self._envs.n
        tally.n_vector_step += 1
        tally.act_seconds += acted - started
        tally.env_seconds += stepped - acted
        tally.store_seconds += clock() - stepped

    def _read(self) -> dict[str, NDArray[Any]]:
        """Return the ends of episodes, [T, 2, N], and where numbers are not finite, after one wait for the device."""
        if not self._finished:  # the last collect made as many steps too many as this one was to make
            return {}
        return to_arrays({"finished": torch.stack(self._finished), **self._buffer.find_invalid(len(self._finished))})

    def _stats(self, read: dict[str, NDArray[Any]]) -> CollectStats:
        """Return the statistics of this collect; discard it and raise if a number of it is not finite."""
        if read:
            finished = read.pop("finished")
            self._check(len(finished), {name: int(position) for name, position in read.items()})
            has_ended = ~np.isnan(finished[:, 1])  # [T, N]
            returns, lengths = (finished[:, i][has_ended].astype(np.float64) for i in range(2))
            if self._metric is not None and len(returns):
                returns = np.asarray(self._metric(returns), np.float64)
                if returns.shape != lengths.shape:
                    raise ConfigError(
                        f"reward_metric must give one number per episode [{len(lengths)}], got {returns.shape}"
                    )
            self._tally.returns, self._tally.lengths = returns.tolist(), lengths.astype(np.int64).tolist()
            self._recent.extend(self._tally.returns)
            self._n_episode += len(returns)
        return self._tally.stats(Summary.of(self._recent), self._policy.read_action_std())

    def _check(self, n_steps: int, invalid: dict[str, int]) -> None:
        """Raise for the first number that is not finite."""
        order = ("obs", "extras", "reward", "final_obs")  # in which a step computes them
        found = [(invalid[name], order.index(name), name) for name in order if invalid[name] >= 0]
        if not found:
            return
        self._buffer.clear()
        self._needs_reset, self._is_interrupted = True, False
        position, _, name = min(found)
        step, env_id = divmod(position, self._envs.n)
        made_in = step if name == "obs" else step + 1  # 0 is the reset, or the last collect
        where = f"env {env_id}, vector step {made_in} of the {n_steps} of this collect"
        if name == "extras":
            raise DivergedError(
                f"{type(self._policy).__name__} gives a log_prob or value that is not finite for {where}: it diverged, "
                "or the observation's action_mask allows no action"
            )
        raise BadEnvDataError(
            f"{self._envs.name} returned {name} that is not finite in {where}: the rollout is discarded, and the next "
            "collect resets the simulator",
            env_id=env_id,
        )

    # ---- saving and resuming ----

    def state_dict(self) -> dict[str, Any]:
        """Return counts, the open episodes and the simulator's state, with the rest of a collect."""
        state: dict[str, Any] = {name: getattr(self, name) for name in _SAVED}
        state |= {"recent": list(self._recent), "running": self._running.clone(), "finished": [*self._finished]}
        state["tally"] = self._tally.state_dict() if self._is_interrupted else {}
        if not self._needs_reset:
            state["obs"] = tree.to_plain(tree.map_tree(torch.clone, self._buffer.obs))
            if self._envs.stateful is not None:
                state["simulator"] = self._envs.stateful.state_dict()
        return state

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore a saved state, after the buffer's.

        Where the simulator cannot restore its own, the next collect cuts the open episodes and starts others.
        """
        self._env_step, self._n_episode = state["env_step"], state["n_episode"]
        self._is_interrupted = state["is_interrupted"]
        self._root, self._n_resets = state["_root"], state["_n_resets"]
        self._needs_reset, self._n_left = state["_needs_reset"], state["_n_left"]
        self._recent, self._tally = deque(state["recent"], maxlen=100), Tally.from_state(state["tally"])
        self._running.copy_(state["running"])
        self._finished = [one.to(self._envs.device) for one in state["finished"]]
        if "obs" in state:
            self._buffer.start(tree.from_plain(state["obs"]))
        if "simulator" in state and self._envs.stateful is not None:
            self._envs.stateful.load_state_dict(state["simulator"])
        elif not self._needs_reset:
            self._needs_reset = True
            _log.warning(
                "%s has no state_dict and load_state_dict: the episodes that ran are cut and others begin",
                self._envs.name,
            )


_SAVED = ("env_step", "n_episode", "is_interrupted", "_root", "_n_resets", "_needs_reset", "_n_left")
