"""Our side of learning simple_spread: public parts."""

import argparse
import json
import time
from importlib.metadata import version

import numpy as np
import torch

import trainkit as tk
from benchmarks import spread_work as work


def make_trainer(algorithm: str, seed: int) -> tk.OnpolicyTrainer:
    """Return PPO as the table has it, whose critic sees the state of the game in MAPPO; an epoch is a rollout."""
    own = work.SETTINGS
    is_mappo = algorithm == "mappo"
    wrappers = [tk.envs.ObserveState] if is_mappo else []
    envs = tk.make_envs(work.make_game, own["games at the same time"], wrappers=wrappers)
    policy = tk.PPOPolicy.for_envs(
        envs,
        hidden=own["hidden layers, tanh, of actor and critic each"],
        critic_only=["state"] if is_mappo else [],
        optimizer=tk.Adam(own["Adam: lr"], eps=own["Adam: eps"]),
        max_grad_norm=own["gradients' norm clipped at"],
        gamma=own["gamma"],
        lam=own["lambda"],
        clip_ratio=own["ratio clipped at"],
        value_weight=own["value weight"],
        entropy_weight=own["entropy weight"],
        normalize_advantage=False,
        device="cpu",
    )
    n_rows = work.STEPS_PER_ROLLOUT * work.N_AGENTS
    return tk.OnpolicyTrainer(
        policy,
        tk.Collector(policy, envs, tk.RolloutBuffer()),
        max_epoch=own["rollouts"],
        step_per_epoch=n_rows,
        step_per_collect=n_rows,
        repeat_per_collect=own["passes over each rollout"],
        batch_size=n_rows // own["batches per pass"],
        seed=seed,
        diagnosis=None,
        verbose=False,
        show_progress=False,
    )


def main() -> None:
    """Learn, and print the results."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--algorithm", choices=("mappo", "ippo"), required=True)
    parser.add_argument("--seed", type=int, required=True)
    options = parser.parse_args()
    torch.set_num_threads(1)
    judge = work.Judge(options.seed)
    started = time.process_time()
    trainer = make_trainer(options.algorithm, options.seed)

    def act(obs: np.ndarray) -> np.ndarray:
        rows = obs.reshape(-1, work.N_OBS)
        unseen = np.zeros((len(rows), work.N_STATE), np.float32)  # by the actor
        seen = {"obs": rows, "state": unseen} if options.algorithm == "mappo" else rows
        return trainer.policy.predict(seen).reshape(-1, work.N_AGENTS)

    for epoch, _, _ in trainer:
        if work.is_evaluated_after(epoch):
            judge.play(act)
    seconds = time.process_time() - started - judge.seconds
    done = {"game_steps": trainer.env_step // work.N_AGENTS, "updates": trainer.gradient_step}
    versions = {"trainkit": tk.__version__} | {name: version(name) for name in ("torch", "mpe2")}
    print(json.dumps({"returns": judge.returns, "seconds": seconds, "done": done, "versions": versions}))


if __name__ == "__main__":
    main()
