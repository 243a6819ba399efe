"""trainkit's side of `recurrent_speed`: a block of work for each line it reads."""

import json
import sys
import time
from functools import partial

import trainkit as tk
from benchmarks import recurrent_work as work
from benchmarks.memory_tasks import cartpole_positions


def main() -> None:
    """Make the learner once, and train a block per line."""
    envs = tk.make_envs([cartpole_positions] * work.N_ENVS, seed=1)
    policy = tk.PPOPolicy.for_envs(
        envs,
        hidden=(),
        recurrent=partial(tk.nets.LSTM, n_features=work.SIZE),
        sequences=tk.Sequences(work.ROLLOUT, 0),
        optimizer=tk.Adam(work.LR, eps=work.ADAM_EPS),
        gamma=work.GAMMA,
        lam=work.LAMBDA,
        clip_ratio=work.CLIP_RATIO,
        value_weight=work.VALUE_WEIGHT,
        normalize_advantage=True,
        max_grad_norm=work.MAX_NORM,
        device="cpu",
        seed=1,
    )
    trainer = tk.OnpolicyTrainer(
        policy,
        tk.Collector(policy, envs, tk.RolloutBuffer()),
        max_epoch=1_000,
        step_per_epoch=work.BLOCK,
        step_per_collect=work.N_ENVS * work.ROLLOUT,
        repeat_per_collect=work.EPOCHS,
        batch_size=work.BATCH,
        verbose=False,
        show_progress=False,
        seed=1,
    )
    blocks = iter(trainer)
    for _ in sys.stdin:
        steps, updates, started = trainer.env_step, policy.n_updates, time.process_time()
        next(blocks)
        seconds = time.process_time() - started
        n_parameters = sum(one.numel() for one in policy.parameters())
        counts = {"steps": trainer.env_step - steps, "updates": policy.n_updates - updates}
        done = {**counts, "parameters": n_parameters, "environments": envs.n}
        print(json.dumps({"seconds": seconds, "done": done, "version": tk.__version__}), flush=True)


if __name__ == "__main__":
    main()
