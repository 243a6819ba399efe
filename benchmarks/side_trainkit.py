"""Our side: collect, update and the whole loop."""

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
    parser.add_argument("learner", choices=list(work.LEARNERS))
    parser.add_argument("--hidden", type=int, nargs="+", default=list(work.HIDDEN))
    parser.add_argument("--compile", action="store_true", help="gradients in one graph")
    parser.add_argument("--rounds", action="store_true", help="updates in rounds, on gymnasium's own vector CartPole")
    options = parser.parse_args()
    how = work.LEARNERS[options.learner]
    torch.set_num_threads(1)
    sync = {"vectorization_mode": "sync", "vector_kwargs": {"autoreset_mode": AutoresetMode.DISABLED}}
    venv = gym.make_vec("CartPole-v1", work.N_ENVS, **({} if options.rounds else sync))
    envs = tk.make_envs(venv, seed=1)
    policy = tk.DQNPolicy.for_envs(
        envs,
        hidden=options.hidden,
        value=tk.ExpectedValue(how["loss"]),
        n_step=how["n_step"],
        gamma=work.GAMMA,
        double=how["double"],
        lr=work.LR,
        max_grad_norm=how["clip"],
        exploration=tk.EpsilonGreedy(work.EPSILON),
        target=tk.Target(work.TARGET_EVERY, unit="updates"),
        compile=options.compile,
        device="cpu",
        seed=1,
    )
    kind = tk.PrioritizedReplayBuffer if how["prioritized"] else tk.ReplayBuffer
    collector = tk.Collector(policy, envs, kind(work.CAPACITY, seed=1))
    collector.collect(n_step=work.WARMUP_STEPS)

    began = time.process_time()
    stats = collector.collect(n_step=work.COLLECT_STEPS)
    collect = work.COLLECT_STEPS / (time.process_time() - began)

    def update() -> None:
        batch = collector.buffer.sample(work.BATCH, horizon=policy.horizon)
        result = policy.update(batch, step=collector.env_step)
        if how["prioritized"]:
            collector.buffer.update_priorities(batch.slots, result.read_priority())

    for _ in range(50):
        update()
    before = policy.n_updates
    began = time.process_time()
    for _ in range(work.UPDATES):
        update()
    updates = work.UPDATES / (time.process_time() - began)
    n_updates = policy.n_updates - before

    rounds = {"refresh_priorities": "round", "updates_per_round": work.PER_ROUND} if options.rounds else {}
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
        **rounds,
    )
    before = policy.n_updates
    began = time.process_time()
    trainer.run()
    loop = work.LOOP_STEPS / (time.process_time() - began)
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
