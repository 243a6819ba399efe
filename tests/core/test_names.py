"""Misspelled names are answered with ours, and names of other libraries with the page that lists them."""

import re
from pathlib import Path
from typing import Any

import pytest
import torch

import trainkit as tk
from tests.helpers.learning import Spaces
from tests.helpers.option_tables import TABLES, options_in
from tests.helpers.pages import rows_of
from trainkit import presets
from trainkit.core import names

LIBRARIES = pytest.mark.parametrize("library", TABLES)


def message(call: Any, *args: Any, **options: Any) -> str:
    with pytest.raises(tk.ConfigError) as caught:
        call(*args, **options)
    return str(caught.value).splitlines()[0]


@pytest.mark.parametrize(
    ("name", "meant"),
    [
        ("bathc_size", "batch_size"),
        ("batchsize", "batch_size"),
        ("exploraton", "exploration"),
        ("exporation", "exploration"),
        ("targt_evry", "target_every"),
        ("n_stpe", "n_step"),
        ("n_steps", "n_step"),
        ("hiden", "hidden"),
        ("lrr", "lr"),
        ("learning_rate", "lr"),  # an abbreviation
        ("gama", "gamma"),
        ("step_per_epochs", "step_per_epoch"),
        ("save_best", "save_best_fn"),
        ("max_epochs", "max_epoch"),
        ("learningStarts", "learning_starts"),
        ("starts_learning", "learning_starts"),
    ],
)
def test_a_misspelled_option_is_answered_with_ours(name: str, meant: str | None) -> None:
    hint = "" if meant is None else f", did you mean {meant!r}?"
    assert message(presets.dqn, "CartPole-v1", **{name: 1}) == f"presets.dqn: unknown option {name!r}{hint}"


def test_a_misspelled_option_of_a_policy_is_answered_with_ours() -> None:
    assert message(tk.DQNPolicy.for_envs, Spaces(), targt=1) == (
        "DQNPolicy.for_envs: unknown option 'targt', did you mean 'target'?"
    )


@pytest.mark.parametrize(
    ("name", "known"),
    [
        ("norm_obs", ["norm", "normalize_obs"]),  # the one is of layers, the other is another word
        ("n_timesteps", ["step_per_collect", "n_step"]),
        ("env", ["n_envs"]),
        ("HerReplayBuffer", ["ReplayBuffer"]),
        ("adam_epsilon", ["epsilon"]),
        ("batch_mode", ["batch_size"]),
        ("normalize_actions", ["normalize_obs"]),
        ("on_train_result", ["on_train_start", "on_train_end"]),
        ("max_episode_steps", ["max_env_step"]),
        ("learning_rate", ["learning_starts"]),
        ("actor", ["act_on"]),
        ("max", ["v_max"]),
        ("reset_env", ["test_env"]),
        ("IQNPolicy", ["DQNPolicy"]),
        ("TRPOPolicy", ["PPOPolicy"]),
        ("c52", ["c51"]),
        ("reset", ["preset"]),
    ],
)
def test_a_name_of_another_meaning_is_not_suggested(name: str, known: list[str]) -> None:
    assert names.nearest_word(name, known) is None


def test_an_option_of_one_word_is_not_said_to_belong_elsewhere() -> None:
    assert message(presets.dqn, "CartPole-v1", resume=True) == "presets.dqn: unknown option 'resume'"
    owners = {"resume": ["CsvLogger"], "clip_ratio": ["PPOPolicy"]}
    assert names.option_hint("resume", [], owners) == ""
    assert names.option_hint("clip_ratio", [], owners) == ": it belongs to PPOPolicy"


def test_an_error_about_unknown_options_names_the_page_once() -> None:
    for call in (presets.dqn, tk.make_envs):
        with pytest.raises(tk.ConfigError) as caught:
            call("CartPole-v1", xyzzy=1, zyxxy=2)
        assert str(caught.value).splitlines()[-1] == "docs/migration.md leads to the names of other libraries"
        assert str(caught.value).count("migration") == 1
    with pytest.raises(tk.ConfigError) as caught:
        tk.ReplayBuffer(0)
    assert "migration" not in str(caught.value)


def test_an_option_of_a_policy_that_takes_parts_is_answered_with_the_part() -> None:
    for name, part in {
        "gamma": "horizon=Horizon(gamma=...)",
        "lr": "optimizer=Adam(lr)",
        "max_grad_norm": "clip=Clip(...)",
    }.items():
        assert message(tk.DQNPolicy, torch.nn.Identity(), **{name: 0.5}).endswith(f"did you mean {part}?")


@pytest.mark.parametrize("name", ["env_kwargs", "stack", "max_episode_steps", "backend", "wrappers"])
def test_a_preset_says_where_an_option_of_the_environments_goes(name: str) -> None:
    assert message(presets.rainbow, "CartPole-v1", **{name: 1}) == (
        f"presets.rainbow: unknown option {name!r}, did you mean env_options={{{name!r}: ...}}?"
    )


def test_a_name_that_is_near_nothing_gets_no_hint() -> None:
    assert message(presets.dqn, "CartPole-v1", xyzzy=1) == "presets.dqn: unknown option 'xyzzy'"


@LIBRARIES
def test_no_name_in_the_table_is_answered_by_itself(library: str) -> None:
    page, section = TABLES[library]
    for theirs, ours in rows_of(section, page):
        assert ours
        assert not set(theirs) & set(options_in(ours)) or len(options_in(ours)) > 1


@LIBRARIES
def test_another_term_for_an_option_is_answered_with_the_option_of_the_table(library: str) -> None:
    page, section = TABLES[library]
    known = [*tk.presets.ppo.option_types, *tk.presets.dqn.option_types]
    for theirs, ours in rows_of(section, page):
        for name in {*theirs} - {*known}:
            hint = re.findall(r"'(\w+)'", names.option_hint(name, known))
            assert hint == [] or hint[0] in options_in(ours), name


@pytest.mark.parametrize(
    ("call", "name", "ours"),
    [
        (tk.presets.ppo, "ent_coef", "entropy_weight"),
        (tk.presets.ppo, "gae_lambda", "lam"),
        (tk.presets.ppo, "update_epochs", "repeat_per_collect"),
        (tk.presets.sac, "ent_coef", "temperature"),
        (tk.presets.dqn, "buffer_size", "capacity"),
        (tk.presets.dqn, "discount_factor", "gamma"),
    ],
)
def test_an_option_by_another_term_is_answered_with_ours(call: Any, name: str, ours: str) -> None:
    assert message(call, "CartPole-v1", **{name: 1}).endswith(f"unknown option {name!r}, did you mean {ours!r}?")


def test_an_unknown_event_and_an_unknown_attribute_name_the_page() -> None:
    with pytest.raises(tk.ConfigError, match=r"Theirs\._on_step is no event of trainkit\.Callback: docs/migration\.md"):
        type("Theirs", (tk.Callback,), {"_on_step": lambda self: True})
    with pytest.raises(tk.ConfigError, match=r"did you mean 'on_epoch_end'\? docs/migration\.md"):
        type("Theirs", (tk.Callback,), {"on_epoch_ends": lambda self: True})
    with presets.dqn("CartPole-v1", n_envs=1, hidden=(4,), device="cpu", verbose=False) as trainer:
        for name, hint in {"learn": ":", "polcy": ", did you mean 'policy'?"}.items():
            with pytest.raises(AttributeError) as caught:
                getattr(trainer, name)
            page = "docs/migration.md leads to the names of other libraries"
            assert str(caught.value) == f"OffpolicyTrainer has no attribute {name!r}{hint} {page}"


@pytest.mark.parametrize(
    ("word", "words", "best"),
    [
        ("lerning_rate", ["learning_starts", "learning_rate"], "learning_rate"),
        ("on_step", ["on_best", "on_episode_step"], None),
        ("rate_learning", ["learning_rate", "learning_starts"], "learning_rate"),
        ("slwo", ["fast", "slow"], "slow"),
        ("asnyc", ["sync", "async", "vector"], "async"),
        ("xyz", ["lr", "batch_size"], None),
        ("medan", ["mean", "median"], "median"),
        ("alfa", ["beta", "alpha"], "alpha"),
        ("alfa", ["half", "beta"], None),
        ("x", [], None),
    ],
)
def test_the_nearest_word_shares_letters_and_parts(word: str, words: list[str], best: str | None) -> None:
    assert names.nearest_word(word, words) == best


def test_the_nearest_word_is_offered_when_one_is_near() -> None:
    assert names.did_you_mean("btach_size", ["lr", "batch_size"]) == ", did you mean 'batch_size'?"
    assert names.did_you_mean("xyz", ["lr", "batch_size"]) == ""


def test_a_summary_writer_is_answered_with_its_folder(tmp_path: Path) -> None:
    class SummaryWriter:
        log_dir = str(tmp_path)

        def add_scalar(self, tag: str, value: float, step: int) -> None: ...

    reported = message(presets.dqn, "CartPole-v1", n_envs=1, hidden=(4,), device="cpu", logger=SummaryWriter())
    assert reported == f"logger is a SummaryWriter: give the folder it writes to instead, logger={str(tmp_path)!r}"


@pytest.mark.parametrize(
    ("name", "meant"),
    [
        ("DQNPolcy", "DQNPolicy"),
        ("Preproces", "nets.Preprocess"),
        ("QNetwork", "nets.QNetwork"),
        ("evalute", "evaluate"),
        ("PPO", "PPOPolicy"),
    ],
)
def test_a_misspelled_name_is_answered_with_the_nearest(name: str, meant: str) -> None:
    with pytest.raises(
        AttributeError,
        match=rf"^module 'trainkit' has no attribute '{name}', did you mean tk\.{meant}\? docs/migration\.md ",
    ):
        getattr(tk, name)


@pytest.mark.parametrize(
    ("name", "hint"),
    [
        ("__wrapped__", ""),
        ("_private", ""),
        ("xyzzy", ": docs/migration.md leads to the names of other libraries"),
        ("Batch", ": docs/migration.md leads to the names of other libraries"),
    ],
)
def test_a_name_near_nothing_is_answered_with_the_page(name: str, hint: str) -> None:
    with pytest.raises(AttributeError) as caught:
        getattr(tk, name)
    assert str(caught.value) == f"module 'trainkit' has no attribute {name!r}{hint}"
