"""Names of other libraries and what trainkit calls the same thing: the table behind hints and docs/coming_from.md.

An entry lists our names, the first that fits where the name was given is suggested; a note says what to do where there
is no such option. Read from Tianshou 1.2 and 2.0, Stable-Baselines3 2.9, RLlib 2 and CleanRL 1.
"""

import difflib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Ours:
    """What trainkit calls an option of another library.

    Attributes:
        options: names of ours, such as "lr" or 'reward="return_scale"'; the first that is known is suggested.
        note: what to do where none of them is an option, as the rest of a sentence after a colon.
    """

    options: tuple[str, ...]
    note: str = ""


def _is(*options: str, note: str = "") -> Ours:
    return Ours(options, note)


_EXPLORING = "epsilon and other explorations are a part: exploration=EpsilonGreedy(...), or epsilon= of a preset"
_ENDS = "evaluations do not explore: give evaluation=Evaluation(collector, explore=True) if they shall"
_OPTIMIZER = "give lr=, or optimizer=Adam(...)"
_NETWORK = "give for_envs(envs, hidden=...), or a network of your own as the first argument"

TIANSHOU: dict[str, Ours] = {
    "advantage_normalization": _is("normalize_advantage"),
    "alpha": _is("temperature"),
    "buffer_num": _is(note="a buffer learns of the number of environments from its collector: leave it out"),
    "buffer_size": _is("capacity"),
    "clip_loss_grad": _is('value=ExpectedValue("huber")', 'loss="huber"'),
    "collection_step_num_env_steps": _is("step_per_collect"),
    "collection_step_num_episodes": _is("episode_per_collect"),
    "deterministic_eval": _is(note=_ENDS),
    "discount_factor": _is("gamma", "horizon=Horizon(gamma=...)"),
    "dual_clip": _is(note="there is no second clip; clip_ratio and target_kl limit an update"),
    "ent_coef": _is("entropy_weight", "temperature"),
    "epoch": _is("max_epoch"),
    "epoch_num_steps": _is("step_per_epoch", "update_per_epoch"),
    "eps_clip": _is("clip_ratio"),
    "eps_inference": _is(note=_ENDS),
    "eps_test": _is(note=_ENDS),
    "eps_train": _is("epsilon", "exploration=EpsilonGreedy(...)"),
    "eps_train_final": _is("epsilon=[(0, 1.0), (steps, final)]", "exploration=EpsilonGreedy.linear(...)"),
    "eps_training": _is("epsilon", "exploration=EpsilonGreedy(...)"),
    "estimation_step": _is("n_step", "horizon=Horizon(n_step=...)"),
    "exploration_noise": _is("explore", note="a collector with a buffer explores, one without does not"),
    "gae_lambda": _is("lam"),
    "hidden_sizes": _is("hidden"),
    "ignore_obs_next": _is(note="a frame is stored once, always: leave it out"),
    "is_double": _is("double", "backup=DoubleBackup()"),
    "logdir": _is("logger"),
    "lr_scheduler": _is("lr=[(0, 1e-3), (steps, 0.0)]", "optimizer=Adam([(0, 1e-3), (steps, 0.0)])"),
    "max_batchsize": _is(note="there is no such limit: leave it out"),
    "max_epochs": _is("max_epoch"),
    "model": _is(note=_NETWORK),
    "n_step_return_horizon": _is("n_step", "horizon=Horizon(n_step=...)"),
    "num_atoms": _is("atoms"),
    "num_epochs": _is("max_epoch", "repeat_per_collect"),
    "num_quantiles": _is("quantiles", "n"),
    "num_test_envs": _is("n_test_envs"),
    "num_training_envs": _is("n_envs", "n"),
    "online_sample_size": _is("quantiles", "n"),
    "optim": _is("optimizer", note=_OPTIMIZER),
    "recompute_advantage": _is(note="advantages are computed once per rollout: leave it out"),
    "resume_from_log": _is("resume_from"),
    "return_scaling": _is('reward="return_scale"', 'horizon=Horizon(reward="return_scale")'),
    "reward_normalization": _is('reward="return_scale"', 'horizon=Horizon(reward="return_scale")'),
    "sample_size": _is("acting_quantiles", "quantiles"),
    "save_only_last_obs": _is("stack", note="give make_envs(stack=4): a frame is stored once, always"),
    "size": _is("capacity"),
    "stack_num": _is("stack", note="give make_envs(stack=4), or env_options={'stack': 4} to a preset"),
    "step_per_epoch": _is("update_per_epoch"),
    "target_sample_size": _is("target_quantiles", "quantiles"),
    "target_update_freq": _is("target_every", "target=Target(every)"),
    "test_in_training": _is("test_in_train"),
    "test_num": _is("n_test_envs", "episode_per_test"),
    "test_step_num_episodes": _is("episode_per_test"),
    "total_size": _is("capacity"),
    "training_collector": _is("train_collector"),
    "training_fn": _is("train_fn"),
    "training_num": _is("n_envs", "n"),
    "update_step_num_gradient_steps_per_sample": _is("update_per_step"),
    "update_step_num_repetitions": _is("repeat_per_collect"),
    "value_clip": _is("clip_value"),
    "vf_coef": _is("value_weight"),
    "weight_norm": _is(note="importance weights are divided by the largest, always: leave it out"),
}

STABLE_BASELINES3: dict[str, Ours] = {
    "buffer_size": _is("capacity"),
    "clip_range": _is("clip_ratio"),
    "clip_range_vf": _is("clip_value"),
    "ent_coef": _is("entropy_weight", "temperature"),
    "eval_env": _is("test_env", "test_collector"),
    "eval_freq": _is("evaluation=Evaluation(collector, every=...)"),
    "exploration_final_eps": _is("epsilon=[(0, 1.0), (steps, final)]", "exploration=EpsilonGreedy.linear(...)"),
    "exploration_fraction": _is("epsilon=Linear(1.0, 0.05, share=...)", "exploration=EpsilonGreedy.linear(...)"),
    "exploration_initial_eps": _is("epsilon=[(0, initial), (steps, 0.05)]", "exploration=EpsilonGreedy.linear(...)"),
    "gae_lambda": _is("lam"),
    "gradient_steps": _is("update_per_step"),
    "learning_rate": _is("lr", "optimizer=Adam(lr)"),
    "n_envs": _is("n_envs", "n"),
    "n_epochs": _is("repeat_per_collect"),
    "n_eval_episodes": _is("episode_per_test", "n_episode"),
    "n_quantiles": _is("quantiles", "n"),
    "n_steps": _is("n_step", "step_per_collect"),
    "net_arch": _is("hidden", note=_NETWORK),
    "optimize_memory_usage": _is(note="a frame is stored once, always: leave it out"),
    "policy_kwargs": _is("hidden", note=_NETWORK),
    "target_update_interval": _is("target_every", 'target=Target(every, unit="env_steps")'),
    "tensorboard_log": _is("logger"),
    "total_timesteps": _is("max_epoch", note="the length of a run is max_epoch * step_per_epoch"),
    "train_freq": _is("step_per_collect"),
    "use_sde": _is(note="there is no state-dependent exploration: leave it out"),
    "vf_coef": _is("value_weight"),
}

RLLIB: dict[str, Ours] = {
    "clip_param": _is("clip_ratio"),
    "double_q": _is("double", "backup=DoubleBackup()"),
    "entropy_coeff": _is("entropy_weight"),
    "env_config": _is("env_kwargs", 'env_options={"env_kwargs": {...}}'),
    "evaluation_duration": _is("episode_per_test", "duration"),
    "evaluation_interval": _is("evaluation=Evaluation(collector, every=...)", "every"),
    "evaluation_num_env_runners": _is("n_test_envs"),
    "explore_config": _is("exploration", note=_EXPLORING),
    "fcnet_hiddens": _is("hidden", note=_NETWORK),
    "framework": _is(note="trainkit runs on PyTorch: leave it out"),
    "grad_clip": _is("max_grad_norm", "clip=Clip(...)"),
    "initial_alpha": _is("initial_temperature"),
    "kl_coeff": _is("target_kl", note="there is no adaptive KL penalty; target_kl of PPO ends an update early"),
    "kl_target": _is("target_kl"),
    "lambda_": _is("lam"),
    "minibatch_size": _is("batch_size"),
    "num_env_runners": _is('backend="async"', "n_envs", "n"),
    "num_envs_per_env_runner": _is("n_envs", "n"),
    "num_epochs": _is("max_epoch", "repeat_per_collect"),
    "num_gpus": _is('device="cuda"'),
    "num_steps_sampled_before_learning_starts": _is("learning_starts"),
    "num_workers": _is('backend="async"', "n_envs", "n"),
    "replay_buffer_config": _is(
        "prioritized", "capacity", note="a buffer is a part: Collector(policy, envs, ReplayBuffer(...))"
    ),
    "rollout_fragment_length": _is("step_per_collect"),
    "sgd_minibatch_size": _is("batch_size"),
    "target_network_update_freq": _is("target_every", 'target=Target(every, unit="env_steps")'),
    "td_error_loss_fn": _is('value=ExpectedValue("huber")', 'loss="huber"'),
    "train_batch_size": _is("batch_size"),
    "train_batch_size_per_learner": _is("batch_size"),
    "use_critic": _is(note="there is a critic in PPO and A2C, and none in REINFORCE: choose the algorithm"),
    "use_gae": _is("lam", note="advantages are generalized ones, always; lam=1 are returns less the value"),
    "vf_clip_param": _is("clip_value"),
    "vf_loss_coeff": _is("value_weight"),
}

CLEANRL: dict[str, Ours] = {
    "anneal_lr": _is("lr=Linear(2.5e-4, 0.0)", "lr=[(0, 2.5e-4), (steps, 0.0)]"),
    "buffer_size": _is("capacity"),
    "clip_coef": _is("clip_ratio"),
    "clip_vloss": _is("clip_value"),
    "cuda": _is('device="cuda"'),
    "end_e": _is("epsilon=[(0, 1.0), (steps, end)]", "exploration=EpsilonGreedy.linear(...)"),
    "ent_coef": _is("entropy_weight"),
    "env_id": _is("env"),
    "exploration_fraction": _is("epsilon=Linear(1.0, 0.05, share=...)", "exploration=EpsilonGreedy.linear(...)"),
    "exp_name": _is("logger"),
    "gae_lambda": _is("lam"),
    "learning_rate": _is("lr", "optimizer=Adam(lr)"),
    "norm_adv": _is("normalize_advantage"),
    "num_envs": _is("n_envs", "n"),
    "num_minibatches": _is("batch_size", note="give batch_size=, the rows of one batch"),
    "num_steps": _is("step_per_collect"),
    "start_e": _is("epsilon=[(0, start), (steps, 0.05)]", "exploration=EpsilonGreedy.linear(...)"),
    "target_network_frequency": _is("target_every", 'target=Target(every, unit="env_steps")'),
    "torch_deterministic": _is(note="one seed gives the same bits: leave it out"),
    "total_timesteps": _is("max_epoch", note="the length of a run is max_epoch * step_per_epoch"),
    "track": _is("logger"),
    "train_frequency": _is("update_per_step", "step_per_collect"),
    "update_epochs": _is("repeat_per_collect"),
    "vf_coef": _is("value_weight"),
}

LIBRARIES: dict[str, dict[str, Ours]] = {
    "Tianshou": TIANSHOU,
    "Stable-Baselines3": STABLE_BASELINES3,
    "RLlib": RLLIB,
    "CleanRL": CLEANRL,
}

# Events of callbacks in Stable-Baselines3, RLlib, Keras and Lightning, without a leading underscore: ours.
EVENTS_ELSEWHERE: dict[str, str] = {
    "on_step": "on_episode_step",
    "on_rollout_start": "on_collect_start",
    "on_rollout_end": "on_collect_end",
    "on_training_start": "on_train_start",
    "on_training_end": "on_train_end",
    "on_train_begin": "on_train_start",
    "on_algorithm_init": "on_train_start",
    "on_train_result": "on_epoch_end",
    "on_train_epoch_end": "on_epoch_end",
    "on_sample_end": "on_collect_end",
    "on_learn_on_batch": "on_train_batch",
    "on_batch_end": "on_update_end",
    "on_train_batch_end": "on_update_end",
    "on_environment_created": "on_env_created",
    "on_episode_begin": "on_episode_start",
    "on_test_end": "on_evaluate_end",
    "on_validation_end": "on_evaluate_end",
    "on_save_checkpoint": "on_checkpoint_saved",
    "on_load_checkpoint": "on_checkpoint_loaded",
}

# Classes and functions of Tianshou, Stable-Baselines3, RLlib and CleanRL: the attribute of `trainkit` to use instead.
CLASSES_ELSEWHERE: dict[str, str] = {
    "A2C": "A2CPolicy",
    "Actor": "nets.ActorNetwork",
    "ActorProb": "nets.ActorCriticNetwork",
    "AsyncVectorEnv": "make_envs",
    "BC": "BCPolicy",
    "BCConfig": "presets.bc",
    "BaseCallback": "Callback",
    "BasePolicy": "Policy",
    "Batch": "TransitionBatch",
    "C51": "presets.c51",
    "C51Policy": "presets.c51",
    "CQL": "presets.cql",
    "CQLConfig": "presets.cql",
    "CheckpointCallback": "Checkpoint",
    "Critic": "nets.CriticNetwork",
    "DQN": "DQNPolicy",
    "DQNConfig": "presets.dqn",
    "DefaultCallbacks": "Callback",
    "DictReplayBuffer": "ReplayBuffer",
    "DictRolloutBuffer": "RolloutBuffer",
    "DiscreteBCQ": "DiscreteBCQPolicy",
    "DiscreteCQL": "presets.cql",
    "DiscreteCQLPolicy": "presets.cql",
    "DiscreteSACPolicy": "SACPolicy",
    "DummyVecEnv": "make_envs",
    "DummyVectorEnv": "make_envs",
    "EpisodeReplayBuffer": "ReplayBuffer",
    "EvalCallback": "Evaluation",
    "IQN": "presets.iqn",
    "IQNPolicy": "presets.iqn",
    "ImitationPolicy": "BCPolicy",
    "MaskablePPO": "PPOPolicy",
    "Net": "nets.MLP",
    "OffPolicyTrainer": "OffpolicyTrainer",
    "OnPolicyTrainer": "OnpolicyTrainer",
    "PGPolicy": "ReinforcePolicy",
    "PPO": "PPOPolicy",
    "PPOConfig": "presets.ppo",
    "PrioritizedEpisodeReplayBuffer": "PrioritizedReplayBuffer",
    "PrioritizedVectorReplayBuffer": "PrioritizedReplayBuffer",
    "QRDQN": "presets.qrdqn",
    "QRDQNPolicy": "presets.qrdqn",
    "RLlibCallback": "Callback",
    "RainbowDQN": "presets.rainbow",
    "RainbowPolicy": "presets.rainbow",
    "RayVectorEnv": "make_envs",
    "Reinforce": "ReinforcePolicy",
    "ReplayBufferManager": "ReplayBuffer",
    "SAC": "SACPolicy",
    "SACConfig": "presets.sac",
    "ShmemVectorEnv": "make_envs",
    "StopTrainingOnRewardThreshold": "callbacks.StopAt",
    "SubprocVecEnv": "make_envs",
    "SubprocVectorEnv": "make_envs",
    "SyncVectorEnv": "make_envs",
    "VecNormalize": "nets.Preprocess",
    "VectorEnvNormObs": "nets.Preprocess",
    "VectorReplayBuffer": "ReplayBuffer",
    "evaluate_policy": "evaluate",
    "linear_schedule": "Linear",
    "make_env": "make_envs",
    "make_vec_env": "make_envs",
    "offline_trainer": "OfflineTrainer",
    "offpolicy_trainer": "OffpolicyTrainer",
    "onpolicy_trainer": "OnpolicyTrainer",
}

# Words that several of them, or none, use for an option of ours, and our own former ones.
_SYNONYMS: dict[str, Ours] = {
    "compile": _is('engine="compile"'),
    "cuda_graph": _is('engine="cuda_graph"'),
    "cudagraphs": _is('engine="cuda_graph"'),
    "torch_compile": _is('engine="compile"'),
    "learning_rates": _is("lr"),
    "normalize_reward": _is('reward="return_scale"', 'horizon=Horizon(reward="return_scale")'),
    "env_kwargs": _is('env_options={"env_kwargs": {...}}'),
}


def translate(name: str, known: Iterable[str], takers: Mapping[str, Sequence[str]] | None = None) -> str:
    """Return the hint for an option that has another name here, as the end of a message; "" for a name not listed.

    Args:
        name: the unknown option.
        known: options where it was given.
        takers: {option: calls that take it}, to say where it belongs if none of its names is known.
    """
    entries = [table[name] for table in (_SYNONYMS, *LIBRARIES.values()) if name in table]
    options = list(known)
    for ours in (own for entry in entries for own in entry.options):
        if ours.partition("=")[0] in options:
            return f", did you mean {repr(ours) if ours.isidentifier() else ours}?"
    notes = [entry.note for entry in entries if entry.note]
    if notes:
        return f": {notes[0]}"
    if not entries:
        return ""
    hint = f": trainkit calls it {' or '.join(entries[0].options)}"
    where = [*dict.fromkeys((takers or {}).get(entries[0].options[0].partition("=")[0], ()))]
    return f"{hint}, an option of {', '.join(where[:3])}" if where else hint


def suggest(name: str, known: Iterable[str]) -> str:
    """Return the hint for a misspelled option, read as one of `known` or as a name of another library; "" for none."""
    options = list(known)
    foreign = {theirs for table in (_SYNONYMS, *LIBRARIES.values()) for theirs in table} - {*options}
    best = nearest_word(name, [*options, *sorted(foreign)])
    if best in foreign and similarity(name, best) >= _TYPO:
        return translate(best, options)
    best = nearest_word(name, options)
    return "" if best is None else f", did you mean {best!r}?"


def class_hint(name: str, known: Mapping[str, str]) -> str:
    """Return the hint for a class or function that `trainkit` does not have, as the end of a message; "" for none.

    Args:
        name: the unknown attribute.
        known: {name: attribute of `trainkit`}, such as {"MLP": "nets.MLP"}.
    """
    attributes = {**known, **CLASSES_ELSEWHERE}
    meant = name if name in attributes else nearest_word(name, attributes)
    return "" if meant is None else f", did you mean tk.{attributes[meant]}?"


_TYPO = 0.85  # similarity of a name and its misspelling
_CLOSE = 0.6


def nearest_word(word: str, words: Iterable[str]) -> str | None:
    """Return the most similar of some words, None where none is similar."""
    scored = [(similarity(word, own), own) for own in words]
    score, best = max(scored, key=lambda pair: pair[0], default=(0.0, ""))
    return best if score >= _CLOSE else None


def similarity(a: str, b: str) -> float:
    """Return how similar two names are, in [0, 1]: the mean of their letters' and their parts' similarity."""
    letters = difflib.SequenceMatcher(None, a.lower(), b.lower()).ratio()
    if letters < 0.3:
        return 0.0
    mine, theirs = _parts(a), _parts(b)
    if len(mine) <= 1 and len(theirs) <= 1:
        return letters
    pairs = sorted(
        ((difflib.SequenceMatcher(None, x, y).ratio(), i, j) for i, x in enumerate(mine) for j, y in enumerate(theirs)),
        reverse=True,
    )
    shared, used_i, used_j = 0.0, set[int](), set[int]()
    for ratio, i, j in pairs:
        if ratio >= 0.7 and i not in used_i and j not in used_j:
            shared += ratio
            used_i.add(i)
            used_j.add(j)
    return (letters + 2 * shared / (len(mine) + len(theirs))) / 2


def _parts(name: str) -> list[str]:
    return [part for part in name.lower().replace("/", "_").replace("-", "_").split("_") if part]


def mentioned(table: Mapping[str, Ours]) -> list[tuple[str, str]]:
    """Return the rows of a library's table in the docs: the name there, and what it is here."""
    rows = []
    for theirs, entry in sorted(table.items()):
        ours = ", ".join(f"`{own}`" for own in entry.options)
        rows.append((f"`{theirs}`", "; ".join(filter(None, (ours, entry.note)))))
    return rows
