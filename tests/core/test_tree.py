"""Nested observations are walked leaf by leaf, in one fixed order."""

import json
from collections import OrderedDict
from typing import Any

import numpy as np
import pytest

from trainkit.core import tree

NESTED = {"b": (np.array([1]), {"d": np.array([2]), "c": np.array([3])}), "a": np.array([4])}


def test_leaves_come_in_the_order_of_sorted_keys_and_positions_with_their_paths() -> None:
    assert [(path, int(leaf[0])) for path, leaf in tree.named_leaves(NESTED)] == [
        ("a", 4),
        ("b.0", 1),
        ("b.1.c", 3),
        ("b.1.d", 2),
    ]
    assert [int(leaf[0]) for leaf in tree.leaves(NESTED)] == [4, 1, 3, 2]
    assert tree.first_leaf(NESTED) is NESTED["a"]


def test_the_order_of_insertion_does_not_matter() -> None:
    one, other = {"x": 1, "a": 2}, OrderedDict([("a", 2), ("x", 1)])
    assert list(tree.named_leaves(one)) == list(tree.named_leaves(other))


def test_a_single_leaf_is_a_tree_without_a_path() -> None:
    leaf = np.zeros(2)
    assert list(tree.named_leaves(leaf)) == [("", leaf)]
    assert tree.leaves(leaf) == [leaf]
    assert tree.first_leaf(leaf) is leaf
    assert tree.map_tree(id, leaf) == id(leaf)


def test_mapping_keeps_the_structure() -> None:
    doubled = tree.map_tree(lambda leaf: 2 * int(leaf[0]), NESTED)
    assert doubled == {"b": (2, {"d": 4, "c": 6}), "a": 8}
    assert list(doubled) == ["b", "a"]


def test_several_trees_are_mapped_in_step_by_key_and_position() -> None:
    one = {"x": (1, 2), "y": 3}
    other = {"y": 30, "x": (10, 20)}
    third = {"x": (100, 200), "y": 300, "unused": 0}
    assert tree.map_tree(lambda *numbers: sum(numbers), one, other, third) == {"x": (111, 222), "y": 333}


def test_mapping_may_change_the_leaves_type() -> None:
    assert tree.map_tree(str, (1, {"a": 2.5})) == ("1", {"a": "2.5"})


@pytest.mark.parametrize(("one", "other"), [((1, 2), (1,)), ((1,), (1, 2))])
def test_trees_of_other_lengths_do_not_fit(one: Any, other: Any) -> None:
    with pytest.raises(ValueError, match=r"shorter|longer"):
        tree.map_tree(max, one, other)


def test_trees_of_other_keys_do_not_fit() -> None:
    with pytest.raises(KeyError, match="b"):
        tree.map_tree(max, {"a": 1, "b": 2}, {"a": 1})


def test_a_tree_comes_back_from_plain_lists_through_json() -> None:
    nested = {"b": (1, {"d": [2, 2], "c": 3}), "a": (4,)}
    assert tree.from_plain(json.loads(json.dumps(tree.to_plain(nested)))) == nested
    assert tree.from_plain(tree.to_plain(5)) == 5
