"""What a loss returns: the number that is minimized, priorities, metrics, and outputs for later losses."""

import dataclasses
from typing import Any

import gymnasium as gym
import pytest
import torch

from tests.helpers.engine import engines
from tests.helpers.learning import FOUR_NUMBERS, Spaces, batch_of
from trainkit import ConfigError, DQNPolicy, SACPolicy
from trainkit.engine import Loss
from trainkit.engine.loss import weight_metrics


def test_weights_are_shown_by_their_mean_and_by_how_much_of_the_batch_they_leave() -> None:
    metrics = weight_metrics(torch.tensor([1.0, 1.0, 0.5, 0.5]))
    assert metrics["weight_mean"].item() == 0.75
    assert metrics["effective_share"].item() == pytest.approx(3.0**2 / (4 * 2.5))  # (sum w)^2 / (B sum w^2)


def test_weights_that_are_alike_leave_all_of_the_batch_and_a_single_one_its_share() -> None:
    assert weight_metrics(torch.full((8,), 0.25))["effective_share"].item() == pytest.approx(1.0)
    assert weight_metrics(torch.tensor([1.0, 0.0, 0.0, 0.0]))["effective_share"].item() == pytest.approx(0.25)


class Own(DQNPolicy):
    """Return what a test says instead of a loss."""

    returned: Any = None

    def loss(self, rows: Any) -> Any:
        loss = super().loss(rows)
        return self.returned(loss)


@pytest.mark.parametrize("engine", engines("torch", "numpy"))
@pytest.mark.parametrize(
    ("returned", "message"),
    [
        (lambda loss: loss.per_row, "Own.loss must return a Loss, got Tensor"),
        (lambda loss: Loss(loss.per_row.mean()), r"Own.loss must return a loss per row, \[B\] = \[8\], got \[\]"),
        (lambda loss: Loss(loss.per_row.unsqueeze(1)), r"a loss per row, \[B\] = \[8\], got \[8, 1\]"),
        (lambda loss: Loss(loss.per_row, loss.priority.mean()), r"a priority per row, \[8\], got \[\]"),
        (
            lambda loss: Loss(loss.per_row, metrics={"step": loss.per_row.mean(), "loss": loss.per_row.mean()}),
            r"the metrics loss, step are the policy's own: rename yours",
        ),
        (
            lambda loss: Loss(loss.per_row, metrics={"target_followed": loss.per_row.mean()}),
            "the metrics target_followed are the policy's own: rename yours",
        ),
        (
            lambda loss: Loss(loss.per_row, metrics={"td": loss.per_row[:5]}),
            r"metric 'td' must be a scalar tensor, or a column \[B, ...\] of 8 rows, .* got \[5\]",
        ),
        (lambda loss: Loss(loss.per_row, metrics={"td": 1.0}), "metric 'td' must be a scalar tensor, .* got float"),
    ],
)
def test_what_is_no_loss_per_row_is_rejected(returned: Any, message: str, engine: Any) -> None:
    policy = Own.for_envs(Spaces(), hidden=(4,), device="cpu", seed=0, engine=engine)
    policy.returned = staticmethod(returned)
    with pytest.raises(ConfigError, match=message):
        policy.update(batch_of(8), step=0)
    assert policy.n_updates == 0


def test_two_gradient_steps_with_a_metric_of_one_name_are_an_error() -> None:
    class Twice(SACPolicy):
        def actor_loss(self, rows: Any) -> Loss:
            loss = super().actor_loss(rows)
            return dataclasses.replace(loss, metrics={**loss.metrics, "q_mean": loss.per_row.mean()})

    policy = Twice.for_envs(Spaces(FOUR_NUMBERS, gym.spaces.Box(-1, 1, (2,))), hidden=(8,), seed=0)
    batch = batch_of(8, action=torch.zeros(8, 2).numpy())
    with pytest.raises(
        ConfigError, match="'actor' and one before it have the metrics q_mean: give them different names"
    ):
        policy.update(batch, step=0)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"metrics": {"critic_loss": torch.tensor(1.0)}}, "the metrics critic_loss are those of gradient steps"),
        ({"priority": torch.ones(8)}, "'actor' and one before it have a priority: return it from one loss"),
    ],
)
def test_a_second_loss_cannot_replace_what_an_update_has_already(changes: dict[str, Any], message: str) -> None:
    class Replacing(SACPolicy):
        def actor_loss(self, rows: Any) -> Loss:
            return dataclasses.replace(super().actor_loss(rows), **changes)

    policy = Replacing.for_envs(Spaces(FOUR_NUMBERS, gym.spaces.Box(-1, 1, (2,))), hidden=(8,), seed=0, engine="torch")
    with pytest.raises(ConfigError, match=message):
        policy.update(batch_of(8, action=torch.zeros(8, 2).numpy()), step=0)
