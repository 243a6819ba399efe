"""Resets of networks while the replay buffer stays: a callback."""

NAMES = {"callbacks.NetworkResets": "network_resets:NetworkResets"}
