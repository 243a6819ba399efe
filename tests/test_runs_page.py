"""benchmarks/results/RUNS.md: every result page and entry of the zoo, with command, commits, core hours and state."""

import re
from pathlib import Path

import trainkit as tk
from benchmarks.runs_next import LEARNING, planned

RESULTS = Path(__file__).parents[1] / "benchmarks" / "results"
ROWS = planned()


def page_of(result: str) -> str | None:
    """Return the name of the page that a row is about."""
    if result.startswith("zoo: "):
        return "ZOO.md"
    found = re.match(r"\[(\S+)\]\(\1\)$", result)
    return found[1] if found else None


def commits_in(text: str) -> set[str]:
    return set(re.findall(r"`(\w+)`", text))


def measured_at(page: str) -> set[str]:
    """Return the commits that the head of a page names."""
    return commits_in(" ".join(re.findall(r"^Measured at commit.*$", page, re.MULTILINE)))


def test_every_result_page_is_named_once() -> None:
    named = [page for row in ROWS if row.result.startswith("[") and (page := page_of(row.result))]
    assert sorted(named) == sorted(path.name for path in RESULTS.glob("*.md") if path.name != "RUNS.md")


def test_every_entry_of_the_zoo_is_named_once() -> None:
    named = [row.result.removeprefix("zoo: ") for row in ROWS if row.result.startswith("zoo: ")]
    assert sorted(named) == sorted(entry.name for entry in tk.zoo.list())


def test_an_entry_of_the_zoo_is_done_where_it_has_a_result_and_names_its_commits() -> None:
    entries = {entry.name: entry for entry in tk.zoo.list()}
    for row in ROWS:
        if row.result.startswith("zoo: "):
            entry = entries[row.result.removeprefix("zoo: ")]
            assert row.command.startswith(f"trainkit zoo train {entry.preset} {entry.env}"), row.result
            assert (entry.result is None) == (row.state == "not run"), row.result
            measured = [] if entry.result is None else entry.result.commit.split(", ")
            assert re.findall(r"`(\w+)`", row.commits) == measured, row.result


def test_the_commits_of_a_row_are_those_of_its_page() -> None:
    for row in ROWS:
        page = page_of(row.result)
        if page and row.commits != "-":
            text = (RESULTS / page).read_text()
            assert commits_in(row.commits) <= commits_in(text), row
            if row.result.startswith("["):
                assert commits_in(row.commits) == measured_at(text), row


def test_the_commits_of_the_runs_of_a_report_are_those_of_its_page() -> None:
    runs = " ".join(row.commits for row in ROWS if row.result.startswith("continuous: "))
    assert commits_in(runs) == measured_at((RESULTS / "continuous.md").read_text())


def test_every_row_has_a_command_hours_and_a_state() -> None:
    for row in ROWS:
        options = r"(?: --\w+(?: [\w-]+| '[\w, -]+')+)*"
        assert re.fullmatch(rf"make [\w-]+|python -m benchmarks[.\w]+{options}|trainkit .+", row.command), row.result
        assert row.measures in (LEARNING, "time", "behavior", "device", "report"), row.result
        assert re.fullmatch(r"-|`[0-9a-f]{7}`.*", row.commits), row.result
        assert re.fullmatch(r"-|\d+\.\d", row.hours), row.result
        assert re.match(r"done$|(partial|outdated): .|not run$", row.state), row.result
        assert (row.commits == "-") <= (not row.state.startswith("done") or row.measures == "report"), row.result
