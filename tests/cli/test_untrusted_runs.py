"""Run folders from a stranger: what their files say is data, and no command calls or imports what they name."""

import copy
import io
import json
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest

import trainkit as tk
from tests.cli.train import complaint
from tests.helpers.manifests import signed
from trainkit.cli import main
from trainkit.loggers.runs import write_config


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Work in a folder of one's own that Python imports from, with a module that leaves a mark when it runs."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    (tmp_path / "payload.py").write_text(
        "from pathlib import Path\n"
        "Path('executed').touch()\n"
        "import gymnasium as gym\n"
        "class Env(gym.Env):\n"
        "    def __init__(self, **kwargs):\n"
        "        Path('called').touch()\n"
    )
    yield tmp_path
    sys.modules.pop("payload", None)


@pytest.fixture
def run(here: Path) -> Path:
    """Write a run folder by hand: numbers, a config, and a policy of CartPole."""
    folder = here / "run"
    envs = tk.make_envs("CartPole-v1", 1)
    policy = tk.DQNPolicy.for_envs(envs, hidden=(4,), seed=1, device="cpu")
    policy.save(folder / "checkpoint")
    manifest = folder / "checkpoint" / "manifest.json"
    assert manifest.is_file()
    logger = tk.JsonlLogger(folder)
    logger.write(1, {"test/returns/mean": 1.0})
    logger.close()
    write(folder)
    return folder


def write(folder: Path, **changes: Any) -> None:
    """Write a config as `trainkit train` does, with changes."""
    config = {
        "preset": "dqn", "env": "CartPole-v1", "seed": 1, "data": None, "settings": {}, "command": "trainkit train",
        "versions": {}, "began": "2026-01-01T00:00:00+0000",
    }  # fmt: skip
    write_config(folder, config | changes)


def options(**env_options: Any) -> dict[str, str]:
    return {"env_options": repr(env_options)}


SHELL = {"command": "touch executed"}
ATTACKS: dict[str, dict[str, Any]] = {
    "a function": {"env": "os.system", "settings": options(env_kwargs=SHELL)},
    "a class": {"env": "subprocess.Popen", "settings": options(env_kwargs={"args": ["touch", "executed"]})},
    "a module's class": {"env": "payload.Env"},
    "a module to import": {"env": "payload:CartPole-v1"},
    "a module without a name": {"env": "payload:"},
    "a known namespace with a module": {"env": "ALE/payload:Env-v0"},
    "an id that makes an option's class": {
        "env": "Teller-v0",
        "settings": options(env_kwargs={"entry": "payload:Env"}),
    },
    "a path": {"env": "Teller-v0", "settings": options(env_kwargs={"xml_file": "/etc/passwd"})},
    "a nested class path": {"env": "Teller-v0", "settings": options(env_kwargs={"a": [{"b": "payload.Env"}]})},
    "a name that is a path": {"env": "Teller-v0", "settings": options(env_kwargs={"a": {"payload.Env": 1}})},
    "a window": {"settings": options(env_kwargs={"render_mode": "human"})},
    "gymnasium's own arguments": {"settings": options(env_kwargs={"vector_kwargs": {}, "entry_point": "payload"})},
    "wrappers": {"settings": options(wrappers=["payload.Env"])},
    "another policy": {"settings": options(policy="payload.Env", n_envs=10**9)},
    "a stack of all memory": {"settings": options(stack=10**9)},
}


class Teller(gym.Env[Any, Any]):
    """An environment that imports what its options name, as some registered ones do."""

    def __init__(self, **kwargs: Any) -> None:
        Path("called").touch()


@pytest.mark.parametrize("attack", ATTACKS)
def test_eval_calls_and_imports_nothing_that_a_file_names(
    attack: str, run: Path, here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    gym.register("Teller-v0", entry_point=Teller)
    write(run, **ATTACKS[attack])
    try:
        assert main(["eval", str(run), "--episodes", "1"]) == 2
    finally:
        del gym.registry["Teller-v0"]
    assert sorted(path.name for path in here.iterdir()) == ["payload.py", "run"]
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith(f"trainkit: {run / 'config.json'}")


def test_a_class_that_the_command_line_names_is_used(run: Path, here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (here / "mine.py").write_text("from gymnasium.envs.classic_control import CartPoleEnv as Pole\n")
    write(run, env="mine.Pole")
    assert main(["eval", str(run), "--episodes", "1"]) == 2
    assert "give the environment yourself with --env" in capsys.readouterr().err
    arguments = ["eval", str(run), "--episodes", "1", "--env", "mine.Pole", "--env-kwargs"]
    assert main([*arguments, "{'sutton_barto_reward': True}"]) == 0
    assert "return  mean -1 " in capsys.readouterr().out  # Sutton and Barto pay -1 for the fall, and nothing before
    assert main([*arguments, "{7: 1}"]) == 2


def test_plain_values_of_a_file_reach_the_environment(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write(run, settings=options(env_kwargs={"sutton_barto_reward": True}, max_episode_steps=7))
    assert main(["eval", str(run), "--episodes", "1"]) == 0
    output = capsys.readouterr().out
    assert "return  mean 0 " in output
    assert "length  mean 7 " in output


def test_an_id_without_its_version_is_answered_with_the_newest(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    config = json.loads((run / "config.json").read_text())
    write(run, **config | {"env": "CartPole"})
    assert main(["eval", str(run), "--episodes", "1"]) == 2
    assert "make_envs: 'CartPole' names no version, which may change: give 'CartPole-v1'" in capsys.readouterr().err
    assert main(["eval", str(run), "--env", "CartPole-v1", "--episodes", "1"]) == 0


# ---- forgeries ----

N_FORGERIES = [6, pytest.param(60, marks=pytest.mark.slow)]

# Values that a stranger may write in the place of any other.
STRANGE: list[Any] = [
    None, True, False, 0, -1, 7, 2**63, 10**30, 10**400, 0.5, -1e300, 1e308, float("nan"), float("inf"), "", "a", "é✓",
    "\x1b[2J\x00\n", "$\\frac{", "os.system", "payload:Env", "../../payload", "x" * 5_000, [], [1], ["a", None], {},
    {"a": 1}, {"": {}}, [[[[[[]]]]]], {"part": "Adam", "of": {}},
    {"part": "os.system", "of": {"command": "touch executed"}},
]  # fmt: skip
BYTES: list[bytes] = [
    b"", b"\x00" * 64, b"\xff\xfe\x00", b"[" * 100_000, b'{"a":' * 100_000, b"1", b"null", b'"text"', b"[1, 2]", b"{}",
    b"\x80abc", b"NaN", b"1" * 5_000, b'{"seed": 1e999}',
]  # fmt: skip


def places(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """List the paths of all values within a JSON value."""
    children = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return [path, *(place for key, child in children for place in places(child, (*path, key)))]


def forged(value: Any, rng: np.random.Generator) -> Any:
    """Put strange values in one to three places of a JSON value, or take what is there away."""
    value = copy.deepcopy(value)
    for _ in range(rng.integers(1, 4)):
        found = [place for place in places(value) if place]
        if not found:
            break
        *above, last = found[rng.integers(len(found))]
        parent = value
        for key in above:
            parent = parent[key]
        if rng.random() < 0.2:
            del parent[last]
        else:
            parent[last] = copy.deepcopy(STRANGE[rng.integers(len(STRANGE))])
    return value


def forge_config(run: Path, rng: np.random.Generator) -> None:
    file = run / "config.json"
    config = {
        "preset": "dqn", "env": "CartPole-v1", "seed": 1, "data": None, "command": "trainkit train",
        "versions": {"a": "1"},
        "settings": {"env_options": "{'env_kwargs': {'sutton_barto_reward': True}, 'stack': 1}", "lr": "1e-3"},
        "began": "2026-01-01T00:00:00+0000",
    }  # fmt: skip
    if rng.random() < 0.3:
        file.write_bytes(BYTES[rng.integers(len(BYTES))])
        return
    config = forged(config, rng)
    if rng.random() < 0.3 and isinstance(config.get("settings"), dict):
        strange = STRANGE[rng.integers(len(STRANGE))]
        config["settings"]["env_options"] = repr({"env_kwargs": {"sutton_barto_reward": strange}, "backend": strange})
    file.write_text(json.dumps(config))


def forge_numbers(run: Path, rng: np.random.Generator) -> None:
    lines: list[Any] = [{"settings": {"env": "CartPole-v1", "seed": 1}}]
    lines += [{"step": step, "test/returns/mean": 1.0 * step, "time/collect": 0.5} for step in (1, 2, 3)]
    if rng.random() < 0.5:
        text = b"\n".join(json.dumps(line).encode() for line in forged(lines, rng))
    else:
        text = b"\n".join(
            [json.dumps(lines[0]).encode(), BYTES[rng.integers(len(BYTES))], json.dumps(lines[1]).encode()]
        )
    (run / "numbers.jsonl").write_bytes(text)


def forge_manifest(run: Path, rng: np.random.Generator) -> None:
    file = run / "checkpoint" / "manifest.json"
    if rng.random() < 0.2:
        file.write_bytes(BYTES[rng.integers(len(BYTES))])
        return
    manifest = json.loads(file.read_text())
    manifest.pop("sha256")
    manifest["progress"] = {
        "epoch": 1, "env_step": 2, "gradient_step": 3, "seconds": 4.0, "stop_reason": None, "best_score": 1.0,
        "best_epoch": 1,
    }  # fmt: skip
    manifest["logs"] = [str(run)]
    manifest = forged(manifest, rng)
    file.write_bytes(signed(manifest))  # as who can write the file can


FORGE = {"config": forge_config, "numbers": forge_numbers, "manifest": forge_manifest}
COMMANDS = [["eval", "--episodes", "1"], ["inspect"], ["compare"], ["export"], ["plot"], ["plot", "--time"]]


@pytest.mark.filterwarnings("ignore::UserWarning")  # a font lacks a character; settings of another run
@pytest.mark.parametrize("n_forgeries", N_FORGERIES)
@pytest.mark.parametrize("kind", FORGE)
def test_forged_run_folders_end_in_one_line_and_run_nothing(
    kind: str, n_forgeries: int, run: Path, here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("matplotlib", reason="needs trainkit-rl[plot]")
    pristine = {path: path.read_bytes() for path in run.rglob("*") if path.is_file()}
    codes = []
    for seed in range(n_forgeries):
        FORGE[kind](run, np.random.default_rng(seed))
        command = COMMANDS[seed % len(COMMANDS)]
        try:  # --traceback: errors that are not ours come through
            codes.append(main(["--traceback", *command[:1], str(run), *command[1:]]))
        except (tk.TrainkitError, gym.error.Error):
            codes.append(2)
        except Exception as error:
            raise AssertionError(f"forgery {seed}, {command}") from error
        captured = capsys.readouterr()
        assert "\x1b[2J" not in captured.out + captured.err
        assert not (here / "executed").exists(), seed
        assert "payload" not in sys.modules, seed
        assert codes[-1] in (0, 2), seed
        for path, content in pristine.items():
            path.write_bytes(content)
    assert codes.count(2) > n_forgeries // 5


@pytest.mark.parametrize("n_forgeries", N_FORGERIES)
def test_forged_configurations_end_in_one_line(
    n_forgeries: int, here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rng = np.random.default_rng(0)
    settings = {"lr": 1e-3, "hidden": [8, 8], "gamma": 0.99, "env_options": {"env_kwargs": {}}, "dueling": True}
    for number in range(n_forgeries):
        text: bytes = BYTES[number // 2 % len(BYTES)]
        if number % 2:
            name = str(rng.choice([*settings, "logger", "n_envs", "réseau"]))
            value = STRANGE[rng.integers(len(STRANGE))]
            text = f"{json.dumps(name)} = {json.dumps(value)}".replace("null", "'none'").encode()
        (here / "a.toml").write_bytes(text)
        arguments = ["train", "dqn", "CartPole-v1", "--quiet", "--config", "a.toml", "--set", "max_epoch=0"]
        try:
            code = main(["--traceback", *arguments])
        except (tk.TrainkitError, gym.error.Error):
            code = 2
        assert code in (0, 2), (text, code)
        assert not (here / "executed").exists()
        capsys.readouterr()


def test_a_run_folder_of_a_stranger_cannot_hold_a_command_up(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (run / "config.json").unlink()
    os.mkfifo(run / "config.json")
    for command in ("eval", "inspect", "compare"):
        assert main([command, str(run)]) == 2
        assert "must be a regular file and is a FIFO" in complaint(capsys)


def test_paths_and_names_are_shown_on_a_terminal_that_knows_ascii_only(
    run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = run.rename(run.with_name("läufe ✓"))
    write(folder, command="trainkit train ✓")
    out, err = (io.TextIOWrapper(io.BytesIO(), encoding="ascii") for _ in range(2))
    monkeypatch.setattr(sys, "stdout", out)
    monkeypatch.setattr(sys, "stderr", err)
    assert main(["inspect", str(folder)]) == 0
    assert main(["eval", str(folder / "ßß")]) == 2
    assert b"l\\xe4ufe \\u2713" in out.buffer.getvalue()
    (line,) = err.buffer.getvalue().splitlines()
    assert b"\\xdf\\xdf is no run" in line


def test_a_mistake_of_trainkit_itself_is_one_line_too(
    run: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def broken(*_: Any) -> None:
        raise ZeroDivisionError("on purpose")

    monkeypatch.setattr("trainkit.cli.inspect.find_runs", broken)
    assert main(["inspect", str(run)]) == 2
    assert complaint(capsys).startswith("trainkit: ZeroDivisionError: on purpose; trainkit --traceback shows")
