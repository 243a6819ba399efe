"""`trainkit eval`: play with what a run learnt, to look or to measure."""

import argparse
import functools
from pathlib import Path
from typing import Any

from trainkit.cli.films import Filmed
from trainkit.cli.making import Recipe, dict_of, env_of, env_options_of
from trainkit.cli.output import Commands, Parser, add_command, say
from trainkit.core.checkpoint import inspect_checkpoint
from trainkit.core.errors import Checks, ConfigError
from trainkit.core.stats import Summary
from trainkit.loggers.runs import CHECKPOINT, RunFolder
from trainkit.policy import load_policy
from trainkit.trainer import evaluate
from trainkit.trainer.callbacks.video import find_ffmpeg

_EXAMPLES = """\
  trainkit eval runs/rainbow-CartPole-v1/seed1
  trainkit eval runs/rainbow-CartPole-v1/seed1 --best --episodes 100 --seed 7
  trainkit eval runs/ppo-LunarLander-v3/seed1 --episodes 3 --render
  trainkit eval runs/ppo-LunarLander-v3/seed1 --episodes 3 --video videos"""


def add(commands: "Commands[Parser]") -> None:
    """Add the command."""
    parser = add_command(commands, "eval", run, about="play episodes with what a run learnt", examples=_EXAMPLES)
    parser.add_argument("run_folder", metavar="RUN", type=Path, help="a folder that `trainkit train` wrote")
    parser.add_argument("--episodes", metavar="N", type=int, default=20, help="default 20")
    parser.add_argument("--seed", type=int, default=0, help="of the episodes, default 0")
    parser.add_argument(
        "--max-episode-steps",
        metavar="N",
        type=int,
        help="truncate episodes there, default 30,000, or the environment's own where longer",
    )
    parser.add_argument("--best", action="store_true", help="the policy whose evaluation was best, not the last")
    parser.add_argument("--explore", action="store_true", help="act as in training, not greedily")
    parser.add_argument("--env", help="another environment of the same spaces: an id, module:id or module.Class")
    parser.add_argument("--env-kwargs", metavar="DICT", help="for its constructor, instead of those in the run folder")
    look = parser.add_mutually_exclusive_group()
    look.add_argument("--render", action="store_true", help="show a window, one episode after the other")
    look.add_argument("--video", metavar="FOLDER", type=Path, help="write a video of each episode")


def run(options: argparse.Namespace) -> int:
    """Play, and tell returns and lengths."""
    checks = Checks("trainkit eval")
    checks.require(options.episodes >= 1, f": --episodes must be >= 1, got {options.episodes}")
    checks.require(options.seed >= 0, f": --seed must be >= 0, got {options.seed}")
    limit = options.max_episode_steps
    checks.require(limit is None or limit >= 1, f": --max-episode-steps must be >= 1, got {limit}")
    checks.done()
    folder = RunFolder.read(options.run_folder)
    recipe = Recipe.of(folder)
    env = options.env or env_of(recipe, folder.path)
    env_kwargs = None if options.env_kwargs is None else dict_of("--env-kwargs", options.env_kwargs)
    asked: dict[str, Any] = env_options_of(recipe, folder.path, given=env_kwargs)
    if options.render or options.video:
        mode = "human" if options.render else "rgb_array"
        asked["env_kwargs"] = {**asked.get("env_kwargs", {}), "render_mode": mode}
        asked["n_envs"] = 1
    if options.video:
        find_ffmpeg()  # before the policy is loaded
        asked["wrappers"] = (*asked.get("wrappers", ()), functools.partial(Filmed, folder=options.video))
    if limit is not None:
        asked["max_episode_steps"] = limit
    place = saved(folder, best=options.best)
    policy = load_policy(place)
    found = evaluate(policy, env, n_episode=options.episodes, seed=options.seed, explore=options.explore, **asked)
    how = "exploring" if options.explore else "greedily"
    say(f"{recipe.preset} after {age(place)}, {options.episodes} episodes of {env}, {how}")
    for name, summary in (("return", found.returns), ("length", found.lengths)):
        say(line(name, summary))
    if found.n_cut_episodes:
        say(f"{found.n_cut_episodes} of these episodes had not ended at the limit and count as far as they went")
    return 0


def saved(run: RunFolder, *, best: bool) -> Path:
    """Return where a run's policy is, the newest or the best."""
    place = run.path / CHECKPOINT
    if best and not (place / "best").is_dir():
        raise ConfigError(f"{run.path} has no best policy: it needs evaluations, leave --best out")
    return place / "best" if best else place


def age(place: Path) -> str:
    """Say how long a policy was trained; a policy that was saved without its run does not know."""
    progress = inspect_checkpoint(place).get("progress")
    if not isinstance(progress, dict):
        return "an unknown number of steps"
    told = [progress.get(name) for name in ("env_step", "gradient_step")]
    steps, updates = (value if isinstance(value, int) else 0 for value in told)
    return f"{steps:,} steps" if steps else f"{updates:,} updates"


def line(name: str, told: Summary) -> str:
    """Tell five numbers in a line."""
    return f"{name}  mean {told.mean:.5g}  std {told.std:.5g}  min {told.min:.5g}  max {told.max:.5g}"
