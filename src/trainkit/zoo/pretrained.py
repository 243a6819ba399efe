"""Entries of the zoo by name, and their pretrained policies."""

from pathlib import Path

from trainkit.core.errors import ConfigError, reject_unknown
from trainkit.core.names import did_you_mean
from trainkit.core.signatures import checked
from trainkit.policy import Policy, load_policy
from trainkit.presets import PRESETS
from trainkit.presets.zoo_entry import ZOO, ZooEntry, all_entries, find_entry, folder_flag


@checked
def list_entries(folder: str | Path = ZOO) -> list[ZooEntry]:
    """Return all entries, by preset and environment.

    Args:
        folder: of the zoo; default: that of trainkit.
    """
    return all_entries(Path(folder))


@checked
def entry(preset: str, env: str, *, folder: str | Path = ZOO) -> ZooEntry:
    """Return the entry of a preset for an environment.

    Args:
        preset: its name.
        env: the environment's id.
        folder: of the zoo; default: that of trainkit.

    Raises:
        ConfigError: there is none; the error names what there is.
    """
    reject_unknown("zoo", [preset], PRESETS)
    found = find_entry(preset, env, Path(folder))
    if found is not None:
        return found
    entries = all_entries(Path(folder))
    envs = sorted(other.env for other in entries if other.preset == preset)
    others = [other.preset for other in entries if other.env == env]
    hint = f"; {', '.join(others)} have {env}" if others else ""
    raise ConfigError(
        f"the zoo has nothing for {preset} on {env!r}{did_you_mean(env, envs)}{hint}: {preset} has "
        f"{', '.join(envs) or 'no environment'}; tk.zoo.list() and `trainkit zoo list` show all"
    )


@checked
def load(preset: str, env: str, *, device: str = "auto", folder: str | Path = ZOO) -> Policy:
    """Return the pretrained policy of an entry, saved in half precision and without target networks.

    `entry(preset, env).result` has the seed it was trained on (`weights_seed`) and its mean return (`weights_return`).
    Loading never executes code.

    Args:
        preset: the preset's name.
        env: the environment's id.
        device: of the policy.
        folder: of the zoo; default: that of trainkit.

    Raises:
        ConfigError: the zoo has no such entry, or no weights for it; the error names what there is.
    """
    found = entry(preset, env, folder=folder)
    if found.weights.is_dir():
        policy: Policy = load_policy(found.weights, device=device)
        return policy
    how = f"tk.presets.{preset}({env!r})"
    if Path(folder) != ZOO:  # which presets do not read
        how = f"`trainkit zoo train {preset} {env} --weights median{folder_flag(Path(folder))}`"
    shipped = [other.name for other in all_entries(Path(folder)) if other.weights.is_dir()]
    others = f", or load one of {', '.join(shipped)}" if shipped else ""
    raise ConfigError(f"the zoo has settings for {found.name}, but no weights: train it with {how}{others}")
