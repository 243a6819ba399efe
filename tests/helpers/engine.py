"""Which way a policy computes: the one place of the tests outside tests/policy/host that knows how numpy is chosen."""

from collections.abc import Callable
from typing import Any, TypeVar

import pytest

P = TypeVar("P")


def torch_only(policy: P) -> P:
    """Let a policy, or a copy of one, act and learn by torch where it would in numpy, and return it."""
    for name in ("_host", "_host_learner"):
        if hasattr(policy, name):
            setattr(policy, name, None)
    return policy


def note_numpy_passes(monkeypatch: pytest.MonkeyPatch, note: Callable[[], object]) -> None:
    """Call `note` before each forward pass of layers that is made in numpy."""
    from trainkit.policy.host.acting import HostPass
    from trainkit.policy.host.layers import HostMLP

    def noted(forward: Callable[..., Any]) -> Callable[..., Any]:
        def call(*given: Any, **options: Any) -> Any:
            note()
            return forward(*given, **options)

        return call

    for owner, name in ((HostMLP, "forward"), (HostMLP, "ask"), (HostPass, "_mlp")):
        monkeypatch.setattr(owner, name, noted(getattr(owner, name)))
