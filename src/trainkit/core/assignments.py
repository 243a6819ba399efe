"""Assignments after construction: a public attribute that is assigned has an effect, or raises with the remedy.

A property with a setter has an effect, and checks its value as the constructor does; so does a schedule
(`schedules.Adjustable`). `@checked` makes every other property of a class a `ReadOnly` one, and `Elsewhere` stands for
names that users try.
"""

from collections.abc import Callable, Collection
from typing import Any, NoReturn, TypeVar

from trainkit.core.errors import ConfigError

Kind = TypeVar("Kind", bound=type)


class ReadOnly(property):
    """A property without a setter, whose assignment raises a `ConfigError`.

    The error says where the value is given: to the constructor, if it has an option of that name; else it says what the
    property is, by its docstring, which names the method that changes it where there is one.

    Args:
        read: the function that returns the value.
        options_of: returns the names of a constructor's options.
    """

    def __init__(self, read: Callable[[Any], Any], options_of: Callable[[Any], Collection[str]]) -> None:
        super().__init__(read)
        self._name, self._options_of = read.__name__, options_of

    def __set__(self, instance: Any, value: object) -> NoReturn:
        owner, name = type(instance).__name__, self._name
        shown = repr(value)
        shown = shown if len(shown) <= 60 and "\n" not in shown else type(value).__name__
        remedy = f"it is fixed at construction, {owner}(..., {name}=...)"
        if name not in self._options_of(type(instance)):
            first = " ".join((self.__doc__ or "it follows from others").split("\n\n")[0].split())
            remedy = f"it is read-only ({first.rstrip('.').replace('`', '')})"
        raise ConfigError(f"{owner}.{name} cannot be assigned, got {shown}: {remedy}")

    def __delete__(self, instance: Any) -> NoReturn:
        raise ConfigError(f"{type(instance).__name__}.{self._name} cannot be deleted")


class Elsewhere:
    """An attribute that is not here, though users look for it: the errors of reading and of assigning say where it is.

        class DQNPolicy:
            epsilon = Elsewhere("policy.exploration.epsilon = 0.1")

    Args:
        remedy: what to write instead.
    """

    def __init__(self, remedy: str) -> None:
        self._remedy = remedy
        self.__doc__ = f"Not here: {remedy}."

    def __set_name__(self, owner: type, name: str) -> None:
        self._name = name

    def __get__(self, instance: object, owner: type) -> Any:
        if instance is None:
            return self
        raise AttributeError(f"{owner.__name__} has no attribute {self._name!r}: {self._remedy}")

    def __set__(self, instance: Any, value: object) -> NoReturn:
        raise ConfigError(f"{type(instance).__name__}.{self._name} would have no effect: {self._remedy}")


def fixed_options(*names: str) -> Callable[[Kind], Kind]:
    """Return a decorator of classes: options of the constructor that are no attributes cannot be assigned."""

    def add(kind: Kind) -> Kind:
        for name in names:
            if not hasattr(kind, name):
                fixed = Elsewhere(f"it is fixed at construction, give {name}= there")
                fixed.__set_name__(kind, name)
                setattr(kind, name, fixed)
        return kind

    return add
