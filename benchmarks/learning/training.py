"""How the benchmarks of learning train a preset, and the seeds on which settings were chosen, which none publishes.

The tuning seeds of the zoo are in its files. Here are those of settings outside of it, and those reserved for tuning.
"""

import time
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import gymnasium

import trainkit as tk
from trainkit.core.config import to_text

RESERVED = range(1_001, 2_001)  # of every preset and environment: general tables are tuned on these

_CARTPOLE = ("double_dqn", "dueling_dqn", "prioritized_dqn", "noisy_dqn", "c51", "qrdqn", "iqn", "munchausen_dqn")
CHOSEN_ON: dict[tuple[str, str], Sequence[int]] = {  # {(preset, environment): seeds}
    **dict.fromkeys(((preset, "CartPole-v1") for preset in ("dqn", "rainbow", *_CARTPOLE)), range(11, 16)),
    **dict.fromkeys(((preset, "CartPole-v1") for preset in ("bc", "cql", "bcq")), range(11, 17)),  # of offline.py
    ("dqn", "Acrobot-v1"): (11,),  # of hl_gauss.py
    ("dqn", "LunarLander-v3"): (1, 2),
    ("ppo", "LunarLander-v3"): (1,),
    ("a2c", "LunarLander-v3"): (1,),
    ("xqc", "HalfCheetah-v5"): (1,),
}


def tuning_seeds(preset: str, env: str) -> set[int]:
    """Return the seeds on which a preset must not be evaluated in an environment."""
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
                "evaluate them: name others with --seeds (benchmarks/learning/training.py)"
            )


def is_for_one_agent(name: str) -> bool:
    """Return whether a preset learns in environments of one agent, without a memory, which has a page of its own."""
    preset = tk.presets.PRESETS[name]
    return not preset.learns_from_data and name not in ("ippo", "mappo") and preset.table()["recurrent"] is None


def register(env: str) -> None:
    """Register MinAtar's environments with Gymnasium where one is needed (`pip install minatar`)."""
    if env.startswith("MinAtar/") and env not in gymnasium.registry:
        import minatar.gym

        minatar.gym.register_envs()


def preset_trainer(preset: str, env: Any, seed: int, **options: Any) -> Any:
    """Return a silent run of a preset on the CPU."""
    register(str(env))
    quiet: dict[str, Any] = {"device": "cpu", "verbose": False, "show_progress": False}
    return tk.presets.PRESETS[preset](env, seed=seed, **quiet, **options)


def mean_return(policy: Any, env: Any, n_episode: int, seed: int, **options: Any) -> float:
    """Return the mean return of greedy episodes."""
    mean = tk.evaluate(policy, env, n_episode=n_episode, seed=seed, **options).returns.mean
    assert mean is not None, "episodes were requested"
    return mean


def curve(preset: str, env: str, seed: int, *, n_epochs: int, every: int, episodes: int, **changes: Any) -> Any:
    """Train a preset, evaluated after every epoch of `every` steps on episodes with seeds of their own.

    Returns:
        The mean return of every evaluation, in order, and the seconds of CPU time that all of it took.
    """
    began, returns = time.process_time(), []
    options = {"evaluation": None, "max_epoch": n_epochs, "step_per_epoch": every, **changes}
    with preset_trainer(preset, env, seed, **options) as trainer:
        for epoch, _, _ in trainer:
            returns.append(mean_return(trainer.policy, env, episodes, 1_000 * seed + epoch, n_envs=50))
    if len(returns) < n_epochs:  # by Ctrl-C or SIGTERM: neither kept, nor followed by the next run
        raise SystemExit(f"{preset} in {env}, seed {seed}, was stopped after {len(returns)} evaluations")
    return {"returns": returns, "seconds": time.process_time() - began}


def settings_of(preset: str, env: str, changes: Mapping[str, Any]) -> dict[str, str]:
    """Return the settings, as text, that a preset has for an environment's id, without making the environment."""
    of: Any = tk.presets.PRESETS[preset]
    entry = of.zoo_entry(env, changes)
    table = of.table(of.domain_of_id(env)) if entry is None else of.zoo_table(entry)
    settings = of.changed(table, changes)
    return {name: to_text(settings[name]) for name in of.settings()}
