"""The page of the zoo: current, complete, and honest about what was not run."""

from dataclasses import replace
from datetime import date
from pathlib import Path

from trainkit import zoo
from trainkit.presets.zoo_entry import ZOO
from trainkit.zoo.report import page, report_command, rows

PAGE = Path(__file__).parents[2] / "benchmarks" / "results" / "ZOO.md"


def test_the_page_is_current() -> None:
    assert PAGE.read_text() == page(zoo.list()), report_command(ZOO)


def test_a_row_has_the_result_or_says_that_there_is_none() -> None:
    entry = replace(zoo.entry("ppo", "Pendulum-v1"), result=None)
    assert rows([entry])[1] == ["ppo", "Pendulum-v1", "102,400", "not yet run", "", "-172.2", "", "", "no"]
    result = zoo.ZooResult(
        seeds=(101, 102), returns=(-170.0, -180.0), mean=-175.0, low=-180.0, high=-170.0, random=-1200.0, steps=102_400,
        seconds=60.0, settings=entry.digest, commit="1234567", command="c", date=date(2026, 1, 2), weights_seed=101,
    )  # fmt: skip
    row = rows([replace(entry, result=result)])[1]
    assert row[3:] == ["-175 [-180, -170]", "2", "-172.2", "-1200", "1234567", "seed 101"]
    outdated = replace(entry, result=replace(result, settings="0"))
    assert rows([outdated])[1][3] == "-175 [-180, -170], other settings"
