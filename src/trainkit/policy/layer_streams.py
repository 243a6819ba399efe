"""The random streams of layers that draw from torch's global generators while a policy learns, such as dropout."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

_DROPOUTS = nn.Dropout, nn.Dropout1d, nn.Dropout2d, nn.Dropout3d, nn.AlphaDropout, nn.FeatureAlphaDropout


def drops(module: nn.Module) -> bool:
    """Return whether a module drops some of its inputs at random in training mode."""
    share = module.p if isinstance(module, _DROPOUTS) else getattr(module, "dropout", 0.0)
    return isinstance(share, float) and share > 0.0


class LayerStreams:
    """States that take the place of the global generators' during updates, so that a seed and a checkpoint cover them.

    Args:
        seed: of each stream.
        device: of the policy, whose layers draw there; the CPU has a stream, too.
    """

    def __init__(self, seed: int, device: torch.device) -> None:
        self._device = device
        names = dict.fromkeys(("cpu", device.type))
        self._states = {name: torch.Generator(name).manual_seed(seed).get_state() for name in names}

    @contextmanager
    def drawn_from(self) -> Iterator[None]:
        """Let the global generators continue these streams inside the block, and their own ones after it."""
        outside = self._exchanged(self._states)
        try:
            yield
        finally:
            self._states = self._exchanged(outside)

    def _exchanged(self, states: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Set the states of the global generators, and return those that they had."""
        found = {"cpu": torch.get_rng_state()}
        torch.set_rng_state(states["cpu"])
        if self._device.type != "cpu":
            module, name = torch.get_device_module(self._device), self._device.type
            where = () if name == "mps" else (self._device,)  # there is one
            found[name] = module.get_rng_state(*where)
            module.set_rng_state(states[name], *where)
        return found

    def state_dict(self) -> dict[str, Any]:
        """Return the state of each stream by its type of device."""
        return dict(self._states)

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue saved streams; those of another type of device are not loaded."""
        self._states |= {name: own.cpu() for name, own in state.items() if name in self._states}
