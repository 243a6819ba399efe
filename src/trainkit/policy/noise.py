"""Temporally correlated noise for exploration with continuous actions: one sequence per environment and episode."""

from collections.abc import Mapping
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray

from trainkit.core.config import Part
from trainkit.core.errors import Checks, ConfigError
from trainkit.core.signatures import checked

EnvIds = NDArray[np.intp] | None  # [K]
Starts = NDArray[np.bool_] | None  # [K]


class Noise(Protocol):
    """A random process whose every number is standard normal, however it correlates with earlier and later ones.

    A policy with a normal distribution of actions uses it in place of independent noise: the distribution of each
    action stays as it is.
    """

    @property
    def length(self) -> int:
        """T, steps of a sequence."""
        ...

    def draw(self, n_sequences: int, n_dimensions: int, rng: np.random.Generator) -> NDArray[np.float32]:
        """Sample independent sequences [K, T, D], independent among the D dimensions too."""
        ...


@checked
class ColoredNoise(Part):
    """Normal noise with the power spectral density frequency**-beta (Timmer & Koenig, 1995).

    A larger beta has more power at low frequencies: actions deviate from their means in one direction for longer.

    Args:
        beta: 0 is white, that is independent noise; 1 is pink (Eberhard et al., 2023, "Pink noise is all you need", for
            SAC); 2 is red, similar to an Ornstein-Uhlenbeck process. Hollenstein et al. (2024) recommend 0.5 for PPO.
        length: steps of a sequence, whose lowest frequency is 1 / length. Best is the time limit of episodes; a longer
            episode continues with another sequence.
    """

    def __init__(self, beta: float = 1.0, *, length: int = 1_000) -> None:
        with Checks("ColoredNoise") as checks:
            checks.number("beta", beta, low=0)
            checks.integer("length", length, low=2)
        self.beta, self._length = beta, length

    @property
    def length(self) -> int:
        """Steps of a sequence."""
        return self._length

    def draw(self, n_sequences: int, n_dimensions: int, rng: np.random.Generator) -> NDArray[np.float32]:
        """Sample sequences [K, T, D] as the inverse Fourier transform of normal numbers times frequency**(-beta / 2).

        The mean of a sequence, which has no frequency, has the power of the lowest one (`colorednoise.py`, which
        Eberhard et al. use, leaves it out when it normalizes, so that its standard deviation is a bit above 1).
        """
        cycles = np.arange(self.length // 2 + 1.0)  # per sequence
        amplitude = cycles.clip(min=1.0) ** (-0.5 * self.beta)
        parts = np.full(len(amplitude), 2.0)  # real and imaginary ones, of this frequency and of its negative
        parts[0] = 1.0  # the mean is real, and so is the highest frequency of an even length: no imaginary part
        if self.length % 2 == 0:
            parts[-1] = 1.0
        amplitude *= self.length / np.sqrt(2.0 * (parts * amplitude**2).sum())
        real, imaginary = rng.standard_normal((2, n_sequences, len(amplitude), n_dimensions))
        spectrum = (real * np.sqrt(2.0 / parts)[:, None] + 1j * imaginary) * amplitude[:, None]
        return np.fft.irfft(spectrum, self.length, axis=1).astype(np.float32)


class NoiseSequences:
    """The sequence of noise that every environment follows now; each episode starts another one.

    Args:
        noise: draws the sequences.
        n_dimensions: D.
    """

    def __init__(self, noise: Noise, n_dimensions: int) -> None:
        self.noise = noise
        self._n_dimensions = n_dimensions
        self.reset()

    def reset(self) -> None:
        """Start another sequence in every environment at its next step."""
        self._sequences = np.zeros((0, self.noise.length, self._n_dimensions), np.float32)  # [N, T, D]
        self._position = np.zeros(0, np.intp)  # [N], of the next step; T where a sequence has ended

    def step(self, n_rows: int, env_ids: EnvIds, starts: Starts, rng: np.random.Generator) -> NDArray[np.float32]:
        """Return the noise [K, D] of the next step in these environments, by default in the first K.

        Where an episode starts, and after the last step of a sequence, another one is drawn.
        """
        rows = np.arange(n_rows) if env_ids is None else env_ids
        self._make_room(int(rows.max()) + 1)
        is_new = self._position[rows] == self.noise.length
        if starts is not None:
            is_new |= starts
        if is_new.any():
            new = rows[is_new]
            self._sequences[new] = self._drawn(len(new), rng)
            self._position[new] = 0
        position = self._position[rows]
        self._position[rows] = position + 1
        return self._sequences[rows, position]

    def _make_room(self, n_envs: int) -> None:
        """Have room for at least this number of environments; a new one's sequence is to be drawn."""
        n_missing = n_envs - len(self._position)
        if n_missing > 0:
            room = np.zeros((n_missing, *self._sequences.shape[1:]), np.float32)
            self._sequences = np.concatenate([self._sequences, room])
            self._position = np.concatenate([self._position, np.full(n_missing, self.noise.length)])

    def _drawn(self, n_sequences: int, rng: np.random.Generator) -> NDArray[np.float32]:
        """Sample sequences [K, T, D]; raise `ConfigError` for other shapes, and for numbers that are not finite."""
        drawn = self.noise.draw(n_sequences, self._n_dimensions, rng)
        expected = n_sequences, self.noise.length, self._n_dimensions
        if np.shape(drawn) != expected or not np.isfinite(drawn).all():
            raise ConfigError(
                f"{type(self.noise).__name__}.draw must return finite numbers [K, length, D], {expected} here, got "
                f"{np.shape(drawn)}: return independent sequences of standard normal numbers"
            )
        return drawn

    def state_dict(self) -> dict[str, Any]:
        """Return copies of all sequences and the positions in them, in tensors."""
        return {name: torch.from_numpy(getattr(self, f"_{name}").copy()) for name in ("sequences", "position")}

    def load_state_dict(self, state: Mapping[str, Any] | None) -> None:
        """Continue saved sequences; where there are none, or of another length, start others."""
        self.reset()
        if state is None or tuple(state["sequences"].shape[1:]) != self._sequences.shape[1:]:
            return
        sequences, position = (np.array(state[name].numpy()) for name in ("sequences", "position"))
        is_inside = (position >= 0) & (position <= self.noise.length)
        if position.shape != sequences.shape[:1] or not is_inside.all() or not np.isfinite(sequences).all():
            raise ValueError("the sequences of exploration noise do not fit their positions, or are not finite")
        self._sequences, self._position = sequences.astype(np.float32), position.astype(np.intp)
