"""Unlike runs are distinguished, by labels that stay short whatever differs."""

from pathlib import Path
from typing import Any

from tests.helpers.run_folders import make_run
from trainkit.loggers.grouping import grouped


def labels(folder: Path, *settings: dict[str, Any], preset: str = "dqn") -> list[str]:
    runs = [make_run(folder / str(number), preset=preset, settings=own) for number, own in enumerate(settings)]
    return list(grouped(runs))


def test_runs_that_differ_by_seed_and_task_alone_are_one_group(tmp_path: Path) -> None:
    same = {"preset": "dqn", "settings": {"lr": "1"}}
    runs = [
        make_run(tmp_path / "1", **same, seed=1, env="A"),
        make_run(tmp_path / "2", **same, seed=2, env="A"),
        make_run(tmp_path / "3", **same, seed=1, env="B"),
        make_run(tmp_path / "4", preset="ppo", settings={}, seed=1, env="A"),
    ]
    assert {label: [run.path.name for run in own] for label, own in grouped(runs).items()} == {
        "dqn": ["1", "2", "3"],
        "ppo": ["4"],
    }


def test_settings_that_differ_within_a_preset_are_in_the_label(tmp_path: Path) -> None:
    runs = [
        make_run(tmp_path / "1", preset="dqn", settings={"lr": "1", "gamma": "0.9"}),
        make_run(tmp_path / "2", preset="dqn", settings={"gamma": "0.9"}),
        make_run(tmp_path / "3", preset="ppo", settings={"lr": "3"}),
    ]
    assert list(grouped(runs)) == ["dqn lr=1", "dqn", "ppo"]


def test_a_setting_that_a_run_was_not_given_has_the_value_of_its_table(tmp_path: Path) -> None:
    table = {"lr": {"part": "Linear", "of": {"start": 0.001, "end": 0.0, "share": 1.0}}, "hidden": [64, 64], "tau": 1}
    runs = [
        make_run(tmp_path / str(number), preset="dqn", settings=own, complete=table)
        for number, own in enumerate([{}, {"lr": "2e-3"}, {"lr": "linear:1e-3,0.0"}, {"hidden": "(8,)"}])
    ]
    assert {label: [run.path.name for run in own] for label, own in grouped(runs).items()} == {
        "hidden=64,64 lr=linear:0.001,0.0": ["0", "2"],  # equal settings, one of them given
        "hidden=64,64 lr=0.002": ["1"],
        "hidden=8 lr=linear:0.001,0.0": ["3"],
    }
    damaged = make_run(tmp_path / "5", preset="dqn", settings={}, complete={"lr": {"part": "os.system", "of": {}}})
    assert list(grouped([damaged, runs[1]])) == ["dqn", "lr=0.002"]


def test_the_only_preset_is_left_out_where_settings_distinguish_its_runs(tmp_path: Path) -> None:
    assert labels(tmp_path / "a", {"lr": "1e-3"}, {"lr": "2e-3"}) == ["lr=0.001", "lr=0.002"]
    assert labels(tmp_path / "b", {"lr": "1e-3"}, {"lr": "0.001"}) == ["dqn"], "the same number, written twice"


def test_what_differs_inside_of_a_dict_is_named_alone(tmp_path: Path) -> None:
    options = ({"stack": 4, "env_kwargs": {"map": "4x4", "slippery": slippery}} for slippery in (True, False))
    assert labels(tmp_path, *({"env_options": repr(own)} for own in options)) == ["slippery=True", "slippery=False"]


def test_of_many_settings_those_that_distinguish_all_runs_are_named(tmp_path: Path) -> None:
    runs = [
        {"lr": f"{lr}", "gamma": f"0.9{lr}", "n_envs": str(8 * lr), "tau": str(1 if lr < 2 else 2), "n_step": str(n)}
        for lr in (1, 2, 3)
        for n in (1, 3)
    ]
    assert labels(tmp_path, *runs) == [f"lr={lr} n_step={n} +3" for lr in (1, 2, 3) for n in (1, 3)]


def test_long_values_are_shortened_but_never_to_the_same(tmp_path: Path) -> None:
    schedules = ["0:1.0,10000:0.5,20000:0.1,30000:0.01", "0:1.0,10000:0.5,20000:0.1,40000:0.02"]
    assert labels(tmp_path / "a", *({"lr": text} for text in schedules)) == [
        "lr=0:1.0,1000..0:0.01", "lr=0:1.0,1000..0:0.02",
    ]  # fmt: skip
    paths = [f"/a/very/long/{name}/path/to/the/file" for name in ("first", "other")]
    first, second = labels(tmp_path / "b", *({"lives_key": text} for text in paths))
    assert first != second
    assert max(len(first), len(second)) < 50


def test_runs_that_the_shell_did_not_make_are_named_by_their_folders(tmp_path: Path) -> None:
    runs = [make_run(tmp_path / name) for name in ("mine/seed1", "mine/seed2_2", "mine/tall", "yours/seed1")]
    assert {label: len(own) for label, own in grouped(runs).items()} == {"mine": 2, "tall": 1, "yours": 1}
