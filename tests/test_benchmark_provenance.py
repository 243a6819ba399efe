"""Published numbers say which commit they were measured at, and a sample of them can be trained again."""

import json
import random
import re
import subprocess
from collections.abc import Sequence
from pathlib import Path

import gymnasium
import pytest

import trainkit as tk
from benchmarks import pages as provenance
from benchmarks import results_check
from benchmarks.pages import Cache
from benchmarks.results_check import Row, sampled, verdict

RESULTS = Path(__file__).parents[1] / "benchmarks" / "results"
PAGES = [page for page in RESULTS.glob("*.md") if page.name not in ("RUNS.md", "ZOO.md")]  # these two list others


def test_every_results_page_names_the_commit_it_was_measured_at() -> None:
    measured = re.compile(r"^Measured at commit `[0-9a-f]{7}`", re.MULTILINE)
    assert [page.name for page in PAGES if not measured.search(page.read_text())] == []


def test_every_results_page_names_its_command() -> None:
    command = re.compile(r"`(python -m benchmarks[.\w]+|make [a-z-]+)")
    named = {page.name: command.search(page.read_text()) for page in PAGES}
    assert [name for name, found in named.items() if found is None] == []
    modules = {found[1].removeprefix("python -m ") for found in named.values() if found and found[1][0] == "p"}
    paths = (RESULTS.parents[1] / f"{name.replace('.', '/')}.py" for name in sorted(modules))
    assert [str(path) for path in paths if not path.exists() and not path.with_suffix("").is_dir()] == []


def test_every_results_page_is_linked_from_the_page_of_results() -> None:
    listed = (RESULTS.parents[1] / "docs" / "benchmarks.md").read_text()
    assert [page.name for page in RESULTS.glob("*.md") if f"../benchmarks/results/{page.name})" not in listed] == []


def test_numbers_of_documents_are_on_the_pages_that_they_link_to() -> None:
    assert len(results_check.DOCUMENTS) > 40
    found = {str(document): results_check.unpublished(document) for document in results_check.DOCUMENTS}
    assert {name: numbers for name, numbers in found.items() if numbers} == {}


def test_a_number_that_is_on_no_page_is_found(tmp_path: Path) -> None:
    page = tmp_path / "benchmarks" / "results" / "speed.md"
    page.parent.mkdir(parents=True)
    page.write_text("| dqn | 1.96 | 1,234.5 |")
    document = tmp_path / "README.md"
    link = "([measured](benchmarks/results/speed.md))"
    document.write_text(f"Version 1.2.0, 7.7 without a link.\n\n- 2.0 times, 1234.5 steps {link}\n- 1.8 {link}")
    assert results_check.unpublished(document) == ["1.8"]


def test_every_kept_run_carries_its_commit() -> None:
    commits = {
        file.name: [json.loads(line)["commit"] for line in file.read_text().splitlines()]
        for file in RESULTS.glob("*.jsonl")
    }
    assert commits
    assert {name for name, own in commits.items() if not all(re.fullmatch("[0-9a-f]{7,}", one) for one in own)} == set()


def test_a_kept_run_has_the_commit_of_the_code_that_ran_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("benchmarks.pages.code_commit", lambda: "1234567")
    Cache(tmp_path / "runs.jsonl").put({"returns": [1.0]}, "dqn", 1)
    monkeypatch.setattr("benchmarks.pages.code_commit", lambda: "89abcde")
    again = Cache(tmp_path / "runs.jsonl")
    assert again.commit("dqn", 1) == "1234567"
    assert list(again.rows()) == [(["dqn", 1], {"returns": [1.0]}, "1234567")]


# ---- commits ----


@pytest.fixture
def repository(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A repository of three commits, of which the first and the last change src."""
    monkeypatch.setattr(provenance, "ROOT", tmp_path)
    (tmp_path / "src").mkdir()
    git(tmp_path, "init", "-q")
    for n, file in enumerate(["src/code.py", "README.md", "src/code.py"]):
        (tmp_path / file).write_text(str(n))
        git(tmp_path, "add", ".")
        git(tmp_path, "-c", "user.name=a", "-c", "user.email=a@b.c", "commit", "-q", "-m", f"{n}")
    provenance.code_commit.cache_clear()
    return tmp_path


def git(folder: Path, *arguments: str) -> str:
    return subprocess.run(["git", *arguments], cwd=folder, capture_output=True, text=True, check=True).stdout.strip()


def test_the_code_is_of_the_last_commit_that_changed_src(repository: Path) -> None:
    last, _, first = git(repository, "log", "--format=%h", "--abbrev=7").splitlines()
    assert provenance.code_commit() == last
    assert provenance.commits_since(last) == 0
    assert provenance.commits_since(first) == 1  # the second commit changed no code


def test_uncommitted_changes_of_src_are_marked(repository: Path) -> None:
    last = git(repository, "log", "-1", "--format=%h", "--abbrev=7")
    (repository / "src" / "code.py").write_text("changed")
    assert provenance.code_commit() == f"{last}+"
    assert provenance.commits_since(f"{last}+") == 1


def test_outside_a_checkout_the_commit_is_unknown(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(provenance, "ROOT", tmp_path)
    provenance.code_commit.cache_clear()
    assert provenance.code_commit() == "unknown"
    assert provenance.commits_since("1234567") is None
    provenance.code_commit.cache_clear()


def test_several_commits_are_listed_with_the_number_of_their_runs() -> None:
    assert (
        provenance.measured_at(["aaaaaaa", "bbbbbbb", "bbbbbbb"]) == "Measured at commit `bbbbbbb` (2), `aaaaaaa` (1)."
    )
    assert provenance.measured_at(["aaaaaaa", "aaaaaaa"]) == "Measured at commit `aaaaaaa`."


# ---- results-check ----


def row(
    returns: Sequence[float] = (1.0, 2.5),
    commit: str = "0000000",
    seconds: float = 10.0,
    has_todays_settings: bool = True,
) -> Row:
    return Row(
        name="learning: dqn, seed 1",
        commit=commit,
        returns=(1.0, 2.5),
        seconds=seconds,
        has_todays_settings=has_todays_settings,
        rerun=lambda: returns,
        remake="make bench",
    )


def test_equal_evaluations_reproduce() -> None:
    received = verdict(row(), today="0000000")
    assert not received.is_error
    assert "reproduces, all 2 evaluations" in received.text


@pytest.mark.parametrize("returns", [(1.0, 2.6), (1.0,), (1.0, 2.5, 3.0)])
def test_a_row_of_todays_code_that_differs_is_an_error(returns: Sequence[float]) -> None:
    received = verdict(row(returns), today="0000000")
    assert received.is_error
    assert "DOES NOT REPRODUCE" in received.text


def test_an_older_row_that_differs_is_outdated_and_names_what_remakes_it() -> None:
    received = verdict(row((1.0, 2.6)), today="1111111")
    assert not received.is_error
    assert "outdated: evaluation 2 of 2 was 2.50, is 2.60 (commit 0000000" in received.text
    assert "make bench" in received.text


@pytest.mark.parametrize(("score", "is_error"), [(1.0, False), (2.4, False), (0.4, True), (2.6, True)])
def test_an_older_row_must_lie_where_another_seed_is_expected(score: float, is_error: bool) -> None:
    low, high = results_check.expected([1.0, 1.5, 2.0]) or (0.0, 0.0)
    assert (low, high) == pytest.approx((1.5 - 9.925 * 0.5 * (4 / 3) ** 0.5, 1.5 + 9.925 * 0.5 * (4 / 3) ** 0.5))
    spread = 0.5 / 9.925 / (4 / 3) ** 0.5  # so that the interval is 1.5 +- 1
    received = verdict(row((score,)), "1111111", [1.5 - 2 * spread, 1.5, 1.5 + 2 * spread])
    assert received.is_error == is_error
    assert ("NOT between 0.5 and 2.5" in received.text) == is_error


def test_a_single_published_seed_says_nothing_of_others() -> None:
    assert results_check.expected([1.0]) is None
    assert not verdict(row((1e9,)), "1111111", [1.75]).is_error


def test_a_row_of_other_settings_is_not_run() -> None:
    received = verdict(row((), has_todays_settings=False), today="0000000")
    assert not received.is_error
    assert "settings have changed" in received.text


def test_a_row_whose_environment_is_missing_says_so_and_other_errors_pass() -> None:
    def failing(error: Exception) -> Row:
        def rerun() -> Sequence[float]:
            raise error

        return Row(**{**{name: getattr(row(), name) for name in Row.__slots__}, "rerun": rerun})

    error = tk.ConfigError("make_envs: Box2D is not installed")
    error.__cause__ = gymnasium.error.DependencyNotInstalled("Box2D")
    assert "not run" in verdict(failing(error), today="0000000").text
    with pytest.raises(tk.ConfigError, match="n_envs"):
        verdict(failing(tk.ConfigError("n_envs")), today="0000000")


def test_a_sample_fits_into_its_time_and_has_one_row_at_least() -> None:
    many = [row(seconds=50.0) for _ in range(10)]
    assert len(sampled(many, 2.0, random.Random(0))) == 2
    assert len(sampled([row(seconds=1e6)], 2.0, random.Random(0))) == 1


def test_the_rows_of_all_pages_are_found() -> None:
    pages = {own.name.split(":")[0] for own in results_check.rows(core=0)}
    assert pages == {
        "learning_cartpole",
        "general_tables",
        "ZOO",
        "same_settings",
        "time_to_475",
        "recurrent_ppo",
        "mujoco",
        "hl_gauss",
    }
