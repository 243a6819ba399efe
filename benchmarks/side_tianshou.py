"""Tianshou 1.2's side: collect, update and the whole loop, on its DummyVectorEnv, a bare loop over environments.

Runs in an environment of its own, and so imports nothing of trainkit but the numbers of the work.
"""

import argparse
import importlib.util
import json
import time
import warnings
from pathlib import Path

warnings.filterwarnings("ignore")

import gymnasium as gym  # noqa: E402  # after the warnings it raises
import torch  # noqa: E402
from tianshou import __version__  # noqa: E402
from tianshou.data import Collector, PrioritizedVectorReplayBuffer, VectorReplayBuffer  # noqa: E402
from tianshou.env import DummyVectorEnv  # noqa: E402
from tianshou.policy import DQNPolicy  # noqa: E402
from tianshou.trainer import OffpolicyTrainer  # noqa: E402
from tianshou.utils.net.common import Net  # noqa: E402

spec = importlib.util.spec_from_file_location("work", Path(__file__).with_name("work.py"))
work = importlib.util.module_from_spec(spec)
spec.loader.exec_module(work)


def main() -> None:
    """Do the work and print its rates."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("learner", choices=list(work.LEARNERS))
    parser.add_argument("--hidden", type=int, nargs="+", default=list(work.HIDDEN))
    parser.add_argument("--rounds", action="store_true", help="so many vector steps between updates as updates come")
    options = parser.parse_args()
    how = work.LEARNERS[options.learner]
    prioritized = how["prioritized"]
    torch.set_num_threads(1)
    envs = DummyVectorEnv([lambda: gym.make("CartPole-v1") for _ in range(work.N_ENVS)])
    net = Net(state_shape=4, action_shape=2, hidden_sizes=options.hidden)
    policy = DQNPolicy(
        model=net,
        optim=torch.optim.Adam(net.parameters(), lr=work.LR),
        discount_factor=work.GAMMA,
        estimation_step=how["n_step"],
        target_update_freq=work.TARGET_EVERY,
        is_double=how["double"],
        clip_loss_grad=how["loss"] == "huber",
        action_space=gym.spaces.Discrete(2),
    )
    policy.set_eps(work.EPSILON)
    if prioritized:
        buffer = PrioritizedVectorReplayBuffer(work.CAPACITY, buffer_num=work.N_ENVS, alpha=0.6, beta=0.4)
    else:
        buffer = VectorReplayBuffer(work.CAPACITY, buffer_num=work.N_ENVS)
    collector = Collector(policy, envs, buffer, exploration_noise=True)
    collector.reset()
    collector.collect(n_step=work.WARMUP_STEPS)

    began = time.process_time()
    stats = collector.collect(n_step=work.COLLECT_STEPS)
    collect = work.COLLECT_STEPS / (time.process_time() - began)

    policy.is_within_training_step = True
    for _ in range(50):
        policy.update(work.BATCH, buffer)
    before = policy._iter
    began = time.process_time()
    for _ in range(work.UPDATES):
        policy.update(work.BATCH, buffer)
    updates = work.UPDATES / (time.process_time() - began)
    n_updates = policy._iter - before
    policy.is_within_training_step = False

    trainer = OffpolicyTrainer(
        policy=policy,
        train_collector=collector,
        test_collector=None,
        max_epoch=1,
        step_per_epoch=work.LOOP_STEPS,
        step_per_collect=work.N_ENVS * (work.PER_ROUND if options.rounds else 1),
        update_per_step=1 / work.N_ENVS,
        batch_size=work.BATCH,
        episode_per_test=1,
        verbose=False,
        show_progress=False,
        test_in_train=False,
    )
    before = policy._iter
    began = time.process_time()
    trainer.run()
    loop = work.LOOP_STEPS / (time.process_time() - began)
    done = {
        "collected": int(stats.n_collected_steps),
        "updates": n_updates,
        "loop_updates": policy._iter - before,
        "parameters": sum(parameter.numel() for parameter in net.parameters()),
        "threads": torch.get_num_threads(),
    }
    rates = {"collect steps/s": collect, "updates/s": updates, "loop steps/s": loop}
    print(json.dumps({"rates": rates, "done": done, "version": __version__}))


if __name__ == "__main__":
    main()
