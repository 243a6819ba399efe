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

# Add a name here when it becomes public; taking one away is a breaking change.
TOP = """
    make_envs Envs check_env Collector
    ReplayBuffer PrioritizedReplayBuffer RolloutBuffer MixedBuffer MultiAgentBuffer MultiAgentPolicy
    Horizon Sequences Transition TransitionBatch
    Policy RandomPolicy DQNPolicy BCPolicy DiscreteBCQPolicy PPOPolicy A2CPolicy ReinforcePolicy SACPolicy load_policy
    ColoredNoise ExpectedValue CategoricalValue QuantileValue ImplicitQuantileValue HLGaussValue
    MaxBackup DoubleBackup MunchausenBackup VDNBackup ConservativePenalty EpsilonGreedy EZGreedy Greedy ParameterNoise
    SoftQ Target Adam Clip Linear TorchOptimizer
    Trainer OffpolicyTrainer OnpolicyTrainer OfflineTrainer Evaluation Callback on Checkpoint JsonlLogger
    BackgroundEvaluation
    compare evaluate export run load_dataset CollectStats scalars TrainkitError ConfigError SpaceMismatchError
    buffer callbacks collector datasets engine envs errors loggers nets plot policy presets schedules simulators testing
    trainer zoo
""".split()
NAMESPACES = {
    "buffer": """
        Buffer Dataset Horizon MinTree MixedBuffer LockstepReplayBuffer MultiAgentBuffer PrioritizedReplayBuffer
        ReplayBuffer ReturnScale Rollout RolloutBuffer RoundBuffer SequenceBatch Sequences SumTree Transition
        TransitionBatch buffer_from_config sample_sequences
    """,
    "callbacks": """
        Callback Checkpoint Curriculum DatasetWriter Diagnosis Histograms History LogEpisodes LogInfo
        OffPolicyEvaluation OpponentPool RecordVideo SaveBest SaveEvery StopAt TrackMemory TuneReport on
    """,
    "collector": "Collector Episode EpisodeEvents",
    "datasets": """
        Estimate HasActionProbability HasActionValues StreamedDataset direct_method doubly_robust from_minari
        importance_sampling load_dataset stream_dataset to_minari weighted_importance_sampling
    """,
    "engine": "Adam Clip DeviceFrames Engine EngineName GradientStep Loss Max Min Precision TensorBatch TorchOptimizer",
    "envs": """
        ActionStructure DiscretizeActions EnvContext EnvSpaces Envs Finding Flatten MapActions MapObs ObserveState
        Actors PreviousStep Processor AgentId TimeFeature check_env flat_actions group_agents make_envs
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
        ActionScale ActorCriticNetwork ActorNetwork CausalTransformer CriticNetwork Distribution GRU ImpalaCNN
        ImplicitQNetwork LSTM MLP Memory MinAtarCNN NatureCNN NoisyLinear Prediction Preprocess QNetwork
        SmallCNN SquashedGaussian activation_names encoder_names register_encoder
    """,
    "plot": "curves episode_values priorities save time_shares",
    "policy": """
        A2CPolicy ActOutput BCPolicy Backup CategoricalValue ColoredNoise ConservativePenalty DQNPolicy
        DiscreteBCQPolicy DoubleBackup EpsilonGreedy ExpectedValue Exploration EZGreedy Greedy HLGaussValue
        ImplicitQuantileValue MaxBackup MultiAgentPolicy MunchausenBackup VDNBackup Noise GameEpisode ScriptedPolicy
        PPOPolicy ParameterNoise Penalty Policy QuantileValue RandomPolicy ReinforcePolicy SACPolicy SoftQ Target
        UpdateResult Value discounted_returns export gae load_policy
    """,
    "schedules": "Constant Linear Piecewise Schedule",
    "simulators": """
        CartPole Pendulum Simulator SimulatorVectorEnv TensorCollector TensorEnvs TensorRollout TensorRolloutBuffer
        check_simulator
    """,
    "testing": "DeviceCounts FakeVectorEnv PretendDevice",
    "trainer": """
        BackgroundEvaluation
        Callback Checkpoint CollectStats Curriculum DIAGNOSIS_RULES DatasetWriter EpochResult EpochStats Evaluation
        FittedQ Histograms History LogInfo OffPolicyEvaluation OfflineTrainer OffpolicyTrainee OffpolicyTrainer
        OnpolicyTrainee OnpolicyTrainer
        PlayerStats RecordVideo RunInfo RunWarning SaveBest SaveEvery StopAt Summary TimeStats Trainee
        Trainer PairedComparison Tournament WinRate tournament
        compare evaluate fitted_q_evaluation inspect_checkpoint run run_with_restart scalars RunResult
    """,
    "zoo": "ZooEntry ZooResult entry list load train",
}
every_namespace = pytest.mark.parametrize("namespace", NAMESPACES)
PUBLIC = [name for name in TOP if name not in NAMESPACES and name != "presets"]
PUBLIC += [f"{namespace}.{name}" for namespace, names in NAMESPACES.items() for name in names.split()]


def test_the_names_at_the_top_are_these() -> None:
    assert sorted(trainkit.__all__) == sorted(TOP)
    assert set(TOP) <= set(dir(trainkit))


@every_namespace
def test_the_names_in_a_namespace_are_these(namespace: str) -> None:
    assert sorted(getattr(trainkit, namespace).__all__) == sorted(NAMESPACES[namespace].split())


@every_namespace
def test_a_namespace_is_a_module_to_import_from(namespace: str) -> None:
    assert import_module(f"trainkit.{namespace}") is getattr(trainkit, namespace)


def test_a_name_at_the_top_means_the_same_in_its_namespace() -> None:
    for namespace, names in NAMESPACES.items():
        module: ModuleType = getattr(trainkit, namespace)
        for name in set(names.split()) & set(TOP):
            assert getattr(module, name) is getattr(trainkit, name)


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
