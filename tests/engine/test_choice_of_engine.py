"""Which engine executes a policy: by its name, or for "auto" one of those that are there; torch where there is none."""

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import pytest
import torch

from tests.helpers.learning import batch_of, made, parameters_of
from trainkit import ConfigError
from trainkit.engine import engine as engines
from trainkit.engine import precision
from trainkit.engine.engine import Engine
from trainkit.engine.precision import LearningPrecision
from trainkit.policy import base


class Own(Engine):
    """An engine of an extension, which counts the functions that it executes."""

    n_calls = 0

    @classmethod
    def serves(cls, device: torch.device) -> bool:
        return device.type == "cpu"

    @classmethod
    def problem(cls, device: torch.device, precision: str) -> str | None:
        return "has no precision 'bf16'" if precision == "bf16" else None

    @property
    def name(self) -> str:
        return "own"

    def call(self, *given: Any, **options: Any) -> Any:
        self.n_calls += 1
        return super().call(*given, **options)


class Elsewhere(Own):
    """An engine for another device."""

    @classmethod
    def serves(cls, device: torch.device) -> bool:
        return False


class Loaded:
    """An entry of the door."""

    def __init__(self, kind: type[Engine]) -> None:
        self.load: Callable[[], type[Engine]] = lambda: kind


@pytest.fixture
def there(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Return what makes these engines, by their names, those that are there."""

    def set_engines(**kinds: type[Engine]) -> None:
        own: Mapping[str, Any] = {name: Loaded(kind) for name, kind in kinds.items()}
        monkeypatch.setattr(engines, "table", lambda constant: own)

    return set_engines


def test_without_extensions_torch_executes(there: Any) -> None:
    there()
    assert str(made(engine="auto").engine) == "torch (on the CPU)"
    assert str(made(engine="torch").engine) == "torch (as requested)"


def test_auto_is_the_first_that_serves_the_device(there: Any) -> None:
    there(elsewhere=Elsewhere, own=Own, other=type("Other", (Own,), {}))
    policy = made(engine="auto")
    assert type(policy.engine) is Own
    assert str(policy.engine) == "own (on the CPU)"


def test_an_engine_may_be_chosen_that_auto_does_not_choose(there: Any) -> None:
    there(elsewhere=Elsewhere)
    assert type(made(engine="auto").engine) is Engine
    policy = made(engine="elsewhere")
    assert type(policy.engine) is Elsewhere
    assert policy.engine.reason == "as requested"


def test_where_it_cannot_be_used_auto_is_torch_and_a_name_is_an_error(
    there: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    there(own=Own)
    rough = LearningPrecision()
    monkeypatch.setattr(rough, "name", "bf16")
    monkeypatch.setattr(base, "precision_for", lambda *_: rough)
    policy = made(engine="auto")
    assert str(policy.engine) == "torch (own has no precision 'bf16')"
    with pytest.raises(ConfigError, match=r"DQNPolicy\.engine 'own' has no precision 'bf16': use 'auto'"):
        policy.engine = "own"  # type: ignore[assignment]
    assert policy.engine.name == "torch"


def test_an_engine_whose_extension_is_missing_is_named(there: Any) -> None:
    there(own=Own)
    rule = r"must be one of \['auto', 'torch', 'own'\], got 'numpy', whose folder of trainkit/extensions is not there"
    with pytest.raises(ConfigError, match=rf"DQNPolicy\.engine {rule}: install all of trainkit, or use 'auto'"):
        made(engine="numpy")
    with pytest.raises(ConfigError, match=r"\.engine must be one of .* got 'onw', did you mean 'own'\?"):
        made(engine="onw")


def test_a_precision_whose_extension_is_missing_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(precision, "table", lambda constant: {})
    with pytest.raises(ConfigError, match=r"\.precision must be one of \['float32'\], got 'bf16', whose folder of"):
        made(precision="bf16")


def test_a_policy_acts_and_learns_by_it(there: Any) -> None:
    there(own=Own)
    policy, plain = made(engine="own"), made(engine="torch")
    obs = batch_of(4).obs
    np.testing.assert_array_equal(policy.action_values(obs), plain.action_values(obs))
    assert policy.engine.n_calls == 1  # type: ignore[attr-defined]
    for step in range(3):
        for one in (policy, plain):
            one.update(batch_of(8, seed=step), step=step)
    torch.testing.assert_close(parameters_of(policy), parameters_of(plain), rtol=0, atol=0)
