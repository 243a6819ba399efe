"""Our side of the race on CartPole: the peer's settings, or our preset's own."""

import math
from typing import Any

import torch

import trainkit as tk
from benchmarks import time_to_475_work as work

QUIET: dict[str, Any] = {"verbose": False, "show_progress": False}


def epochs_of(steps: int) -> dict[str, Any]:
    """Return epochs that end where the judge is due, the last with the step that reaches the limit."""
    return {"max_epoch": math.ceil(steps / work.EVERY), "step_per_epoch": work.EVERY}


def make_trainer(seed: int) -> tk.OffpolicyTrainer:
    """Compose the trainer of the peer's settings, whose epochs end where the judge is due."""
    envs = tk.make_envs(work.TASK)
    policy = tk.DQNPolicy.for_envs(
        envs,
        hidden=work.HIDDEN,
        gamma=work.GAMMA,
        lr=work.LR,
        max_grad_norm=work.CLIP,
        exploration=tk.EpsilonGreedy.linear(*work.EPSILON, work.EPSILON_STEPS),
        # The peer copies while it steps, so that a round's updates all see the network before them.
        target=tk.Target(work.UPDATES_PER_ROUND, unit="updates"),
        device="cpu",
    )
    return tk.OffpolicyTrainer(
        policy,
        tk.Collector(policy, envs, tk.ReplayBuffer(work.CAPACITY)),
        step_per_collect=work.STEPS_PER_ROUND,
        update_per_step=work.UPDATES_PER_ROUND / work.STEPS_PER_ROUND,
        batch_size=work.BATCH,
        learning_starts=work.LEARNING_STARTS,
        warmup="random",
        seed=seed,
        **epochs_of(work.LIMIT),
        **QUIET,
    )


def main() -> None:
    """Learn until it is solved, and print how long it took."""
    parser = work.options()
    parser.add_argument("--preset", help="take its settings instead of the peer's")
    asked = parser.parse_args()
    torch.set_num_threads(1)
    race = work.Race(asked.seed)
    if asked.preset:
        own = tk.presets.settings(asked.preset)
        epochs = epochs_of(own["max_epoch"] * own["step_per_epoch"])
        trainer = tk.presets.PRESETS[asked.preset](work.TASK, seed=asked.seed, evaluation=None, **epochs, **QUIET)
    else:
        trainer = make_trainer(asked.seed)
    for _ in trainer:
        if race.is_over(trainer.policy.predict):
            break
    race.show(
        steps=trainer.env_step,
        updates=trainer.gradient_step,
        parameters=sum(parameter.numel() for parameter in trainer.policy.network.parameters()),
        versions={"trainkit": tk.__version__},
    )


if __name__ == "__main__":
    main()
