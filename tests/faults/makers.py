"""A call that works of everything public that can be called: what a wrong argument is put into."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from gymnasium import spaces

import trainkit as tk
from tests.helpers.learning import FOUR_NUMBERS, THREE_ACTIONS, Spaces, linear, small_net
from tests.helpers.of_extensions import files_of_extensions
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


def walks() -> tk.Envs:
    return tk.make_envs(Walk, 2)


def learner(kind: Any = tk.DQNPolicy) -> Any:
    return kind.for_envs(walks(), hidden=(4,), **CPU)


def rows(n_rows: int = 6) -> tk.ReplayBuffer:
    """Make a dataset of one-step episodes in `Walk`, by a random policy that stores each action's probability."""
    policy = tk.RandomPolicy(Walk.action_space, seed=0, store_action_prob=True)
    here = tk.make_envs(Walk, 1, seed=0)
    buffer = tk.ReplayBuffer(10 * n_rows, spaces=here)
    tk.Collector(policy, here, buffer).collect(n_episode=n_rows)
    return buffer


def arrays() -> dict[str, Any]:
    """Return the columns of a dataset of three rows."""
    return {
        "obs": np.arange(12, dtype=np.float32).reshape(3, 4),
        "next_obs": np.arange(4, 16, dtype=np.float32).reshape(3, 4),
        "action": np.zeros(3, np.int64),
        "reward": np.zeros(3),
        "terminated": np.array([False, False, True]),
    }


def trainer_arguments(kind: Any, policy: Any) -> dict[str, Any]:
    """Return what all trainers need, quiet."""
    return {"policy": policy, "max_epoch": 1, "verbose": False, "show_progress": False, "seed": 0}


def offpolicy() -> Call:
    policy = learner()
    own = {"train_collector": tk.Collector(policy, walks(), tk.ReplayBuffer(20)), "step_per_epoch": 4, "batch_size": 2}
    return Call(tk.OffpolicyTrainer, trainer_arguments(tk.OffpolicyTrainer, policy) | own)


def onpolicy() -> Call:
    policy = learner(tk.PPOPolicy)
    own = {"train_collector": tk.Collector(policy, walks(), tk.RolloutBuffer()), "step_per_epoch": 4}
    return Call(tk.OnpolicyTrainer, trainer_arguments(tk.OnpolicyTrainer, policy) | own | {"step_per_collect": 4})


def offline() -> Call:
    own = {"buffer": rows(), "update_per_epoch": 1, "batch_size": 2}
    return Call(tk.OfflineTrainer, trainer_arguments(tk.OfflineTrainer, learner()) | own)


def actor_critic(kind: Any) -> Call:
    network = tk.nets.ActorCriticNetwork((4,), 3, hidden=(4,))
    return Call(kind, {"network": network, "action_space": THREE_ACTIONS, **CPU})


def calls(folder: Path) -> dict[str, Call]:
    """Return a call of every public class and function that takes options; files go into a folder.

    Those of extensions are in the `examples.py` of their tests, with the names that are `NOT_CALLED`.
    """
    columns: dict[str, Any] = {name: torch.zeros(3, 2) for name in ("reward", "value", "next_value")}
    columns |= {name: torch.zeros(3, 2, dtype=torch.bool) for name in ("terminated", "truncated")}
    returns = {name: column for name, column in columns.items() if name != "value"}
    preset = {"env": Walk, "n_envs": 2, "hidden": (4,), "device": "cpu", "seed": 0, "verbose": False}
    evaluated = tk.Collector(learner(), walks())
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
        "ColoredNoise": Call(tk.ColoredNoise, {}),
        "CategoricalValue": Call(tk.CategoricalValue, {}),
        "HLGaussValue": Call(tk.HLGaussValue, {}),
        "Checkpoint": Call(tk.Checkpoint, {"folder": folder / "checkpoint"}),
        "Clip": Call(tk.Clip, {"limit": 1.0}),
        "Collector": Call(tk.Collector, {"policy": learner(), "envs": walks(), "buffer": tk.ReplayBuffer(10)}),
        "ConservativePenalty": Call(tk.ConservativePenalty, {}),
        "Constant": Call(tk.schedules.Constant, {"value": 1.0}),
        "CriticNetwork": Call(tk.nets.CriticNetwork, {"shapes": (4,), "n_dimensions": 2, "hidden": (4,)}),
        "DQNPolicy": Call(tk.DQNPolicy, {"network": small_net(), **CPU}),
        "DQNPolicy.for_envs": Call(tk.DQNPolicy.for_envs, {"envs": DISCRETE, "hidden": (4,), **CPU}),
        "Curriculum": Call(tk.callbacks.Curriculum, {"fn": lambda trainer: None}),
        "DoubleBackup": Call(tk.DoubleBackup, {}),
        "CsvLogger": Call(tk.loggers.CsvLogger, {"folder": folder / "csv"}),
        "EZGreedy": Call(tk.EZGreedy, {"epsilon": 0.1}),
        "EpsilonGreedy": Call(tk.EpsilonGreedy, {"epsilon": 0.1}),
        "Evaluation": Call(tk.Evaluation, {"collector": evaluated}),
        "ExpectedValue": Call(tk.ExpectedValue, {}),
        "Greedy": Call(tk.Greedy, {}),
        "History": Call(tk.callbacks.History, {}),
        "Histograms": Call(tk.callbacks.Histograms, {}),
        "TrackMemory": Call(tk.callbacks.TrackMemory, {}),
        "Horizon": Call(tk.Horizon, {}),
        "ImplicitQNetwork": Call(tk.nets.ImplicitQNetwork, {"shapes": (4,), "n_actions": 3, "hidden": (4,)}),
        "ImplicitQuantileValue": Call(tk.ImplicitQuantileValue, {}),
        "JsonlLogger": Call(tk.JsonlLogger, {"folder": folder / "jsonl"}),
        "Linear": Call(tk.Linear, {"start": 1.0, "end": 0.1}),
        "LogEpisodes": Call(lambda keys, **options: tk.callbacks.LogEpisodes(keys, **options), {"keys": "score"}),
        "LogInfo": Call(lambda keys, **options: tk.callbacks.LogInfo(keys, **options), {"keys": "score"}),
        "ImpalaCNN": Call(tk.nets.ImpalaCNN, {"shape": (1, 36, 36)}),
        "MLP": Call(tk.nets.MLP, {"sizes": (4, 8, 3)}),
        "MaxBackup": Call(tk.MaxBackup, {}),
        "MinTree": Call(tk.buffer.MinTree, {"size": 3}),
        "MunchausenBackup": Call(tk.MunchausenBackup, {}),
        "TorchOptimizer": Call(tk.TorchOptimizer, {"factory": torch.optim.SGD, "lr": 1e-3}),
        "activation_names": Call(tk.nets.activation_names, {}),
        "encoder_names": Call(tk.nets.encoder_names, {}),
        "register_encoder": Call(tk.nets.register_encoder, {"name": "thin", "factory": small_net}),
        "NatureCNN": Call(tk.nets.NatureCNN, {"shape": (1, 84, 84)}),
        "SmallCNN": Call(tk.nets.SmallCNN, {"shape": (1, 84, 84)}),
        "MinAtarCNN": Call(tk.nets.MinAtarCNN, {"shape": (1, 5, 5)}),
        "NoisyLinear": Call(tk.nets.NoisyLinear, {"in_features": 3, "out_features": 2}),
        "OfflineTrainer": offline(),
        "OffpolicyTrainer": offpolicy(),
        "OnpolicyTrainer": onpolicy(),
        "PPOPolicy": actor_critic(tk.PPOPolicy),
        "PPOPolicy.for_envs": Call(tk.PPOPolicy.for_envs, {"envs": CONTINUOUS, "hidden": (4,), **CPU}),
        "Piecewise": Call(tk.schedules.Piecewise, {"knots": [(0, 1.0), (10, 0.1)]}),
        "Policy": Call(tk.Policy, CPU),
        "Preprocess": Call(tk.nets.Preprocess, {"space": FOUR_NUMBERS}),
        "PrioritizedReplayBuffer": Call(tk.PrioritizedReplayBuffer, {"capacity": 10}),
        "QNetwork": Call(tk.nets.QNetwork, {"shapes": (4,), "n_actions": 3, "hidden": (4,)}),
        "QuantileValue": Call(tk.QuantileValue, {}),
        "RandomPolicy": Call(tk.RandomPolicy, {"action_space": THREE_ACTIONS}),
        "RecordVideo": Call(tk.callbacks.RecordVideo, {"folder": folder / "films"}),
        "ReinforcePolicy": actor_critic(tk.ReinforcePolicy),
        "ReplayBuffer": Call(tk.ReplayBuffer, {"capacity": 10}),
        "ReplayBuffer.from_arrays": Call(tk.ReplayBuffer.from_arrays, arrays()),
        "ReturnScale": Call(tk.buffer.ReturnScale, {}),
        "RolloutBuffer": Call(tk.RolloutBuffer, {}),
        "ActorCriticPolicy": Call(tk.ActorCriticPolicy, {**critics, "action_space": BOX, **CPU}),
        "ActorCriticPolicy.for_envs": Call(tk.ActorCriticPolicy.for_envs, {"envs": CONTINUOUS, "hidden": (4,), **CPU}),
        "MinOfCritics": Call(tk.policy.MinOfCritics, {}),
        "SeparatePasses": Call(tk.policy.SeparatePasses, {}),
        "SACPolicy": Call(tk.SACPolicy, {**critics, "action_space": BOX, **CPU}),
        "SACPolicy.for_envs": Call(tk.SACPolicy.for_envs, {"envs": CONTINUOUS, "hidden": (4,), **CPU}),
        "SaveBest": Call(tk.callbacks.SaveBest, {"folder": folder / "best"}),
        "SaveEvery": Call(tk.callbacks.SaveEvery, {"folder": folder / "every"}),
        "SoftQ": Call(tk.SoftQ, {}),
        "ActionScale": Call(tk.nets.ActionScale, {"space": BOX}),
        "ActionStructure": Call(tk.envs.ActionStructure, {"nested": NESTED}),
        "buffer_from_config": Call(tk.buffer.buffer_from_config, {"config": {"capacity": 10}}),
        "flat_actions": Call(tk.envs.flat_actions, {"space": NESTED}),
        "SquashedGaussian": Call(tk.nets.SquashedGaussian, {"space": BOX}),
        "on": Call(tk.on, {"epoch_end": print}),
        "StopAt": Call(tk.callbacks.StopAt, {"seconds": 1.0}),
        "SumTree": Call(tk.buffer.SumTree, {"size": 3}),
        "Target": Call(tk.Target, {}),
        "TensorboardLogger": Call(tk.loggers.TensorboardLogger, {"folder": folder / "tensorboard"}),
        "ScriptedPolicy": Call(tk.policy.ScriptedPolicy, {"fn": len}),
        "check_env": Call(tk.check_env, {"env": Walk, "n_steps": 5}),
        "discounted_returns": Call(tk.policy.discounted_returns, {**returns, "gamma": 0.9}),
        "entry": Call(tk.zoo.entry, {"preset": "dqn", "env": "CartPole-v1"}),
        "evaluate": Call(tk.evaluate, {"policy": learner(), "env": Walk, "n_episode": 1}),
        "compare": Call(tk.compare, {"policy": learner(), "baseline": learner(), "env": Walk, "n_episode": 2}),
        "gae": Call(tk.policy.gae, {**columns, "gamma": 0.9, "lam": 0.9}),
        "inspect_checkpoint": Call(tk.trainer.inspect_checkpoint, {"path": checkpoint}),
        "list": Call(tk.zoo.list, {}),
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
    }
    for own in files_of_extensions("examples").values():
        found |= own.calls(folder) if hasattr(own, "calls") else {}
    return found
