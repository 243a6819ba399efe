"""A plain loop's side of learning at the same settings: DQN in one page of torch, with nothing of any library.

It tells whether a difference to a peer is the peer's or ours: the equations of Mnih et al. (2015) as written, eight
environments stepped one by one, uniform replay over all rows, torch's own Adam.
"""

from typing import Any

import numpy as np
import torch
from torch import nn
from torch.nn import functional

from benchmarks.learning import same_work as work


def network(n_inputs: int, hidden: tuple[int, ...], n_actions: int) -> nn.Sequential:
    """Return the layers that all sides have, as torch initializes them."""
    first, second = hidden
    layers = nn.Linear(n_inputs, first), nn.ReLU(), nn.Linear(first, second), nn.ReLU(), nn.Linear(second, n_actions)
    return nn.Sequential(*layers)


def learn(pairing: work.Pairing, own: work.Settings, task: str, seed: int, judge: work.Judge) -> dict[str, int]:
    """Train, have the policy evaluated, and return the counts."""
    torch.set_flush_denormal(True)
    rng = np.random.default_rng([seed, 7])
    torch.manual_seed(seed * 1000 + 1)  # noqa: TID251  # a plain script's way
    envs = [work.make(task) for _ in range(own.n_envs)]
    obs = np.stack([env.reset(seed=seed * 100 + i)[0] for i, env in enumerate(envs)])
    n_inputs, n_actions = obs.shape[1], int(envs[0].action_space.n)
    online, target = (network(n_inputs, own.hidden, n_actions) for _ in range(2))
    adam = torch.optim.Adam(online.parameters(), lr=own.lr, eps=own.adam_eps, fused=True)
    all_obs, all_next_obs = (np.zeros((own.steps, n_inputs), np.float32) for _ in range(2))
    actions = np.zeros(own.steps, np.int64)
    rewards, discounts = (np.zeros(own.steps, np.float32) for _ in range(2))

    def greedy(obs: Any) -> Any:
        with torch.no_grad():
            return online(torch.as_tensor(np.asarray(obs, np.float32))).argmax(1).numpy()

    step = n_updates = 0
    while step < own.steps:
        if step < own.learning_starts:
            action = rng.integers(n_actions, size=own.n_envs)
        else:
            action = greedy(obs)
            is_random = rng.random(own.n_envs) < own.epsilon(step)
            action[is_random] = rng.integers(n_actions, size=is_random.sum())
        for i, env in enumerate(envs):
            next_obs, reward, terminated, truncated, _ = env.step(int(action[i]))
            all_obs[step], all_next_obs[step], actions[step], rewards[step] = obs[i], next_obs, action[i], reward
            discounts[step] = 0.0 if terminated else own.gamma
            obs[i] = env.reset()[0] if terminated or truncated else next_obs
            step += 1
        if step > own.learning_starts:
            for _ in range(own.updates_per_round):
                if n_updates % own.target_every_updates == 0:
                    target.load_state_dict(online.state_dict())
                rows = rng.integers(step, size=own.batch)
                with torch.no_grad():
                    next_q = target(torch.from_numpy(all_next_obs[rows])).amax(1)
                    goal = torch.from_numpy(rewards[rows]) + torch.from_numpy(discounts[rows]) * next_q
                q = online(torch.from_numpy(all_obs[rows])).gather(1, torch.from_numpy(actions[rows])[:, None])[:, 0]
                adam.zero_grad()
                functional.huber_loss(q, goal).backward()
                adam.step()
                n_updates += 1
        if step % own.every == 0:
            judge.play(greedy)
    return {"env_steps": step, "updates": n_updates, "parameters": work.n_weights(online)}


if __name__ == "__main__":
    work.run_side(learn)
