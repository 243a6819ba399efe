"""After rllib/examples/multi_agent/rock_paper_scissors_heuristic_vs_learned.py of ray 2.60.0; 4 iterations for 50."""

from pathlib import Path
from typing import Any

import numpy as np

import trainkit as tk


def always_same(obs: Any) -> Any:
    """Play rock, always."""
    return np.zeros(len(obs), np.int64)


def beat_last(obs: Any) -> Any:
    """Beat the opponent's last move; 3 is the observation before the first."""
    return np.where(obs == 3, 0, (obs + 1) % 3).astype(np.int64)


def main(folder: Path) -> tk.trainer.RunInfo:
    envs = tk.make_envs("pettingzoo/classic/rps_v2", 4)
    learned = tk.PPOPolicy.for_envs(
        envs, hidden=[256, 256], activation="tanh", shared=True, value_weight=0.005, lr=1e-3, gamma=0.9
    )
    spaces: dict[str, Any] = {"observation_space": envs.observation_space, "action_space": envs.action_space}
    policies = {
        "always_same": tk.policy.ScriptedPolicy(always_same, **spaces),
        "beat_last": tk.policy.ScriptedPolicy(beat_last, **spaces),
        "learned": learned,
    }

    def mapping(aid: str, episode: tk.policy.GameEpisode) -> str:
        return "learned" if aid == "player_0" else str(episode.rng.choice(["always_same", "beat_last"]))

    policy = tk.MultiAgentPolicy(policies, policy_mapping=mapping, policies_to_train=["learned"])
    train = tk.Collector(policy, envs, tk.MultiAgentBuffer({"learned": tk.RolloutBuffer()}))
    trainer = tk.OnpolicyTrainer(
        policy,
        train,
        max_epoch=4,
        max_env_step=200_000,
        step_per_epoch=2_000,
        step_per_collect=1_000,
        repeat_per_collect=10,
        batch_size=128,
        seed=0,
        logger=folder / "ppo",
    )
    returns = []
    for _, stats, _ in trainer:
        returns.append(stats.train.policies["learned"].returns.mean)
        if returns[-1] is not None and returns[-1] >= 6.0:
            trainer.stop("stop_reward")
    assert max(value for value in returns if value is not None) > 0.5  # of random moves about 0
    return trainer.info
