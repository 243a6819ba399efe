"""One side of meeting a fault: trainkit, Stable-Baselines3 or Tianshou, each where it is installed.

Runs in an environment of its own, and so imports nothing but that side and the work.
"""

import json
import sys
import warnings
from collections.abc import Callable, Iterable

warnings.filterwarnings("ignore")

import torch  # noqa: E402  # after the warnings it raises

from benchmarks.faults import settings_work as work  # noqa: E402

Weights = Iterable[torch.Tensor]
Side = Callable[[str, list[Weights]], None]  # learns with a fault, having put its weights into the list


def trainkit(fault: str, weights: list[Weights]) -> None:
    """Learn by trainkit."""
    import trainkit as tk

    own = work.settings(fault)
    envs = tk.make_envs(lambda: work.Spoilt(fault), seed=1)
    policy = tk.DQNPolicy.for_envs(
        envs, hidden=(64,), lr=own["lr"], gamma=own["gamma"], device="cpu", seed=1, **own["unknown"]
    )
    weights.append(list(policy.parameters()))
    train = tk.Collector(policy, envs, tk.ReplayBuffer(own["capacity"]))
    tk.OffpolicyTrainer(
        policy, train, max_epoch=1, step_per_epoch=work.STEPS, batch_size=own["batch"], learning_starts=work.STARTS,
        verbose=False, show_progress=False, seed=1,
    ).run()  # fmt: skip


def sb3(fault: str, weights: list[Weights]) -> None:
    """Learn by Stable-Baselines3."""
    from stable_baselines3 import DQN

    own = work.settings(fault)
    model = DQN(
        "MlpPolicy", work.Spoilt(fault), learning_rate=own["lr"], gamma=own["gamma"], batch_size=own["batch"],
        buffer_size=own["capacity"], learning_starts=work.STARTS, train_freq=1, seed=1, device="cpu", **own["unknown"],
    )  # fmt: skip
    weights.append(list(model.q_net.parameters()))
    model.learn(work.STEPS)


def tianshou(fault: str, weights: list[Weights]) -> None:
    """Learn by Tianshou 1.2."""
    from tianshou.data import Collector, VectorReplayBuffer
    from tianshou.env import DummyVectorEnv
    from tianshou.policy import DQNPolicy
    from tianshou.trainer import OffpolicyTrainer
    from tianshou.utils.net.common import Net

    own = work.settings(fault)
    envs = DummyVectorEnv([lambda: work.Spoilt(fault)])
    net = Net((4,), 2, hidden_sizes=[64])
    policy = DQNPolicy(
        model=net, optim=torch.optim.Adam(net.parameters(), lr=own["lr"]), discount_factor=own["gamma"],
        action_space=envs.action_space[0], target_update_freq=100, **own["unknown"],
    )  # fmt: skip
    weights.append(list(net.parameters()))
    collector = Collector(policy, envs, VectorReplayBuffer(own["capacity"], 1), exploration_noise=True)
    collector.reset()
    collector.collect(n_step=work.STARTS, random=True)
    OffpolicyTrainer(
        policy=policy, train_collector=collector, test_collector=None, max_epoch=1, step_per_epoch=work.STEPS,
        step_per_collect=1, update_per_step=1.0, batch_size=own["batch"], episode_per_test=1, verbose=False,
        show_progress=False, test_in_train=False,
    ).run()  # fmt: skip


SIDES: dict[str, Side] = {"trainkit": trainkit, "sb3": sb3, "tianshou": tianshou}


def main() -> None:
    """Meet one fault, and print what was told."""
    side, fault = sys.argv[1:]
    torch.set_num_threads(1)
    weights: list[Weights] = []
    told = None
    try:
        SIDES[side](fault, weights)
    except Exception as error:  # noqa: BLE001  # whatever it is, it is what is asked for
        told = f"{type(error).__name__}: {error}"
    is_finite = all(bool(torch.isfinite(one).all()) for parameters in weights for one in parameters)
    print(json.dumps({"told": told, "finite": is_finite}))


if __name__ == "__main__":
    main()
