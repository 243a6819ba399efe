"""The seeds on which settings were chosen: no benchmark trains them to judge those settings.

Those of the zoo are in its files. Here are the seeds of settings outside of it, and those that are reserved for tuning.
"""

from collections.abc import Iterable, Sequence

import trainkit as tk

RESERVED = range(1_001, 2_001)  # of every preset and environment: whoever tunes a general table takes them from here

_CARTPOLE = ("double_dqn", "dueling_dqn", "prioritized_dqn", "noisy_dqn", "c51", "qrdqn", "iqn", "munchausen_dqn")
CHOSEN_ON: dict[tuple[str, str], Sequence[int]] = {  # {(preset, environment): seeds}
    **dict.fromkeys(((preset, "CartPole-v1") for preset in ("dqn", "rainbow", *_CARTPOLE)), range(11, 16)),
    **dict.fromkeys(((preset, "CartPole-v1") for preset in ("bc", "cql", "bcq")), range(11, 17)),  # of offline.py
    ("dqn", "Acrobot-v1"): (11,),  # hl_gauss.py
    ("dqn", "LunarLander-v3"): (1, 2),  # this and the next two: learning_work.py
    ("ppo", "LunarLander-v3"): (1,),
    ("a2c", "LunarLander-v3"): (1,),
}


def tuning_seeds(preset: str, env: str) -> set[int]:
    """Return the seeds that must not judge a preset in an environment."""
    seeds = {*RESERVED, *CHOSEN_ON.get((preset, env), ())}
    in_zoo = [entry.tuning_seeds for entry in tk.zoo.list() if (entry.preset, entry.env) == (preset, env)]
    return seeds.union(*in_zoo)


def check_fresh(presets: Iterable[str], env: str, seeds: Iterable[int]) -> None:
    """Raise `SystemExit` if settings of a preset for an environment were chosen on one of the seeds."""
    given = {*seeds}
    for preset in presets:
        tuned = sorted(given & tuning_seeds(preset, env))
        if tuned:
            raise SystemExit(
                f"settings of {preset} for {env} were chosen on seeds {', '.join(map(str, tuned))}, which must not "
                "judge them: name others with --seeds (benchmarks/tuning_seeds.py)"
            )
