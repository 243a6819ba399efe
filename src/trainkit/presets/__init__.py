"""Presets: trainers for an environment and a seed, with defaults for everything else, whose sources are named.

    trainer = tk.presets.rainbow("CartPole-v1", seed=1)
    for epoch, stats, info in trainer: ...

    trainer = tk.presets.cql(buffer, "CartPole-v1", seed=1)  # offline: from the rows of a buffer

Each preset has a general table of settings for each domain: vectors, continuous actions, images. `settings("rainbow")`
and `settings("rainbow", "atari")` return them. For some environments the zoo has tuned settings, which replace the
general ones unless `zoo=False`; `rainbow.config("CartPole-v1").settings()` returns those that a call uses. Any of them
can be overridden by name, and an unknown name is answered with the nearest one.
"""

from trainkit.core.extensions import attach
from trainkit.core.names import OTHER_LIBRARIES, did_you_mean


def _hint(name: str) -> str:
    """Return the preset that is meant, for an error."""
    lower, public = name.lower().removesuffix("policy"), __dir__()
    meant = f", did you mean tk.presets.{lower}?" if lower in public else did_you_mean(name, public)
    return f"{meant or ':'} {OTHER_LIBRARIES}"


__dir__, __getattr__ = attach(
    __name__,
    {
        "presets.off_policy_actor_critic": "ActorCriticPreset ActorCriticSettings",
        "presets.all_presets": "PRESETS settings",
        "presets.base": "NetworkOptions Preset PresetConfig QNetworkOptions Settings table_of",
        "presets.first_choice": "continuous_default",
        "presets.off_policy": "OffpolicyPreset OffpolicySettings",
        "presets.policy_gradient": (
            "A2CPreset A2CSettings CentralizedCriticPreset PPOPreset PPOSettings ReinforcePreset a2c ippo mappo ppo "
            "recurrent_ppo reinforce"
        ),
        "presets.q_learning": (
            "QPreset QSettings c51 double_dqn dqn drqn dueling_dqn iqn munchausen_dqn noisy_dqn prioritized_dqn qrdqn "
            "r2d2 rainbow"
        ),
        "presets.rollouts": "ActorCriticOptions OnpolicyPreset OnpolicySettings",
        "presets.soft_actor_critic": "SACPreset SACSettings sac",
    },
    constant="PRESETS",
    hint=_hint,
)
