"""What users of other libraries expect and do not get yet: each test fails until the part that it names is rebuilt."""

import contextlib
import os
import re
import subprocess
import sys
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from gymnasium import spaces

import trainkit as tk
from tests.helpers.learning import FOUR_NUMBERS, Spaces
from tests.outside.rival_pages import PAGES, rows_of
from trainkit.cli import main

# ---- hints: no guess is better than a wrong one ----


def message(call: Callable[[], Any]) -> str:
    with pytest.raises((tk.ConfigError, AttributeError, tk.SpaceMismatchError)) as caught:
        call()
    return str(caught.value)


@pytest.mark.parametrize(
    ("name", "wrong"),
    [
        ("norm_obs", "'norm'"),  # layer normalization
        ("n_timesteps", "'n_step'"),
        ("resume", "CsvLogger"),
        ("adam_epsilon", "'epsilon'"),
        ("batch_mode", "'batch_size'"),
        ("normalize_actions", "'normalize_obs'"),
        ("on_train_result", "'on_train_start'"),
    ],
)
def test_an_option_of_another_library_is_not_answered_by_a_wrong_one(name: str, wrong: str) -> None:
    assert wrong not in message(lambda: tk.presets.dqn("CartPole-v1", **{name: 1}))


def test_a_relabeling_buffer_is_not_suggested_as_a_plain_one() -> None:
    assert "ReplayBuffer?" not in message(lambda: tk.HerReplayBuffer)


@pytest.mark.parametrize(
    ("flag", "wrong"),
    [
        ("--n-timesteps", "--step-per-collect"),
        ("--n-timesteps", "--n-step"),
        ("--env", "--n-envs"),
    ],
)
def test_a_flag_of_another_library_is_not_answered_by_a_wrong_one(
    flag: str, wrong: str, capsys: pytest.CaptureFixture[str]
) -> None:
    shown = "".join(said(["train", preset, "CartPole-v1", flag, "10"], capsys) for preset in ("dqn", "ppo"))
    assert wrong not in shown


@pytest.mark.parametrize("dtype", [np.int64, np.float16])
def test_policies_do_not_advise_each_other_in_a_circle(dtype: Any) -> None:
    envs = Spaces(FOUR_NUMBERS, spaces.Box(0, 3, (1,), dtype))
    texts = {
        kind: message(lambda kind=kind: kind.for_envs(envs)) for kind in (tk.DQNPolicy, tk.SACPolicy, tk.PPOPolicy)
    }
    named = {kind.__name__: re.findall(r"\b(\w+Policy)\b", text.partition(":")[2]) for kind, text in texts.items()}
    assert [(kind, other) for kind, others in named.items() for other in others if other in named] == []


# The options for which the pages have names of ours, and the groups that `presets.dqn` and `presets.ppo` are requested.
GROUPS = {
    "tianshou": {"Trainers", "Buffers", "Every policy", "Q-learners", "Policy gradients", "Networks"},
    "rllib": {
        "DQNConfig.training",
        "PPOConfig.training",
        "training",
        "environment",
        "env_runners",
        "evaluation",
        "model",
    },
}


OF_POLICIES = {"horizon"}  # an option of our policies, whose name Tianshou's hindsight buffer has for another


@pytest.mark.slow
@pytest.mark.parametrize("library", GROUPS)
def test_a_hint_for_another_librarys_option_is_what_the_pages_say(library: str) -> None:
    said_by_pages: dict[str, str] = {}
    for section, theirs, ours in rows_of(PAGES[library]):
        if section in GROUPS[library]:
            for name in theirs:
                said_by_pages[name] = said_by_pages.get(name, "") + (f"{ours} {name}" if "the same" in ours else ours)
    wrong = {}
    for name, ours in said_by_pages.items():
        for preset in (tk.presets.dqn, tk.presets.ppo):
            with contextlib.suppress(tk.ConfigError, TypeError, ValueError):
                preset.config("CartPole-v1", **{name: 1})
                continue
            said = message(lambda name=name, preset=preset: preset("CartPole-v1", **{name: 1}))
            hints = re.findall(r"(?:^| or )'?(\w+)", said.partition("did you mean ")[2])
            if name in OF_POLICIES:
                assert f"(envs, {name}=...)" in said
                continue
            if hints and not any(re.search(rf"\b{hint}\b", ours) for hint in hints):
                wrong[name] = hints[0]
    assert wrong == {}


# ---- the command ----


def said(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> str:
    """Return what a command prints before it ends, having found a mistake."""
    with contextlib.suppress(SystemExit):
        main(arguments)
    shown = capsys.readouterr()
    return shown.out + shown.err


SHORT = ["--max-env-step", "64", "--quiet", "--set", "episode_per_test=1", "--set", "n_test_envs=1"]


@pytest.mark.parametrize(
    "flags",
    [["--max-episode-steps", "10"], ["--env-kwargs", '{"sutton_barto_reward": true}'], ["--evaluation", "none"]],
    ids=["limit", "kwargs", "evaluation"],
)
def test_train_has_the_flags_that_eval_and_the_settings_have(
    flags: list[str], tmp_path: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ["train", "ppo", "CartPole-v1", "--logdir", str(tmp_path), *SHORT, *flags]
    assert "unknown flag" not in said(arguments, capsys)


@pytest.mark.parametrize(
    "flag", ["--stack", "--env-wrappers", "--dueling", "--atoms", "--double", "--alpha", "--max-repeat"]
)
def test_a_hint_in_the_shell_is_in_the_shells_spelling(flag: str, capsys: pytest.CaptureFixture[str]) -> None:
    shown = said(["train", "dqn", "CartPole-v1", flag, "4"], capsys)
    hint = shown.partition("did you mean ")[2]
    assert hint == "" or re.match(r"(--[a-z.-]+( |=|\?)|--set )", hint), shown
    assert "unknown flag" in shown


def test_help_takes_less_than_a_second_of_the_processor() -> None:
    before = os.times()
    subprocess.run([sys.executable, "-m", "trainkit", "--help"], check=True, capture_output=True)
    after = os.times()
    spent = after.children_user - before.children_user + after.children_system - before.children_system
    assert spent < 1.0


# ---- names of environments ----


@pytest.mark.parametrize(
    ("name", "right"),
    [
        ("tictactoe_v3", "pettingzoo/classic/tictactoe_v3"),
        ("pettingzoo.classic.tictactoe_v3", "pettingzoo/classic/tictactoe_v3"),
        ("gymnasium.envs.classic_control.cartpole:CartPoleEnv", "gymnasium.envs.classic_control.cartpole.CartPoleEnv"),
        ("MountainCar", "MountainCar-v0"),  # and trains without the settings of the zoo
    ],
)
def test_a_misspelled_environment_is_answered_by_the_right_spelling(name: str, right: str) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        with pytest.raises(tk.ConfigError, match=re.escape(right)):
            tk.make_envs(name, 1)
