"""stable-baselines3-contrib's side of `recurrent_speed` and `recurrent_curves`: see `recurrent_work`."""

import json
import sys
import time

import numpy as np
import sb3_contrib
import torch
from stable_baselines3.common.vec_env import DummyVecEnv

from benchmarks import recurrent_work as work
from benchmarks.memory_tasks import cartpole_positions


def greedy_returns(model: sb3_contrib.RecurrentPPO, seed: int) -> list[float]:
    """Play an episode in each of as many environments as an evaluation has episodes; return their returns."""
    envs = DummyVecEnv([cartpole_positions] * work.EPISODES)
    envs.seed(seed)
    obs, state = envs.reset(), None
    starts, is_open = np.ones(envs.num_envs, bool), np.ones(envs.num_envs, bool)
    returns = np.zeros(envs.num_envs)
    while is_open.any():
        action, state = model.predict(obs, state=state, episode_start=starts, deterministic=True)
        obs, reward, starts, _ = envs.step(action)
        returns += reward * is_open
        is_open &= ~starts
    return [float(one) for one in returns]


def main() -> None:
    """Make the learner once, and train a block, or evaluate, per line."""
    torch.set_num_threads(1)
    seed = int(sys.argv[1])
    envs = DummyVecEnv([cartpole_positions] * work.N_ENVS)
    model = sb3_contrib.RecurrentPPO(
        "MlpLstmPolicy",
        envs,
        learning_rate=work.LR,
        n_steps=work.ROLLOUT,
        batch_size=work.BATCH,
        n_epochs=work.EPOCHS,
        gamma=work.GAMMA,
        gae_lambda=work.LAMBDA,
        clip_range=work.CLIP_RATIO,
        ent_coef=0.0,
        vf_coef=work.VALUE_WEIGHT,
        max_grad_norm=work.MAX_NORM,
        policy_kwargs={"lstm_hidden_size": work.SIZE, "net_arch": []},
        device="cpu",
        seed=seed,
    )
    n_updates = 0
    step = model.policy.optimizer.step

    def counted(*args: object, **options: object) -> object:
        nonlocal n_updates
        n_updates += 1
        return step(*args, **options)

    model.policy.optimizer.step = counted
    for line in sys.stdin:
        if line.startswith("evaluate"):
            returns = greedy_returns(model, work.evaluation_seed(seed, n_updates))
            print(json.dumps({"returns": returns, "done": {}}), flush=True)
            continue
        steps, updates, started = model.num_timesteps, n_updates, time.process_time()
        model.learn(work.BLOCK, reset_num_timesteps=False)
        seconds = time.process_time() - started
        n_parameters = sum(one.numel() for one in model.policy.parameters())
        counts = {"steps": model.num_timesteps - steps, "updates": n_updates - updates}
        done = {**counts, "parameters": n_parameters, "environments": envs.num_envs}
        print(json.dumps({"seconds": seconds, "done": done, "version": sb3_contrib.__version__}), flush=True)


if __name__ == "__main__":
    main()
