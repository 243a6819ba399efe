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
from typing_extensions import is_protocol

import trainkit as tk
from tests.helpers.learning import Spaces, small_net
from trainkit.core.errors import ConfigError
from trainkit.core.signatures import is_complete, is_unrelated, matches, mismatch

# Called in every step, update or batch, where a check would cost time: these fail with Python's own error.
IN_EVERY_STEP = {"act", "act_on_device", "action_probability", "action_values", "collect", "sample_batch", "end_update"}
IN_EVERY_STEP |= {"enter", "forward", "get", "greedy", "greedy_values", "learn", "log", "loss_inputs", "minimize"}
IN_EVERY_STEP |= {"read", "rewrite", "rows", "sample", "sample_by", "sample_round", "update", "weights"}
# Called by trainers and checkpoints, not by users.
OF_TRAINERS = {"behavior_for", "check_draw", "learners", "state_dict"}
WITHOUT_OPTIONS = {"release", "restart"}


def methods() -> dict[tuple[type, str], list[str]]:
    """Return {(class, method): options} of the methods that users call and that have options in one of the classes."""
    modules = [tk, tk.buffer, tk.policy, tk.simulators]
    public = [getattr(module, name) for module in modules for name in module.__all__]
    exported = {one for one in public if inspect.isclass(one)}
    kinds = [kind for kind in exported if kind.__name__.endswith(("Trainer", "Collector", "Policy", "Buffer"))]
    found: dict[tuple[type, str], list[str]] = {}
    for kind in sorted((one for one in kinds if not is_protocol(one)), key=lambda one: one.__name__):
        for name, member in inspect.getmembers(kind, inspect.isfunction):
            if member.__module__.startswith("trainkit.") and not name.startswith("_"):
                rest = list(inspect.signature(member).parameters.values())[1:]
                own = [one for one in rest if one.kind is one.KEYWORD_ONLY or one.default is not one.empty]
                found[kind, name] = [one.name for one in own]
    left_out = IN_EVERY_STEP | OF_TRAINERS
    names = {name for (_, name), options in found.items() if options} - left_out | WITHOUT_OPTIONS
    return {(kind, name): options for (kind, name), options in found.items() if name in names}


METHODS = methods()


def problems_of(call: Callable[..., Any], *args: Any, **options: Any) -> list[str]:
    with pytest.raises(ConfigError) as caught:
        call(*args, **options)
    problems = str(caught.value).splitlines()
    is_unknown = any("unknown option" in one for one in problems)
    assert problems.count("docs/migration.md leads to the names of other libraries") == is_unknown
    return problems[:-1] if is_unknown else problems


def test_an_option_that_is_not_there_is_rejected_with_the_nearest() -> None:
    assert problems_of(tk.Adam, lrr=1e-3) == ["Adam: unknown option 'lrr', did you mean 'lr'?"]


@pytest.mark.parametrize(("kind", "name"), METHODS, ids=lambda one: getattr(one, "__name__", one))
def test_a_method_that_users_call_answers_a_misspelled_option(kind: Any, name: str) -> None:
    method = getattr(object.__new__(kind), name)
    subject = f"{kind.__name__}.{name}"
    assert problems_of(method, zzz=1)[0].startswith(f"{subject}: unknown option 'zzz': it takes ")
    for option in METHODS[kind, name]:
        misspelled = option + option[-1]
        expected = f"{subject}: unknown option {misspelled!r}, did you mean {option!r}?"
        assert problems_of(method, **{misspelled: 1})[0] == expected


def test_an_evaluation_in_between_answers_a_misspelled_option() -> None:  # its options are those of `Evaluation`
    trainer: Any = object.__new__(tk.OffpolicyTrainer)
    with pytest.raises(
        ConfigError, match=r"OffpolicyTrainer\.evaluate: unknown option 'duratoin', did you mean 'duration'"
    ):
        trainer.evaluate(duratoin=3)


class OfUser(tk.Policy):
    """A policy whose constructor passes options on, as the page on custom algorithms shows."""

    def __init__(self, envs: Any, *, lr: float = 1e-3, hidden: tuple[int, ...] = (8,), **options: Any) -> None:
        super().__init__(observation_space=envs.observation_space, **options)


def test_a_subclass_that_passes_options_on_is_advised_of_its_own_too() -> None:
    assert problems_of(OfUser, Spaces(), learning_rate=1) == [
        "OfUser: unknown option 'learning_rate', did you mean 'lr'?"
    ]
    (listed,) = problems_of(OfUser, Spaces(), zzz=1)
    assert listed.startswith("OfUser: unknown option 'zzz': it takes envs, lr, hidden, observation_space, action_space")
    assert listed.endswith("seed, engine, precision, auxiliary")


def test_a_constructor_of_trainkit_does_not_list_all_that_it_takes() -> None:
    assert problems_of(tk.DQNPolicy.for_envs, Spaces(), zzz=1) == ["DQNPolicy.for_envs: unknown option 'zzz'"]
    assert problems_of(tk.Policy, zzz=1) == ["Policy: unknown option 'zzz'"]


def test_all_that_does_not_fit_is_reported_at_once() -> None:
    assert problems_of(tk.DQNPolicy.for_envs, Spaces(), exporation=None, duelling=True, double="yes") == [
        "DQNPolicy.for_envs: unknown option 'exporation', did you mean 'exploration'?",
        "DQNPolicy.for_envs: unknown option 'duelling', did you mean 'dueling'?",
        "DQNPolicy.for_envs.double must be True or False, got 'yes'",
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
    assert "did you mean 'lam'" in problems_of(tk.A2CPolicy.for_envs, Spaces(), lamm=1)[0]
    assert tk.A2CPolicy.for_envs(Spaces(), hidden=(4,), lam=0.9, shared=True, seed=1)


def test_a_word_is_answered_with_its_abbreviation() -> None:
    assert problems_of(tk.SACPolicy.for_envs, Spaces(), learning_rate=1) == [
        "SACPolicy.for_envs: unknown option 'learning_rate', did you mean 'lr'?"
    ]


def test_an_option_of_another_part_is_sent_there() -> None:
    (reported,) = problems_of(tk.PrioritizedReplayBuffer, 10, n_step=3)
    assert "unknown option 'n_step': it belongs to ActorCriticPolicy.for_envs, DQNPolicy.for_envs" in reported


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
