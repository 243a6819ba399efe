"""trainkit's side of `recurrent_speed` and `recurrent_curves`: see `recurrent_work`."""

import json
import sys
import time
from functools import partial

import trainkit as tk
from benchmarks import recurrent_work as work
from benchmarks.memory_tasks import cartpole_positions


def greedy_returns(policy: tk.Policy, seed: int) -> list[float]:
    """Play an episode in each of as many environments as an evaluation has episodes; return their returns."""
    test = tk.Collector(policy, tk.make_envs([cartpole_positions] * work.EPISODES, seed=seed))
    returns = list(test.collect(n_episode=work.EPISODES).episode_returns)
    test.close()
    return returns


def main() -> None:
    """Make the learner once, and train a block, or evaluate, per line."""
    seed = int(sys.argv[1])
    envs = tk.make_envs([cartpole_positions] * work.N_ENVS, seed=seed)
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
        seed=seed,
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
        seed=seed,
    )
    blocks = iter(trainer)
    for line in sys.stdin:
        if line.startswith("evaluate"):
            returns = greedy_returns(policy, work.evaluation_seed(seed, policy.n_updates))
            print(json.dumps({"returns": returns, "done": {}}), flush=True)
            continue
        steps, updates, started = trainer.env_step, policy.n_updates, time.process_time()
        next(blocks)
        seconds = time.process_time() - started
        n_parameters = sum(one.numel() for one in policy.parameters())
        counts = {"steps": trainer.env_step - steps, "updates": policy.n_updates - updates}
        done = {**counts, "parameters": n_parameters, "environments": envs.n}
        print(json.dumps({"seconds": seconds, "done": done, "version": tk.__version__}), flush=True)


if __name__ == "__main__":
    main()
