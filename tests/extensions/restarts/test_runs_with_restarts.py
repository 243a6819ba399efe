"""Runs in which environments fail and are replaced: what callbacks see, updates, rows, other environments."""

from typing import Any, ClassVar

import numpy as np
import pytest
from numpy.testing import assert_array_equal

import trainkit as tk
from tests.helpers.doubles import Ledger, Player
from tests.helpers.small_envs import Count, gated_envs, gates
from tests.trainer.toys import Walk, make_trainer
from trainkit.collector import Collector


def test_rows_of_an_episode_that_failed_are_left_out() -> None:
    class Breaks(Count):
        """Raise in the sixth step."""

        def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
            if self.n_steps == 5:
                raise OSError("gone")
            return super().step(action)

    envs = tk.make_envs(Breaks, on_error="restart", restart_delay_s=0.0)
    collector = tk.Collector(tk.RandomPolicy(envs.action_space, seed=1), envs)
    rows = next(collector.stream(8))
    assert_array_equal(np.asarray(rows.obs)[:, 0], [0, 1, 2, 0, 1, 2])  # not 3 and 4, where step 6 was lost
    assert collector.env_step == 8


def test_an_environment_that_hangs_is_replaced_while_the_others_step() -> None:
    closed = gates(2)
    envs = gated_envs(closed, seed=0, step_timeout_s=0.3, on_error="restart", failed_episodes="cut")
    collector = Collector(Player(), envs, ledger := Ledger())
    collector.collect(n_step=20)
    closed[0].value = 0
    stats = [collector.collect(n_step=1) for _ in range(2)]
    while not sum(one.n_env_restarts for one in stats):
        stats.append(collector.collect(n_step=20))
    closed[0].value = 1
    collector.collect(n_step=40)
    assert set(ledger.rows().env_ids[-30:].tolist()) == {0, 1}
    envs.close()


class Crashing(Walk):
    """A walk whose third step ever breaks it."""

    n_steps: ClassVar[int] = 0

    def step(self, action: int) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        Crashing.n_steps += 1
        if Crashing.n_steps == 3:
            raise OSError("out of order")
        return super().step(action)


def test_events_report_a_failed_environment_and_its_replacement() -> None:
    class Receive(tk.Callback):
        def __init__(self) -> None:
            self.delivered: list[tuple[str, int]] = []

        def on_env_created(self, trainer: tk.Trainer, envs: tk.Envs, env_id: int) -> None:
            self.delivered.append(("made", env_id))

        def on_episode_created(self, trainer: tk.Trainer, episode: tk.collector.Episode) -> None:
            self.delivered.append(("created", episode.env_id))

        def on_episode_start(self, trainer: tk.Trainer, episode: tk.collector.Episode) -> None:
            self.delivered.append(("start", episode.env_id))

        def on_episode_failed(self, trainer: tk.Trainer, episode: tk.collector.Episode, error: Exception) -> None:
            self.delivered.append((f"failed after {episode.length}: {error.__cause__}", episode.env_id))

    Crashing.n_steps = 0
    receive = Receive()
    trainer = make_trainer(
        env=Crashing, env_options={"on_error": "restart"}, callbacks=[receive], max_epoch=1, step_per_epoch=5
    )
    stats = next(trainer).stats
    assert (stats.train.n_env_restarts, stats.train.n_faulty_episodes) == (1, 1)
    begun = [("created", 0), ("created", 1), ("start", 0), ("start", 1)]
    broken = [("failed after 1: out of order", 0), ("created", 0), ("made", 0), ("start", 0)]
    assert receive.delivered == [("made", 0), ("made", 1), *begun, *broken]


@pytest.mark.parametrize("n_failures", [1, 2])
def test_a_reset_that_fails_ends_its_episode_and_another_is_created(n_failures: int) -> None:
    class Unready(Walk):
        n_resets = 0

        def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
            Unready.n_resets += 1
            if 2 < Unready.n_resets <= 2 + n_failures:
                raise OSError("not ready")
            return super().reset(seed=seed, options=options)

    delivered: list[tuple[str, int]] = []
    created: list[tk.collector.Episode] = []
    failed: list[tk.collector.Episode] = []

    def fail(trainer: tk.Trainer, episode: tk.collector.Episode, error: Exception) -> None:
        failed.append(episode)
        delivered.append((f"failed after {episode.length}: {error.__cause__}", episode.env_id))

    def create(trainer: tk.Trainer, episode: tk.collector.Episode) -> None:
        created.append(episode)
        delivered.append(("created", episode.env_id))

    listen = tk.on(
        episode_created=create,
        episode_failed=fail,
        env_created=lambda trainer, envs, env_id: delivered.append(("made", env_id)),
        episode_start=lambda trainer, episode: delivered.append(("start", episode.env_id)),
        episode_end=lambda trainer, episode: delivered.append(("end", episode.env_id)),
    )
    options = {"on_error": "restart", "restart_delay_s": 0.0}
    trainer = make_trainer(env=Unready, env_options=options, callbacks=[listen], max_epoch=1, step_per_epoch=40)
    stats = next(trainer).stats
    assert (stats.train.n_env_restarts, stats.train.n_faulty_episodes) == (n_failures, n_failures)
    assert len(failed) == n_failures
    first = next(i for i, (name, _) in enumerate(delivered) if name == "end")
    broken = [("failed after 0: not ready", delivered[first][1]), ("created", delivered[first][1])]
    made = [("made", delivered[first][1])]
    expected = [broken[1], *broken * n_failures, *made * n_failures, ("start", delivered[first][1])]
    assert delivered[first + 1 : first + 1 + len(expected)] == expected
    again = created[created.index(failed[-1]) + 1]
    assert again is not failed[-1]


class Brittle(Walk):
    """Fail in every ninth step of a process."""

    n_steps = 0

    def step(self, action: int) -> Any:
        self.n_steps += 1
        if self.n_steps % 9 == 0:
            raise ValueError("on purpose")
        return super().step(action)


@pytest.mark.parametrize("per_collect", [2, 6])
def test_environments_may_fail_and_take_their_rows_with_them(per_collect: int) -> None:
    options = {"env": Brittle, "env_options": {"on_error": "restart"}, "step_per_collect": per_collect}
    plain, overlapping = (make_trainer(overlap=overlap, **options).run() for overlap in (False, True))  # type: ignore[arg-type]
    assert overlapping.env_step == plain.env_step == 72
    assert overlapping.gradient_step == plain.gradient_step > 30


def test_an_environment_rebuilt_after_a_fault_changes_the_run_and_is_counted() -> None:
    def run(fails_at: int) -> tuple[int, list[bytes]]:
        n_steps = 0

        def on_step() -> None:
            nonlocal n_steps
            n_steps += 1
            if n_steps == fails_at:
                raise ConnectionError("gone")

        trainer = make_trainer(on_step=on_step, env_options={"on_error": "restart", "restart_delay_s": 0.0})
        n_restarts = sum(result.stats.train.n_env_restarts for result in trainer)
        return n_restarts, [weight.tobytes() for weight in trainer.policy.get_weights().values()]

    (n_none, straight), (n_one, rebuilt) = run(0), run(31)
    assert (n_none, n_one) == (0, 1)
    assert rebuilt != straight
