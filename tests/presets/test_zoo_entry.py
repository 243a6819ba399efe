"""The zoo: settings of a preset for one environment, used for exactly that id, unless the call says otherwise."""

import functools
from pathlib import Path
from typing import Any

import gymnasium as gym
import pytest

import trainkit as tk
from trainkit import presets
from trainkit.presets import base
from trainkit.presets.zoo_entry import ZOO, all_entries, find_entry, read_entry, root_of

SETTINGS = """\
gamma = 0.5
hidden = [7]
lr = "Linear(1e-2, 1e-4)"
epsilon = [[0, 1.0], [10, 0.25]]
max_epoch = 2
step_per_epoch = 30
"""
RESULT = """
[result]
seeds = [101, 102]
returns = [9.0, 11.0]
mean = 10.0
low = 9.0
high = 11.0
random = 1.0
steps = 60
seconds = 2.0
settings = "0123456789ab"
commit = "1234567"
command = "trainkit zoo train dqn CartPole-v1"
date = 2026-01-02
curve = [[30, 5.0], [60, 10.0]]
"""
QUIET: dict[str, Any] = {"device": "cpu", "evaluation": None, "verbose": False}
ENTRIES = all_entries()
PACKAGE = Path(presets.__file__).parents[1]


def write(folder: Path, *, preset: str = "dqn", env: str = "CartPole-v1", head: str = "", settings: str = "") -> Path:
    """Write the file of an entry."""
    path = folder / preset / f"{env}.toml"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f'source = "a test"\ntuning_seeds = [11]\n{head}\n[settings]\n{SETTINGS}{settings}')
    return path


@pytest.fixture
def zoo(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the folder of a zoo with DQN on CartPole-v1, which the presets read."""
    write(tmp_path)
    monkeypatch.setattr(base, "find_entry", functools.partial(find_entry, folder=tmp_path))
    return tmp_path


# ---- the entries that are shipped ----


@pytest.mark.parametrize("entry", ENTRIES, ids=lambda entry: entry.name)
def test_a_shipped_entry_names_all_settings_so_that_the_general_table_does_not_change_it(entry: Any) -> None:
    preset = presets.PRESETS[entry.preset]
    assert isinstance(preset, base.EnvPreset)
    assert entry.on_accelerator.keys() <= preset.settings().keys()
    table = preset.zoo_table(entry)
    needed = preset.complete_settings(table)
    assert needed.keys() - entry.settings.keys() == set(), f"name them in {entry.path}"


@pytest.mark.parametrize("entry", ENTRIES, ids=lambda entry: entry.name)
def test_a_shipped_result_is_of_the_entrys_settings(entry: Any) -> None:
    if entry.result is not None:
        assert entry.result.settings == entry.digest, f"trainkit zoo train {entry.preset} {entry.env}"
        steps = entry.settings["max_epoch"] * entry.settings["step_per_epoch"]
        assert steps <= entry.result.steps < 1.1 * steps
        assert (entry.result.weights_seed is not None) == entry.weights.is_dir()


def test_every_file_of_the_zoo_is_an_entry_of_a_preset_or_its_weights() -> None:
    paths = {entry.path for entry in ENTRIES}
    folders = {entry.weights for entry in ENTRIES}
    own = [path for path in PACKAGE.rglob("*") if path.is_file() and "zoo" in path.parts and path.suffix != ".py"]
    others = [path for path in own if path not in paths and path.parent not in folders and path.suffix != ".pyc"]
    assert others == []
    assert {entry.preset for entry in ENTRIES} <= presets.PRESETS.keys()
    assert ("dqn", "CartPole-v1") in {(entry.preset, entry.env) for entry in ENTRIES}


def test_an_entry_is_in_the_folder_of_the_extension_that_has_its_preset() -> None:
    places = [entry.path.relative_to(PACKAGE).parts for entry in ENTRIES]
    of_extensions = {place[1] for place in places if place[0] == "extensions"}
    assert of_extensions == {"actor_critic"}
    assert root_of("td3") == PACKAGE / "extensions" / "actor_critic" / "zoo"
    assert root_of("dqn") == ZOO
    entry = find_entry("td3", "Pendulum-v1")
    assert entry is not None
    assert entry.path == root_of("td3") / "td3" / "Pendulum-v1.toml"


def test_a_zoo_of_ones_own_has_the_entries_of_all_presets(tmp_path: Path) -> None:
    path = write(tmp_path, preset="td3")
    assert [entry.path for entry in all_entries(tmp_path)] == [path]
    assert find_entry("td3", "CartPole-v1", tmp_path) == all_entries(tmp_path)[0]


# ---- when an entry is used ----


def test_a_preset_uses_the_entry_of_an_id_and_explicit_keywords_win(zoo: Path) -> None:
    trainer = presets.dqn("CartPole-v1", seed=1, gamma=0.75, **QUIET)
    assert trainer.policy.horizon.gamma == 0.75
    assert trainer.policy.network.encoder.n_features == 7
    assert trainer.settings()["max_epoch"] == 2
    assert trainer.policy.exploration.metrics(10)["epsilon"] == 0.25


def test_an_entry_may_have_other_settings_for_a_gpu(zoo: Path) -> None:
    path = zoo / "dqn" / "CartPole-v1.toml"
    path.write_text(path.read_text() + "\n[on_accelerator]\nbatch_size = 96\n")
    here, there = (presets.dqn.config("CartPole-v1", device=name).settings() for name in ("cpu", "cuda:1"))
    assert there == {**here, "batch_size": 96, "device": "cuda:1"}
    assert presets.dqn.config("CartPole-v1", device="cuda", batch_size=8).settings()["batch_size"] == 8
    path.write_text(path.read_text().replace("batch_size = 96", "batch_sise = 96"))
    with pytest.raises(tk.errors.ConfigError, match=r"on_accelerator.*batch_sise.*batch_size"):
        presets.dqn.config("CartPole-v1").settings()


def test_the_general_table_is_used_where_the_zoo_is_off(zoo: Path) -> None:
    trainer = presets.dqn("CartPole-v1", seed=1, zoo=False, **QUIET)
    assert trainer.policy.horizon.gamma == presets.settings("dqn")["gamma"]
    assert trainer.settings()["max_epoch"] == presets.settings("dqn")["max_epoch"]


@pytest.mark.parametrize(
    "env",
    [
        lambda: gym.make("CartPole-v1"),
        gym.vector.SyncVectorEnv([lambda: gym.make("CartPole-v1")]),
        "gymnasium.envs.classic_control.CartPoleEnv",
        "CartPole-v0",
        "../dqn/CartPole-v1",
    ],
    ids=["factory", "vector", "class", "other id", "path"],
)
def test_only_the_id_itself_matches(zoo: Path, env: Any) -> None:
    assert presets.dqn.zoo_entry(env, {}) is None
    assert presets.dqn.zoo_entry("CartPole-v1", {}) is not None
    assert presets.ppo.zoo_entry("CartPole-v1", {}) is None  # it has no file there


@pytest.mark.parametrize(
    ("env_options", "is_used"),
    [
        ({"backend": "async", "on_error": "restart"}, True),
        ({}, True),
        ({"env_kwargs": {"sutton_barto_reward": True}}, False),
        ({"env_kwargs": {"render_mode": "rgb_array"}}, True),
        ({"max_episode_steps": 100}, False),
        ({"stack": 2}, False),
    ],
    ids=str,
)
def test_options_that_change_the_environment_need_the_general_table(zoo: Path, env_options: Any, is_used: bool) -> None:
    entry = presets.dqn.zoo_entry("CartPole-v1", {"env_options": env_options})
    assert (entry is not None) == is_used


def test_the_options_of_an_entrys_environment_are_used_and_are_not_a_change(zoo: Path) -> None:
    write(zoo, settings="env_options = {max_episode_steps = 9}\n")
    trainer = presets.dqn("CartPole-v1", seed=1, **QUIET)
    assert trainer.train_collector.envs.max_episode_steps == 9
    assert presets.dqn.zoo_entry("CartPole-v1", {"env_options": {"max_episode_steps": 9}}) is not None
    assert presets.dqn.zoo_entry("CartPole-v1", {"env_options": {"max_episode_steps": 8}}) is None
    config = presets.dqn.config("CartPole-v1", env_options={"backend": "async"})
    assert config["env_options"] == {"max_episode_steps": 9, "backend": "async"}


def test_a_line_says_that_the_zoo_is_not_used_for_a_changed_environment(
    zoo: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    presets.dqn("CartPole-v1", seed=1, **{**QUIET, "verbose": True}, env_options={"max_episode_steps": 9})
    said = "presets.dqn: the general table, as env_options changes max_episode_steps of the zoo's CartPole-v1"
    assert said in capsys.readouterr().out


def test_one_line_says_what_is_used_and_how_to_switch_it_off(zoo: Path, capsys: pytest.CaptureFixture[str]) -> None:
    presets.dqn("CartPole-v1", seed=1, **{**QUIET, "verbose": True})
    presets.dqn("CartPole-v1", seed=1, zoo=False, **{**QUIET, "verbose": True})
    presets.dqn("CartPole-v1", seed=1, **QUIET)
    line = "presets.dqn: settings of the zoo for CartPole-v1 (a test; not yet run); zoo=False, in a shell --no-zoo, "
    line += "for the general table\n"
    assert capsys.readouterr().out == line


def test_a_configuration_reads_the_settings_that_it_builds_with(zoo: Path) -> None:
    config = presets.dqn.config("CartPole-v1", seed=1, gamma=0.75, device="cpu")
    assert (config["gamma"], config["hidden"], config["lr"]) == (0.75, (7,), tk.Linear(1e-2, 1e-4))
    assert config.settings().keys() >= presets.settings("dqn").keys()
    general = config.copy(zoo=False)
    assert general["hidden"] == presets.settings("dqn")["hidden"]


def test_a_configuration_written_out_stays_when_the_entry_changes(zoo: Path) -> None:
    written = presets.dqn.config("CartPole-v1", seed=1, gamma=0.75).written_out()
    write(zoo, settings="batch_size = 999\n")
    assert (written["gamma"], written["hidden"], written["zoo"]) == (0.75, (7,), False)
    assert written["batch_size"] == presets.settings("dqn")["batch_size"]
    other = presets.dqn.config("CartPole-v0", gamma=0.75)
    assert other.written_out() == other


# ---- the file ----


def test_an_entry_is_read_with_its_result(zoo: Path) -> None:
    path = write(zoo, head="source_result = 500.0\nepisodes = 20\n")
    path.write_text(path.read_text() + RESULT)
    entry = read_entry(path, zoo)
    assert (entry.name, entry.source, entry.source_result, entry.episodes) == ("dqn/CartPole-v1", "a test", 500.0, 20)
    assert entry.result is not None
    assert (entry.result.returns, entry.result.curve) == ((9.0, 11.0), ((30, 5.0), (60, 10.0)))
    assert entry.digest == read_entry(path, zoo).digest != entry.result.settings


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("tuning_seeds = [11]", "tuning_seeds = [11", r"CartPole-v1.toml cannot be read as TOML"),
        ('source = "a test"', "", r"CartPole-v1.toml has no 'source': add it"),
        ('source = "a test"', 'source = " "', r"CartPole-v1.toml.source must say where the settings come from"),
        ("tuning_seeds", "tuning_seed", r"has an unknown field 'tuning_seed', did you mean 'tuning_seeds'\?"),
        ("[11]", '["11"]', r"CartPole-v1.toml.tuning_seeds must be a sequence of whole numbers, got"),
        ("[11]", "[102]", r"CartPole-v1.toml.result.seeds must not be tuning seeds, got \[102\]: train on others"),
        ("[9.0, 11.0]", "[9.0]", r"CartPole-v1.toml.result has 1 returns of 2 seeds"),
        ("mean = 10.0", "mean = 12.0", r"CartPole-v1.toml.result.mean 12.0 is not in \[9.0, 11.0\]"),
        ("steps = 60", "", r"CartPole-v1.toml.result has no 'steps': add it"),
    ],
)
def test_what_is_wrong_with_a_file_is_said_by_its_name(zoo: Path, old: str, new: str, message: str) -> None:
    path = write(zoo)
    text = path.read_text() + RESULT
    assert old in text
    path.write_text(text.replace(old, new))
    with pytest.raises(tk.ConfigError, match=message):
        read_entry(path, zoo)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ("gama = 1", r"CartPole-v1.toml.settings: unknown option 'gama', did you mean 'gamma'"),
        ('batch_size = "many"', r"CartPole-v1.toml.settings.batch_size must be a whole number or None, got 'many'"),
    ],
)
def test_settings_are_checked_by_the_preset(zoo: Path, settings: str, message: str) -> None:
    write(zoo, settings=settings)
    with pytest.raises(tk.ConfigError, match=message):
        presets.dqn("CartPole-v1")
