"""The zoo as tables: for a terminal, and the page benchmarks/results/ZOO.md."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from trainkit.core.config import to_text
from trainkit.core.stats import format_number
from trainkit.presets.zoo_entry import ZOO, ZooEntry, folder_flag

_NOT_RUN = "not yet run"


def rows(entries: Sequence[ZooEntry]) -> list[list[str]]:
    """Return a heading and a row per entry."""
    heading = ["preset", "environment", "steps", "result", "seeds", "source's", "random", "commit", "weights"]
    return [heading, *map(_row, entries)]


def report_command(folder: Path) -> str:
    """Return the command that writes the page of a zoo."""
    flags = " -o benchmarks/results/ZOO.md" if folder == ZOO else folder_flag(folder)
    return f"trainkit zoo report{flags}"


def page(entries: Sequence[ZooEntry], folder: Path = ZOO) -> str:
    """Return the page of all entries of a folder, in Markdown."""
    table = rows(entries)
    done = [entry for entry in entries if entry.result is not None]
    lines = [
        "# The zoo",
        "",
        f"Written by `{report_command(folder)}` from the files below {_place(folder)}.",
        "",
        f"{len(done)} of {len(entries)} entries have a result. A result is the mean over seeds on which the settings "
        "were not chosen, of the mean return of each seed's greedy episodes, with the 95 % bootstrap interval over "
        'seeds. "Source\'s" is the mean return that the source of the settings reports.',
        "",
        *(f"| {' | '.join(row)} |" for row in (table[0], ["---"] * len(table[0]), *table[1:])),
    ]
    for entry in entries:
        lines += ["", f"## {entry.name}", "", *_details(entry, folder)]
    return "\n".join([*lines, ""])


def _place(folder: Path) -> str:
    explained = ", which [the zoo](../../docs/zoo.md) explains"
    return (
        f"`src/trainkit/presets/zoo` and the folders `zoo` of extensions{explained}" if folder == ZOO else f"`{folder}`"
    )


def _row(entry: ZooEntry) -> list[str]:
    source = "" if entry.source_result is None else f"{entry.source_result:g}"
    steps = f"{entry.steps:,}"
    result = entry.result
    if result is None:
        return [entry.preset, entry.env, steps, _NOT_RUN, "", source, "", "", "no"]
    outdated = "" if result.settings == entry.digest else ", other settings"
    spread = f" [{result.low:.5g}, {result.high:.5g}]" if len(result.seeds) > 1 else ""
    shown = f"{result.mean:.5g}{spread}{outdated}"
    weights = "no" if result.weights_seed is None else f"seed {result.weights_seed}"
    row = [entry.preset, entry.env, steps, shown, str(len(result.seeds)), source]
    return [*row, format_number(result.random), result.commit, weights]


def _settings(settings: Mapping[str, Any]) -> str:
    return ", ".join(f"`{name}` {to_text(value)}" for name, value in settings.items())


def _details(entry: ZooEntry, folder: Path) -> list[str]:
    """Return the paragraphs about one entry."""
    tuned = ", ".join(map(str, entry.tuning_seeds)) or "none"
    lines = [f"Source: {entry.source}. Tuning seeds: {tuned}.", "", f"Settings: {_settings(entry.settings)}."]
    if entry.on_accelerator:
        lines += ["", f"On a GPU, of which no result was measured: {_settings(entry.on_accelerator)}."]
    if (result := entry.result) is None:
        return [
            *lines,
            "",
            f"{_NOT_RUN.capitalize()}: `trainkit zoo train {entry.preset} {entry.env}{folder_flag(folder)}`.",
        ]
    returns = ", ".join(f"{seed}: {mean:.5g}" for seed, mean in zip(result.seeds, result.returns, strict=True))
    curve = ", ".join(f"{step:,}: {format_number(mean)}" for step, mean in result.curve)
    lines += [
        "",
        f"`{result.command}`, {result.date}, commit `{result.commit}`: {entry.episodes:,} greedy episodes per seed of "
        f"the {entry.policy} policy, {result.seconds:,.0f} s per seed (median). Mean return by seed: {returns}.",
        "",
        f"Mean return during training, by step: {curve}." if curve else "It was not evaluated during training.",
    ]
    if result.weights_seed is not None:
        lines += ["", f"The shipped policy, of seed {result.weights_seed}, reaches {result.weights_return:.5g}."]
    return lines
