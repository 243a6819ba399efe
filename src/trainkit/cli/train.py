"""`trainkit train` and `trainkit presets`: train a preset on one seed or several, each in a folder of its own."""

import argparse
import contextlib
import shlex
import shutil
import signal
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

from trainkit.cli.flags import SCHEDULES, add_settings, given_settings, preset_name, preset_of
from trainkit.cli.output import Parser, format_table, print_line
from trainkit.cli.run_config import RunConfig, parse_dict, read_config, read_settings
from trainkit.core.errors import Checks, ConfigError, reject_unknown
from trainkit.core.extensions import table
from trainkit.core.folders import CHECKPOINT
from trainkit.core.stats import RunInfo
from trainkit.envs.factories import is_registered
from trainkit.loggers.logger import run_loggers
from trainkit.loggers.runs import CLAIM, CONFIG, EVENTS, NUMBERS, RunFolder, write_config
from trainkit.presets import PRESETS
from trainkit.trainer import Checkpoint
from trainkit.trainer.interrupt import TERMINATE
from trainkit.trainer.progress import end_line

Report = Callable[[int, int], object]  # (epoch, max_epoch)

_TRAIN_EXAMPLES = """\
  trainkit train rainbow CartPole-v1
  trainkit train dqn CartPole-v1 --lr 5e-4 --hidden 64,64 --backup double --seeds 5
  trainkit train dqn CartPole-v1 --seeds 20 --jobs 4    four runs at a time
  trainkit train dqn --help                         the settings of DQN that are set most often
  trainkit presets dqn                              every setting of DQN, with its defaults
  trainkit train ppo LunarLander-v3 --config moon.toml --logdir runs --name moon
  trainkit train rainbow CartPole-v1 --max-epoch 20 --resume
  trainkit train cql CartPole-v1 --data recorded/
  trainkit train bc AdroitHandDoor-v1 --data D4RL/door/human-v2
  trainkit train --config runs/dqn-CartPole-v1/seed1/config.json     the same run again

Each run is a folder LOGDIR/NAME/seedN: config.json (all settings, which --config repeats to the bit), numbers.jsonl,
events/ for tensorboard, checkpoint/. A TOML file holds settings, one per line; flags override it, and a config.json."""

_SETTINGS_EXAMPLES = """\
examples:
  trainkit train dqn ENV --lr 5e-4 --hidden 64,64 --seeds 5 --jobs 2
  trainkit train dqn ENV --set env_options.stack=4 --config settings.toml --resume"""

_PRESETS_EXAMPLES = """\
  trainkit presets
  trainkit presets rainbow                  every setting and its default, per kind of environment
  trainkit presets rainbow ALE/Pong-v5      those for one environment"""


def add_train(parser: Parser) -> None:
    """Add the arguments of the command that trains, with a flag for each setting of the preset that is named."""
    parser.runs(run_train, examples=_TRAIN_EXAMPLES)
    parser.add_argument("preset", metavar="PRESET", nargs="?", type=preset_name, help="one of `trainkit presets`")
    _add_run_options(parser)
    parser.allow_abbrev = False  # else a misspelled setting is taken for another
    parser.before_parsing(partial(_add_settings, parser))


def _add_settings(parser: Parser, words: Sequence[str]) -> None:
    """Add a flag for each setting of the preset that the words name."""
    name = preset_of(words, [f"--{option}" for option in ("set", "config", "data", "shuffle-rows", "logdir", "name")])
    if name is not None:
        add_settings(parser, PRESETS[name], words, shows_all=False)
        parser.usage = f"{parser.prog} {name} [ENV] [options and settings]"
        rest = f"Every other setting is a flag, too: `trainkit presets {name}` lists them all, and says what each is."
        parser.epilog = f"{rest}\n\n{SCHEDULES}\n\n{_SETTINGS_EXAMPLES.replace('dqn', name)}"


def add_train_of_each_preset(parser: Parser) -> None:
    """Add every preset as a command below the one that trains, for shells that complete their flags."""
    parser.runs(run_train, examples=_TRAIN_EXAMPLES)
    presets = parser.add_subparsers(metavar="PRESET", parser_class=Parser)
    for name, preset in PRESETS.items():
        below = presets.add_parser(name, help=preset.summary)
        _add_run_options(below)
        add_settings(below, preset, (), shows_all=True)


def _add_run_options(parser: Parser) -> None:
    """Add the arguments that all presets have."""
    parser.add_argument(
        "env", metavar="ENV", nargs="?", help="an id, module.Class or a/game_v1; offline: where to evaluate"
    )
    parser.add_argument("--env-kwargs", metavar="DICT", help="for the environment's constructor")
    parser.add_argument("--max-episode-steps", metavar="N", type=int, help="truncate episodes there")
    parser.add_argument("--set", metavar="NAME=VALUE", action="append", default=[], help="change a setting; repeatable")
    parser.add_argument("--config", metavar="FILE", type=Path, help="a TOML file of settings, or a run's config.json")
    parser.add_argument("--seed", type=int, help="root of all randomness, default 1, or that of config.json")
    parser.add_argument("--seeds", metavar="N", type=int, default=1, help="number of seeds; see --jobs")
    parser.add_argument("--data", metavar="PATH", help="of offline presets: recorded files, or a Minari id")
    parser.add_argument("--shuffle-rows", metavar="N", type=int, help="stream the data, with N rows in memory")
    parser.add_argument("--logdir", metavar="FOLDER", type=Path, default=Path("runs"), help="default: runs")
    parser.add_argument("--name", help="of the folder below it, default PRESET-ENV")
    parser.add_argument("--resume", action="store_true", help="continue from the checkpoint of the same folder, if any")
    parser.add_argument("--checkpoint-every", metavar="N", type=int, default=1, help="epochs, default 1; 0 for never")
    parser.add_argument("--quiet", action="store_true", help="no bar and no line per epoch")
    _add_jobs(parser)


def _add_jobs(parser: Parser) -> None:
    """Add the arguments of runs that are trained at the same time, where something trains them so."""
    parser.set_defaults(jobs=None, backend="process")
    if "jobs" not in table("RUNS"):
        return
    parser.add_argument(
        "--jobs",
        metavar="N",
        type=int,
        help="train N runs at a time, each in a process of its own on one thread; repeated, the command continues "
        "every run where it stood; default: one after the other in this process",
    )
    parser.add_argument("--backend", choices=["process", "ray"], help="of --jobs: processes, or tasks of Ray")


def add_presets(parser: Parser) -> None:
    """Add the arguments of the command that lists presets."""
    parser.runs(run_presets, examples=_PRESETS_EXAMPLES)
    parser.add_argument("preset", metavar="PRESET", nargs="?", help="one of them")
    parser.add_argument("env", metavar="ENV", nargs="?", help="whose defaults are shown; default: of each kind")


def run_train(options: argparse.Namespace) -> int:
    """Train on every seed."""
    with Checks("trainkit train") as checks:
        checks.require(options.seed is None or options.seed >= 0, f": --seed must be >= 0, got {options.seed}")
        checks.require(options.seeds >= 1, f": --seeds must be >= 1, got {options.seeds}")
        checks.require(
            options.checkpoint_every >= 0, f": --checkpoint-every must be >= 0, got {options.checkpoint_every}"
        )
        checks.require(not (options.resume and options.checkpoint_every == 0), ": --resume needs checkpoints")
        checks.require(options.jobs is None or options.jobs >= 1, f": --jobs must be >= 1, got {options.jobs}")
        is_used = options.jobs is not None or options.backend == "process"
        checks.require(is_used, f": --backend {options.backend} needs --jobs, the number of runs at a time")
    first = _config_of(options)
    name = options.name or "-".join(filter(None, (first.preset, first.env))).replace("/", "_").replace(":", "_")
    configs = [replace(first, seed=seed) for seed in range(first.seed, first.seed + options.seeds)]
    folder: Path = options.logdir / name
    if options.jobs is not None:
        infos = _train_at_once({f"seed{config.seed}": config for config in configs}, folder, options)
        if any(info.stop_reason == TERMINATE for info in infos):
            return 128 + signal.SIGTERM
        print_line(_what_is_next(first, infos, options))
        return 0
    infos = []
    for config in configs:
        infos.append(train(config, folder / f"seed{config.seed}", options))
        if infos[-1].stop_reason == TERMINATE:
            return 128 + signal.SIGTERM
    print_line(_what_is_next(first, infos, options))
    return 0


def _what_is_next(config: RunConfig, infos: Sequence[RunInfo], options: argparse.Namespace) -> str:
    """Return a line with the commands that show what was learned, to be copied."""
    folders = [Path(str(info.run_dir)) for info in infos]
    commands = [["plot", str(folders[0] if len(folders) == 1 else folders[0].parent)]]
    if options.checkpoint_every and config.env is not None:
        env = [] if is_registered(config.env) else ["--env", config.env]
        commands.insert(0, ["eval", str(folders[0]), *env])
    return f"next: {'; '.join(shlex.join(['trainkit', *words]) for words in commands)}"


def _train_at_once(configs: Mapping[str, RunConfig], folder: Path, options: argparse.Namespace) -> list[RunInfo]:
    """Train several runs at a time, and return their ends; those that were trained before continue.

    Args:
        configs: {name of the run's folder below `folder`: config}.
        folder: of all runs.
        options: of the command.

    Raises:
        ConfigError: some failed.
    """
    every = options.checkpoint_every
    how = {"resume": every > 0, "checkpoint_every": every, "quiet": True, "logdir": folder.parent, "name": folder.name}
    work = {name: partial(train, config, folder / name, argparse.Namespace(**how)) for name, config in configs.items()}
    run_all = table("RUNS")["jobs"].load()
    outcomes = list(run_all(work, folder, jobs=options.jobs, backend=options.backend, quiet=options.quiet))
    if failed := [outcome.name for outcome in outcomes if outcome.error is not None]:
        raise ConfigError(
            f"{len(failed)} of {len(outcomes)} runs failed: {', '.join(failed)}; the traceback is error.txt in the "
            "run's folder; run the command again to continue them"
        )
    return [outcome.result for outcome in outcomes]


def _config_of(options: argparse.Namespace) -> RunConfig:
    """Return what the command line requests: a preset with settings, or a run to repeat, with other ones."""
    if options.config is not None and options.config.suffix == ".json":
        saved = read_config(options.config, env=options.env)
        if options.preset not in (None, saved.preset):
            raise ConfigError(f"{options.config} is of a run of {saved.preset}, not {options.preset}: leave one out")
        own = ("seed", "data", "shuffle_rows")
        given = {name: value for name in own if (value := getattr(options, name)) is not None}
        changes = read_settings(None, options.set) | _given(options)
        return replace(saved, settings={**saved.settings, **changes}, **given)
    if options.preset is None:
        raise ConfigError("trainkit train needs a PRESET, or --config RUN/config.json to repeat a run")
    return RunConfig(
        preset=options.preset,
        env=options.env,
        seed=1 if options.seed is None else options.seed,
        data=options.data,
        shuffle_rows=options.shuffle_rows,
        settings=read_settings(options.config, options.set) | _given(options),
    )


def _given(options: argparse.Namespace) -> dict[str, str]:
    """Return {setting: text} of the flags that were given."""
    given = given_settings(options)
    if options.max_episode_steps is not None:
        given["env_options.max_episode_steps"] = str(options.max_episode_steps)
    if options.env_kwargs is not None:
        given["env_options.env_kwargs"] = repr(parse_dict("--env-kwargs", options.env_kwargs))
    return given


def train(config: RunConfig, folder: Path, options: argparse.Namespace, report: Report | None = None) -> RunInfo:
    """Train one run, or continue the run in the folder; `report` is called with every epoch and the last one."""
    resumes = options.resume and (folder / CONFIG).is_file()
    if resumes:
        _check_same_run(config, folder)
    with contextlib.ExitStack() as opened:
        lines, events = run_loggers(folder, resume=resumes)
        assert lines.folder is not None, "it writes to one"
        folder = Path(lines.folder)
        if not resumes:
            opened.callback(_remove_claimed, folder)
        opened.callback(lines.close)
        opened.callback(events.close)
        every = options.checkpoint_every
        checkpoint = Checkpoint(folder / CHECKPOINT, every=every) if every else None
        trainer = config.trainer(
            logger=[lines, events],
            checkpoint=checkpoint,
            resume_from="auto" if resumes else None,
            verbose=not options.quiet,
            show_progress=False if options.quiet else None,
        )
        opened.pop_all()
    write_config(folder, config.to_plain(trainer))
    print_line(f"{config.command}  ->  {folder}")
    where = ["--logdir", str(options.logdir)] + (["--name", options.name] if options.name else [])
    how_to_resume = f"to resume: {config.command} {shlex.join([*where, '--resume'])}"
    with trainer:
        if trainer.is_finished:
            how = ": raise --max-epoch to go on" if trainer.epoch >= trainer.max_epoch else ""
            print_line(f"{folder}: finished before, after {trainer.clock:,} {trainer.unit}s{how}")
            return trainer.info
        try:
            if report is None:
                trainer.run()
            else:
                report(trainer.epoch, trainer.max_epoch)
                for result in trainer:
                    report(result.epoch, trainer.max_epoch)
        except KeyboardInterrupt:
            if checkpoint is not None:
                checkpoint.save(trainer)
                print_line(f"stopped at step {trainer.clock:,}; {how_to_resume}")
            raise
    info = trainer.info
    if info.stop_reason == TERMINATE and checkpoint is not None:  # which saved it
        print_line(f"stopped at step {trainer.clock:,}; {how_to_resume}")
    if options.quiet:  # else the trainer said it
        warned = "".join(f", {name}" for name in info.warnings)
        warnings = f"; warnings:{warned[1:]}" if warned else ""
        print_line(f"{folder}: {end_line(info, trainer.clock, trainer.unit)}{warnings}")
    return info


def _check_same_run(config: RunConfig, folder: Path) -> None:
    """Raise `ConfigError` for a resume with another preset, environment or dataset; settings may differ."""
    former = RunConfig.of(RunFolder.read(folder))
    for name in ("preset", "env", "seed", "data", "shuffle_rows"):
        own, theirs = getattr(config, name), getattr(former, name)
        if own != theirs:
            raise ConfigError(f"{folder} was trained with {name} {theirs!r}, not {own!r}: give another --name")


def _remove_claimed(folder: Path) -> None:
    """Remove the folder of a run that could not be constructed, except for files that others put there."""
    for name in (NUMBERS, CLAIM):
        (folder / name).unlink(missing_ok=True)
    shutil.rmtree(folder / EVENTS, ignore_errors=True)
    with contextlib.suppress(OSError):  # not empty, or not ours
        folder.rmdir()
        folder.parent.rmdir()


def run_presets(options: argparse.Namespace) -> int:
    """Print all presets, or the settings of one."""
    if options.preset is None:
        rows = [["preset", "for", "what it is"]]
        rows += [[name, ", ".join(preset.domains), preset.summary] for name, preset in PRESETS.items()]
        print_line(format_table(rows, left=3))
        print_line("\n`trainkit presets NAME` lists its settings; `trainkit train NAME ENV --lr 1e-3` changes one")
        return 0
    reject_unknown("trainkit presets", [options.preset], PRESETS)
    preset = PRESETS[options.preset]
    listing = Parser(usage=argparse.SUPPRESS, add_help=False)
    add_settings(listing, preset, [] if options.env is None else [options.env], shows_all=True)
    print_line(f"{preset.name}: {preset.summary}\n\n{listing.format_help()}")
    print_line(f"{SCHEDULES}\n\n`trainkit train {preset.name} ENV --lr 1e-3` changes one, and so does --set lr=1e-3")
    print_line("trainkit/presets names the source of each number, and where it differs from the paper")
    return 0
