"""Faults a replay buffer could have, each with the check that must notice it."""

from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np

import trainkit.buffer
from tests.buffer import test_nstep, test_rings, test_samplers, test_skipped_rows, test_storage
from tests.buffer.programs import Run
from tests.helpers.faults import Fault, Plant, replaced, rewritten
from trainkit.buffer import PrioritizedReplayBuffer, ReplayBuffer, nstep, storage
from trainkit.buffer.nstep import Windows
from trainkit.buffer.rings import Rings
from trainkit.buffer.samplers import PrioritizedSampler
from trainkit.buffer.storage import Storage


def long_stacked_run() -> None:
    """Wrap small rings around several times, with stacks that reach behind their tails."""
    run = Run(ReplayBuffer, capacity=11, n_envs=2, stack=4)
    for length in (0, 9, 0):
        run.do("run", None, 20, length)


def long_even_run() -> None:
    """Wrap rings of equal length around together."""
    run = Run(ReplayBuffer, capacity=8, n_envs=2)
    for length in (0, 5, 0):
        run.do("run", None, 12, length)


def long_uneven_run() -> None:
    """Wrap rings of different lengths around together."""
    run = Run(ReplayBuffer, capacity=9, n_envs=2)
    for length in (0, 5, 0):
        run.do("run", None, 12, length)


def prioritized_run_with_drops() -> None:
    """Take open episodes back while their priorities are still on their way to the tree."""
    run = Run(PrioritizedReplayBuffer, capacity=10, n_envs=2)
    for length in (4, 0):
        run.do("run", None, 7, length)
        run.do("drop", [1])


def in_the_buffer(find: str, into: str) -> Plant:
    """Rewrite an expression of the buffer, in whichever of its modules it is."""
    return rewritten(trainkit.buffer, find, into)


# ---- public functions and methods gone wrong ----


def bootstrap_lost_at_every_end(read_windows: Any) -> Any:
    def faulty(*given: Any) -> Windows:
        windows = read_windows(*given)
        return windows._replace(discount=np.where(windows.final >= 0, np.float32(0.0), windows.discount))

    return faulty


def discount_of_n_steps(read_windows: Any) -> Any:
    def faulty(storage: Any, rows: Any, horizon: Any, rng: Any) -> Windows:
        windows = read_windows(storage, rows, horizon, rng)
        whole = np.float32(horizon.gamma**horizon.longest)
        return windows._replace(discount=np.where(windows.discount > 0.0, whole, windows.discount))

    return faulty


def sign_of_the_sum(read_windows: Any) -> Any:
    def faulty(storage: Any, rows: Any, horizon: Any, rng: Any) -> Windows:
        windows = read_windows(storage, rows, replace(horizon, reward=None), rng)
        return windows._replace(reward=np.sign(windows.reward))

    return faulty


def observation_of_the_row_after(_: Any) -> Any:
    return lambda storage, rows, final, **how: storage.obs_at(storage.rings.after(rows, 1), **how)


def rows_clipped_to_memory(gather: Any) -> Any:
    return lambda column, rows: gather(column, np.minimum(rows, len(column) - 1))


def step_0_for_every_draw(draw: Any) -> Any:
    return lambda sampler, batch_size, step, rng, n_batches=1: draw(sampler, batch_size, 0, rng, n_batches)


def independent_points(draw: Any) -> Any:
    def faulty(sampler: PrioritizedSampler, *given: Any) -> Any:
        sampler.mode = "iid"
        return draw(sampler, *given)

    return faulty


def alignment_not_compared(set_cursors: Any) -> Any:
    def faulty(rings: Rings, rows: Any) -> None:
        set_cursors(rings, rows)
        rings._head = int(rows[0])

    return faulty


MUTANTS = {
    "n-step across a cut": Fault(
        plant=in_the_buffer(
            '(records["final"][:-1] < 0) & $more', '~(records["terminated"] | records["truncated"])[:-1] & $more'
        ),
        check=test_nstep.test_a_window_stops_at_a_cut_but_keeps_the_bootstrap,
    ),
    "n-step across the write head": Fault(
        plant=in_the_buffer('$more & (records["stamp"][1:] >= 0)', "$more"),
        check=test_nstep.test_a_window_never_reads_on_from_the_newest_row_into_the_oldest,
    ),
    "truncation as termination": Fault(
        plant=replaced(nstep, "read_windows", bootstrap_lost_at_every_end),
        check=test_nstep.test_a_window_stops_at_truncation_but_keeps_the_bootstrap,
    ),
    "the discount of n where the window has fewer steps": Fault(
        plant=replaced(nstep, "read_windows", discount_of_n_steps),
        check=test_nstep.test_a_window_stops_at_the_newest_row_and_keeps_the_bootstrap,
    ),
    "clip after the sum": Fault(
        plant=replaced(nstep, "read_windows", sign_of_the_sum),
        check=partial(
            test_nstep.test_a_reward_rule_shapes_each_reward_before_the_sum, rule="sign", expected=1 - 0.99**2
        ),
    ),
    "stack across the tail": Fault(
        plant=in_the_buffer("$rings.limit.max() + $n_spare", "$rings.limit.max() + 1"),
        check=long_stacked_run,
    ),
    "stack across an episode's beginning": Fault(
        plant=in_the_buffer(
            "$newest[:, None] - np.minimum($back, $n_back) * $n_rings",
            "$newest[:, None] - ($back + 0 * $n_back) * $n_rings",
        ),
        check=test_storage.test_a_stack_repeats_its_episodes_first_frame_before_it_began,
    ),
    "the next episode's first observation after an end": Fault(
        plant=replaced(Storage, "next_obs_at", observation_of_the_row_after),
        check=test_storage.test_the_observation_after_an_end_is_the_episodes_own_not_the_next_ones_first,
    ),
    "the skipped row's observation as the next one": Fault(
        plant=in_the_buffer("$continues &= equal_rows($stored, $frames)", "pass"),
        check=test_skipped_rows.test_no_window_crosses_skipped_rows_and_the_bootstrap_stays,
    ),
    "the row after the last one in memory": Fault(
        plant=replaced(storage, "take_rows", rows_clipped_to_memory),
        check=long_stacked_run,
    ),
    "priority of an overwritten row": Fault(
        plant=in_the_buffer("($storage.records.stamp[$rows] == $stamp) & ($stamp >= 0)", "$stamp >= 0"),
        check=test_samplers.test_a_late_priority_of_an_overwritten_row_is_ignored_and_raises_nothing,
    ),
    "priority of a row that is gone": Fault(
        plant=in_the_buffer("np.where($lives, ($priority + $eps) ** $alpha, 0.0)", "($priority + $eps) ** $alpha"),
        check=prioritized_run_with_drops,
    ),
    "beta not annealed": Fault(
        plant=replaced(PrioritizedSampler, "draw", step_0_for_every_draw),
        check=test_samplers.test_beta_is_annealed_by_the_environment_step,
    ),
    "rings treated as aligned that are not": Fault(
        plant=replaced(Rings, "_set_cursors", alignment_not_compared),
        check=test_rings.test_cursors_and_live_rows_are_those_of_one_list_per_ring,
    ),
    "rows evicted together that are not the oldest": Fault(
        plant=in_the_buffer("($head - $rings._lap_of_all) % $n", "($head - $rings._lap_of_all + $rings.n_rings) % $n"),
        check=long_even_run,
    ),
    "a row evicted that is not the oldest": Fault(
        plant=in_the_buffer("($rows - $rings._lap[$envs]) % $n", "($rows - $rings._lap[$envs] + $rings.n_rings) % $n"),
        check=long_uneven_run,
    ),
    "a draw that is not stratified": Fault(
        plant=replaced(PrioritizedSampler, "draw", independent_points),
        check=test_samplers.test_a_stratified_draw_puts_one_point_in_each_equal_part_of_the_mass,
    ),
}
