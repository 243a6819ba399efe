"""Tianshou 1.2's side of learning at the same settings: its trainer, collector and DummyVectorEnv.

Runs in an environment of its own, and so imports nothing of trainkit but the numbers of the work.
"""

import warnings

warnings.filterwarnings("ignore")

import numpy as np  # noqa: E402  # after the warnings that Tianshou's imports raise
import torch  # noqa: E402
from tianshou.data import Batch, Collector, VectorReplayBuffer  # noqa: E402
from tianshou.env import DummyVectorEnv  # noqa: E402
from tianshou.policy import DQNPolicy  # noqa: E402
from tianshou.trainer import OffpolicyTrainer  # noqa: E402
from tianshou.utils.net.common import Net  # noqa: E402

from benchmarks.learning import same_work as work  # noqa: E402

EPOCH = 1_000  # the trainer counts from the end of the random steps, which are as many; evaluations are at multiples


def learn(pairing: work.Pairing, own: work.Settings, task: str, seed: int, judge: work.Judge) -> dict[str, int]:
    """Train, have the policy evaluated, and return the counts."""
    np.random.seed(seed)  # noqa: NPY002, TID251  # Tianshou draws from the global generators
    torch.manual_seed(seed)  # noqa: TID251
    envs = DummyVectorEnv([lambda: work.make(task) for _ in range(own.n_envs)])
    envs.seed(seed)
    observation_space, action_space = envs.observation_space[0], envs.action_space[0]
    for space in envs.action_space:
        space.seed(int(np.random.randint(2**31)))  # noqa: NPY002  # random steps draw from them
    net = Net(observation_space.shape, int(action_space.n), hidden_sizes=list(own.hidden))
    policy = DQNPolicy(
        model=net,
        optim=torch.optim.Adam(net.parameters(), lr=own.lr, eps=own.adam_eps),
        discount_factor=own.gamma,
        estimation_step=1,
        target_update_freq=own.target_every_updates,
        is_double=False,
        clip_loss_grad=True,  # the Huber loss
        action_space=action_space,
        observation_space=observation_space,
    )
    buffer = VectorReplayBuffer(own.capacity, buffer_num=own.n_envs)
    collector = Collector(policy, envs, buffer, exploration_noise=True)
    collector.reset()
    collector.collect(n_step=own.learning_starts, random=True)
    trainer = OffpolicyTrainer(
        policy=policy,
        train_collector=collector,
        test_collector=None,
        max_epoch=(own.steps - own.learning_starts) // EPOCH,
        step_per_epoch=EPOCH,
        step_per_collect=own.n_envs,
        update_per_step=own.updates_per_round / own.n_envs,
        batch_size=own.batch,
        episode_per_test=1,
        train_fn=lambda _, step: policy.set_eps(own.epsilon(own.learning_starts + step)),
        verbose=False,
        show_progress=False,
        test_in_train=False,
    )

    def act(obs: np.ndarray) -> np.ndarray:
        with torch.no_grad():
            return policy(Batch(obs=obs, info=Batch())).act

    for _ in trainer:
        if own.learning_starts + trainer.env_step in own.evaluated_at:
            judge.play(act)
    counts = {"env_steps": own.learning_starts + trainer.env_step, "updates": policy._iter}
    return {**counts, "parameters": work.n_weights(net)}


if __name__ == "__main__":
    work.run_side(learn, "tianshou")
