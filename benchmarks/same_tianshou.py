"""Tianshou 1.2's side of learning at the same settings: its trainer, collector and DummyVectorEnv.

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
from tianshou.data import Batch, Collector, VectorReplayBuffer  # noqa: E402
from tianshou.env import DummyVectorEnv  # noqa: E402
from tianshou.policy import DQNPolicy  # noqa: E402
from tianshou.trainer import OffpolicyTrainer  # noqa: E402
from tianshou.utils.net.common import Net  # noqa: E402

from benchmarks import same_work as work  # noqa: E402

EPOCH = 1_000  # the trainer counts from the end of the random steps, which are as many; evaluations are at multiples


def main() -> None:
    """Learn, and print what came of it."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--pairing", choices=["dqn-tianshou"], required=True)
    parser.add_argument("--task", choices=work.TASKS, required=True)
    parser.add_argument("--seed", type=int, required=True)
    options = parser.parse_args()
    asked = work.settings(options.pairing, options.task)
    torch.set_num_threads(1)
    judge = work.Judge(options.task, options.seed)
    began = time.perf_counter()
    np.random.seed(options.seed)  # noqa: NPY002, TID251  # Tianshou draws from the global generators
    torch.manual_seed(options.seed)  # noqa: TID251
    envs = DummyVectorEnv([lambda: work.make(options.task) for _ in range(work.N_ENVS)])
    envs.seed(options.seed)
    observation_space, action_space = envs.observation_space[0], envs.action_space[0]
    for space in envs.action_space:
        space.seed(int(np.random.randint(2**31)))  # noqa: NPY002  # random steps draw from them
    net = Net(observation_space.shape, int(action_space.n), hidden_sizes=list(work.HIDDEN))
    policy = DQNPolicy(
        model=net,
        optim=torch.optim.Adam(net.parameters(), lr=asked.lr, eps=work.ADAM_EPS),
        discount_factor=asked.gamma,
        estimation_step=1,
        target_update_freq=asked.target_every_updates,
        is_double=False,
        clip_loss_grad=True,  # the Huber loss
        action_space=action_space,
        observation_space=observation_space,
    )
    buffer = VectorReplayBuffer(asked.capacity, buffer_num=work.N_ENVS)
    collector = Collector(policy, envs, buffer, exploration_noise=True)
    collector.reset()
    collector.collect(n_step=asked.learning_starts, random=True)
    trainer = OffpolicyTrainer(
        policy=policy,
        train_collector=collector,
        test_collector=None,
        max_epoch=(asked.steps - asked.learning_starts) // EPOCH,
        step_per_epoch=EPOCH,
        step_per_collect=work.N_ENVS,
        update_per_step=asked.updates_per_round / work.N_ENVS,
        batch_size=asked.batch,
        episode_per_test=1,
        train_fn=lambda _, step: policy.set_eps(asked.epsilon(asked.learning_starts + step)),
        verbose=False,
        show_progress=False,
        test_in_train=False,
    )

    def act(obs: np.ndarray) -> np.ndarray:
        with torch.no_grad():
            return policy(Batch(obs=obs, info=Batch())).act

    for _ in trainer:
        if (asked.learning_starts + trainer.env_step) % asked.every == 0:
            judge.play(act)
    seconds = time.perf_counter() - began - judge.seconds
    done = {
        "env_steps": asked.learning_starts + trainer.env_step,
        "updates": policy._iter,
        "parameters": sum(parameter.numel() for parameter in net.parameters()),
        "threads": torch.get_num_threads(),
    }
    versions = {"tianshou": __version__, "torch": torch.__version__, "gymnasium": gym.__version__}
    print(json.dumps({"returns": judge.returns, "seconds": seconds, "done": done, "versions": versions}))


if __name__ == "__main__":
    main()
