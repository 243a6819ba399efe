"""Examples of actor-critics: calls that work, and runs in which options matter, for tests of all public names."""

from pathlib import Path
from typing import Any

import trainkit as tk
from tests.faults.makers import Call
from tests.outside.constructors import REPLAY, Build, Run, envs, replayed
from trainkit import policy

DETERMINISTIC: dict[str, Any] = {"temperature": None}


def calls(folder: Path) -> dict[str, Call]:
    return {
        "BatchNormNetworks": Call(policy.BatchNormNetworks, {"warm_up": 10}),
        "Deterministic": Call(policy.Deterministic, {"noise_std": 0.2}),
        "DropoutNetworks": Call(policy.DropoutNetworks, {"dropout": 0.1}),
        "FirstCritic": Call(policy.FirstCritic, {}),
        "JointPass": Call(policy.JointPass, {}),
        "MeanOfCritics": Call(policy.MeanOfCritics, {}),
        "MinOfSubset": Call(policy.MinOfSubset, {"size": 2}),
        "OrnsteinUhlenbeckNoise": Call(policy.OrnsteinUhlenbeckNoise, {"theta": 0.2}),
        "TruncatedQuantiles": Call(policy.TruncatedQuantiles, {"drop_per_critic": 1}),
    }


def part_of_actor_critic(option: str, *args: Any, **more: Any) -> Run:
    """Return a run of a part of `ActorCriticPolicy`."""

    def run(build: Build) -> tk.Trainer:
        made = envs("Pendulum-v1")
        how: dict[str, Any] = {"hidden": (8,), "device": "cpu", **more, option: build(*args)}
        return replayed(tk.ActorCriticPolicy.for_envs(made, **how), made)

    return run


RUNS: dict[Any, list[Run]] = {
    policy.BatchNormNetworks: [
        part_of_actor_critic("networks", lr=0.1),
        part_of_actor_critic("networks", critic_pass=policy.JointPass(), target="none"),
    ],
    policy.Deterministic: [part_of_actor_critic("distribution", **DETERMINISTIC, lr=0.1)],
    policy.DropoutNetworks: [part_of_actor_critic("networks", lr=0.1)],
    policy.FirstCritic: [part_of_actor_critic("reduction")],
    policy.JointPass: [part_of_actor_critic("critic_pass", networks=policy.BatchNormNetworks())],
    policy.MeanOfCritics: [part_of_actor_critic("reduction")],
    policy.MinOfSubset: [part_of_actor_critic("reduction", n_critics=3)],
    policy.OrnsteinUhlenbeckNoise: [part_of_actor_critic("exploration")],
    policy.TruncatedQuantiles: [part_of_actor_critic("reduction", value=tk.QuantileValue(5))],
}
ON_PENDULUM: dict[str, Any] = {"env": "Pendulum-v1", "zoo": False, "n_envs": 2, "hidden": (8,), **REPLAY}
ON_PENDULUM |= {"n_test_envs": 2, "episode_per_test": 2}
_RUNS: list[dict[str, Any]] = [ON_PENDULUM, ON_PENDULUM | {"buffer": "prioritized"}]
WITH_MEMORY = ON_PENDULUM | {"recurrent": "gru", "sequences": tk.Sequences(4, 2), "batch_size": 4}
PRESETS: dict[str, list[dict[str, Any]]] = {
    **{name: [*_RUNS, WITH_MEMORY] for name in ("ddpg", "td3", "tqc")},
    "redq": [run | {"actor_every": 2} for run in (*_RUNS, WITH_MEMORY)],
    "droq": [run | {"actor_every": 2} for run in _RUNS],
    **{name: [run | {"critic_hidden": (8,)} for run in _RUNS] for name in ("crossq", "xqc")},
}
