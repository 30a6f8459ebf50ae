"""A session's document: every part from the statement shown for it, and what is missing said.

Sessions of thread traces, from the capture to the command's answer: whose stalls they are, and by which names.
"""

import io
import json
import shutil
from pathlib import Path
from typing import Final

import pytest

from aaco_pipeline.capture.discovery import discover_runs
from aaco_pipeline.lake.sql import select_rows
from aaco_pipeline.lake.store import TraceLake
from aaco_pipeline.report.kernel.document import kernel_document
from aaco_pipeline.report.kernel.screen import print_kernel
from aaco_pipeline.report.session.document import session_document, session_summary
from aaco_pipeline.report.session.sentences import Document, answer, value
from aaco_pipeline.report.session.view import print_session
from tests.places import SHARED
from tests.report.full_session import MODEL, publish_session
from tests.report.made_up import SESSION, rows_of
from tests.sessions import replayed, taken_in


def test_document_has_every_part_and_is_json(document: Document) -> None:
    assert json.loads(json.dumps(document, allow_nan=False)) == document
    parts = ["metrics", "timeline", "top_kernels", "missing", "iterations", "kernels", "operators", "model_operators"]
    parts += ["system_samples", "gpu_samples", "devices", "environment", "clock_domains", "evidence", "moments"]
    parts += ["bottleneck", "optimization_priority", "limits", "ceilings", "instructions", "stall_reasons"]
    assert [name for name in parts if not document[name]] == []
    assert document["unpublished_stages"] == []
    assert document["started_at"] == "2026-01-02T03:04:05+00:00"
    assert document["model_name"] == MODEL


def test_summary_is_the_head_of_the_document(full: TraceLake, document: Document) -> None:
    summary = session_summary(full, SESSION)
    assert {"metrics", "timeline", "top_kernels", "missing", "disk_bytes"} <= summary.keys()
    assert {name: document[name] for name in summary} == summary


def test_every_part_comes_from_the_statement_that_is_shown_for_it(full: TraceLake, document: Document) -> None:
    for name, statement in document["statements"].items():
        result = select_rows(full, statement)
        part = document.get(name)
        if part is not None:
            assert (name, [dict(zip(result.columns, row, strict=True)) for row in result.rows]) == (name, part)


def test_document_opens_no_other_session(full: TraceLake, tmp_path: Path) -> None:
    shutil.copytree(full.path, tmp_path / "lake")
    lake = TraceLake(tmp_path / "lake")
    other = "20260102T030405Z-ffffffff"
    entries = lake.publish(other, "capture", {"sessions": rows_of("sessions", [{"source_kind": "live"}])})
    (lake.path / entries[0].file).write_bytes(b"torn")
    assert session_document(lake, SESSION)["model_name"] == MODEL


def test_moments_are_the_median_the_slowest_and_the_first_measured_iteration(document: Document) -> None:
    traced = [row for row in document["iterations"] if row["pass"] == "trace" and row["phase"] == "measure"]
    median, slowest, first = document["moments"]
    assert [moment["roles"] for moment in document["moments"]] == [["median"], ["slowest"], ["first measured"]]
    assert median["latency_ns"] == value(document, "latency_p50", "trace")
    assert slowest["latency_ns"] == max(row["latency_ns"] for row in traced)
    assert first["iteration"] == 5


def test_a_kernels_dispatches_on_its_page_are_those_of_its_statistics(document: Document) -> None:
    """Warm-up is in neither."""
    counts = {row["kernel_id"]: row["dispatch_count"] for row in document["kernels"]}
    assert {row["kernel_id"]: row["dispatch_count"] for row in document["kernel_durations"]} == counts
    drawn = [sum(one["dispatches"] for one in row["stretches"]) for row in document["kernel_durations"]]
    assert drawn == [*counts.values()]


def test_an_iteration_with_several_roles_is_held_once(tmp_path: Path) -> None:
    lake = TraceLake(tmp_path / "lake")
    publish_session(lake, iterations=1)
    (moment,) = session_document(lake, SESSION)["moments"]
    assert moment["roles"] == ["median", "slowest", "first measured"]


def test_what_no_stage_published_is_an_empty_list_and_is_said(bare: TraceLake) -> None:
    document = session_document(bare, SESSION)
    assert [document[name] for name in ("model_operators", "system_samples", "gpu_samples")] == [[], [], []]
    assert [row["stage"] for row in document["unpublished_stages"]] == [
        "completeness",
        "model_graph",
        "roofline",
        "att_enrichment",
        "classification",
        "telemetry",
    ]


def test_time_that_no_operator_explains_is_a_row_of_its_own(document: Document) -> None:
    unattributed = [row for row in document["model_operators"] if row["match"] == "unattributed"]
    assert [(row["node_id"], row["total_ns"]) for row in unattributed] == [(None, 60_000)]
    assert sum(row["total_ns"] or 0 for row in document["model_operators"]) == sum(
        row["total_ns"] for row in document["kernels"]
    )
    unused = [row for row in document["model_operators"] if row["match"] is None]
    assert [(row["name"], row["total_ns"], row["flops"]) for row in unused] == [("node 2", None, 2e9)]


def test_a_figure_that_is_not_finite_is_null(tmp_path: Path) -> None:
    lake = TraceLake(tmp_path / "lake")
    endless = {"metric": "profiler_distortion", "phase": "measure", "value": float("inf"), "unit": "ratio"}
    lake.publish(SESSION, "inference_run", {"session_metrics": rows_of("session_metrics", [endless])})
    assert session_document(lake, SESSION)["metrics"][0]["value"] is None


GEMM: Final = SHARED / "captures/mi300x_att_ck_batched_gemm"
FILL: Final = "__amd_rocclr_fillBufferAligned"
GEMM_SYMBOL: Final = "_ZN7ck_tile6kentryILi1ENS_17BatchedGemmKernel"
real = pytest.mark.skipif(not GEMM.is_dir(), reason="the captured thread traces are not at hand (AACO_SHARED)")


@real
def test_a_session_with_thread_traces_opens_by_the_names_of_both_kernels(tmp_path: Path) -> None:
    lake = TraceLake(tmp_path / "lake")
    session = taken_in(lake, GEMM)
    replayed(lake, session, "kernel_trace", "att_enrichment")
    for wanted, trace, count in ((FILL, 1, 281), (f"{FILL}.kd", 1, 281), (GEMM_SYMBOL, 2, 3256), ("kentry", 2, 3256)):
        document = kernel_document(lake, session, wanted)
        listed = document["instructions"]
        assert len(listed) == count, wanted
        assert {row["capture"] for row in listed} == {f"ui_output_agent_5600_dispatch_{trace}"}
        assert {row["source_dispatch_id"] for row in listed} == {trace}
        assert sum(row["stall_cycles"] for row in document["stall_reasons"]) == sum(
            row["stall_cycles"] for row in listed
        )


@real
def test_a_session_of_a_thread_trace_alone_answers_with_its_stalls(tmp_path: Path) -> None:
    lake = TraceLake(tmp_path / "lake")
    session = taken_in(lake, GEMM / "ui_output_agent_5600_dispatch_2")
    replayed(lake, session)
    document = session_summary(lake, session)
    said = answer(document)
    assert said.startswith(
        "Of 97,792 stalled cycles of kernel kentry [BatchedGemmKernel], 27.0 % matrix pipe busy, "
    ), said
    shown = io.StringIO()
    print_session(document, shown)
    assert "What the wavefronts stalled for" in shown.getvalue()
    assert "waiting for vector memory loads" in shown.getvalue()
    print_kernel(kernel_document(lake, session, GEMM_SYMBOL), shown)
    assert "97,792 stalled cycles of the traced wavefronts" in shown.getvalue()


@real
def test_traces_of_before_and_after_are_sessions_each_and_never_added_up(tmp_path: Path) -> None:
    """The same kernel on two agents: what differs is theirs, and no figure is the sum of both."""
    both = tmp_path / "both"
    for agent in (5600, 5601):
        shutil.copytree(GEMM / "ui_output_agent_5600_dispatch_2", both / f"ui_output_agent_{agent}_dispatch_2")
    runs = discover_runs(both).runs
    assert [run.parts[0].name for run in runs] == [f"ui_output_agent_{agent}_dispatch_2" for agent in (5600, 5601)]
    lake = TraceLake(tmp_path / "lake")
    for run in runs:
        session = taken_in(lake, both / run.parts[0].name)
        replayed(lake, session, "kernel_trace", "att_enrichment")
        stalls = lake.read("att_stalls", session)
        assert (stalls.get_column("stall_cycles").sum(), stalls.get_column("capture").unique().to_list()) == (
            97_792,
            [run.parts[0].name],
        )


@real
def test_two_traces_of_one_kernel_in_one_session_keep_their_own_stalls(tmp_path: Path) -> None:
    """Their raw files say that one process made both."""
    both = tmp_path / "both"
    for agent in (5600, 5601):
        shutil.copytree(GEMM / "ui_output_agent_5600_dispatch_2", both / f"ui_output_agent_{agent}_dispatch_2")
        (both / f"28_{agent}_shader_engine_0_2.att").write_bytes(b"raw")
    lake = TraceLake(tmp_path / "lake")
    session = taken_in(lake, both)
    replayed(lake, session, "kernel_trace", "att_enrichment")
    of_trace = lake.read("att_stalls", session).group_by("capture").agg(cycles="stall_cycles").sort("capture")
    assert [sum(cycles) for cycles in of_trace.get_column("cycles")] == [97_792] * 2
    assert lake.read("kernels", session).height == 1
    document = session_summary(lake, session)
    assert {row["trace_cycles"] for row in document["stalls"]} == {97_792}
