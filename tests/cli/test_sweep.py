"""Sweeps: what a file describes, in which folders it is trained, and that finished runs are not trained again."""

import json
import re
from pathlib import Path

import pytest

import trainkit as tk
from tests.cli.test_commands import TINY
from trainkit.cli import main
from trainkit.cli.sweep import read_sweep
from trainkit.loggers.runs import RunFolder

SETTINGS = "[settings]\n" + "\n".join(f'{name} = "{text}"' for name, text in TINY.items())


def written(folder: Path, text: str, name: str = "lr.toml") -> Path:
    path = folder / name
    path.write_text(text)
    return path


def test_a_grid_is_every_combination_with_every_seed_in_readable_folders(tmp_path: Path) -> None:
    file = written(
        tmp_path,
        'preset = "dqn"\nenv = "CartPole-v1"\nseeds = [3, 4]\n[settings]\nmax_epoch = 5\n'
        '[grid]\nlr = [1e-3, "linear:1e-3,0"]\nhidden = [[64, 64], [32]]\n',
    )
    jobs = read_sweep(file)
    assert [job.folder for job in jobs[:4]] == [
        "lr=0.001_hidden=64,64/seed3", "lr=0.001_hidden=64,64/seed4", "lr=0.001_hidden=32/seed3",
        "lr=0.001_hidden=32/seed4",
    ]  # fmt: skip
    assert (len(jobs), jobs[4].folder) == (8, "lr=linear-0.001,0_hidden=64,64/seed3")
    config = jobs[-1].config
    assert (config.preset, config.env, config.seed) == ("dqn", "CartPole-v1", 4)
    assert config.settings == {"max_epoch": "5", "lr": "linear:1e-3,0", "hidden": "(32,)"}


def test_a_list_and_several_presets_and_environments(tmp_path: Path) -> None:
    file = written(
        tmp_path,
        'preset = ["dqn", "ppo"]\nenv = ["A", "ALE/B"]\n[[list]]\nlr = 1e-3\n[[list]]\nlr = 1e-4\ngamma = 0.9\n',
    )
    names = [job.folder for job in read_sweep(file)]
    assert names[:2] == ["dqn-A_lr=0.001/seed1", "dqn-A_lr=0.0001_gamma=0.9/seed1"]
    assert (len(names), names[-1]) == (8, "ppo-ALE-B_lr=0.0001_gamma=0.9/seed1")


def test_random_draws_are_in_their_ranges_and_the_first_stay_when_there_are_more(tmp_path: Path) -> None:
    text = 'preset = "dqn"\nenv = "A"\n[random]\ndraws = %d\nlr = {low = 1e-5, high = 1e-2, log = true}\n'
    text += "n_step = {low = 1, high = 5}\nbatch_size = [32, 64]\ngamma = {low = 0.9, high = 0.99}\n"
    jobs = read_sweep(written(tmp_path, text % 200))
    lrs, steps, sizes = ([float(job.config.settings[name]) for job in jobs] for name in ("lr", "n_step", "batch_size"))
    assert 1e-5 <= min(lrs) <= 3e-5
    assert 4e-3 <= max(lrs) <= 1e-2
    assert 70 < sum(lr < 3.2e-4 for lr in lrs) < 130, "half of them below the geometric mean"
    assert ({*steps}, {*sizes}) == ({1, 2, 3, 4, 5}, {32, 64})
    assert [job.config for job in read_sweep(written(tmp_path, text % 10))] == [job.config for job in jobs[:10]]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("grid = 1", "[grid] must be a table"),
        ('env = "A"', 'needs preset = "dqn"'),
        ('preset = "dqnn"\nenv = "A"', "no preset is called 'dqnn', did you mean 'dqn'?"),
        ('preset = "dqn"\nenv = "A"\n[gridd]\nlr = [1]', "gridd"),
        ('preset = "dqn"\nenv = "A"\n[grid]\nlr = 1', ".lr must be a list of the values to try, got 1"),
        ('preset = "dqn"\nenv = "A"\n[grid]\nlrr = [1]', "unknown option 'lrr', did you mean 'lr'?"),
        ('preset = "dqn"\nenv = "A"\n[grid]\nn_envs = ["x"]', "n_envs must be a whole number, got 'x'"),
        ('preset = "dqn"\nenv = "A"\n[random]\nlr = [1]', ".draws must be a whole number >= 1, got None"),
        ('preset = "dqn"\nenv = "A"\n[random]\ndraws = 1\nlr = {low = 2, high = 1}', "with low < high"),
        ('preset = "dqn"\nenv = "A"\n[random]\ndraws = 1\nlr = {loww = 2}', "did you mean 'low'?"),
        ('preset = "dqn"\nenv = "A"\n[grid]\nlr = [1]\n[[list]]\nlr = 1', "a sweep is one of them"),
        ('preset = "dqn"\nenv = "A"\n[grid]\nlr = [1, 1]', "has the same run twice"),
        ('preset = "dqn"\nenv = "A"\nseeds = 0', "seeds must be a number >= 1"),
        ('preset = "dqn"\nenv = = 1', "cannot be read as TOML"),
    ],
)
def test_a_file_that_cannot_work_is_refused_before_any_run(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(tk.ConfigError) as caught:
        read_sweep(written(tmp_path, text))
    assert message in str(caught.value)


def test_a_sweep_is_run_once_and_continued_where_it_stopped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    text = f'preset = "dqn"\nenv = "CartPole-v1"\nseeds = 2\n{SETTINGS}\n[grid]\nlr = [1e-3, 1e-4]\n'
    written(tmp_path, text)
    with monkeypatch.context() as patch:
        n_runs = 0

        def run(self: tk.Trainer) -> tk.trainer.RunInfo:
            nonlocal n_runs
            n_runs += 1
            if n_runs == 3:
                next(self)
                raise KeyboardInterrupt
            return original(self)

        original = tk.Trainer.run
        patch.setattr(tk.Trainer, "run", run)
        assert main(["sweep", "lr.toml", "--quiet"]) == 130
    assert len(Path("runs/lr/sweep.jsonl").read_text().splitlines()) == 2
    capsys.readouterr()
    assert main(["sweep", "lr.toml", "--dry-run"]) == 0
    assert capsys.readouterr().out.count(": finished\n") == 2
    assert main(["sweep", "lr.toml", "--quiet"]) == 0
    output = capsys.readouterr().out
    assert output.count(": finished\n") == 2
    assert re.search(r"^settings +seeds +mean score\nlr=0.00", output, re.MULTILINE)
    runs = [RunFolder.read(f"runs/lr/lr={lr}/seed{seed}") for lr in ("0.001", "0.0001") for seed in (1, 2)]
    assert [run.rows[-1]["step"] for run in runs] == [120] * 4
    lines = [json.loads(line) for line in Path("runs/lr/sweep.jsonl").read_text().splitlines()]
    assert [line["score"] for line in lines] == [run.series("test/returns/mean")[1][-1] for run in runs]
    assert main(["compare", "runs/lr"]) == 0
    assert "\nlr=0.001 " in capsys.readouterr().out

    written(tmp_path, text.replace('max_epoch = "2"', 'max_epoch = "3"'))
    assert main(["sweep", "lr.toml"]) == 2
    assert "was trained with another max_epoch: give another --name, or remove it" in capsys.readouterr().err


def test_a_run_that_fails_does_not_end_the_sweep(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    written(tmp_path, f'preset = "dqn"\nenv = "CartPole-v1"\n{SETTINGS}\n[grid]\ngamma = [2.0, 0.9]\n')
    assert main(["sweep", "lr.toml", "--quiet"]) == 2
    captured = capsys.readouterr()
    assert "trainkit: gamma=2.0/seed1: Horizon.gamma must be in [0, 1], got 2.0" in captured.err
    assert "1 of 2 runs failed" in captured.err
    assert RunFolder.read("runs/lr/gamma=0.9/seed1").rows[-1]["step"] == 120
