"""Every public constructor and function refuses what cannot work, in words: FAULTS 54 to 57."""

import contextlib
import inspect
import logging
import math
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from typing_extensions import is_protocol

import trainkit as tk
from tests.faults.makers import Call, calls
from tests.helpers.of_extensions import files_of_extensions
from trainkit.core.signatures import options_of

# What takes no options from users: errors, protocols, bases, and records that only trainkit fills in.
RECORDS = set(
    """
    ActOutput EnvContext Finding CollectStats Envs Episode EpochResult EpochStats Loss Max Min Prediction CriticInputs
    Rollout RunFolder RunInfo RunResult RunWarning Summary TensorBatch TensorRollout TimeStats Transition
    TransitionBatch UpdateResult PairedComparison PlayerStats ZooEntry ZooResult
""".split()
)
BASES = {
    "CriticPass",
    "CriticReduction",
    "AroundBackend",
    "Callback",
    "Engine",
    "Trainer",
    "EpisodeEvents",
    "GradientStep",
    "UniformSampler",
    "find_runs",
}
NEEDS_AN_EXTRA = {"MlflowLogger", "WandbLogger"}
ZOO = {"load", "train"}  # need weights and whole runs: tests/zoo calls them

WRONG = [-1, object(), None, math.nan, math.inf, 1.5, True, "x", [], {}, [1, 2], (1.0, "a"), 0]
FINE = {("scalars", "stats"), ("scalars", "prefix")}  # shows whatever there is
FINE |= {("check_env", option) for option in ("env", "mask_key", "env_kwargs")}  # reports what it found instead


@pytest.fixture(scope="module")
def table(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Call]]:
    logging.disable(logging.WARNING)
    yield calls(tmp_path_factory.mktemp("calls"))
    logging.disable(logging.NOTSET)


def test_every_public_call_is_in_the_table(table: dict[str, Call]) -> None:
    namespaces = [getattr(tk, name) for name in tk.__all__ if inspect.ismodule(getattr(tk, name))]
    modules = [tk, *(module for module in namespaces if module not in (tk.errors, tk.plot, tk.presets))]
    named = {name: getattr(module, name) for module in modules for name in module.__all__}
    public = {name for name, member in named.items() if inspect.isroutine(member) or inspect.isclass(member)}
    public -= {name for name in public if name.endswith("Error") or is_protocol(named[name])}
    listed = {name.partition(".")[0] for name in table} - {"presets"}
    of_extensions = {
        name for own in files_of_extensions("examples").values() for name in getattr(own, "NOT_CALLED", ())
    }
    assert public - RECORDS - BASES - NEEDS_AN_EXTRA - ZOO - of_extensions == listed


def test_every_call_of_the_table_works(table: dict[str, Call]) -> None:
    for name, call in table.items():
        with contextlib.suppress(tk.errors.MissingExtraError):  # which names what to install
            made = call()
            assert made is not None or name == "register_encoder", name


@pytest.mark.no_cover  # compares thousands of names, which other tests cover
@pytest.mark.parametrize("n_calls", [1, pytest.param(math.inf, marks=pytest.mark.slow)])
def test_an_option_that_does_not_exist_is_refused_everywhere(n_calls: float, table: dict[str, Call]) -> None:
    """Misspell every option, in the first `n_calls` calls that accept it."""
    n_misspelt: Counter[str] = Counter()
    for name, call in table.items():
        with pytest.raises(tk.ConfigError, match=r"unknown option 'zzz'"):
            call(zzz=1)
        for option in options_of(call.of):
            if len(option) > 5 and option not in call.arguments and n_misspelt[option] < n_calls:
                misspelt = option[:2] + option[3] + option[2] + option[4:]
                if misspelt == option:
                    continue
                n_misspelt[option] += 1
                with pytest.raises(tk.ConfigError) as caught:
                    call(**{misspelt: 1})
                assert f"unknown option {misspelt!r}, did you mean {option!r}?" in str(caught.value), name


def outcome(call: Callable[..., Any], option: str, value: Any) -> str:
    """Say what became of a wrong value: refused in our words, taken, or an error of Python's."""
    try:
        made = call(**{option: value})
    except tk.TrainkitError as error:
        return "refused" if str(error) else "nothing said"
    except Exception as error:  # noqa: BLE001  # all of them are what is looked for
        return f"{type(error).__name__}: {error}"
    if isinstance(made, tk.Trainer):
        made.close()
    return "taken"


@pytest.mark.parametrize("values", [WRONG[:2], pytest.param(WRONG, marks=pytest.mark.slow)], ids=["two", "all"])
def test_a_wrong_value_is_never_an_error_of_pythons_own(
    values: list[Any], table: dict[str, Call], tmp_path: Path, monkeypatch: Any
) -> None:
    monkeypatch.chdir(tmp_path)  # where "x" becomes a folder
    raw = []
    for name, call in table.items():
        for option in options_of(call.of):
            for value in values:
                became = outcome(call, option, value)
                if became not in ("refused", "taken"):
                    raw.append(f"{name}({option}={value!r}): {became}")
    assert raw == []


def test_nan_words_and_strangers_are_never_taken_for_numbers_flags_or_parts(
    table: dict[str, Call], tmp_path: Path, monkeypatch: Any
) -> None:
    monkeypatch.chdir(tmp_path)
    taken = [
        f"{name}({option}={value!r})"
        for name, call in table.items()
        for option, hint in options_of(call.of).items()
        if hint is not Any and (name, option) not in FINE
        for value in (math.nan, object())
        if outcome(call, option, value) == "taken"
    ]
    assert taken == []


def test_a_bool_is_no_number_and_a_number_no_flag(table: dict[str, Call], tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.chdir(tmp_path)
    numbers, flags = (int, float, int | None, float | None), (bool, bool | None)
    taken = [
        f"{name}({option}={value})"
        for name, call in table.items()
        for option, hint in options_of(call.of).items()
        for value, hints in ((True, numbers), (2, flags))
        if hint in hints and outcome(call, option, value) == "taken"
    ]
    assert taken == []
