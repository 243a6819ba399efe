"""What an update leaves behind: means of scalars since the last read, and priorities."""

import numpy as np
import pytest
import torch

from tests.helpers.learning import add_to
from trainkit.policy import UpdateResult
from trainkit.policy.update_result import MeanMetrics


def test_means_are_over_everything_added_since_the_last_read() -> None:
    meter = MeanMetrics()
    for loss in (1.0, 2.0, 6.0):
        add_to(meter, {"loss": torch.tensor(loss), "double": torch.tensor(2 * loss)})

    assert meter.read() == {"loss": 3.0, "double": 6.0}
    add_to(meter, {"loss": torch.tensor(10.0), "double": torch.tensor(0.0)})
    assert meter.read() == {"loss": 10.0, "double": 0.0}


def test_there_are_no_means_of_nothing() -> None:
    meter = MeanMetrics()
    assert meter.read() == {}
    add_to(meter, {"loss": torch.tensor(1.0)})
    meter.read()
    assert meter.read() == {}


def test_a_meter_does_not_write_into_what_it_was_given() -> None:
    meter, loss = MeanMetrics(), torch.tensor(1.0)
    add_to(meter, {"loss": loss})
    add_to(meter, {"loss": loss})

    assert loss.item() == 1.0


def test_plain_numbers_are_averaged_with_those_on_the_device() -> None:
    meter = MeanMetrics()
    for loss, lr in ((1.0, 0.5), (3.0, 0.25), (5.0, 0.75)):
        add_to(meter, {"loss": torch.tensor(loss)}, lr=lr)

    assert meter.read() == {"loss": 3.0, "lr": 0.5}


def test_metrics_may_have_any_dtype() -> None:
    meter = MeanMetrics()
    add_to(meter, {"a": np.array(1.0), "b": 2.0, "c": torch.tensor(3), "d": torch.tensor(True), "e": np.float32(0.5)})
    assert meter.read() == {"a": 1.0, "b": 2.0, "c": 3.0, "d": 1.0, "e": 0.5}


def test_plain_numbers_restart_too() -> None:
    meter = MeanMetrics()
    add_to(meter, {"loss": torch.tensor(1.0)}, lr=100.0)
    meter.read()
    add_to(meter, {"loss": torch.tensor(1.0)}, lr=1.0)

    assert meter.read() == {"loss": 1.0, "lr": 1.0}


def test_names_may_change_after_a_read() -> None:
    meter = MeanMetrics()
    add_to(meter, {"loss": torch.tensor(1.0)})
    meter.read()
    add_to(meter, {"critic_loss": torch.tensor(2.0), "actor_loss": torch.tensor(3.0)})

    assert meter.read() == {"critic_loss": 2.0, "actor_loss": 3.0}


def test_a_number_that_is_not_finite_shows() -> None:
    meter = MeanMetrics()
    for loss in (1.0, float("nan")):
        add_to(meter, {"loss": torch.tensor(loss), "other": torch.tensor(loss).nan_to_num(3.0)})
    means = meter.read()

    assert np.isnan(means["loss"])
    assert means["other"] == pytest.approx(2.0)


def test_a_priority_is_read_as_an_array_and_none_stays_none() -> None:
    priority = UpdateResult(torch.tensor([1.0, 2.0])).read_priority()

    np.testing.assert_array_equal(priority, np.array([1, 2], np.float32))
    assert UpdateResult(None).read_priority() is None


def test_means_hardly_depend_on_how_often_they_are_read() -> None:
    losses = torch.rand(5_000, generator=torch.Generator().manual_seed(1)) * 1e3
    whole, parts = MeanMetrics(), MeanMetrics()
    total = 0.0
    for number, loss in enumerate(losses, start=1):
        add_to(whole, {"loss": loss})
        add_to(parts, {"loss": loss})
        if number % 100 == 0:
            total += parts.read()["loss"] * 100
    assert whole.read()["loss"] == pytest.approx(total / len(losses), rel=1e-14)
