"""Exploration by noise in the network's parameters: a part, given as `exploration=`."""

NAMES = {
    "ParameterNoise": "parameter_noise:ParameterNoise",
    "policy.ParameterNoise": "parameter_noise:ParameterNoise",
}
