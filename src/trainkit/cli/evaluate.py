"""`trainkit eval` and `trainkit export`: evaluate the policy of a run, or write it as one ONNX file."""

import argparse
from pathlib import Path

from trainkit.cli.output import Parser, print_line
from trainkit.cli.run_config import parse_dict
from trainkit.cli.saved import SavedPolicy
from trainkit.core.errors import Checks, ConfigError
from trainkit.core.extensions import exported, require
from trainkit.core.extras import install_command
from trainkit.policy import RandomPolicy, load_policy
from trainkit.presets.base import MAIN, RANDOM
from trainkit.trainer import evaluate

_EVAL_EXAMPLES = """\
  trainkit eval runs/rainbow-CartPole-v1/seed1
  trainkit eval runs/rainbow-CartPole-v1/seed1 --best --episodes 100 --seed 7
  trainkit eval runs/ppo-LunarLander-v3/seed1 --episodes 3 --render
  trainkit eval runs/ppo-LunarLander-v3/seed1 --episodes 3 --video moon.mp4"""

_EXPORT_EXAMPLES = f"""\
  trainkit export runs/rainbow-CartPole-v1/seed1
  trainkit export runs/rainbow-CartPole-v1/seed1 --best -o pole.onnx

Preprocessing and action mask are inside; the file is checked against torch before it is left. It needs
{install_command("onnx")}"""


def add_eval(parser: Parser) -> None:
    """Add the arguments of the command that evaluates."""
    parser.runs(run_eval, examples=_EVAL_EXAMPLES)
    _add_policy(parser)
    parser.add_argument("--episodes", metavar="N", type=int, default=20, help="default 20")
    parser.add_argument("--seed", type=int, default=0, help="of the episodes, default 0")
    parser.add_argument(
        "--max-episode-steps",
        metavar="N",
        type=int,
        help="truncate episodes there, default 30,000, or the environment's own where longer",
    )
    parser.add_argument("--explore", action="store_true", help="act as in training, not greedily")
    parser.add_argument("--env", help="another environment of the same spaces: an id, module:id or module.Class")
    parser.add_argument("--env-kwargs", metavar="DICT", help="for its constructor, instead of those in the run folder")
    look = parser.add_mutually_exclusive_group()
    look.add_argument("--render", action="store_true", help="show a window, one episode after the other")
    look.add_argument("--video", metavar="PATH", type=Path, help="FILE.mp4 of all episodes, or a folder")


def add_export(parser: Parser) -> None:
    """Add the arguments of the command that exports."""
    parser.runs(run_export, examples=_EXPORT_EXAMPLES)
    _add_policy(parser)
    parser.add_argument(
        "-o", "--out", metavar="FILE", type=Path, help="default: RUN/policy.onnx; a .pt2 is for torch.export"
    )
    parser.add_argument("--opset", metavar="N", type=int, help="version of the ONNX operator set, default: torch's")


def _add_policy(parser: Parser) -> None:
    """Add the arguments that choose a saved policy."""
    parser.add_argument("run_folder", metavar="RUN", type=Path, help="the folder of a run, a checkpoint or a policy")
    parser.add_argument("--best", action="store_true", help="the policy whose evaluation was best, not the last")


def run_eval(options: argparse.Namespace) -> int:
    """Evaluate, and print returns and lengths."""
    with Checks("trainkit eval") as checks:
        checks.require(options.episodes >= 1, f": --episodes must be >= 1, got {options.episodes}")
        checks.require(options.seed >= 0, f": --seed must be >= 0, got {options.seed}")
        limit = options.max_episode_steps
        checks.require(limit is None or limit >= 1, f": --max-episode-steps must be >= 1, got {limit}")
    saved = SavedPolicy.find(options.run_folder, best=options.best)
    env = options.env or saved.env()
    env_kwargs = None if options.env_kwargs is None else parse_dict("--env-kwargs", options.env_kwargs)
    env_options = saved.env_options(env_kwargs=env_kwargs)
    if options.render:
        env_options["env_kwargs"] = {**env_options.get("env_kwargs", {}), "render_mode": "human"}
        env_options["n_envs"] = 1
    if limit is not None:
        env_options["max_episode_steps"] = limit
    how = "exploring" if options.explore else "greedily"
    about = f"{saved.trained}, {options.episodes} episodes of {env}, {how}"
    how_many = {"n_episode": options.episodes, "seed": options.seed, "explore": options.explore}
    if saved.plays_itself:
        if options.video:
            raise ConfigError(
                "trainkit eval: --video films environments of one agent, not games of self-play: leave it out"
            )
        require("games", "a run of self-play")
        policy = load_policy(saved.path, name=MAIN)
        players = {MAIN: policy, RANDOM: RandomPolicy(policy.action_space, seed=options.seed)}
        table = exported("tournament")(players, env, **how_many, **env_options)
        print_line(f"{about}, against random actions")
        print_line(f"games won  {table.win_rate(MAIN, RANDOM)}")
        return 0
    policy = load_policy(saved.path)
    stats = evaluate(policy, env, **how_many, video=options.video, **env_options)
    print_line(about)
    for name, own in (("return", stats.returns), ("length", stats.lengths)):
        print_line(f"{name}  mean {own.mean:.5g}  std {own.std:.5g}  min {own.min:.5g}  max {own.max:.5g}")
    if stats.n_cut_episodes:
        print_line(f"{stats.n_cut_episodes} of these episodes had not ended at the limit and count up to there")
    return 0


def run_export(options: argparse.Namespace) -> int:
    """Load, export, and print the file's name."""
    saved = SavedPolicy.find(options.run_folder, best=options.best)
    out = options.out or options.run_folder / "policy.onnx"
    exported("export")(load_policy(saved.path, name=saved.name), out, opset=options.opset)
    print_line(str(out))
    return 0
