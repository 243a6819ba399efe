"""BenchMARL's side of learning at the same settings: its MAPPO and IPPO.

Runs in an environment of its own, and so imports nothing of trainkit but the numbers of the work.
"""

import tempfile

import torch
from benchmarl.algorithms import IppoConfig, MappoConfig
from benchmarl.environments.pettingzoo.common import PettingZooClass
from benchmarl.experiment import Callback, Experiment, ExperimentConfig
from benchmarl.models.mlp import MlpConfig
from tensordict import TensorDict
from torchrl.envs.libs.pettingzoo import PettingZooWrapper
from torchrl.envs.utils import ExplorationType, set_exploration_type

from benchmarks.learning import same_work as work


class SimpleSpread(PettingZooClass):
    """BenchMARL's task, of the package mpe2, which PettingZoo's own games of that kind have moved to."""

    def get_env_fun(self, num_envs, continuous_actions, seed, device):
        return lambda: PettingZooWrapper(
            work.make_game(), return_state=True, categorical_actions=True, seed=seed, device=device
        )


class Evaluations(Callback):
    """Call the judge after rollouts are learned from."""

    def __init__(self, judge, own) -> None:
        super().__init__()
        self.judge, self.own, self.n_rollouts, self.n_updates = judge, own, 0, 0

    def on_train_step(self, batch, group) -> None:
        self.n_updates += 1

    def on_train_end(self, training_td, group) -> None:
        self.n_rollouts += 1
        if self.n_rollouts * self.own.steps_per_round in self.own.evaluated_at:
            self.judge.play(self.act)

    def act(self, obs):
        """Return the most probable actions."""
        seen = TensorDict({"agent": {"observation": torch.as_tensor(obs)}}, batch_size=len(obs))
        with torch.no_grad(), set_exploration_type(ExplorationType.DETERMINISTIC):
            return self.experiment.policy(seen)["agent", "action"].numpy()


def make_experiment(own: work.Settings, seed: int, callback, folder: str) -> Experiment:
    """Return the learner."""
    config = ExperimentConfig.get_from_yaml()
    config.prefer_continuous_actions = False
    config.gamma, config.lr, config.adam_eps = own.gamma, own.lr, own.adam_eps
    config.clip_grad_norm, config.clip_grad_val = True, own.max_grad_norm
    config.max_n_frames, config.max_n_iters = None, own.steps // own.steps_per_round
    config.on_policy_collected_frames_per_batch = own.steps_per_round
    config.on_policy_n_envs_per_worker = own.n_envs
    config.on_policy_n_minibatch_iters, config.on_policy_minibatch_size = own.epochs, own.batch
    config.evaluation = config.render = config.create_json = False
    config.loggers, config.save_folder = [], folder
    settings = (MappoConfig if own.learner == "mappo" else IppoConfig).get_from_yaml()
    settings.clip_epsilon, settings.lmbda = own.clip_ratio, own.lam
    settings.entropy_coef, settings.critic_coef = own.entropy_weight, own.value_weight
    model = MlpConfig.get_from_yaml()
    model.num_cells = list(own.hidden)
    task = SimpleSpread("SIMPLE_SPREAD", dict(work.GAME))
    return Experiment(task, settings, model, seed, config, critic_model_config=model, callbacks=[callback])


def learn(pairing: work.Pairing, own: work.Settings, task: str, seed: int, judge: work.Judge) -> dict[str, int]:
    """Train, have the policy evaluated, and return the counts."""
    evaluations = Evaluations(judge, own)
    with tempfile.TemporaryDirectory() as folder:
        experiment = make_experiment(own, seed, evaluations, folder)
        experiment.run()
    return {"env_steps": experiment.total_frames, "updates": evaluations.n_updates, "parameters": None}


if __name__ == "__main__":
    work.run_side(learn, "benchmarl", "torchrl", "mpe2")
