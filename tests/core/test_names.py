"""Options and events by the names of other libraries, and misspelled ones, are answered with ours."""

import re
from pathlib import Path
from typing import Any

import pytest
import torch

import trainkit as tk
from tests.helpers.learning import Spaces
from tests.test_architecture import imports, is_ours
from trainkit import presets
from trainkit.core import names
from trainkit.core.signatures import options_by_owner
from trainkit.trainer.callbacks.base import EVENTS
from trainkit.trainer.options import KeywordOptions

PAGE = (Path(__file__).parents[2] / "docs" / "migration.md").read_text()
LIBRARIES = pytest.mark.parametrize("library", names.LIBRARIES)


def message(call: Any, *args: Any, **options: Any) -> str:
    with pytest.raises(tk.ConfigError) as caught:
        call(*args, **options)
    return str(caught.value).splitlines()[0]


def our_options() -> set[str]:
    """Return every option of a public call or preset."""
    settings = {name for preset in presets.PRESETS.values() for name in preset.option_types}
    required = {"env", "max_epoch", "step_per_epoch", "batch_size", "train_collector", "update_per_epoch"}
    return {*options_by_owner(), *settings, "test_collector", *KeywordOptions.__annotations__, *required}


@pytest.mark.parametrize(
    ("name", "hint"),
    [
        ("lerning_rate", "'lr'"),  # not learning_starts, which has more letters in common
        ("learning_rate", "'lr'"),
        ("bufer_size", "'capacity'"),
        ("estimation_step", "'n_step'"),
        ("target_update_freq", "'target_every'"),
        ("is_double", "'double'"),
        ("num_atoms", "'atoms'"),
        ("n_steps", "'n_step'"),
        ("ent_coef", "'temperature'"),
        ("max_epochs", "'max_epoch'"),
        ("epoch_num_steps", "'step_per_epoch'"),
        ("collection_step_num_env_steps", "'step_per_collect'"),
        ("update_step_num_gradient_steps_per_sample", "'update_per_step'"),
        ("training_fn", "'train_fn'"),
        ("reward_normalization", 'reward="return_scale"'),
        ("env_config", 'env_options={"env_kwargs": {...}}'),
        ("step_per_epochs", "'step_per_epoch'"),
        ("batchsize", "'batch_size'"),
        ("on_step", "'on_episode_step'"),
    ],
)
def test_a_preset_answers_with_its_own_name(name: str, hint: str) -> None:
    assert message(presets.dqn, "CartPole-v1", **{name: 1}) == (
        f"presets.dqn: unknown option {name!r}, did you mean {hint}?"
    )


def test_the_name_that_is_known_where_it_was_given_is_suggested() -> None:
    assert message(presets.ppo, "CartPole-v1", n_steps=1).endswith("did you mean 'step_per_collect'?")
    assert message(presets.ppo, "CartPole-v1", ent_coef=1).endswith("did you mean 'entropy_weight'?")
    hint = 'did you mean target=Target(every, unit="updates")?'
    assert message(tk.DQNPolicy.for_envs, Spaces(), target_update_freq=1).endswith(hint)
    for name, part in {"gamma": "horizon=Horizon(gamma=...)", "lr": "optimizer=Adam(lr)"}.items():
        assert message(tk.DQNPolicy, torch.nn.Identity(), **{name: 0.5}).endswith(f"did you mean {part}?")
    assert message(presets.cql, tk.ReplayBuffer(10), learning_rate=1).endswith("did you mean 'lr'?")


def test_an_option_of_another_part_is_named_with_the_part() -> None:
    assert message(presets.dqn, "CartPole-v1", eps_clip=0.2) == (
        "presets.dqn: unknown option 'eps_clip': trainkit calls it clip_ratio, an option of PPOPolicy"
    )


def test_what_trainkit_does_not_have_is_answered_with_what_to_do() -> None:
    assert message(presets.ppo, "CartPole-v1", dual_clip=3.0) == (
        "presets.ppo: unknown option 'dual_clip': there is no second clip; clip_ratio and target_kl limit an update"
    )
    assert "leave it out" in message(tk.ReplayBuffer, 10, buffer_num=8)


@pytest.mark.parametrize("name", ["env_kwargs", "stack", "max_episode_steps", "backend", "wrappers"])
def test_a_preset_says_where_an_option_of_the_environments_goes(name: str) -> None:
    assert message(presets.rainbow, "CartPole-v1", **{name: 1}) == (
        f"presets.rainbow: unknown option {name!r}, did you mean env_options={{{name!r}: ...}}?"
    )


def test_a_name_that_is_near_nothing_gets_no_hint() -> None:
    assert message(presets.dqn, "CartPole-v1", xyzzy=1) == "presets.dqn: unknown option 'xyzzy'"


@pytest.mark.fast_cases(1)
@LIBRARIES
def test_every_name_of_another_library_gets_a_hint_from_every_preset(library: str) -> None:
    for theirs in names.LIBRARIES[library]:
        for preset in (presets.dqn, presets.ppo, presets.sac):
            if theirs in {*preset.settings(), "test_collector", *KeywordOptions.__annotations__}:
                continue
            reported = message(preset, "CartPole-v1", **{theirs: 1})
            assert re.search(
                r"did you mean|trainkit calls it|belongs to|: [a-z]", reported.partition("unknown option")[2]
            )


@LIBRARIES
def test_every_name_of_ours_in_the_table_is_an_option(library: str) -> None:
    ours = {own.partition("=")[0] for entry in names.LIBRARIES[library].values() for own in entry.options}
    assert ours - our_options() == set()


@LIBRARIES
def test_no_name_in_the_table_is_answered_by_itself(library: str) -> None:
    for theirs, entry in names.LIBRARIES[library].items():
        assert entry.options or entry.note
        assert theirs not in entry.options or len(entry.options) > 1


@LIBRARIES
def test_the_page_has_the_same_options_as_the_hints(library: str) -> None:
    section = PAGE.split("## Options by name\n")[1].split(f"### {library}\n")[1].split("\n#")[0]
    shown = [line for line in section.splitlines() if line.startswith("| `")]
    assert shown == [f"| {theirs} | {ours} |" for theirs, ours in names.mentioned(names.LIBRARIES[library])]


def test_options_in_the_tables_side_by_side_are_translated_alike() -> None:
    """Every `option=` or bare option on the left of a row with as many on the right is in the table of hints."""
    found = 0
    for library in ("Tianshou", "Stable-Baselines3"):
        section = PAGE.split(f"\n## {library}\n")[1].split("\n## ")[0]
        for row in (line.split("|") for line in section.splitlines() if line.startswith("| `")):
            theirs, ours = (re.findall(r"\b([a-z_]+)=", cell) for cell in row[1:3])
            if len(theirs) == len(ours):
                for their, our in zip(theirs, ours, strict=True):
                    entry = names.LIBRARIES[library].get(their)
                    assert their == our or (entry is not None and our in {o.partition("=")[0] for o in entry.options})
                    found += 1
    assert found >= 10


def test_events_of_other_libraries_are_answered_with_ours() -> None:
    assert set(names.EVENTS_ELSEWHERE.values()) <= set(EVENTS)
    assert not set(names.EVENTS_ELSEWHERE) & set(EVENTS)
    with pytest.raises(tk.ConfigError, match=r"Theirs\._on_step is no event .*did you mean 'on_episode_step'"):
        type("Theirs", (tk.Callback,), {"_on_step": lambda self: True})


@pytest.mark.parametrize(
    ("word", "words", "best"),
    [
        ("lerning_rate", ["learning_starts", "learning_rate"], "learning_rate"),
        ("on_step", ["on_best", "on_episode_step"], "on_episode_step"),
        ("rate_learning", ["learning_rate", "learning_starts"], "learning_rate"),
        ("slwo", ["fast", "slow"], "slow"),
        ("asink", ["sync", "async", "vector"], "async"),
        ("xyz", ["lr", "batch_size"], None),
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


def test_a_suggested_name_is_one_that_the_call_takes() -> None:
    known = {*presets.dqn.settings(), "test_collector", *KeywordOptions.__annotations__}
    for theirs in {name for table in names.LIBRARIES.values() for name in table}:
        hint = re.fullmatch(r", did you mean '(\w+)'\?", names.translate(theirs, [*known]))
        assert hint is None or hint[1] in known


@pytest.mark.parametrize(
    ("name", "meant"),
    [
        ("DQNPolcy", "DQNPolicy"),
        ("Preproces", "nets.Preprocess"),
        ("QNetwork", "nets.QNetwork"),
        ("evalute", "evaluate"),
    ],
)
def test_a_misspelled_name_is_answered_with_the_nearest(name: str, meant: str) -> None:
    with pytest.raises(
        AttributeError, match=rf"^module 'trainkit' has no attribute '{name}', did you mean tk\.{meant}\?$"
    ):
        getattr(tk, name)


@pytest.mark.parametrize("name", ["__wrapped__", "_private", "xyzzy"])
def test_a_name_near_nothing_gets_no_hint(name: str) -> None:
    with pytest.raises(AttributeError, match=rf"^module 'trainkit' has no attribute '{name}'$"):
        getattr(tk, name)


def test_the_module_needs_nothing_of_ours() -> None:
    assert [name for name, _ in imports("trainkit.core.names") if is_ours(name)] == []
