"""Checked calls report every mistake, and keep their signatures."""

import inspect
import pickle
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Literal, Protocol

import numpy as np
import pytest
import torch
from gymnasium import spaces

import trainkit as tk
from tests.helpers.learning import Spaces, small_net
from trainkit.core.errors import ConfigError
from trainkit.core.signatures import is_complete, is_unrelated, matches, mismatch


def problems_of(call: Callable[..., Any], *args: Any, **options: Any) -> list[str]:
    with pytest.raises(ConfigError) as caught:
        call(*args, **options)
    problems = str(caught.value).splitlines()
    is_unknown = any("unknown option" in one for one in problems)
    assert problems.count("docs/migration.md lists the names of other libraries") == is_unknown
    return problems[:-1] if is_unknown else problems


def test_an_option_that_is_not_there_is_rejected_with_the_nearest() -> None:
    assert problems_of(tk.Adam, lrr=1e-3) == ["Adam: unknown option 'lrr', did you mean 'lr'?"]


def test_all_that_does_not_fit_is_reported_at_once() -> None:
    assert problems_of(tk.DQNPolicy.for_envs, Spaces(), exporation=None, duelling=True, noisy="yes") == [
        "DQNPolicy.for_envs: unknown option 'exporation', did you mean 'exploration'?",
        "DQNPolicy.for_envs: unknown option 'duelling', did you mean 'dueling'?",
        "DQNPolicy.for_envs.noisy must be True or False, got 'yes'",
    ]


def test_parts_that_cannot_be_made_are_reported_together() -> None:
    reported = problems_of(tk.DQNPolicy.for_envs, Spaces(), lr=float("nan"), gamma=5, max_grad_norm=-1)
    assert reported == [
        "Clip.limit must be in (0, inf), got -1",
        "Adam.lr must be in [0, inf), got nan",
        "Horizon.gamma must be in [0, 1], got 5",
    ]


def test_options_handed_on_to_a_base_or_to_the_constructor_are_known() -> None:
    assert "did you mean 'lam'" in problems_of(tk.PPOPolicy, small_net(), action_space=spaces.Discrete(3), lamm=1)[0]
    assert "did you mean 'threshold'" in problems_of(tk.DiscreteBCQPolicy.for_envs, Spaces(), thresold=1)[0]
    assert tk.DiscreteBCQPolicy.for_envs(Spaces(), hidden=(4,), threshold=0.2, dueling=True, seed=1)


def test_a_word_is_answered_with_its_abbreviation() -> None:
    assert problems_of(tk.SACPolicy.for_envs, Spaces(), learning_rate=1) == [
        "SACPolicy.for_envs: unknown option 'learning_rate', did you mean 'lr'?"
    ]


def test_an_option_of_another_part_is_sent_there() -> None:
    (reported,) = problems_of(tk.PrioritizedReplayBuffer, 10, n_step=3)
    assert "unknown option 'n_step': it belongs to DQNPolicy.for_envs" in reported


def test_what_is_missing_is_listed() -> None:
    assert problems_of(tk.OffpolicyTrainer, max_epoch=1) == [
        "OffpolicyTrainer needs policy, train_collector, step_per_epoch, batch_size"
    ]


def test_too_many_by_position_are_rejected() -> None:
    assert problems_of(tk.RolloutBuffer, 512) == [
        "RolloutBuffer takes nothing by position, got 1 arguments: give options by name"
    ]
    assert problems_of(tk.Greedy, 0.1)[0].startswith("Greedy takes nothing by position")
    assert problems_of(tk.ReplayBuffer, 10, 3)[0].startswith("ReplayBuffer takes only capacity by position, got 2")


def test_twice_is_once_too_many() -> None:
    assert problems_of(tk.ReplayBuffer, 10, capacity=3) == [
        "ReplayBuffer.capacity was given by position and by name: give it once"
    ]


def test_a_flag_is_no_word_and_a_part_no_number() -> None:
    (reported,) = problems_of(tk.DQNPolicy, small_net(), optimizer=1e-3)
    assert (
        reported == "optimizer must be Adam(...), TorchOptimizer(...) or a factory such as torch.optim.AdamW, got 0.001"
    )
    (reported,) = problems_of(tk.DQNPolicy, small_net(), value=3)
    assert reported.startswith("DQNPolicy.value must be a Value or None, got 3, which has no ")
    assert problems_of(tk.DQNPolicy, small_net(), flush_denormals="no")[0].endswith("must be True or False, got 'no'")


def test_an_error_of_pythons_own_is_explained_by_the_annotations() -> None:
    assert problems_of(tk.DQNPolicy.for_envs, Spaces(), hidden=7) == [
        "QNetwork.hidden must be a sequence of whole numbers such as (7,) or (7, 7), got 7"
    ]


def test_an_error_that_is_not_the_callers_fault_goes_through() -> None:
    class Broken(tk.DQNPolicy):
        def __init__(self) -> None:
            super().__init__(small_net(), device="cpu")
            raise TypeError("of its own")

    with pytest.raises(TypeError, match="of its own"):
        Broken()


def test_a_subclass_of_ones_own_hands_on_what_it_does_not_know() -> None:
    class Deeper(tk.DQNPolicy):
        def __init__(self, *, depth: int = 1, **parts: Any) -> None:
            super().__init__(small_net(), **parts)

    assert Deeper(depth=2, device="cpu", seed=1)
    assert problems_of(Deeper, devise="cpu") == ["Deeper: unknown option 'devise', did you mean 'device'?"]


def test_signatures_names_and_pickles_stay() -> None:
    assert "exploration" in inspect.signature(tk.DQNPolicy).parameters
    assert tk.make_envs.__name__ == "make_envs"
    assert inspect.signature(tk.make_envs).return_annotation is tk.Envs
    assert pickle.loads(pickle.dumps(tk.make_envs)) is tk.make_envs  # noqa: S301  # our own
    assert pickle.loads(pickle.dumps(tk.Adam(0.1))) == tk.Adam(0.1)  # noqa: S301  # our own


class Quacks(Protocol):
    volume: int

    def quack(self) -> str: ...


class Duck:
    volume = 3

    def quack(self) -> str:
        return "quack"


@pytest.mark.parametrize(
    ("value", "hint"),
    [
        (True, bool),
        (np.True_, bool),
        (3, int),
        (np.int64(3), int),
        (3, float),
        (None, int | None),
        ([1, 2], Sequence[int]),
        ((), Sequence[int]),
        (np.arange(3), Sequence[int]),
        ([0, 1.0], tuple[int, float]),
        ((1, 2, 3), tuple[int, ...]),
        ("a", Literal["a", "b"]),
        (len, Callable[[Any], int]),
        (Path("x"), str | Path),
        (tk.ReplayBuffer, type[tk.ReplayBuffer]),
        (spaces.Discrete(2), spaces.Space[Any]),
        (torch.zeros(1), torch.Tensor),
        (Duck(), Quacks),
        (object(), Any),
        (object(), "Trainer"),
    ],
)
def test_what_an_annotation_says_matches(value: Any, hint: Any) -> None:
    assert matches(value, hint)
    assert mismatch(value, hint) is None


@pytest.mark.parametrize(
    ("value", "hint", "reported"),
    [
        (1, bool, "must be True or False, got 1"),
        (True, int, "must be a whole number, got True"),
        (1.0, int, "must be a whole number, got 1.0"),
        ("1", float | None, "must be a number or None, got '1'"),
        ("ab", Sequence[str], "must be a sequence of strs, got 'ab'"),
        ([1, "x"], Sequence[int], "must be a sequence of whole numbers, got [1, 'x']"),
        ((1,), tuple[int, int], "must be (a whole number, a whole number), got (1,)"),
        ("c", Literal["a", "b"], "must be 'a' or 'b', got 'c'"),
        (3, Callable[[Any], int], "must be a function, got 3"),
        (3, str | Path, "must be a str or a Path, got 3"),
        (int, type[tk.ReplayBuffer], "must be a class like ReplayBuffer, got <class 'int'>"),
        (3, Quacks, "must be a Quacks, got 3, which has no quack, volume"),
        ("3", Quacks, "must be a Quacks, got '3'"),
        (small_net(), tk.Adam, "must be an Adam, got Sequential"),
    ],
)
def test_what_does_not_fit_is_reported_in_words(value: Any, hint: Any, reported: str) -> None:
    assert mismatch(value, hint) == reported


def test_only_flags_and_classes_say_all() -> None:
    assert is_complete(bool | None)
    assert is_complete(tk.Adam | None)
    assert not any(map(is_complete, (int, float | None, str, Sequence[int], Any, Callable[..., Any])))


def test_who_has_something_of_a_protocol_is_no_stranger() -> None:
    class Mute:
        volume = 0

    assert is_unrelated(3, Quacks | None)
    assert not is_unrelated(Mute(), Quacks)
    assert not is_unrelated(None, Quacks | None)
