"""Runs of two policies that each control an agent."""

from pathlib import Path
from typing import Any

import trainkit as tk
from tests.helpers.learning import assert_same
from tests.helpers.pairs import Corridors

BOTH = {"left": 0, "right": 1}
N_GAMES = 3


def games(agents: dict[str, int] = BOTH, n: int = N_GAMES) -> tk.Envs:
    return tk.make_envs(lambda: Corridors(agents), n, seed=5)


def dqn(envs: tk.Envs, seed: int | None = None, **options: Any) -> tk.DQNPolicy:
    own: dict[str, Any] = {
        "hidden": (8,),
        "noisy": True,
        "n_step": 2,
        "lr": [(0, 1e-3), (200, 1e-4)],
        "exploration": tk.EpsilonGreedy([(0, 1.0), (60, 0.2)]),
        "target": tk.Target(5),
        "normalize_obs": True,
        "reward": "return_scale",
        "device": "cpu",
    }
    return tk.DQNPolicy.for_envs(envs, seed=seed, **own | options)


def replay(seed: int | None = None) -> tk.PrioritizedReplayBuffer:
    return tk.PrioritizedReplayBuffer(90, beta=[(0, 0.4), (100, 1.0)], seed=seed)


def off_policy(policy: Any, envs: tk.Envs, buffer: Any, **options: Any) -> tk.OffpolicyTrainer:
    own: dict[str, Any] = {
        "max_epoch": 3,
        "step_per_epoch": 60,
        "batch_size": 8,
        "update_per_step": 0.3,
        "learning_starts": 20,
        "verbose": False,
        "show_progress": False,
        "seed": 7,
    }
    return tk.OffpolicyTrainer(policy, tk.Collector(policy, envs, buffer), **own | options)


def two_policies(
    policy_mapping: Any = None, of_each: tuple[dict[str, Any], dict[str, Any]] = ({}, {}), **options: Any
) -> tk.OffpolicyTrainer:
    """Make a trainer of two DQNs, one for each agent."""
    envs = games()
    mapping = {"left": "main", "right": "rival"} if policy_mapping is None else policy_mapping
    policy = tk.MultiAgentPolicy({"main": dqn(envs, **of_each[0]), "rival": dqn(envs, **of_each[1])}, mapping)
    buffer = tk.MultiAgentBuffer({"main": replay(), "rival": tk.ReplayBuffer(90)})
    return off_policy(policy, envs, buffer, **options)


def learned(policy: Any) -> dict[str, Any]:
    """Return a policy's state without the running returns, which are kept by the rows of all agents."""
    state = policy.training_state()
    state["statistics"].pop("running")
    return state


def state_of(trainer: Any) -> dict[str, Any]:
    return {"policy": trainer.policy.training_state(), "buffer": trainer.buffer.state_dict()}


RIVALS: dict[str, Any] = {"gamma": 0.9, "n_step": 3}


def check_that_two_policies_equal_two_single_runs(mains: dict[str, Any], rivals: dict[str, Any]) -> None:
    envs = games()
    policy = tk.MultiAgentPolicy(
        {"main": dqn(envs, seed=1, **mains), "rival": dqn(envs, seed=2, **rivals)}, {"left": "main", "right": "rival"}
    )
    together = off_policy(
        policy, envs, tk.MultiAgentBuffer({"main": replay(3), "rival": replay(4)}), step_per_epoch=120
    )
    together.run()
    for number, (name, seed, horizon) in enumerate([("main", 1, mains), ("rival", 2, rivals)]):
        own_envs = games({name: number})
        single = dqn(own_envs, seed=seed, **horizon)
        alone = off_policy(single, own_envs, replay(3 + number))
        alone.run()
        assert_same(learned(policy[name]), learned(single))
        assert_same(together.buffer[name].state_dict(), alone.buffer.state_dict())
        metrics = {tag: one for tag, one in alone.history.to_rows()[-1].items() if tag.startswith("update/")}
        for tag, value in metrics.items():
            assert together.history.to_rows()[-1][tag.replace("update/", f"update/{name}/")] == value


def check_that_an_interrupted_run_continues(options: tuple[dict[str, Any], dict[str, Any]], tmp_path: Path) -> None:
    def second_half(trainer: tk.OffpolicyTrainer) -> dict[str, Any]:
        trainer.run()
        return state_of(trainer)

    whole = two_policies(_drawn, options)
    for epoch, _, _ in whole:
        if epoch == 1:
            whole.policy.policies_to_train = ("rival",)
            whole.save(tmp_path / "checkpoint")
            break
    expected = second_half(whole)
    again = two_policies(_drawn, options, resume_from=tmp_path / "checkpoint")
    assert again.policy.policies_to_train == ("rival",)
    assert_same(second_half(again), expected)


def _drawn(agent: str, episode: Any) -> str:
    """Draw who plays whom."""
    return ["main", "rival"][(episode.rng.permuted([0, 1])[0] + (agent == "left")) % 2]
