"""The notebooks run from top to bottom, and are committed as they ran: with their pictures, small, without an error."""

import ast
import json
import shutil
from pathlib import Path
from typing import Any

import pytest

import trainkit as tk

EXAMPLES = Path(__file__).parents[1] / "examples"
NOTEBOOKS = sorted(path.stem for path in EXAMPLES.glob("*.ipynb"))


def cells(name: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads((EXAMPLES / f"{name}.ipynb").read_text())["cells"]
    return [cell for cell in found if cell["cell_type"] == "code"]


def pictures(cell: dict[str, Any]) -> int:
    return sum("image/png" in output.get("data", {}) for output in cell["outputs"])


def test_there_are_five() -> None:
    assert NOTEBOOKS == ["offline", "parts", "quickstart", "recurrent", "self_play"]


@pytest.mark.parametrize("name", NOTEBOOKS)
class TestAsCommitted:
    def test_it_ran_in_order_without_an_error_or_a_warning(self, name: str) -> None:
        assert [cell["execution_count"] for cell in cells(name)] == list(range(1, len(cells(name)) + 1))
        outputs = [output for cell in cells(name) for output in cell["outputs"]]
        assert [
            output for output in outputs if output["output_type"] == "error" or output.get("name") == "stderr"
        ] == []

    def test_its_pictures_are_there_and_it_is_small(self, name: str) -> None:
        assert sum(map(pictures, cells(name))) >= 2
        assert (EXAMPLES / f"{name}.ipynb").stat().st_size < 200_000

    def test_it_says_nothing_of_the_machine_it_ran_on(self, name: str) -> None:
        text = (EXAMPLES / f"{name}.ipynb").read_text()
        assert not [place for place in ("/home/", "/root/", "/tmp/", "site-packages") if place in text]

    def test_it_speaks_through_public_names_alone(self, name: str) -> None:
        lines = ["".join(cell["source"]).replace("%matplotlib inline", "") for cell in cells(name)]
        nodes = [node for text in lines for node in ast.walk(ast.parse(text))]
        used = {node.attr for node in nodes if isinstance(node, ast.Attribute) and ast.unparse(node.value) == "tk"}
        assert used <= set(tk.__all__)


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.global_rng  # a kernel's port and names are drawn
@pytest.mark.filterwarnings("default")  # jupyter's own
@pytest.mark.parametrize("name", NOTEBOOKS)
def test_it_runs_from_top_to_bottom(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    nbclient = pytest.importorskip("nbclient", reason="the extra `notebooks` is not installed")
    nbformat = pytest.importorskip("nbformat")
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    shutil.copy(EXAMPLES / f"{name}.ipynb", tmp_path)
    notebook = nbformat.read(tmp_path / f"{name}.ipynb", 4)
    before = [pictures(cell) for cell in notebook.cells if cell.cell_type == "code"]
    client = nbclient.NotebookClient(notebook, timeout=600, resources={"metadata": {"path": str(tmp_path)}})
    client.execute()  # raises what a cell raises
    after = [pictures(cell) for cell in notebook.cells if cell.cell_type == "code"]
    assert after == before
