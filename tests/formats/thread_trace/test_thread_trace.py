"""Decoded thread traces and instruction listings from program-counter sampling: real ones, and small ones made here."""

import json
import shutil
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from aaco_pipeline.errors import CaptureError
from aaco_pipeline.formats import thread_trace
from aaco_pipeline.formats.capture_tables import CaptureTables, Limits
from aaco_pipeline.formats.thread_trace.reading import aggregated
from aaco_pipeline.hardware.instruction_classes import INSTRUCTION_CLASSES, instruction_class
from aaco_pipeline.lake.evidence import Evidence
from tests.formats.readings import checked, evidence_of, read_or_refused
from tests.places import SHARED

GEMM = SHARED / "captures/mi300x_att_ck_batched_gemm"
SAMPLED = SHARED / "captures/mi300_pc_sampling_code_json"
real = pytest.mark.skipif(not GEMM.is_dir(), reason="the captured thread traces are not at hand (AACO_SHARED)")
CYCLES = ("hits", "latency_cycles", "stall_cycles", "idle_cycles")

NAME = "ui_output_agent_5600_dispatch_3"
WAVE = {
    "name": "SE2",
    "duration": 100,
    "num_insts": 4,
    "num_stitched": 4,
    "wave": {
        "cu": 1,
        "simd": 3,
        "slot": 0,
        "id": 0,
        "begin": 1000,
        "end": 1100,
        # The third begins while the second still runs, and the fourth after the second has ended.
        "instructions": [[1004, 1, 0, 4, 1], [1008, 6, 4, 40, 2], [1020, 2, 0, 4, 3], [1060, 9, 8, 12, 2]],
        "timeline": [[1, 4], [2, 60], [4, 36]],
        "waitcnt": [[2, [[1, 0], [3, 0]]], [3, []]],
    },
}
CODE = [
    ["; kernel", 0, 0, "kernel(int)", 7, 256, 0, 0, 0, 0],
    ["s_load_dword s0, s[0:1], 0x0", 0, 1, "", 7, 256, 1, 4, 0, 4],
    ["v_mfma_f32_4x4x1f32 a[0:3], v0, v1, a[0:3]", 0, 2, "a.cpp:3", 7, 264, 2, 52, 12, 12],
    ["s_add_i32 s0, s0, 1", 0, 3, "", 7, 272, 1, 4, 0, 0],
    ["s_endpgm", 0, 4, "", 7, 2**64 - 4, 0, 0, 0, 0],
]
FILES: dict[str, Any] = {
    "filenames.json": {
        "counter_names": [],
        "gfxip": 9,
        "gfxv": "vega",
        "global_begin_time": 0,
        "version": "3.0.0",
        "wave_filenames": {"2": {"3": {"0": {"0": ["se2_sm3_sl0_wv0.json", 1000, 1100]}}}},
    },
    "code.json": {"code": CODE, "header": "ISA, _, …", "version": "3.0.0"},
    "se2_sm3_sl0_wv0.json": WAVE,
    "occupancy.json": {
        "2": [[990, 1, 3, 0, 1, 5], [995, 2, 0, 0, 1, 0], [1100, 1, 3, 0, 0, 5]],
        "dispatches": {"0": "0 / 0x0", "5": "kernel"},
        "version": "3.0.0",
    },
    "wstates2.json": {"name": "wstates2.json", "state": [1, 0], "time": [1004, 1060]},
    "realtime.json": {"SE2": [[0, 10**14], [2000, 10**14 + 100]], "metadata": {"frequency": 100_000_000}},
    "snapshots.json": {"/": {"src": {"a.cpp": "source_0_a.cpp", "b.h": "../b.h"}}},
    "source_0_a.cpp": "int main() {}",
    "se2_perfcounter.json": {"data": [[1000, 1, 2, 3, 4, 0, 1]]},
}


def folder(tmp_path: Path, *, name: str = NAME, **changed: Any) -> Path:
    """A small traced dispatch; `changed` replaces or (None) drops files by their name without its suffix."""
    path = tmp_path / name
    path.mkdir()
    for file, content in FILES.items():
        given = changed.get(file.split(".")[0], content)
        if given is not None:
            (path / file).write_text(given if isinstance(given, str) else json.dumps(given))
    return path


def reading_of(path: Path, limits: Limits | None = None) -> CaptureTables:
    return checked(thread_trace.read(path, limits))


def rows_of(reading: CaptureTables) -> dict[str, tuple[int, int]]:
    return {item: (rows_in, rows_out) for item, rows_in, rows_out in reading.details["source_rows"].iter_rows()}


# --- Real captures ----------------------------------------------------------------------------------------------------


@real
@pytest.mark.parametrize(
    ("number", "listed", "executed", "states", "waits"), [(1, 281, 10008, 1444, 428), (2, 3256, 7000, 5685, 1688)]
)
def test_a_traced_dispatch_is_read_whole_and_its_sums_follow_from_its_waves(
    number: int, listed: int, executed: int, states: int, waits: int
) -> None:
    reading = reading_of(GEMM / f"ui_output_agent_5600_dispatch_{number}")
    details, evidence = reading.details, evidence_of(reading)
    assert reading.tables["att_instructions"].height == listed
    assert details["waves"].height == 4
    assert details["wave_instructions"].height == executed
    assert details["wave_timeline"].height == states
    assert details["wait_dependencies"].height == waits
    assert all(
        rows_in == rows_out for item, (rows_in, rows_out) in rows_of(reading).items() if "statistics" not in item
    )
    compared = evidence["sums recomputed from the wavefronts"]
    assert (compared.status, compared.rows) == ("present", executed)
    assert str(compared.reason).startswith(f"0 of {listed + 1} rows differ")
    beside = evidence["statistics beside the folder"]
    assert (beside.status, beside.rows) == ("present", listed + 1)
    assert details["traced_dispatch"].select("agent_handle", "source_dispatch_id", "gfxip").row(0) == (
        "5600",
        number,
        9,
    )
    anchor = reading.tables["clock_domains"].item(0, "anchor")
    assert f"runs at {2083.4 if number == 1 else 1884.5} MHz by 2 readings" in anchor


@real
def test_the_sums_of_a_real_trace_are_those_that_the_decoder_states() -> None:
    path = GEMM / "ui_output_agent_5600_dispatch_2"
    reading = reading_of(path)
    stated = {row[2]: tuple(row[6:10]) for row in json.loads((path / "code.json").read_text())["code"] if row[6]}
    sums = aggregated(reading.details["waves"], reading.details["wave_instructions"])
    assert {line: tuple(rest) for line, *rest in sums.iter_rows()} == stated
    given = reading.tables["att_instructions"].filter(pl.col("hits") > 0).select("line", *CYCLES)
    assert {line: tuple(rest) for line, *rest in given.iter_rows()} == stated
    assert sum(row[2] for row in stated.values()) == 97_792


@real
def test_what_each_class_of_a_real_kernel_costs() -> None:
    instructions = reading_of(GEMM / "ui_output_agent_5600_dispatch_2").tables["att_instructions"]
    stalls = dict(instructions.group_by("instruction_class").agg(pl.col("stall_cycles").sum()).iter_rows())
    assert stalls["matrix"] == 26_432
    assert stalls["barrier"] == 8_480
    assert instructions.filter(pl.col("instruction_class") == "matrix").height == 640
    assert "other" not in stalls


@real
def test_samples_by_instruction_leave_the_cycle_columns_null() -> None:
    reading = reading_of(SAMPLED)
    instructions = reading.tables["att_instructions"]
    assert instructions.height == 1634
    assert instructions.get_column("samples").sum() == 4690
    assert all(instructions.get_column(name).is_null().all() for name in CYCLES)
    stalls = reading.details["sampled_stalls"]
    assert (stalls.get_column("issued").sum(), stalls.get_column("stalled").sum()) == (1306, 3384)
    evidence = evidence_of(reading)
    assert evidence["stall reasons"].status == "partial"
    assert evidence["source files"].rows == 1
    assert evidence["traced dispatch"].status == "absent"
    assert reading.details["functions"].item(0, "display_name").startswith("void reference_gemm<4>")


@real
def test_a_wave_that_is_missing_is_said_and_the_sums_are_not_blamed(tmp_path: Path) -> None:
    path = shutil.copytree(GEMM / "ui_output_agent_5600_dispatch_2", tmp_path / "ui_output_agent_5600_dispatch_2")
    path.chmod(0o755)
    (path / "se0_sm2_sl0_wv0.json").unlink()
    reading = reading_of(path)
    evidence = evidence_of(reading)
    assert evidence["wavefronts"] == Evidence(
        "wavefronts", "partial", "se0_sm2_sl0_wv0.json is not in the folder", path.name, 3
    )
    assert evidence["sums recomputed from the wavefronts"].status == "absent"
    assert rows_of(reading)["wavefront files"] == (4, 3)


# --- Small ones -------------------------------------------------------------------------------------------------------


def test_every_file_of_a_folder_comes_out(tmp_path: Path) -> None:
    reading = reading_of(folder(tmp_path))
    details = reading.details
    instructions = reading.tables["att_instructions"].rows(named=True)
    assert [row["instruction_class"] for row in instructions] == ["smem", "matrix", "salu", "message"]
    assert instructions[1] == {
        "kernel_id": None,
        "dispatch_id": None,
        "code_object_id": 7,
        "address": 264,
        "line": 2,
        "instruction": "v_mfma_f32_4x4x1f32 a[0:3], v0, v1, a[0:3]",
        "instruction_class": "matrix",
        "hits": 2,
        "latency_cycles": 52,
        "stall_cycles": 12,
        "idle_cycles": 12,
        "samples": None,
        "source": "a.cpp:3",
        "capture": None,  # which of a run's traces it is, the run says
        "source_dispatch_id": None,
        "charged_stall_cycles": None,  # what was charged to whom is not the reader's to say
    }
    assert instructions[3]["address"] == 2**64 - 4
    assert details["functions"].row(0) == (0, "kernel", "kernel(int)", 7, 256)
    assert details["waves"].row(0) == (0, 2, 3, 0, 0, 1, 1000, 1100, 100, 4, 4, "se2_sm3_sl0_wv0.json")
    assert details["wave_instructions"].row(1) == (0, 1008, "valu", 4, 40, 2)
    assert details["wave_timeline"].rows() == [(0, 1000, "idle", 4), (0, 1004, "exec", 60), (0, 1064, "stall", 36)]
    assert details["wait_dependencies"].rows() == [(0, 0, 2, 1), (0, 0, 2, 3), (0, 1, 3, None)]
    assert details["occupancy"].rows() == [
        (2, 990, 1, 3, 0, True, 5, "kernel"),
        (2, 995, 2, 0, 0, True, 0, None),
        (2, 1100, 1, 3, 0, False, 5, "kernel"),
    ]
    assert details["wave_states"].rows() == [(1004, "exec", 1), (1060, "exec", 0)]
    assert details["realtime"].rows() == [(2, 0, 10**14, 10**8), (2, 2000, 10**14 + 100, 10**8)]
    assert details["perf_counters"].rows() == [(2, 1000, 1, 2, 3, 4, 0, 1)]
    assert details["source_files"].rows() == [("/src/a.cpp", "source_0_a.cpp", True), ("/src/b.h", "../b.h", False)]
    assert details["traced_dispatch"].row(0, named=True) == {
        "agent_handle": "5600",
        "source_dispatch_id": 3,
        "gfxv": "vega",
        "gfxip": 9,
        "counter_names": [],
        "kernel_names": ["kernel"],
        "kernel_display_names": ["kernel(int)"],
        "code_object_ids": [7],
    }
    assert evidence_of(reading)["sums recomputed from the wavefronts"].status == "present"
    assert reading.tables["clock_domains"].rows() == [
        (
            "shader clock of engine 2",
            None,
            None,
            "runs at 2000.0 MHz by 2 readings against a constant clock that is not tied",
        )
    ]


def test_sums_that_do_not_follow_from_the_waves_are_invalid(tmp_path: Path) -> None:
    wrong = [*CODE[:2], [*CODE[2][:9], 13], *CODE[3:]]
    reading = reading_of(folder(tmp_path, code={"code": wrong}))
    compared = evidence_of(reading)["sums recomputed from the wavefronts"]
    assert compared.status == "invalid" and str(compared.reason).startswith("1 of 5 rows differ")
    assert reading.tables["att_instructions"].item(1, "idle_cycles") == 13  # as stated, not as recomputed


def test_an_executed_line_that_the_code_lacks_is_a_difference(tmp_path: Path) -> None:
    reading = reading_of(folder(tmp_path, code={"code": CODE[:3]}))
    assert str(evidence_of(reading)["sums recomputed from the wavefronts"].reason).startswith("1 of 4 rows differ")


@given(
    st.lists(
        st.lists(st.tuples(st.integers(0, 60), st.integers(0, 6), st.integers(0, 30), st.integers(0, 30)), max_size=12),
        min_size=1,
        max_size=4,
    )
)
def test_aggregation_agrees_with_going_through_the_records_one_by_one(
    records: list[list[tuple[int, int, int, int]]],
) -> None:
    begin = 20
    expected: dict[int, list[int]] = {}
    rows = []
    for wave, instructions in enumerate(records):
        ended = begin
        for time, line, stall, duration in instructions:
            sums = expected.setdefault(line, [0, 0, 0, 0])
            for at, value in enumerate((1, duration, stall, max(0, time - ended))):
                sums[at] += value
            ended = max(ended, time + duration)
            rows.append((wave, time, stall, duration, line))
    schema = {"wave_index": pl.Int32(), **dict.fromkeys(("time", "stall", "duration", "line"), pl.Int64())}
    waves = pl.DataFrame(
        {"wave_index": list(range(len(records))), "begin": [begin] * len(records)},
        schema_overrides={"wave_index": pl.Int32},
    )
    found = aggregated(waves, pl.DataFrame(rows, schema=schema, orient="row"))
    assert {line: list(rest) for line, *rest in found.iter_rows()} == expected


@pytest.mark.parametrize("part", ["instructions", "timeline", "waitcnt"])
def test_a_wave_may_lack_any_of_its_parts(part: str, tmp_path: Path) -> None:
    wave = {**WAVE, "wave": {**WAVE["wave"], part: None}}  # type: ignore[dict-item]
    reading = reading_of(folder(tmp_path, se2_sm3_sl0_wv0=wave))
    name = {"instructions": "wave_instructions", "timeline": "wave_timeline", "waitcnt": "wait_dependencies"}[part]
    assert reading.details[name].height == 0
    assert evidence_of(reading)["parts of wavefronts"].reason == f"null in se2_sm3_sl0_wv0.json: {part}"


def test_code_may_be_null(tmp_path: Path) -> None:
    reading = reading_of(folder(tmp_path, code={"code": None, "header": "", "version": "3.0.0"}))
    assert reading.tables["att_instructions"].height == 0
    assert "null" in str(evidence_of(reading)["instructions"].reason)
    assert reading.details["wave_instructions"].height == 4


def test_rows_of_both_lengths_are_told_apart_by_their_length(tmp_path: Path) -> None:
    sampled = [[*row, 2, 3, [0, 1, 0, 2, 0, 0, 0, 0, 0, 0]] for row in CODE[:3]]
    listing = {**FILES["filenames.json"], "pc_sampling": True, "thread_trace": True, "is_pcs_stochastic": True}
    header = "['ISA', '_', 'LineNumber', 'Source']"
    reading = reading_of(folder(tmp_path, code={"code": [*sampled, *CODE[3:]], "header": header}, filenames=listing))
    instructions = reading.tables["att_instructions"]
    assert instructions.get_column("samples").to_list() == [5, 5, None, None]
    assert instructions.get_column("hits").to_list() == [1, 2, 1, 0]  # traced as well
    assert reading.details["sampled_stalls"].select("line", "no_instruction_available", "waitcnt").rows() == [
        (1, 1, 2),
        (2, 1, 2),
    ]
    assert evidence_of(reading)["stall reasons"].status == "present"


def test_stall_reasons_that_do_not_add_up_are_invalid(tmp_path: Path) -> None:
    sampled = [[*row, 2, 4, [0, 1, 0, 2, 0, 0, 0, 0, 0, 0]] for row in CODE[:3]]
    reading = reading_of(folder(tmp_path, code={"code": sampled}))
    assert evidence_of(reading)["stall reasons"].status == "invalid"


def test_the_csv_beside_the_folder_is_compared_row_by_row(tmp_path: Path) -> None:
    path = folder(tmp_path)
    header = '"CodeObj","Vaddr","Instruction","Hitcount","Latency","Stall","Idle","Source"\n'
    rows = [f'{row[4]},{row[5]},"{row[0]}",{row[6]},{row[7]},{row[8]},{row[9]},"{row[3]}"\n' for row in CODE]
    beside = tmp_path / f"stats_{NAME}.csv"
    for content, status, reason in (
        ([header, *rows], "present", "0 of 5 rows differ"),
        ([header, *rows[:-1]], "invalid", "1 of 5 rows differ"),
        ([header, rows[1], rows[0], *rows[2:]], "invalid", "2 of 5 rows differ"),
        ([header.replace("Idle", "Rest"), *rows], "invalid", "columns"),
        (["a,b\n", '"'], "invalid", ""),
        ([""], "invalid", ""),
    ):
        beside.write_text("".join(content))
        found = evidence_of(reading_of(path))["statistics beside the folder"]
        assert found.status == status and reason in str(found.reason)


def test_names_that_lead_out_of_the_folder_are_never_followed(tmp_path: Path) -> None:
    outside = tmp_path / "outside.json"
    outside.write_text(json.dumps(WAVE))
    names = ["../outside.json", str(outside), "link.json", "..", "", "sub/../../outside.json", "a\0b", "dir"]
    listing = {str(at): {"0": {"0": {"0": [name, 0, 1]}}} for at, name in enumerate(names)}
    path = folder(tmp_path, filenames={**FILES["filenames.json"], "wave_filenames": listing})
    (path / "link.json").symlink_to(outside)
    (path / "dir").mkdir()
    reading = reading_of(path)
    assert reading.details["waves"].height == 0
    assert evidence_of(reading)["wavefronts"].status == "invalid"
    assert evidence_of(reading)["unlisted wavefronts"].rows == 1
    assert evidence_of(reading)["source files"].reason == "not in the folder: ../b.h"


@pytest.mark.parametrize("wrong", ["99999999999999999999", "-1e5", "x"])
@pytest.mark.parametrize("end", ["1100", "Infinity", "NaN", "1e300", "null"])
def test_a_listing_with_impossible_numbers_is_refused_and_told(wrong: str, end: str, tmp_path: Path) -> None:
    listing = f'{{"wave_filenames": {{"{wrong}": {{"3": {{"0": {{"0": ["se2_sm3_sl0_wv0.json", 1, {end}]}}}}}}}}}}'
    reading = reading_of(folder(tmp_path, filenames=listing))
    assert evidence_of(reading)["listing of the wavefronts"].status == "invalid"
    assert reading.details["waves"].height == 0


def test_a_kernel_that_is_named_twice_does_not_double_its_events(tmp_path: Path) -> None:
    events = {**FILES["occupancy.json"], "dispatches": {"5": "kernel", "05": "kernel", "x": "y", "7": 3}}
    reading = reading_of(folder(tmp_path, occupancy=events))
    assert reading.details["occupancy"].get_column("kernel").to_list() == ["kernel", None, "kernel"]


def test_without_a_listing_the_waves_that_are_there_are_read(tmp_path: Path) -> None:
    reading = reading_of(folder(tmp_path, filenames=None))
    assert reading.details["waves"].select("shader_engine", "simd", "slot", "wave").row(0) == (2, 3, 0, 0)
    assert evidence_of(reading)["listing of the folder"].status == "absent"


def test_times_that_the_listing_states_otherwise_are_told(tmp_path: Path) -> None:
    listing = {"2": {"3": {"0": {"0": ["se2_sm3_sl0_wv0.json", 1000, 1104]}}}}
    reading = reading_of(folder(tmp_path, filenames={**FILES["filenames.json"], "wave_filenames": listing}))
    assert evidence_of(reading)["times of wavefronts"].status == "partial"
    assert reading.details["waves"].item(0, "end") == 1100


def test_a_category_that_is_not_known_is_null_and_told(tmp_path: Path) -> None:
    wave = {**WAVE, "wave": {**WAVE["wave"], "instructions": [[1004, 99, 0, 4, 1]], "timeline": [[8, 100]]}}  # type: ignore[dict-item]
    reading = reading_of(folder(tmp_path, se2_sm3_sl0_wv0=wave))
    assert reading.details["wave_instructions"].item(0, "category") is None
    assert evidence_of(reading)["categories and states"].rows == 2


@pytest.mark.parametrize(
    ("file", "item"),
    [
        ("occupancy", "occupancy"),
        ("realtime", "realtime"),
        ("wstates2", "wave states of wstates2.json"),
        ("se2_perfcounter", "streamed counters of se2_perfcounter.json"),
        ("snapshots", "source files"),
        ("se2_sm3_sl0_wv0", "wavefronts"),
        ("filenames", "listing of the folder"),
    ],
)
@pytest.mark.parametrize(
    "content",
    [
        "",
        "{",
        "[1, 2]",
        "[" * 100_000,
        '{"2": [[1, 2]], "SE2": [[1.5, 2]], "data": [[1]], "/": [], "wave": 3}',
        '{"2": "x", "SE2": [[NaN, 2]], "data": {}, "/": {"a": 1}, "time": [1], "state": [], "wave": {"begin": 1.5}}',
        '{"2": [[1, 2, 3, 4, 5, 99999999999999999999]], "SE2": [[1, 99999999999999999999]], "data": 7, "/": null, '
        '"time": [99999999999999999999], "state": [0], "wave": {"begin": 1, "end": 99999999999999999999}}',
    ],
    ids=["empty", "cut", "list", "deep", "shapes", "types", "huge"],
)
def test_a_damaged_file_costs_only_itself(file: str, item: str, content: str, tmp_path: Path) -> None:
    evidence = evidence_of(reading_of(folder(tmp_path, **{file: content})))
    if file != "filenames" or not content.startswith('{"2'):
        assert evidence[item].status == "invalid"
        assert "\n" not in str(evidence[item].reason)


@pytest.mark.parametrize(
    ("code", "what"),
    [
        ("", "JSON"),
        ("[]", "no JSON object"),
        ({"code": 7}, "list of rows"),
        ({"code": [7]}, "list of rows"),
        ({"code": [[1, 2]]}, "rows of 2 columns"),
        ({"code": [["s_nop", 0, 1.5, "", 1, 0, 0, 0, 0, 0]]}, "something else"),
        ({"code": [["s_nop", 0, 1, "", -1, 0, 0, 0, 0, 0]]}, "something else"),
        ({"code": [["s_nop", 0, 2**70, "", 1, 0, 0, 0, 0, 0]]}, "something else"),
        ({"code": [[{}, 0, 1, "", 1, 0, 0, 0, 0, 0]]}, "something else"),
    ],
)
def test_damaged_code_is_refused_in_one_line(code: Any, what: str, tmp_path: Path) -> None:
    path = folder(tmp_path, code=code)
    with pytest.raises(CaptureError, match=what) as caught:
        thread_trace.read(path)
    assert "\n" not in str(caught.value)


def test_limits_are_kept(tmp_path: Path) -> None:
    path = folder(tmp_path)
    with pytest.raises(CaptureError, match="more than 4 records"):
        thread_trace.read(path, Limits(events=4))
    with pytest.raises(CaptureError, match="more than 8 records"):
        thread_trace.read(path, Limits(events=8))
    with pytest.raises(CaptureError, match="more than 100 bytes"):
        thread_trace.read(path, Limits(file_bytes=100))
    tree: Any = "source_0_a.cpp"
    for _ in range(100):
        tree = {"a": tree}
    (path / "snapshots.json").write_text(json.dumps(tree))
    assert evidence_of(reading_of(path))["source files"].status == "invalid"


def test_strangers_are_not_recognized(tmp_path: Path) -> None:
    (tmp_path / "code.json").write_text('["code"]')
    assert thread_trace.probe(tmp_path) is None
    assert thread_trace.probe(tmp_path / "code.json") is None
    assert thread_trace.probe(tmp_path / "missing") is None
    with pytest.raises(CaptureError, match="neither"):
        thread_trace.read(tmp_path)
    found = thread_trace.probe(folder(tmp_path))
    assert found is not None and found.detail == "decoded thread trace"


@given(data=st.data())
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
def test_damaged_folders_are_read_or_refused(data: st.DataObject, tmp_path: Path) -> None:
    path = tmp_path / NAME
    if not path.exists():
        folder(tmp_path)
    name = data.draw(st.sampled_from(sorted(FILES)))
    content = bytearray((json.dumps(FILES[name]) if not isinstance(FILES[name], str) else FILES[name]).encode())
    for _ in range(data.draw(st.integers(1, 5))):
        content[data.draw(st.integers(0, len(content) - 1))] = data.draw(st.sampled_from(b'0129[]{},":-.en\xff '))
    cut = data.draw(st.integers(0, 3))
    (path / name).write_bytes(bytes(content[: len(content) // cut if cut else None]))
    try:
        read_or_refused(thread_trace, path)
    finally:
        (path / name).write_text(FILES[name] if isinstance(FILES[name], str) else json.dumps(FILES[name]))


# --- Classes ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("wanted", "instructions"),
    [
        ("valu", "v_add_u32_e32 v1, v0, v2; v_accvgpr_write_b32 a0, 0; v_dual_mul_f32 v0, v1, v2; v_dot4_i32_i8 v0"),
        (
            "matrix",
            "v_mfma_f32_32x32x8_f16 a[0:15]; v_smfmac_f32_16x16x32_f16 v0; v_wmma_f32_16x16x16_f16 v0; "
            "v_swmmac_f32_16x16x32_f16 v0",
        ),
        (
            "salu",
            "s_add_u32 s0, s1, s2; s_mov_b64 exec, s[2:3]; s_getpc_b64 s[0:1]; "
            "s_and_saveexec_b64 s[0:1], vcc; s_set_gpr_idx_on s0, 1; s_cmp_eq_u32 s0, 0",
        ),
        (
            "smem",
            "s_load_dwordx4 s[0:3], s[4:5], 0x0; s_buffer_load_b128 s[0:3]; s_memtime s[0:1]; s_dcache_wb; "
            "s_prefetch_data s[0:1]; s_scratch_load_dword s0",
        ),
        (
            "vmem",
            "buffer_load_dwordx4 v[0:3], v4, s[0:3], 0 offen; global_store_b32 v[0:1], v2, off; "
            "scratch_load_dword v0, off; image_sample v0; tbuffer_load_format_x v0; "
            "image_bvh_intersect_ray v0",
        ),
        ("flat", "flat_load_dword v0, v[1:2]; flat_atomic_add v[0:1], v2"),
        ("lds", "ds_read_b128 v[0:3], v4; ds_write_b16 v0, v1; lds_direct_load v0; ds_bpermute_b32 v0"),
        (
            "branch",
            "s_branch 58; s_cbranch_scc0 2; s_setpc_b64 s[30:31]; s_swappc_b64 s[30:31], s[0:1]; s_call_b64 s[0:1], 4",
        ),
        ("barrier", "s_barrier; s_barrier_signal -1; s_barrier_wait -1"),
        (
            "wait",
            "s_waitcnt vmcnt(0); s_wait_loadcnt 0x0; s_waitcnt_vscnt null, 0x0; s_nop 0; s_sleep 1; "
            "s_delay_alu instid0(VALU_DEP_1)",
        ),
        ("message", "s_sendmsg sendmsg(MSG_INTERRUPT); s_endpgm; s_sendmsg_rtn_b32 s0"),
        ("export", "exp mrt0 v0, v0, v0, v0 done; export mrt0 v0, v1, v2, v3 done"),
        ("other", "s_clause 0x3; s_setprio 3; s_code_end; s_icache_inv; unknown; .long 0xbf800000"),
    ],
)
def test_classes_of_instructions(wanted: str, instructions: str) -> None:
    assert wanted in INSTRUCTION_CLASSES
    given = instructions.split("; ")
    frame = pl.DataFrame({"instruction": [*given, *(f"  {one.upper()}" for one in given), None]})
    found = frame.select(instruction_class(pl.col("instruction"))).to_series().to_list()
    assert found == [wanted] * (2 * len(given)) + [None]
