"""A loss and its gradients in one graph: the same results as without, and an error where there is no compiler.

Fast tests trace and run the graph without a compiler (backend "eager"), each kind of policy once; slow ones do so for
the other options, or compile it.
"""

import copy
import shutil
from typing import Any

import numpy as np
import pytest
import torch
from torch.testing import assert_close

from tests.engine import scaled_losses
from tests.helpers import rollouts, sac
from tests.helpers.learning import (
    FOUR_NUMBERS,
    PARTS,
    Spaces,
    assert_same,
    batch_of,
    made,
    observations,
    parameters_of,
    small_net,
)
from tests.helpers.of_extensions import learners_of_extensions
from tests.helpers.torch_step import Ours, Reference, assert_nets_close
from tests.helpers.updates import MORE_PARTS, ON_POLICY, batches, learn_alike
from tests.policy.regression import Regression, with_batch_norm, with_spectral_norm
from trainkit import (
    Adam,
    CategoricalValue,
    Clip,
    ConfigError,
    PPOPolicy,
)
from trainkit.engine.device import CPU
from trainkit.engine.engine import engine_for
from trainkit.engine.loss import OwnObjective
from trainkit.errors import DivergedError
from trainkit.extensions.compile import compile_engine, compiling

has_compiler = pytest.mark.skipif(
    compile_engine.missing(torch.device("cpu")) is not None,
    reason=f"nothing can be compiled here: there is no {compile_engine.missing(torch.device('cpu'))}",
)
of_torchs_own = pytest.mark.filterwarnings("ignore:`torch.jit.script:DeprecationWarning")  # which inductor uses itself


def slow(parameters: Any) -> Any:
    """Mark a set of parameters as slow."""
    is_set = hasattr(parameters, "values") and hasattr(parameters, "marks")
    return (
        pytest.param(*parameters.values, id=parameters.id, marks=pytest.mark.slow)
        if is_set
        else pytest.param(parameters, id=str(parameters), marks=pytest.mark.slow)
    )


# ---- the same numbers ----


@pytest.mark.usefixtures("traced")
@pytest.mark.parametrize(
    "clip", [Clip(0.5), *(slow(clip) for clip in (None, Clip(0.2, by="norm"), Clip(0.02, by="value")))], ids=str
)
def test_moves_like_torchs_adam_and_clips(clip: Clip | None) -> None:
    net, adam = small_net(), Adam([(0, 1e-2), (30, 1e-3)], weight_decay=0.1)
    ours, reference = Ours(copy.deepcopy(net), adam, clip), Reference(net, adam, clip)
    engine = engine_for(ours.net, "compile", CPU)
    generator = torch.Generator().manual_seed(0)
    rows = [
        (torch.randn(16, 4, generator=generator), (1 + i % 5) * torch.randn(16, 3, generator=generator))
        for i in range(40)
    ]

    def loss(net: torch.nn.Module, i: int) -> torch.Tensor:
        return (net(rows[i][0]) - rows[i][1]).square().mean()

    def step(i: int) -> float:
        x, y = rows[i]
        objective = OwnObjective(lambda: (ours.net(x) - y).square().mean())
        return float(engine.minimize(ours.step, objective, (), step=i).norm)

    assert_close([step(i) for i in range(40)], reference.train(range(40), loss), rtol=1e-4, atol=1e-6)
    assert_nets_close(ours.net, reference.net)


@pytest.mark.usefixtures("traced")
@pytest.mark.parametrize("parts", [PARTS[5], *map(slow, (PARTS[2], *MORE_PARTS[-2:]))])
def test_a_q_learner_of_any_parts_learns_as_without(parts: dict[str, Any]) -> None:
    space = parts.get("space")
    learn_alike(made(**parts, engine="compile"), made(**parts), batches(6, space))


@pytest.mark.slow
@pytest.mark.usefixtures("traced")
def test_sac_learns_as_without() -> None:
    batches = [sac.rows(16, seed=seed) for seed in range(4)]
    learn_alike(sac.made(engine="compile"), sac.made(), batches)


@pytest.mark.slow
@pytest.mark.usefixtures("traced")
@pytest.mark.parametrize("name", learners_of_extensions())
def test_every_gradient_step_of_an_extensions_learner_is_compiled(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    graphs: set[int] = set()
    call = compiling.LossGraph.__call__
    monkeypatch.setattr(
        compiling.LossGraph, "__call__", lambda graph, *given: graphs.add(id(graph)) or call(graph, *given)
    )
    kind, actions, own = learners_of_extensions()[name]
    options: dict[str, Any] = {"hidden": (8,), "device": "cpu", "seed": 0, **own}
    policies = [kind.for_envs(Spaces(action_space=actions), engine=engine, **options) for engine in ("compile", "auto")]
    learn_alike(*policies, [batch_of(16, seed=seed, action=observations(actions, 16, seed)) for seed in range(6)])
    assert len(graphs) == len(policies[0].gradient_steps)


def learn_rollouts_alike(
    kind: Any,
    n_rollouts: int,
    space: Any = FOUR_NUMBERS,
    engines: tuple[str, str] = ("compile", "auto"),
    **options: Any,
) -> Any:
    """Learn from the same rollouts by two engines; return the policy of the first."""
    compiled, plain = (rollouts.made(kind, space, engine=engine, **options) for engine in engines)
    for step in range(n_rollouts):
        rollout = rollouts.played(copy.deepcopy(plain), space, [20, 13, 7], seed=step)
        for policy in (compiled, plain):
            list(policy.learn(rollout, step=step, batch_size=8, repeat=2))
    assert_close(parameters_of(compiled), parameters_of(plain), rtol=1e-4, atol=1e-5)
    mine, theirs = compiled.read_metrics(), plain.read_metrics()
    assert mine == {name: pytest.approx(number, rel=1e-3, abs=1e-4) for name, number in theirs.items()}
    return compiled


@pytest.mark.slow
@pytest.mark.usefixtures("traced")
@pytest.mark.parametrize(("kind", "space", "options"), ON_POLICY)
def test_an_on_policy_learner_learns_as_without(kind: Any, space: Any, options: Any) -> None:
    learn_rollouts_alike(kind, 3, space, **options)


@pytest.mark.usefixtures("traced")
def test_what_is_scheduled_needs_no_graph_of_its_own_at_each_step() -> None:
    options = {"entropy_weight": [(0, 0.1), (99, 0.0)], "clip_ratio": [(0, 0.3), (99, 0.1)], "lr": [(0, 1e-3), (99, 0)]}
    with torch._dynamo.config.patch(error_on_recompile=True):  # type: ignore[attr-defined]  # made at run time
        learn_rollouts_alike(PPOPolicy, 3, **options)


@has_compiler
@pytest.mark.slow
@of_torchs_own
@pytest.mark.parametrize(("kind", "space", "options"), ON_POLICY)
def test_an_on_policy_learner_compiled_learns_as_without(kind: Any, space: Any, options: Any) -> None:
    learn_rollouts_alike(kind, 10, space, **options)


@pytest.mark.usefixtures("traced")
@pytest.mark.parametrize("make", [with_batch_norm, with_spectral_norm])
def test_buffers_that_a_loss_moves_move_once(make: Any) -> None:
    net = make()
    compiled, plain = (Regression(lambda: copy.deepcopy(net), engine=engine) for engine in ("compile", "torch"))
    learn_alike(compiled, plain, batches(6))
    for name, buffer in compiled.critic.named_buffers():
        assert_close(buffer, plain.critic.get_buffer(name), rtol=1e-4, atol=1e-5)


class WithSpare(torch.nn.Module):
    """A network with a layer that no loss depends on."""

    def __init__(self) -> None:
        super().__init__()
        self.used, self.spare = small_net((4, 8, 1)), small_net((4, 1), seed=1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = self.used(x)
        return result


@pytest.mark.usefixtures("traced")
def test_a_parameter_without_a_gradient_stays_and_the_others_stay_laid_out() -> None:
    net = WithSpare()
    compiled, plain = (Regression(lambda: copy.deepcopy(net), engine=engine) for engine in ("compile", "torch"))
    learn_alike(compiled, plain, batches(2))
    groups = compiled.gradient_steps["critic"].groups
    learn_alike(compiled, plain, batches(3))
    assert compiled.gradient_steps["critic"].groups is groups
    assert_same(compiled.critic.spare.state_dict(), net.spare.state_dict())


@pytest.mark.slow
@pytest.mark.usefixtures("traced")
def test_bf16_is_one_graph_and_nearly_the_numbers_without() -> None:
    compiled, plain = (made(**PARTS[0].values[0], precision="bf16", engine=engine) for engine in ("compile", "torch"))
    with torch._dynamo.config.patch(error_on_recompile=True):  # type: ignore[attr-defined]  # made at run time
        for step, batch in enumerate(batches(5)):
            one, other = (policy.update(batch, step=step).read_priority() for policy in (compiled, plain))
            assert_close(torch.from_numpy(one), torch.from_numpy(other), rtol=0.01, atol=0.01)


@has_compiler
@pytest.mark.slow
@of_torchs_own
@pytest.mark.parametrize("parts", MORE_PARTS)
def test_what_is_compiled_learns_as_without(parts: dict[str, Any]) -> None:
    learn_alike(made(**parts, engine="compile"), made(**parts), batches(100))


@has_compiler
@pytest.mark.slow
@of_torchs_own
def test_sac_compiled_learns_as_without() -> None:
    batches = [sac.rows(16, seed=seed) for seed in range(50)]
    learn_alike(sac.made(temperature=0.2, engine="compile"), sac.made(temperature=0.2), batches)


# ---- other sizes, errors, copies, loaded states ----


@pytest.mark.slow
@pytest.mark.usefixtures("traced")
def test_batches_of_another_size_are_learned_from() -> None:
    sizes = [batch for n in (16, 1, 16) for batch in batches(2, n_rows=n)]
    learn_alike(made(engine="compile"), made(), sizes)


@pytest.mark.usefixtures("traced")
def test_acting_changes_no_update_and_steps_that_are_not_finite_are_not_taken() -> None:
    policy, plain = made(engine="compile"), made()
    for start, batch in enumerate(batches(2)):
        policy.predict(batch.obs)
        learn_alike(policy, plain, [batch], start)
    before = copy.deepcopy(policy.training_state()["weights"])
    with pytest.raises(DivergedError, match="update 3 at step 7"):
        policy.update(batch_of(16, reward=np.full(16, np.nan, np.float32)), step=7)
    assert_same(policy.training_state()["weights"], before)
    policy.update(batch_of(16), step=8)


@pytest.mark.slow
@pytest.mark.usefixtures("traced")
def test_a_copy_learns_by_itself() -> None:
    one, plain = made(engine="compile"), made()
    learn_alike(one, plain, batches(2))
    other = copy.deepcopy(one)
    learn_alike(other, copy.deepcopy(plain), batches(4)[2:])
    learn_alike(one, plain, batches(4)[2:])
    assert_same(parameters_of(one), parameters_of(other))


@pytest.mark.slow
@pytest.mark.usefixtures("traced")
def test_learning_continues_from_a_loaded_state() -> None:
    one, plain = made(engine="compile", seed=3), made()
    learn_alike(plain, made(), batches(2))
    one.update(batch_of(16), step=0)
    one.update(batch_of(16), step=0)
    one.load_training_state(copy.deepcopy(plain.training_state()))
    one.read_metrics()
    learn_alike(one, plain, batches(4)[2:])


@pytest.mark.slow
@pytest.mark.usefixtures("traced")
def test_more_policies_than_torch_keeps_graphs_of_one_function(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compiling, "_MOST_GRAPHS", 2)
    with torch._dynamo.config.patch(recompile_limit=2):  # type: ignore[attr-defined]  # made at run time
        for width in range(5):
            policy = made(engine="compile", value=CategoricalValue(width + 2, -1.0, 1.0))
            for batch in batches(2):
                policy.update(batch, step=0)


# ---- where nothing can be compiled ----


def test_nothing_is_compiled_unless_requested(monkeypatch: pytest.MonkeyPatch) -> None:
    graphs: list[Any] = []
    monkeypatch.setattr(compile_engine, "LossGraph", lambda *given: graphs.append(given))
    policy = made()
    for batch in batches(3):
        policy.update(batch, step=0)
    assert not graphs


def test_without_a_compiler_it_is_rejected_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CXX", "no-such-compiler")
    with pytest.raises(
        ConfigError, match=r"engine 'compile' needs the C\+\+ compiler no-such-compiler: install it, or"
    ):
        made(engine="compile")


def test_without_pythons_headers_it_is_rejected(monkeypatch: pytest.MonkeyPatch, tmp_path: Any) -> None:
    monkeypatch.setattr(shutil, "which", lambda name: name)
    monkeypatch.setattr(compiling.sysconfig, "get_path", lambda name: str(tmp_path))
    with pytest.raises(ConfigError, match=r"engine 'compile' needs Python's headers, of which .* has none"):
        made(engine="compile")


def test_cuda_needs_triton(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compiling, "is_installed", lambda package: False)
    assert compile_engine.missing(torch.device("cuda")) == "the package triton"


def test_triton_needs_a_c_compiler(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compiling, "is_installed", lambda package: True)
    monkeypatch.setattr(shutil, "which", lambda name: None)
    monkeypatch.delenv("CC", raising=False)
    assert compile_engine.missing(torch.device("cuda")) == "the C compiler gcc or clang"
    monkeypatch.setenv("CC", "own-cc")
    assert compile_engine.missing(torch.device("cuda")) == "the C compiler own-cc"


@pytest.mark.usefixtures("traced")
def test_numbers_arrays_and_tensors_reach_the_loss() -> None:
    scaled_losses.check_that_numbers_arrays_and_tensors_reach_the_loss("compile")
