"""Tianshou 2's side: collect, update and the whole loop, on its DummyVectorEnv, a bare loop over environments."""

import warnings
from typing import Any

warnings.filterwarnings("ignore")

import gymnasium as gym  # noqa: E402  # after the warnings it raises
from tianshou import __version__  # noqa: E402
from tianshou.algorithm.modelfree.dqn import DQN, DiscreteQLearningPolicy  # noqa: E402
from tianshou.algorithm.optim import AdamOptimizerFactory  # noqa: E402
from tianshou.data import Collector, PrioritizedVectorReplayBuffer, VectorReplayBuffer  # noqa: E402
from tianshou.env import DummyVectorEnv  # noqa: E402
from tianshou.trainer import OffPolicyTrainerParams  # noqa: E402
from tianshou.utils.net.common import Net  # noqa: E402
from tianshou.utils.torch_utils import policy_within_training_step  # noqa: E402

from benchmarks import side  # noqa: E402
from benchmarks.work import GAMMA, LR, Work  # noqa: E402


class Tianshou2:
    """Its DQN on a vector of buffers."""

    version = __version__

    def __init__(self, work: Work) -> None:
        self._work = work
        self._envs = DummyVectorEnv([lambda: gym.make(work.env) for _ in range(work.n_envs)])
        self._policy = DiscreteQLearningPolicy(
            model=Net(state_shape=work.n_inputs, action_shape=work.n_outputs, hidden_sizes=work.hidden),
            action_space=gym.spaces.Discrete(work.n_outputs),
            eps_training=work.epsilon,
            eps_inference=work.epsilon,
        )
        self._algorithm = DQN(
            policy=self._policy,
            optim=AdamOptimizerFactory(lr=LR),
            gamma=GAMMA,
            n_step_return_horizon=work.n_step,
            target_update_freq=work.target_every,
            is_double=work.double,
            huber_loss_delta=1.0 if work.loss == "huber" else None,
        )
        if work.prioritized:
            self._buffer = PrioritizedVectorReplayBuffer(work.capacity, buffer_num=work.n_envs, alpha=0.6, beta=0.4)
        else:
            self._buffer = VectorReplayBuffer(work.capacity, buffer_num=work.n_envs)
        self._collector = Collector(self._algorithm, self._envs, self._buffer, exploration_noise=True)
        self._collector.reset()

    def collect(self, n_steps: int) -> int:
        return int(self._collector.collect(n_step=n_steps).n_collected_steps)

    def update(self) -> None:
        with policy_within_training_step(self._policy):
            self._algorithm.update(self._buffer, self._work.batch)

    def loop(self, n_steps: int) -> int:
        trainer = self._algorithm.create_trainer(
            OffPolicyTrainerParams(
                training_collector=self._collector,
                max_epochs=1,
                epoch_num_steps=n_steps,
                collection_step_num_env_steps=self._work.n_envs * self._work.per_round,
                update_step_num_gradient_steps_per_sample=1 / self._work.n_envs,
                batch_size=self._work.batch,
                verbose=False,
                show_progress=False,
            )
        )
        trainer.run()
        return int(trainer._env_step)

    def n_updates(self) -> int:
        return self._algorithm._iter

    def told(self) -> dict[str, Any]:
        return {
            "env": self._envs.get_env_attr("spec")[0].id,
            "envs": self._envs.env_num,
            "gamma": self._algorithm.gamma,
            "n_step": self._algorithm.n_step,
            "parameters": sum(parameter.numel() for parameter in self._policy.parameters()),
        }


if __name__ == "__main__":
    side.play(Tianshou2, side.options().parse_args())
