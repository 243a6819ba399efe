"""What a run says at its end, and what a user does next: look at the log, watch the policy."""

import os
import re
import shlex
import signal
import subprocess
from pathlib import Path
from typing import Any

import pytest

import trainkit as tk
from tests.helpers.evaluation_options import as_evaluated
from tests.helpers.pages import ROOT
from trainkit.cli import main

TINY: dict[str, Any] = {
    "max_epoch": 2, "step_per_epoch": 60, "learning_starts": 32, "batch_size": 16, "hidden": (8,), "zoo": False,
    "n_envs": 2, "step_per_collect": 2, "n_test_envs": 2, "episode_per_test": 2, "device": "cpu",
}  # fmt: skip
SETS = [word for name, value in TINY.items() for word in ("--set", f"{name}={value}")]


def frames_of(path: Path) -> int:
    """Return the number of frames of a video."""
    ffmpeg = pytest.importorskip("imageio_ffmpeg").get_ffmpeg_exe()
    shown = subprocess.run([ffmpeg, "-i", str(path), "-f", "null", "-"], capture_output=True, check=True, text=True)
    return int(re.findall(r"frame= *(\d+)", shown.stderr)[-1])


# ---- why a run ended ----


def ended(capsys: pytest.CaptureFixture[str]) -> str:
    """Return the last line that a run printed."""
    return capsys.readouterr().out.splitlines()[-1]


def test_a_run_from_python_says_at_its_end_why_it_ended(capsys: pytest.CaptureFixture[str]) -> None:
    how: dict[str, Any] = {"seed": 1, "show_progress": False, **TINY}
    info = tk.presets.dqn("CartPole-v1", **how).run()
    best = f"best score {info.best_score:g} at step {info.best_env_step:,}"
    assert re.fullmatch(rf"ended: max_epoch after 120 steps, \d+ s, {best}", ended(capsys))
    tk.presets.dqn("CartPole-v1", max_env_step=60, **how).run()
    assert ended(capsys).startswith("ended: max_env_step after 60 steps")
    tk.presets.dqn("CartPole-v1", stop_return=-1.0, **how).run()
    assert re.match(r"ended: \w*(stop|return)\w* after 60 steps", ended(capsys))
    tk.presets.dqn("CartPole-v1", **as_evaluated(how | {"evaluation": None})).run()
    assert re.fullmatch(r"ended: max_epoch after 120 steps, \d+ s", ended(capsys))
    tk.presets.dqn("CartPole-v1", verbose=False, **how).run()
    assert capsys.readouterr().out == ""


def test_a_run_that_sigterm_ended_says_so(
    here: Path, capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    def terminate(trainer: tk.Trainer, result: object) -> None:
        os.kill(os.getpid(), signal.SIGTERM)

    former = signal.signal(signal.SIGTERM, lambda *_: None)
    try:
        how: dict[str, Any] = {"seed": 1, "show_progress": False, "checkpoint": "saves", **TINY}
        with tk.presets.dqn("CartPole-v1", callbacks=tk.on(epoch_end=terminate), **how) as trainer:
            assert trainer.run().stop_reason == "SIGTERM"
    finally:
        signal.signal(signal.SIGTERM, former)
    assert ended(capsys).startswith("ended: SIGTERM after 60 steps")
    assert "SIGTERM ended the run after 60 steps" in caplog.messages


# ---- what follows ----


@pytest.mark.parametrize("more", [[], ["--quiet"], ["--seeds", "2"], ["--seeds", "2", "--jobs", "2"]])
def test_the_last_line_of_train_names_commands_that_work(
    here: Path, more: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["train", "dqn", "CartPole-v1", "--name", "my run", *SETS, *more]) == 0
    last = ended(capsys)
    assert last.startswith("next: ")
    commands = [shlex.split(command) for command in last.removeprefix("next: ").split("; ")]
    assert [words[:2] for words in commands] == [["trainkit", "eval"], ["trainkit", "plot"]]
    for words in commands:
        assert main(words[1:]) == 0


def test_the_last_line_of_train_names_the_environment_that_eval_needs(
    here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    env = "gymnasium.envs.classic_control.CartPoleEnv"
    assert main(["train", "dqn", env, "--quiet", *SETS]) == 0
    assert f" --env {env};" in ended(capsys)
    assert main(["train", "dqn", "CartPole-v1", "--quiet", "--checkpoint-every", "0", *SETS]) == 0
    assert "eval" not in ended(capsys)


# ---- watching ----


def test_a_video_whose_name_ends_in_mp4_is_one_file_of_all_episodes(here: Path) -> None:
    pytest.importorskip("imageio_ffmpeg", reason="needs trainkit-rl[video]")
    pytest.importorskip("pygame", reason="CartPole draws with it")
    assert main(["train", "dqn", "CartPole-v1", "--quiet", *SETS]) == 0
    run = "runs/dqn-CartPole-v1/seed1"
    assert main(["eval", run, "--episodes", "3", "--video", "videos/x.mp4"]) == 0
    assert main(["eval", run, "--episodes", "3", "--video", "apart"]) == 0
    assert [path.name for path in (here / "videos").iterdir()] == ["x.mp4"]
    apart = sorted((here / "apart").iterdir())
    assert [path.name for path in apart] == [f"episode-00{n}.mp4" for n in range(3)]
    assert frames_of(here / "videos" / "x.mp4") == sum(map(frames_of, apart))


@pytest.mark.parametrize("name", ["x.gif", "x.avi", "x.webm"])
def test_a_video_in_another_format_is_an_error_instead_of_a_folder(
    here: Path, name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("imageio_ffmpeg", reason="needs trainkit-rl[video]")
    policy = tk.RandomPolicy(tk.make_envs("CartPole-v1", 1).action_space)
    with pytest.raises(tk.ConfigError, match=rf"evaluate.video {name} .*must end in .mp4"):
        tk.evaluate(policy, "CartPole-v1", n_episode=1, video=name)
    with pytest.raises(tk.ConfigError, match=r"RecordVideo.folder x.mp4 .*is a folder"):
        tk.callbacks.RecordVideo("x.mp4")
    assert list(here.iterdir()) == []


def test_pages_say_how_to_watch_with_commands_that_exist() -> None:
    for page, option in (("README.md", "--render"), ("docs/cli.md", r"--video \S+\.mp4")):
        assert re.search(rf"^trainkit eval runs/\S+ .*{option}", (ROOT / page).read_text(), re.MULTILINE), page


# ---- the line of an epoch ----


def test_every_item_of_the_epochs_line_is_explained_on_a_page(capsys: pytest.CaptureFixture[str]) -> None:
    page = (ROOT / "docs" / "quickstart.md").read_text()
    section = page.partition("## The line of an epoch\n")[2].partition("\n## ")[0]
    explained = re.findall(r"^\| `([^`]+)` \|", section, re.MULTILINE)
    assert explained
    how: dict[str, Any] = {"seed": 1, "show_progress": False, **TINY}
    tk.presets.dqn("CartPole-v1", **how).run()
    tk.presets.sac("Pendulum-v1", **{**how, "step_per_collect": 2}, max_env_step=60).run()
    lines = [line for line in capsys.readouterr().out.splitlines() if re.match("epoch|ended", line)]
    assert len(lines) >= 4

    def shape(item: str) -> str:
        return re.sub(r" +", " ", re.sub(r"[-+]?[\d.,]+(e[-+]\d+)?", "N", item)).strip()

    known = {shape(item) for item in explained}
    items = [item for line in lines if line.startswith("epoch") for item in line.split(" | ")]
    assert {shape(re.sub(r" \(n = \d+\)", "", item)) for item in items} - known == set()
    for page_name in ("README.md", "docs/howto/index.md"):
        assert "quickstart.md#the-line-of-an-epoch" in (ROOT / page_name).read_text()
