"""RLlib's side of `peers`: its local env runner and learner in this process, on gymnasium's SyncVectorEnv."""

import logging
import os
import warnings
from contextlib import AbstractContextManager
from typing import Any

warnings.filterwarnings("ignore")
os.environ["RAY_USAGE_STATS_ENABLED"] = "0"

import ray  # noqa: E402  # after the warnings that its imports raise
from ray.rllib.algorithms.dqn import DQNConfig  # noqa: E402
from ray.rllib.env.single_agent_env_runner import SingleAgentEnvRunner  # noqa: E402

from benchmarks.sides import side  # noqa: E402
from benchmarks.sides.work import Work  # noqa: E402


class CountingEnvRunner(SingleAgentEnvRunner):
    """Count environment steps, and subtract what one sample has too many from the next one.

    A vector step in which some environments only reset has fewer rows than environments, and a sample ends with a
    whole vector step.
    """

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
    """RLlib's DQN with a workload."""

    def __init__(self, work: Work) -> None:
        self._work = work
        config = (
            DQNConfig()
            .environment(work.env)
            .env_runners(
                env_runner_cls=CountingEnvRunner,
                num_env_runners=0,
                num_envs_per_env_runner=work.n_envs,
                rollout_fragment_length=1,
            )
            .learners(num_learners=0)
            .rl_module(model_config={"fcnet_hiddens": list(work.hidden), "fcnet_activation": "relu"})
            .training(
                lr=work.lr,
                gamma=work.gamma,
                train_batch_size_per_learner=work.batch,
                td_error_loss_fn=work.loss,
                grad_clip=work.clip,
                grad_clip_by="global_norm",
                n_step=work.n_step,
                double_q=work.double,
                dueling=False,
                epsilon=work.epsilon,
                target_network_update_freq=work.target_every * work.n_envs,
                num_steps_sampled_before_learning_starts=work.warmup + work.block,
                replay_buffer_config={"type": "EpisodeReplayBuffer", "capacity": work.capacity},
            )
            .debugging(seed=1, log_level="ERROR")
        )
        self._algorithm = config.build_algo()
        self._runner = self._algorithm.env_runner_group.local_env_runner
        self._learner = self._algorithm.learner_group._learner

    def collect(self, n_steps: int) -> int:
        """Collect, below `num_steps_sampled_before_learning_starts`."""
        return self.loop(n_steps)

    def loop(self, n_steps: int) -> int:
        before = self._runner.n_rows
        for _ in range(n_steps // self._work.n_envs):
            self._algorithm.training_step()
        return self._runner.n_rows - before

    def n_updates(self) -> int:
        return side.n_steps_of(self._learner.get_optimizer())

    def count_calls(self) -> AbstractContextManager[list[int]]:
        return side.calls_of(self._runner.module)

    def settings(self) -> dict[str, Any]:
        config = self._algorithm.config
        trained = self._learner.get_optimizer().param_groups[0]["params"]
        return {
            "env": config.env,
            "envs": self._runner.num_envs,
            "gamma": config.gamma,
            "parameters": sum(parameter.numel() for parameter in trained),
        }


if __name__ == "__main__":
    flush = side.options().parse_args().flush
    ray.init(num_cpus=1, include_dashboard=False, log_to_driver=False, logging_level=logging.ERROR)
    side.serve(RLlib, ray.__version__, flush=flush)
