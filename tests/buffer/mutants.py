"""Faults a replay buffer could have, each with the check that must notice it."""

from functools import partial

from tests.buffer import test_heads, test_mirror, test_nstep, test_samplers, test_skipped_rows, test_storage
from tests.buffer.programs import Run
from tests.helpers.faults import Fault
from trainkit.buffer import PrioritizedReplayBuffer, ReplayBuffer, replay
from trainkit.buffer.heads import Heads
from trainkit.buffer.mirror import Mirror
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


MUTANTS = {
    "n-step across a cut": Fault(
        owner=replay,
        function="read_windows",
        old='(records["final"][:-1] < 0) & ',
        new='~(records["terminated"] | records["truncated"])[:-1] & ',
        check=test_nstep.test_a_window_stops_at_a_cut_but_keeps_the_bootstrap,
    ),
    "n-step across the write head": Fault(
        owner=replay,
        function="read_windows",
        old=' & (records["stamp"][1:] >= 0)',
        new="",
        check=test_nstep.test_a_window_never_reads_on_from_the_newest_row_into_the_oldest,
    ),
    "truncation as termination": Fault(
        owner=replay,
        function="read_windows",
        old="powers[n_steps] * ~rings.terminated[last]",
        new="powers[n_steps] * (rings.final[last] < 0)",
        check=test_nstep.test_a_window_stops_at_truncation_but_keeps_the_bootstrap,
    ),
    "the discount of n where the window has fewer steps": Fault(
        owner=replay,
        function="read_windows",
        old="powers[n_steps] *",
        new="powers[-1] *",
        check=test_nstep.test_a_window_stops_at_the_newest_row_and_keeps_the_bootstrap,
    ),
    "clip after the sum": Fault(
        owner=replay,
        function="read_windows",
        old='_shape(horizon.reward, rings, seen, records["reward"]), _NO_REWARD)\n'
        "    total = np.add.reduce(reward * powers[:-1, None], axis=0)",
        new='_shape(None, rings, seen, records["reward"]), _NO_REWARD)\n'
        "    total = np.sign(np.add.reduce(reward * powers[:-1, None], axis=0))",
        check=partial(
            test_nstep.test_a_reward_rule_shapes_each_reward_before_the_sum, rule="sign", expected=1 - 0.99**2
        ),
    ),
    "stack across the tail": Fault(
        owner=Rings,
        function="__init__",
        old="int(self.limit.max() + self._stack)",
        new="int(self.limit.max() + 1)",
        check=long_stacked_run,
    ),
    "stack across an episode's beginning": Fault(
        owner=Rings,
        function="_read",
        old="np.minimum(np.arange(self._stack - 1, -1, -1), age[:, None])",
        new="np.arange(self._stack - 1, -1, -1) + 0 * age[:, None]",
        check=test_storage.test_a_stack_repeats_its_episodes_first_frame_before_it_began,
    ),
    "the next episode's first observation after an end": Fault(
        owner=Rings,
        function="next_obs_at",
        old="if len(ended):",
        new="if False:",
        check=test_storage.test_the_observation_after_an_end_is_the_episodes_own_not_the_next_ones_first,
    ),
    "the skipped row's observation as the next one": Fault(
        owner=Rings,
        function="add",
        old="if not self._is_pending(here, step.obs):",
        new="if False:",
        check=test_skipped_rows.test_no_window_crosses_skipped_rows_and_the_bootstrap_stays,
    ),
    "the row after the last one in memory": Fault(
        owner=Scratch,
        function="take",
        old='column.take(rows, axis=0, mode="wrap")',
        new='column.take(rows, axis=0, mode="clip")',
        check=long_stacked_run,
    ),
    "priority of an overwritten row": Fault(
        owner=Rings,
        function="rows",
        old="(self.stamp[rows] == stamp) & ",
        new="",
        check=test_samplers.test_a_late_priority_of_an_overwritten_row_is_ignored_and_raises_nothing,
    ),
    "priority of a row that is gone": Fault(
        owner=Prioritized,
        function="_settle",
        old="np.where(lives, ",
        new="np.where(True, ",
        check=prioritized_run_with_drops,
    ),
    "beta not annealed": Fault(
        owner=Prioritized,
        function="draw",
        old="self.beta(step)",
        new="self.beta(0)",
        check=test_samplers.test_beta_is_annealed_by_the_environment_step,
    ),
    "images of a dropped episode elsewhere": Fault(
        owner=Mirror,
        function="_written",
        old="then.rewound - now.rewound",
        new="0 * now.rewound",
        check=test_mirror.test_an_episode_dropped_and_another_begun_in_its_place,
    ),
    "a cut that the images elsewhere do not hear of": Fault(
        owner=Mirror,
        function="_follow",
        old="(now.serial, now.n_episodes) == (then.serial, then.n_episodes)",
        new="now.serial == then.serial",
        check=test_mirror.test_an_episode_cut_where_it_was_at_the_last_draw_has_its_final_image,
    ),
    "images of a lap ago elsewhere": Fault(
        owner=Mirror,
        function="_written",
        old="if now.serial - then.serial >= rings.n_rows // rings.n_envs:",
        new="if False:",
        check=partial(
            test_mirror.test_rings_that_wrap_again_and_again_between_draws_of_every_distance, form="pixels", stack=1
        ),
    ),
    "rings taken for in step that are not": Fault(
        owner=Heads,
        function="move",
        old="self.rows = moved",
        new="self._rows = moved",
        check=test_heads.test_heads_are_an_array_of_rows_that_knows_when_they_lie_side_by_side,
    ),
    "a row buried that is not the oldest": Fault(
        owner=Rings,
        function="_make_room",
        old="side_by_side(-self._share)",
        new="side_by_side(1 - self._share)",
        check=long_even_run,
    ),
    "a draw that is not stratified": Fault(
        owner=Prioritized,
        function="draw",
        old="(np.arange(float(n_rows)) + rng.random(n_rows)) * (total / n_rows)",
        new="rng.random(n_rows) * total",
        check=test_samplers.test_a_stratified_draw_puts_one_point_in_each_equal_part_of_the_mass,
    ),
}
