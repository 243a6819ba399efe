"""A buffer made of plain values: its type by name, merged into a default of the same type."""

from typing import Any

import pytest

import trainkit as tk
from tests.trainer.toys import Walk
from trainkit import ConfigError, PrioritizedReplayBuffer, ReplayBuffer
from trainkit.buffer import buffer_from_config

DEFAULT = {"type": "PrioritizedReplayBuffer", "capacity": 500, "alpha": 0.5, "beta": 0.3}


class Own(ReplayBuffer):
    """A user's buffer class."""


def test_the_type_and_its_arguments_make_a_buffer() -> None:
    buffer = buffer_from_config({"type": "PrioritizedReplayBuffer", "capacity": 300, "alpha": 0.7})
    assert type(buffer) is PrioritizedReplayBuffer
    assert (buffer.capacity, buffer.alpha) == (300, 0.7)
    assert type(buffer_from_config({"capacity": 3})) is ReplayBuffer
    assert type(buffer_from_config({"type": Own, "capacity": 3})) is Own


@pytest.mark.parametrize("config", [{"alpha": 0.9}, {"alpha": 0.9, "type": "PrioritizedReplayBuffer"}])
def test_the_same_type_is_merged_into_the_default(config: dict[str, Any]) -> None:
    buffer = buffer_from_config(config, default=DEFAULT)
    assert isinstance(buffer, PrioritizedReplayBuffer)
    assert (buffer.capacity, buffer.alpha, buffer.beta(0)) == (500, 0.9, 0.3)


def test_another_type_replaces_the_default() -> None:
    buffer = buffer_from_config({"type": "ReplayBuffer", "capacity": 7}, default=DEFAULT)
    assert (type(buffer), buffer.capacity) == (ReplayBuffer, 7)
    with pytest.raises(ConfigError, match=r"ReplayBuffer needs capacity, got \[\]: a config of another type replaces"):
        buffer_from_config({"type": "ReplayBuffer"}, default=DEFAULT)


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({"type": "PrioritisedReplayBuffer", "capacity": 3}, "did you mean 'PrioritizedReplayBuffer'"),
        ({"type": "os.system", "capacity": 3}, "type must be one of"),
        ({"type": dict, "capacity": 3}, "type must be one of"),
        ({"type": None}, "type must be one of"),
        ({"capacity": 3, "alpha": 0.5}, "ReplayBuffer: unknown option 'alpha'"),
        ({}, r"ReplayBuffer needs capacity, got \[\]$"),
        ({"capacity": 0}, "capacity must be"),
        ([("capacity", 3)], "needs a dict"),
    ],
)
def test_what_cannot_be_made_is_rejected(config: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        buffer_from_config(config)


def test_presets_take_it_and_merge_it_into_their_table() -> None:
    how: dict[str, Any] = {"n_envs": 2, "max_epoch": 1, "step_per_epoch": 100, "test_env": Walk, "batch_size": 4}
    uniform = tk.presets.dqn(Walk, **how, capacity=123)
    assert (type(uniform.buffer), uniform.buffer.capacity) == (ReplayBuffer, 123)
    config = {"type": "PrioritizedReplayBuffer", "beta": tk.Linear(0.2, 1.0)}
    prioritized = tk.presets.dqn(Walk, **how, buffer=config)
    assert isinstance(prioritized.buffer, PrioritizedReplayBuffer)
    assert [prioritized.buffer.beta(step) for step in (0, 50, 100)] == pytest.approx([0.2, 0.6, 1.0])
    with pytest.raises(ConfigError, match=r"presets\.dqn\.buffer must be 'uniform' or 'prioritized' or a mapping"):
        tk.presets.dqn(Walk, **how, buffer="PrioritizedReplayBuffer")  # type: ignore[arg-type]  # wrong on purpose
