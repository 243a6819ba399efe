"""The public names: exactly these, sorted, importable, each with a docstring of its own."""

import pytest

import trainkit

# Add a name here when it becomes public; taking one away is a breaking change.
PUBLIC = """
    make_envs Envs Collector Episode ActionStructure flat_actions
    EnvContext check_env Finding
    Processor PreviousStep TimeFeature Flatten DiscretizeActions MapActions MapObs
    SumTree MinTree ReplayBuffer PrioritizedReplayBuffer RolloutBuffer MixedBuffer DeviceFrames
    buffer_from_config
    inspect_checkpoint load_policy
    DatasetWriter load_dataset from_minari importance_sampling weighted_importance_sampling Estimate
    Transition TransitionBatch Rollout Horizon ReturnScale ActOutput UpdateResult EpochResult
    Policy RandomPolicy DQNPolicy BCPolicy DiscreteBCQPolicy PPOPolicy A2CPolicy ReinforcePolicy SACPolicy
    ActionScale ActorCriticNetwork ActorNetwork CriticNetwork SquashedGaussian
    QNetwork MLP NatureCNN NoisyLinear Preprocess Prediction
    ExpectedValue CategoricalValue QuantileValue ImplicitQuantileValue HLGaussValue ImplicitQNetwork TensorBatch
    MaxBackup DoubleBackup MunchausenBackup ConservativePenalty EpsilonGreedy Greedy SoftQ Target Adam Clip
    gae discounted_returns
    Engine Loss
    Schedule Constant Piecewise Linear
    Trainer OfflineTrainer OffpolicyTrainer OnpolicyTrainer Evaluation History evaluate run_with_restart
    Callback Checkpoint Curriculum LogInfo RecordVideo SaveBest SaveEvery StopAt
    Histograms
    EpochStats CollectStats Summary TimeStats RunInfo scalars
    TensorboardLogger JsonlLogger
    TrainkitError ConfigError SpaceMismatchError MissingExtraError EnvError BadEnvDataError NoLegalActionError
    MissingRowError EmptyBufferError PriorityError DivergedError CheckpointError DeviceError BusyError
    plot presets testing
""".split()


def test_the_public_names_are_these() -> None:
    assert set(trainkit.__all__) == set(PUBLIC)


def test_the_public_names_are_sorted_and_named_once() -> None:
    assert list(trainkit.__all__) == sorted(set(trainkit.__all__))


@pytest.mark.parametrize("name", PUBLIC)
def test_a_public_name_has_a_docstring_of_its_own(name: str) -> None:
    doc = getattr(trainkit, name).__doc__
    assert doc
    assert not doc.startswith(f"{name}("), "this is what dataclass and NamedTuple write when nobody else does"
