"""Population based training of DQN on CartPole, which continues if there is an experiment: for test_tune_report."""

import hashlib
import json
import os
from pathlib import Path
from typing import Any

import ray
from ray import tune
from ray.tune.schedulers import PopulationBasedTraining

import trainkit as tk

FOLDER = Path(os.environ["TUNE_DIR"])


class Note(tk.Callback):
    """Writes a digest of all weights, moments, rows and random streams, when they are saved and when loaded."""

    def on_checkpoint_saved(self, trainer: tk.Trainer, folder: Path) -> None:
        self._note("saved", trainer)

    def on_checkpoint_loaded(self, trainer: tk.Trainer, folder: Path) -> None:
        self._note("loaded", trainer)

    def _note(self, name: str, trainer: tk.Trainer) -> None:
        trial = tune.get_context().get_trial_id()
        line = {"trial": trial, "epoch": trainer.epoch, "digest": digest(trainer)}
        with (FOLDER / f"{name}-{trial}.jsonl").open("a") as file:
            file.write(json.dumps(line) + "\n")


def digest(trainer: tk.Trainer) -> str:
    """Return a digest of what a run continues from."""
    policy: Any = trainer.policy
    hashed = hashlib.sha256()
    for _, weight in sorted(policy.get_weights().items()):
        hashed.update(weight.tobytes())
    rows = trainer.buffer.sample(None, horizon=tk.Horizon(), step=0)  # type: ignore[attr-defined]
    hashed.update(rows.obs.tobytes() + rows.action.tobytes())
    hashed.update(repr(policy.streams_state()).encode())
    moments = policy.gradient_steps["network"].state_dict()["state"]
    hashed.update(b"".join(moments[i]["exp_avg"].numpy().tobytes() for i in sorted(moments)))
    return hashed.hexdigest()


def trial(config: dict[str, Any]) -> None:
    report = tk.callbacks.TuneReport()
    trainer = tk.presets.dqn(
        "CartPole-v1", seed=config["seed"], lr=config["lr"], zoo=False, hidden=(16,), max_epoch=8, step_per_epoch=200,
        learning_starts=64, evaluation=tk.Evaluation(duration=2), verbose=False, callbacks=[Note(), report],
        resume_from=report.resume_from,
    )  # fmt: skip
    with trainer:
        trainer.run()


def main() -> None:
    """Start the experiment, or continue the one that is there."""
    ray.init(num_cpus=4, include_dashboard=False, log_to_driver=False)
    if tune.Tuner.can_restore(str(FOLDER / "pbt")):
        tuner = tune.Tuner.restore(str(FOLDER / "pbt"), trial, resume_unfinished=True, resume_errored=True)
    else:
        lrs = {"lr": tune.loguniform(1e-4, 1e-2)}
        scheduler = PopulationBasedTraining(
            time_attr="epoch", perturbation_interval=2, hyperparam_mutations=lrs, synch=True, quantile_fraction=0.5
        )
        tuner = tune.Tuner(
            trial,
            param_space={"seed": tune.grid_search([1, 2, 3, 4]), "lr": 1e-3},
            tune_config=tune.TuneConfig(metric="train/returns/mean", mode="max", scheduler=scheduler),
            run_config=tune.RunConfig(
                name="pbt", storage_path=str(FOLDER), failure_config=tune.FailureConfig(max_failures=2)
            ),
        )
    results = tuner.fit()
    epochs = [result.metrics["epoch"] for result in results]
    (FOLDER / "result.json").write_text(json.dumps({"n_trials": len(results), "epochs": epochs}))


if __name__ == "__main__":
    main()
