"""Running statistics that a policy keeps: of observations, of returns, and of the spread of its actions."""

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from trainkit.core.data import Horizon, Transition
from trainkit.core.errors import ConfigError
from trainkit.core.protocols import Dataset
from trainkit.core.stats import NO_VALUES, Summary
from trainkit.engine.device import CopyToCpu, to_device
from trainkit.engine.process_group import ObservesRows, ProcessGroup
from trainkit.nets.distributions import LOG_STD_RANGE, normal_part
from trainkit.nets.preprocess import MergeableStatistics, RunningStatistics

_MAX_PENDING = 256  # draws, before they are summarized


class _Chain:
    """The parts of an `nn.Sequential` that have running statistics, each of the outputs of the parts before it."""

    def __init__(self, modules: nn.Sequential) -> None:
        known = {id(part): part for part in modules if isinstance(part, RunningStatistics) and part.observes}
        self._observing = list(known.values())
        self._chain = [(part, known.get(id(part))) for part in modules]

    @property
    def observes(self) -> bool:
        return bool(self._observing)

    @property
    def n_observed(self) -> int:
        return self._observing[0].n_observed if self._observing else 0

    @torch.no_grad()
    def observe(self, obs: Any) -> None:
        for part, observing in self._chain:
            if observing is not None:
                observing.observe(obs)
                if observing is self._observing[-1]:
                    return
            obs = part(obs)

    def fold(self) -> None:
        for part in self._observing:
            part.fold()

    def merge(self, other: Any) -> None:
        if not isinstance(other, _Chain) or len(other._observing) != len(self._observing):
            raise ConfigError("merge_statistics needs the same preprocessing in both policies, part by part")
        for own, theirs in zip(self._observing, other._observing, strict=True):
            _mergeable(own).merge(theirs)


def _mergeable(part: RunningStatistics) -> MergeableStatistics:
    """Return statistics that have `merge`; raise for a user's preprocessing without it."""
    if not isinstance(part, MergeableStatistics):
        raise ConfigError(f"merge_statistics needs {type(part).__name__}.merge(other): define it")
    return part


class ObservedStatistics:
    """The running statistics of a policy's preprocessing and of its return scale, where it has them.

    Args:
        preprocess: may be `RunningStatistics`, or an `nn.Sequential` with such parts.
        horizon: may have a `ReturnScale`.
        device: of the preprocessing.
    """

    def __init__(self, preprocess: nn.Module, horizon: Horizon, device: torch.device) -> None:
        self._of_obs: RunningStatistics | None = None
        observing = _Chain(preprocess) if isinstance(preprocess, nn.Sequential) else preprocess
        if isinstance(observing, RunningStatistics) and observing.observes:
            self._of_obs = observing
        self._of_returns = horizon.return_scale
        self._device = device
        self._observed: ObservesRows | None = self._of_obs  # which all processes that learn together add rows to

    def join(self, process_group: ProcessGroup) -> None:
        """Observe the observations of all processes that learn together from now on."""
        if self._of_obs is not None:
            self._observed = process_group.shared(self._of_obs, self._device)

    @property
    def observes(self) -> bool:
        """Whether there are any."""
        return self._of_obs is not None or self._of_returns is not None

    def observe(self, transition: Transition) -> None:
        """Add K rows; features do not depend on them before `fold`."""
        self.observe_obs(transition.obs)
        if self._of_returns is not None:
            ended = transition.terminated | transition.truncated
            self._of_returns.observe(transition.reward, ended, transition.env_ids)

    def observe_obs(self, obs: Any) -> None:
        """Add observations of K rows, arrays or tensors."""
        if self._observed is not None:
            self._observed.observe(to_device(obs, self._device))

    def fold(self) -> None:
        """Use all rows observed so far for features."""
        if self._observed is not None:
            self._observed.fold()

    def cut(self, env_ids: NDArray[np.intp]) -> None:
        """End the open episodes of these environments."""
        if self._of_returns is not None:
            self._of_returns.cut(env_ids)

    def merge(self, other: "ObservedStatistics") -> None:
        """Merge all that another policy's statistics have observed; see `Policy.merge_statistics`."""
        pairs = [(self._of_obs, other._of_obs), (self._of_returns, other._of_returns)]
        if any((own is None) != (theirs is None) for own, theirs in pairs):
            raise ConfigError(
                "merge_statistics needs policies that normalize the same: normalize_obs and reward='return_scale' in "
                "both, or in neither"
            )
        if self._of_obs is not None:
            _mergeable(self._of_obs).merge(other._of_obs)
        if self._of_returns is not None and other._of_returns is not None:
            self._of_returns.merge(other._of_returns)

    def fit(self, dataset: Dataset) -> None:
        """Observe a whole dataset in the statistics that have observed nothing yet."""
        if self._of_obs is not None and self._of_obs.n_observed == 0:
            for rows in dataset.transitions():
                self._of_obs.observe(to_device(rows.obs, self._device))
            self._of_obs.fold()
        if self._of_returns is not None and self._of_returns.n_observed == 0:
            self._of_returns.study([episode.reward for episode in dataset.episodes()])

    def state_dict(self) -> dict[str, Any] | None:
        """Return the returns' statistics; the observations' are saved with the weights."""
        return None if self._of_returns is None else self._of_returns.state_dict()

    def load_state_dict(self, state: dict[str, Any] | None) -> None:
        """Load saved statistics."""
        if self._of_returns is not None and state is not None:
            self._of_returns.load_state_dict(state)


class ActionStd:
    """Summary of the standard deviations of a policy's draws, in policy units and before any tanh.

    Args:
        distribution: of the actions; of a `Hybrid` its Box columns, and one that is not normal has none.
    """

    def __init__(self, distribution: object) -> None:
        self._distribution = normal_part(distribution)
        self._pending: list[NDArray[Any] | Tensor] = []  # log standard deviations [K, D]
        self._parameter: CopyToCpu | None = None  # those of a parameter [D], the same for all rows
        self._summary = NO_VALUES

    def add(self, outputs: NDArray[Any] | Tensor) -> None:
        """Add the network's outputs [K, W] of one draw; without waiting, where they are on a device."""
        if self._distribution is None:
            return
        if self._distribution.log_std is None:
            log_std = outputs[:, outputs.shape[1] // 2 :]
            self._pending.append(log_std.clone() if isinstance(log_std, Tensor) else log_std.copy())
        elif self._parameter is None:
            self._parameter = CopyToCpu(self._distribution.log_std.detach())
        if len(self._pending) == _MAX_PENDING:
            self._summarize()

    def read(self) -> Summary:
        """Return the standard deviations since the last call, over rows and dimensions; empty if there were none."""
        self._summarize()
        summary, self._summary = self._summary, NO_VALUES
        return summary

    def _summarize(self) -> None:
        if self._parameter is not None:
            self._pending.append(self._parameter.read().numpy()[None])
            self._parameter = None
        if self._distribution is None or not self._pending:
            return
        tensors = [one for one in self._pending if isinstance(one, Tensor)]
        arrays = [one for one in self._pending if not isinstance(one, Tensor)]
        if tensors:
            arrays.append(torch.cat(tensors).cpu().numpy())  # one wait for all
        log_std, self._pending = np.concatenate(arrays), []
        std = np.exp(np.clip(log_std, *LOG_STD_RANGE) if self._distribution.log_std is None else log_std)
        self._summary = Summary.merge([self._summary, Summary.of(std.ravel().tolist())])
