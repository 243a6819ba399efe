"""Options that are written once: the keys of a TypedDict, each with its type, its default and its line of docstring.

    class Limits(TypedDict, total=False):
        max_env_step: Annotated[int | None, None]  # the type, and the default

    def train(**options: Unpack[Limits]) -> None:  # a type checker knows the keywords
        limits = completed(Limits, options)  # and limits["max_env_step"]

`TypedDict` is that of `typing_extensions`, which keeps the bases of a class: each documents its own options.
"""

import functools
from collections.abc import Iterator, Mapping
from typing import Annotated, Any, TypeVar, get_args, get_origin

from typing_extensions import get_original_bases, is_typeddict

OptionsT = TypeVar("OptionsT")


def types_of(kind: Any) -> dict[str, Any]:
    """Return {option: type} of a TypedDict, without defaults."""
    return {name: get_args(one)[0] if _has_default(one) else one for name, one in kind.__annotations__.items()}


@functools.cache
def defaults_of(kind: Any) -> dict[str, Any]:
    """Return {option: default} of the options that have one."""
    return {name: get_args(one)[1] for name, one in kind.__annotations__.items() if _has_default(one)}


def completed(kind: type[OptionsT], given: Mapping[str, Any]) -> OptionsT:
    """Return the options that were given, and the defaults of the others."""
    hashable: Any = kind
    return kind(**{**defaults_of(hashable), **given})


def documents_of(kind: Any) -> Iterator[Any]:
    """Yield a TypedDict and those it extends, whose docstrings say what the options are."""
    yield kind
    for base in get_original_bases(kind):
        if is_typeddict(base):
            yield from documents_of(base)


def _has_default(annotation: Any) -> bool:
    return get_origin(annotation) is Annotated
