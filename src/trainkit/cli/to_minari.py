"""`trainkit to-minari`: recorded episodes as a local Minari dataset."""

import argparse

from trainkit.cli.output import Commands, Parser, add_command, print_line
from trainkit.datasets import load_dataset, to_minari

_EXAMPLES = """\
  trainkit to-minari recorded/ cartpole/random-v0 --env CartPole-v1 --author "A. Name"
  MINARI_DATASETS_PATH=shared trainkit to-minari recorded/ cartpole/random-v0

The episodes are written to Minari's folder, ~/.minari/datasets, or to MINARI_DATASETS_PATH. `minari show ID` shows
them, and `trainkit train cql --data ID` learns from them."""


def add_to_minari(commands: "Commands[Parser]") -> None:
    """Add the command that writes a Minari dataset."""
    parser = add_command(
        commands, "to-minari", run_to_minari, about="write recorded episodes as a Minari dataset", examples=_EXAMPLES
    )
    parser.add_argument("data", metavar="DATA", help="files of DatasetWriter: one, a folder or a glob")
    parser.add_argument("dataset_id", metavar="ID", help="of the new dataset, such as cartpole/random-v0")
    parser.add_argument("--env", metavar="ID", help="the environment that the episodes are from")
    parser.add_argument("--algorithm-name", metavar="TEXT", help="what chose the actions")
    parser.add_argument("--author", metavar="TEXT", help="who recorded them")
    parser.add_argument("--author-email", metavar="TEXT", help="how to reach the author")
    parser.add_argument("--description", metavar="TEXT", help="what they show")


def run_to_minari(options: argparse.Namespace) -> int:
    """Write the dataset, and print its id and its sizes."""
    about = {name: getattr(options, name) for name in ("algorithm_name", "author", "author_email", "description")}
    given = {name: text for name, text in about.items() if text is not None}
    dataset = to_minari(load_dataset(options.data), options.dataset_id, env=options.env, **given)
    counts = f"{dataset.total_episodes:,} episodes, {dataset.total_steps:,} steps"
    print_line(f"{options.dataset_id}: {counts}, in {dataset.storage.data_path}")
    return 0
