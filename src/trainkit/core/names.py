"""Names of other libraries and what trainkit calls the same thing: the table behind hints and docs/migration.md.

An entry lists our names, the first that fits where the name was given is suggested; a note says what to do where there
is no such option. Read from Tianshou 1.2 and 2.0, Stable-Baselines3 2.9, RLlib 2 and CleanRL 1.
"""

import difflib
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Ours:
    """trainkit's equivalent of an option of another library.

    Attributes:
        options: names of ours, such as "lr" or 'reward="return_scale"'; the first that is known is suggested.
        note: what to do where none of them is an option, as the rest of a sentence after a colon.
        libraries: initials of those that have the option (see `LIBRARIES`); "" for words that users try.
    """

    options: tuple[str, ...]
    note: str
    libraries: str


def _is(libraries: str, *options: str, note: str = "") -> Ours:
    return Ours(options, note, libraries)


_EXPLORING = "epsilon and other explorations are a part: exploration=EpsilonGreedy(...), or epsilon= of a preset"
_EPSILON_OF_EVALUATION = "evaluations are greedy, or explore by evaluation=Evaluation(exploration=EpsilonGreedy(0.05))"
_ENDS = "evaluations do not explore: give evaluation=Evaluation(explore=True) if they shall"
_OPTIMIZER = "give lr=, or optimizer=Adam(...) or a class such as torch.optim.AdamW"
_NETWORK = "give for_envs(envs, hidden=..., encoder=...), or a network of your own as the first argument"

OPTIONS_ELSEWHERE: dict[str, Ours] = {
    "activation_fn": _is("S", "activation"),
    "action_noise": _is("S", "exploration=ColoredNoise()"),
    "advantage_normalization": _is("T", "normalize_advantage"),
    "alpha": _is("T", "temperature"),
    "anneal_lr": _is("C", "lr=Linear(2.5e-4, 0.0)", "lr=[(0, 2.5e-4), (steps, 0.0)]"),
    "buffer_num": _is("T", note="a buffer learns of the number of environments from its collector: leave it out"),
    "buffer_size": _is("TSC", "capacity", note="it is the capacity of ReplayBuffer(capacity)"),
    "clip_coef": _is("C", "clip_ratio"),
    "clip_loss_grad": _is("T", 'value=ExpectedValue("huber")', 'loss="huber"'),
    "clip_param": _is("R", "clip_ratio"),
    "clip_range": _is("S", "clip_ratio"),
    "clip_range_vf": _is("S", "clip_value"),
    "clip_vloss": _is("C", "clip_value"),
    "collection_step_num_env_steps": _is("T", "step_per_collect"),
    "collection_step_num_episodes": _is("T", "episode_per_collect"),
    "compile": _is("", 'engine="compile"'),
    "cuda": _is("C", 'device="cuda"'),
    "cuda_graph": _is("", 'engine="cuda_graph"'),
    "cudagraphs": _is("", 'engine="cuda_graph"'),
    "deterministic": _is("S", note="actions are greedy unless explore=True: leave it out"),
    "deterministic_eval": _is("T", note=_ENDS),
    "discount_factor": _is("T", "gamma", "horizon=Horizon(gamma=...)"),
    "double_q": _is("R", "double", "backup=DoubleBackup()"),
    "dual_clip": _is("T", note="there is no second clip; clip_ratio and target_kl limit an update"),
    "end_e": _is("C", "epsilon=[(0, 1.0), (steps, end)]", "exploration=EpsilonGreedy.linear(...)"),
    "ent_coef": _is("TSC", "entropy_weight", "temperature"),
    "entropy_coeff": _is("R", "entropy_weight"),
    "env_config": _is("R", "env_kwargs", 'env_options={"env_kwargs": {...}}'),
    "env_id": _is("C", "env"),
    "env_kwargs": _is("", 'env_options={"env_kwargs": {...}}'),
    "epoch": _is("T", "max_epoch"),
    "epoch_num_steps": _is("T", "step_per_epoch", "update_per_epoch"),
    "eps_clip": _is("T", "clip_ratio"),
    "eps_inference": _is("T", note=_EPSILON_OF_EVALUATION),
    "eps_test": _is("T", note=_EPSILON_OF_EVALUATION),
    "eps_train": _is("T", "epsilon", "exploration=EpsilonGreedy(...)"),
    "eps_train_final": _is("T", "epsilon=[(0, 1.0), (steps, final)]", "exploration=EpsilonGreedy.linear(...)"),
    "eps_training": _is("T", "epsilon", "exploration=EpsilonGreedy(...)"),
    "estimation_step": _is("T", "n_step", "horizon=Horizon(n_step=...)"),
    "eval_env": _is("S", "test_env", "test_collector"),
    "eval_freq": _is("S", "evaluation=Evaluation(collector, every=...)"),
    "evaluation_duration": _is("R", "episode_per_test", "duration"),
    "evaluation_interval": _is("R", "evaluation=Evaluation(collector, every=...)", "every"),
    "evaluation_num_env_runners": _is("R", "n_test_envs"),
    "exp_name": _is("C", "logger"),
    "exploration_final_eps": _is("S", "epsilon=[(0, 1.0), (steps, final)]", "exploration=EpsilonGreedy.linear(...)"),
    "exploration_fraction": _is("SC", "epsilon=Linear(1.0, 0.05, share=...)", "exploration=EpsilonGreedy.linear(...)"),
    "exploration_initial_eps": _is(
        "S", "epsilon=[(0, initial), (steps, 0.05)]", "exploration=EpsilonGreedy.linear(...)"
    ),
    "exploration_noise": _is(
        "T", "explore", "exploration=ColoredNoise()", note="a collector with a buffer explores, one without does not"
    ),
    "explore_config": _is("R", "exploration", note=_EXPLORING),
    "fcnet_activation": _is("R", "activation"),
    "fcnet_hiddens": _is("R", "hidden", note=_NETWORK),
    "features_extractor_class": _is("S", "encoder"),
    "framework": _is("R", note="trainkit runs on PyTorch: leave it out"),
    "gae_lambda": _is("TSC", "lam"),
    "grad_clip": _is("R", "max_grad_norm", "clip=Clip(...)"),
    "gradient_steps": _is("S", "update_per_step"),
    "hidden_sizes": _is("T", "hidden"),
    "ignore_obs_next": _is("T", note="a frame is stored once, always: leave it out"),
    "initial_alpha": _is("R", "initial_temperature"),
    "is_double": _is("T", "double", "backup=DoubleBackup()"),
    "kl_coeff": _is("R", "target_kl", note="there is no adaptive KL penalty; target_kl of PPO ends an update early"),
    "kl_target": _is("R", "target_kl"),
    "lambda_": _is("R", "lam"),
    "learning_rate": _is("SC", "lr", "optimizer=Adam(lr)"),
    "learning_rates": _is("", "lr"),
    "logdir": _is("T", "logger"),
    "lr_scheduler": _is(
        "T", "lr=lambda optimizer: CosineAnnealingLR(optimizer, steps)", "optimizer=TorchOptimizer(factory, lr)"
    ),
    "max_batchsize": _is("T", note="there is no such limit: leave it out"),
    "max_grad_norm": _is("", "clip=Clip(...)"),
    "max_epochs": _is("T", "max_epoch"),
    "minibatch_size": _is("R", "batch_size"),
    "model": _is("T", note=_NETWORK),
    "n_envs": _is("S", "n_envs", "n"),
    "n_epochs": _is("S", "repeat_per_collect"),
    "n_eval_episodes": _is("S", "episode_per_test", "n_episode"),
    "n_quantiles": _is("S", "quantiles", "n"),
    "n_step_return_horizon": _is("T", "n_step", "horizon=Horizon(n_step=...)"),
    "n_steps": _is("S", "n_step", "step_per_collect"),
    "net_arch": _is("S", "hidden", note=_NETWORK),
    "norm_adv": _is("C", "normalize_advantage"),
    "norm_layer": _is("T", "norm"),
    "normalize_reward": _is("", 'reward="return_scale"', 'horizon=Horizon(reward="return_scale")'),
    "num_atoms": _is("T", "atoms"),
    "num_env_runners": _is("R", "actors", 'backend="process"', "n_envs", "n"),
    "num_envs": _is("C", "n_envs", "n"),
    "num_envs_per_env_runner": _is("R", "n_envs", "n"),
    "num_epochs": _is("TR", "max_epoch", "repeat_per_collect"),
    "num_gpus": _is("R", 'device="cuda"'),
    "num_minibatches": _is("C", "batch_size", note="give batch_size=, the rows of one batch"),
    "num_quantiles": _is("T", "quantiles", "n"),
    "num_steps": _is("C", "step_per_collect"),
    "num_steps_sampled_before_learning_starts": _is("R", "learning_starts"),
    "num_test_envs": _is("T", "n_test_envs"),
    "num_training_envs": _is("T", "n_envs", "n"),
    "num_workers": _is("R", "actors", 'backend="process"', "n_envs", "n"),
    "online_sample_size": _is("T", "quantiles", "n"),
    "optim": _is("T", "optimizer", note=_OPTIMIZER),
    "optimizer_class": _is("S", "optimizer", note=_OPTIMIZER),
    "optimize_memory_usage": _is("S", note="a frame is stored once, always: leave it out"),
    "policy_kwargs": _is("S", "hidden", note=_NETWORK),
    "recompute_advantage": _is("T", note="advantages are computed once per rollout: leave it out"),
    "replay_buffer_config": _is(
        "R", "prioritized", "capacity", note="a buffer is a part: Collector(policy, envs, ReplayBuffer(...))"
    ),
    "resume_from_log": _is("T", "resume_from"),
    "return_scaling": _is("T", 'reward="return_scale"', 'horizon=Horizon(reward="return_scale")'),
    "reward_normalization": _is("T", 'reward="return_scale"', 'horizon=Horizon(reward="return_scale")'),
    "reward_scale": _is("", "reward=0.1", "horizon=Horizon(reward=0.1)"),
    "rollout_fragment_length": _is("R", "step_per_collect"),
    "sample_size": _is("T", "acting_quantiles", "quantiles"),
    "save_only_last_obs": _is("T", "stack", note="give make_envs(stack=4): a frame is stored once, always"),
    "sgd_minibatch_size": _is("R", "batch_size"),
    "size": _is("T", "capacity"),
    "stack_num": _is("T", "stack", note="give make_envs(stack=4), or env_options={'stack': 4} to a preset"),
    "start_e": _is("C", "epsilon=[(0, start), (steps, 0.05)]", "exploration=EpsilonGreedy.linear(...)"),
    "step_per_epoch": _is("T", "update_per_epoch"),
    "target_network_frequency": _is("C", "target_every", 'target=Target(every, unit="env_steps")'),
    "target_network_update_freq": _is("R", "target_every", 'target=Target(every, unit="env_steps")'),
    "target_sample_size": _is("T", "target_quantiles", "quantiles"),
    "target_update_freq": _is("T", 'target=Target(every, unit="updates")', "target_every"),
    "target_update_interval": _is("S", "target_every", 'target=Target(every, unit="env_steps")'),
    "td_error_loss_fn": _is("R", 'value=ExpectedValue("huber")', 'loss="huber"'),
    "tensorboard_log": _is("S", "logger", note="give the trainer logger=folder"),
    "test_in_training": _is("T", "test_in_train"),
    "test_num": _is("T", "n_test_envs", "episode_per_test"),
    "test_step_num_episodes": _is("T", "episode_per_test"),
    "torch_compile": _is("", 'engine="compile"'),
    "torch_deterministic": _is("C", note="one seed gives the same bits: leave it out"),
    "total_size": _is("T", "capacity"),
    "total_timesteps": _is(
        "SC",
        "max_epoch=total_timesteps // step_per_epoch",
        note="the length of a run is max_epoch * step_per_epoch",
    ),
    "track": _is("C", "logger"),
    "train_batch_size": _is("R", "batch_size"),
    "train_batch_size_per_learner": _is("R", "batch_size"),
    "train_freq": _is("S", "step_per_collect"),
    "train_frequency": _is("C", "update_per_step=1 / train_frequency", "step_per_collect"),
    "training_collector": _is("T", "train_collector"),
    "training_fn": _is("T", "train_fn"),
    "training_num": _is("T", "n_envs", "n"),
    "update_epochs": _is("C", "repeat_per_collect"),
    "update_step_num_gradient_steps_per_sample": _is("T", "update_per_step"),
    "update_step_num_repetitions": _is("T", "repeat_per_collect"),
    "use_critic": _is("R", note="there is a critic in PPO and A2C, and none in REINFORCE: choose the algorithm"),
    "use_gae": _is("R", "lam", note="advantages are generalized ones, always; lam=1 are returns less the value"),
    "use_sde": _is("S", "exploration=ColoredNoise()", note="there is no gSDE; this noise is correlated in time, too"),
    "value_clip": _is("T", "clip_value"),
    "vf_clip_param": _is("R", "clip_value"),
    "vf_coef": _is("TSC", "value_weight"),
    "vf_loss_coeff": _is("R", "value_weight"),
    "weight_norm": _is("T", note="importance weights are divided by the largest, always: leave it out"),
}

LIBRARIES: dict[str, dict[str, Ours]] = {
    library: {name: ours for name, ours in OPTIONS_ELSEWHERE.items() if library[0] in ours.libraries}
    for library in ("Tianshou", "Stable-Baselines3", "RLlib", "CleanRL")
}


def _by_theirs(table: Mapping[str, str]) -> dict[str, str]:
    return {theirs: ours for ours, names in table.items() for theirs in names.split()}


# Events of callbacks in Stable-Baselines3, RLlib, Keras and Lightning, without a leading underscore, after ours.
EVENTS_ELSEWHERE = _by_theirs(
    {
        "on_checkpoint_loaded": "on_load_checkpoint",
        "on_checkpoint_saved": "on_save_checkpoint",
        "on_collect_end": "on_rollout_end on_sample_end",
        "on_collect_start": "on_rollout_start",
        "on_env_created": "on_environment_created",
        "on_episode_start": "on_episode_begin",
        "on_episode_step": "on_step",
        "on_epoch_end": "on_train_result on_train_epoch_end",
        "on_evaluate_end": "on_test_end on_validation_end",
        "on_policy_added": "on_create_policy",
        "on_train_batch": "on_learn_on_batch",
        "on_train_end": "on_training_end",
        "on_train_start": "on_training_start on_train_begin on_algorithm_init",
        "on_update_end": "on_batch_end on_train_batch_end",
    }
)

# Attributes of other libraries' trainers and algorithms, after ours.
ATTRIBUTES_ELSEWHERE = _by_theirs(
    {
        "env_step": "num_timesteps",
        "evaluate": "evaluate_policy test",
        "history": "losses rewards",
        "policy": "agent model predict",
        "run": "fit learn train",
    }
)

# Classes and functions of Tianshou, Stable-Baselines3, RLlib and CleanRL, after the attribute of `trainkit` to use.
CLASSES_ELSEWHERE = _by_theirs(
    {
        "A2CPolicy": "A2C",
        "BCPolicy": "BC ImitationPolicy",
        "Callback": "BaseCallback DefaultCallbacks RLlibCallback",
        "callbacks.StopAt": "StopTrainingOnRewardThreshold",
        "Checkpoint": "CheckpointCallback",
        "ColoredNoise": "GaussianNoise NormalActionNoise OUNoise OrnsteinUhlenbeckActionNoise VectorizedActionNoise",
        "DiscreteBCQPolicy": "DiscreteBCQ",
        "DQNPolicy": "DQN",
        "evaluate": "evaluate_policy",
        "Evaluation": "EvalCallback",
        "Linear": "linear_schedule",
        "make_envs": (
            "AsyncVectorEnv DummyVecEnv DummyVectorEnv RayVectorEnv ShmemVectorEnv SubprocVecEnv SubprocVectorEnv "
            "SyncVectorEnv make_env make_vec_env"
        ),
        "nets.ActorCriticNetwork": "ActorProb",
        "nets.ActorNetwork": "Actor",
        "nets.CriticNetwork": "Critic",
        "nets.MLP": "Net",
        "nets.Preprocess": "VecNormalize VectorEnvNormObs",
        "OfflineTrainer": "offline_trainer",
        "OffpolicyTrainer": "OffPolicyTrainer offpolicy_trainer",
        "OnpolicyTrainer": "OnPolicyTrainer onpolicy_trainer",
        "Policy": "BasePolicy",
        "PPOPolicy": "MaskablePPO PPO",
        "presets.bc": "BCConfig",
        "presets.c51": "C51 C51Policy",
        "presets.cql": "CQL CQLConfig DiscreteCQL DiscreteCQLPolicy",
        "presets.dqn": "DQNConfig",
        "presets.iqn": "IQN IQNPolicy",
        "presets.ppo": "PPOConfig",
        "presets.qrdqn": "QRDQN QRDQNPolicy",
        "presets.rainbow": "RainbowDQN RainbowPolicy",
        "presets.sac": "SACConfig",
        "PrioritizedReplayBuffer": "PrioritizedEpisodeReplayBuffer PrioritizedVectorReplayBuffer",
        "ReinforcePolicy": "PGPolicy Reinforce",
        "ReplayBuffer": "DictReplayBuffer EpisodeReplayBuffer ReplayBufferManager VectorReplayBuffer",
        "RolloutBuffer": "DictRolloutBuffer",
        "SACPolicy": "DiscreteSACPolicy SAC",
        "TransitionBatch": "Batch",
    }
)


NOT_HERE = {  # classes of other libraries without an equivalent, and what to do
    "DDPG": "tk.presets.sac is for the same tasks",
    "DDPGPolicy": "tk.presets.sac is for the same tasks",
    "TD3": "tk.presets.sac is for the same tasks",
    "TD3Policy": "tk.presets.sac is for the same tasks",
    "TRPO": "tk.presets.ppo is for the same tasks",
    "TRPOPolicy": "tk.presets.ppo is for the same tasks",
}


_IN_PARTS = {  # options of presets and of `for_envs`, where policies take the part that has them
    "double": "backup=DoubleBackup()",
    "gamma": "horizon=Horizon(gamma=...)",
    "lr": "optimizer=Adam(lr)",
    "n_step": "horizon=Horizon(n_step=...)",
}


def option_hint(name: str, known: Iterable[str], owners: Mapping[str, Sequence[str]] | None = None) -> str:
    """Return the hint for an unknown option, as the end of a message; "" if no option is similar.

    Args:
        name: the unknown option.
        known: options where it was given.
        owners: {option: calls that accept it}, to name the call where it belongs.
    """
    options, owners = [*known], {} if owners is None else owners
    if "env_options" in options and "make_envs" in owners.get(name, ()):
        return f", did you mean env_options={{{name!r}: ...}}?"
    if name in _IN_PARTS and _IN_PARTS[name].partition("=")[0] in options:
        return f", did you mean {_IN_PARTS[name]}?"
    if name in OPTIONS_ELSEWHERE:
        return translate(name, options, owners)
    close = nearest_word(name, options)
    score = 0.0 if close is None else similarity(name, close)
    if name in owners and score < 0.8:
        return f": it belongs to {', '.join(owners[name][:3])}"
    foreign = nearest_word(name, sorted(OPTIONS_ELSEWHERE.keys() - {*options}))
    if foreign is not None and similarity(name, foreign) >= max(_TYPO, score):
        return translate(foreign, options)
    return did_you_mean(name, options)


def translate(name: str, known: Sequence[str], owners: Mapping[str, Sequence[str]] | None = None) -> str:
    """Return the hint for an option of another library, see `option_hint`."""
    entry = OPTIONS_ELSEWHERE[name]
    for ours in entry.options:
        if ours.partition("=")[0] in known:
            return f", did you mean {repr(ours) if ours.isidentifier() else ours}?"
    if entry.note:
        return f": {entry.note}"
    hint = f": trainkit calls it {' or '.join(entry.options)}"
    where = (owners or {}).get(entry.options[0].partition("=")[0], ())
    return f"{hint}, an option of {', '.join(where[:3])}" if where else hint


def schedule_hint(value: object) -> str:
    """Return the hint for a schedule in the spelling of a shell or of rl-zoo, the end of a message; "" for others."""
    match = re.fullmatch(r"lin(?:ear)?[:_]\s*([^,\s]+?)\s*(?:,\s*(.+))?", value) if isinstance(value, str) else None
    return "" if match is None else f": give tk.Linear({match[1]}, {match[2] or 0})"


def class_hint(name: str, known: Mapping[str, str]) -> str:
    """Return the hint for a class or function that `trainkit` does not have, as the end of a message; "" for none.

    Args:
        name: the unknown attribute.
        known: {name: attribute of `trainkit`}, such as {"MLP": "nets.MLP"}.
    """
    if name in NOT_HERE:
        return f": there is none, {NOT_HERE[name]}"
    attributes = {**known, **CLASSES_ELSEWHERE}
    meant = name if name in attributes else nearest_word(name, attributes)
    return "" if meant is None else f", did you mean tk.{attributes[meant]}?"


def did_you_mean(word: object, words: Iterable[str]) -> str:
    """Return `, did you mean 'x'?` if one of `words` is close to `word`, else an empty string."""
    close = nearest_word(str(word), words)
    return "" if close is None else f", did you mean {close!r}?"


_TYPO = 0.85  # similarity of a name and its misspelling
_CLOSE = 0.6


def nearest_word(word: str, words: Iterable[str]) -> str | None:
    """Return the most similar of some words, None if none is similar."""
    best = max(words, key=lambda own: similarity(word, own), default="")
    return best if similarity(word, best) >= _CLOSE else None


def similarity(a: str, b: str) -> float:
    """Return the similarity of two names in [0, 1]: the mean of those of their letters and of their parts."""
    letters = difflib.SequenceMatcher(None, a.lower(), b.lower()).ratio()
    mine, theirs = (re.split("[_/-]+", name.lower()) for name in (a, b))
    if len(mine) == len(theirs) == 1:
        return letters
    shared = sum(len(difflib.get_close_matches(part, theirs, 1, cutoff=0.7)) for part in mine)
    return (letters + 2 * shared / (len(mine) + len(theirs))) / 2


def mentioned(table: Mapping[str, Ours]) -> list[tuple[str, str]]:
    """Return the rows of a library's table in the docs: its name, and trainkit's."""
    rows = []
    for theirs, entry in sorted(table.items()):
        ours = ", ".join(f"`{own}`" for own in entry.options)
        rows.append((f"`{theirs}`", "; ".join(filter(None, (ours, entry.note)))))
    return rows
