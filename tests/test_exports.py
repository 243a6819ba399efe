"""The public names: exactly these at the top and in each namespace, importable, each with a docstring of its own."""

import functools
import inspect
import re
import tomllib
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch

import trainkit
from tests import stubs
from trainkit.core.extensions import table

# Those of the kernel. Add a name here when it becomes public; taking one away is a breaking change.
# Extensions list theirs in their `__init__`.
TOP = """
    make_envs Envs check_env Collector
    ReplayBuffer PrioritizedReplayBuffer RolloutBuffer
    Horizon Transition TransitionBatch
    Policy RandomPolicy DQNPolicy PPOPolicy A2CPolicy ReinforcePolicy SACPolicy load_policy
    ColoredNoise ExpectedValue CategoricalValue QuantileValue ImplicitQuantileValue HLGaussValue
    MaxBackup DoubleBackup MunchausenBackup ConservativePenalty EpsilonGreedy EZGreedy Greedy
    SoftQ Target Adam Clip Linear TorchOptimizer
    Trainer OffpolicyTrainer OnpolicyTrainer OfflineTrainer Evaluation Callback on Checkpoint JsonlLogger
    compare evaluate CollectStats scalars TrainkitError ConfigError SpaceMismatchError
    buffer callbacks collector datasets engine envs errors loggers nets plot policy presets schedules simulators testing
    trainer zoo
""".split()
NAMESPACES = {
    "buffer": """
        Buffer Dataset Horizon MinTree PrioritizedReplayBuffer
        ReplayBuffer ReturnScale Rollout RolloutBuffer RoundBuffer SumTree Transition
        TransitionBatch UniformSampler buffer_from_config
    """,
    "callbacks": """
        Callback Checkpoint Curriculum Histograms History LogEpisodes LogInfo
        RecordVideo SaveBest SaveEvery StopAt TrackMemory on
    """,
    "collector": "Collector Episode EpisodeEvents",
    "datasets": "",
    "engine": "Adam Clip Engine EngineName GradientStep Loss Max Min Precision TensorBatch TorchOptimizer",
    "envs": """
        ActionStructure AroundBackend EnvContext EnvSpaces Envs Finding RunsEnvs
        check_env flat_actions make_envs
    """,
    "errors": """
        TrainkitError ConfigError SpaceMismatchError MissingExtraError EnvError BadEnvDataError NoLegalActionError
        MissingRowError EmptyBufferError PriorityError DivergedError CheckpointError DeviceError BusyError RankError
    """,
    "loggers": """
        CsvLogger HistogramLogger JsonlLogger Logger MlflowLogger PurgingLogger RunFolder TensorboardLogger TextLogger
        VideoLogger WandbLogger find_runs
    """,
    "nets": """
        ActionScale ActorCriticNetwork ActorNetwork CriticNetwork Distribution ImpalaCNN
        ImplicitQNetwork MLP MinAtarCNN NatureCNN NoisyLinear Prediction Preprocess QNetwork
        SmallCNN SquashedGaussian activation_names encoder_names register_encoder
    """,
    "plot": "curves episode_values priorities save time_shares",
    "policy": """
        A2CPolicy ActOutput Backup CategoricalValue ColoredNoise ConservativePenalty DQNPolicy
        DoubleBackup EpsilonGreedy ExpectedValue Exploration EZGreedy Greedy HLGaussValue
        ImplicitQuantileValue MaxBackup MunchausenBackup Noise ScriptedPolicy
        PPOPolicy Penalty Policy QuantileValue RandomPolicy ReinforcePolicy SACPolicy SoftQ Target
        UpdateResult Value discounted_returns gae load_policy
    """,
    "schedules": "Constant Linear Piecewise Schedule",
    "simulators": "TensorRollout",
    "testing": "FakeVectorEnv",
    "trainer": """
        Callback Checkpoint CollectStats Curriculum EpochResult EpochStats Evaluation
        Histograms History LogInfo OfflineTrainer OffpolicyTrainee OffpolicyTrainer
        OnpolicyTrainee OnpolicyTrainer
        PlayerStats RecordVideo RunInfo RunWarning SaveBest SaveEvery StopAt Summary TimeStats Trainee
        Trainer PairedComparison
        compare evaluate inspect_checkpoint run_with_restart scalars RunResult
    """,
    "zoo": "ZooEntry ZooResult entry list load train",
}
OF_EXTENSIONS = [(namespace, name) for namespace, _, name in (path.rpartition(".") for path in table("NAMES"))]


def names_in(namespace: str) -> set[str]:
    """Return the names in a namespace, "" for the top: the kernel's, and those of extensions."""
    own = NAMESPACES[namespace].split() if namespace else TOP
    return {*own, *(name for space, name in OF_EXTENSIONS if space == namespace)}


every_namespace = pytest.mark.parametrize("namespace", NAMESPACES)
PUBLIC = sorted(names_in("") - {*NAMESPACES, "presets"})
PUBLIC += [f"{namespace}.{name}" for namespace in NAMESPACES for name in sorted(names_in(namespace))]


def test_the_names_at_the_top_are_these() -> None:
    assert sorted(trainkit.__all__) == sorted(names_in(""))
    assert names_in("") <= set(dir(trainkit))


@every_namespace
def test_the_names_in_a_namespace_are_these(namespace: str) -> None:
    assert sorted(getattr(trainkit, namespace).__all__) == sorted(names_in(namespace))


def test_extensions_add_names_to_namespaces_only_and_none_that_is_listed_here() -> None:
    assert {namespace for namespace, _ in OF_EXTENSIONS} <= {"", "presets", *NAMESPACES}
    listed = {("", name) for name in TOP} | {
        (space, name) for space in NAMESPACES for name in NAMESPACES[space].split()
    }
    assert listed & {*OF_EXTENSIONS} == set()


@every_namespace
def test_a_namespace_is_a_module_to_import_from(namespace: str) -> None:
    assert import_module(f"trainkit.{namespace}") is getattr(trainkit, namespace)


def test_a_name_at_the_top_means_the_same_in_its_namespace() -> None:
    for namespace in NAMESPACES:
        module: ModuleType = getattr(trainkit, namespace)
        for name in names_in(namespace) & names_in(""):
            assert getattr(module, name) is getattr(trainkit, name)


@pytest.mark.parametrize("package", stubs.packages())
def test_no_public_name_is_that_of_a_module_of_its_package(package: str) -> None:
    """Importing that module would put it into the package, in the place of what the name stands for."""
    module = import_module(package)
    next_to = {path.stem for path in Path(str(module.__file__)).parent.iterdir()}
    assert {name for name in module.__all__ if not inspect.ismodule(getattr(module, name))} & next_to == set()


@pytest.mark.parametrize("path", PUBLIC)
def test_a_public_name_has_a_docstring_of_its_own(path: str) -> None:
    *namespace, name = path.split(".")
    module = getattr(trainkit, namespace[0]) if namespace else trainkit
    if name in ("EngineName", "Precision"):  # aliases of types
        return
    doc = getattr(module, name).__doc__
    assert doc
    assert not doc.startswith(f"{name}("), "this is what dataclass and NamedTuple write when nobody else does"


@pytest.mark.parametrize("path", PUBLIC)
def test_help_on_how_a_module_is_made_and_called_is_not_torchs(path: str) -> None:
    kind: Any = functools.reduce(getattr, path.split("."), trainkit)
    if not (inspect.isclass(kind) and issubclass(kind, torch.nn.Module)):
        return
    assert inspect.getdoc(kind.__init__) != inspect.getdoc(torch.nn.Module.__init__)
    if kind.forward is not torch.nn.Module.forward:  # else it is not called
        assert kind.forward.__doc__


def test_help_on_rows_and_actions_has_their_shapes_and_units() -> None:
    for kind in (trainkit.engine.TensorBatch, trainkit.policy.ActOutput):
        described = re.findall(r"^    (\w+): \S", inspect.getdoc(kind) or "", re.MULTILINE)
        assert described == list(kind._fields)


def test_the_stubs_for_type_checkers_have_the_public_names() -> None:
    for package in stubs.packages():
        assert stubs.path_of(package).read_text() == stubs.text_of(package), "run python -m tests.stubs"


def test_the_version_stands_once_in_the_package() -> None:
    project = tomllib.loads((Path(__file__).parents[1] / "pyproject.toml").read_text())
    assert project["project"]["dynamic"] == ["version"]
    assert project["tool"]["setuptools"]["dynamic"]["version"] == {"attr": "trainkit.__version__"}
    assert trainkit.__version__ == "0.2.0"
