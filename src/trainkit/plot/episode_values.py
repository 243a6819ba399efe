"""What a Q-learner expects along an episode: the distribution of the return, and what came in the end."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from trainkit.collector import Collector
from trainkit.collector.episodes import LONGEST_EPISODE
from trainkit.core import tree
from trainkit.core.data import Transition
from trainkit.core.errors import ConfigError
from trainkit.core.signatures import checked
from trainkit.envs.make import EnvSpec, borrowed_envs
from trainkit.plot.drawing import COLOURS, blank
from trainkit.policy import DQNPolicy
from trainkit.policy.returns import return_distribution

_QUANTILES = ((0.05, 0.95), (0.25, 0.75))  # of the bands, the wide one first


@checked
def episode_values(
    policy: DQNPolicy, env: EnvSpec, *, seed: int = 0, width: float = 6.4, height: float = 3.0, **env_options: Any
) -> Any:
    """Play an episode greedily, draw the distribution of the chosen actions' return, and return matplotlib's figure.

    Over the steps: the expected return, bands that hold 50 % and 90 % of the distribution, and the discounted rewards
    that came (where the policy learns from rewards as they are); of an episode that was truncated, with what is
    expected at its end.

    Args:
        policy: a Q-learner; one of an expected value has a line and no bands.
        env: as in `make_envs`, whose further options are `env_options`.
        seed: of the episode.
        width: in inches.
        height: in inches.
    """
    if not isinstance(policy, DQNPolicy):
        raise ConfigError(f"plot.episode_values needs a Q-learner, got {type(policy).__name__}")
    heard = _Heard(policy)
    with borrowed_envs(env, 1, **env_options) as envs:
        collector = Collector(policy, envs)
        collector.recorders.append(heard)
        try:
            limit = max(LONGEST_EPISODE, envs.max_episode_steps or 0)
            collector.collect(n_episode=1, explore=False, step=policy.last_step, seed=seed, max_episode_steps=limit)
        finally:
            collector.release()
    returns, probability = np.array(heard.returns), np.array(heard.probability)  # [T, W]
    steps = np.arange(len(returns))
    with blank(width=width, height=height) as (figure, ((axes,),)):
        if returns.shape[1] > 1:
            for (low, high), shade, told in zip(_QUANTILES, (0.15, 0.25), ("90 %", "50 %"), strict=True):
                bounds = [quantiles(returns, probability, share) for share in (low, high)]
                axes.fill_between(steps, *bounds, color=COLOURS[0], alpha=shade, linewidth=0, label=f"{told} of it")
        axes.plot(steps, (returns * probability).sum(axis=1), color=COLOURS[0], label="expected return")
        if policy.horizon.reward is None:
            came = discounted(np.array(heard.rewards), policy.horizon.gamma, heard.after)
            axes.plot(steps, came, color=COLOURS[1], linewidth=1.2, label="what came")
        axes.set(xlabel="step of the episode", ylabel="discounted return")
        axes.set_title(f"an episode of {envs.name}: return {sum(heard.rewards):g}")
        axes.margins(x=0.01)
        axes.legend(loc="center left", bbox_to_anchor=(1.0, 0.5))
    return figure


def quantiles(
    returns: NDArray[np.floating[Any]], probability: NDArray[np.floating[Any]], share: float
) -> NDArray[np.float64]:
    """Return the return below which `share` of each row's mass lies [T], of rising returns [T, W].

    Each return has half of its mass below it; between two it is read off the line that joins them.
    """
    below = np.cumsum(probability, axis=1, dtype=np.float64) - probability / 2
    return np.array([np.interp(share, mass, row) for mass, row in zip(below, returns, strict=True)])


def discounted(rewards: NDArray[np.float64], gamma: float, after: float) -> NDArray[np.float64]:
    """Return the discounted sum [T] of the rewards [T] from each step on, and of what comes after the last."""
    sums = np.empty(len(rewards))
    for step in range(len(rewards) - 1, -1, -1):
        after = rewards[step] + gamma * after
        sums[step] = after
    return sums


class _Heard:
    """One environment's episode, step by step: rewards, and what the policy thought of the actions it took."""

    def __init__(self, policy: DQNPolicy) -> None:
        self._policy = policy
        self.rewards: list[float] = []
        self.returns: list[NDArray[np.float32]] = []  # [W] each
        self.probability: list[NDArray[np.float32]] = []  # [W] each
        self.after = 0.0  # expected at the end, where that was only a limit

    def add(self, transition: Transition) -> None:
        """Hear of one step."""
        action = int(transition.action[0])
        returns, probability = return_distribution(self._policy, transition.obs)
        self.returns.append(returns[0, action])
        self.probability.append(probability[0, action])
        self.rewards.append(float(transition.reward[0]))
        if transition.truncated[0] and not transition.terminated[0]:
            last = tree.map_tree(np.copy, transition.next_obs)
            self.after = float(self._policy.action_values(last).max())

    def cut(self, env_ids: NDArray[np.intp]) -> None:
        """Hear nothing: the episode is whole."""

    def drop(self, env_ids: NDArray[np.intp]) -> None:
        """Hear nothing: an environment that fails ends it all."""
