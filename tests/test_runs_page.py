"""benchmarks/results/RUNS.md names every result page with its command, commits, core hours and state."""

import re
from pathlib import Path

RESULTS = Path(__file__).parents[1] / "benchmarks" / "results"
ROWS = [
    [cell.strip() for cell in line.strip("|").split("|")]
    for line in (RESULTS / "RUNS.md").read_text().splitlines()
    if line.startswith("| ") and not line.startswith("| result ")
]


def test_every_result_page_is_named_once() -> None:
    named = [found[1] for row in ROWS if (found := re.match(r"\[(\S+)\]\(\1\)$", row[0]))]
    assert named == sorted(named, key=str.lower)
    assert set(named) == {path.name for path in RESULTS.glob("*.md")} - {"RUNS.md"}


def test_the_commits_of_a_row_are_those_of_its_page() -> None:
    for result, _, commits, _, _ in ROWS:
        found = re.match(r"\[(\S+)\]", result)
        if found and commits != "-":
            page = (RESULTS / found[1]).read_text()
            assert [commit for commit in re.findall(r"`(\w+)`", commits) if f"`{commit}`" not in page] == [], result


def test_every_row_has_a_command_hours_and_a_state() -> None:
    for result, command, commits, hours, state in ROWS:
        assert re.fullmatch(r"-|`(make [\w-]+|python -m benchmarks\.\w+|trainkit .+)`", command), result
        assert re.fullmatch(r"-|`[0-9a-f]{7}`.*", commits), result
        assert re.fullmatch(r"-|\d+\.\d", hours), result
        assert re.match(r"done$|(partial|outdated): .|not run", state), result
        assert (commits == "-") <= (not state.startswith("done")), result
