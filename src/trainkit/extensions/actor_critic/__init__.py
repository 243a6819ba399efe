"""DDPG, TD3, TQC, REDQ, DroQ, CrossQ and XQC: off-policy actor-critics made of parts, as SAC is.

Added by parts of `ActorCriticPolicy` (distributions of actions, reductions of critics, noise, networks, passes of the
critics) and by presets.
"""

NAMES = {
    "policy.BatchNormNetworks": "batch_norm:BatchNormNetworks",
    "policy.Deterministic": "deterministic:Deterministic",
    "policy.DropoutNetworks": "dropout:DropoutNetworks",
    "policy.FirstCritic": "critic_reductions:FirstCritic",
    "policy.JointPass": "batch_norm:JointPass",
    "policy.MeanOfCritics": "critic_reductions:MeanOfCritics",
    "policy.MinOfSubset": "critic_reductions:MinOfSubset",
    "policy.OrnsteinUhlenbeckNoise": "ornstein_uhlenbeck:OrnsteinUhlenbeckNoise",
    "policy.TruncatedQuantiles": "critic_reductions:TruncatedQuantiles",
    "presets.CrossQSettings": "batch_norm_presets:CrossQSettings",
    "presets.DDPGSettings": "deterministic_presets:DDPGSettings",
    "presets.DroQSettings": "stochastic_presets:DroQSettings",
    "presets.REDQSettings": "stochastic_presets:REDQSettings",
    "presets.TD3Settings": "deterministic_presets:TD3Settings",
    "presets.TQCSettings": "stochastic_presets:TQCSettings",
    "presets.XQCSettings": "batch_norm_presets:XQCSettings",
}
PRESETS = {
    "crossq": "batch_norm_presets:crossq",
    "ddpg": "deterministic_presets:ddpg",
    "droq": "stochastic_presets:droq",
    "redq": "stochastic_presets:redq",
    "td3": "deterministic_presets:td3",
    "tqc": "stochastic_presets:tqc",
    "xqc": "batch_norm_presets:xqc",
}
