"""Nested observations: an array, or a dict or tuple of them, mapped leaf by leaf."""

import re
from collections.abc import Callable, Hashable, Iterator
from typing import Any

from trainkit.core.errors import ConfigError, TrainkitError

# A leaf is whatever is neither a dict nor a tuple: an array, a tensor, a column. Mapping may change its type: so Any.


def map_tree(fn: Callable[..., Any], tree: Any, *others: Any) -> Any:
    """Apply `fn` leaf by leaf to one tree, or to several trees of the same structure together.

    A NamedTuple stays one.
    """
    if isinstance(tree, dict):
        return {key: map_tree(fn, child, *(other[key] for other in others)) for key, child in tree.items()}
    if isinstance(tree, tuple):
        children = (map_tree(fn, *children) for children in zip(tree, *others, strict=True))
        return tuple(children) if type(tree) is tuple else type(tree)(*children)
    return fn(tree, *others)


def named_leaves(tree: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    """Yield (path, leaf) in a fixed order; the path of a single leaf is the empty string.

    No two leaves of a dict have the same path: what separates names is escaped in keys, `a.b` is `a%2Eb`.
    """
    if isinstance(tree, dict):
        for key in sorted(tree):
            name = _escaped(key)
            yield from named_leaves(tree[key], f"{path}.{name}" if path else name)
    elif isinstance(tree, tuple):
        for position, child in enumerate(tree):
            yield from named_leaves(child, f"{path}.{position}" if path else str(position))
    else:
        yield path, tree


def leaves(tree: Any) -> list[Any]:
    """List the leaves in the order of `named_leaves`."""
    if isinstance(tree, dict):
        return [leaf for key in sorted(tree) for leaf in leaves(tree[key])]
    return [leaf for child in tree for leaf in leaves(child)] if isinstance(tree, tuple) else [tree]


def flatten(tree: Any) -> tuple[list[Any], Hashable]:
    """Return (the leaves in the order in which dicts have them, the structure without them); see `unflatten`."""
    found: list[Any] = []
    return found, _structure(tree, found)


def _structure(tree: Any, found: list[Any]) -> Hashable:
    """Return a tree's structure, and append its leaves."""
    if isinstance(tree, dict):
        return dict, tuple([(key, _structure(child, found)) for key, child in tree.items()])
    if isinstance(tree, tuple):
        return type(tree), tuple([_structure(child, found) for child in tree])
    found.append(tree)
    return None


def unflatten(structure: Any, found: Iterator[Any]) -> Any:
    """Return the tree of a structure and leaves that `flatten` returned, or of other leaves in their places."""
    if structure is None:
        return next(found)
    kind, children = structure
    if kind is dict:
        return {key: unflatten(child, found) for key, child in children}
    values = [unflatten(child, found) for child in children]
    return tuple(values) if kind is tuple else kind(*values)


def first_leaf(tree: Any) -> Any:
    """Return any one leaf, to read a length or a device from."""
    return leaves(tree)[0] if isinstance(tree, (dict, tuple)) else tree


def to_plain(tree: Any) -> list[Any]:
    """Return a tree as lists and dicts in which JSON distinguishes tuples from leaves."""
    if isinstance(tree, dict):
        return ["dict", {key: to_plain(child) for key, child in tree.items()}]
    if isinstance(tree, tuple):
        return ["tuple", [to_plain(child) for child in tree]]
    return ["leaf", tree]


def from_plain(plain: Any) -> Any:
    """Return the tree that `to_plain` was given."""
    kind, content = plain
    if kind == "dict":
        return {key: from_plain(child) for key, child in content.items()}
    return tuple(map(from_plain, content)) if kind == "tuple" else content


def check_keys(subject: str, tree: Any, error: type[TrainkitError] = ConfigError) -> None:
    """Raise if a key of a dict is not a string, since it could not be restored from a file."""
    if isinstance(tree, dict):
        for key, child in tree.items():
            if not isinstance(key, str):
                raise error(f"{subject} must have strings as keys, got {key!r}: rename it to {str(key)!r}")
            check_keys(f"{subject}[{key!r}]", child, error)
    elif isinstance(tree, tuple):
        for position, child in enumerate(tree):
            check_keys(f"{subject}[{position}]", child, error)


def _escaped(key: str) -> str:
    """Return a key as part of a path and of a member's name in a file."""
    return _SPECIAL.sub(lambda match: f"%{ord(match[0]):02X}", key) or "%"


_SPECIAL = re.compile(r"[%./\\\x00-\x1f\ud800-\udfff]")
