"""What a policy learns by looking alone: running statistics of observations and of returns."""

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from trainkit.core.data import Horizon, Transition
from trainkit.core.errors import ConfigError
from trainkit.core.protocols import Dataset
from trainkit.engine.device import to_device
from trainkit.nets.preprocess import MergeableStatistics, RunningStatistics


class _InTurn:
    """The running statistics among the modules of an `nn.Sequential`, each of what those before it make."""

    def __init__(self, modules: nn.Sequential) -> None:
        known = {id(part): part for part in modules if isinstance(part, RunningStatistics) and part.observes}
        self._learning = list(known.values())
        self._chain = [(part, known.get(id(part))) for part in modules]

    @property
    def observes(self) -> bool:
        return bool(self._learning)

    @property
    def n_observed(self) -> int:
        return self._learning[0].n_observed if self._learning else 0

    @torch.no_grad()
    def observe(self, obs: Any) -> None:
        for part, learning in self._chain:
            if learning is not None:
                learning.observe(obs)
                if learning is self._learning[-1]:
                    return
            obs = part(obs)

    def fold(self) -> None:
        for part in self._learning:
            part.fold()

    def merge(self, other: Any) -> None:
        if not isinstance(other, _InTurn) or len(other._learning) != len(self._learning):
            raise ConfigError("merge_statistics needs the same preprocessing in both policies, part by part")
        for own, theirs in zip(self._learning, other._learning, strict=True):
            _mergeable(own).merge(theirs)


def _mergeable(part: RunningStatistics) -> MergeableStatistics:
    """Return statistics that have `merge`; raise for a preprocessing of the user's own that has not."""
    if not isinstance(part, MergeableStatistics):
        raise ConfigError(f"merge_statistics needs {type(part).__name__}.merge(other): define it")
    return part


class Statistics:
    """Let a preprocessing and a return scale, where there are such, hear of rows.

    Args:
        preprocess: may be `RunningStatistics`, or an `nn.Sequential` with such parts.
        horizon: may have a `ReturnScale`.
        device: of the preprocessing.
    """

    def __init__(self, preprocess: nn.Module, horizon: Horizon, device: torch.device) -> None:
        self._of_obs: RunningStatistics | None = None
        learns = _InTurn(preprocess) if isinstance(preprocess, nn.Sequential) else preprocess
        if isinstance(learns, RunningStatistics) and learns.observes:
            self._of_obs = learns
        self._of_returns = horizon.return_scale
        self._device = device

    @property
    def are_there(self) -> bool:
        """Whether anything is learnt by looking."""
        return self._of_obs is not None or self._of_returns is not None

    def note(self, transition: Transition) -> None:
        """Note K rows; features stay as they are until `fold`."""
        if self._of_obs is not None:
            self._of_obs.observe(to_device(transition.obs, self._device))
        if self._of_returns is not None:
            ended = transition.terminated | transition.truncated
            self._of_returns.observe(transition.reward, ended, transition.env_ids)

    def fold(self) -> None:
        """Use what was noted from now on."""
        if self._of_obs is not None:
            self._of_obs.fold()

    def cut(self, env_ids: NDArray[np.intp]) -> None:
        """Hear that the episodes of these environments were ended where they are, to begin anew."""
        if self._of_returns is not None:
            self._of_returns.cut(env_ids)

    def merge(self, other: "Statistics") -> None:
        """Take in all that another policy's statistics have observed; see `Policy.merge_statistics`."""
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

    def study(self, dataset: Dataset) -> None:
        """Learn of a whole dataset, unless something was learnt already."""
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
        """Take over saved statistics."""
        if self._of_returns is not None and state is not None:
            self._of_returns.load_state_dict(state)
