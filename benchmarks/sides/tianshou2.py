"""Tianshou 2's side of `peers`, on its DummyVectorEnv, a loop over single environments."""

import warnings
from contextlib import AbstractContextManager
from typing import Any

warnings.filterwarnings("ignore")

import torch  # noqa: E402  # after the warnings that Tianshou's imports raise
from tianshou import __version__  # noqa: E402
from tianshou.algorithm.modelfree.c51 import C51Policy  # noqa: E402
from tianshou.algorithm.modelfree.dqn import DQN, DiscreteQLearningPolicy  # noqa: E402
from tianshou.algorithm.modelfree.ppo import PPO  # noqa: E402
from tianshou.algorithm.modelfree.rainbow import RainbowDQN  # noqa: E402
from tianshou.algorithm.modelfree.reinforce import DiscreteActorPolicy  # noqa: E402
from tianshou.algorithm.modelfree.sac import SAC, AutoAlpha, SACPolicy  # noqa: E402
from tianshou.algorithm.optim import AdamOptimizerFactory  # noqa: E402
from tianshou.data import Collector, PrioritizedVectorReplayBuffer, VectorReplayBuffer  # noqa: E402
from tianshou.env import DummyVectorEnv  # noqa: E402
from tianshou.trainer import OffPolicyTrainerParams, OnPolicyTrainerParams  # noqa: E402
from tianshou.utils.net.common import Net  # noqa: E402
from tianshou.utils.net.continuous import ContinuousActorProbabilistic, ContinuousCritic  # noqa: E402
from tianshou.utils.net.discrete import DiscreteActor, DiscreteCritic, NoisyLinear  # noqa: E402

from benchmarks.sides import side  # noqa: E402
from benchmarks.sides.work import (  # noqa: E402
    ADAM_EPS,
    ALPHA,
    ATOMS,
    BETA,
    CLIP_RATIO,
    EPOCHS,
    LAMBDA,
    RETURNS,
    ROLLOUT_STEPS,
    TAU,
    VALUE_WEIGHT,
    Work,
    make_env,
)


class Images(side.Images):
    """A network of images as Tianshou calls it."""

    def forward(self, obs: Any, state: Any = None, info: Any = None) -> Any:
        return super().forward(torch.as_tensor(obs)), state


def make_dqn(work: Work, action_space: Any) -> Any:
    """Make its DQN, which cannot clip gradients."""
    if work.convolutions:
        network: torch.nn.Module = Images(side.network(work))
    else:
        network = Net(state_shape=work.shape, action_shape=work.n_outputs, hidden_sizes=work.hidden)
    policy = DiscreteQLearningPolicy(
        model=network, action_space=action_space, eps_training=work.epsilon, eps_inference=work.epsilon
    )
    return DQN(
        policy=policy,
        optim=AdamOptimizerFactory(lr=work.lr),
        gamma=work.gamma,
        n_step_return_horizon=work.n_step,
        target_update_freq=work.target_every,
        is_double=work.double,
        huber_loss_delta=1.0 if work.loss == "huber" else None,
    )


def make_rainbow(work: Work, action_space: Any) -> Any:
    """Make its Rainbow."""
    noisy = {"linear_layer": NoisyLinear}
    network = Net(
        state_shape=work.shape,
        action_shape=work.n_outputs,
        hidden_sizes=work.hidden,
        softmax=True,
        num_atoms=ATOMS,
        dueling_param=(noisy, noisy),
    )
    policy = C51Policy(network, action_space, num_atoms=ATOMS, v_min=RETURNS[0], v_max=RETURNS[1])
    return RainbowDQN(
        policy=policy,
        optim=AdamOptimizerFactory(lr=work.lr),
        gamma=work.gamma,
        n_step_return_horizon=work.n_step,
        target_update_freq=work.target_every,
    )


def make_sac(work: Work, action_space: Any) -> Any:
    """Make its SAC, which learns the temperature."""
    adam = AdamOptimizerFactory(lr=work.lr)
    actor = ContinuousActorProbabilistic(
        preprocess_net=Net(state_shape=work.shape, hidden_sizes=work.hidden),
        action_shape=work.n_outputs,
        unbounded=True,
        conditioned_sigma=True,
    )
    critics = [
        ContinuousCritic(
            preprocess_net=Net(
                state_shape=work.shape, action_shape=work.n_outputs, hidden_sizes=work.hidden, concat=True
            )
        )
        for _ in range(2)
    ]
    return SAC(
        policy=SACPolicy(actor=actor, action_space=action_space),
        policy_optim=adam,
        critic=critics[0],
        critic_optim=adam,
        critic2=critics[1],
        tau=TAU,
        gamma=work.gamma,
        alpha=AutoAlpha(-float(work.n_outputs), 0.0, adam),
    )


def make_ppo(work: Work, action_space: Any) -> Any:
    """Make its PPO."""
    bodies = [Net(state_shape=work.shape, hidden_sizes=work.hidden, activation=torch.nn.Tanh) for _ in range(2)]
    actor = DiscreteActor(preprocess_net=bodies[0], action_shape=work.n_outputs, softmax_output=False)
    return PPO(
        policy=DiscreteActorPolicy(actor=actor, action_space=action_space),
        critic=DiscreteCritic(preprocess_net=bodies[1]),
        optim=AdamOptimizerFactory(lr=work.lr, eps=ADAM_EPS),
        eps_clip=CLIP_RATIO,
        vf_coef=VALUE_WEIGHT,
        ent_coef=0.0,
        max_grad_norm=work.clip,
        gae_lambda=LAMBDA,
        max_batchsize=work.batch,
        gamma=work.gamma,
    )


class Tianshou2:
    """Tianshou 2 with a workload."""

    def __init__(self, work: Work) -> None:
        self._work = work
        self._envs = DummyVectorEnv([lambda: make_env(work)] * work.n_envs)
        make = {"dqn": make_dqn, "rainbow": make_rainbow, "sac": make_sac, "ppo": make_ppo}[work.learner]
        self._algorithm: Any = make(work, self._envs.action_space[0])
        if work.prioritized:
            buffer = PrioritizedVectorReplayBuffer(work.capacity, buffer_num=work.n_envs, alpha=ALPHA, beta=BETA)
        else:
            n_rows = work.n_envs * ROLLOUT_STEPS if work.learner == "ppo" else work.capacity
            buffer = VectorReplayBuffer(n_rows, buffer_num=work.n_envs)
        self._collector = Collector(self._algorithm, self._envs, buffer, exploration_noise=True)
        self._collector.reset()

    def collect(self, n_steps: int) -> int:
        n_collected = int(self._collector.collect(n_step=n_steps).n_collected_steps)
        if self._work.learner == "ppo":
            self._collector.reset_buffer(keep_statistics=True)
        return n_collected

    def loop(self, n_steps: int) -> int:
        work = self._work
        common = {
            "training_collector": self._collector,
            "max_epochs": 1,
            "epoch_num_steps": n_steps,
            "batch_size": work.batch,
            "verbose": False,
            "show_progress": False,
        }
        if work.learner == "ppo":
            parameters: Any = OnPolicyTrainerParams(
                **common,
                collection_step_num_env_steps=work.n_envs * ROLLOUT_STEPS,
                update_step_num_repetitions=EPOCHS,
            )
        else:
            parameters = OffPolicyTrainerParams(
                **common,
                collection_step_num_env_steps=work.steps_per_update,
                update_step_num_gradient_steps_per_sample=1 / work.steps_per_update,
            )
        trainer = self._algorithm.create_trainer(parameters)
        trainer.run()
        return int(trainer._env_step)

    def n_updates(self) -> int:
        optimizer = self._algorithm.policy_optim if self._work.learner == "sac" else self._algorithm.optim
        return side.n_steps_of(optimizer._optim)

    def count_calls(self) -> AbstractContextManager[list[int]]:
        return side.calls_of(self._trained()[0])

    def _trained(self) -> list[torch.nn.Module]:
        """Return the trained networks, the acting one first."""
        algorithm = self._algorithm
        return {
            "sac": lambda: [algorithm.policy.actor, algorithm.critic, algorithm.critic2],
            "ppo": lambda: [algorithm.policy.actor, algorithm.critic],
        }.get(self._work.learner, lambda: [algorithm.policy.model])()

    def settings(self) -> dict[str, Any]:
        return {
            "env": self._envs.get_env_attr("spec")[0].id,
            "envs": self._envs.env_num,
            "gamma": self._algorithm.gamma,
            "parameters": side.count_parameters(*self._trained()),
        }


if __name__ == "__main__":
    side.serve(Tianshou2, __version__, flush=side.options().parse_args().flush)
