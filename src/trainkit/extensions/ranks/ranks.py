"""Ranks: a process group of several, started by torchrun, that learn each from its own rows by averaged gradients.

All ranks start with the weights of rank 0 and take the same steps along the same averaged gradient, so that their
weights stay equal to the bit.
"""

import atexit
import os
import platform
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from trainkit.core import tree
from trainkit.core.errors import RankError
from trainkit.engine.device import to_device
from trainkit.engine.parameter_storage import ParameterGroup
from trainkit.engine.process_group import ObservesRows, ProcessGroup

_LONGEST = timedelta(hours=12)  # that ranks wait for rank 0, which evaluates
_END_S = 3.0  # that a process whose connections are closed may take to end


class Ranks(ProcessGroup):
    """This process among several that learn together."""

    not_recordable = "gradients are averaged over ranks"

    def __init__(self, rank: int, n: int) -> None:
        self.rank, self.n = rank, n
        self._processes: list[tuple[str, int]] = []  # node and process of each rank, to name one that has ended
        self._processes = self.gather((platform.node(), os.getpid()))

    @classmethod
    def launched(cls) -> "Ranks | None":
        """Return the ranks that torchrun started, or whose process group the script has made; None for one process."""
        if int(os.environ.get("WORLD_SIZE", "1")) == 1:
            return None
        distributed = torch.distributed
        if not distributed.is_initialized():
            if not distributed.is_torchelastic_launched():  # a scheduler's variable
                return None
            device = torch.accelerator.current_accelerator(check_available=True)
            if device is not None:
                torch.accelerator.set_device_index(int(os.environ["LOCAL_RANK"]))
            distributed.init_process_group("gloo" if device is None else None, timeout=_LONGEST)
            atexit.register(_leave)
        return cls(distributed.get_rank(), distributed.get_world_size())

    def part(self, folder: Path) -> Path:
        """Return where this rank's part of a checkpoint is: that of rank 0 in the folder itself, the others below."""
        return folder if self.rank == 0 else folder / f"rank{self.rank}"

    # ---- gradient steps ----

    def average(self, groups: Sequence[ParameterGroup], loss: Tensor | float) -> None:
        """Average the gradients of groups in place, one all-reduce each, usually one in all.

        Where the loss of a rank is not finite, the averaged gradient of all is not, and no rank takes the step.
        """
        for group in groups:
            gradient = group.joined_gradients()
            gradient[:1].add_(loss * 0.0)  # nan and infinity times 0 are nan
            with self._together():
                torch.distributed.all_reduce(gradient)
            group.split_gradients(gradient.div_(self.n))

    @torch.no_grad()
    def share(self, tensors: Iterable[Tensor]) -> None:
        """Replace each tensor of floats by its mean over all ranks, in place, by one all-reduce."""
        own = [tensor for tensor in tensors if tensor.is_floating_point()]
        if not own:
            return
        total = torch.cat([tensor.flatten() for tensor in own])
        with self._together():
            torch.distributed.all_reduce(total)
        pieces = total.div_(self.n).split([tensor.numel() for tensor in own])
        for tensor, mean in zip(own, pieces, strict=True):
            tensor.copy_(mean.view_as(tensor))

    # ---- what all ranks must have the same of ----

    def copy(self, tensor: Tensor) -> Tensor:
        """Overwrite a tensor by that of rank 0, and return it."""
        given = tensor.contiguous()
        with self._together():
            torch.distributed.broadcast(given, 0)
        return given if given is tensor else tensor.copy_(given)

    def gather(self, value: Any) -> list[Any]:
        """Return the values of all ranks in their order; values can be pickled."""
        values: list[Any] = [None] * self.n
        with self._together():
            torch.distributed.all_gather_object(values, value)
        return values

    def mean(self, number: float) -> float:
        """Return the mean of a number over all ranks."""
        return sum(map(float, self.gather(number))) / self.n

    def shared(self, statistics: ObservesRows, device: Any) -> ObservesRows:
        """Return what observes the rows of all ranks in statistics of observations on a device."""
        return SharedStatistics(self, statistics, device)

    @contextmanager
    def _together(self) -> Iterator[None]:
        """Do what all ranks do together; where it fails, name the rank that has ended.

        Raises:
            RankError: a rank does not take part.
        """
        try:
            yield
        except RuntimeError as error:  # of torch: the connection was closed
            ended = self._ended()
            names = (
                f"rank{'s' * (len(ended) > 1)} {', '.join(map(str, ended))} ended" if ended else "another rank ended"
            )
            raise RankError(
                f"rank {self.rank} of {self.n} cannot continue, since {names}: the reason is in that rank's own output "
                "(torchrun --log-dir FOLDER --tee 3 keeps all); start all ranks again, from a checkpoint by "
                "resume_from"
            ) from error

    def _ended(self) -> list[int]:
        """Return the ranks on this machine whose processes have ended; wait a moment for one that is ending."""
        here, deadline = platform.node(), time.monotonic() + _END_S
        while True:
            ended = [rank for rank, (node, pid) in enumerate(self._processes) if node == here and not _is_running(pid)]
            if ended or time.monotonic() > deadline:
                return ended
            time.sleep(0.05)


class SharedStatistics:
    """Statistics of the observations of all ranks, which are exchanged before each use, in the order of the ranks."""

    def __init__(self, ranks: Ranks, statistics: ObservesRows, device: torch.device) -> None:
        self._ranks, self._statistics, self._device = ranks, statistics, device
        self._unshared: list[Any] = []  # observations of this rank since the last `fold`

    def observe(self, obs: Any) -> None:
        """Add observations of K rows of this rank."""
        self._unshared.append(tree.map_tree(_copied, obs))

    def fold(self) -> None:
        """Use all rows that all ranks have observed so far."""
        for of_rank in self._ranks.gather(self._unshared):
            for obs in of_rank:
                self._statistics.observe(to_device(obs, self._device))
        self._unshared = []
        self._statistics.fold()


def _copied(leaf: Tensor) -> NDArray[Any]:
    """Return a copy of a leaf of observations, on the CPU."""
    return np.array(leaf.cpu().numpy())


def _is_running(pid: int) -> bool:
    """Return whether a process of this machine exists and has not ended, even if its parent has not noticed yet."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:  # another system
        return True
    return state not in ("Z", "X")


def _leave() -> None:
    """Leave the process group that was joined here."""
    if torch.distributed.is_initialized():
        torch.distributed.destroy_process_group()
