"""Atari environments as every preset has them: ale-py's vector environment, whole games, rewards as they are."""

from typing import Any

# Sticky actions and the minimal action set follow Machado et al. (2018) as Dopamine does (Castro et al., 2018). A game
# begins with FIRE where it has one: a greedy policy might wait for ever.
ATARI_ENVS: dict[str, Any] = {
    "backend": "vector",
    "stack": 4,
    "env_kwargs": {
        "stack_num": 1,
        "reward_clipping": False,
        "repeat_action_probability": 0.25,
        "noop_max": 0,
        "use_fire_reset": True,
    },
}
