"""Program-counter samples by instruction and by reason: a real sampled listing, real samples, and small ones."""

from typing import Any

import polars as pl
import pytest

from aaco_pipeline.analysis.instructions import enrichment as instruction_samples
from aaco_pipeline.formats import rocprofv3_csv, thread_trace
from aaco_pipeline.formats.thread_trace import files as thread_trace_files
from aaco_pipeline.lake.validation import empty_table, to_contract
from tests.places import SHARED

LISTED = SHARED / "captures/mi300_pc_sampling_code_json"
STOCHASTIC = SHARED / "captures/documentation_csv/pc_sampling_stochastic_debug.csv"
TRAPPED = SHARED / "captures/documentation_csv/pc_sampling_host_trap.csv"
real = pytest.mark.skipif(not LISTED.is_dir(), reason="the captured samples are not at hand (AACO_SHARED)")
NO_DISPATCHES = empty_table("dispatches")


def samples(*rows: dict[str, Any]) -> pl.DataFrame:
    columns = ("dispatch_id", "address", "instruction", "wave_issued", "stall_reason")
    given = {name: [row.get(name) for row in rows] for name in columns}
    return to_contract("pc_samples", pl.DataFrame({"sample_id": range(len(rows)), **given}))


@real
def test_reasons_of_a_real_sampled_listing_are_its_stalled_samples() -> None:
    stalls = thread_trace.read(LISTED).details["sampled_stalls"]
    keyed = stalls.with_columns(kernel_id=pl.lit(4, pl.Int32), dispatch_id=pl.lit(None, pl.Int32))
    keyed = keyed.with_columns(capture=pl.lit("a trace"))
    found = instruction_samples.sampled_stalls(instruction_samples.listed_reasons(keyed))
    assert found.schema == empty_table("att_stalls").schema
    assert found.get_column("samples").sum() == 3384 == stalls.get_column("stalled").sum()
    assert found.get_column("stall_cycles").null_count() == found.height == 7
    assert found.row(0) == (4, None, "execution unit busy", None, 777, 777 / 3384, "a trace")


@real
def test_of_real_stochastic_samples_only_those_that_issued_nothing_have_a_reason() -> None:
    taken = rocprofv3_csv.read(STOCHASTIC).tables["pc_samples"]
    reasons = instruction_samples.sample_reasons(taken, NO_DISPATCHES)
    assert dict(reasons.select("reason", "samples").iter_rows()) == {
        "wait counter": 71,
        "result of an ALU instruction not ready": 5,
        "instruction fetch": 1,
    }
    found = instruction_samples.sampled_instructions(taken, NO_DISPATCHES)
    assert found.get_column("samples").sum() == taken.height == 97  # those that issued count as well


@real
def test_real_host_trap_samples_have_no_reason() -> None:
    taken = rocprofv3_csv.read(TRAPPED).tables["pc_samples"]
    assert instruction_samples.sample_reasons(taken, NO_DISPATCHES).is_empty()
    assert instruction_samples.sampled_instructions(taken, NO_DISPATCHES).get_column("samples").sum() == 79


def test_a_reason_left_over_in_a_sample_that_issued_does_not_count() -> None:
    taken = samples(
        {"wave_issued": True, "stall_reason": "waitcnt"},
        {"wave_issued": False, "stall_reason": "waitcnt"},
        {"wave_issued": False, "stall_reason": None},
        {"wave_issued": None, "stall_reason": "waitcnt"},
        {"wave_issued": False, "stall_reason": "a reason to come"},
    )
    reasons = instruction_samples.sample_reasons(taken, NO_DISPATCHES)
    assert dict(reasons.select("reason", "samples").iter_rows()) == {
        "wait counter": 1,
        "no reason given": 1,
        "a reason to come": 1,
    }


def test_samples_of_several_dispatches_of_a_kernel_are_summed_and_name_none_of_them() -> None:
    dispatches = pl.DataFrame(
        {"dispatch_id": [0, 1, 2], "kernel_id": [7, 7, 8]},
        schema_overrides=dict.fromkeys(("dispatch_id", "kernel_id"), pl.Int32),
    )
    taken = samples(
        {"dispatch_id": 0, "address": 16},
        {"dispatch_id": 1, "address": 16},
        {"dispatch_id": 2, "address": 16},
        {"dispatch_id": None, "address": 16},
    )
    found = instruction_samples.sampled_instructions(taken, dispatches).select("kernel_id", "dispatch_id", "samples")
    assert found.rows() == [(7, None, 2), (8, 2, 1), (None, None, 1)]


def test_every_reason_that_the_readers_know_has_words() -> None:
    assert set(instruction_samples.REASONS) == set(thread_trace_files.STALL_REASONS)
    assert len(set(instruction_samples.REASONS.values())) == len(instruction_samples.REASONS)


def test_no_samples_give_no_rows() -> None:
    none = empty_table("pc_samples")
    assert instruction_samples.sampled_instructions(none, NO_DISPATCHES).is_empty()
    found = instruction_samples.sampled_stalls(instruction_samples.sample_reasons(none, NO_DISPATCHES))
    assert found.schema == empty_table("att_stalls").schema
