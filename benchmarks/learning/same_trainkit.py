"""Our side of learning at the same settings: public parts, composed by hand."""

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

import trainkit as tk
from benchmarks.learning import same_work as work

QUIET: dict[str, Any] = {"verbose": False, "show_progress": False}


@dataclass(frozen=True, slots=True)
class OneCoin(tk.EpsilonGreedy):
    """One random number per vector step: below epsilon all environments act at random, else none does."""

    def choose(self, q: Any, mask: Any, *, step: int, rng: Any, **others: Any) -> Any:
        """Return actions [N]."""
        if rng.random() < float(self.epsilon(step)):
            return rng.integers(q.shape[1], size=len(q))
        return q.argmax(axis=1)


def q_learner(pairing: work.Pairing, own: work.Settings, envs: tk.Envs) -> tk.DQNPolicy:
    """Return DQN or QR-DQN."""
    is_in_updates = pairing.target_unit == "updates"
    return tk.DQNPolicy.for_envs(
        envs,
        hidden=own.hidden,
        value=tk.ExpectedValue("huber") if own.quantiles is None else tk.QuantileValue(own.quantiles),
        n_step=1,
        gamma=own.gamma,
        double=False,
        optimizer=tk.Adam(own.lr, eps=own.adam_eps),
        max_grad_norm=own.max_grad_norm,
        exploration=(OneCoin if pairing.has_one_coin else tk.EpsilonGreedy).linear(*work.EPSILON, own.epsilon_steps),
        target=tk.Target(own.target_every_updates, "updates") if is_in_updates else tk.Target(own.target_every),
        device="cpu",
    )


def actor_critic(own: work.Settings, envs: tk.Envs) -> tk.ActorCriticPolicy:
    """Return SAC, TD3 or TQC."""
    assert own.tau is not None, "of all three"
    common: dict[str, Any] = {"hidden": own.hidden, "gamma": own.gamma, "tau": own.tau, "device": "cpu"}
    common["optimizer"] = tk.Adam(own.lr, eps=own.adam_eps)
    delayed = tk.Target(2, unit="updates", tau=own.tau)
    entropy: dict[str, Any] = {"initial_temperature": 1.0, "target_entropy": -float(envs.action_space.shape[0])}
    parts: dict[str, dict[str, Any]] = {
        "sac": entropy,
        "td3": {
            "distribution": tk.policy.Deterministic(0.1, target_noise_std=0.2, target_noise_clip=0.5),
            "value": tk.ExpectedValue("mse"),
            "actor_reduction": tk.policy.FirstCritic(),
            "temperature": None,
            "actor_every": 2,
            "target": delayed,
            "actor_target": delayed,
        },
        "tqc": {
            "value": tk.QuantileValue(own.quantiles or 1, reduction="mean"),
            "reduction": tk.policy.TruncatedQuantiles(2),
            "actor_reduction": tk.policy.MeanOfCritics(),
            **entropy,
        },
    }
    return tk.ActorCriticPolicy.for_envs(envs, **common, **parts[own.learner])


def ppo(own: work.Settings, envs: tk.Envs) -> tk.PPOPolicy:
    """Return PPO: of MuJoCo with normalized observations and rewards, with an LSTM, or of games."""
    is_game = own.learner in ("mappo", "ippo")
    parts: dict[str, Any] = {"hidden": own.hidden}
    if own.learner == "recurrent_ppo":
        (size,) = own.hidden
        parts = {"hidden": (), "recurrent": functools.partial(tk.nets.LSTM, n_features=size)}
        parts["sequences"] = tk.Sequences(own.steps_per_round // own.n_envs, 0)
    elif own.learner == "ppo":
        parts |= {"normalize_obs": True, "reward": "return_scale"}
    elif own.learner == "mappo":
        parts["critic_only"] = ["state"]
    return tk.PPOPolicy.for_envs(
        envs,
        gamma=own.gamma,
        lam=own.lam,
        clip_ratio=own.clip_ratio,
        value_weight=own.value_weight,
        entropy_weight=own.entropy_weight,
        normalize_advantage=not is_game,
        lr=own.lr,
        adam_eps=own.adam_eps,
        max_grad_norm=own.max_grad_norm,
        device="cpu",
        **parts,
    )


def make_trainer(pairing: work.Pairing, own: work.Settings, task: str, seed: int) -> Any:
    """Return the trainer; an epoch ends where an evaluation is due, of PPO it is a rollout."""
    is_game = task == "simple_spread"
    wrappers = [tk.envs.ObserveState] if own.learner == "mappo" else []
    make = work.make_game if is_game else functools.partial(work.make, task)
    envs = tk.make_envs(make, own.n_envs, wrappers=wrappers)
    common: dict[str, Any] = {"step_per_collect": own.steps_per_round, "batch_size": own.batch, "seed": seed, **QUIET}
    if own.epochs is not None:
        n_agents = work.N_AGENTS if is_game else 1  # rows are of agents
        common |= {name: n_agents * common[name] for name in ("step_per_collect", "batch_size")}
        common |= {"max_epoch": own.steps // own.steps_per_round, "step_per_epoch": common["step_per_collect"]}
        policy: Any = ppo(own, envs)
        train = tk.Collector(policy, envs, tk.RolloutBuffer())
        return tk.OnpolicyTrainer(policy, train, repeat_per_collect=own.epochs, **common)
    is_continuous = own.learner in ("sac", "td3", "tqc")
    policy = actor_critic(own, envs) if is_continuous else q_learner(pairing, own, envs)
    return tk.OffpolicyTrainer(
        policy,
        tk.Collector(policy, envs, tk.ReplayBuffer(own.capacity)),
        max_epoch=own.steps // own.every,
        step_per_epoch=own.every,
        update_per_step=own.updates_per_round / own.steps_per_round,
        learning_starts=own.learning_starts,
        warmup="random",
        **common,
    )


def acting(policy: Any, learner: str) -> Callable[[Any], Any]:
    """Return what the judge plays by: greedy actions, with a memory that starts empty, or of all agents of games."""
    if learner == "recurrent_ppo":
        state = None

        def act(obs: Any) -> Any:
            nonlocal state
            action, state = policy.predict(obs, state=state)
            return action

        return act
    if learner in ("mappo", "ippo"):

        def act_for_agents(obs: Any) -> Any:
            rows = obs.reshape(-1, obs.shape[-1])
            unseen = np.zeros((len(rows), work.N_STATE), np.float32)  # by the actor
            seen = {"obs": rows, "state": unseen} if learner == "mappo" else rows
            return policy.predict(seen).reshape(-1, work.N_AGENTS)

        return act_for_agents
    predict: Callable[[Any], Any] = policy.predict
    return predict


def learn(pairing: work.Pairing, own: work.Settings, task: str, seed: int, judge: work.Judge) -> dict[str, int]:
    """Train, have the policy evaluated, and return the counts."""
    trainer = make_trainer(pairing, own, task, seed)
    policy, steps = trainer.policy, set(own.evaluated_at)
    n_agents = work.N_AGENTS if task == "simple_spread" else 1
    for _ in trainer:
        if trainer.env_step // n_agents in steps:
            judge.play(acting(policy, own.learner))
        if judge.is_over:
            break
    trained = [policy.actor, policy.critics] if own.learner in ("sac", "td3", "tqc") else [policy]
    trained = [policy.network] if own.learner in ("dqn", "qrdqn") else trained
    counts = {"env_steps": trainer.env_step // n_agents, "updates": trainer.gradient_step}
    return {**counts, "parameters": work.n_weights(*trained)}


if __name__ == "__main__":
    work.run_side(learn, "trainkit-rl")
