"""A policy as a user writes it: the units of its actions, where its modules are, and what its mistakes are told."""

from collections.abc import Callable
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
from gymnasium import spaces
from torch import Tensor

import trainkit as tk
from tests.helpers.accelerator import load_pretend_device
from tests.helpers.engine import engines
from tests.helpers.learning import Spaces, batch_of, small_net
from trainkit.core.spaces import StructuredHybrid, flat_actions
from trainkit.policy import ActOutput

PUSH = spaces.Box(np.array([-2.0, -1.0], np.float32), np.array([2.0, 3.0], np.float32))


class Pusher(tk.Policy):
    """A deterministic actor of a Box that regresses actions; `offset` stands in no gradient step and no target."""

    def __init__(self, space: Any = PUSH, **options: Any) -> None:
        how = {"observation_space": Spaces().observation_space, "device": "cpu", "seed": 0, **options}
        super().__init__(**{"action_space": space, **how})
        self.actor = small_net((4, 8, 2))
        self.add_gradient_step("actor", self.actor, tk.Adam(), loss=self.loss)
        self.offset = small_net((4, 2), seed=1)

    def act(self, obs: Any, **_: Any) -> tk.policy.ActOutput:
        return tk.policy.ActOutput(
            self.action_scale.to_space(self.engine.call("act", self.unit, obs)["unit"]), {}, None
        )

    def unit(self, obs: Any) -> dict[str, Tensor]:
        return {"unit": (self.actor(obs) + self.offset(obs)).tanh()}

    def loss(self, rows: tk.engine.TensorBatch) -> tk.engine.Loss:
        error = self.unit(rows.obs)["unit"] - self.action_scale.to_unit(rows.action)
        return tk.engine.Loss(error.square().sum(dim=1))


# ---- units ----


class TestActionScale:
    def test_a_policy_of_a_box_maps_its_units_to_the_bounds(self) -> None:
        scale = Pusher().action_scale
        assert scale.to_space(np.array([[-1.0, 0.0], [1.0, 1.0]])).tolist() == [[-2.0, 1.0], [2.0, 3.0]]
        assert scale.to_unit(torch.tensor([[-2.0, 3.0]])).tolist() == [[-1.0, 1.0]]

    def test_it_follows_the_space_that_a_collector_gives(self) -> None:
        policy = Pusher(None)
        with pytest.raises(
            tk.ConfigError, match=r"Pusher.action_scale is of actions in a Box .* got no space yet: give"
        ):
            _ = policy.action_scale
        policy.check_spaces(Spaces().observation_space, PUSH)
        assert policy.action_scale.high.tolist() == [2.0, 3.0]

    def test_the_units_of_the_space_stay_without_scaling(self) -> None:
        for policy in (Pusher(action_scaling=False), Pusher(None, action_scaling=False)):
            policy.check_spaces(Spaces().observation_space, PUSH)
            assert policy.action_scale.to_space(np.array([[0.5, 7.0]])).tolist() == [[0.5, 3.0]]

    def test_columns_of_a_box_in_nested_actions_have_one_too(self) -> None:
        flat = flat_actions(spaces.Dict({"push": PUSH, "jump": spaces.Discrete(2)}))
        assert isinstance(flat, StructuredHybrid)
        assert Pusher(flat).action_scale.to_unit(np.array([[1.0, 2.0, 3.0]])).shape == (1, 3)

    @pytest.mark.parametrize("space", [spaces.Discrete(3), spaces.Box(0, 3, (2,), np.int64)])
    def test_actions_that_are_not_floats_have_none(self, space: Any) -> None:
        with pytest.raises(
            tk.ConfigError, match=r"Pusher.action_scale is of actions in a Box of floats, got (Dis|Box)"
        ):
            _ = Pusher(space).action_scale
        with pytest.raises(tk.ConfigError, match="action_scaling has no effect: actions are"):
            Pusher(space, action_scaling=False)

    def test_weights_of_other_units_are_rejected(self) -> None:
        saved = Pusher(action_scaling=False).training_state()
        with pytest.raises(tk.errors.CheckpointError, match=r"Pusher\.action_scaling is True, but the checkpoint's"):
            Pusher().load_training_state(saved)

    def test_a_policy_that_was_saved_without_a_scale_is_loaded(self) -> None:
        saved = Pusher(seed=1).training_state()
        del saved["action_scaling"]
        policy = Pusher()
        policy.load_training_state(saved)
        assert torch.equal(policy.actor[0].weight, saved["weights"]["actor.0.weight"])

    def test_it_cannot_be_assigned(self) -> None:
        policy: Any = Pusher()
        with pytest.raises(tk.ConfigError, match=r"Pusher\.action_scaling would have no effect: it is fixed at"):
            policy.action_scaling = False


# ---- modules ----


class TestModules:
    def test_those_in_no_gradient_step_are_moved_to_the_device_too(self) -> None:
        device = load_pretend_device().device
        policy = Pusher(device=device)
        assert policy.offset[0].weight.device.type == "cpu"  # which came after the last gradient step
        assert policy.action_scale.low.device.type == device.type
        policy.check_spaces(policy.observation_space, PUSH)  # as a collector does
        assert {tensor.device.type for tensor in policy.state_dict().values()} == {device.type}
        policy.update(batch_of(8, action=np.zeros((8, 2), np.float32)), step=0)

    def test_a_target_moves_them_to_the_device(self) -> None:
        device = load_pretend_device().device
        policy = Pusher(device=device)
        policy.add_target("actor", policy.actor, tk.Target())
        assert policy.offset[0].weight.device.type == device.type

    @pytest.mark.parametrize("name", ["action_scale", "gradient_steps", "horizon", "lr", "act", "columns"])
    def test_one_under_the_name_of_an_attribute_is_rejected(self, name: str) -> None:
        policy = Pusher()
        setattr(policy, name, small_net())
        rule = rf"Pusher\.{name} cannot be assigned, got Sequential: .* del policy\.{name}, and give the module another"
        for bind in (
            lambda: policy.check_spaces(policy.observation_space, PUSH),
            policy.check_modules,
            lambda: policy.add_target("actor", policy.actor, tk.Target()),
            lambda: policy.add_gradient_step("again", policy.actor, tk.Adam()),
        ):
            with pytest.raises(tk.ConfigError, match=rule):
                bind()
        delattr(policy, name)
        policy.check_modules()

    def test_one_under_the_name_of_a_scale_that_is_not_there_is_rejected(self) -> None:
        policy: Any = Pusher(spaces.Discrete(2))
        policy.action_scale = small_net()
        with pytest.raises(tk.ConfigError, match=r"Pusher\.action_scale cannot be assigned, got Sequential"):
            policy.check_modules()

    def test_one_that_a_property_returns_is_allowed(self) -> None:
        class Shown(Pusher):
            @property
            def head(self) -> Any:
                return self._modules["head"]

        policy: Any = Shown()
        policy._modules["head"] = small_net()
        policy.check_modules()


# ---- what `act` returns ----


class Acting(Pusher):
    """A policy whose `act` returns what it is given."""

    def __init__(self, output: Any, space: Any = PUSH) -> None:
        super().__init__(space)
        self.output = output

    def act(self, obs: Any, **_: Any) -> Any:
        return self.output


def collecting(policy: tk.Policy, space: Any = PUSH) -> tk.Collector:
    """Return a collector of two environments."""
    return tk.Collector(policy, tk.make_envs(lambda: Ending(space), 2, seed=0), tk.ReplayBuffer(100))


class Ending(gym.Env[Any, Any]):
    def __init__(self, space: Any) -> None:
        self.observation_space, self.action_space, self._n = Spaces().observation_space, space, 0

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        self._n = 0
        return np.zeros(4, np.float32), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self._n += 1
        return np.zeros(4, np.float32), 0.0, self._n == 5, False, {}


class TestAct:
    @pytest.mark.parametrize(
        ("output", "rule"),
        [
            (np.zeros((2, 2)), r"must return an ActOutput, got ndarray: return ActOutput\(action, extras, state\)"),
            ((np.zeros((2, 2)), {}, None), "must return an ActOutput, got tuple"),
            (None, "must return an ActOutput, got NoneType"),
            (ActOutput(torch.zeros(2, 2), {}, None), "must return actions in a numpy array .* got Tensor: convert"),
        ],
    )
    def test_another_result_than_an_act_output_is_rejected_by_name(self, output: Any, rule: str) -> None:
        policy = Acting(output)
        with pytest.raises(tk.ConfigError, match=rf"Acting\.act {rule}"):
            policy.predict(np.zeros((2, 4), np.float32))
        collector = collecting(policy)
        with pytest.raises(tk.ConfigError, match=rf"Acting\.act {rule}"):
            collector.collect(n_step=2)
        assert collector.env_step == 0

    def test_actions_outside_of_a_box_are_rejected_at_the_first_act(self) -> None:
        collector = collecting(Acting(ActOutput(np.array([[2.0, -1.0], [0.0, 3.5]]), {}, None)))
        rule = r"Acting\.act must return actions inside Box\(.*, got 3\.5 for \[-1\.0, 3\.0\] in row 1: map .*to_space"
        with pytest.raises(tk.ConfigError, match=rule):
            collector.collect(n_step=2)
        assert len(collector.buffer or ()) == 0

    def test_bounds_are_inside(self) -> None:
        rounded = spaces.Box(-0.7, 0.7, (2,), np.float32)  # whose bound in float32 is below 0.7
        for space, action in ((PUSH, PUSH.high), (PUSH, PUSH.low), (rounded, np.full(2, 0.7))):
            collecting(Acting(ActOutput(np.stack([action] * 2), {}, None), space), space).collect(n_step=2)

    def test_actions_of_another_shape_are_named_as_such(self) -> None:
        collector = collecting(Acting(ActOutput(np.full((2, 3), 9.0), {}, None)))
        with pytest.raises(tk.errors.EnvError, match=r"the policy produced actions of shape \(2, 3\)"):
            collector.collect(n_step=2)

    def test_nested_actions_have_the_bounds_of_their_leaves(self) -> None:
        space = spaces.Dict({"jump": spaces.Discrete(2), "push": PUSH})
        output = ActOutput(np.array([[1.0, 0.0, 0.0], [0.0, -2.5, 0.0]]), {}, None)
        with pytest.raises(tk.ConfigError, match=r"Acting\.act .* got -2\.5 for \[-2\.0, 2\.0\] in row 1"):
            collecting(Acting(output, space), space).collect(n_step=2)

    def test_only_the_first_act_is_checked(self) -> None:
        good, outside = (ActOutput(np.full((2, 2), push), {}, None) for push in (0.0, 9.0))
        policy = Acting(outside)
        collector = collecting(policy)
        collector.collect(n_step=2, random=True)
        with pytest.raises(tk.ConfigError, match=r"Acting\.act"):
            collector.collect(n_step=2)
        policy.output = good
        collector.collect(n_step=2)
        policy.output = outside
        collector.collect(n_step=2)


# ---- what a loss reads ----


class Reading(Pusher):
    """A policy whose loss looks up a name."""

    columns = ("t",)

    def __init__(self, read: Callable[[Any], Any], **options: Any) -> None:
        self.__dict__["read"] = read
        super().__init__(**options)

    def loss_noise(self, n_rows: int) -> dict[str, Any]:
        return {"noise": torch.zeros(n_rows)}

    def loss_inputs(self, n_rows: int, *, step: int) -> dict[str, Any]:
        return {"weight": 1.0}

    def loss(self, rows: tk.engine.TensorBatch) -> tk.engine.Loss:
        return tk.engine.Loss(super().loss(rows).per_row + self.read(rows))


@pytest.mark.parametrize("engine", engines("torch", "numpy"))
@pytest.mark.parametrize("table", ["inputs", "extras"])
def test_an_error_lists_what_a_loss_can_read(table: str, engine: Any) -> None:
    policy = Reading(lambda rows: getattr(rows, table)["nosie"], engine=engine)
    rule = (
        r"Reading: the loss of gradient step 'actor' raised KeyError\('nosie'\): rows\.inputs has 'weight', 'noise' "
        r"\(what loss_noise and loss_inputs return\), rows\.extras 't' \(what the policy's columns name\)"
    )
    batch = batch_of(8, action=np.zeros((8, 2), np.float32), extras={"t": np.zeros(8, np.int64)})
    with pytest.raises(tk.ConfigError, match=rule) as caught:
        policy.update(batch, step=0)
    assert isinstance(caught.value.__cause__, KeyError)
    assert policy.n_updates == 0
