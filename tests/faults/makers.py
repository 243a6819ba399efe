"""A call that works of everything public that can be called: what a wrong argument is put into."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from gymnasium import spaces

import trainkit as tk
from tests.helpers.learning import FOUR_NUMBERS, THREE_ACTIONS, Spaces, linear, small_net
from tests.helpers.pairs import Corridors, SeenCorridors
from tests.trainer.toys import Walk

BOX = spaces.Box(-1.0, 1.0, (2,), np.float32)
NESTED = spaces.Dict(move=spaces.Discrete(3), keys=spaces.MultiBinary(2))
DISCRETE, CONTINUOUS = Spaces(), Spaces(FOUR_NUMBERS, BOX)
CPU: dict[str, Any] = {"device": "cpu", "seed": 0}


class Call(NamedTuple):
    """A function or a class, and arguments that fit it."""

    of: Callable[..., Any]
    arguments: Mapping[str, Any]

    def __call__(self, **others: Any) -> Any:
        """Make the call with some arguments replaced."""
        return self.of(**{**self.arguments, **others})


def envs() -> tk.Envs:
    return tk.make_envs(Walk, 2)


def learner(kind: Any = tk.DQNPolicy) -> Any:
    return kind.for_envs(envs(), hidden=(4,), **CPU)


def rows(n_rows: int = 6) -> tk.ReplayBuffer:
    """Make a dataset of one-step episodes in `Walk`, by a random policy that stores each action's probability."""
    policy = tk.RandomPolicy(Walk.action_space, seed=0, store_action_prob=True)
    here = tk.make_envs(Walk, 1, seed=0)
    buffer = tk.ReplayBuffer(10 * n_rows, spaces=here)
    tk.Collector(policy, here, buffer).collect(n_episode=n_rows)
    return buffer


def trainer_arguments(kind: Any, policy: Any) -> dict[str, Any]:
    """Return what all trainers need, quiet."""
    return {"policy": policy, "max_epoch": 1, "verbose": False, "show_progress": False, "seed": 0}


def offpolicy() -> Call:
    policy = learner()
    own = {"train_collector": tk.Collector(policy, envs(), tk.ReplayBuffer(20)), "step_per_epoch": 4, "batch_size": 2}
    return Call(tk.OffpolicyTrainer, trainer_arguments(tk.OffpolicyTrainer, policy) | own)


def tournament_arguments() -> dict[str, Any]:
    agents = {"left": 0, "right": 1}
    players = {name: tk.RandomPolicy(Corridors(agents).action_space("left"), seed=0) for name in ("one", "other")}
    return {"policies": players, "env": lambda: Corridors(agents), "n_episode": 2, "seed": 0}


def onpolicy() -> Call:
    policy = learner(tk.PPOPolicy)
    own = {"train_collector": tk.Collector(policy, envs(), tk.RolloutBuffer()), "step_per_epoch": 4}
    return Call(tk.OnpolicyTrainer, trainer_arguments(tk.OnpolicyTrainer, policy) | own | {"step_per_collect": 4})


def offline() -> Call:
    own = {"buffer": rows(), "update_per_epoch": 1, "batch_size": 2}
    return Call(tk.OfflineTrainer, trainer_arguments(tk.OfflineTrainer, learner()) | own)


def actor_critic(kind: Any) -> Call:
    network = tk.nets.ActorCriticNetwork((4,), 3, hidden=(4,))
    return Call(kind, {"network": network, "action_space": THREE_ACTIONS, **CPU})


def estimation(function: Any, **options: Any) -> Call:
    return Call(function, {"policy": learner(), "dataset": rows(), "gamma": 0.9, **options})


def simulator_calls() -> dict[str, Call]:
    """Return a call of every public class and function of `tk.simulators`."""
    simulator = tk.simulators.CartPole(2)
    policy = tk.PPOPolicy.for_envs(simulator, hidden=(4,), **CPU)
    return {
        "CartPole": Call(tk.simulators.CartPole, {"n": 2}),
        "ParameterNoise": Call(tk.ParameterNoise, {"epsilon": 0.1}),
        "Pendulum": Call(tk.simulators.Pendulum, {"n": 2}),
        "SimulatorVectorEnv": Call(tk.simulators.SimulatorVectorEnv, {"simulator": tk.simulators.CartPole(2)}),
        "TensorCollector": Call(tk.simulators.TensorCollector, {"policy": policy, "simulator": simulator}),
        "check_simulator": Call(tk.simulators.check_simulator, {"simulator": tk.simulators.Pendulum(2), "n_steps": 3}),
    }


def calls(folder: Path) -> dict[str, Call]:
    """Return a call of every public class and function that takes options; files go into a folder."""
    saved = folder / "dataset"
    with tk.callbacks.DatasetWriter(saved).record(collector := tk.Collector(learner(), envs())):
        collector.collect(n_step=30)
    columns: dict[str, Any] = {name: torch.zeros(3, 2) for name in ("reward", "value", "next_value")}
    columns |= {name: torch.zeros(3, 2, dtype=torch.bool) for name in ("terminated", "truncated")}
    returns = {name: column for name, column in columns.items() if name != "value"}
    arrays = {
        "obs": np.arange(12, dtype=np.float32).reshape(3, 4),
        "next_obs": np.arange(4, 16, dtype=np.float32).reshape(3, 4),
        "action": np.zeros(3, np.int64),
        "reward": np.zeros(3),
        "terminated": np.array([False, False, True]),
    }
    preset = {"env": Walk, "n_envs": 2, "hidden": (4,), "device": "cpu", "seed": 0, "verbose": False}
    evaluated = tk.Collector(learner(), envs())
    critics = {"actor": linear(np.zeros((4, 4))), "critics": tk.nets.CriticNetwork((4,), 2, hidden=(4,))}
    run = offpolicy()()
    run.run()
    checkpoint = run.save(folder / "run")
    found = {
        "A2CPolicy": actor_critic(tk.A2CPolicy),
        "A2CPolicy.for_envs": Call(tk.A2CPolicy.for_envs, {"envs": DISCRETE, "hidden": (4,), **CPU}),
        "ActorCriticNetwork": Call(tk.nets.ActorCriticNetwork, {"shapes": (4,), "width": 3, "hidden": (4,)}),
        "ActorNetwork": Call(tk.nets.ActorNetwork, {"shapes": (4,), "width": 4, "hidden": (4,)}),
        "Adam": Call(tk.Adam, {}),
        "BCPolicy": Call(tk.BCPolicy, {"network": small_net((4, 8, 3)), "action_space": THREE_ACTIONS, **CPU}),
        "BCPolicy.for_envs": Call(tk.BCPolicy.for_envs, {"envs": DISCRETE, "hidden": (4,), **CPU}),
        "ColoredNoise": Call(tk.ColoredNoise, {}),
        "CausalTransformer": Call(tk.nets.CausalTransformer, {"n_inputs": 4}),
        "CategoricalValue": Call(tk.CategoricalValue, {}),
        "HLGaussValue": Call(tk.HLGaussValue, {}),
        "Checkpoint": Call(tk.Checkpoint, {"folder": folder / "checkpoint"}),
        "Clip": Call(tk.Clip, {"limit": 1.0}),
        "Collector": Call(tk.Collector, {"policy": learner(), "envs": envs(), "buffer": tk.ReplayBuffer(10)}),
        "ConservativePenalty": Call(tk.ConservativePenalty, {}),
        "Constant": Call(tk.schedules.Constant, {"value": 1.0}),
        "CriticNetwork": Call(tk.nets.CriticNetwork, {"shapes": (4,), "n_dimensions": 2, "hidden": (4,)}),
        "DQNPolicy": Call(tk.DQNPolicy, {"network": small_net(), **CPU}),
        "DQNPolicy.for_envs": Call(tk.DQNPolicy.for_envs, {"envs": DISCRETE, "hidden": (4,), **CPU}),
        "DatasetWriter": Call(tk.callbacks.DatasetWriter, {"folder": folder / "episodes"}),
        "DeviceFrames": Call(tk.engine.DeviceFrames, {"device": "cpu"}),
        "DiscreteBCQPolicy": Call(tk.DiscreteBCQPolicy, {"network": small_net(), "imitation": small_net(), **CPU}),
        "DiscreteBCQPolicy.for_envs": Call(tk.DiscreteBCQPolicy.for_envs, {"envs": DISCRETE, "hidden": (4,), **CPU}),
        "Curriculum": Call(tk.callbacks.Curriculum, {"fn": lambda trainer: None}),
        "DiscretizeActions": Call(tk.envs.DiscretizeActions, {"bins": 3}),
        "DoubleBackup": Call(tk.DoubleBackup, {}),
        "CsvLogger": Call(tk.loggers.CsvLogger, {"folder": folder / "csv"}),
        "EZGreedy": Call(tk.EZGreedy, {"epsilon": 0.1}),
        "EpsilonGreedy": Call(tk.EpsilonGreedy, {"epsilon": 0.1}),
        "Evaluation": Call(tk.Evaluation, {"collector": evaluated}),
        "ExpectedValue": Call(tk.ExpectedValue, {}),
        "Flatten": Call(tk.envs.Flatten, {}),
        "Greedy": Call(tk.Greedy, {}),
        "History": Call(tk.callbacks.History, {}),
        "Histograms": Call(tk.callbacks.Histograms, {}),
        "TrackMemory": Call(tk.callbacks.TrackMemory, {}),
        "GRU": Call(tk.nets.GRU, {"n_inputs": 3}),
        "Horizon": Call(tk.Horizon, {}),
        "ImplicitQNetwork": Call(tk.nets.ImplicitQNetwork, {"shapes": (4,), "n_actions": 3, "hidden": (4,)}),
        "ImplicitQuantileValue": Call(tk.ImplicitQuantileValue, {}),
        "JsonlLogger": Call(tk.JsonlLogger, {"folder": folder / "jsonl"}),
        "Linear": Call(tk.Linear, {"start": 1.0, "end": 0.1}),
        "LogEpisodes": Call(lambda keys, **options: tk.callbacks.LogEpisodes(keys, **options), {"keys": "score"}),
        "LogInfo": Call(lambda keys, **options: tk.callbacks.LogInfo(keys, **options), {"keys": "score"}),
        "ImpalaCNN": Call(tk.nets.ImpalaCNN, {"shape": (1, 36, 36)}),
        "MLP": Call(tk.nets.MLP, {"sizes": (4, 8, 3)}),
        "MapActions": Call(tk.envs.MapActions, {"fn": np.negative, "space": BOX}),
        "MapObs": Call(tk.envs.MapObs, {"fn": np.negative, "space": BOX}),
        "MaxBackup": Call(tk.MaxBackup, {}),
        "MinTree": Call(tk.buffer.MinTree, {"size": 3}),
        "MultiAgentBuffer": Call(tk.MultiAgentBuffer, {"buffers": {"main": tk.ReplayBuffer(10)}}),
        "MultiAgentPolicy": Call(
            tk.MultiAgentPolicy, {"policies": {"main": tk.RandomPolicy(THREE_ACTIONS)}, "policy_mapping": {"a": "main"}}
        ),
        "MixedBuffer": Call(tk.MixedBuffer, {"proportions": {tk.ReplayBuffer(10): 1.0}}),
        "MunchausenBackup": Call(tk.MunchausenBackup, {}),
        "TorchOptimizer": Call(tk.TorchOptimizer, {"factory": torch.optim.SGD, "lr": 1e-3}),
        "activation_names": Call(tk.nets.activation_names, {}),
        "encoder_names": Call(tk.nets.encoder_names, {}),
        "register_encoder": Call(tk.nets.register_encoder, {"name": "thin", "factory": small_net}),
        "NatureCNN": Call(tk.nets.NatureCNN, {"shape": (1, 84, 84)}),
        "SmallCNN": Call(tk.nets.SmallCNN, {"shape": (1, 84, 84)}),
        "MinAtarCNN": Call(tk.nets.MinAtarCNN, {"shape": (1, 5, 5)}),
        "LSTM": Call(tk.nets.LSTM, {"n_inputs": 3}),
        "NoisyLinear": Call(tk.nets.NoisyLinear, {"in_features": 3, "out_features": 2}),
        "OfflineTrainer": offline(),
        "OffpolicyTrainer": offpolicy(),
        "OnpolicyTrainer": onpolicy(),
        "PPOPolicy": actor_critic(tk.PPOPolicy),
        "PPOPolicy.for_envs": Call(tk.PPOPolicy.for_envs, {"envs": CONTINUOUS, "hidden": (4,), **CPU}),
        "Piecewise": Call(tk.schedules.Piecewise, {"knots": [(0, 1.0), (10, 0.1)]}),
        "Policy": Call(tk.Policy, CPU),
        "Preprocess": Call(tk.nets.Preprocess, {"space": FOUR_NUMBERS}),
        "PreviousStep": Call(tk.envs.PreviousStep, {}),
        "PrioritizedReplayBuffer": Call(tk.PrioritizedReplayBuffer, {"capacity": 10}),
        "QNetwork": Call(tk.nets.QNetwork, {"shapes": (4,), "n_actions": 3, "hidden": (4,)}),
        "QuantileValue": Call(tk.QuantileValue, {}),
        "RandomPolicy": Call(tk.RandomPolicy, {"action_space": THREE_ACTIONS}),
        "RecordVideo": Call(tk.callbacks.RecordVideo, {"folder": folder / "films"}),
        "ReinforcePolicy": actor_critic(tk.ReinforcePolicy),
        "ReplayBuffer": Call(tk.ReplayBuffer, {"capacity": 10}),
        "ReplayBuffer.from_arrays": Call(tk.ReplayBuffer.from_arrays, arrays),
        "ReturnScale": Call(tk.buffer.ReturnScale, {}),
        "RolloutBuffer": Call(tk.RolloutBuffer, {}),
        "Sequences": Call(tk.Sequences, {}),
        "SACPolicy": Call(tk.SACPolicy, {**critics, "action_space": BOX, **CPU}),
        "SACPolicy.for_envs": Call(tk.SACPolicy.for_envs, {"envs": CONTINUOUS, "hidden": (4,), **CPU}),
        "SaveBest": Call(tk.callbacks.SaveBest, {"folder": folder / "best"}),
        "SaveEvery": Call(tk.callbacks.SaveEvery, {"folder": folder / "every"}),
        "SoftQ": Call(tk.SoftQ, {}),
        "ActionScale": Call(tk.nets.ActionScale, {"space": BOX}),
        "ActionStructure": Call(tk.envs.ActionStructure, {"nested": NESTED}),
        "buffer_from_config": Call(tk.buffer.buffer_from_config, {"config": {"capacity": 10}}),
        "fitted_q_evaluation": estimation(tk.trainer.fitted_q_evaluation, n_updates=2, batch_size=4, hidden=(4,)),
        "flat_actions": Call(tk.envs.flat_actions, {"space": NESTED}),
        "LockstepReplayBuffer": Call(tk.buffer.LockstepReplayBuffer, {"capacity": 10, "n_agents": 2}),
        "group_agents": Call(tk.envs.group_agents, {"groups": {"team": ["a", "b"]}}),
        "SquashedGaussian": Call(tk.nets.SquashedGaussian, {"space": BOX}),
        "on": Call(tk.on, {"epoch_end": print}),
        "StopAt": Call(tk.callbacks.StopAt, {"seconds": 1.0}),
        "SumTree": Call(tk.buffer.SumTree, {"size": 3}),
        "Target": Call(tk.Target, {}),
        "TensorboardLogger": Call(tk.loggers.TensorboardLogger, {"folder": folder / "tensorboard"}),
        "BackgroundEvaluation": Call(tk.BackgroundEvaluation, {}),
        "Diagnosis": Call(tk.callbacks.Diagnosis, {}),
        "OpponentPool": Call(tk.callbacks.OpponentPool, {"name": "main", "add_every": 10}),
        "tournament": Call(tk.trainer.tournament, tournament_arguments()),
        "Actors": Call(tk.envs.Actors, {"actors": 2}),
        "AgentId": Call(tk.envs.AgentId, {}),
        "ObserveState": Call(tk.envs.ObserveState, {"game": SeenCorridors({"left": 0, "right": 1})}),
        "VDNBackup": Call(tk.VDNBackup, {}),
        "ScriptedPolicy": Call(tk.policy.ScriptedPolicy, {"fn": len}),
        "TimeFeature": Call(tk.envs.TimeFeature, {"limit": 5}),
        "check_env": Call(tk.check_env, {"env": Walk, "n_steps": 5}),
        "OffPolicyEvaluation": Call(tk.callbacks.OffPolicyEvaluation, {"dataset": rows()}),
        "direct_method": estimation(tk.datasets.direct_method, q=learner()),
        "doubly_robust": estimation(tk.datasets.doubly_robust, q=learner()),
        "discounted_returns": Call(tk.policy.discounted_returns, {**returns, "gamma": 0.9}),
        "entry": Call(tk.zoo.entry, {"preset": "dqn", "env": "CartPole-v1"}),
        "evaluate": Call(tk.evaluate, {"policy": learner(), "env": Walk, "n_episode": 1}),
        "compare": Call(tk.compare, {"policy": learner(), "baseline": learner(), "env": Walk, "n_episode": 2}),
        "export": Call(tk.export, {"policy": learner(), "path": folder / "policy.pt2"}),
        "sample_sequences": Call(
            tk.buffer.sample_sequences,
            {"buffer": tk.ReplayBuffer.from_arrays(**arrays), "batch_size": 2, "length": 3, "horizon": tk.Horizon()},
        ),
        "gae": Call(tk.policy.gae, {**columns, "gamma": 0.9, "lam": 0.9}),
        "importance_sampling": estimation(tk.datasets.importance_sampling),
        "inspect_checkpoint": Call(tk.trainer.inspect_checkpoint, {"path": checkpoint}),
        "list": Call(tk.zoo.list, {}),
        "load_dataset": Call(tk.load_dataset, {"path": saved}),
        "stream_dataset": Call(tk.datasets.stream_dataset, {"path": saved}),
        "load_policy": Call(tk.load_policy, {"path": checkpoint, "device": "cpu"}),
        "make_envs": Call(tk.make_envs, {"spec": Walk, "n": 2}),
        "presets.dqn": Call(tk.presets.dqn, preset),
        "presets.ppo": Call(tk.presets.ppo, preset),
        "FakeVectorEnv": Call(
            tk.testing.FakeVectorEnv, {"observation_space": BOX, "action_space": spaces.Discrete(2), "n": 2}
        ),
        "run_with_restart": Call(
            tk.trainer.run_with_restart,
            {"make_trainer": lambda: offpolicy()(checkpoint=folder / "restarted", resume_from="auto"), "delay_s": 0.0},
        ),
        "scalars": Call(tk.scalars, {"stats": tk.trainer.Summary.of([1.0])}),
        "weighted_importance_sampling": estimation(tk.datasets.weighted_importance_sampling),
        **simulator_calls(),
    }
    return found
