"""Optimizers and learning rates of torch: the results of a plain torch loop, resumed and copied exactly, and errors."""

import copy
import functools
import itertools
import math
import re
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.optim import lr_scheduler
from torch.testing import assert_close

import trainkit as tk
from tests.helpers.learning import Spaces, assert_same, parameters_of, small_net
from tests.helpers.optimizers import ADAMW, COSINE, SGD, Signs, updated, without_decay_of_biases
from tests.helpers.torch_step import TorchStep, square_loss
from trainkit import Adam, Clip, ConfigError, TorchOptimizer
from trainkit.engine.device import CPU
from trainkit.engine.engine import Engine
from trainkit.engine.loss import OwnObjective
from trainkit.engine.update_rules import FusedAdam, TorchRule, rule_for
from trainkit.errors import CheckpointError


def muon_and_adam(params: list[nn.Parameter]) -> torch.optim.Optimizer:
    return Both(params)


class Both(torch.optim.Optimizer):
    """Muon for matrices, Adam for vectors, in one optimizer."""

    def __init__(self, params: list[nn.Parameter]) -> None:
        super().__init__(params, {"lr": 1e-2})
        self.parts = [
            torch.optim.Muon([p for p in params if p.dim() == 2], lr=1e-2),
            torch.optim.Adam([p for p in params if p.dim() == 1], lr=1e-2),
        ]

    def step(self, closure: Any = None) -> None:  # type: ignore[override]  # no closure is evaluated
        for part in self.parts:
            part.step()


FACTORIES: list[Any] = [
    pytest.param(ADAMW, id="AdamW"),
    pytest.param(functools.partial(torch.optim.Adam, lr=1e-2, weight_decay=0.1), id="Adam"),
    pytest.param(functools.partial(torch.optim.Adam, lr=1e-2, amsgrad=True), id="amsgrad"),
    pytest.param(SGD, id="SGD"),
    pytest.param(functools.partial(torch.optim.RMSprop, lr=1e-3, momentum=0.5), id="RMSprop"),
    pytest.param(torch.optim.NAdam, id="NAdam"),
    pytest.param(functools.partial(torch.optim.Adagrad, lr=1e-2), id="Adagrad"),
    pytest.param(functools.partial(torch.optim.Adafactor, lr=1e-2), id="Adafactor"),
    pytest.param(without_decay_of_biases, id="groups"),
    pytest.param(functools.partial(Signs, lr=1e-3), id="own"),
    pytest.param(muon_and_adam, id="Muon"),
]
SCHEDULERS: list[Any] = [
    pytest.param(None, id="constant"),
    pytest.param(functools.partial(lr_scheduler.CosineAnnealingLR, T_max=60), id="cosine"),
    pytest.param(functools.partial(lr_scheduler.OneCycleLR, max_lr=2e-2, total_steps=100), id="one cycle"),
    pytest.param(functools.partial(lr_scheduler.MultiStepLR, milestones=[10, 30]), id="milestones"),
    pytest.param(lambda optimizer: lr_scheduler.LambdaLR(optimizer, lambda n: 1 / (1 + n)), id="function"),
]


class Ours:
    """A network and its gradient step, advanced as a policy does."""

    def __init__(self, optimizer: Any, lr: Any = None, clip: Clip | None = None, seed: int = 0) -> None:
        self.net = small_net(seed=seed)
        self.step = TorchStep(self.net, optimizer if lr is None else TorchOptimizer(optimizer, lr), clip)

    def train(self, steps: range) -> list[float]:
        """Take steps, and return the learning rate of each."""
        lrs = []
        for i in steps:
            self.step(lambda i=i: square_loss(self.net, i), step=i)  # type: ignore[misc]  # i is bound
            lrs.append(self.step.lr(i))
            self.step.advance()
        return lrs


def by_torch(factory: Any, lr: Any, n_steps: int, clip: Clip | None = None) -> tuple[nn.Module, list[float]]:
    """Return the network of a plain torch loop, and the learning rates."""
    net, lrs = small_net(), []
    optimizer = factory(list(net.parameters()))
    scheduler = None if lr is None else lr(optimizer)
    for i in range(n_steps):
        optimizer.zero_grad()
        square_loss(net, i).backward()
        if clip is not None:
            nn.utils.clip_grad_norm_(net.parameters(), clip.limit)
        lrs.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
        if scheduler is not None:
            scheduler.step()
    return net, lrs


@pytest.mark.parametrize("factory", FACTORIES)
def test_200_steps_are_those_of_a_plain_loop(factory: Any) -> None:
    ours = Ours(factory)
    lrs = ours.train(range(200))
    net, expected = by_torch(factory, None, 200)
    assert lrs == pytest.approx(expected)
    if isinstance(rule_for(ours.step.optimizer, [*net.parameters()]), TorchRule):
        assert_same(parameters_of(ours.net), parameters_of(net))
    else:  # the fused call rounds otherwise
        assert_close(parameters_of(ours.net), parameters_of(net), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("factory", [ADAMW, SGD, without_decay_of_biases])
def test_gradients_are_clipped_before(factory: Any) -> None:
    ours = Ours(factory, clip=Clip(0.5))
    ours.train(range(60))
    net, _ = by_torch(factory, None, 60, Clip(0.5))
    assert_close(parameters_of(ours.net), parameters_of(net), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("factory", [ADAMW, SGD], ids=["AdamW", "SGD"])
@pytest.mark.parametrize("lr", SCHEDULERS[1:])
def test_a_scheduler_is_stepped_once_per_update(factory: Any, lr: Any) -> None:
    ours = Ours(factory, lr)
    lrs = ours.train(range(70))
    net, expected = by_torch(factory, lr, 70)
    assert lrs == pytest.approx(expected, rel=1e-12)
    assert len({*lrs}) > 2
    assert_close(parameters_of(ours.net), parameters_of(net), rtol=1e-4, atol=1e-5)


def test_adam_and_adamw_are_fused() -> None:
    halving = Adam(functools.partial(lr_scheduler.StepLR, step_size=5))
    for optimizer in (TorchOptimizer(torch.optim.AdamW), TorchOptimizer(torch.optim.Adam), halving):
        assert isinstance(rule_for(optimizer, [*small_net().parameters()]), FusedAdam)


def test_adam_takes_a_scheduler_and_a_factory_takes_a_schedule() -> None:
    halving = functools.partial(lr_scheduler.StepLR, step_size=1, gamma=0.5)
    assert Ours(Adam(halving)).train(range(3)) == pytest.approx([1e-3, 5e-4, 2.5e-4])
    assert Ours(SGD, [(0, 1.0), (2, 0.0)]).train(range(3)) == [1.0, 0.5, 0.0]
    scheduled, own = Ours(SGD, lambda step: 1e-2), Ours(SGD)
    scheduled.train(range(20))
    own.train(range(20))
    assert_same(parameters_of(scheduled.net), parameters_of(own.net))


@pytest.mark.parametrize(
    ("factory", "lr"),
    [
        *itertools.product([ADAMW, SGD], (param.values[0] for param in SCHEDULERS)),
        (torch.optim.Adagrad, None),
        (
            without_decay_of_biases,
            lambda optimizer: lr_scheduler.LambdaLR(optimizer, [lambda n: 1.0, lambda n: 0.9**n]),
        ),
    ],
)
def test_a_saved_step_continues_bit_by_bit(factory: Any, lr: Any) -> None:
    straight, resumed = Ours(factory, lr), Ours(factory, lr, seed=9)
    straight.train(range(20))
    resumed.train(range(3))
    resumed.net.load_state_dict(straight.net.state_dict())
    resumed.step.load_state_dict(copy.deepcopy(straight.step.state_dict()))
    copied = copy.deepcopy(straight)
    expected = straight.train(range(20, 40))
    for other in (resumed, copied):
        assert other.train(range(20, 40)) == expected
        assert_same(parameters_of(other.net), parameters_of(straight.net))


@pytest.mark.parametrize("factory", [ADAMW, SGD, torch.optim.Adagrad])
def test_a_step_that_is_not_finite_leaves_no_trace(factory: Any) -> None:
    straight, stumbled = Ours(factory), Ours(factory)
    straight.train(range(10))
    stumbled.step(lambda: square_loss(stumbled.net, 0) * math.nan, step=0)
    stumbled.train(range(5))
    taken = stumbled.step(lambda: square_loss(stumbled.net, 0) * math.inf, step=5)
    stumbled.train(range(5, 10))
    assert taken.skipped == 1.0
    assert_same(parameters_of(stumbled.net), parameters_of(straight.net))


@pytest.mark.parametrize(
    "factory", [ADAMW, SGD, functools.partial(torch.optim.Adagrad, lr=1e-2)], ids=["AdamW", "SGD", "Adagrad"]
)
def test_a_layer_that_was_replaced_learns_and_the_others_keep_their_state(factory: Any) -> None:
    ours = Ours(factory, functools.partial(lr_scheduler.StepLR, step_size=1, gamma=0.5))
    ours.train(range(5))
    before = copy.deepcopy(ours.step.state_dict()["state"])
    ours.net[2] = small_net(seed=1)[2]  # type: ignore[index, assignment]  # a Sequential
    drawn = parameters_of(ours.net[2])  # type: ignore[index, arg-type]
    assert ours.train(range(5, 6)) == pytest.approx([1e-2 / 32])
    assert not torch.equal(ours.net[2].weight, drawn["weight"])  # type: ignore[index, arg-type, union-attr]
    state = ours.step.state_dict()["state"]
    name = next(name for name in state[0] if name != "step")
    assert not torch.equal(state[0][name], before[0][name])
    if "step" in state[0]:
        assert float(state[0]["step"]) == float(before[0]["step"]) + 1


def test_a_state_of_another_optimizer_or_scheduler_is_rejected() -> None:
    ours = Ours(SGD, functools.partial(lr_scheduler.StepLR, step_size=5))
    ours.train(range(3))
    state = ours.step.state_dict()
    with pytest.raises(CheckpointError, match="cannot take the state of SGD, as its optimizer is Adam"):
        Ours(Adam()).step.load_state_dict(state)
    with pytest.raises(CheckpointError, match="cannot take the state of Adam, as its optimizer is SGD"):
        ours.step.load_state_dict(Ours(Adam()).step.state_dict())
    with pytest.raises(CheckpointError, match="is of another scheduler than CosineAnnealingLR"):
        Ours(SGD, functools.partial(lr_scheduler.CosineAnnealingLR, T_max=9)).step.load_state_dict(state)


def test_a_graph_records_adam_and_no_optimizer_that_needs_the_cpu() -> None:
    assert Ours(ADAMW).step.not_recordable is None
    assert Ours(SGD).step.not_recordable == (
        "the CPU has to know whether to skip a step of SGD, unlike one of Adam or AdamW"
    )


def test_a_graph_cannot_follow_betas_that_a_scheduler_changes() -> None:
    ours = Ours(ADAMW, functools.partial(lr_scheduler.OneCycleLR, max_lr=1e-2, total_steps=10))
    assert ours.step.not_recordable is None
    objective = OwnObjective(lambda: square_loss(ours.net, 0))
    Engine(ours.net, "torch", CPU).minimize(ours.step, objective, (), step=0, lr=torch.tensor(1e-3))
    ours.step.advance()
    assert str(ours.step.not_recordable).startswith("OneCycleLR changes betas")


NET = small_net()
WRONG: list[tuple[dict[str, Any], str]] = [
    ({"optimizer": torch.optim.SGD(NET.parameters())}, "optimizer=SGD(...) has parameters already: give SGD, or"),
    (
        {"optimizer": 1e-3},
        "or a factory such as torch.optim.AdamW, got 0.001",
    ),
    ({"optimizer": torch.optim.LBFGS}, "optimizer=LBFGS needs closure for a step"),
    ({"optimizer": lambda params: 3}, "must return a torch.optim.Optimizer, got 3"),
    ({"optimizer": lambda params: torch.optim.SGD(params[:1])}, "leaves out 3 of 4 parameters: give it all"),
    ({"optimizer": functools.partial(torch.optim.SGD, momentun=0.9)}, "optimizer=SGD raised TypeError"),
    ({"lr": lambda optimizer: lr_scheduler.CosineAnnealingLR(optimizer)}, "and raised TypeError: CosineAnnealingLR"),
    ({"lr": lr_scheduler.ReduceLROnPlateau}, "ReduceLROnPlateau needs metrics for a step"),
    ({"lr": lr_scheduler.StepLR(torch.optim.SGD(NET.parameters()), 3)}, "StepLR(...) has an optimizer already"),
    ({"lr": lambda step: step / 0}, "raised ZeroDivisionError: division by zero at step 0"),
    ({"lr": lambda step: -1.0}, "Adam.lr must be in [0, inf), got -1.0 at step 0"),
    (
        {"optimizer": TorchOptimizer(without_decay_of_biases, 1e-3)},
        "TorchOptimizer.lr would set the learning rates [0.01, 0.005] of the groups of parameters to one",
    ),
]


@pytest.mark.parametrize(("options", "message"), WRONG, ids=[message[:25] for _, message in WRONG])
def test_a_wrong_optimizer_or_scheduler_is_named(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(message)):
        made(**options)


# ---- policies ----


def made(**options: Any) -> tk.DQNPolicy:
    return tk.DQNPolicy.for_envs(Spaces(), **{"hidden": (8,), "device": "cpu", "seed": 0} | options)


def test_lr_is_for_optimizers_without_one_and_a_scheduler_for_all() -> None:
    assert updated(made(optimizer=torch.optim.AdamW, lr=3e-3), range(2)) == [3e-3] * 2
    assert updated(made(optimizer=torch.optim.AdamW), range(1)) == [5e-4]
    without_lr = functools.partial(torch.optim.SGD, momentum=0.9)
    assert updated(made(optimizer=without_lr, lr=[(0, 1.0), (2, 0.0)]), range(2)) == [1.0, 0.5]
    assert updated(made(optimizer=SGD, lr=3e-3), range(1)) == [1e-2]
    assert updated(made(optimizer=SGD, lr=COSINE), range(11))[::10] == pytest.approx([1e-2, 0.0])
    assert updated(made(lr=COSINE), range(11))[::10] == pytest.approx([5e-4, 0.0])


@pytest.mark.parametrize("optimizer", [SGD, ADAMW, Signs], ids=["SGD", "AdamW", "own"])
def test_a_policy_is_loaded_with_its_optimizer_and_scheduler(optimizer: Any, tmp_path: Path) -> None:
    policy = made(optimizer=optimizer, lr=COSINE)
    loaded = tk.load_policy(policy.save(tmp_path / "saved"), device="cpu")
    steps = [one.gradient_steps["network"] for one in (policy, loaded)]
    assert steps[1].state_dict()["param_groups"] == steps[0].state_dict()["param_groups"]
    assert updated(loaded, range(5)) == updated(policy, range(5))


def test_what_a_file_cannot_hold_is_named_in_the_log(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    folder = made(optimizer=lambda params: Signs(params)).save(tmp_path / "saved")
    loaded = tk.load_policy(folder, device="cpu")
    assert "cannot say what optimizer of its policy was: made without" in caplog.text
    assert loaded.gradient_steps["network"].optimizer == Adam(5e-4)
    given = tk.load_policy(folder, device="cpu", optimizer=Signs)
    assert given.gradient_steps["network"].optimizer == TorchOptimizer(Signs, 5e-4)


def test_a_class_that_is_not_imported_is_named_in_the_log(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = made(optimizer=Signs).save(tmp_path / "saved")
    monkeypatch.delattr(f"{Signs.__module__}.Signs")
    loaded = tk.load_policy(folder, device="cpu")
    assert f"optimizer was of {Signs.__module__}.Signs, which is not imported: made without" in caplog.text
    assert loaded.gradient_steps["network"].optimizer == Adam(5e-4)


@pytest.mark.parametrize(
    ("optimizer", "lr"), [(SGD, COSINE), (ADAMW, SCHEDULERS[2].values[0]), (ADAMW, SCHEDULERS[3].values[0])]
)
def test_a_resumed_run_has_the_same_bits(optimizer: Any, lr: Any, tmp_path: Path) -> None:
    def run(**more: Any) -> Any:
        tiny: dict[str, Any] = {"max_epoch": 2, "step_per_epoch": 32, "n_envs": 2, "hidden": (8,), "evaluation": None}
        tiny |= {"verbose": False, "device": "cpu", "seed": 1, "step_per_collect": 16, "repeat_per_collect": 2}
        return tk.presets.ppo("CartPole-v1", optimizer=optimizer, lr=lr, **tiny | more)

    whole = run()
    next(whole)
    saved = whole.save(tmp_path / "saved")
    whole.run()
    resumed = run(seed=9, resume_from=saved)
    resumed.run()
    assert_same(resumed.policy.training_state()["optimizers"], whole.policy.training_state()["optimizers"])
    assert_same(resumed.policy.get_weights(), whole.policy.get_weights())
