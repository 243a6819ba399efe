"""RLlib's side: the whole loop, its local env runner and learner in this process, on its vector environment."""

import logging
import os
import warnings
from typing import Any

warnings.filterwarnings("ignore")
os.environ["RAY_USAGE_STATS_ENABLED"] = "0"  # a benchmark reports to nobody

import ray  # noqa: E402  # after the warnings it raises
from ray.rllib.algorithms.dqn import DQNConfig  # noqa: E402
from ray.rllib.env.single_agent_env_runner import SingleAgentEnvRunner  # noqa: E402

from benchmarks import side  # noqa: E402
from benchmarks.work import GAMMA, LR, Work  # noqa: E402


class Exact(SingleAgentEnvRunner):
    """Take what a sample has over off the next: else one would be of 19 rows where an environment had to reset."""

    n_over = 0
    n_rows = 0

    def sample(self, **options: Any) -> Any:
        n_wanted = self.num_envs - self.n_over
        episodes = super().sample(num_timesteps=n_wanted, **options)
        n_new = sum(len(episode) for episode in episodes)
        self.n_over = n_new - n_wanted
        self.n_rows += n_new
        return episodes


class RLlib:
    """Its DQN on its new API stack."""

    version = ray.__version__

    def __init__(self, work: Work) -> None:
        self._work = work
        config = (
            DQNConfig()
            .environment(work.env)
            .env_runners(
                env_runner_cls=Exact,
                num_env_runners=0,
                num_envs_per_env_runner=work.n_envs,
                rollout_fragment_length=1,
            )
            .learners(num_learners=0)
            .rl_module(model_config={"fcnet_hiddens": list(work.hidden), "fcnet_activation": "relu"})
            .training(
                lr=LR,
                gamma=GAMMA,
                train_batch_size_per_learner=work.batch,
                td_error_loss_fn=work.loss,
                grad_clip=work.clip,
                grad_clip_by="global_norm",
                n_step=work.n_step,
                double_q=work.double,
                dueling=False,
                epsilon=work.epsilon,
                target_network_update_freq=work.target_every * work.n_envs,
                num_steps_sampled_before_learning_starts=work.warmup_steps,
                replay_buffer_config={"type": "EpisodeReplayBuffer", "capacity": work.capacity},
            )
            .debugging(seed=1, log_level="ERROR")
        )
        self._algorithm = config.build_algo()
        self._runner = self._algorithm.env_runner_group.local_env_runner
        self._learner = self._algorithm.learner_group._learner

    def collect(self, n_steps: int) -> int:
        return self._play(n_steps)  # below `num_steps_sampled_before_learning_starts`

    def loop(self, n_steps: int) -> int:
        return self._play(n_steps)

    def _play(self, n_steps: int) -> int:
        before = self._runner.n_rows
        for _ in range(n_steps // self._work.n_envs):
            self._algorithm.training_step()
        return self._runner.n_rows - before

    def n_updates(self) -> int:
        state = self._learner.get_optimizer().state
        return int(next(iter(state.values()))["step"]) if state else 0

    def told(self) -> dict[str, Any]:
        config = self._algorithm.config
        learnt = self._learner.get_optimizer().param_groups[0]["params"]
        return {
            "env": config.env,
            "envs": self._runner.num_envs,
            "gamma": config.gamma,
            "n_step": config.n_step,
            "parameters": sum(parameter.numel() for parameter in learnt),
        }


def main() -> None:
    """Do the work and print its rates."""
    ray.init(num_cpus=1, include_dashboard=False, log_to_driver=False, logging_level=logging.ERROR)
    side.play(RLlib, side.options().parse_args())


if __name__ == "__main__":
    main()
