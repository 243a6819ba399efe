"""Faults a replay buffer could have, each with the check that must notice it."""

from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np

import trainkit.buffer
from tests.buffer import test_heads, test_mirror, test_nstep, test_samplers, test_skipped_rows, test_storage
from tests.buffer.programs import Run
from tests.helpers.faults import Fault, Plant, replaced, rewritten
from trainkit.buffer import PrioritizedReplayBuffer, ReplayBuffer, nstep
from trainkit.buffer.heads import Heads
from trainkit.buffer.nstep import Windows
from trainkit.buffer.samplers import Prioritized
from trainkit.buffer.scratch import Scratch
from trainkit.buffer.storage import Rings


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
    def faulty(rings: Any, rows: Any, horizon: Any, rng: Any) -> Windows:
        windows = read_windows(rings, rows, horizon, rng)
        whole = np.float32(horizon.gamma**horizon.longest)
        return windows._replace(discount=np.where(windows.discount > 0.0, whole, windows.discount))

    return faulty


def sign_of_the_sum(read_windows: Any) -> Any:
    def faulty(rings: Any, rows: Any, horizon: Any, rng: Any) -> Windows:
        windows = read_windows(rings, rows, replace(horizon, reward=None), rng)
        return windows._replace(reward=np.sign(windows.reward))

    return faulty


def observation_of_the_row_after(_: Any) -> Any:
    return lambda rings, rows, scratch=None, final=None: rings.obs_at(rings.after(rows, 1), scratch)


def rows_clipped_to_memory(take: Any) -> Any:
    return lambda scratch, name, column, rows: take(scratch, name, column, np.minimum(rows, len(column) - 1))


def step_0_for_every_draw(draw: Any) -> Any:
    return lambda sampler, batch_size, step, rng, n_batches=1: draw(sampler, batch_size, 0, rng, n_batches)


def independent_points(draw: Any) -> Any:
    def faulty(sampler: Prioritized, *given: Any) -> Any:
        sampler.how = "iid"
        return draw(sampler, *given)

    return faulty


def order_of_heads_not_compared(move: Any) -> Any:
    def faulty(heads: Heads, envs: Any, rows: Any) -> None:
        before = heads.are_in_step
        move(heads, envs, rows)
        heads.are_in_step = before

    return faulty


def one_step_late_behind_the_heads(side_by_side: Any) -> Any:
    return lambda heads, n_steps: side_by_side(heads, n_steps + (n_steps < 0))


MUTANTS = {
    "n-step across a cut": Fault(
        plant=in_the_buffer(
            '($rows["final"][:-1] < 0) & $more', '~($rows["terminated"] | $rows["truncated"])[:-1] & $more'
        ),
        check=test_nstep.test_a_window_stops_at_a_cut_but_keeps_the_bootstrap,
    ),
    "n-step across the write head": Fault(
        plant=in_the_buffer('$more & ($rows["stamp"][1:] >= 0)', "$more"),
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
        plant=in_the_buffer("$rings.limit.max() + $stack", "$rings.limit.max() + 1"),
        check=long_stacked_run,
    ),
    "stack across an episode's beginning": Fault(
        plant=in_the_buffer(
            "np.minimum(np.arange($rings._stack - 1, -1, -1), $age)",
            "np.arange($rings._stack - 1, -1, -1) + 0 * $age",
        ),
        check=test_storage.test_a_stack_repeats_its_episodes_first_frame_before_it_began,
    ),
    "the next episode's first observation after an end": Fault(
        plant=replaced(Rings, "next_obs_at", observation_of_the_row_after),
        check=test_storage.test_the_observation_after_an_end_is_the_episodes_own_not_the_next_ones_first,
    ),
    "the skipped row's observation as the next one": Fault(
        plant=in_the_buffer("$continues &= equal_rows($stored, $given)", "pass"),
        check=test_skipped_rows.test_no_window_crosses_skipped_rows_and_the_bootstrap_stays,
    ),
    "the row after the last one in memory": Fault(
        plant=replaced(Scratch, "take", rows_clipped_to_memory),
        check=long_stacked_run,
    ),
    "priority of an overwritten row": Fault(
        plant=in_the_buffer("($rings.stamp[$rows] == $stamp) & ($stamp >= $zero)", "$stamp >= $zero"),
        check=test_samplers.test_a_late_priority_of_an_overwritten_row_is_ignored_and_raises_nothing,
    ),
    "priority of a row that is gone": Fault(
        plant=in_the_buffer("np.where($lives, ($priority + $eps) ** $alpha, 0.0)", "($priority + $eps) ** $alpha"),
        check=prioritized_run_with_drops,
    ),
    "beta not annealed": Fault(
        plant=replaced(Prioritized, "draw", step_0_for_every_draw),
        check=test_samplers.test_beta_is_annealed_by_the_environment_step,
    ),
    "images of a dropped episode elsewhere": Fault(
        plant=in_the_buffer("$then.rewound - $now.rewound", "0 * $now.rewound"),
        check=test_mirror.test_an_episode_dropped_and_another_begun_in_its_place,
    ),
    "a cut that the images elsewhere do not hear of": Fault(
        plant=in_the_buffer(
            "($now.serial, $now.n_episodes) == ($then.serial, $then.n_episodes)", "$now.serial == $then.serial"
        ),
        check=test_mirror.test_an_episode_cut_where_it_was_at_the_last_draw_has_its_final_image,
    ),
    "images of a lap ago elsewhere": Fault(
        plant=in_the_buffer("$now.serial - $then.serial >= $lap", "False"),
        check=partial(
            test_mirror.test_rings_that_wrap_again_and_again_between_draws_of_every_distance, form="pixels", stack=1
        ),
    ),
    "rings taken for in step that are not": Fault(
        plant=replaced(Heads, "move", order_of_heads_not_compared),
        check=test_heads.test_heads_are_an_array_of_rows_that_knows_when_they_lie_side_by_side,
    ),
    "a row buried that is not the oldest": Fault(
        plant=replaced(Heads, "side_by_side", one_step_late_behind_the_heads),
        check=long_even_run,
    ),
    "a draw that is not stratified": Fault(
        plant=replaced(Prioritized, "draw", independent_points),
        check=test_samplers.test_a_stratified_draw_puts_one_point_in_each_equal_part_of_the_mass,
    ),
}
