"""The stage `att_enrichment` on ingested captures: tables, evidence and headline numbers."""

from pathlib import Path

import polars as pl
import pytest

from aaco_pipeline.assets.stage import Outcome
from aaco_pipeline.capture.face import Facts
from aaco_pipeline.lake.store import TraceLake
from aaco_pipeline.lake.validation import empty_table
from aaco_pipeline.report.kernel.instructions import listings
from aaco_pipeline.resources.confinement.client import ConfinedCapture
from tests.places import SHARED
from tests.sessions import replayed, said, taken_in

TRACED = SHARED / "captures/mi300x_att_ck_batched_gemm"
LISTED = SHARED / "captures/mi300_pc_sampling_code_json"
SAMPLED = SHARED / "captures/documentation_csv/pc_sampling_stochastic_debug.csv"
pytestmark = pytest.mark.skipif(not TRACED.is_dir(), reason="the captured thread traces are not at hand (AACO_SHARED)")


def outcome_of(capture: Path, lake: TraceLake) -> Outcome:
    session = taken_in(lake, capture)
    return replayed(lake, session, "att_enrichment")["att_enrichment"]


def test_a_real_thread_trace_gives_stalls_by_reason_and_charges(empty_lake: TraceLake) -> None:
    outcome = outcome_of(TRACED, empty_lake)
    stalls, instructions = outcome.tables["att_stalls"], outcome.tables["att_instructions"]
    of_gemm = stalls.filter(pl.col("dispatch_id") == 1)
    assert of_gemm.get_column("stall_cycles").sum() == 97_792
    assert of_gemm.sort("stall_cycles").row(-1, named=True)["reason"] == "matrix pipe busy"
    assert stalls.get_column("stall_cycles").sum() == instructions.get_column("stall_cycles").sum() == 184_440
    charged = instructions.group_by("dispatch_id").agg(pl.col("charged_stall_cycles").sum()).sort("dispatch_id")
    assert charged.rows() == [(0, 10_596), (1, 27_428)]
    assert outcome.headline == {
        "instructions": 3537,
        "stall_cycles": 184_440,
        "stalled_samples": None,
        "largest_stall_reason": "vector memory store issue",
        "traced_wavefronts": 8,
        "traced_ratio": 8 / 68,
    }
    told = said(outcome)
    status, reason = told["traced wavefronts of engine 0 in ui_output_agent_5600_dispatch_2"]
    assert status == "partial"
    assert reason == (
        "4 wavefronts of compute unit 1 of shader engine 0, of 32 that began on the engine's 8 compute units in use; "
        "other engines were not traced, and no figure is scaled up to the whole grid"
    )
    assert told["reasons of idle cycles"][0] == "absent"
    assert told["stall reasons"] == (
        "partial",
        "192 of 184440 stalled cycles are of waits of which the trace does not say what they waited for",
    )
    (gemm, fill) = sorted(
        listings(instructions, stalls, empty_table("kernels")), key=lambda one: one.lost, reverse=True
    )
    assert (gemm.lost, fill.lost) == (97_792, 86_648)


def test_a_real_sampled_listing_gives_samples_and_no_cycles(empty_lake: TraceLake) -> None:
    outcome = outcome_of(LISTED, empty_lake)
    stalls = outcome.tables["att_stalls"]
    assert stalls.get_column("samples").sum() == 3384 == outcome.headline["stalled_samples"]
    assert stalls.get_column("stall_cycles").null_count() == stalls.height
    assert outcome.headline["stall_cycles"] is None and outcome.headline["traced_ratio"] is None
    assert outcome.headline["largest_stall_reason"] == "execution unit busy"
    assert outcome.tables["att_instructions"].get_column("charged_stall_cycles").null_count() == 1634
    assert "reasons of idle cycles" not in said(outcome)


def test_real_samples_are_summed_by_instruction(empty_lake: TraceLake) -> None:
    outcome = outcome_of(SAMPLED, empty_lake)
    instructions = outcome.tables["att_instructions"]
    assert instructions.get_column("samples").sum() == 97
    assert instructions.filter(pl.col("instruction_class") == "wait").get_column("samples").sum() >= 71
    assert outcome.tables["att_stalls"].get_column("samples").sum() == 77
    assert outcome.headline["largest_stall_reason"] == "wait counter"


@pytest.mark.parametrize(("asked", "is_told"), [("another", True), ("__amd_rocclr_fillBufferAligned", False)])
def test_a_trace_of_another_kernel_than_the_one_asked_for_is_said(
    asked: str, is_told: bool, empty_lake: TraceLake, monkeypatch: pytest.MonkeyPatch
) -> None:
    asks = Facts("profiled", "compiler", ran_here=True, asked_to_trace=(asked,))
    monkeypatch.setattr(ConfinedCapture, "facts", lambda capture: asks)
    told = said(outcome_of(TRACED, empty_lake))
    assert told.get("kernel to trace", ("nothing",))[0] == ("absent" if is_told else "nothing")
