"""The tests that a change reaches: followed through imports and re-exports, the nearest first."""

import time
from pathlib import Path

import pytest

from tests.helpers.pages import ROOT, examples
from tests.imports import Imports
from tests.quick import ALWAYS, OTHERS, examples_of, mirrors, reached

pytest_plugins = ["pytester"]

FILES = {
    "src/trainkit/__init__.py": "from trainkit import policy\nfrom trainkit.policy import DQN\n",
    "src/trainkit/policy/__init__.py": "from trainkit.policy.dqn import DQN\nfrom trainkit.policy.sac import SAC\n",
    "src/trainkit/policy/dqn.py": "from trainkit.tree import map_tree\n",
    "src/trainkit/policy/sac.py": "",
    "src/trainkit/tree.py": "",
    "tests/policy/test_dqn.py": "",
    "tests/policy/test_dqn_masks.py": "",
    "tests/policy/test_by_root.py": "import trainkit as tk\ntk.DQN()\n",
    "tests/policy/test_by_package.py": "import trainkit\nfrom trainkit import tree\ntrainkit.policy.DQN()\n",
    "tests/policy/test_sac.py": "from trainkit.policy import SAC as Renamed\n",
    "tests/buffer/test_small.py": "from trainkit import DQN\n",
    "tests/helpers/made.py": "from trainkit import DQN\n",
    "tests/trainer/test_by_helper.py": "from tests.helpers.made import dqn\n",
    "tests/trainer/test_nothing.py": "import os\n",
    "tests/trainer/conftest.py": "from trainkit import tree\n",
}


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    for name, text in FILES.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    return tmp_path


def test_tests_that_mirror_a_file_come_first_and_those_by_way_of_others_last(repository: Path) -> None:
    assert reached(["src/trainkit/policy/dqn.py"], repository) == [
        "tests/policy/test_dqn.py",
        "tests/policy/test_dqn_masks.py",
        "tests/policy/test_by_root.py",
        "tests/policy/test_by_package.py",
        "tests/buffer/test_small.py",
        "tests/trainer/test_by_helper.py",
    ]


def test_a_package_that_exports_a_name_leads_to_no_test_of_other_names(repository: Path) -> None:
    assert reached(["src/trainkit/policy/sac.py"], repository) == ["tests/policy/test_sac.py"]


def test_a_conftest_reaches_the_tests_of_its_folder(repository: Path) -> None:
    assert reached(["tests/trainer/conftest.py"], repository) == [
        "tests/trainer/test_nothing.py",
        "tests/trainer/test_by_helper.py",
    ]


def test_a_changed_test_reaches_itself_and_a_deleted_one_nothing(repository: Path) -> None:
    changed = ["tests/trainer/test_nothing.py", "tests/trainer/test_gone.py"]
    assert reached(changed, repository) == ["tests/trainer/test_nothing.py"]


def test_a_deleted_file_reaches_the_tests_that_mirror_it(repository: Path) -> None:
    (repository / "src/trainkit/policy/dqn.py").unlink()
    assert mirrors(repository, "src/trainkit/policy/dqn.py") == [
        "tests/policy/test_dqn.py",
        "tests/policy/test_dqn_masks.py",
    ]


def test_a_name_is_defined_where_no_package_exports_it_further(repository: Path) -> None:
    imports = Imports(repository)
    assert imports.definer("trainkit", "DQN") == "trainkit.policy.dqn"
    assert imports.definer("trainkit", "policy") == "trainkit.policy"
    assert imports.definer("trainkit.policy.dqn", "DQN") == "trainkit.policy.dqn"


def test_a_page_reaches_the_tests_of_its_own_code_and_of_links() -> None:
    *code, links = examples_of("docs/quickstart.md")
    names = [example.name for example in examples(ROOT / "docs/quickstart.md")]
    assert code == [f"tests/test_readme.py::test_the_code_runs[{name}]" for name in names]
    assert len(names) > 0
    assert links == "tests/test_readme.py::test_the_links_lead_somewhere"
    assert examples_of("tests/test_readme.py") == []


def test_the_tests_that_are_listed_by_hand_exist() -> None:
    assert [test for tests in [ALWAYS, *OTHERS.values()] for test in tests if not (ROOT / test).exists()] == []


def test_tests_that_would_start_too_late_are_left_out_and_listed(pytester: pytest.Pytester) -> None:
    pytester.makepyfile("def test_one(): assert False\ndef test_two(): assert False\n")
    command = ["-p", "tests.quick", "-p", "no:cacheprovider", "-p", "no:xdist"]
    late = pytester.runpytest_inprocess(*command, f"--no-tests-after={time.time() - 1}")
    late.assert_outcomes(skipped=2)
    late.stdout.fnmatch_lines(["2 tests left out: the time of `make quick` is up: *.py (2)"])
    pytester.runpytest_inprocess(*command, f"--no-tests-after={time.time() + 60}").assert_outcomes(failed=2)
