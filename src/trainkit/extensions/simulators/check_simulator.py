"""Checking a simulator before training: whether its steps, resets and saved states are what learning relies on."""

import copy
from typing import NamedTuple

import torch

from trainkit.core import tree
from trainkit.core.data import Obs
from trainkit.core.errors import BadEnvDataError, Checks, NoLegalActionError
from trainkit.core.seeding import generator
from trainkit.core.signatures import checked
from trainkit.core.spaces import random_actions
from trainkit.engine.device import to_device
from trainkit.envs.env_checker import LEVELS, Finding, Level
from trainkit.extensions.simulators.simulator import Simulator
from trainkit.extensions.simulators.tensor_envs import TensorEnvs


@checked
def check_simulator(simulator: Simulator, *, n_steps: int = 300, seed: int = 0) -> list[Finding]:
    """Step a simulator at random and return the findings, errors first; without an error training can start.

    Args:
        simulator: is reset; it must belong to no collector.
        n_steps: vector steps, which are made twice.
        seed: of resets and actions.

    Raises:
        ConfigError: it lacks a member, has unsupported spaces, or belongs to a collector.
    """
    with Checks("check_simulator") as checks:
        checks.integer("n_steps", n_steps, low=2)
        checks.integer("seed", seed, low=0)
    envs = TensorEnvs(simulator)
    try:
        return sorted(_findings(envs, n_steps, seed), key=lambda finding: LEVELS.index(finding.level))
    except (BadEnvDataError, NoLegalActionError) as error:
        advice = "return what the docstring of trainkit.simulators.Simulator says"
        return [Finding(level="error", what=str(error), advice=advice)]
    finally:
        envs.release()


def _findings(envs: TensorEnvs, n_steps: int, seed: int) -> list[Finding]:
    found: list[Finding] = []

    def find(level: Level, what: str, advice: str) -> None:
        found.append(Finding(level=level, what=f"{envs.name} {what}", advice=advice))

    half = n_steps // 2
    obs = envs.reset(seed)
    first, obs = _play(envs, obs, seed, range(half))
    saved = None if envs.stateful is None else copy.deepcopy(envs.stateful.state_dict())
    middle = tree.map_tree(torch.clone, obs)
    rest, _ = _play(envs, obs, seed, range(half, n_steps))
    if envs.stateful is None or saved is None:
        find("note", "has no state_dict and load_state_dict", "with both, a resumed run continues with the same bits")
    else:
        envs.stateful.load_state_dict(saved)
        if _play(envs, middle, seed, range(half, n_steps))[0] != rest:
            find("error", "continues in another way after load_state_dict", "save all state, random streams included")
    if _play(envs, envs.reset(seed), seed, range(half))[0] != first:
        find("warning", "differs after two resets with the same seed", "seed every random stream in reset")
    played = first + rest
    for name in ("obs", "reward", "final_obs"):
        if any(name in step.invalid for step in played):
            find("error", f"returns {name} that is not finite", "terminate the episode before a number overflows")
    if not any(step.has_ended for step in played):
        find("warning", f"ended no episode within {n_steps} steps", "check a longer time, or let it truncate")
    elif all(step.is_reset for step in played if step.has_ended):
        find(
            "error",
            "returns the observation after the reset as final_obs",
            "copy the observations before resetting: a truncated episode bootstraps from its own last one",
        )
    return found


class _Step(NamedTuple):
    """What is compared of one vector step."""

    sums: tuple[float, ...]  # over each tensor
    has_ended: bool  # any episode
    is_reset: bool  # final_obs equals obs where an episode ended
    invalid: tuple[str, ...]  # names of tensors that are not finite


def _play(envs: TensorEnvs, obs: Obs, seed: int, times: range) -> tuple[list[_Step], Obs]:
    """Step with actions that depend on seed and time only; return what is compared, and the last observations."""
    played = []
    for time in times:
        arrays = tree.map_tree(lambda leaf: leaf.cpu().numpy(), obs)
        action = random_actions(envs.action_space, arrays, envs.n, generator(seed, "check_simulator", time))
        step = envs.step(to_device(action, envs.device))
        obs, over = step.obs, step.over
        final_obs = tree.map_tree(lambda leaf, over=over: leaf[over], step.final_obs)
        pairs = zip(tree.leaves(final_obs), tree.leaves(obs), strict=True)
        named = {"obs": obs, "reward": step.reward, "final_obs": final_obs}
        played.append(
            _Step(
                sums=tuple(float(leaf.float().sum()) for leaf in tree.leaves((*named.values(), over))),
                has_ended=bool(over.any()),
                is_reset=all(bool((final == follows[over]).all()) for final, follows in pairs),
                invalid=tuple(
                    name
                    for name, rows in named.items()
                    if not all(bool(leaf.isfinite().all()) for leaf in tree.leaves(rows))
                ),
            )
        )
    return played, obs
