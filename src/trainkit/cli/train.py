"""`trainkit train`: a preset in an environment, on one seed or several, each in a folder of its own."""

import argparse
import contextlib
import shlex
import shutil
import signal
from pathlib import Path

from trainkit.cli.making import Recipe, settings_of
from trainkit.cli.output import Commands, Parser, add_command, say
from trainkit.core.errors import Checks, ConfigError
from trainkit.core.stats import RunInfo
from trainkit.loggers.logger import CLAIM, JsonlLogger, TensorboardLogger
from trainkit.loggers.runs import CHECKPOINT, CONFIG, EVENTS, NUMBERS, RunFolder, write_config
from trainkit.trainer import Checkpoint
from trainkit.trainer.interrupt import TERMINATE

_EXAMPLES = """\
  trainkit train rainbow CartPole-v1
  trainkit train dqn CartPole-v1 --set lr=5e-4 --set 'hidden=(64, 64)' --seeds 5
  trainkit train ppo LunarLander-v3 --config moon.toml --logdir runs --name moon
  trainkit train rainbow CartPole-v1 --set max_epoch=20 --resume
  trainkit train cql CartPole-v1 --data recorded/

Each run is a folder LOGDIR/NAME/seedN: config.json (with the command that repeats it), numbers.jsonl, events/ for
tensorboard, checkpoint/. `trainkit presets rainbow` lists what can be set. A TOML file holds settings, one per line."""


def add(commands: "Commands[Parser]") -> None:
    """Add the command."""
    about = "train a preset in an environment, log and save"
    parser = add_command(commands, "train", run, about=about, examples=_EXAMPLES)
    parser.add_argument("preset", metavar="PRESET", help="one of `trainkit presets`")
    parser.add_argument("env", metavar="ENV", nargs="?", help="an id, or module.Class; offline: where to evaluate")
    parser.add_argument("--set", metavar="NAME=VALUE", action="append", default=[], help="change a setting; repeatable")
    parser.add_argument("--config", metavar="FILE", type=Path, help="a TOML file of settings")
    parser.add_argument("--seed", type=int, default=1, help="root of all randomness, default 1")
    parser.add_argument("--seeds", metavar="N", type=int, default=1, help="run on so many seeds, one after the other")
    parser.add_argument("--data", metavar="PATH", help="of offline presets: files that DatasetWriter wrote")
    parser.add_argument("--logdir", metavar="FOLDER", type=Path, default=Path("runs"), help="default: runs")
    parser.add_argument("--name", help="of the folder below it, default PRESET-ENV")
    parser.add_argument("--resume", action="store_true", help="go on from the checkpoint of the same folder, if any")
    parser.add_argument("--checkpoint-every", metavar="N", type=int, default=1, help="epochs, default 1; 0 for never")
    parser.add_argument("--quiet", action="store_true", help="no bar and no line per epoch")


def run(options: argparse.Namespace) -> int:
    """Train on every seed."""
    checks = Checks("trainkit train")
    checks.require(options.seed >= 0, f": --seed must be >= 0, got {options.seed}")
    checks.require(options.seeds >= 1, f": --seeds must be >= 1, got {options.seeds}")
    checks.require(options.checkpoint_every >= 0, f": --checkpoint-every must be >= 0, got {options.checkpoint_every}")
    checks.require(not (options.resume and options.checkpoint_every == 0), ": --resume needs checkpoints")
    checks.done()
    settings = settings_of(options.config, options.set)
    for seed in range(options.seed, options.seed + options.seeds):
        recipe = Recipe(preset=options.preset, env=options.env, seed=seed, data=options.data, settings=settings)
        name = options.name or "-".join(filter(None, (options.preset, options.env))).replace("/", "_").replace(":", "_")
        if train(recipe, options.logdir / name / f"seed{seed}", options).stop_reason == TERMINATE:
            return 128 + signal.SIGTERM
    return 0


def train(recipe: Recipe, folder: Path, options: argparse.Namespace) -> RunInfo:
    """Train once, or go on with what is in the folder."""
    goes_on = options.resume and (folder / CONFIG).is_file()
    if goes_on:
        _refuse_another(recipe, folder)
    with contextlib.ExitStack() as opened:
        lines = JsonlLogger(folder, resume=goes_on)
        assert lines.folder is not None, "it writes to one"
        folder = Path(lines.folder)
        if not goes_on:
            opened.callback(_leave_nothing, folder)
        opened.callback(lines.close)
        events = TensorboardLogger(folder / EVENTS, resume=goes_on)
        opened.callback(events.close)
        checkpoint = (
            Checkpoint(folder / CHECKPOINT, every=options.checkpoint_every) if options.checkpoint_every else None
        )
        trainer = recipe.trainer(
            logger=[lines, events],
            checkpoint=checkpoint,
            resume_from="auto" if goes_on else None,
            verbose=not options.quiet,
            show_progress=False if options.quiet else None,
        )
        opened.pop_all()
    write_config(folder, recipe.to_plain())
    say(f"{recipe.command}  ->  {folder}")
    with trainer:
        try:
            info = trainer.run()
        except KeyboardInterrupt:
            if checkpoint is not None:
                checkpoint.save(trainer)
                say(f"stopped at step {trainer.clock:,}; to go on: {_resuming(recipe, options)}")
            raise
    if info.stop_reason == TERMINATE and checkpoint is not None:  # which saved it
        say(f"stopped at step {trainer.clock:,}; to go on: {_resuming(recipe, options)}")
    score = "" if info.best_score is None else f", best score {info.best_score:g} at step {info.best_env_step:,}"
    say(f"{folder}: {info.stop_reason} after {trainer.clock:,} {trainer.unit}s, {info.seconds:.0f} s{score}")
    return info


def _resuming(recipe: Recipe, options: argparse.Namespace) -> str:
    """Return the command that goes on where this one stopped."""
    where = ["--logdir", str(options.logdir)] + (["--name", options.name] if options.name else [])
    return f"{recipe.command} {shlex.join([*where, '--resume'])}"


def _refuse_another(recipe: Recipe, folder: Path) -> None:
    """Refuse to go on with a run of another preset, environment or dataset; settings may have changed."""
    former = Recipe.of(RunFolder.read(folder))
    for name in ("preset", "env", "seed", "data"):
        own, theirs = getattr(recipe, name), getattr(former, name)
        if own != theirs:
            raise ConfigError(f"{folder} was trained with {name} {theirs!r}, not {own!r}: give another --name")


def _leave_nothing(folder: Path) -> None:
    """Take a folder away that was claimed for a run that was then refused, but for what others put there."""
    for name in (NUMBERS, CLAIM):
        (folder / name).unlink(missing_ok=True)
    shutil.rmtree(folder / EVENTS, ignore_errors=True)
    with contextlib.suppress(OSError):  # not empty, or not ours
        folder.rmdir()
        folder.parent.rmdir()
