"""Tianshou 1.2's side: collect, update and the whole loop, on its DummyVectorEnv, a bare loop over environments."""

import warnings
from typing import Any

warnings.filterwarnings("ignore")

import gymnasium as gym  # noqa: E402  # after the warnings it raises
import torch  # noqa: E402
from tianshou import __version__  # noqa: E402
from tianshou.data import Collector, PrioritizedVectorReplayBuffer, VectorReplayBuffer  # noqa: E402
from tianshou.env import DummyVectorEnv  # noqa: E402
from tianshou.policy import DQNPolicy, RainbowPolicy  # noqa: E402
from tianshou.trainer import OffpolicyTrainer  # noqa: E402
from tianshou.utils.net.common import Net  # noqa: E402
from tianshou.utils.net.discrete import NoisyLinear  # noqa: E402

from benchmarks import side  # noqa: E402
from benchmarks.work import ATOMS, GAMMA, LR, RETURNS, Work  # noqa: E402


class Tianshou:
    """Its DQN on a vector of buffers."""

    version = __version__

    def __init__(self, work: Work) -> None:
        self._work = work
        self._envs = DummyVectorEnv([lambda: gym.make(work.env) for _ in range(work.n_envs)])
        own: dict[str, Any] = {}
        if work.learner == "rainbow":
            noisy = {"linear_layer": NoisyLinear}
            own = {"softmax": True, "num_atoms": ATOMS, "dueling_param": (noisy, noisy)}
        net = Net(state_shape=work.n_inputs, action_shape=work.n_outputs, hidden_sizes=work.hidden, **own)
        asked = {
            "model": net,
            "optim": torch.optim.Adam(net.parameters(), lr=LR),
            "discount_factor": GAMMA,
            "estimation_step": work.n_step,
            "target_update_freq": work.target_every,
            "is_double": work.double,
            "action_space": gym.spaces.Discrete(work.n_outputs),
        }
        if work.learner == "rainbow":
            self._policy = RainbowPolicy(**asked, num_atoms=ATOMS, v_min=RETURNS[0], v_max=RETURNS[1])
        else:
            self._policy = DQNPolicy(**asked, clip_loss_grad=work.loss == "huber")
        self._policy.set_eps(work.epsilon)
        if work.prioritized:
            self._buffer = PrioritizedVectorReplayBuffer(work.capacity, buffer_num=work.n_envs, alpha=0.6, beta=0.4)
        else:
            self._buffer = VectorReplayBuffer(work.capacity, buffer_num=work.n_envs)
        self._collector = Collector(self._policy, self._envs, self._buffer, exploration_noise=True)
        self._collector.reset()

    def collect(self, n_steps: int) -> int:
        return int(self._collector.collect(n_step=n_steps).n_collected_steps)

    def update(self) -> None:
        self._policy.is_within_training_step = True
        self._policy.update(self._work.batch, self._buffer)
        self._policy.is_within_training_step = False

    def loop(self, n_steps: int) -> int:
        trainer = OffpolicyTrainer(
            policy=self._policy,
            train_collector=self._collector,
            test_collector=None,
            max_epoch=1,
            step_per_epoch=n_steps,
            step_per_collect=self._work.n_envs * self._work.per_round,
            update_per_step=1 / self._work.n_envs,
            batch_size=self._work.batch,
            episode_per_test=1,
            verbose=False,
            show_progress=False,
            test_in_train=False,
        )
        trainer.run()
        return int(trainer.env_step)

    def n_updates(self) -> int:
        return self._policy._iter

    def told(self) -> dict[str, Any]:
        return {
            "env": self._envs.get_env_attr("spec")[0].id,
            "envs": self._envs.env_num,
            "gamma": self._policy.gamma,
            "n_step": self._policy.n_step,
            "parameters": sum(parameter.numel() for parameter in self._policy.model.parameters()),
        }


if __name__ == "__main__":
    side.play(Tianshou, side.options().parse_args())
