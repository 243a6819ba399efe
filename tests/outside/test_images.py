"""Images of any size: what is scaled and convolved, and what is said of numbers up to 255 that are not."""

import logging
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
from gymnasium import spaces

import trainkit as tk
from tests.helpers.learning import Spaces
from trainkit.nets import Preprocess

CHOICE = spaces.Discrete(2)


def pixels(*shape: int, high: int = 255) -> Any:
    return spaces.Box(0, high, shape, np.uint8)


@pytest.mark.parametrize("shape", [(32, 32, 3), (3, 32, 32), (28, 28), (22, 35, 1), (4, 24, 24, 3)])
def test_a_small_image_is_scaled_and_convolved(shape: tuple[int, ...]) -> None:
    preprocess = Preprocess(pixels(*shape))
    features = preprocess(torch.full((2, *shape), 255, dtype=torch.uint8))
    assert features.dim() == 4
    assert (features == 1.0).all()
    policy = tk.DQNPolicy.for_envs(Spaces(pixels(*shape), CHOICE), device="cpu", seed=0)
    assert any(isinstance(module, torch.nn.Conv2d) for module in policy.modules())
    assert policy.predict(np.zeros(shape, np.uint8)) in (0, 1)


def test_a_custom_encoder_receives_a_small_image_scaled() -> None:
    seen: list[Any] = []

    def encoder(shapes: Any) -> torch.nn.Module:
        seen.append(shapes)
        return torch.nn.Sequential(torch.nn.Conv2d(3, 4, 5), torch.nn.Flatten())

    tk.PPOPolicy.for_envs(Spaces(pixels(32, 32, 3), CHOICE), encoder=encoder, device="cpu", seed=0)
    assert seen[0] == (3, 32, 32)


@pytest.mark.parametrize("space", [pixels(7, 7, 3), pixels(128)], ids=["small grid", "memory of a console"])
def test_numbers_up_to_255_that_are_no_image_are_reported(space: Any, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, "trainkit"):
        tk.DQNPolicy.for_envs(Spaces(space, CHOICE), device="cpu", seed=0)
    (record,) = caplog.records
    assert "observation: uint8 from 0 to 255, no image, so its numbers are not scaled" in record.getMessage()

    class Env(gym.Env[Any, Any]):
        observation_space, action_space = space, CHOICE

        def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
            super().reset(seed=seed)
            return np.zeros(space.shape, np.uint8), {}

        def step(self, action: Any) -> Any:
            return np.zeros(space.shape, np.uint8), 0.0, True, False, {}

    found = [one for one in tk.check_env(Env) if "not scaled" in one.what]
    assert [one.level for one in found] == ["warning"]


@pytest.mark.parametrize(
    ("space", "options"),
    [(pixels(7, 7, 3, high=10), {}), (pixels(7, 7, 3), {"normalize_obs": True}), (pixels(84, 84, 4), {})],
    ids=["codes", "normalized", "image"],
)
def test_nothing_is_said_of_codes_images_and_normalized_numbers(
    space: Any, options: Any, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING, "trainkit"):
        tk.DQNPolicy.for_envs(Spaces(space, CHOICE), device="cpu", seed=0, **options)
    assert not caplog.records


def test_the_error_of_an_encoder_says_what_is_an_image() -> None:
    with pytest.raises(tk.ConfigError, match="22 with bounds 0 and 255"):
        tk.DQNPolicy.for_envs(Spaces(pixels(16, 16, 3), CHOICE), encoder="impala", device="cpu")
    with pytest.raises(tk.ConfigError, match="use encoder='minatar' or 'impala'"):
        tk.DQNPolicy.for_envs(Spaces(pixels(32, 32, 3), CHOICE), encoder="nature", device="cpu")
