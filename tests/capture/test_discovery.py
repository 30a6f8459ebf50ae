"""Recognition of a folder's files, and of those that are one run: generated folders and the real ones."""

import errno
import gzip
import os
import shutil
from pathlib import Path
from typing import Any

import pytest

from aaco_pipeline.capture.discovery import discover_runs, the_run
from aaco_pipeline.errors import CaptureError
from aaco_pipeline.formats.parsing import regular_files
from tests.formats.examples import EXAMPLES
from tests.formats.kineto.test_ranks import written
from tests.places import SHARED

needs_shared = pytest.mark.skipif(not (SHARED / "captures").is_dir(), reason="the shared captures are not here")
KERNELS = (
    '"Kind","Agent_Id","Queue_Id","Stream_Id","Thread_Id","Dispatch_Id","Kernel_Id","Kernel_Name","Correlation_Id",'
    '"Start_Timestamp","End_Timestamp","LDS_Block_Size","Scratch_Size","VGPR_Count","Accum_VGPR_Count","SGPR_Count",'
    '"Workgroup_Size_X","Workgroup_Size_Y","Workgroup_Size_Z","Grid_Size_X","Grid_Size_Y","Grid_Size_Z"\n'
    '"KERNEL_DISPATCH","Agent 1",1,0,77,1,5,"scale(float*)",3,1000,2000,0,0,8,0,16,64,1,1,640,1,1\n'
)
COUNTERS = (
    '"Correlation_Id","Dispatch_Id","Agent_Id","Queue_Id","Process_Id","Thread_Id","Grid_Size","Kernel_Id",'
    '"Kernel_Name","Workgroup_Size","LDS_Block_Size","Scratch_Size","VGPR_Count","Accum_VGPR_Count","SGPR_Count",'
    '"Counter_Name","Counter_Value","Start_Timestamp","End_Timestamp"\n'
    '3,1,"Agent 1",1,9,77,640,5,"scale(float*)",64,0,0,8,0,16,"SQ_WAVES",10.000000,500000,502500\n'
)


def folder_of(path: Path, files: dict[str, str]) -> Path:
    for name, content in files.items():
        (path / name).parent.mkdir(parents=True, exist_ok=True)
        (path / name).write_text(content)
    return path


def test_a_single_file_is_a_run(tmp_path: Path) -> None:
    folder_of(tmp_path, {"out_kernel_trace.csv": KERNELS, "notes.txt": "hello"})
    found = discover_runs(tmp_path / "out_kernel_trace.csv")
    (run,) = found.runs
    assert [part.format for part in run.parts] == ["rocprofv3-csv"]
    assert not found.unread


def test_counter_passes_belong_to_the_run_beside_them(tmp_path: Path) -> None:
    passes = {f"pass_{number}/out_counter_collection.csv": COUNTERS for number in (1, 2)}
    folder_of(tmp_path, {"out_kernel_trace.csv": KERNELS, **passes})
    (run,) = discover_runs(tmp_path).runs
    assert run.folder == tmp_path
    assert len(run.parts) == 3


def test_two_traces_of_different_prefixes_are_two_runs_and_counters_go_to_the_nearer(tmp_path: Path) -> None:
    traces = {f"{name}_kernel_trace.csv": KERNELS for name in ("prefill", "decode")}
    folder_of(tmp_path, {**traces, "decode_waves_counter_collection.csv": COUNTERS})
    runs = {run.parts[0].name: [part.name for part in run.parts] for run in discover_runs(tmp_path).runs}
    assert runs == {"decode": ["decode", "decode_waves"], "prefill": ["prefill"]}


def test_folders_of_their_own_are_runs_of_their_own(tmp_path: Path) -> None:
    folder_of(tmp_path, {"a/x_kernel_trace.csv": KERNELS, "b/deeper/x_kernel_trace.csv": KERNELS})
    assert [run.folder for run in discover_runs(tmp_path).runs] == [tmp_path / "a", tmp_path / "b/deeper"]


def test_what_is_not_recognized_is_listed_with_a_reason(tmp_path: Path) -> None:
    folder_of(
        tmp_path,
        {"x_kernel_trace.csv": KERNELS, "photo.png": "", "28_1_shader_engine_0_1.att": "raw", "a.nsys-rep": ""},
    )
    (run,) = discover_runs(tmp_path).runs
    reasons = {one.path.name: one.reason for one in run.unread}
    assert reasons["photo.png"] == "not recognized as any known capture format"
    assert "decoder is not open" in reasons["28_1_shader_engine_0_1.att"]
    assert "nsys export --type sqlite" in reasons["a.nsys-rep"]


def test_links_are_not_followed(tmp_path: Path) -> None:
    folder_of(tmp_path / "outside", {"x_kernel_trace.csv": KERNELS})
    folder_of(tmp_path / "capture", {"y_kernel_trace.csv": KERNELS})
    (tmp_path / "capture/link_kernel_trace.csv").symlink_to(tmp_path / "outside/x_kernel_trace.csv")
    (tmp_path / "capture/folder").symlink_to(tmp_path / "outside")
    (run,) = discover_runs(tmp_path / "capture").runs
    assert [path.name for part in run.parts for path in part.files] == ["y_kernel_trace.csv"]
    assert {one.path.name for one in run.unread if "link" in one.reason} == {"link_kernel_trace.csv", "folder"}


def test_a_file_that_nobody_may_open_is_told_as_such(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder_of(tmp_path, {"out_kernel_trace.csv": KERNELS, "closed_kernel_trace.csv": KERNELS})
    really = os.open

    def opened(path: str, *arguments: Any, **settings: Any) -> int:
        if path == "closed_kernel_trace.csv":
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), path)
        return really(path, *arguments, **settings)

    monkeypatch.setattr(os, "open", opened)
    (run,) = discover_runs(tmp_path).runs
    assert [part.files for part in run.parts] == [(tmp_path / "out_kernel_trace.csv",)]
    (closed,) = run.unread
    assert closed.reason == "cannot be read: Permission denied; check its permissions"


def test_hidden_files_are_passed_over(tmp_path: Path) -> None:
    folder_of(tmp_path, {"x_kernel_trace.csv": KERNELS, ".done": "", ".cache": ""})
    found = discover_runs(tmp_path)
    assert not found.unread
    assert not found.runs[0].unread


def test_an_empty_folder_has_no_run_and_a_missing_one_is_refused(tmp_path: Path) -> None:
    assert discover_runs(tmp_path).runs == ()
    with pytest.raises(CaptureError, match="no such file or folder"):
        discover_runs(tmp_path / "none")


def test_a_folder_without_end_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(regular_files, "MOST_FILES", 3)
    folder_of(tmp_path, {f"{i}.txt": "" for i in range(5)})
    with pytest.raises(CaptureError, match="more than 3 files; name the folder of one capture"):
        discover_runs(tmp_path)
    monkeypatch.setattr(regular_files, "DEEPEST_FOLDER", 2)
    (tmp_path / "deep/er/still/more").mkdir(parents=True)
    for entry in tmp_path.glob("*.txt"):
        entry.unlink()
    with pytest.raises(CaptureError, match="nested deeper than 2 folders"):
        discover_runs(tmp_path)


@needs_shared
def test_an_att_capture_is_one_run_of_a_database_and_its_thread_traces() -> None:
    (run,) = discover_runs(SHARED / "captures/mi300x_att_ck_batched_gemm").runs
    assert sorted(part.format for part in run.parts) == ["rocpd", "rocprofv3-thread-trace", "rocprofv3-thread-trace"]
    assert {one.path.suffix for one in run.unread} == {".att", ".out", ".csv"}


@needs_shared
def test_every_capture_folder_is_the_runs_it_holds() -> None:
    found = discover_runs(SHARED / "captures")
    counts: dict[str, int] = {}
    for run in found.runs:
        top = run.folder.relative_to(SHARED / "captures").parts[0]
        counts[top] = counts.get(top, 0) + 1
    assert counts == {
        "documentation_csv": 8,  # samples of as many tables, whose names say nothing of one another
        "gfx1151_rocprofv3_csv": 1,
        "gfx1250_rocpd": 1,
        "mi210_kineto_gpu_only": 1,
        "mi300_pc_sampling_code_json": 1,
        "mi300x_att_ck_batched_gemm": 1,
        "mi300x_rocpd_pmc_passes": 1,
        "mi350x_rocpd_43915_dispatches": 1,
        "mi350x_rocprofv3_json": 1,
        "rpd_not_rocprofv3": 1,
    }


@needs_shared
@pytest.mark.parametrize(("folder", "count"), [("kineto", 6), ("gpu_sessions/traces", 9), ("counters", 14)])
def test_unrelated_captures_in_one_folder_are_runs_each(folder: str, count: int) -> None:
    assert len(discover_runs(SHARED / folder).runs) == count


@needs_shared
def test_the_same_run_in_two_formats_is_read_from_the_richer(tmp_path: Path) -> None:
    source = SHARED / "captures"
    shutil.copy(source / "mi350x_rocprofv3_json/908_results.json.gz", tmp_path / "908_results.json.gz")
    database = gzip.decompress((source / "mi350x_rocpd_43915_dispatches/derived_results.db.gz").read_bytes())
    (tmp_path / "908_results.db").write_bytes(database)
    (tmp_path / "908_kernel_trace.csv").write_text(KERNELS)
    (run,) = discover_runs(tmp_path).runs
    assert [part.format for part in run.parts] == ["rocpd"]
    reasons = {one.path.name: one.reason for one in run.unread}
    assert "the same run as 908_results.db in another format" in reasons["908_results.json.gz"]
    assert set(reasons) == {"908_results.json.gz", "908_kernel_trace.csv"}


def test_raw_thread_traces_are_of_the_run_whose_process_they_name_or_of_none(tmp_path: Path) -> None:
    names = [f"{pid}_5600_shader_engine_0_1.att" for pid in (41, 42, 77)]
    tables = {f"{pid}_kernel_trace.csv": KERNELS for pid in (41, 42)}
    folder_of(tmp_path, {**tables, **dict.fromkeys((*names, "42_code_object_id_1.out"), "raw"), "notes.txt": ""})
    found = discover_runs(tmp_path)
    held = [sorted(one.path.name for one in run.unread) for run in found.runs]
    assert held == [[names[0], "notes.txt"], [names[1], "42_code_object_id_1.out"]]
    (left,) = found.unread
    assert left.path.name == names[2]
    assert "with no run: none of the folder's 2 are of its process 77" in left.reason


def kineto(folder: Path, name: str) -> Path:
    path = EXAMPLES["kineto"](folder)
    return path.rename(folder / name)


def test_a_series_is_of_the_one_trace_beside_it_and_its_own_run_beside_two(tmp_path: Path) -> None:
    kineto(tmp_path, "a.json")
    EXAMPLES["prometheus"](tmp_path)
    (run,) = discover_runs(tmp_path).runs
    assert sorted(part.format for part in run.parts) == ["gpu-series", "kineto"]
    assert the_run(tmp_path, "").folder == tmp_path
    kineto(tmp_path, "b.json")
    assert [len(run.parts) for run in discover_runs(tmp_path).runs] == [1, 1, 1]


def test_a_series_beside_a_job_is_of_the_job(tmp_path: Path) -> None:
    for rank in range(2):
        written(tmp_path / f"rank{rank}.json", rank)
    EXAMPLES["prometheus"](tmp_path)
    (run,) = discover_runs(tmp_path).runs
    assert sorted(part.format for part in run.parts) == ["gpu-series", "kineto", "kineto"]


def test_scrapes_of_a_folder_are_one_part(tmp_path: Path) -> None:
    EXAMPLES["rocpd"](tmp_path)
    scrape = EXAMPLES["prometheus"](tmp_path).read_text()
    for number in range(3):
        (tmp_path / f"scrape_{number}.prom").write_text(scrape)
    (run,) = discover_runs(tmp_path).runs
    assert sorted(len(part.files) for part in run.parts) == [1, 4]
