"""What of a collector is saved, and comes back: its clock, its counts, and the episodes that run."""

import copy
import logging
from typing import Any

import numpy as np

from trainkit.collector.episodes import Episodes, Goal, Tally, saved_goal
from trainkit.collector.events import Watch
from trainkit.collector.overlap import Meanwhile
from trainkit.core.errors import BusyError
from trainkit.envs.envs import Envs
from trainkit.envs.ownership import Use
from trainkit.envs.recovery import described, play_again

_log = logging.getLogger(__name__)

_KEPT = ("env_step", "_is_open", "_options", "_starts", "_to_begin")


class Resumable:
    """A collector's state."""

    envs: Envs
    watch: Watch | None
    _episodes: Episodes
    _goal: Goal
    _is_open: bool
    _open_step: Any
    _needs_reset: bool
    _at_work: Meanwhile
    _rng: np.random.Generator
    _state: Any
    _tally: Tally

    def begin_anew(self) -> None:
        """Let the next collect cut what is open and begin an episode everywhere."""
        self._needs_reset = True

    def state_dict(self, *, with_running: bool = True) -> dict[str, Any]:
        """Return counts and generators, how running episodes came to be, what is left of a collect; may be views.

        Raises:
            BusyError: the environments are in the middle of a step.
        """
        if self._at_work.is_at_work:
            raise BusyError(
                "a collector cannot be saved in the middle of a step, where `meanwhile` is called, and with "
                "overlap=True on_train_batch and on_update_end: save when it is whole, as in on_collect_end"
            )
        if self._open_step is not None:
            raise BusyError(
                "a collector cannot be saved between a step and the rest of the work overlapped with it, which raised: "
                "call resume() first, or finish_step(); Trainer.save does so"
            )
        with_running = with_running and not self._needs_reset
        return {name: getattr(self, name) for name in _KEPT} | {
            "goal": self._goal.state_dict(),
            "tally": self._tally.state_dict() if self._is_open else {},
            "episodes": self._episodes.state_dict(),
            "envs": self.envs.state_dict(with_running=with_running),
            "rng": self._rng.bit_generator.state,
            "needs_reset": not with_running,
            "has_state": self._state is not None,
            "watch": [] if self.watch is None else self.watch.state_dict(),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take over a saved clock, and the episodes that ran where they can be played again.

        Where not, the next collect cuts them and begins others, and a warning says so.
        """
        self._open_step = None
        for name in _KEPT:
            setattr(self, name, copy.copy(state[name]))
        self._state, self._goal, self._tally = None, saved_goal(state["goal"]), Tally()
        self._tally.load_state_dict(state["tally"])
        self._episodes.load_state_dict(state["episodes"])
        self.envs.load_state_dict(state["envs"])
        self._rng.bit_generator.state = state["rng"]
        self._needs_reset = True
        if state["needs_reset"]:
            return
        reason: str | None = "what the policy keeps from step to step cannot be saved"
        if not state["has_state"]:
            use = Use(self)
            try:
                self.envs.ownership.enter(use)
                reason = play_again(self.envs, state["envs"], self._episodes.have_returns)
            finally:
                self.envs.ownership.leave(use)
        if reason is not None:
            _log.warning("%s: %s; the episodes that ran are cut and others begin", self.envs.name, reason)
            return
        self._needs_reset = False
        changed = self.envs.lost_attributes(state["envs"])
        if changed:
            _log.warning(
                "%s: the run may not continue with the same bits: after the open episodes were replayed, attributes of "
                "the environments differ from those saved: %s. What an environment keeps from one episode to the next "
                "is not saved: set it in reset(), or derive it from the episode's seed",
                *(self.envs.name, described(changed, "game" if self.envs.agents else "env")),
            )
        if self.watch is not None:
            self.watch.load_state_dict(state["watch"], self.envs.obs)
