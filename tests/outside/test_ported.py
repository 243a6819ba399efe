"""Scripts of Tianshou and RLlib, ported by the pages alone: they run, and each name in them has its row."""

import ast
import importlib
import re
from pathlib import Path
from typing import NamedTuple

import pytest

import trainkit as tk
from tests.outside.rival_pages import PAGES, rows_of

PORTED = Path(__file__).parent / "ported"


class Script(NamedTuple):
    """A ported script: its library, the original's path there, what its best evaluation reaches, if it is slow."""

    library: str
    original: str
    score: float = float("-inf")
    is_slow: bool = False


SCRIPTS = {
    "discrete_dqn": Script("tianshou", "examples/discrete/discrete_dqn.py", 60.0, is_slow=True),  # random moves: 20
    "lunarlander_dqn": Script("tianshou", "examples/box2d/lunarlander_dqn.py"),
    "acrobot_dualdqn": Script("tianshou", "examples/box2d/acrobot_dualdqn.py", is_slow=True),
    "atari_dqn": Script("tianshou", "examples/atari/atari_dqn.py"),
    "atari_rainbow": Script("tianshou", "examples/atari/atari_rainbow.py", is_slow=True),
    "mujoco_sac": Script("tianshou", "examples/mujoco/mujoco_sac.py", is_slow=True),
    "mujoco_ppo": Script("tianshou", "examples/mujoco/mujoco_ppo.py", is_slow=True),
    "mujoco_reinforce": Script("tianshou", "examples/mujoco/mujoco_reinforce.py"),
    "offline_atari_cql": Script("tianshou", "examples/offline/atari_cql.py"),
    "offline_atari_bcq": Script("tianshou", "examples/offline/atari_bcq.py"),
    "replay_buffer_api": Script("rllib", "rllib/examples/_old_api_stack/replay_buffer_api.py", is_slow=True),
    "custom_gym_env": Script("rllib", "rllib/examples/envs/custom_gym_env.py", 0.8),  # random moves: about 0.5
    "rock_paper_scissors_heuristic_vs_learned": Script(
        "rllib", "rllib/examples/multi_agent/rock_paper_scissors_heuristic_vs_learned.py", is_slow=True
    ),
    "env_rendering_and_recording": Script("rllib", "rllib/examples/envs/env_rendering_and_recording.py"),
    "cartpole_recording": Script("rllib", "rllib/examples/offline_rl/cartpole_recording.py", 60.0, is_slow=True),
}
VERSIONS = {"tianshou": "Tianshou 1.2", "rllib": "ray 2.60.0"}


def run(name: str, folder: Path) -> tk.trainer.RunInfo:
    info: tk.trainer.RunInfo = importlib.import_module(f"tests.outside.ported.{name}").main(folder)
    return info


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=pytest.mark.slow if script.is_slow else ()) for name, script in SCRIPTS.items()]
)
def test_a_ported_script_runs(name: str, tmp_path: Path) -> None:
    script = SCRIPTS[name]
    if is_offline := "/offline/" in script.original:
        run("atari_dqn", tmp_path)  # as the original requests: it records the data
    info = run(name, tmp_path)
    assert info.stop_reason is not None
    assert info.gradient_step > 0
    assert is_offline or info.n_episode > 0
    assert info.best_score is None or info.best_score >= script.score


def test_every_script_names_its_original() -> None:
    scripts = {path.stem for path in PORTED.glob("*.py")} - {"catch"}
    assert scripts == SCRIPTS.keys()
    for name, script in SCRIPTS.items():
        header = ast.get_docstring(ast.parse((PORTED / f"{name}.py").read_text())) or ""
        assert f"{script.original} of {VERSIONS[script.library]}" in header


class Ours(ast.NodeVisitor):
    """Collect what a script writes that is ours: attributes of `tk`, and keywords of calls of them; no annotations."""

    def __init__(self) -> None:
        self.names = set[str]()

    def visit_Attribute(self, node: ast.Attribute) -> None:
        if ast.unparse(node).startswith("tk."):
            self.names.add(node.attr)

    def visit_Call(self, node: ast.Call) -> None:
        if ast.unparse(node.func).startswith("tk."):
            self.names |= {keyword.arg for keyword in node.keywords if keyword.arg is not None}
        self.generic_visit(node)

    def visit_arg(self, node: ast.arg) -> None:
        """Skip the annotation."""

    def visit_FunctionDef(self, node: ast.FunctionDef) -> None:
        for part in node.body:
            self.visit(part)

    def visit_AnnAssign(self, node: ast.AnnAssign) -> None:
        if node.value is not None:
            self.visit(node.value)


def names_on_the_pages(library: str) -> set[str]:
    """Return the names in the middle columns of the tables, and in the code of the page with a ported script."""
    pages = [PAGES[library].with_name(f"port_{library}.md"), PAGES[library].with_name("port_multi_agent.md")]
    code = [page.read_text() for page in pages]
    for _, theirs, ours in rows_of(PAGES[library]):
        code += re.findall(r"`([^`]+)`", ours) + (theirs if ours.startswith("the same") else [])
    return {word for text in code for word in re.findall(r"[A-Za-z_]\w*", text)}


@pytest.mark.parametrize("name", SCRIPTS)
def test_every_name_of_ours_in_a_ported_script_is_on_the_pages(name: str) -> None:
    reader = Ours()
    reader.visit(ast.parse((PORTED / f"{name}.py").read_text()))
    assert len(reader.names) > 5
    assert sorted(reader.names - names_on_the_pages(SCRIPTS[name].library)) == []
