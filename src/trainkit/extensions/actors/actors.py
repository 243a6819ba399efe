"""`make_envs(backend=Actors(4))`: environments in actors, of which each has several."""

from collections.abc import Callable, Sequence
from typing import Any, Literal

from trainkit.core.config import Part
from trainkit.core.errors import Checks
from trainkit.core.protocols import ActingPolicy, OngoingCollect
from trainkit.core.signatures import checked
from trainkit.extensions.actors.actor_runner import ActorRunner
from trainkit.extensions.actors.fragment_behavior import FragmentBehavior


@checked
class Actors(Part):
    """Run environments in actors, each with n / actors of them that it steps one after the other.

    An actor is a process of this machine or an actor of a Ray cluster. The learner chooses all actions by one forward
    pass, unless actors play fragments: several vector steps for one message, by a copy of the policy on the CPU.

    Args:
        actors: their number, at most that of the environments.
        where: "processes" of this machine, or "ray" for the cluster that `ray.init()` or RAY_ADDRESS names.
        fragment: vector steps that an actor plays for one message; 1: the collector chooses all actions. A fragment
            ends with its collect, unless `lag` allows more.
        lag: updates that the policy of an actor may be behind when a row of it is stored; actors play ahead as far.
    """

    has_processes = True

    def __init__(
        self, actors: int, *, where: Literal["processes", "ray"] = "processes", fragment: int = 1, lag: int = 0
    ) -> None:
        with Checks("Actors") as checks:
            checks.integer("actors", actors, low=1)
            checks.one_of("where", where, ["processes", "ray"])
            checks.integer("fragment", fragment, low=1)
            checks.integer("lag", lag, low=0)
        self.actors, self.where, self.fragment, self.lag = actors, where, fragment, lag

    def check(self, checks: Checks, n_envs: int) -> None:
        """Note more actors than environments."""
        rule = f".backend: {self.actors} actors are more than the {n_envs} environments: give at most as many"
        checks.require(self.actors <= n_envs, rule)

    def run(self, factories: Sequence[Callable[[], Any]], timeout_s: float | None) -> ActorRunner:
        """Make environments or games by their factories, the first ones in the first actor."""
        return ActorRunner(factories, self.actors, self.where, timeout_s)

    def behavior(self, policy: ActingPolicy, collect: OngoingCollect) -> FragmentBehavior | None:
        """Return what acts by the fragments that actors play; None where the collector chooses all actions."""
        plays_ahead = self.fragment > 1 or self.lag > 0
        return FragmentBehavior(policy, collect, self.fragment, self.lag) if plays_ahead else None
