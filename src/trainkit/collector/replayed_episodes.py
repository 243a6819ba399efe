"""Replay of the running episodes of a run that resumes, by their seeds and actions.

What earlier episodes left behind in an environment, such as an episode counter or the level of a curriculum, is lost;
`Envs.lost_attributes` detects that by comparing attributes with those that were saved.
"""

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from trainkit.core import tree
from trainkit.core.errors import EnvError
from trainkit.envs.backends import Ids
from trainkit.envs.envs import Envs


def play_again(envs: Envs, state: dict[str, Any], have_returns: Callable[[NDArray[np.float64]], bool]) -> str | None:
    """Replay running episodes from their seeds and actions; return None, or why they could not be restored.

    Where it did not, the environments must be reset.

    Args:
        envs: whose state is to be restored.
        state: of the environments, which they have loaded.
        have_returns: whether these are the returns so far [N] that were saved.
    """
    played = state["played"]
    if played is None:
        return "the actions of the running episodes are not known"
    began = played["began"]
    returns = np.zeros(envs.n)
    own_options, options = envs.options, played["options"]
    envs.options = options[:: envs.group_size] if isinstance(options, list) else options

    def step(action: NDArray[Any], env_ids: Ids) -> None:
        outcome = envs.step(action, env_ids)
        returns[outcome.env_ids] += outcome.reward
        for env_id, reward in outcome.late_rewards.items():
            returns[env_id] += reward

    def begin_at(step: int) -> None:
        env_ids = np.flatnonzero(began == step)
        if step > 0 and len(env_ids):  # their earlier steps belong to no saved episode
            envs.episodes[env_ids] -= 1
            envs.begin(env_ids)

    try:
        envs.episodes[:] -= 1
        envs.reset()
        for index, (action, took) in enumerate(zip(played["actions"], played["took"], strict=True)):
            begin_at(index)
            step(action[took], np.flatnonzero(took))
            while len(envs.in_flight):
                step(action[:0], envs.all_ids[:0])
        begin_at(len(played["actions"]))
        if "in_flight" in played:
            envs.send_again(played["sent"], played["in_flight"])
    except EnvError as error:
        return f"an episode cannot be replayed: {error}"
    finally:
        envs.options = own_options
        envs.load_state_dict(state)  # the replay changed episode numbers and the processors' state
        envs.take_metrics()  # which were logged when the episodes were played first
    pairs = zip(tree.leaves(envs.obs), played["obs"], strict=True)
    if all(_are_identical(*pair) for pair in pairs) and have_returns(returns):
        return None
    return "replayed by its seed and actions, an episode differs"


def _are_identical(one: NDArray[Any], other: NDArray[Any]) -> bool:
    return one.dtype == other.dtype and one.shape == other.shape and one.tobytes() == other.tobytes()
