"""Whether the settings of a preset are flags: typed, documented, with defaults, and answered where they are wrong."""

import re
from pathlib import Path

import pytest

import trainkit as tk
from trainkit.cli.commands import build_parser, main
from trainkit.cli.flags import documented, given_settings
from trainkit.core.config import from_text, to_shell
from trainkit.loggers.runs import RunFolder
from trainkit.presets import PRESETS


def settings_of(*words: str) -> dict[str, object]:
    options = build_parser().parse_args(["train", *words])
    return {name: from_text(text) for name, text in given_settings(options).items()}


def complaint(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    with pytest.raises(SystemExit) as caught:
        main(["train", *words])
    assert caught.value.code == 2
    (line,) = capsys.readouterr().err.splitlines()
    return line


def test_flags_are_the_settings_in_their_types() -> None:
    flags = "--lr 1e-3 --n_envs 4 --hidden 64 --network.head 32,16 --overlap --no-network.dueling --reward -5"
    more = [
        "--epsilon=linear:0.4,1,0.5",
        *"--target-tau 0:1.0,500:0.05 --batch-size none --network.norm none --network.noisy 0.1".split(),
        *("--env-options", "{'stack': 2}", "--backup", "double", "--penalty", "ConservativePenalty(0.5)"),
    ]
    settings = settings_of("dqn", "CartPole-v1", *flags.split(), *more)
    assert repr(settings["penalty"]) == "ConservativePenalty(weight=0.5)"
    assert settings == {
        "lr": 1e-3, "n_envs": 4, "hidden": (64,), "network.head": (32, 16), "overlap": True, "reward": -5,
        "network.dueling": False, "epsilon": tk.Linear(0.4, 1, 0.5), "target_tau": ((0, 1.0), (500, 0.05)),
        "batch_size": None, "network.norm": None, "network.noisy": 0.1, "env_options": {"stack": 2},
        "backup": "double", "penalty": settings["penalty"],
    }  # fmt: skip


def test_a_value_may_begin_with_a_minus() -> None:
    flags = "--stop-return -1e1 --max-grad-norm -.5 --reward -1,1"
    expected = {"stop_return": -10.0, "max_grad_norm": -0.5, "reward": (-1, 1)}
    assert settings_of("dqn", "CartPole-v1", *flags.split()) == expected
    assert settings_of("dqn", *flags.split(), "CartPole-v1") == expected


def test_flags_may_stand_before_the_environment() -> None:
    words = ["train", "--name", "ppo", "dqn", "--overlap", "CartPole-v1", "--quiet"]
    options = build_parser().parse_args(words)
    assert (options.preset, options.env, options.name) == ("dqn", "CartPole-v1", "ppo")
    assert given_settings(options) == {"overlap": "true"}


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("dqn A --lrr 1", "unknown flag --lrr, did you mean --lr?"),
        ("dqn A --learning_rate=1", "unknown flag --learning-rate, did you mean --lr?"),
        ("ppo A --entropy-wieght 0.1", "unknown flag --entropy-wieght, did you mean --entropy-weight?"),
        ("dqnn A --lr 1", "argument PRESET: no preset is called 'dqnn', did you mean 'dqn'?: see trainkit presets"),
        (
            "CartPole-v1",
            "argument PRESET: no preset is called 'CartPole-v1': it is an environment; name the preset before it, and "
            "see trainkit presets",
        ),
        (
            "Pendulum-v1 --lr 1",
            "argument PRESET: no preset is called 'Pendulum-v1': it is an environment; start with "
            f"`trainkit train {tk.presets.continuous_default.name} Pendulum-v1`, or see trainkit presets",
        ),
        ("dqn A --n-envs 4.5", "argument --n-envs: must be a whole number, got 4.5"),
        ("bc A --loss l1", "argument --loss: must be 'likelihood' or 'mse', got 'l1'"),
        ("dqn A --network.norm l1", "argument --network.norm: must be 'layer' or 'rms' or None, got 'l1'"),
        ("dqn A --dueling", "unknown flag --dueling, did you mean --network.dueling?"),
        ("dqn A --double", "unknown flag --double, did you mean --backup double?"),
        ("dqn A --beta 1", "unknown flag --beta, did you mean --set buffer.beta=?"),
        ("dqn A --atoms 5", 'unknown flag --atoms, did you mean --value "CategoricalValue(atoms=...)"?'),
        (
            "dqn A --lr fast",
            "argument --lr: must be a schedule such as 1e-3, linear:1e-3,0 or 0:1e-3,5000:1e-4, got 'fast'",
        ),
        ("dqn A more", "unexpected 'more'"),
    ],
)
def test_a_wrong_flag_is_one_line_with_what_was_meant(
    words: str, message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert complaint(capsys, *words.split()) == f"trainkit: train: {message} (trainkit train --help)"


@pytest.mark.parametrize("name", PRESETS)
def test_the_help_of_a_preset_has_each_setting_with_its_meaning_and_default(
    name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as caught:
        main(["train", name, "--help"])
    assert caught.value.code == 0
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) <= 100
    lr = to_shell(PRESETS[name].table()["lr"])
    assert re.search(rf"--lr SCHEDULE .*\[{re.escape(lr)}[\],]", " ".join(" ".join(lines).split()))
    assert f"`trainkit presets {name}` lists them all" in " ".join(lines)
    assert main(["presets", name]) == 0
    shown = " ".join(capsys.readouterr().out.split())
    assert re.search(r"--hidden LIST widths of the hidden layers \[", shown)
    assert "--n-test-envs N environments that evaluations step together [10" in shown
    assert "--evaluation none how to evaluate" in shown


def test_the_help_for_an_atari_game_has_the_defaults_for_images(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["train", "dqn", "ALE/Pong-v5", "--help"])
    shown = " ".join(capsys.readouterr().out.split())
    assert "--lr SCHEDULE learning rate, in place of the optimizer's [6.25e-05]" in shown
    assert "--capacity N rows of the replay buffer [1000000]" in shown


def test_the_help_for_an_environment_of_the_zoo_has_its_settings(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["train", "ppo", "Pendulum-v1", "--help"])
    shown = " ".join(capsys.readouterr().out.split())
    entry = PRESETS["ppo"].zoo_entry("Pendulum-v1", {})
    assert entry is not None
    assert f"--gamma X discount per step [{entry.settings['gamma']}]" in shown
    assert "--zoo, --no-zoo" in shown


def test_an_item_of_a_group_is_set_by_itself(tmp_path: Path) -> None:
    words = "--max-episode-steps 7 --set network.dueling=true --max-epoch 1 --step-per-epoch 64"
    words += " --hidden 8 --device cpu --quiet --evaluation none --set env_options.stack=2"
    kwargs = ["--env-kwargs", "{'sutton_barto_reward': True}"]
    assert main(["train", "dqn", "CartPole-v1", *words.split(), *kwargs, "--logdir", str(tmp_path)]) == 0
    run = RunFolder.read(tmp_path / "dqn-CartPole-v1" / "seed1")
    settings = {"env/stack": 2, "env/max_episode_steps": 7, "policy/dueling": True, "policy/norm": "layer"}
    assert {name: run.settings[name] for name in settings} == settings
    assert run.settings["env/env_kwargs/sutton_barto_reward"] is True


def test_an_item_of_what_is_no_dict_is_rejected(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["train", "dqn", "CartPole-v1", "--buffer", "prioritized", "--set", "buffer.alpha=0.7"]) == 2
    assert "buffer.alpha is of a dict, and buffer is 'prioritized'" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("env", "message"),
    [
        ("MountainCar", "'MountainCar' names no version, which may change: give 'MountainCar-v0'"),
        ("tests.trainer.toys:Walk", "a class is named tests.trainer.toys.Walk"),
        ("trainkit.envs", "'trainkit.envs' is a module: name a class in it, module.Class"),
    ],
)
def test_another_spelling_of_an_environment_is_named(
    env: str, message: str, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    assert main(["train", "dqn", env, "--logdir", str(tmp_path)]) == 2
    assert message in capsys.readouterr().err


def test_a_docstring_gives_the_text_of_each_argument() -> None:
    class Own:
        """A class.

        Args:
            lr: learning rate: a number,
                or none.
            gamma: discount.

        Attributes:
            other: no argument.
        """

    assert documented(Own) == {"lr": "learning rate: a number, or none.", "gamma": "discount."}


@pytest.mark.parametrize("value", [1e-3, tk.Linear(1e-3, 0.0), tk.Linear(1.0, 0.1, 0.5), ((0, 1.0), (500, 0.05)), None])
def test_a_setting_is_read_back_from_its_text(value: object) -> None:
    assert from_text(to_shell(value)) == value


def test_version_names_those_of_the_packages(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["--version"])
    assert re.fullmatch(rf"trainkit {re.escape(tk.__version__)} \(.*torch .*gymnasium .*\)\n", capsys.readouterr().out)
