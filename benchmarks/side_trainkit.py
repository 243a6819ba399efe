"""Our side: collect, update and the whole loop, on gymnasium's SyncVectorEnv."""

import argparse
import json
import time

import gymnasium as gym
import torch
from gymnasium.vector import AutoresetMode

import trainkit as tk
from benchmarks import work


def main() -> None:
    """Do the work and print its rates."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--prioritized", action="store_true")
    prioritized: bool = parser.parse_args().prioritized
    torch.set_num_threads(1)
    sync = {"autoreset_mode": AutoresetMode.DISABLED}
    venv = gym.make_vec("CartPole-v1", work.N_ENVS, vectorization_mode="sync", vector_kwargs=sync)
    envs = tk.make_envs(venv, seed=1)
    policy = tk.DQNPolicy.for_envs(
        envs,
        hidden=work.HIDDEN,
        value=tk.ExpectedValue("mse"),
        n_step=work.N_STEP,
        gamma=work.GAMMA,
        double=True,
        lr=work.LR,
        max_grad_norm=None,
        exploration=tk.EpsilonGreedy(work.EPSILON),
        target=tk.Target(work.TARGET_EVERY, unit="updates"),
        flush_denormals=False,
        device="cpu",
        seed=1,
    )
    kind = tk.PrioritizedReplayBuffer if prioritized else tk.ReplayBuffer
    collector = tk.Collector(policy, envs, kind(work.CAPACITY, seed=1))
    collector.collect(n_step=work.WARMUP_STEPS)

    began = time.perf_counter()
    stats = collector.collect(n_step=work.COLLECT_STEPS)
    collect = work.COLLECT_STEPS / (time.perf_counter() - began)

    def update() -> None:
        batch = collector.buffer.sample(work.BATCH, horizon=policy.horizon)
        result = policy.update(batch, step=collector.env_step)
        if prioritized:
            collector.buffer.update_priorities(batch.slots, result.read_priority())

    for _ in range(50):
        update()
    before = policy.n_updates
    began = time.perf_counter()
    for _ in range(work.UPDATES):
        update()
    updates = work.UPDATES / (time.perf_counter() - began)
    n_updates = policy.n_updates - before

    trainer = tk.OffpolicyTrainer(
        policy,
        collector,
        max_epoch=1,
        step_per_epoch=work.LOOP_STEPS,
        step_per_collect=work.N_ENVS,
        update_per_step=1 / work.N_ENVS,
        batch_size=work.BATCH,
        verbose=False,
        show_progress=False,
    )
    before = policy.n_updates
    began = time.perf_counter()
    trainer.run()
    loop = work.LOOP_STEPS / (time.perf_counter() - began)
    done = {
        "collected": stats.n_step,
        "updates": n_updates,
        "loop_updates": policy.n_updates - before,
        "parameters": sum(parameter.numel() for parameter in policy.network.parameters()),
        "threads": torch.get_num_threads(),
    }
    rates = {"collect steps/s": collect, "updates/s": updates, "loop steps/s": loop}
    print(json.dumps({"rates": rates, "done": done, "version": tk.__version__}))


if __name__ == "__main__":
    main()
