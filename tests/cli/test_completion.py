"""The script that a shell completes with: commands, presets, and the flags and words of each."""

import shutil
import subprocess
from pathlib import Path

import pytest

from trainkit.cli import main
from trainkit.cli.commands import build_parser


def completed(script: Path, *words: str) -> list[str]:
    """Return what bash offers for the last of some words."""
    shell = f"""
        source {script}
        COMP_WORDS=(trainkit {" ".join(f"'{word}'" for word in words)})
        COMP_CWORD={len(words)}
        "$(complete -p trainkit | sed -E 's/.* -F ([^ ]+) .*/\\1/')"
        printf '%s\\n' "${{COMPREPLY[@]}}"
    """
    return subprocess.run(["bash", "-c", shell], capture_output=True, text=True, check=True).stdout.split()


def test_bash_completes_commands_presets_flags_and_words(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("shtab", reason="needs trainkit-rl[completion]")
    if shutil.which("bash") is None:
        pytest.skip("needs bash")
    assert main(["completion", "bash"]) == 0
    script = tmp_path / "trainkit"
    script.write_text(capsys.readouterr().out)
    assert completed(script, "tr") == ["train"]
    assert {"dqn", "ppo", "cql"} <= {*completed(script, "train", "")}
    assert completed(script, "train", "double_dqn", "CartPole-v1", "--target-e") == ["--target-every"]
    assert completed(script, "train", "ppo", "CartPole-v1", "--target-e") == []
    assert completed(script, "train", "dqn", "CartPole-v1", "--lr", "1e-3", "--los") == ["--loss"]
    assert completed(script, "train", "dqn", "--loss", "") == ["huber", "mse"]


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_every_shell_has_a_script_with_the_flags(shell: str, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("shtab", reason="needs trainkit-rl[completion]")
    assert main(["completion", shell]) == 0
    script = capsys.readouterr().out
    assert "munchausen_dqn" in script
    assert "refresh-priorities" in script


def test_the_parser_for_completion_reads_what_the_command_reads() -> None:
    words = ["train", "dqn", "CartPole-v1", "--lr", "1e-3", "--seeds", "2"]
    given, below = (build_parser(completes=completes).parse_args(words) for completes in (False, True))
    assert vars(below).items() <= vars(given).items()
