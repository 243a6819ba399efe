"""On how many threads torch computes: a number of the whole process, which trainers read and set through a policy."""

import torch


class Threaded:
    """What lets torch compute on another number of threads."""

    @property
    def n_threads(self) -> int:
        """Threads torch computes on now, for whoever calls it from this thread; may be set."""
        return torch.get_num_threads()

    @n_threads.setter
    def n_threads(self, count: int) -> None:
        torch.set_num_threads(count)
