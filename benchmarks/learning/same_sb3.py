"""Stable-Baselines3's side of learning at the same settings: its learners, and sb3-contrib's.

Runs in an environment of its own, and so imports nothing of trainkit but the numbers of the work.
"""

import numpy as np
import sb3_contrib
import stable_baselines3 as sb3
import torch
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.noise import NormalActionNoise
from stable_baselines3.common.vec_env import DummyVecEnv, VecNormalize

from benchmarks.learning import same_work as work


class Evaluations(BaseCallback):
    """Call the judge between learning and the next step, and stop when the run is over."""

    def __init__(self, judge, steps, normalize) -> None:
        super().__init__()
        self.judge, self.steps, self.normalize = judge, steps, normalize

    def _on_step(self) -> bool:
        return not self.judge.is_over

    def _on_rollout_start(self) -> None:
        if self.num_timesteps in self.steps:
            self.play()

    def _on_training_end(self) -> None:
        if not self.judge.is_over:
            self.play()

    def play(self) -> None:
        state, starts = None, None

        def act(obs):
            nonlocal state, starts
            starts = np.ones(len(obs), bool) if starts is None else np.zeros(len(obs), bool)
            action, state = self.model.predict(self.normalize(obs), state, starts, deterministic=True)
            return action

        self.judge.play(act)
        critic = getattr(self.model.policy, "critic", None)
        state = (self.model.policy if critic is None else critic).optimizer.state
        self.counts = {
            "env_steps": self.num_timesteps,
            "updates": int(next(iter(state.values()))["step"]) if state else 0,
        }


def make_model(own: work.Settings, envs, seed: int):
    """Return the learner."""
    common = {"learning_rate": own.lr, "batch_size": own.batch, "gamma": own.gamma, "seed": seed, "device": "cpu"}
    network = {"net_arch": list(own.hidden), "activation_fn": torch.nn.ReLU}
    network |= {"optimizer_class": torch.optim.Adam, "optimizer_kwargs": {"eps": own.adam_eps}}
    if own.learner in ("ppo", "recurrent_ppo"):
        learner, name, network["activation_fn"] = sb3.PPO, "MlpPolicy", torch.nn.Tanh
        if own.learner == "recurrent_ppo":
            learner, name = sb3_contrib.RecurrentPPO, "MlpLstmPolicy"
            network |= {"net_arch": [], "lstm_hidden_size": own.hidden[0]}
        return learner(
            name,
            envs,
            n_steps=own.steps_per_round // own.n_envs,
            n_epochs=own.epochs,
            gae_lambda=own.lam,
            clip_range=own.clip_ratio,
            vf_coef=own.value_weight,
            ent_coef=own.entropy_weight,
            max_grad_norm=own.max_grad_norm,
            policy_kwargs=network,
            **common,
        )
    common |= {"buffer_size": own.capacity, "learning_starts": own.learning_starts}
    common |= {"train_freq": own.steps_per_round // own.n_envs, "gradient_steps": own.updates_per_round}
    if own.learner == "td3":
        noise = NormalActionNoise(np.zeros(envs.action_space.shape[0]), np.full(envs.action_space.shape[0], 0.1))
        return sb3.TD3("MlpPolicy", envs, tau=own.tau, policy_kwargs=network, action_noise=noise, **common)
    if own.learner == "tqc":
        network |= {"n_quantiles": own.quantiles, "n_critics": 2}
        entropy = {"ent_coef": "auto_1.0", "target_entropy": -float(envs.action_space.shape[0])}
        common |= {"top_quantiles_to_drop_per_net": 2, "tau": own.tau}
        return sb3_contrib.TQC("MlpPolicy", envs, policy_kwargs=network, **entropy, **common)
    if own.learner == "sac":
        entropy = {"ent_coef": "auto_1.0", "target_entropy": -float(envs.action_space.shape[0])}
        return sb3.SAC("MlpPolicy", envs, tau=own.tau, policy_kwargs=network, **entropy, **common)
    return (sb3.DQN if own.quantiles is None else sb3_contrib.QRDQN)(
        "MlpPolicy",
        envs,
        tau=1.0,
        target_update_interval=own.target_every,
        exploration_fraction=own.epsilon_steps / own.steps,
        exploration_initial_eps=work.EPSILON[0],
        exploration_final_eps=work.EPSILON[1],
        max_grad_norm=own.max_grad_norm,
        policy_kwargs=network | ({} if own.quantiles is None else {"n_quantiles": own.quantiles}),
        **common,
    )


def learn(pairing: work.Pairing, own: work.Settings, task: str, seed: int, judge: work.Judge) -> dict[str, int]:
    """Train, have the policy evaluated, and return the counts."""
    envs = DummyVecEnv([lambda: work.make(task) for _ in range(own.n_envs)])
    is_ppo = own.learner == "ppo"
    if is_ppo:
        envs = VecNormalize(envs, clip_obs=10.0, clip_reward=10.0, gamma=own.gamma)
    model = make_model(own, envs, seed)
    evaluations = Evaluations(judge, set(own.evaluated_at[:-1]), envs.normalize_obs if is_ppo else lambda obs: obs)
    model.learn(own.steps, callback=evaluations)
    policy = model.policy
    trained = {
        "dqn": lambda: [policy.q_net],
        "qrdqn": lambda: [policy.quantile_net],
        **dict.fromkeys(("sac", "td3", "tqc"), lambda: [policy.actor, policy.critic]),
    }.get(own.learner, lambda: [policy])()
    return {**evaluations.counts, "parameters": work.n_weights(*trained)}


if __name__ == "__main__":
    work.run_side(learn, "stable-baselines3", "sb3-contrib")
