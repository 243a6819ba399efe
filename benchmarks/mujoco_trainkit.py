"""Our side of learning in MuJoCo: public parts, put together by hand."""

import argparse
import json
import time
from typing import Any

import gymnasium
import mujoco
import torch

import trainkit as tk
from benchmarks import mujoco_work as work

QUIET: dict[str, Any] = {"verbose": False, "show_progress": False}


def ppo_trainer(envs: tk.Envs, seed: int) -> tk.OnpolicyTrainer:
    """Make PPO as the table has it; an epoch is a rollout."""
    ppo = work.PPO
    policy = tk.PPOPolicy.for_envs(
        envs,
        hidden=ppo["hidden layers, tanh, for actor and critic each"],
        normalize_obs=True,
        reward="return_scale",
        gamma=ppo["gamma"],
        lam=ppo["lambda"],
        clip_ratio=ppo["ratio clipped at"],
        value_weight=ppo["value weight"],
        entropy_weight=ppo["entropy weight"],
        lr=ppo["Adam: lr"],
        adam_eps=ppo["Adam: eps"],
        max_grad_norm=ppo["gradients' norm clipped at"],
        device="cpu",
    )
    return tk.OnpolicyTrainer(
        policy,
        tk.Collector(policy, envs, tk.RolloutBuffer()),
        max_epoch=ppo["rollouts"],
        step_per_epoch=ppo["steps per rollout"],
        step_per_collect=ppo["steps per rollout"],
        repeat_per_collect=ppo["epochs over each rollout"],
        batch_size=ppo["batch"],
        seed=seed,
        **QUIET,
    )


def sac_trainer(envs: tk.Envs, seed: int) -> tk.OffpolicyTrainer:
    """Make SAC as the table has it; an epoch ends where the judge is due."""
    sac = work.SAC
    policy = tk.SACPolicy.for_envs(
        envs,
        hidden=sac["hidden layers, relu"],
        gamma=sac["gamma, 1-step"],
        tau=sac["tau, every update"],
        optimizer=tk.Adam(sac["Adam: lr, of actor, critics and temperature"], eps=sac["Adam: eps"]),
        initial_temperature=1.0,
        target_entropy=-float(envs.action_space.shape[0]),
        device="cpu",
    )
    capacity = sac["replay capacity, uniform (the peer's default: 1,000,000)"]
    return tk.OffpolicyTrainer(
        policy,
        tk.Collector(policy, envs, tk.ReplayBuffer(capacity)),
        max_epoch=work.PARTS,
        step_per_epoch=work.STEPS["sac"] // work.PARTS,
        step_per_collect=1,
        update_per_step=sac["updates per environment step"],
        batch_size=sac["batch"],
        learning_starts=sac["random steps before learning (the peer's default: 100)"],
        warmup="random",
        seed=seed,
        **QUIET,
    )


def main() -> None:
    """Learn, and print what came of it."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--algorithm", choices=work.ALGORITHMS, required=True)
    parser.add_argument("--task", choices=work.SIZES, required=True)
    parser.add_argument("--seed", type=int, required=True)
    options = parser.parse_args()
    torch.set_num_threads(1)
    judge = work.Judge(options.task, options.seed)
    began = time.process_time()
    is_ppo = options.algorithm == "ppo"
    trainer = (ppo_trainer if is_ppo else sac_trainer)(tk.make_envs(options.task), options.seed)
    steps = set(work.judged_at(options.algorithm))
    for _ in trainer:
        if trainer.env_step in steps:
            judge.play(trainer.policy.predict)
    seconds = time.process_time() - began - judge.seconds
    policy = trainer.policy
    moved = policy.parameters() if is_ppo else [*policy.actor.parameters(), *policy.critics.parameters()]
    done = {
        "env_steps": trainer.env_step,
        "updates": trainer.gradient_step,
        "parameters": sum(parameter.numel() for parameter in moved),
        "threads": torch.get_num_threads(),
    }
    versions = {
        "trainkit": tk.__version__,
        "torch": torch.__version__,
        "gymnasium": gymnasium.__version__,
        "mujoco": mujoco.__version__,
    }
    print(json.dumps({"returns": judge.returns, "seconds": seconds, "done": done, "versions": versions}))


if __name__ == "__main__":
    main()
