"""A thread trace belongs to the dispatch with its number and its kernel's name, and to no other."""

import shutil
from pathlib import Path

import polars as pl
import pytest

from aaco_pipeline.capture.discovery import discover_runs
from aaco_pipeline.capture.merging import NamedReading, merge_parts
from aaco_pipeline.capture.merging.parts import matched_instructions
from aaco_pipeline.formats import thread_trace
from aaco_pipeline.formats.capture_tables import CaptureTables, Limits
from aaco_pipeline.formats.thread_trace.files import TRACED_DISPATCH_SCHEMA
from aaco_pipeline.lake.validation import to_contract
from tests.places import SHARED

GEMM = SHARED / "captures/mi300x_att_ck_batched_gemm"
real = pytest.mark.skipif(not GEMM.is_dir(), reason="the captured thread traces are not at hand (AACO_SHARED)")
SYMBOL, SPELLED = "_Z5scaleIfEvPT_", "void scale<float>(float*)"


def traced(number: int | None = 3, symbols: list[str] | None = None, spelled: list[str] | None = None) -> CaptureTables:
    row = {
        "source_dispatch_id": [number],
        "kernel_names": [[SYMBOL] if symbols is None else symbols],
        "kernel_display_names": [[SPELLED] if spelled is None else spelled],
    }
    found = pl.DataFrame(row, schema_overrides=TRACED_DISPATCH_SCHEMA)
    instructions = to_contract(
        "att_instructions", pl.DataFrame({"line": [1, 2], "instruction": ["s_nop 0", "s_endpgm"]})
    )
    return CaptureTables({"att_instructions": instructions}, (), {"traced_dispatch": found})


def matched(
    reading: CaptureTables, *dispatches: tuple[int, str | None]
) -> tuple[tuple[int | None, int | None], str | None]:
    """The dispatch and kernel that were found, and why none was. Each given dispatch has a number and a name."""
    keys = pl.DataFrame(
        [(at, number, name) for at, (number, name) in enumerate(dispatches)],
        schema={"dispatch_id": pl.Int32, "source_dispatch_id": pl.UInt64, "name": pl.String},
        orient="row",
    )
    table = keys.select("dispatch_id", kernel_id=pl.col("dispatch_id") + 40)
    found, details, evidence = matched_instructions([("a trace", reading)], keys, table)
    assert details["instruction_parts"].get_column("part").to_list() == ["a trace"] * found.height
    (pair,) = found.select("dispatch_id", "kernel_id").unique().rows()
    assert all(item.status == "absent" and item.item == "dispatch that a trace traced" for item in evidence)
    return pair, evidence[0].reason if evidence else None


@pytest.mark.parametrize(
    "name", [SYMBOL, SPELLED, f"{SYMBOL}.kd", f"{SPELLED} [clone .kd]", "void scale< float >( float * )"]
)
def test_number_and_name_make_a_match_however_the_tool_spells_the_name(name: str) -> None:
    assert matched(traced(), (2, name), (3, name), (4, name)) == ((1, 41), None)


def test_a_wrong_name_is_refused_though_the_number_fits() -> None:
    pair, reason = matched(traced(), (2, SPELLED), (3, "void copy<float>(float*)"))
    assert pair == (None, None)
    assert reason == f"dispatch 3 of the base trace is of 'void copy<float>(float*)', and the trace is of '{SPELLED}'"


def test_a_wrong_number_is_refused_though_the_name_fits() -> None:
    assert matched(traced(5), (3, SPELLED)) == ((None, None), "the base trace has no dispatch of number 5")


def test_of_two_processes_dispatches_the_name_decides_and_two_alike_are_refused() -> None:
    assert matched(traced(), (3, "copy"), (3, SPELLED)) == ((1, 41), None)
    pair, reason = matched(traced(), (3, SPELLED), (3, SYMBOL))
    assert pair == (None, None) and reason is not None and reason.startswith("the base trace has 2 dispatches")


def test_a_trace_without_a_name_or_a_number_matches_nothing() -> None:
    pair, reason = matched(traced(symbols=[], spelled=[]), (3, SPELLED))
    assert pair == (None, None) and reason is not None and "names no kernel" in reason
    pair, reason = matched(traced(None), (3, SPELLED))
    assert pair == (None, None) and reason == "the thread trace does not say which dispatch it is of"


def test_a_kernel_without_a_name_is_no_match_and_long_names_are_cut() -> None:
    pair, reason = matched(traced(spelled=["x" * 5000]), (3, None))
    assert pair == (None, None)
    assert reason is not None and "a kernel without a name" in reason and len(reason) < 250


@real
def test_a_real_trace_of_a_kernel_that_is_called_otherwise_keeps_no_dispatch(tmp_path: Path) -> None:
    """The second dispatch's listing is renamed; the first one's still matches."""
    folder = tmp_path / "run"
    shutil.copytree(GEMM, folder)
    for path in (folder / "ui_output_agent_5600_dispatch_2", *(folder / "ui_output_agent_5600_dispatch_2").iterdir()):
        path.chmod(0o755)
    for name in ("code.json", "occupancy.json"):
        path = folder / "ui_output_agent_5600_dispatch_2" / name
        path.write_text(path.read_text().replace("kentry", "kentrx"))
    (run,) = discover_runs(folder).runs
    assembled = merge_parts([NamedReading(part.name, part.read(Limits())) for part in run.parts])
    found = assembled.tables["att_instructions"].group_by("dispatch_id", "kernel_id", "capture").len().sort("len")
    new = assembled.tables["kernels"].filter(pl.col("symbol").str.contains("kentrx")).item(0, "kernel_id")
    names = [f"ui_output_agent_5600_dispatch_{number}" for number in (1, 2)]
    assert found.rows() == [(0, 0, names[0], 281), (None, new, names[1], 3256)]
    (said,) = [item for item in assembled.evidence if item.item.startswith("dispatch that ")]
    assert said.status == "absent" and "dispatch 2 of the base trace is of 'void ck_tile::kentry<1" in str(said.reason)


@real
def test_the_database_of_the_pass_that_was_traced_does_not_give_the_dispatches_a_second_time() -> None:
    """A session's passes: one for times, and one, here the same files, in which the thread trace was taken."""
    (run,) = discover_runs(GEMM).runs
    database, first, second = ((part.name, part.read(Limits())) for part in run.parts)
    again = [NamedReading(f"pass_2/{name}", reading) for name, reading in (database, first, second)]
    assembled = merge_parts([NamedReading(f"pass_1/{database[0]}", database[1]), *again])
    assert assembled.tables["dispatches"].height == 151
    found = assembled.tables["att_instructions"].select("dispatch_id", "kernel_id").unique().sort("dispatch_id")
    assert found.rows() == [(0, 0), (1, 1)]
    (said,) = [item for item in assembled.evidence if item.item == "times of thread trace passes"]
    assert (said.status, said.rows) == ("present", 1)
    alone = merge_parts(again)
    assert alone.tables["dispatches"].height == 151
    assert alone.tables["att_instructions"].get_column("kernel_id").null_count() == 0


@real
def test_what_a_real_trace_recorded_of_its_waits_comes_along() -> None:
    folder = GEMM / "ui_output_agent_5600_dispatch_2"
    reading = thread_trace.read(folder)
    keys = pl.DataFrame(schema={"dispatch_id": pl.Int32, "source_dispatch_id": pl.UInt64, "name": pl.String})
    _, details, _ = matched_instructions([("a", reading), ("b", reading)], keys, reading.tables["att_instructions"])
    assert details["waves"].get_column("part").to_list() == ["a"] * 4 + ["b"] * 4
    assert details["wait_dependencies"].height == 2 * 1688
    # 416 waits for counters and 36 s_nop; the other instructions' executions are not carried.
    assert details["wait_executions"].height == 2 * 452
    assert details["wave_starts"].filter(pl.col("part") == "a").get_column("waves").sum() == 32


def test_without_thread_traces_there_is_nothing() -> None:
    empty = CaptureTables({}, (), {})
    found, details, evidence = matched_instructions([("a", empty)], pl.DataFrame(), pl.DataFrame())
    assert (found.height, details, evidence) == (0, {}, [])
