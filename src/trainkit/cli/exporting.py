"""`trainkit export`: what a run learnt as one ONNX file."""

import argparse
from pathlib import Path

from trainkit.cli.evaluate import saved
from trainkit.cli.output import Commands, Parser, add_command, say
from trainkit.loggers.runs import RunFolder
from trainkit.policy import load_policy

_EXAMPLES = """\
  trainkit export runs/rainbow-CartPole-v1/seed1
  trainkit export runs/rainbow-CartPole-v1/seed1 --best -o pole.onnx

Preprocessing and action mask are inside; the file is checked against torch before it is left. pip install
trainkit[onnx]"""


def add(commands: "Commands[Parser]") -> None:
    """Add the command."""
    parser = add_command(commands, "export", run, about="write a run's policy as ONNX", examples=_EXAMPLES)
    parser.add_argument("run_folder", metavar="RUN", type=Path, help="a folder that `trainkit train` wrote")
    parser.add_argument("--best", action="store_true", help="the policy whose evaluation was best, not the last")
    parser.add_argument("-o", "--out", metavar="FILE", type=Path, help="default: RUN/policy.onnx")


def run(options: argparse.Namespace) -> int:
    """Load, export, and say where to."""
    folder = RunFolder.read(options.run_folder)
    out = options.out or folder.path / "policy.onnx"
    load_policy(saved(folder, best=options.best)).export(out)
    say(str(out))
    return 0
