"""What stands between environments and policy: small steps in a fixed order, on the rows of one vector step.

`Processed` puts them around a backend, so that every kind of environment has them, and nobody else knows. What they
change is what a policy sees and does, and what is stored; they come before stacks, and before `mask_key` adds its mask.
"""

import copy
import time
from collections.abc import Callable, Sequence
from typing import Any

import gymnasium as gym
import numpy as np
from numpy.typing import NDArray

from trainkit.core.data import Obs
from trainkit.core.errors import BadEnvDataError, CheckpointError, ConfigError
from trainkit.core.signatures import checked
from trainkit.core.spaces import array_specs, check_spaces, discrete_bounds, zeros_of
from trainkit.envs.backends import Backend, Begun, Failure, Ids, Options, RawStep, Seeds, Work
from trainkit.envs.counting import Spent
from trainkit.envs.fingerprints import Fingerprint

Space = gym.Space[Any]


@checked
class Processor:
    """A step between environments and policy: override what it changes.

    Arrays that come in are borrowed: return them as they are, or others, never changed in place. Rows are of distinct
    environments, `env_ids` [K], and never none. What is kept per environment goes into arrays [N] made by `bind` and
    begun anew by `begin`; what outlives an episode goes into `state_dict`. What is learnt belongs into a policy's
    `preprocess` instead, which is saved with its weights.
    """

    def bind(self, observation_space: Space, action_space: Space, n: int) -> tuple[Space, Space]:
        """Be told the spaces of one of N environments; return those that the policy shall see."""
        return observation_space, action_space

    def begin(self, obs: Obs, env_ids: Ids) -> Obs:
        """Change the first observations [K, ...] of episodes."""
        return obs

    def observe(self, obs: Obs, action: NDArray[Any], reward: NDArray[np.float64], env_ids: Ids) -> Obs:
        """Change the observations [K, ...] after a step, true last ones among them.

        `action` [K, ...] led there, as `act` was given it, with `reward` [K].
        """
        return obs

    def act(self, action: NDArray[Any], env_ids: Ids) -> NDArray[Any]:
        """Turn the policy's actions [K, ...] into those the environments take."""
        return action

    def state_dict(self) -> dict[str, Any]:
        """Return what a resumed run needs; episodes that ran are played again, or others begin."""
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take over what was saved."""


class Processed:
    """A backend seen through processors, the first of which is nearest to the environments.

    Each set of environments has copies of its own: those of evaluation share nothing with those of training.
    """

    def __init__(self, backend: Backend, processors: Sequence[Processor]) -> None:
        self._backend = backend
        self.spent = Spent()
        self.n = backend.n
        self.takes_options, self.seeds_episodes = backend.takes_options, backend.seeds_episodes
        spaces = backend.observation_space, backend.action_space
        self._layers: list[_Layer] = []
        for place, processor in enumerate(processors):
            self._layers.append(_Layer(place, copy.deepcopy(processor), spaces, backend.n))
            spaces = self._layers[-1].spaces
        self.observation_space, self.action_space = spaces

    def reset(self, seeds: Seeds, options: Options) -> Begun:
        return self._begun(self._backend.reset(seeds, options))

    def begin(self, env_ids: Ids, seeds: Seeds, options: Options) -> Begun | None:
        begun = self._backend.begin(env_ids, seeds, options)
        return None if begun is None else self._begun(begun)

    def step(self, action: NDArray[Any], env_ids: Ids, work: Work) -> RawStep:
        if len(env_ids):
            began = time.perf_counter()
            taken = self._taken(action, env_ids)
            self.spent.action += time.perf_counter() - began
            raw = self._backend.step(taken[0], env_ids, work)
            if raw.failures:
                answered = np.isin(env_ids, raw.env_ids)
                taken = [own[answered] for own in taken]
        else:  # every environment is being reset by its next step
            taken = []
            raw = self._backend.step(zeros_of(self._backend.action_space, 0), env_ids, work)
        if len(raw.env_ids):
            next_obs, began = raw.next_obs, time.perf_counter()
            for layer, own in zip(self._layers, taken[1:], strict=True):
                next_obs = layer.seen("observe", next_obs, own, raw.reward, raw.env_ids)
            self.spent.obs += time.perf_counter() - began
        else:
            next_obs = zeros_of(self.observation_space, 0)
        begun = None if raw.begun is None else self._begun(raw.begun)
        flags = raw.terminated, raw.truncated, raw.over
        return RawStep(raw.env_ids, next_obs, raw.reward, *flags, raw.infos, begun, raw.failures, raw.late_rewards)

    def rebuild(self, env_id: int) -> None:
        self._backend.rebuild(env_id)

    def call(self, name: str, args: tuple[Any, ...], env_ids: Ids) -> list[Any]:
        return self._backend.call(name, args, env_ids)

    def fingerprints(self) -> list[Fingerprint]:
        return self._backend.fingerprints()

    def close(self) -> None:
        self._backend.close()

    def detach(self) -> None:
        self._backend.detach()

    def state_dict(self) -> list[dict[str, Any]]:
        """Return the state of every processor, in order."""
        return [layer.processor.state_dict() for layer in self._layers]

    def load_state_dict(self, states: list[dict[str, Any]]) -> None:
        """Take over saved states."""
        if len(states) != len(self._layers):
            raise CheckpointError(
                f"{len(states)} processors were saved, but there are {len(self._layers)}: make_envs as before"
            )
        for layer, state in zip(self._layers, states, strict=True):
            layer.processor.load_state_dict(state)

    def _begun(self, begun: Begun) -> Begun:
        if not len(begun.env_ids):  # none could
            return begun._replace(obs=zeros_of(self.observation_space, 0))
        obs, began = begun.obs, time.perf_counter()
        for layer in self._layers:
            obs = layer.seen("begin", obs, begun.env_ids)
        self.spent.obs += time.perf_counter() - began
        return begun._replace(obs=obs)

    def _taken(self, action: NDArray[Any], env_ids: Ids) -> list[NDArray[Any]]:
        """Return the action at every layer, the environments' own first, the policy's last."""
        taken = [action]
        for layer in reversed(self._layers):
            taken.append(layer.taken(taken[-1], env_ids))
        return taken[::-1]


class _Layer:
    """One processor in its place: called where it changes something, and held to what it told of its spaces.

    Attributes:
        spaces: those that the layer above sees, or the policy.
    """

    def __init__(self, place: int, processor: Processor, below: tuple[Space, Space], n: int) -> None:
        self.processor = processor
        self._name = f"processors[{place}] ({type(processor).__name__})"
        self.spaces = _bound(self._name, processor, below, n)
        self._refuse_misfit = _refusal(array_specs(self.spaces[0]))
        self._taken_space = below[1]
        self._own: dict[str, Callable[..., Any]] = {  # the methods it overrides, by name
            name: getattr(processor, name)
            for name in ("begin", "observe", "act")
            if getattr(getattr(processor, name), "__func__", None) is not getattr(Processor, name)
        }

    def taken(self, action: NDArray[Any], env_ids: Ids) -> NDArray[Any]:
        """Return actions as the processor turns them, which the layer below must be able to take."""
        act = self._own.get("act")
        if act is None:
            return action
        try:
            mapped: object = act(action, env_ids)
        except Exception as error:
            raise self._raised("act", error) from error
        if mapped is not action:
            told = f"{self._name} gave actions"
            return _as_taken(told, np.asarray(mapped), self._taken_space, len(env_ids))
        return action

    def seen(self, method: str, obs: Obs, *others: Any) -> Obs:
        """Return observations as the processor changes them, which must fit what it told of its space."""
        change = self._own.get(method)
        if change is None:
            return obs
        try:
            seen = change(obs, *others)
        except Exception as error:
            raise self._raised(method, error) from error
        if seen is not obs:
            try:
                self._refuse_misfit(seen, len(others[-1]))
            except ValueError as error:
                raise Failure(None, f"{self._name} gave {error}", BadEnvDataError) from None
        return seen

    def _raised(self, method: str, error: Exception) -> Failure:
        return Failure(None, f"{self._name} raised {type(error).__name__} in {method}: {error}")


def _bound(name: str, processor: Processor, spaces: tuple[Space, Space], n: int) -> tuple[Space, Space]:
    """Bind a processor and return the spaces above it."""
    try:
        bound = processor.bind(*spaces, n)
    except ConfigError as error:
        raise ConfigError(f"make_envs.{name}: {error}") from error
    except Exception as error:
        raise ConfigError(f"make_envs.{name} raised {type(error).__name__} in bind: {error}") from error
    is_pair = isinstance(bound, tuple) and len(bound) == 2 and all(isinstance(own, gym.Space) for own in bound)
    if not is_pair:
        raise ConfigError(f"make_envs.{name}.bind must return an observation space and an action space, got {bound!r}")
    check_spaces(*bound)
    return bound


def try_out(told: str, fn: Callable[[Any], Any], space: Space, result_space: Space, *, gives: str) -> None:
    """Refuse a function whose results of blank rows of one space are none of the other."""
    blank = zeros_of(space, 3)
    try:
        result = fn(blank)
    except Exception as error:
        raise ConfigError(f"{told} raised {type(error).__name__} on blank rows of {space}: {error}") from error
    try:
        if gives == "actions":
            _as_taken("it gives actions", np.asarray(result), result_space, 3)
        else:
            _refusal(array_specs(result_space))(result, 3)
    except (Failure, ValueError) as error:
        raise ConfigError(f"{told} does not fit {result_space}: {error}") from None


def _as_taken(told: str, action: NDArray[Any], space: Space, n_rows: int) -> NDArray[Any]:
    """Return mapped actions as the next layer takes them, within the bounds of a Box; refuse what it cannot take."""
    if action.shape != (n_rows, *(space.shape or ())):
        raise Failure(
            None, f"{told} of shape {action.shape}, {space} needs {(n_rows, *(space.shape or ()))}", BadEnvDataError
        )
    if isinstance(space, gym.spaces.Box):
        if action.dtype.kind not in "biuf" or not np.isfinite(action).all():
            raise Failure(None, f"{told} {action!r} for {space}: they must be finite numbers", BadEnvDataError)
        clipped: NDArray[Any] = np.clip(action, space.low, space.high).astype(space.dtype, copy=False)
        return clipped
    low, high = discrete_bounds(space)
    if action.dtype.kind not in "biu" or ((action < low) | (action > high)).any():
        raise Failure(None, f"{told} {action!r}, which {space} does not have", BadEnvDataError)
    return action


def _refusal(specs: Any, path: str = "") -> Callable[[Any, int], None]:
    """Return what refuses K rows that are not as their specs say; `Envs` refuses those that are not finite."""
    if isinstance(specs, dict):
        keys, inner = specs.keys(), {key: _refusal(spec, f"{path}[{key!r}]") for key, spec in specs.items()}

        def refuse_dict(seen: Any, n_rows: int) -> None:
            if not isinstance(seen, dict) or seen.keys() != keys:
                got = sorted(seen) if isinstance(seen, dict) else type(seen).__name__
                raise ValueError(f"observations{path} with keys {got}, its space says {sorted(keys)}")
            for key, refuse in inner.items():
                refuse(seen[key], n_rows)

        return refuse_dict
    if isinstance(specs, tuple):
        places = [_refusal(spec, f"{path}[{position}]") for position, spec in enumerate(specs)]

        def refuse_tuple(seen: Any, n_rows: int) -> None:
            if not isinstance(seen, tuple) or len(seen) != len(places):
                raise ValueError(f"observations{path} {type(seen).__name__}, its space says a tuple of {len(places)}")
            for refuse, child in zip(places, seen, strict=True):
                refuse(child, n_rows)

        return refuse_tuple
    shape, dtype = specs.shape, specs.dtype

    def refuse_array(seen: Any, n_rows: int) -> None:
        if type(seen) is not np.ndarray or seen.shape != (n_rows, *shape) or seen.dtype != dtype:
            got = f"{seen.dtype} {seen.shape}" if isinstance(seen, np.ndarray) else type(seen).__name__
            raise ValueError(f"observations{path} {got}, its space says {dtype} {(n_rows, *shape)}")

    return refuse_array
