"""Every command, as a shell calls it: what it prints, what it leaves behind, and its exit code."""

import contextlib
import json
import os
import re
import shlex
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest

import trainkit as tk
from tests.cli.train import TINY, complaint, train
from tests.helpers.run_folders import make_run
from trainkit.cli import main
from trainkit.cli.commands import build_parser
from trainkit.loggers.runs import RunFolder


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Train DQN on two seeds and Rainbow on one."""
    folder = tmp_path_factory.mktemp("runs")
    assert train("--logdir", str(folder), "--seeds", "2") == 0
    assert train("--logdir", str(folder), preset="rainbow") == 0
    return folder


# ---- train ----


def test_a_run_leaves_config_numbers_events_and_a_checkpoint(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert train("--seed", "3") == 0
    folder = here / "runs" / "dqn-CartPole-v1" / "seed3"
    assert {file.name for file in folder.iterdir()} >= {"config.json", "numbers.jsonl", "events", "checkpoint"}
    assert list((folder / "events").glob("events.out.tfevents.*"))
    run = RunFolder.read(folder)
    assert (run.task, run.seed, run.config["settings"]) == ("CartPole-v1", 3, TINY)
    assert run.rows[-1]["step"] == 120
    out = capsys.readouterr().out
    assert run.config["command"] in out
    assert "max_epoch after 120 steps" in out


def test_the_command_in_config_json_repeats_the_run(here: Path) -> None:
    assert train() == 0
    first = RunFolder.read("runs/dqn-CartPole-v1/seed1")
    assert main([*shlex.split(first.config["command"])[1:], "--quiet", "--name", "again"]) == 0
    again = RunFolder.read("runs/again/seed1")
    for tag in ("update/loss", "train/recent_returns/mean", "test/returns/mean"):
        assert first.series(tag)[1].tolist() == again.series(tag)[1].tolist()


def test_a_run_that_is_refused_leaves_no_folder(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert train(lrr="1") == 2
    assert complaint(capsys) == (
        "trainkit: presets.dqn: unknown option 'lrr', did you mean 'lr'?; "
        "docs/migration.md leads to the names of other libraries"
    )
    assert list(here.rglob("*")) in ([], [here / "runs"])


def test_a_refused_run_leaves_what_others_put_into_its_folder(here: Path) -> None:
    folder = here / "runs" / "dqn-CartPole-v1" / "seed1"
    folder.mkdir(parents=True)
    (folder / "notes.txt").write_text("mine")
    assert train(lrr="1") == 2
    assert [file.name for file in folder.iterdir()] == ["notes.txt"]


def test_several_seeds_are_a_folder_each(runs: Path) -> None:
    assert sorted(path.name for path in (runs / "dqn-CartPole-v1").iterdir()) == ["seed1", "seed2"]


def test_a_run_resumes_where_it_stopped_in_its_own_folder(here: Path) -> None:
    assert train("--resume") == 0  # nothing to continue from: it begins
    assert train("--resume", max_epoch="3") == 0
    run = RunFolder.read("runs/dqn-CartPole-v1/seed1")
    assert [path.name for path in (here / "runs" / "dqn-CartPole-v1").iterdir()] == ["seed1"]
    steps = [row["step"] for row in run.rows]
    assert steps == sorted(set(steps))
    assert steps[-1] == 180
    assert run.config["settings"]["max_epoch"] == "3"


def test_a_run_that_was_killed_before_its_first_checkpoint_restarts_in_its_own_folder(here: Path) -> None:
    assert train("--checkpoint-every", "0") == 0
    assert train("--resume", max_epoch="1") == 0
    assert [path.name for path in (here / "runs" / "dqn-CartPole-v1").iterdir()] == ["seed1"]
    assert [row["step"] for row in RunFolder.read("runs/dqn-CartPole-v1/seed1").rows] == [20, 40, 60]


def test_resuming_with_another_preset_is_rejected(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert train("--name", "mine") == 0
    assert train("--name", "mine", "--resume", preset="rainbow") == 2
    assert "was trained with preset 'dqn', not 'rainbow': give another --name" in complaint(capsys)
    assert [path.name for path in (here / "runs" / "mine").iterdir()] == ["seed1"]


def test_ctrl_c_saves_prints_how_to_continue_and_exits_with_130(
    here: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def interrupted(self: tk.Trainer) -> Any:
        next(self)
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(tk.Trainer, "run", interrupted)
        assert train("--checkpoint-every", "100") == 130
    captured = capsys.readouterr()
    assert captured.err == "trainkit: interrupted\n"
    (line,) = re.findall(r"stopped at step 60; to resume: trainkit (.*)", captured.out)
    assert tk.trainer.inspect_checkpoint("runs/dqn-CartPole-v1/seed1/checkpoint")["progress"]["env_step"] == 60
    assert main([*shlex.split(line), "--quiet"]) == 0
    assert RunFolder.read("runs/dqn-CartPole-v1/seed1").rows[-1]["step"] == 120


def test_sigterm_saves_ends_with_143_and_begins_no_other_seed(
    here: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    collect = tk.Collector.collect

    def terminated(self: tk.Collector, **options: Any) -> tk.CollectStats:
        stats = collect(self, **options)
        if self.env_step == 80 and self.buffer is not None:
            os.kill(os.getpid(), signal.SIGTERM)
        return stats

    monkeypatch.setattr(tk.Collector, "collect", terminated)
    assert train("--seeds", "2") == 128 + 15
    assert [path.name for path in (here / "runs" / "dqn-CartPole-v1").iterdir()] == ["seed1"]
    (step,) = re.findall(r"stopped at step (\d+); to resume: trainkit train dqn", capsys.readouterr().out)
    assert step in ("80", "82")
    progress = tk.trainer.inspect_checkpoint("runs/dqn-CartPole-v1/seed1/checkpoint")["progress"]
    assert progress["env_step"] == int(step)


def test_an_offline_preset_learns_from_files(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    envs = tk.make_envs("CartPole-v1", 2, seed=1)
    collector = tk.Collector(tk.RandomPolicy(envs.action_space, seed=1), envs)
    with tk.callbacks.DatasetWriter("data").record(collector):
        collector.collect(n_episode=6)
    few = {
        name: TINY[name] for name in ("max_epoch", "batch_size", "hidden", "n_test_envs", "episode_per_test", "device")
    }
    more = [word for name, text in {**few, "update_per_epoch": "5"}.items() for word in ("--set", f"{name}={text}")]
    assert main(["train", "cql", "CartPole-v1", "--data", "data", "--quiet", *more]) == 0
    assert "after 10 updates" in capsys.readouterr().out
    assert main(["eval", "runs/cql-CartPole-v1/seed1", "--episodes", "2"]) == 0
    streamed = ["--shuffle-rows", "100", "--name", "streamed"]
    assert main(["train", "cql", "CartPole-v1", "--data", "data", "--quiet", *streamed, *more]) == 0
    assert main(["train", "--config", "runs/streamed/seed1/config.json", "--name", "again", "--quiet"]) == 0
    last = [RunFolder.read(here / "runs" / name / "seed1").rows[-1] for name in ("streamed", "again")]
    assert last[0]["buffer/passes"] == last[1]["buffer/passes"] == 10 * 16 / collector.env_step
    assert last[0]["update/loss"] == last[1]["update/loss"]
    capsys.readouterr()
    assert main(["train", "dqn", "CartPole-v1", "--shuffle-rows", "100"]) == 2
    assert "dqn learns from an environment: leave --shuffle-rows out" in capsys.readouterr().err


# ---- what others make of it ----


def test_eval_plays_what_was_learned(runs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = runs / "dqn-CartPole-v1" / "seed1"
    assert main(["eval", str(folder), "--episodes", "3", "--seed", "5"]) == 0
    output = capsys.readouterr().out
    assert output.startswith("dqn after 120 steps, 3 episodes of CartPole-v1, greedily\nreturn  mean ")
    trainer = tk.presets.dqn(
        "CartPole-v1", seed=1, hidden=(8,), n_envs=2, batch_size=16, n_test_envs=2, device="cpu", verbose=False
    )
    trainer.load(folder / "checkpoint")
    expected = tk.evaluate(trainer.policy, "CartPole-v1", n_episode=3, seed=5).returns
    assert expected is not None
    assert f"mean {expected.mean:.5g}  std {expected.std:.5g}" in output


def test_eval_can_play_the_best_policy_instead_of_the_last(runs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = runs / "dqn-CartPole-v1" / "seed1"
    best = tk.trainer.inspect_checkpoint(folder / "checkpoint" / "best")["progress"]
    assert main(["eval", str(folder), "--best", "--episodes", "3", "--seed", "5"]) == 0
    output = capsys.readouterr().out
    assert output.startswith(f"dqn after {best['env_step']} steps, 3 episodes")
    expected = tk.evaluate(tk.load_policy(folder / "checkpoint" / "best"), "CartPole-v1", n_episode=3, seed=5).returns
    assert expected is not None
    assert f"mean {expected.mean:.5g}" in output


def test_export_writes_an_onnx_file_into_the_runs_folder(runs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for module in ("onnx", "onnxruntime", "onnxscript"):
        pytest.importorskip(module, reason="needs trainkit-rl[onnx]")
    folder = runs / "dqn-CartPole-v1" / "seed2"
    assert main(["export", str(folder)]) == 0
    assert capsys.readouterr().out.splitlines()[-1] == str(folder / "policy.onnx")
    assert (folder / "policy.onnx").stat().st_size > 500


def test_a_saved_policy_is_exported_and_played_in_python(
    runs: Path, here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    tk.load_policy(runs / "dqn-CartPole-v1" / "seed2" / "checkpoint").save("alone")
    assert main(["export", "alone", "-o", "alone.pt2"]) == 0
    assert (here / "alone.pt2").stat().st_size > 500
    assert main(["export", "alone", "--best"]) == 2
    assert "--best is of a run" in capsys.readouterr().err
    assert main(["eval", "alone"]) == 2
    assert "tk.evaluate(tk.load_policy('alone'), env) plays with it" in capsys.readouterr().err


def test_eval_writes_a_video_of_every_episode(runs: Path, here: Path) -> None:
    pytest.importorskip("imageio_ffmpeg", reason="needs trainkit-rl[video]")
    pytest.importorskip("pygame", reason="CartPole draws with it")
    assert main(["eval", str(runs / "dqn-CartPole-v1" / "seed1"), "--episodes", "2", "--video", "v"]) == 0
    assert sorted(file.name for file in (here / "v").iterdir()) == ["episode-000.mp4", "episode-001.mp4"]
    assert all(file.stat().st_size > 1_000 for file in (here / "v").iterdir())


def test_plot_draws_all_runs_of_a_task_in_one_picture(
    runs: Path, here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("matplotlib", reason="needs trainkit-rl[plot]")
    assert main(["plot", str(runs), "-o", "a/curves.svg"]) == 0
    assert capsys.readouterr().out == "a/curves.svg\n"
    drawn = (here / "a" / "curves.svg").read_text()
    assert all(f">{text}<" in drawn for text in ("dqn (2 seeds)", "rainbow", "CartPole-v1"))
    assert main(["plot", str(runs / "rainbow-CartPole-v1"), "--time", "-o", "time.png"]) == 0
    assert main(["plot", str(runs), "--time"]) == 2
    assert "--time is of one run, 3 were given" in capsys.readouterr().err


def test_compare_prints_interquartile_means_and_intervals(runs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["compare", str(runs)]) == 0
    output = capsys.readouterr().out
    scores = [
        RunFolder.read(runs / "dqn-CartPole-v1" / f"seed{seed}").series("test/returns/mean")[1][-1] for seed in (1, 2)
    ]
    low, mean, high = min(scores), np.mean(scores), max(scores)
    assert re.search(rf"^dqn +2 +{mean:.4g} +\[{low:.4g}, {high:.4g}\]", output, re.MULTILINE)
    assert "1 seed says little" in output
    assert "CartPole-v1: test/returns/mean, the last, of step 120\n" in output


def test_compare_puts_several_tasks_on_one_scale(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for preset, a, b in (("dqn", 0.0, 100.0), ("ppo", 10.0, 200.0)):
        for task, score in (("A", a), ("B", b)):
            row = {"step": 1, "test/returns/mean": score}
            for seed in (1, 2, 3):
                make_run(tmp_path / preset / task / f"seed{seed}", row, preset=preset, env=task, settings={}, seed=seed)
    assert main(["compare", str(tmp_path)]) == 0
    output = capsys.readouterr().out
    *_, overall = output.split("over 2 tasks, 0 the lowest score of each and 1 the highest\n")
    assert re.search(r"^dqn +6 +0 +\[0, 0\]", overall, re.MULTILINE)
    verdict = r"favors ppo \(p 0.005, 6 and 6 seeds\)"
    assert re.search(rf"^ppo +6 +1 +\[1, 1\] +\+1 +\[1, 1\] +{verdict}$", overall, re.MULTILINE)


def test_the_scale_of_a_task_is_that_of_all_its_runs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    scores = {("dqn", "A"): (40, 40), ("dqn", "B"): (0, 0), ("ppo", "A"): (60, 60), ("ppo", "B"): (1, 1)}
    for (preset, task), own in (scores | {("bc", "A"): (0, 100)}).items():  # which has no run in B
        for seed, score in enumerate(own):
            row = {"step": 1, "test/returns/mean": float(score)}
            make_run(tmp_path / preset / task / f"seed{seed}", row, preset=preset, env=task, settings={}, seed=seed)
    assert main(["compare", str(tmp_path)]) == 0
    *_, overall = capsys.readouterr().out.split("over 2 tasks, 0 the lowest score of each and 1 the highest\n")
    assert re.search(r"^dqn +4 +0\.2 ", overall, re.MULTILINE)
    assert re.search(r"^ppo +4 +0\.8 ", overall, re.MULTILINE)
    assert "bc" not in overall


def test_compare_says_when_runs_did_not_train_equally_long(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for seed, step in ((1, 1_000), (2, 2_000)):
        row = {"step": step, "test/returns/mean": 1.0}
        make_run(tmp_path / f"seed{seed}", row, preset="dqn", env="A", settings={}, seed=seed)
    assert main(["compare", str(tmp_path)]) == 0
    assert "the last, of steps 1,000 to 2,000, not the same" in capsys.readouterr().out


def test_inspect_prints_one_run_in_full_and_several_in_lines(runs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = runs / "rainbow-CartPole-v1" / "seed1"
    assert main(["inspect", str(folder)]) == 0
    output = capsys.readouterr().out
    shown = dict(re.findall(r"^  (\S+) +(\S.*)$", output, re.MULTILINE))
    expected = {"policy": "DQNPolicy", "refresh_priorities": "update", "policy/n_step": "3", "buffer/alpha": "0.5"}
    assert expected.items() <= shown.items()
    for part in (
        "made by   trainkit train rainbow CartPole-v1 --seed 1",
        f"checkpoint {folder / 'checkpoint'}",
        "  whole, ",
        "  after epoch 2: 120 steps, ",
        f"best   {folder / 'checkpoint' / 'best'}, score ",
    ):
        assert part in output
    assert main(["inspect", str(runs)]) == 0
    heading, *lines = capsys.readouterr().out.splitlines()
    assert heading.split() == ["run", "task", "seed", "step", "test", "return", "best"]
    assert [line.split()[1:4] for line in lines] == [["CartPole-v1", seed, "120"] for seed in ("1", "2", "1")]


def test_presets_lists_all_or_the_settings_of_one(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["presets"]) == 0
    output = capsys.readouterr().out
    assert all(re.search(rf"^{name} ", output, re.MULTILINE) for name in tk.presets.PRESETS)
    assert main(["presets", "rainbow"]) == 0
    output = capsys.readouterr().out
    shown = " ".join(output.split())
    assert all(
        f"--{name.replace('_', '-')}" in shown for name in ("lr", "epsilon", "capacity", "network.norm", "threads")
    )
    assert "--capacity N rows of the replay buffer [10000, grid 100000, atari 1000000]" in shown
    assert main(["presets", "rainbow", "ALE/Breakout-v5"]) == 0
    assert "--capacity N rows of the replay buffer [1000000]" in " ".join(capsys.readouterr().out.split())
    assert main(["presets", "rainbo"]) == 2


def test_check_env_ends_with_1_where_something_would_end_training(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check-env", "CartPole-v1", "--steps", "50"]) == 0
    assert "CartPole-v1: 0 errors in" in capsys.readouterr().out

    class Bad(gym.Env[Any, Any]):
        observation_space = gym.spaces.Box(-1, 1, (1,), np.float32)
        action_space = gym.spaces.Discrete(2)

        def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
            return np.array([np.nan], np.float32), {}

    gym.register("Bad-v0", entry_point=Bad)
    try:
        assert main(["check-env", "Bad-v0"]) == 1
    finally:
        del gym.registry["Bad-v0"]
    assert "error: " in capsys.readouterr().out
    assert main(["check-env", "CartPole-v1", "--env-kwargs", "7"]) == 2
    assert complaint(capsys) == "trainkit: --env-kwargs must be a dict as Python writes it, got '7'"


def test_modules_of_the_folder_where_it_is_called_are_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "own_cart.py").write_text(
        "from gymnasium.envs.classic_control import CartPoleEnv\n\nclass Cart(CartPoleEnv):\n    pass\n"
    )
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    assert main(["check-env", "own_cart.Cart", "--max-episode-steps", "50"]) == 0
    assert "own_cart.Cart: 0 errors in" in capsys.readouterr().out


def test_bench_prints_rates(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", "--steps", "256", "--presets", "dqn", "--device", "cpu"]) == 0
    heading, line, *_ = capsys.readouterr().out.splitlines()
    assert heading.split()[:3] == ["preset", "steps/s", "updates/s"]
    assert re.match(r"dqn +[\d,]+ +[\d,]+ +\d+ % +\d+ %", line)
    assert main(["bench", "--steps", "64", "--presets", "ppo"]) == 2
    assert complaint(capsys) == "trainkit: ppo collects more than 64 steps at once: raise --steps"


# ---- mistakes and help ----


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["train"], "trainkit train needs a PRESET, or --config RUN/config.json to repeat a run"),
        (["fly"], "command: argument COMMAND: invalid choice: 'fly'"),
        (["train", "dqn", "CartPol-v1"], "make_envs: Environment `CartPol` doesn't exist"),
        (["train", "dqn", "CartPole-v1", "--seeds", "0"], "trainkit train: --seeds must be >= 1, got 0"),
        (["eval", "nowhere"], "nowhere is no run: it has no numbers.jsonl"),
        (["plot", "nowhere"], "nowhere is no folder"),
        (["train", "dqn", "CartPole-v1", "--config", "nowhere.toml"], "No such file or directory: 'nowhere.toml'"),
    ],
)
def test_a_mistake_is_one_line_and_ends_with_2(
    here: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], message: str
) -> None:
    try:
        code: object = main(arguments)
    except SystemExit as ended:
        code = ended.code
    assert code == 2
    line = complaint(capsys)
    assert line.startswith("trainkit: ")
    assert message in line


def test_the_traceback_of_a_mistake_is_shown_on_request() -> None:
    with pytest.raises(tk.ConfigError, match="nowhere is no run"):
        main(["--traceback", "eval", "nowhere"])


COMMANDS = [
    "train",
    "eval",
    "completion",
    "plot",
    "compare",
    "inspect",
    "export",
    "presets",
    "check-env",
    "bench",
]


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_has_help_with_examples_that_can_be_read(
    command: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        main([command, "--help"])
    assert ended.value.code == 0
    output = capsys.readouterr().out
    examples = re.findall(rf"^  trainkit ({command}\b.*?)(?:   .*)?$", output, re.MULTILINE)
    assert examples
    for words in (shlex.split(example.partition(" > ")[0]) for example in examples):
        with contextlib.suppress(SystemExit) if "--help" in words else contextlib.nullcontext():
            build_parser().parse_args(words)


def test_the_main_help_names_every_command(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["--help"])
    output = capsys.readouterr().out
    assert all(re.search(rf"^    {command}\b", output, re.MULTILINE) for command in COMMANDS)


def test_python_m_trainkit_is_the_command_and_a_reader_that_left_is_no_mistake(tmp_path: Path) -> None:
    environment = {**os.environ, "PYTHONPATH": str(Path(tk.__file__).parents[1]), "OMP_NUM_THREADS": "1"}
    listed = subprocess.Popen(
        [sys.executable, "-m", "trainkit", "presets"], cwd=tmp_path, env=environment, text=True,
        stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    )  # fmt: skip
    assert listed.stdout is not None
    listed.stdout.close()
    assert listed.stderr is not None
    assert listed.stderr.read() == ""
    listed.stderr.close()
    assert listed.wait(timeout=60) == 0


def test_config_json_is_plain(runs: Path) -> None:
    config = json.loads((runs / "rainbow-CartPole-v1" / "seed1" / "config.json").read_text())
    assert set(config) == {"preset", "env", "seed", "data", "settings", "complete", "command", "versions", "began"}
