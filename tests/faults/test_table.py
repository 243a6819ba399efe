"""The table of what goes wrong in a run: every case has a test that shows it, or a reason why there is none.

Ids are those of the list the project was given; CASES.md says what happens in each.
"""

import ast
import re
from pathlib import Path

TESTS = Path(__file__).parents[1]
PAGE = TESTS / "faults" / "CASES.md"

# {id: tests as "file::name" under tests/, or a reason beginning with "no:"}
CASES: dict[int, list[str]] = {
    # ---- what environments return ----
    1: ["faults/test_numbers.py::test_what_an_environment_spoils_never_reaches_the_weights",
        "envs/test_envs.py::test_a_reward_that_is_not_finite_is_rejected"],
    2: ["faults/test_numbers.py::test_what_an_environment_spoils_never_reaches_the_weights"],
    3: ["envs/test_envs.py::test_an_observation_that_is_not_finite_is_rejected_by_its_index",
        "envs/test_envs.py::test_a_dict_observation_that_is_not_finite_is_rejected_by_its_key"],
    4: ["envs/test_envs.py::test_nan_in_an_info_is_the_users_affair",
        "trainer/callbacks/test_logged_values.py::test_a_value_that_is_not_finite_is_left_out_with_one_warning"],
    5: ["envs/test_validation.py::test_an_observation_that_is_not_as_the_space_says_is_rejected"],
    6: ["envs/test_validation.py::test_float64_is_cast_and_warned_of_once"],
    7: ["envs/test_validation.py::test_the_first_value_outside_its_bounds_is_reported_with_them_and_no_other"],
    8: ["envs/test_envs.py::test_an_observation_whose_shape_drifts_is_rejected_at_that_step"],
    9: ["envs/test_validation.py::test_a_reward_is_any_one_number",
        "envs/test_validation.py::test_a_reward_that_is_no_number_is_rejected"],
    10: ["envs/test_validation.py::test_a_flag_that_is_no_bool_is_rejected"],
    11: ["envs/test_validation.py::test_the_old_four_values_of_a_step_are_rejected_by_the_name_of_the_api",
         "envs/test_validation.py::test_a_reset_without_its_info_is_rejected_by_the_name_of_the_api"],
    12: ["envs/test_envs.py::test_an_environment_may_write_into_its_own_array_again_and_again",
         "envs/test_backends.py::test_a_vector_environment_that_reuses_its_arrays_cannot_change_rows"],
    13: ["envs/test_make.py::test_an_observation_space_that_is_no_array_of_numbers_is_rejected_and_all_closed"],
    14: ["envs/test_validation.py::test_an_observation_is_copied_whatever_its_layout"],
    15: ["envs/test_make.py::test_an_observation_space_that_is_no_array_of_numbers_is_rejected_and_all_closed"],
    16: ["faults/test_process.py::test_more_actions_than_a_network_could_learn_are_rejected",
         "envs/test_envs.py::test_a_discrete_space_starts_at_zero_for_the_policy_alone"],
    17: ["collector/test_collector.py::test_a_policy_for_other_spaces_is_rejected_before_the_buffer_claims_memory"],
    18: ["trainer/test_compatibility.py::test_parts_that_do_not_fit_are_refused"],
    19: ["envs/test_envs.py::test_an_action_no_environment_can_take_is_rejected_before_one_sees_it",
         "collector/test_collector.py::test_a_policys_bad_action_reaches_no_environment"],
    20: ["envs/test_envs.py::test_an_action_no_environment_can_take_is_rejected_before_one_sees_it"],
    21: ["collector/test_collector.py::test_no_legal_action_is_an_error_that_names_the_environment_and_the_step",
         "envs/test_envs.py::test_a_mask_that_is_invalid_is_rejected_by_the_name_of_its_environment"],
    22: ["envs/test_envs.py::test_infos_keep_the_type_each_environment_gave"],
    # ---- environments that fail ----
    23: ["extensions/restarts/test_restarts.py::test_only_the_environment_that_failed_is_restarted",
         "faults/test_faulty_environments.py::test_without_restarts_the_run_ends_with_all_it_takes_to_find_the_fault"],
    24: ["extensions/restarts/test_restarts.py::test_a_constructor_that_raises_at_first_raises_before_training",
         "envs/test_make.py::test_a_constructor_that_raises_is_named_by_its_index_and_the_others_are_closed"],
    25: ["extensions/restarts/test_restarts.py::test_only_the_environment_that_failed_is_restarted",
         "faults/test_processes.py::test_an_exception_while_waiting_leaves_no_answer_to_be_taken_for_another"],
    26: ["extensions/restarts/test_restarts.py::test_only_the_environment_that_failed_is_restarted",
         "faults/test_processes.py::test_closing_takes_no_more_than_five_seconds"],
    27: ["extensions/restarts/test_restarts.py::test_only_the_environment_that_failed_is_restarted"],
    28: ["faults/test_processes.py::test_processes_ignore_signals_to_their_group_and_end_with_their_parent"],
    29: ["faults/test_processes.py::test_a_fork_is_not_for_processes_in_which_an_accelerator_runs"],
    30: ["faults/test_processes.py::test_a_factory_that_cannot_be_sent_is_named"],
    31: ["faults/test_process.py::test_an_environment_may_seed_the_global_generators"],
    32: ["collector/test_episodes.py::test_an_episode_without_end_is_warned_of_once",
         "collector/test_episodes.py::test_a_long_episode_sums_without_losing_a_step"],
    33: ["envs/test_autoreset.py::test_any_program_over_any_autoreset_stores_what_happened"],
    # ---- logs and files ----
    34: ["loggers/test_logger.py::test_a_logger_that_cannot_write_warns_once_and_the_run_continues",
         "loggers/test_logger.py::test_a_full_disk_does_not_tear_the_events_written_before_and_after"],
    35: ["loggers/test_logger.py::test_a_read_only_folder_is_refused_at_construction",
         "trainer/test_folders.py::test_a_folder_that_cannot_be_written_is_rejected_at_construction"],
    36: ["loggers/test_logger.py::test_a_folder_deleted_in_the_middle_of_a_run_is_made_again_with_a_word"],
    37: ["loggers/test_logger.py::test_a_folder_in_use_gets_a_suffix_and_a_warning",
         "trainer/test_folders.py::test_a_fresh_run_into_a_folder_of_another_is_rejected_and_nothing_is_lost",
         "trainer/test_folders.py::test_a_folder_that_another_process_uses_is_rejected_until_it_is_killed"],
    38: [
        "loggers/test_logger.py::test_a_resumed_run_writes_to_the_same_file_without_what_came_after_the_checkpoint"
    ],
    39: ["loggers/test_logger.py::test_nan_and_infinity_become_null_and_numbers_of_numpy_are_numbers"],
    40: ["trainer/callbacks/test_checkpointing.py::test_a_full_disk_keeps_the_former_checkpoint_and_the_run_continues"],
    41: ["faults/test_checkpoint_kills.py::test_a_run_killed_before_any_write_resumes_from_a_whole_checkpoint",
         "faults/test_checkpoint_kills.py::test_a_run_that_saves_all_the_time_resumes_after_every_sigkill"],
    42: ["core/test_checkpoint.py::test_a_truncated_file_is_rejected"],
    43: ["faults/test_checkpoint_safety.py::test_a_single_flipped_bit_is_refused_wherever_it_is"],
    44: ["faults/test_checkpoint_safety.py::test_a_checkpoint_made_to_do_harm_is_refused_and_does_none"],
    45: ["core/test_checkpoint.py::test_a_newer_format_is_rejected"],
    46: ["core/test_checkpoint.py::test_another_network_is_rejected_with_what_differs_and_nothing_is_half_loaded"],
    47: ["core/test_checkpoint.py::test_other_spaces_are_rejected",
         "core/test_checkpoint.py::test_another_kind_of_trainer_policy_or_environment_is_rejected"],
    48: ["trainer/test_run_checkpoint.py::test_changed_settings_are_listed_in_one_warning"],
    49: ["gpu/test_cuda.py::test_a_state_moves_between_cpu_and_cuda"],
    50: ["trainer/test_run_checkpoint.py::test_a_run_split_after_any_epoch_is_the_run_that_was_never_split",
         "trainer/test_run_checkpoint.py::test_a_new_process_continues_to_the_same_bits"],
    51: ["trainer/callbacks/test_checkpointing.py::test_a_reader_keeps_what_it_opened_while_it_is_dropped"],
    52: ["no: durations come from the monotonic clock; how far a file system keeps its promises cannot be tested here"],
    # ---- the maths of training ----
    53: ["trainer/test_options.py::test_a_batch_larger_than_the_buffer_is_refused"],
    54: ["faults/test_options.py::test_a_bool_is_no_number_and_a_number_no_flag",
         "trainer/test_options.py::test_an_option_that_cannot_work_is_refused_at_construction"],
    55: ["faults/test_options.py::test_nan_words_and_strangers_are_never_taken_for_numbers_flags_or_parts",
         "trainer/test_options.py::test_all_problems_are_reported_in_one_message"],
    56: ["faults/test_options.py::test_an_option_that_does_not_exist_is_refused_everywhere"],
    57: ["buffer/test_replay.py::test_an_empty_buffer_cannot_be_sampled"],
    58: ["buffer/test_samplers.py::test_a_priority_that_is_none_is_refused_and_nothing_is_written"],
    59: ["buffer/test_samplers.py::test_alpha_zero_and_priorities_all_zero_are_uniform",
         "buffer/test_samplers.py::test_a_gigantic_priority_is_clipped_with_a_warning"],
    60: ["buffer/test_segment_tree.py::test_a_million_writes_leave_no_drift_in_the_total"],
    61: ["buffer/test_segment_tree.py::test_a_sum_tree_is_an_array_with_a_cumulative_sum"],
    62: ["faults/test_numbers.py::test_an_update_that_is_not_finite_is_skipped_and_reports_why",
         "faults/test_numbers.py::test_ten_in_a_row_pass_and_the_eleventh_does_not",
         "gpu/test_cuda.py::test_a_gradient_that_is_not_finite_moves_nothing_and_is_reported_at_the_next_read"],
    63: ["extensions/diagnosis/test_diagnosis.py::test_a_rule_finds_what_it_is_for_and_nothing_in_healthy_neighbors"],
    64: ["buffer/test_replay.py::test_every_number_of_a_batch_is_what_the_reference_says",
         "buffer/test_nstep.py::test_a_window_stops_at_truncation_but_keeps_the_bootstrap"],
    65: ["buffer/test_nstep.py::test_termination_wins_over_truncation_at_the_same_step"],
    66: ["envs/test_backends.py::test_every_stored_row_is_a_real_step_with_its_true_successor"],
    67: ["buffer/test_nstep.py::test_a_window_may_be_longer_than_the_ring",
         "buffer/test_storage.py::test_dropping_an_episode_longer_than_the_ring_leaves_nothing_of_it"],
    68: ["buffer/test_storage.py::test_a_stack_repeats_its_episodes_first_frame_before_it_began",
         "buffer/test_storage.py::test_the_oldest_rows_stack_reaches_behind_the_tail"],
    69: ["buffer/test_samplers.py::test_a_late_priority_of_an_overwritten_row_is_ignored_and_raises_nothing"],
    70: ["buffer/test_segment_tree.py::test_the_smallest_rises_again_when_its_leaf_does",
         "buffer/test_samplers.py::test_new_rows_get_the_largest_priority_so_far"],
    71: ["faults/test_process.py::test_counters_are_exact_beyond_what_a_float_holds",
         "faults/test_process.py::test_slots_are_exact_after_two_to_the_31_steps"],
    72: ["faults/test_process.py::test_statistics_of_a_billion_rewards_stay_true"],
    73: ["core/test_schedules.py::test_knots_are_exact_and_what_lies_between_them_lies_between_their_values"],
    # ---- devices ----
    74: ["engine/test_device.py::test_a_device_that_is_not_there_is_rejected_with_the_reason"],
    75: ["policy/test_learning.py::test_memory_that_runs_out_once_is_given_back_and_the_update_taken",
         "policy/test_learning.py::test_running_out_of_memory_twice_is_an_error_that_moves_no_weight"],
    76: ["buffer/test_sizes.py::test_more_than_there_is_is_refused_with_bytes_before_anything_is_claimed"],
    77: ["envs/test_envs.py::test_an_action_no_environment_can_take_is_rejected_before_one_sees_it",
         "trainer/test_offline.py::test_rows_of_other_spaces_are_refused_by_name"],
    78: ["no: torch.use_deterministic_algorithms is the user's switch, and left alone (docs/fault_tolerance.md)"],
    # ---- the loop ----
    79: ["trainer/test_interrupt.py::test_many_ctrl_cs_at_random_moments_change_nothing"],
    80: ["trainer/test_signals.py::test_sigterm_at_any_time_saves_and_the_run_continues_to_the_same_bits"],
    81: ["trainer/test_signals.py::test_several_sigterms_are_as_one",
         "trainer/test_signals.py::test_a_checkpoint_that_is_being_written_is_finished",
         "outside/test_signals.py::test_a_later_sigterm_ends_a_run_whose_environment_hangs"],
    82: ["trainer/test_base.py::test_break_and_a_second_for_continue_where_the_first_stopped"],
    83: ["trainer/test_base.py::test_iterating_a_finished_trainer_is_empty_and_warns_once_a_loop"],
    84: ["trainer/test_base.py::test_next_past_the_end_raises_stop_iteration_each_time_and_never_trains"],
    85: ["trainer/test_base.py::test_next_within_next_is_refused",
         "trainer/test_base.py::test_next_in_two_threads_at_once_is_refused"],
    86: ["faults/test_processes.py::test_unclosed_environments_end_when_they_are_garbage_collected",
         "loggers/test_logger.py::test_a_forgotten_logger_closes_its_file_without_a_word",
         "faults/test_process.py::test_a_trainer_without_references_is_collected"],
    87: ["trainer/test_base.py::test_an_exception_in_an_event_loses_no_epoch_and_reaches_other_callbacks_once"],
    88: ["trainer/test_base.py::test_the_yielded_records_are_frozen",
         "trainer/test_base.py::test_what_a_callback_does_to_a_result_it_keeps_changes_no_later_epoch"],
    89: ["trainer/test_base.py::test_stop_iteration_in_a_callback_is_an_error_and_does_not_end_the_loop_silently"],
    90: ["trainer/callbacks/test_base.py::test_a_stop_fn_that_answers_no_bool_is_refused_by_name"],
    91: ["trainer/test_evaluation_schedule.py::test_without_a_score_stop_fn_is_not_called",
         "trainer/test_evaluation_schedule.py::test_the_best_is_the_first_of_the_highest_scores_and_no_score_never_is"],
    92: ["trainer/test_evaluation_times.py::test_training_is_the_same_with_any_evaluation_and_without",
         "nets/test_preprocess.py::test_evaluation_changes_no_statistics"],
    93: ["trainer/test_base.py::test_no_epoch_at_all_is_allowed_and_empty",
         "trainer/test_offpolicy.py::test_what_an_epoch_goes_over_is_taken_off_the_next"],
    94: ["trainer/test_offline.py::test_numbers_that_are_not_finite_are_refused_by_column_before_training",
         "trainer/test_offline.py::test_what_cannot_work_is_refused_at_construction"],
    95: ["policy/test_on_policy.py::test_every_row_is_in_one_batch_per_repeat_and_batches_are_equal_give_or_take_a_row",
         "trainer/test_onpolicy.py::test_a_rollout_of_fewer_steps_than_environments_is_made_up_for_later"],
    # ---- the process ----
    96: ["trainer/test_progress.py::test_without_a_terminal_one_line_per_epoch_is_printed_and_no_bar",
         "trainer/test_progress.py::test_verbose_off_prints_nothing_at_all"],
    97: ["trainer/test_progress.py::test_a_run_whose_output_pipe_closes_continues_to_its_end"],
    98: ["faults/test_process.py::test_a_trainer_is_saved_and_neither_pickled_nor_copied"],
    99: ["faults/test_process.py::test_importing_is_quick_and_starts_nothing"],
    100: ["faults/test_process.py::test_fifty_trainers_in_a_row_take_no_more_than_twenty",
          "trainer/test_flat.py::test_the_fiftieth_epoch_is_as_fast_as_the_second"],
    101: ["faults/test_process.py::test_training_changes_no_number_of_threads_and_leaves_none_behind"],
    102: ["faults/test_processes.py::test_a_process_that_is_no_fork_is_as_good"],
}  # fmt: skip


def test_every_case_has_an_entry() -> None:
    assert sorted(CASES) == list(range(1, 103))


def test_every_test_that_is_named_is_there() -> None:
    named = {one for tests in CASES.values() for one in tests if not one.startswith("no: ")}
    files = {file: ast.parse((TESTS / file).read_text()).body for file in {one.partition("::")[0] for one in named}}
    there = {f"{file}::{one.name}" for file, body in files.items() for one in body if isinstance(one, ast.FunctionDef)}
    assert sorted(named - there) == []


def test_the_page_lists_every_case_once() -> None:
    rows = re.findall(r"^\| ([\d, ]+) \|", PAGE.read_text(), re.MULTILINE)
    numbers = [int(number) for row in rows for number in row.split(",")]
    assert sorted(numbers) == list(range(1, 103))
