"""BenchMARL's side of learning simple_spread: its MAPPO and IPPO.

Runs in an environment of its own, and so imports nothing of trainkit but the numbers of the work.
"""

import argparse
import json
import tempfile
import time
from importlib.metadata import version

import torch
from benchmarl.algorithms import IppoConfig, MappoConfig
from benchmarl.environments.pettingzoo.common import PettingZooClass
from benchmarl.experiment import Callback, Experiment, ExperimentConfig
from benchmarl.models.mlp import MlpConfig
from tensordict import TensorDict
from torchrl.envs.libs.pettingzoo import PettingZooWrapper
from torchrl.envs.utils import ExplorationType, set_exploration_type

from benchmarks import spread_work as work


class SimpleSpread(PettingZooClass):
    """BenchMARL's task, of the package mpe2, which PettingZoo's own games of that kind have moved to."""

    def get_env_fun(self, num_envs, continuous_actions, seed, device):
        return lambda: PettingZooWrapper(
            work.make_game(), return_state=True, categorical_actions=True, seed=seed, device=device
        )


class Evaluations(Callback):
    """Call the judge after rollouts are learned from."""

    def __init__(self, judge) -> None:
        super().__init__()
        self.judge, self.n_rollouts, self.n_updates = judge, 0, 0

    def on_train_step(self, batch, group) -> None:
        self.n_updates += 1

    def on_train_end(self, training_td, group) -> None:
        self.n_rollouts += 1
        if work.is_evaluated_after(self.n_rollouts):
            self.judge.play(self.act)

    def act(self, obs):
        """Return the most probable actions."""
        seen = TensorDict({"agent": {"observation": torch.as_tensor(obs)}}, batch_size=len(obs))
        with torch.no_grad(), set_exploration_type(ExplorationType.DETERMINISTIC):
            return self.experiment.policy(seen)["agent", "action"].numpy()


def make_experiment(algorithm: str, seed: int, callback, folder: str) -> Experiment:
    """Return PPO as the table has it."""
    own = work.SETTINGS
    config = ExperimentConfig.get_from_yaml()
    config.prefer_continuous_actions = False
    config.gamma = own["gamma"]
    config.lr = own["Adam: lr"]
    config.adam_eps = own["Adam: eps"]
    config.clip_grad_norm = True
    config.clip_grad_val = own["gradients' norm clipped at"]
    config.max_n_frames = None
    config.max_n_iters = own["rollouts"]
    config.on_policy_collected_frames_per_batch = work.STEPS_PER_ROLLOUT
    config.on_policy_n_envs_per_worker = own["games at the same time"]
    config.on_policy_n_minibatch_iters = own["passes over each rollout"]
    config.on_policy_minibatch_size = work.STEPS_PER_ROLLOUT // own["batches per pass"]
    config.evaluation = config.render = config.create_json = False
    config.loggers = []
    config.save_folder = folder
    settings = (MappoConfig if algorithm == "mappo" else IppoConfig).get_from_yaml()
    settings.clip_epsilon = own["ratio clipped at"]
    settings.entropy_coef = own["entropy weight"]
    settings.critic_coef = own["value weight"]
    settings.lmbda = own["lambda"]
    model = MlpConfig.get_from_yaml()
    model.num_cells = own["hidden layers, tanh, of actor and critic each"]
    task = SimpleSpread("SIMPLE_SPREAD", dict(work.GAME))
    return Experiment(task, settings, model, seed, config, critic_model_config=model, callbacks=[callback])


def main() -> None:
    """Learn, and print the results."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--algorithm", choices=("mappo", "ippo"), required=True)
    parser.add_argument("--seed", type=int, required=True)
    options = parser.parse_args()
    torch.set_num_threads(1)
    judge = work.Judge(options.seed)
    evaluations = Evaluations(judge)
    started = time.process_time()
    with tempfile.TemporaryDirectory() as folder:
        experiment = make_experiment(options.algorithm, options.seed, evaluations, folder)
        experiment.run()
    seconds = time.process_time() - started - judge.seconds
    done = {"game_steps": experiment.total_frames, "updates": evaluations.n_updates}
    versions = {name: version(name) for name in ("benchmarl", "torchrl", "torch", "mpe2")}
    print(json.dumps({"returns": judge.returns, "seconds": seconds, "done": done, "versions": versions}))


if __name__ == "__main__":
    main()
