"""Parts in files: each is described by its arguments, in the format of the first release, and made again of them."""

import functools
import inspect
from typing import Any

import numpy as np
import pytest
import torch

import trainkit
import trainkit as tk
from trainkit.core import extensions
from trainkit.core.config import Part, from_plain, to_plain


def described(name: str, **arguments: Any) -> dict[str, Any]:
    """Return what a file holds of a part."""
    return {"part": name, "of": arguments}


# Every argument differs from its default. Files written before must stay readable: a description here never changes.
DESCRIPTIONS: list[tuple[Part, dict[str, Any]]] = [
    (
        tk.Adam([(0, 1e-3), (9, 0.0)], betas=(0.5, 0.9), eps=1e-3, weight_decay=0.1),
        described("Adam", lr=[[0, 0.001], [9, 0.0]], betas=[0.5, 0.9], eps=0.001, weight_decay=0.1),
    ),
    (
        tk.TorchOptimizer(functools.partial(torch.optim.SGD, momentum=0.9), [(0, 1e-3), (9, 0.0)]),
        described(
            "TorchOptimizer",
            factory={"class": "torch.optim.SGD", "of": {"momentum": 0.9}},
            lr=[[0, 0.001], [9, 0.0]],
        ),
    ),
    (tk.Clip(3.0, by="norm"), described("Clip", limit=3.0, by="norm")),
    (tk.Horizon((1, 3), 0.9, (-1.0, 1.0)), described("Horizon", n_step=[1, 3], gamma=0.9, reward=[-1.0, 1.0])),
    (
        tk.Target(7, "updates", [(0, 0.5), (9, 1.0)]),
        described("Target", every=7, unit="updates", tau=[[0, 0.5], [9, 1.0]]),
    ),
    (tk.Linear(0.4, 1.0, 0.5), described("Linear", start=0.4, end=1.0, share=0.5)),
    (tk.schedules.Constant(0.5), described("Constant", value=0.5)),
    (tk.schedules.Piecewise([(0, 1.0), (5, 0.0)]), described("Piecewise", knots=[[0, 1.0], [5, 0.0]])),
    (tk.buffer.ReturnScale(0.9, clip=3.0), described("ReturnScale", gamma=0.9, clip=3.0)),
    (
        tk.ExpectedValue("mse", delta=2.0, rescale=1e-2),
        described("ExpectedValue", loss="mse", delta=2.0, rescale=0.01),
    ),
    (
        tk.CategoricalValue(5, -1.0, 2.0, priority="ce"),
        described("CategoricalValue", atoms=5, v_min=-1.0, v_max=2.0, priority="ce"),
    ),
    (
        tk.HLGaussValue(5, -1.0, 2.0, sigma=0.5, target="two_hot"),
        described("HLGaussValue", bins=5, v_min=-1.0, v_max=2.0, sigma=0.5, target="two_hot"),
    ),
    (
        tk.QuantileValue(7, kappa=0.5, rescale=1e-3, reduction="mean"),
        described("QuantileValue", quantiles=7, kappa=0.5, rescale=0.001, reduction="mean"),
    ),
    (
        tk.ImplicitQuantileValue(3, target_quantiles=4, acting_quantiles=5, kappa=0.0, rescale=0.5),
        described("ImplicitQuantileValue", quantiles=3, target_quantiles=4, acting_quantiles=5, kappa=0.0, rescale=0.5),
    ),
    (tk.MaxBackup(), described("MaxBackup")),
    (tk.DoubleBackup(), described("DoubleBackup")),
    (
        tk.MunchausenBackup(0.5, alpha=0.1, lowest=-2.0),
        described("MunchausenBackup", temperature=0.5, alpha=0.1, lowest=-2.0),
    ),
    (tk.ConservativePenalty(0.25), described("ConservativePenalty", weight=0.25)),
    (tk.Greedy(), described("Greedy")),
    (
        tk.EpsilonGreedy([(0, 1.0), (9, 0.1)], per_env=[0.5, 1.0]),
        described("EpsilonGreedy", epsilon=described("Piecewise", knots=[[0, 1.0], [9, 0.1]]), per_env=[0.5, 1.0]),
    ),
    (
        tk.EZGreedy(0.1, mu=3.0, max_repeat=9),
        described("EZGreedy", epsilon=described("Constant", value=0.1), mu=3.0, max_repeat=9),
    ),
    (tk.SoftQ(0.3), described("SoftQ", temperature=described("Constant", value=0.3))),
    (tk.ColoredNoise(0.5, length=200), described("ColoredNoise", beta=0.5, length=200)),
    (tk.policy.MinOfCritics(), described("MinOfCritics")),
    (tk.policy.SeparatePasses(), described("SeparatePasses")),
]
every_part = pytest.mark.parametrize(
    ("part", "plain"), DESCRIPTIONS, ids=[type(part).__name__ for part, _ in DESCRIPTIONS]
)


def test_every_part_that_is_exported_is_tested_here() -> None:
    members = [getattr(trainkit, name) for name in trainkit.__all__]
    namespaces = [trainkit, *filter(inspect.ismodule, members)]
    public = [getattr(module, name) for module in namespaces for name in module.__all__]
    kinds = [kind for kind in public if inspect.isclass(kind) and issubclass(kind, Part)]
    own = {kind for kind in kinds if not extensions.named(kind) and not inspect.isabstract(kind)}
    assert {type(part) for part, _ in DESCRIPTIONS} == own


@every_part
def test_a_part_is_described_by_its_name_and_all_its_arguments(part: Part, plain: dict[str, Any]) -> None:
    assert to_plain(part) == plain
    parameters = inspect.signature(type(part)).parameters
    assert list(plain["of"]) == list(parameters)
    for name, parameter in parameters.items():
        assert plain["of"][name] != parameter.default, f"choose another {name}, so that one that is lost is seen"


@every_part
def test_a_part_is_made_again_of_its_description(part: Part, plain: dict[str, Any]) -> None:
    made = from_plain(plain)
    assert type(made) is type(part)
    assert to_plain(made) == plain
    state = [vars(one) if hasattr(one, "__dict__") else {} for one in (made, part)]
    assert state[0].keys() == state[1].keys()
    for name, own in state[1].items():
        if isinstance(own, (int, float, str)):
            assert state[0][name] == own, name


def test_a_new_part_needs_its_class_and_an_export_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    class Lowest(Part):
        def __init__(self, count: int = 1, *, share: float = 0.5) -> None:
            self.count, self.share = count, share

    with pytest.raises(TypeError, match="is not a part that trainkit exports"):
        to_plain(Lowest(3))
    monkeypatch.setattr(trainkit, "Lowest", Lowest, raising=False)
    monkeypatch.setattr(trainkit, "__all__", [*trainkit.__all__, "Lowest"])
    made = from_plain(to_plain(Lowest(3, share=0.25)))

    assert (type(made), made.count, made.share) == (Lowest, 3, 0.25)


def test_numbers_and_sequences_are_described_as_json_keeps_them() -> None:
    given = [None, True, 3, 0.5, "mse", np.float32(0.5), np.arange(2), (1, [2.0])]
    assert to_plain(given) == [None, True, 3, 0.5, "mse", 0.5, [0, 1], [1, [2.0]]]
    assert from_plain([1, [2.0]]) == (1, (2.0,))


def test_a_subclass_or_another_class_of_an_exported_name_is_no_part() -> None:
    class ExpectedValue(tk.ExpectedValue):
        pass

    for other in (ExpectedValue(), object(), print):
        with pytest.raises(TypeError, match="is not a part that trainkit exports"):
            to_plain(other)


@pytest.mark.parametrize("name", ["load_policy", "DQNPolicy", "Part", "print", "sys", "export"])
def test_a_file_can_have_nothing_but_parts_made(name: str) -> None:
    with pytest.raises(LookupError):
        from_plain(described(name))


def test_a_part_of_an_extension_that_is_not_there_is_named_with_it() -> None:
    plain = described("Flow", width=3) | {"extension": "flows"}
    rule = r"^the part Flow is of the extension .flows., which is not there: install all of trainkit$"
    with pytest.raises(tk.ConfigError, match=rule):
        from_plain(plain)
