"""Plots of a policy: its value distribution along an episode, and the priorities of its replay buffer."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from trainkit.buffer import PrioritizedReplayBuffer
from trainkit.collector import Collector
from trainkit.collector.episodes import LONGEST_EPISODE
from trainkit.core import tree
from trainkit.core.data import Transition
from trainkit.core.drawing import COLORS, GREY, blank, count
from trainkit.core.errors import ConfigError
from trainkit.core.signatures import checked
from trainkit.envs.envs_config import EnvSpec
from trainkit.envs.make import borrowed_envs
from trainkit.policy import DQNPolicy

_BINS = 40
_QUANTILES = ((0.05, 0.95), (0.25, 0.75))  # of the bands, the wide one first


@checked
def episode_values(
    policy: DQNPolicy, env: EnvSpec, *, seed: int = 0, width: float = 6.4, height: float = 3.0, **env_options: Any
) -> Any:
    """Play a greedy episode, plot the return distribution of the chosen actions, and return the matplotlib figure.

    Over the steps: the expected return, bands that hold 50 % and 90 % of the distribution, and the discounted rewards
    received (where the policy learns from unchanged rewards); of a truncated episode, including the value expected at
    its end.

    Args:
        policy: a Q-learner; one of an expected value has a line and no bands.
        env: as in `make_envs`, whose further options are `env_options`.
        seed: of the episode.
        width: in inches.
        height: in inches.
    """
    if not isinstance(policy, DQNPolicy):
        raise ConfigError(f"plot.episode_values needs a Q-learner, got {type(policy).__name__}")
    with borrowed_envs(env, 1, **env_options) as envs:
        collector = Collector(policy, envs)
        recorder = _EpisodeRecorder(policy, collector)
        collector.recorders.append(recorder)
        try:
            limit = max(LONGEST_EPISODE, envs.max_episode_steps or 0)
            collector.collect(n_episode=1, explore=False, step=policy.last_step, seed=seed, max_episode_steps=limit)
        finally:
            collector.release()
    returns, probability = (np.array(recorder.returns), np.array(recorder.probability))  # [T, W]
    steps = np.arange(len(returns))
    with blank(width=width, height=height) as (figure, ((axes,),)):
        if returns.shape[1] > 1:
            for (low, high), shade, percent in zip(_QUANTILES, (0.15, 0.25), ("90 %", "50 %"), strict=True):
                bounds = [quantiles(returns, probability, share) for share in (low, high)]
                axes.fill_between(steps, *bounds, color=COLORS[0], alpha=shade, linewidth=0, label=f"{percent} of it")
        axes.plot(steps, (returns * probability).sum(axis=1), color=COLORS[0], label="expected return")
        if policy.horizon.reward is None:
            received = discounted(np.array(recorder.rewards), policy.horizon.gamma, recorder.after)
            axes.plot(steps, received, color=COLORS[1], linewidth=1.2, label="observed return")
        axes.set(xlabel="step of the episode", ylabel="discounted return")
        axes.set_title(f"an episode of {envs.name}: return {sum(recorder.rewards):g}")
        axes.margins(x=0.01)
        axes.legend(loc="center left", bbox_to_anchor=(1.0, 0.5))
    return figure


class _EpisodeRecorder:
    """A recorder of one environment's episode: its rewards, and the value distributions of its actions."""

    def __init__(self, policy: DQNPolicy, collector: Collector) -> None:
        self._policy, self._collector = policy, collector
        self._state: NDArray[np.float32] | None = None  # of a memory, before the next step
        self.rewards: list[float] = []
        self.returns: list[NDArray[np.float32]] = []  # [W] each
        self.probability: list[NDArray[np.float32]] = []  # [W] each
        self.after = 0.0  # expected after the end, if it was truncated

    def add(self, transition: Transition) -> None:
        """Record a step."""
        action = int(self._policy.action_numbers(transition.action)[0])
        returns, probability = self._policy.return_distribution(transition.obs, self._state)
        self.returns.append(returns[0, action])
        self.probability.append(probability[0, action])
        self.rewards.append(float(transition.reward[0]))
        self._state = self._collector.policy_state
        if transition.truncated[0] and not transition.terminated[0]:
            last = tree.map_tree(np.copy, transition.next_obs)
            self.after = float(self._policy.action_values(last, state=self._state).max())

    def cut(self, env_ids: NDArray[np.intp]) -> None:
        """Do nothing: the episode is complete."""

    def drop(self, env_ids: NDArray[np.intp]) -> None:
        """Do nothing: an environment that fails ends the collect."""


def quantiles(
    returns: NDArray[np.floating[Any]], probability: NDArray[np.floating[Any]], share: float
) -> NDArray[np.float64]:
    """Return the `share` quantile [T] of each row, for ascending returns [T, W].

    Each return has half of its mass below it; between two the mass is interpolated.
    """
    below = np.cumsum(probability, axis=1, dtype=np.float64) - probability / 2
    return np.array([np.interp(share, mass, row) for mass, row in zip(below, returns, strict=True)])


def discounted(rewards: NDArray[np.float64], gamma: float, after: float) -> NDArray[np.float64]:
    """Return the discounted return [T] from each step on; `after` is the value after the last of the rewards [T]."""
    sums = np.empty(len(rewards))
    for step in range(len(rewards) - 1, -1, -1):
        after = rewards[step] + gamma * after
        sums[step] = after
    return sums


@checked
def priorities(buffer: PrioritizedReplayBuffer, *, step: int = 0, width: float = 7.6, height: float = 2.5) -> Any:
    """Plot the current priorities, sampling probabilities and weights of a buffer, and return the matplotlib figure.

    Args:
        buffer: prioritised, with rows in it.
        step: the environment step, for beta's schedule.
        width: in inches.
        height: in inches.
    """
    if not isinstance(buffer, PrioritizedReplayBuffer) or len(buffer) == 0:
        raise ConfigError(f"plot.priorities needs a PrioritizedReplayBuffer with rows in it, got {buffer!r}")
    priority, weight = buffer.priorities(), buffer.weights(step)
    probability = np.sort(buffer.probabilities())[::-1]  # [size]
    with blank(1, 3, width=width, height=height) as (figure, ((left, middle, right),)):
        left.hist(priority, bins=_BINS, color=COLORS[0])
        left.set(xlabel="priority", ylabel="rows", yscale="log", title="priorities")

        rows = 100 * np.arange(len(buffer) + 1) / len(buffer)
        drawn = 100 * np.concatenate([[0.0], np.cumsum(probability)])
        middle.plot(rows, drawn, color=COLORS[1])
        middle.plot([0, 100], [0, 100], color=GREY, linewidth=0.8, linestyle=":")
        half = float(np.interp(50.0, drawn, rows))
        middle.plot([half], [50.0], marker="o", markersize=4, color=COLORS[1])
        middle.annotate(f"half of the samples\nfrom {half:.0f} % of the rows", (half, 50.0), (half + 8, 22.0))
        middle.set(
            xlabel="rows by falling probability, %", ylabel="cumulative probability, %", title="sampling probabilities"
        )
        middle.set(xlim=(0, 100), ylim=(0, 100))

        right.hist(weight, bins=_BINS, range=(0.0, 1.0), color=COLORS[2], label="all rows", alpha=0.9)
        right.hist(
            weight, bins=_BINS, range=(0.0, 1.0), weights=len(buffer) * buffer.probabilities(), color=COLORS[1],
            histtype="step", linewidth=1.3, label="sampled rows",
        )  # fmt: skip
        right.set(xlabel="importance weight", ylabel="rows", title="weights")
        right.legend(loc="upper right")
        right.yaxis.set_major_formatter(count)
    return figure
