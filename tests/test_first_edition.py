"""Code written for trainkit 0.1 runs with deprecation warnings only.

`tests/first_edition` has the README, the quickstart and the examples of 0.1, and the code of its notebooks, unedited.
Tuned settings of presets have changed since: what counts steps by them is given the former ones.
"""

import importlib.util
import sys
import warnings
from pathlib import Path
from types import ModuleType, SimpleNamespace

import pytest

import trainkit as tk
from tests.helpers.pages import Example, examples

FIRST = Path(__file__).parent / "first_edition"
PAGES = [example for page in ("README", "quickstart") for example in examples(FIRST / f"{page}.md")]
FORMER_SETTINGS = {"log_every=100,": "log_every=100, step_per_collect=8,"}  # of dqn in 0.1: a block counts its steps
SCRIPTS = [path.stem for path in sorted(FIRST.glob("*.py"))]

pytestmark = [
    pytest.mark.no_cover,
    pytest.mark.global_rng,  # a user's own code may draw where it likes
    pytest.mark.filterwarnings("ignore:.* will be removed in trainkit 0.3:DeprecationWarning"),
]


@pytest.mark.slow
@pytest.mark.parametrize("example", PAGES, ids=lambda example: f"{example.page.stem}:{example.line}")
def test_the_blocks_of_readme_and_quickstart_run(example: Example, in_a_folder: None) -> None:
    namespace: dict[str, object] = {"__name__": "__main__"}
    for block in example.blocks:
        for text, former in FORMER_SETTINGS.items():
            block = block.replace(text, former)
        exec(compile(block, str(example.page), "exec"), namespace)  # noqa: S102 - our own pages


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("name", SCRIPTS)
def test_the_examples_and_notebooks_run(name: str, in_a_folder: None, monkeypatch: pytest.MonkeyPatch) -> None:
    shown = SimpleNamespace(display=lambda _: None, clear_output=lambda **_: None)
    monkeypatch.setitem(sys.modules, "IPython.display", shown)  # type: ignore[arg-type] - all that they use of it
    script = load(name)
    if hasattr(script, "main"):
        script.main()


def test_a_policy_and_a_part_written_for_it_learn_as_before() -> None:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        own = load("own_algorithm")
        for make in (own.SoftActorCritic, lambda envs: tk.DQNPolicy.for_envs(envs, backup=own.AdvantageLearning())):
            envs = tk.make_envs("CartPole-v1", 2)
            policy = make(envs)
            train = tk.Collector(policy, envs, tk.PrioritizedReplayBuffer(200))
            tk.OffpolicyTrainer(
                policy, train, max_epoch=1, step_per_epoch=40, batch_size=8, seed=1, verbose=False
            ).run()
            assert policy.n_updates > 0
    assert {warning.category for warning in caught} == {DeprecationWarning}
    assert any("Policy.minimise is now minimize" in str(warning.message) for warning in caught)


@pytest.fixture
def in_a_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def load(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, FIRST / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
