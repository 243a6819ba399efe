"""Tune DQN on CartPole with Optuna: a study on disk, pruned by evaluation returns, that goes on after being killed.

    pip install 'trainkit-rl[tune]'
    python examples/tune_optuna.py --trials 20          # kill it, start it again: it goes on
    python examples/tune_optuna.py --trials 20          # at the same time, in another shell: they share the trials

A trial that was running when its process died stops beating; the next process to look puts it back in the queue, and it
goes on from its own checkpoint.
"""

import argparse
import warnings
from collections.abc import Sequence
from pathlib import Path

import optuna
import torch
from optuna.storages import RDBStorage
from optuna.study import MaxTrialsCallback
from optuna.trial import FrozenTrial, TrialState

import trainkit as tk

DONE = (TrialState.COMPLETE, TrialState.PRUNED)


def objective(trial: optuna.Trial, options: argparse.Namespace) -> float:
    """Train one setting; return its last evaluation."""
    folder = options.folder / f"trial_{trial.user_attrs.get('goes_on_from', trial.number)}"
    trainer = tk.presets.dqn(
        "CartPole-v1",
        lr=trial.suggest_float("lr", 1e-4, 1e-2, log=True),
        n_step=trial.suggest_int("n_step", 1, 5),
        target_every=trial.suggest_categorical("target_every", [50, 200, 800]),
        gamma=1.0 - trial.suggest_float("one_less_gamma", 0.005, 0.1, log=True),
        seed=options.seed,  # the same for all: a difference is the setting's
        max_epoch=options.epochs,
        step_per_epoch=options.steps // options.epochs,
        checkpoint=folder,
        resume_from="auto",
        verbose=False,
        device="cpu",
    )
    returns = None
    with trainer:
        for _epoch, stats, info in trainer:
            mean = stats.test.returns.mean
            if mean is not None:
                returns = mean
                trial.report(returns, step=info.env_step)
            if trial.should_prune():
                raise optuna.TrialPruned
        if returns is None:  # it died after its last epoch and before it could tell
            returns = trainer.evaluate().returns.mean
    assert returns is not None  # the last epoch ends with an evaluation
    return returns


def queue_again(study: optuna.Study, dead: FrozenTrial) -> None:
    """Let another trial go on from the checkpoint of one whose process died."""
    first = dead.user_attrs.get("goes_on_from", dead.number)
    study.enqueue_trial(dead.params, user_attrs={"goes_on_from": first})


def main(arguments: Sequence[str] | None = None) -> optuna.Study:
    """Search until as many trials are done, by whomever; return the study."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--folder", type=Path, default=Path("runs/tune_dqn"), help="the study and its checkpoints")
    parser.add_argument("--trials", type=int, default=20, help="in all, pruned ones too")
    parser.add_argument("--steps", type=int, default=20_000, help="of every trial")
    parser.add_argument("--epochs", type=int, default=8, help="evaluations of every trial")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--heartbeat", type=int, default=10, help="seconds; a trial silent for three of them is dead")
    options = parser.parse_args(arguments)
    torch.set_num_threads(1)  # networks this small are fastest on one
    warnings.filterwarnings("ignore", category=optuna.exceptions.ExperimentalWarning)  # heartbeats are, since 2021
    options.folder.mkdir(parents=True, exist_ok=True)
    storage = RDBStorage(
        f"sqlite:///{options.folder / 'study.db'}",
        heartbeat_interval=options.heartbeat,
        grace_period=3 * options.heartbeat,
        heartbeat_stale_trial_callback=queue_again,
    )
    study = optuna.create_study(
        study_name="dqn",
        direction="maximize",
        storage=storage,
        load_if_exists=True,
        pruner=optuna.pruners.MedianPruner(n_startup_trials=4, n_warmup_steps=options.steps // 4),
    )
    # From another number each time: or whoever goes on would draw what was drawn before.
    study.sampler = optuna.samplers.TPESampler(seed=options.seed + len(study.trials))
    if count_done(study) < options.trials:
        enough = MaxTrialsCallback(options.trials, states=DONE)
        study.optimize(lambda trial: objective(trial, options), callbacks=[enough])
    print(f"{count_done(study)} trials, {len(study.get_trials(states=(TrialState.PRUNED,)))} of them pruned")
    print(f"best: {study.best_value:.1f} with {study.best_params}")
    return study


def count_done(study: optuna.Study) -> int:
    """Count the trials that came to an end, a judgement or the pruner's."""
    return len(study.get_trials(deepcopy=False, states=DONE))


if __name__ == "__main__":
    main()
