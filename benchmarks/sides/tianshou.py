"""Tianshou 1.2's side of `peers`, on its DummyVectorEnv, a loop over single environments."""

import warnings
from contextlib import AbstractContextManager
from typing import Any

warnings.filterwarnings("ignore")

import torch  # noqa: E402  # after the warnings that Tianshou's imports raise
from tianshou import __version__  # noqa: E402
from tianshou.data import Collector, PrioritizedVectorReplayBuffer, VectorReplayBuffer  # noqa: E402
from tianshou.env import DummyVectorEnv  # noqa: E402
from tianshou.policy import DQNPolicy, PPOPolicy, RainbowPolicy, SACPolicy  # noqa: E402
from tianshou.trainer import OffpolicyTrainer, OnpolicyTrainer  # noqa: E402
from tianshou.utils.net.common import ActorCritic, Net  # noqa: E402
from tianshou.utils.net.continuous import ActorProb  # noqa: E402
from tianshou.utils.net.continuous import Critic as ContinuousCritic  # noqa: E402
from tianshou.utils.net.discrete import Actor, Critic, NoisyLinear  # noqa: E402

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
    """Make its DQN or Rainbow, which cannot clip gradients."""
    own: dict[str, Any] = {}
    if work.learner == "rainbow":
        noisy = {"linear_layer": NoisyLinear}
        own = {"softmax": True, "num_atoms": ATOMS, "dueling_param": (noisy, noisy)}
    if work.convolutions:
        network: torch.nn.Module = Images(side.network(work))
    else:
        network = Net(state_shape=work.shape, action_shape=work.n_outputs, hidden_sizes=work.hidden, **own)
    given = {
        "model": network,
        "optim": torch.optim.Adam(network.parameters(), lr=work.lr),
        "discount_factor": work.gamma,
        "estimation_step": work.n_step,
        "target_update_freq": work.target_every,
        "is_double": work.double,
        "action_space": action_space,
    }
    if work.learner == "rainbow":
        policy = RainbowPolicy(**given, num_atoms=ATOMS, v_min=RETURNS[0], v_max=RETURNS[1])
    else:
        policy = DQNPolicy(**given, clip_loss_grad=work.loss == "huber")
    policy.set_eps(work.epsilon)
    return policy


def make_sac(work: Work, action_space: Any) -> SACPolicy:
    """Make its SAC, which learns the temperature."""

    def adam(parameters: Any) -> torch.optim.Adam:
        return torch.optim.Adam(parameters, lr=work.lr)

    body = Net(state_shape=work.shape, hidden_sizes=work.hidden)
    actor = ActorProb(body, work.n_outputs, unbounded=True, conditioned_sigma=True)
    critics = [
        ContinuousCritic(Net(work.shape, work.n_outputs, hidden_sizes=work.hidden, concat=True)) for _ in range(2)
    ]
    log_alpha = torch.zeros(1, requires_grad=True)
    return SACPolicy(
        actor=actor,
        actor_optim=adam(actor.parameters()),
        critic=critics[0],
        critic_optim=adam(critics[0].parameters()),
        critic2=critics[1],
        critic2_optim=adam(critics[1].parameters()),
        tau=TAU,
        gamma=work.gamma,
        alpha=(-float(work.n_outputs), log_alpha, adam([log_alpha])),
        action_space=action_space,
    )


def make_ppo(work: Work, action_space: Any) -> PPOPolicy:
    """Make its PPO."""
    bodies = [Net(state_shape=work.shape, hidden_sizes=work.hidden, activation=torch.nn.Tanh) for _ in range(2)]
    actor, critic = Actor(bodies[0], work.n_outputs, softmax_output=False), Critic(bodies[1])
    return PPOPolicy(
        actor=actor,
        critic=critic,
        optim=torch.optim.Adam(ActorCritic(actor, critic).parameters(), lr=work.lr, eps=ADAM_EPS),
        dist_fn=lambda logits: torch.distributions.Categorical(logits=logits),
        action_space=action_space,
        action_scaling=False,
        discount_factor=work.gamma,
        gae_lambda=LAMBDA,
        eps_clip=CLIP_RATIO,
        vf_coef=VALUE_WEIGHT,
        ent_coef=0.0,
        max_grad_norm=work.clip,
        max_batchsize=work.batch,
    )


class Tianshou:
    """Tianshou 1.2 with a workload."""

    def __init__(self, work: Work) -> None:
        self._work = work
        self._envs = DummyVectorEnv([lambda: make_env(work)] * work.n_envs)
        make = {"dqn": make_dqn, "rainbow": make_dqn, "sac": make_sac, "ppo": make_ppo}[work.learner]
        self._policy: Any = make(work, self._envs.action_space[0])
        if work.prioritized:
            buffer = PrioritizedVectorReplayBuffer(work.capacity, buffer_num=work.n_envs, alpha=ALPHA, beta=BETA)
        else:
            n_rows = work.n_envs * ROLLOUT_STEPS if work.learner == "ppo" else work.capacity
            buffer = VectorReplayBuffer(n_rows, buffer_num=work.n_envs)
        self._collector = Collector(self._policy, self._envs, buffer, exploration_noise=True)
        self._collector.reset()

    def collect(self, n_steps: int) -> int:
        n_collected = int(self._collector.collect(n_step=n_steps).n_collected_steps)
        if self._work.learner == "ppo":
            self._collector.reset_buffer(keep_statistics=True)
        return n_collected

    def loop(self, n_steps: int) -> int:
        work = self._work
        common = {
            "policy": self._policy,
            "train_collector": self._collector,
            "test_collector": None,
            "max_epoch": 1,
            "step_per_epoch": n_steps,
            "episode_per_test": 1,
            "batch_size": work.batch,
            "verbose": False,
            "show_progress": False,
            "test_in_train": False,
        }
        if work.learner == "ppo":
            rollout = {"step_per_collect": work.n_envs * ROLLOUT_STEPS, "repeat_per_collect": EPOCHS}
            trainer: Any = OnpolicyTrainer(**common, **rollout)
        else:
            ratio = {"step_per_collect": work.steps_per_update, "update_per_step": 1 / work.steps_per_update}
            trainer = OffpolicyTrainer(**common, **ratio)
        trainer.run()
        return int(trainer.env_step)

    def n_updates(self) -> int:
        optimizer = self._policy.actor_optim if self._work.learner == "sac" else self._policy.optim
        return side.n_steps_of(optimizer)

    def count_calls(self) -> AbstractContextManager[list[int]]:
        return side.calls_of(self._trained()[0])

    def _trained(self) -> list[torch.nn.Module]:
        """Return the trained networks, the acting one first."""
        policy = self._policy
        return {
            "sac": lambda: [policy.actor, policy.critic, policy.critic2],
            "ppo": lambda: [policy.actor, policy.critic],
        }.get(self._work.learner, lambda: [policy.model])()

    def settings(self) -> dict[str, Any]:
        return {
            "env": self._envs.get_env_attr("spec")[0].id,
            "envs": self._envs.env_num,
            "gamma": self._policy.gamma,
            "parameters": side.count_parameters(*self._trained()),
        }


if __name__ == "__main__":
    side.serve(Tianshou, __version__, flush=side.options().parse_args().flush)
