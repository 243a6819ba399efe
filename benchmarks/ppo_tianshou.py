"""Tianshou 1.2's side of PPO's speed, on its DummyVectorEnv, a bare loop over environments.

Runs in an environment of its own, and so imports nothing of trainkit but the numbers of the work.
"""

import argparse
import json
import time
import warnings

warnings.filterwarnings("ignore")

import gymnasium as gym  # noqa: E402  # after the warnings it raises
import numpy as np  # noqa: E402
import torch  # noqa: E402
from tianshou import __version__  # noqa: E402
from tianshou.data import Collector, VectorReplayBuffer  # noqa: E402
from tianshou.env import DummyVectorEnv  # noqa: E402
from tianshou.policy import PPOPolicy  # noqa: E402
from tianshou.trainer import OnpolicyTrainer  # noqa: E402
from tianshou.utils.net.common import ActorCritic, Net  # noqa: E402
from tianshou.utils.net.discrete import Actor, Critic  # noqa: E402

from benchmarks import ppo_work as work  # noqa: E402


def torso() -> Net:
    """Make the layers below a head."""
    return Net(state_shape=4, hidden_sizes=list(work.HIDDEN), activation=torch.nn.Tanh)


def main() -> None:
    """Do the work and print its rates."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--lr", type=float, required=True)
    parser.add_argument("--seed", type=int, required=True)
    options = parser.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(options.seed)  # noqa: TID251  # it has no generators of its own
    np.random.seed(options.seed)  # noqa: NPY002, TID251
    envs = DummyVectorEnv([lambda: gym.make(work.TASK) for _ in range(work.N_ENVS)])
    envs.seed(options.seed)
    actor = Actor(torso(), 2, softmax_output=False)
    critic = Critic(torso())
    both = ActorCritic(actor, critic)
    for layer in both.modules():
        if isinstance(layer, torch.nn.Linear):
            torch.nn.init.orthogonal_(layer.weight, gain=2**0.5)
            torch.nn.init.zeros_(layer.bias)
    torch.nn.init.orthogonal_(actor.last.model[-1].weight, gain=0.01)
    torch.nn.init.orthogonal_(critic.last.model[-1].weight, gain=1.0)
    optim = torch.optim.Adam(both.parameters(), lr=options.lr, eps=work.ADAM_EPS)
    policy = PPOPolicy(
        actor=actor,
        critic=critic,
        optim=optim,
        dist_fn=lambda logits: torch.distributions.Categorical(logits=logits),
        action_space=gym.spaces.Discrete(2),
        action_scaling=False,
        discount_factor=work.GAMMA,
        gae_lambda=work.LAM,
        eps_clip=work.CLIP_RATIO,
        vf_coef=work.VALUE_WEIGHT,
        ent_coef=work.ENTROPY_WEIGHT,
        max_grad_norm=work.MAX_GRAD_NORM,
        max_batchsize=work.BATCH,
    )
    collector = Collector(policy, envs, VectorReplayBuffer(work.ROLLOUT, work.N_ENVS))
    collector.reset()
    learning, episodes, rows = 0.0, 0, 0
    update, collect = policy.update, collector.collect

    def timed_update(*args, **kwargs):
        nonlocal learning
        began = time.process_time()
        result = update(*args, **kwargs)
        learning += time.process_time() - began
        return result

    def counted_collect(*args, **kwargs):
        nonlocal episodes, rows
        stats = collect(*args, **kwargs)
        episodes += stats.n_collected_episodes
        rows += stats.n_collected_steps
        return stats

    policy.update, collector.collect = timed_update, counted_collect

    def run(n_rollouts: int) -> float:
        trainer = OnpolicyTrainer(
            policy=policy,
            train_collector=collector,
            test_collector=None,
            max_epoch=1,
            step_per_epoch=n_rollouts * work.ROLLOUT,
            step_per_collect=work.ROLLOUT,
            repeat_per_collect=work.EPOCHS,
            episode_per_test=1,
            batch_size=work.BATCH,
            verbose=False,
            show_progress=False,
            test_in_train=False,
        )
        began = time.process_time()
        trainer.run()
        return time.process_time() - began

    run(work.WARMUP_ROLLOUTS)
    learning, episodes, rows, before = 0.0, 0, 0, n_taken(optim)
    seconds = run(work.ROLLOUTS)
    minibatches = n_taken(optim) - before
    done = {
        "rows": int(rows),
        "minibatches": minibatches,
        "parameters": sum(parameter.numel() for parameter in both.parameters()),
        "threads": torch.get_num_threads(),
    }
    rates = {
        "collect steps/s": rows / (seconds - learning),
        "minibatches/s": minibatches / learning,
        "loop steps/s": rows / seconds,
    }
    print(json.dumps({"rates": rates, "done": done, "episodes": int(episodes), "version": __version__}))


def n_taken(optim: torch.optim.Adam) -> int:
    """Return how many steps Adam has taken."""
    return int(next(iter(optim.state.values()))["step"])


if __name__ == "__main__":
    main()
