"""What broke when leanify was attacked, class by class, and the tests that hold each.

Below the table stand the tests that belong nowhere else; `tests/fuzz.py` looks for what no class names yet.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from commands import typed
from fuzz_intact import RECIPE, TIMM

import leanify
from leanify import cli
from leanify.runs import recipe as recipes

CLASSES: dict[str, tuple[str, ...]] = {
    "1 code runs": (
        "test_hostile_code.py::test_no_pickle_that_names_code_is_opened",
        "test_hostile_code.py::test_a_recipe_and_a_lean_directory_open_nothing_that_their_options_name",
        "test_hostile_code.py::test_code_beside_a_model_is_not_run_whatever_is_answered",
        "test_hostile_code.py::test_the_code_of_a_tokenizer_is_not_run_whatever_is_answered",
        "test_hostile_code.py::test_an_adapter_imports_nothing_and_opens_nothing_that_it_names",
        "test_hostile_code.py::test_a_configuration_names_no_kernel_of_the_hub",
        "test_hostile_code.py::test_the_floors_of_the_dependencies_are_the_versions_that_are_run",
        "test_hostile_folders.py::test_a_study_imports_no_module_of_the_folder_it_is_run_in",
        "test_hostile_folders.py::test_no_program_that_a_repository_names_is_run",
        "test_hostile_folders.py::test_a_cache_that_somebody_else_made_is_not_used",
        "test_folders.py::test_keys_from_files_open_no_file_and_ask_no_network",
        "test_folders.py::test_an_index_names_files_beside_it_only",
    ),
    "2 data change under a run": (
        "test_hostile_runs.py::test_changed_data_is_refused_unless_accepted",
        "test_hostile_runs.py::test_a_fingerprint_sees_files_that_come_and_go",
        "test_hostile_runs.py::test_an_edited_recipe_is_refused_with_what_was_edited",
    ),
    "3 right use fails": (
        "test_hostile_data.py::test_truths_are_taken_as_people_type_them",
        "test_hostile_data.py::test_timms_own_augmentation_runs_with_any_pillow",
        "test_hostile_data.py::test_a_device_that_is_not_there_is_named",
        "test_hostile_data.py::test_a_broken_tokenizer_beside_a_model_is_one_line",
        "test_conditioning_cli.py::test_heads_are_swept_in_a_model_without_a_list_of_blocks",
    ),
    "4 dirty data": (
        "test_hostile_data.py::test_a_dirty_row_is_named_or_skipped_and_counted",
        "test_hostile_data.py::test_short_rows_and_nulls_of_other_tables_are_named",
        "test_hostile_data.py::test_a_row_that_would_be_read_wrongly_is_named_or_skipped",
        "test_hostile_data.py::test_tables_as_spreadsheets_write_them_are_read_or_named",
        "test_hostile_data.py::test_what_parquet_holds_and_python_does_not_is_one_message",
        "test_hostile_data.py::test_a_cell_that_is_no_image_is_named",
        "test_hostile_data.py::test_bytes_are_no_text_to_probe_with",
        "test_hostile_data.py::test_folders_that_editors_leave_are_no_classes",
        "test_hostile_data.py::test_a_dirty_image_is_named_or_skipped_and_counted",
    ),
    "5 a run's folder": (
        "test_hostile_runs.py::test_a_damaged_environment_stops_nobody",
        "test_hostile_runs.py::test_a_log_shorter_than_its_checkpoint_is_never_extended",
        "test_hostile_runs.py::test_a_lost_log_is_one_message_and_nothing_is_written",
        "test_hostile_runs.py::test_a_lost_card_is_written_again_and_the_run_is_a_source",
        "test_hostile_runs.py::test_a_checkpoint_card_with_odd_sums_is_no_checkpoint",
        "test_hostile_runs.py::test_rows_with_odd_values_are_named",
        "test_hostile_folders.py::test_a_plan_names_no_folder_outside_its_study",
        "test_hostile_folders.py::test_an_outcome_names_no_run_but_its_own",
        "test_hostile_folders.py::test_numbers_beyond_all_bounds_in_a_folder_are_damage",
        "test_hostile_runs.py::test_a_disk_full_at_a_row_is_one_message_and_the_rest_is_the_same",
        "test_hostile_runs.py::test_a_disk_full_inside_a_checkpoint_is_named_in_plain_words",
        "test_hostile_classes.py::test_a_disk_that_can_only_be_read_is_one_message",
        "test_small_disks.py::test_room_ends_a_run_as_if_nothing_were",
        "test_small_disks.py::test_room_ends_a_study_as_if_nothing_were",
        "test_small_disks.py::test_what_a_command_writes_is_whole_or_not_there",
        "test_small_disks.py::test_a_cache_without_room_is_gone_without",
    ),
    "6 litter": (
        "test_hostile_runs.py::test_killed_while_checkpoints_are_written_and_pruned_nothing_is_left",
        "test_hostile_runs.py::test_files_of_a_checkpoint_follow_the_umask",
        "test_folders.py::test_what_a_killed_process_leaves_is_removed_by_the_next",
        "test_folders.py::test_files_follow_the_umask",
        "test_compare.py::test_jobs_that_are_refused_leave_no_folder",
    ),
    "7 signals": (
        "test_hostile_runs.py::test_a_time_limit_and_a_closed_shell_save_first",
        "test_hostile_runs.py::test_an_interrupt_names_the_step_and_the_line_that_resumes",
    ),
    "8 what upstream raises": (
        "test_folders.py::test_upstreams_own_errors_are_one_message",
        "test_folders.py::test_a_quantised_checkpoint_is_named_and_refused",
        "test_hostile_classes.py::test_a_traceback_is_shown_to_those_who_ask",
    ),
    "9 silent acceptance": (
        "test_folders.py::test_a_flipped_bit_is_noticed_where_a_checksum_lies_beside_it",
        "test_hostile_classes.py::test_what_would_be_ignored_is_refused",
        "test_conditioning_cli.py::test_a_plot_replaces_its_own_file_and_nobody_elses",
    ),
    "10 without bound": (
        "test_fuzz.py::test_sizes_that_no_model_has_end_soon",
        "test_fuzz.py::test_more_classes_than_any_model_has_are_refused",
        "test_plans_refused.py::test_what_cannot_be_met_is_one_message",
        "test_hostile_data.py::test_a_pipe_is_no_data_and_no_recipe",
        "test_hostile_data.py::test_a_recipe_without_bound_is_one_message",
        "test_folders.py::test_what_is_no_small_text_file_is_one_message",
        "test_folders.py::test_an_archive_that_unpacks_to_far_more_than_it_weighs_is_not_opened",
        "test_hostile_data.py::test_a_damaged_cache_is_made_anew",
        "test_hostile_folders.py::test_links_that_lead_back_are_named",
        "test_hostile_folders.py::test_what_lies_beside_a_model_is_copied_without_what_its_links_lead_to",
        "test_hostile_folders.py::test_files_that_should_be_small_are_not_read_when_they_are_large",
        "test_hostile_folders.py::test_a_table_of_very_many_columns_is_read",
        "test_hostile_folders.py::test_folders_a_thousand_levels_deep_are_looked_through",
    ),
    "11 streams": (
        "test_streams.py::test_names_and_files_do_not_drive_the_terminal",
        "test_hostile_data.py::test_a_full_standard_output_is_one_message",
        "test_hostile_data.py::test_a_locale_without_greek_gets_question_marks",
        "test_streams.py::test_output_that_cannot_be_written_is_one_message",
        "test_streams.py::test_a_reader_that_ends_early_ends_the_command",
        "test_streams.py::test_a_poor_environment_changes_no_result",
        "test_streams.py::test_a_dumb_terminal_gets_no_escapes",
    ),
    "12 words": (
        "test_folders.py::test_a_pickle_says_what_it_wants",
        "test_folders.py::test_what_is_no_pickle_is_said_without_torchs_advice",
        "test_hostile_code.py::test_an_adapter_that_does_not_fit_says_what_does_not",
    ),
    "13 writing outside": (
        "test_writing.py::test_every_file_is_written_by_one_module_and_removed_by_few",
        "test_writing.py::test_a_run_writes_nothing_through_a_link_of_a_name_that_it_might_use",
        "test_writing.py::test_a_file_of_a_run_that_is_a_link_is_replaced_or_refused",
        "test_writing.py::test_checkpoints_that_are_a_link_are_refused",
        "test_writing.py::test_another_name_of_a_file_keeps_its_content",
        "test_writing.py::test_a_study_writes_nothing_through_a_link",
        "test_writing.py::test_logs_and_locks_of_a_study_are_not_opened_through_a_link",
        "test_writing.py::test_folders_of_a_study_that_are_links_are_refused",
        "test_writing.py::test_an_output_directory_that_is_a_link_is_refused",
        "test_hostile_files.py::test_modules_name_folders_of_their_model_only",
    ),
    "14 what is the user's": (
        "test_writing.py::test_what_a_user_puts_into_a_run_is_still_there_after_a_resume",
        "test_writing.py::test_a_failed_run_that_holds_a_users_file_is_renamed_and_not_removed",
        "test_writing.py::test_what_appears_at_an_output_meanwhile_stays",
    ),
    "15 reading outside": (
        "test_writing.py::test_files_of_somebody_else_are_opened_by_one_module",
        "test_hostile_files.py::test_weights_that_a_configuration_names_are_refused",
        "test_hostile_files.py::test_a_link_beside_a_model_passes_no_private_file_on",
        "test_hostile_files.py::test_what_the_hubs_client_keeps_as_links_is_copied",
        "test_hostile_files.py::test_an_adapter_on_an_adapter_is_refused_however_it_is_found",
        "test_hostile_files.py::test_a_recipe_runs_no_package_around_the_code_that_it_names",
    ),
    "16 bombs, loops, pipes": (
        "test_hostile_files.py::test_an_archive_is_what_torch_takes_for_one",
        "test_hostile_files.py::test_a_training_state_is_no_bomb",
        "test_hostile_files.py::test_a_dict_that_contains_itself_is_no_state_dict",
        "test_hostile_files.py::test_a_member_of_a_shard_with_a_negative_size_is_refused",
        "test_hostile_files.py::test_a_pipe_is_no_shard",
        "test_hostile_files.py::test_one_long_label_does_not_take_the_memory_of_all",
        "test_hostile_files.py::test_numbers_without_bound_are_refused",
        "test_hostile_files.py::test_a_pipe_in_a_linked_folder_is_refused_before_it_is_opened",
    ),
    "17 a run's state": (
        "test_hostile_files.py::test_an_odd_training_state_is_one_message_with_the_reason",
        "test_hostile_files.py::test_the_best_checkpoint_is_checked_before_the_test_split",
        "test_hostile_files.py::test_an_edited_kappa_file_makes_no_run_fail",
        "test_hostile_files.py::test_a_study_without_its_runs_is_one_message_or_begins_them",
        "test_hostile_files.py::test_a_run_on_own_shards_is_one_that_every_command_opens",
        "test_hostile_files.py::test_a_recipe_that_would_be_read_as_another_is_not_begun",
    ),
    "18 surroundings": (
        "test_hostile_files.py::test_csv_and_markdown_neither_drive_a_terminal_nor_compute",
        "test_hostile_files.py::test_a_launchers_numbers_are_numbers",
        "test_hostile_files.py::test_names_that_no_file_can_have_are_one_message",
        "test_hostile_files.py::test_offline_asks_no_name_server",
        "test_hostile_files.py::test_a_signal_to_the_whole_group_saves_and_names_the_line_that_resumes",
    ),
}


@pytest.mark.parametrize("name", CLASSES)
def test_every_class_of_attack_has_tests_of_these_names(name: str) -> None:
    folder = Path(__file__).parent
    for test in CLASSES[name]:
        file, _, function = test.partition("::")
        assert re.search(rf"^def {function}\(", (folder / file).read_text(), re.MULTILINE), test


@pytest.mark.unexpected
def test_every_promise_about_files_names_its_tests() -> None:
    guide = (Path(__file__).parent.parent / "docs" / "SECURITY.md").read_text()
    promised, _ = guide.split("## What is not promised")
    lines = re.split(r"\n- \*\*", promised)[1:]
    assert [line.partition(".")[0] for line in lines if "::test_" not in line] == ["Upstream's source"]
    for file, name in re.findall(r"`(test_\w+\.py)::(\w+)`", promised):
        assert f"\ndef {name}(" in (Path(__file__).parent / file).read_text(), name


@pytest.mark.unexpected
def test_a_traceback_is_shown_to_those_who_ask(monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    def divided() -> None:
        raise ZeroDivisionError("integer modulo by zero")

    for asked in (False, True):
        monkeypatch.setenv("LEANIFY_DEBUG", "1" if asked else "")
        code, out, err = typed("recipes digist", capsys)
        assert (code, out, "Traceback" in err) == (2, "", asked)
        with monkeypatch.context() as patch:
            patch.setattr(cli, "run_command", divided)
            code, out, err = typed("recipes", capsys)
        assert (code, out, "Traceback" in err) == (2, "", asked)
        assert "unexpected error: ZeroDivisionError: integer modulo by zero" in " ".join(err.split())
        assert "LEANIFY_DEBUG=1" in err


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("redesign vit_tiny --depth 7 --weights nowhere", "nowhere"),
        ("redesign vit_tiny --depth 7 --weights bert", "has no weights"),
        ("redesign bert --depth 7 --tokens 0", "--tokens"),
        ("condition bert --tokens 0", "--tokens"),
    ],
)
def test_what_would_be_ignored_is_refused(line: str, words: str, capsys: Any) -> None:
    code, out, err = typed(line, capsys)
    assert (code, out) == (2, "")
    assert words in err


@pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() != 0, reason="only root mounts a disk")
def test_a_disk_that_can_only_be_read_is_one_message(tmp_path: Path, capsys: Any, monkeypatch: Any) -> None:
    disk = tmp_path / "disk"
    disk.mkdir()
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=20m", "tmpfs", str(disk)], capture_output=True).returncode:
        pytest.skip("no disk can be mounted here")
    monkeypatch.setattr(sys, "argv", [])
    try:
        leanify.train(recipes.parse(RECIPE), tmp_path / "run")
        leanify.save(leanify.load("vit_tiny_patch16_224", overrides=TIMM), tmp_path / "lean")
        shutil.copytree(tmp_path / "run", disk / "run")
        for name in ("environment.json", "leanify.json"):
            (disk / "run" / name).unlink()  # which would be written again
        subprocess.run(["mount", "-o", "remount,ro", str(disk)], check=True)
        for line in (
            f"train --resume {disk}/run",
            f"train {tmp_path}/run -o {disk}/new",
            f"redesign {tmp_path}/lean --depth 1 -o {disk}/lean",
            f"condition {tmp_path}/lean --samples 2 --plot {disk}/plot.svg",
            f"export {tmp_path}/lean --format timm -o {disk}/out",
            f"compare {tmp_path}/run --designs baseline -o {disk}/study",
        ):
            code, _, err = typed(line, capsys)
            assert code in (1, 2), err
            assert "Traceback" not in err
            assert str(disk) in "".join(err.split())
    finally:
        subprocess.run(["umount", "-l", str(disk)], check=True)
