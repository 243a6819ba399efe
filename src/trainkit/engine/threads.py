"""One thread for numpy's products of small matrices: several wait for each other longer than they multiply.

Where other work keeps a core busy it is worst: a product of 22 us has been seen to take 15 ms on two threads.
"""

from functools import cache
from types import TracebackType
from typing import Any

from threadpoolctl import ThreadpoolController  # type: ignore[import-untyped]  # it has none


class OneThread:
    """Within it numpy multiplies on one thread, and afterwards on as many as before."""

    __slots__ = ("_widened",)

    def __enter__(self) -> None:
        self._widened = [(one, count) for one in libraries() if (count := one.get_num_threads()) != 1]
        for library, _ in self._widened:
            library.set_num_threads(1)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        for library, count in self._widened:
            library.set_num_threads(count)


@cache
def libraries() -> list[Any]:
    """List what multiplies for numpy and can be told; looking for it takes some milliseconds."""
    libraries: list[Any] = ThreadpoolController().select(user_api="blas").lib_controllers
    return libraries
