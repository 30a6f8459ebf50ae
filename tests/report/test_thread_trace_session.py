"""Sessions of thread traces, from the capture to the command's answer: whose stalls they are, and by which names."""

import io
import shutil
from pathlib import Path
from typing import Final

import pytest

from aaco_pipeline.capture.discovery import discover_runs
from aaco_pipeline.lake.store import TraceLake
from aaco_pipeline.report.document.kernel import kernel_document
from aaco_pipeline.report.document.session import session_summary
from aaco_pipeline.report.terminal.kernel import print_kernel
from aaco_pipeline.report.terminal.session import print_session
from aaco_pipeline.report.words.session import answer
from tests.places import SHARED
from tests.sessions import replayed, taken_in

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
