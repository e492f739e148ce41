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
from commands import run_here
from fuzz_intact import RECIPE, TIMM

import leanify
from leanify import cli
from leanify.core import recipe as recipes

CLASSES: dict[str, tuple[str, ...]] = {
    "1 code runs": (
        "test_hostile_code.py::test_code_pickles_are_not_opened",
        "test_hostile_code.py::test_options_in_files_open_nothing",
        "test_hostile_code.py::test_model_code_never_runs",
        "test_hostile_code.py::test_tokenizer_code_never_runs",
        "test_hostile_code.py::test_config_names_no_hub_kernel",
        "test_hostile_code.py::test_dependency_floors_are_tested_versions",
        "test_hostile_folders.py::test_study_imports_nothing_local",
        "test_hostile_folders.py::test_repository_programs_never_run",
        "test_hostile_folders.py::test_foreign_cache_is_not_used",
        "test_folders.py::test_file_keys_open_nothing",
        "test_folders.py::test_index_names_local_files_only",
    ),
    "2 data change under a run": (
        "test_hostile_runs.py::test_changed_data_needs_consent",
        "test_hostile_runs.py::test_edited_recipe_names_its_changes",
    ),
    "3 right use fails": (
        "test_hostile_data.py::test_booleans_parse_as_typed",
        "test_hostile_data.py::test_timm_augmentation_runs_with_pillow",
        "test_hostile_data.py::test_missing_device_is_named",
        "test_hostile_data.py::test_broken_tokenizer_is_one_line",
        "test_conditioning_cli.py::test_heads_sweep_without_block_list",
    ),
    "4 dirty data": (
        "test_hostile_data.py::test_dirty_rows_are_named_or_counted",
        "test_hostile_data.py::test_misread_rows_are_named_or_skipped",
        "test_hostile_data.py::test_spreadsheet_tables_are_read",
        "test_hostile_data.py::test_non_image_cell_is_named",
        "test_hostile_data.py::test_editor_folders_are_no_classes",
        "test_hostile_data.py::test_dirty_images_are_named_or_counted",
    ),
    "5 a run's folder": (
        "test_hostile_runs.py::test_damaged_environment_stops_nobody",
        "test_hostile_runs.py::test_short_log_is_never_extended",
        "test_hostile_runs.py::test_lost_log_is_one_message",
        "test_hostile_runs.py::test_lost_card_is_rewritten",
        "test_hostile_runs.py::test_odd_checksums_are_refused",
        "test_hostile_runs.py::test_odd_rows_are_named",
        "test_hostile_folders.py::test_plan_names_only_own_folders",
        "test_hostile_folders.py::test_outcome_names_only_own_run",
        "test_hostile_runs.py::test_full_disk_at_row_recovers",
        "test_hostile_runs.py::test_full_disk_at_checkpoint_is_named",
        "test_hostile_classes.py::test_read_only_disk_is_one_message",
        "test_small_disks.py::test_run_resumes_once_room_returns",
        "test_small_disks.py::test_outputs_are_complete_or_absent",
        "test_small_disks.py::test_cache_without_room_is_skipped",
    ),
    "6 litter": (
        "test_hostile_runs.py::test_kill_during_pruning_leaves_nothing",
        "test_folders.py::test_next_process_cleans_up",
        "test_folders.py::test_files_follow_umask",
        "test_compare.py::test_refused_jobs_leave_no_folder",
    ),
    "7 signals": (
        "test_hostile_runs.py::test_time_limit_and_hangup_save",
        "test_hostile_runs.py::test_interrupt_names_step_and_resume",
    ),
    "8 what upstream raises": (
        "test_folders.py::test_upstream_errors_are_one_message",
        "test_folders.py::test_quantised_checkpoint_is_refused",
        "test_hostile_classes.py::test_traceback_is_shown_on_request",
    ),
    "9 silent acceptance": (
        "test_folders.py::test_checksum_reveals_flipped_bit",
        "test_hostile_classes.py::test_ignored_options_are_refused",
        "test_conditioning_cli.py::test_plot_replaces_only_own_file",
    ),
    "10 without bound": (
        "test_fuzz.py::test_absurd_sizes_end_soon",
        "test_fuzz.py::test_too_many_classes_are_refused",
        "test_plans_refused.py::test_impossible_plan_is_one_message",
        "test_hostile_data.py::test_pipes_are_refused",
        "test_hostile_data.py::test_unbounded_recipe_is_one_message",
        "test_folders.py::test_oversized_text_files_are_refused",
        "test_hostile_data.py::test_damaged_cache_is_rebuilt",
        "test_hostile_folders.py::test_circular_links_are_named",
        "test_hostile_folders.py::test_copying_follows_no_links",
        "test_hostile_folders.py::test_large_files_are_not_read",
    ),
    "11 streams": (
        "test_streams.py::test_names_cannot_drive_terminal",
        "test_streams.py::test_unwritable_output_is_one_message",
        "test_streams.py::test_closed_reader_ends_command",
        "test_streams.py::test_poor_environment_changes_no_result",
        "test_streams.py::test_dumb_terminal_gets_no_escapes",
    ),
    "12 words": ("test_folders.py::test_non_pickle_error_is_plain",),
    "13 writing outside": (
        "test_writing.py::test_one_module_writes_files",
        "test_writing.py::test_run_writes_through_no_link",
        "test_writing.py::test_linked_run_file_is_replaced",
        "test_writing.py::test_linked_checkpoints_are_refused",
        "test_writing.py::test_hard_links_keep_their_content",
        "test_writing.py::test_study_writes_through_no_link",
        "test_writing.py::test_study_logs_follow_no_link",
        "test_writing.py::test_linked_study_folders_are_refused",
        "test_writing.py::test_linked_output_is_refused",
        "test_hostile_files.py::test_modules_name_own_folders_only",
    ),
    "14 what is the user's": (
        "test_writing.py::test_users_files_survive_resume",
        "test_writing.py::test_failed_run_keeps_users_file",
        "test_writing.py::test_late_output_is_not_overwritten",
    ),
    "15 reading outside": (
        "test_writing.py::test_one_module_opens_foreign_files",
        "test_hostile_files.py::test_config_weight_paths_are_refused",
        "test_hostile_files.py::test_links_copy_no_private_files",
        "test_hostile_files.py::test_hub_cache_links_are_copied",
        "test_removed.py::test_adapters_are_refused_unread",
        "test_hostile_files.py::test_recipe_runs_no_package",
    ),
    "16 bombs, loops, pipes": (
        "test_hostile_files.py::test_archives_match_torchs_rule",
        "test_hostile_files.py::test_training_state_is_no_bomb",
        "test_hostile_files.py::test_self_containing_dict_is_refused",
        "test_hostile_files.py::test_negative_member_size_is_refused",
        "test_hostile_files.py::test_unbounded_numbers_are_refused",
        "test_hostile_files.py::test_linked_pipe_is_refused_unopened",
    ),
    "17 a run's state": (
        "test_hostile_files.py::test_odd_training_state_names_reason",
        "test_hostile_files.py::test_best_checkpoint_is_checked_first",
        "test_hostile_files.py::test_edited_kappa_file_is_harmless",
        "test_hostile_files.py::test_study_without_runs_is_handled",
        "test_hostile_files.py::test_ambiguous_recipe_is_not_begun",
    ),
    "18 surroundings": (
        "test_hostile_files.py::test_tables_are_inert",
        "test_hostile_files.py::test_launcher_numbers_are_validated",
        "test_hostile_files.py::test_invalid_file_names_are_one_message",
        "test_hostile_files.py::test_offline_asks_no_name_server",
        "test_hostile_files.py::test_group_signal_saves_and_names_resume",
    ),
    "19 what acts or grows unseen": (
        "test_hostile_limits.py::test_dotted_keys_end_soon",
        "test_hostile_limits.py::test_study_keys_have_types_and_bounds",
        "test_hostile_limits.py::test_tensor_headers_are_bounded",
        "test_hostile_limits.py::test_shape_numbers_are_bounded",
        "test_hostile_limits.py::test_option_numbers_are_bounded",
        "test_hostile_limits.py::test_card_blocks_are_bounded",
        "test_hostile_limits.py::test_odd_metrics_are_shown",
        "test_hostile_limits.py::test_newer_run_is_not_resumed",
        "test_hostile_limits.py::test_all_printers_escape_names",
        "test_hostile_limits.py::test_local_plot_settings_are_not_read",
        "test_hostile_limits.py::test_plots_show_names_literally",
        "test_hostile_limits.py::test_odd_names_in_repository_are_recorded",
        "test_hostile_limits.py::test_recipe_passes_no_tokenizer_on",
        "test_hostile_limits.py::test_tokenizers_are_tried_first",
        "test_hostile_limits.py::test_panic_is_one_message",
        "test_hostile_limits.py::test_parquet_files_are_no_bombs",
        "test_hostile_limits.py::test_pictures_start_no_program",
        "test_hostile_limits.py::test_tar_headers_are_no_recursion",
        "test_hostile_limits.py::test_json_parts_are_bounded",
        "test_hostile_limits.py::test_slurm_scripts_hold_no_commands",
        "test_hostile_limits.py::test_threads_count_alike",
        "test_hostile_limits.py::test_deep_folders_end_soon",
        "test_hostile_limits.py::test_long_cell_is_one_message",
    ),
}


@pytest.mark.parametrize("name", CLASSES)
def test_attack_classes_have_tests(name: str) -> None:
    folder = Path(__file__).parent
    for test in CLASSES[name]:
        file, _, function = test.partition("::")
        assert re.search(rf"^def {function}\(", (folder / file).read_text(), re.MULTILINE), test


@pytest.mark.unexpected
def test_promises_name_their_tests() -> None:
    guide = (Path(__file__).parent.parent / "docs" / "SECURITY.md").read_text()
    promised, _ = guide.split("## Limits")
    lines = re.split(r"\n- \*\*", promised)[1:]
    assert [line.partition(".")[0] for line in lines if "::test_" not in line] == ["Upstream's source"]
    for file, name in re.findall(r"`(test_\w+\.py)::(\w+)`", promised):
        assert f"\ndef {name}(" in (Path(__file__).parent / file).read_text(), name


@pytest.mark.unexpected
def test_traceback_is_shown_on_request(monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    def divided() -> None:
        raise ZeroDivisionError("integer modulo by zero")

    for asked in (False, True):
        monkeypatch.setenv("LEANIFY_DEBUG", "1" if asked else "")
        code, out, err = run_here("recipes digist", capsys)
        assert (code, out, "Traceback" in err) == (2, "", asked)
        with monkeypatch.context() as patch:
            patch.setattr(cli, "run_command", divided)
            code, out, err = run_here("recipes", capsys)
        assert (code, out, "Traceback" in err) == (2, "", asked)
        assert "unexpected error: ZeroDivisionError: integer modulo by zero" in " ".join(err.split())
        assert "LEANIFY_DEBUG=1" in err


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("redesign vit_tiny --depth 7 --weights nowhere", "nowhere"),
        ("redesign vit_tiny --depth 7 --weights bert", "has no weights"),
        ("condition bert --tokens 0", "--tokens"),
    ],
)
def test_ignored_options_are_refused(line: str, words: str, capsys: Any) -> None:
    code, out, err = run_here(line, capsys)
    assert (code, out) == (2, "")
    assert words in err


@pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() != 0, reason="only root mounts a disk")
def test_read_only_disk_is_one_message(tmp_path: Path, capsys: Any, monkeypatch: Any) -> None:
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
            code, _, err = run_here(line, capsys)
            assert code in (1, 2), err
            assert "Traceback" not in err
            assert str(disk) in "".join(err.split())
    finally:
        subprocess.run(["umount", "-l", str(disk)], check=True)
