"""What the functions of a vector step cost: those of the package by name, all others together, and two sides."""

from benchmarks.step_cost import OTHERS, listed, measure


def test_functions_of_the_package_are_listed_by_name_and_others_together() -> None:
    costs = measure(1, 50, loop=False)
    names = {name.partition(":")[0] for name in costs}
    assert {"collector/collector.py", "buffer/storage.py", "envs/envs.py", OTHERS} <= names
    assert not any(name.startswith("/") for name in names)
    assert costs["envs/envs.py:step"][1] == 1.0  # a call per vector step


def test_the_table_is_ordered_by_the_dearer_side_and_ends_with_sums() -> None:
    ours, theirs = {"a": (1.0, 1.0), "b": (3.0, 2.0)}, {"a": (5.0, 1.0), "c": (0.5, 1.0)}
    assert listed(ours, theirs, 2).splitlines()[1:] == [
        "    1.00    1.0       5.00    1.0   a",
        "    3.00    2.0                     b",
        "    4.00    3.0       5.50    2.0   everything",
    ]
    assert listed(ours, {}, 1).splitlines()[1:] == ["    3.00    2.0   b", "    4.00    3.0   everything"]
