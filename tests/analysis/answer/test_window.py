"""Recordings that allow an answer, their judged window, and advice on further recordings.

What speaks for a recording: iterations that a program marked, and repetition that holds a good part of the work.
"""

import polars as pl
import pytest

from aaco_pipeline.analysis.answer.answer import sharpened
from aaco_pipeline.analysis.answer.shares import SHARES
from aaco_pipeline.analysis.answer.terms import one_of
from aaco_pipeline.analysis.answer.window import (
    BEFORE_RECORDING,
    Invalid,
    busiest,
    inside,
    steady_window,
    whole_recording,
    without_answer,
    without_steady_part,
)
from aaco_pipeline.lake.validation import empty_table
from tests.analysis.answer.made_up import activities, gap, pieces, rows


def part(name: str, start: int, end: int, **more: object) -> dict[str, object]:
    return {"device_id": 0, "part": name, "start_ns": start, "end_ns": end, "reason": f"why {name}", **more}


def test_a_device_with_a_steady_part_has_an_answer_and_one_without_says_why() -> None:
    own = activities((0, 9, "compute"), (12, 13, "compute"))
    steady = rows("session_parts", [part("steady", 0, 10), part("set_up", 10, 20)])
    assert without_steady_part(steady, own) is None
    lacking = [part("set_up", 0, 10, lacking="incomplete"), part("set_up", 0, 9, lacking="cold_start", reason="cold")]
    assert without_steady_part(rows("session_parts", lacking), own) == Invalid("cold_start", "cold")
    assert without_steady_part(rows("session_parts", lacking[:1]), own) == Invalid("incomplete", "why set_up")
    assert without_steady_part(rows("session_parts"), own) == Invalid("incomplete", "no kernel or copy has times")


@pytest.mark.parametrize(
    ("largest", "host_calls", "doubted", "expected"),
    [
        ("device", False, 0, None),
        ("unknown", True, 0, None),
        ("unknown", True, 35, None),
        ("unknown", True, 36, "most likely work ran in it"),
        ("unknown", False, 0, "no host calls were recorded"),
    ],
)
def test_most_of_the_time_unknown_is_no_answer_where_the_recording_is_why(
    largest: str, *, host_calls: bool, doubted: int, expected: str | None
) -> None:
    shares = dict.fromkeys(SHARES, 0) | {"copy": 30, largest: 70}
    idle = rows("gaps", [gap(0, doubted, "unknown", doubt="stream_missing"), gap(doubted, 70, "unknown")])
    found = without_answer(shares, idle, rows("completeness_findings"), host_calls=host_calls)
    if expected is None:
        assert found is None
    else:
        assert found is not None
        assert found.verdict == "incomplete"
        assert "70 % of the time is idle" in found.reason
        assert expected in found.reason


def test_a_finding_that_voids_the_answer_voids_it_whatever_the_shares() -> None:
    finding = {"finding": "stream_missing", "evidence": "a stream has no records.", "voids": ["bottlenecks.label"]}
    shares = dict.fromkeys(SHARES, 0) | {"device": 100}
    found = without_answer(shares, rows("gaps"), rows("completeness_findings", [finding]), host_calls=True)
    assert found == Invalid("incomplete", "a stream has no records")
    bound = {**finding, "voids": ["timeline.busy_ns"]}
    assert without_answer(shares, rows("gaps"), rows("completeness_findings", [bound]), host_calls=True) is None


# ---- the window ------------------------------------------------------------------------------------------------------


def test_the_busiest_device_is_judged_and_of_equals_the_first() -> None:
    ran = activities((0, 10, "compute"), (0, 20, "compute"), (0, 20, "compute"))
    assert busiest(ran.with_columns(device_id=pl.Series([0, 2, 1], dtype=pl.Int32))) == 1


def test_the_window_is_the_steady_pieces_of_what_is_judged() -> None:
    parts = rows(
        "session_parts",
        [
            part("set_up", 0, 10),
            part("steady", 10, 40, repetitions=4),
            part("interruption", 40, 50),
            part("steady", 50, 90),
        ],
    )
    own = activities((0, 30, "compute"), (60, 90, "compute"))
    window = steady_window(parts, own, 0, {"completeness_findings": rows("completeness_findings")})
    assert window.pieces.rows() == [(10, 40), (50, 90)]
    assert (window.rule, window.beside_ns, window.repetitions) == ("why steady", 20, 4)
    # Of marked iterations alone.
    marked = activities((20, 30, "compute"), (60, 70, "compute"))
    narrower = steady_window(parts, marked, 0, {"completeness_findings": rows("completeness_findings")})
    assert (narrower.pieces.rows(), narrower.beside_ns) == ([(20, 40), (50, 70)], 50)
    assert whole_recording(own, 0).pieces.rows() == [(0, 90)]


def test_a_wait_for_work_of_before_the_recording_is_not_judged() -> None:
    waited = {"finding": BEFORE_RECORDING, "start_ns": 0, "end_ns": 50}
    findings = {"completeness_findings": rows("completeness_findings", [waited])}
    own = activities((0, 10, "copy"), (60, 90, "compute"))
    window = steady_window(rows("session_parts", [part("steady", 0, 90)]), own, 0, findings)
    assert window.pieces.rows() == [(60, 90)]
    assert "before the recording" in window.rule


def test_activities_that_begin_in_a_piece_belong_to_the_window() -> None:
    ran = activities((0, 5, "compute"), (10, 15, "compute"), (19, 30, "compute"), (20, 25, "compute"))
    window = pieces((10, 20), (40, 50))
    assert inside(ran, window).get_column("start_ns").to_list() == [10, 19]
    assert inside(ran.clear(), window).is_empty()


@pytest.mark.parametrize(
    ("rule", "name"),
    [
        ("3 marked iterations of 20 activities", "iteration"),
        ("1 marked iteration of 20 activities", "iteration"),
        ("measured iterations without a profiler", "iteration"),
        ("150 repetitions of 1 activity", "repetition"),
    ],
)
def test_a_repetition_is_called_by_who_marked_it(rule: str, name: str) -> None:
    assert one_of(rule) == name


# ---- what would sharpen it -------------------------------------------------------------------------------------------


def test_at_most_three_recordings_are_asked_for_each_with_its_command() -> None:
    names = ("stream_missing", "file_truncated", "no_device_events", "launches_unrecorded", "of_their_own")
    findings = [{"finding": name, "mend": f"mend {name}"} for name in names]
    devices = rows("devices", [{"device_id": 0, "vendor": "AMD"}])
    empty = {name: rows(name) for name in ("dispatches", "api_calls", "counters", "att_stalls", "sessions")}
    tables = {**empty, "completeness_findings": rows("completeness_findings", findings), "devices": devices}
    found = sharpened("device", "gemm", tables, steady=True)
    assert [how for _, how in found] == ["mend no_device_events", "mend launches_unrecorded", "mend stream_missing"]
    without = {**tables, "completeness_findings": rows("completeness_findings")}
    assert [how.split()[1] for _, how in sharpened("device", "gemm", without, steady=True)] == ["capture", "--att"]
    # Counters that are there are not asked for again, and no tool of another vendor is named.
    counted = {**without, "counters": rows("counters", [{"counter": "SQ_WAVES"}])}
    assert [how.split()[1] for _, how in sharpened("device", "gemm", counted, steady=True)] == ["--att"]
    other = {**without, "devices": rows("devices", [{"device_id": 0, "vendor": "NVIDIA"}])}
    assert sharpened("device", "gemm", other, steady=True) == []
    assert "warm-up" in sharpened("cold_start", None, other, steady=True)[0][1]


#: A device that is busy for 60 of 100 ns.
ACTIVITIES = pl.DataFrame({"start_ns": [0, 50], "end_ns": [40, 70]})


def parts(until: int, reason: str) -> pl.DataFrame:
    return pl.DataFrame(
        {
            "part": ["steady", "tear_down"],
            "start_ns": [0, until],
            "end_ns": [until, 100],
            "reason": [reason, "the rest"],
            "lacking": pl.Series([None, None], dtype=pl.String),
        }
    )


@pytest.mark.parametrize(("until", "reason"), [(15, None), (14, "is 23 % of the device's work"), (70, None)])
def test_repetition_speaks_for_a_recording_from_a_quarter_of_its_work_on(until: int, reason: str | None) -> None:
    found = without_steady_part(parts(until, "9 repetitions of 1 activity"), ACTIVITIES)
    assert (found is None) == (reason is None)
    assert found is None or (found.verdict == "incomplete" and reason is not None and reason in found.reason)


def test_marks_of_a_program_always_count() -> None:
    assert without_steady_part(parts(1, "3 marked iterations of 1 activity"), ACTIVITIES) is None


def test_without_anything_steady_the_reason_is_the_parts_own() -> None:
    none = parts(50, "x").with_columns(part=pl.lit("set_up"), lacking=pl.lit("cold_start"), reason=pl.lit("all first"))
    found = without_steady_part(none, ACTIVITIES)
    assert found is not None
    assert (found.verdict, found.reason) == ("cold_start", "all first")


def test_only_a_programs_own_iteration_is_called_one() -> None:
    rules = ["3 marked iterations of 2 activities", "1 marked iteration of 2 activities", "measured iterations of it"]
    assert {one_of(rule) for rule in rules} == {"iteration"}
    assert one_of("3 repetitions of 2 activities") == "repetition"


def test_advice_names_the_missing_records() -> None:
    names = ("completeness_findings", "devices", "dispatches", "memory_copies", "api_calls", "operator_shapes")
    tables = {name: empty_table(name) for name in (*names, "counters", "att_stalls", "sessions", "ceilings")}
    assert [what for what, _ in sharpened("incomplete", None, tables, steady=False)] == ["when the kernels ran"]
    timed = pl.DataFrame({"start_ns": [0], "end_ns": [1]})
    tables["dispatches"] = pl.concat([tables["dispatches"], timed], how="diagonal_relaxed")
    assert [what for what, _ in sharpened("incomplete", None, tables, steady=False)] == ["what repeats"]
    operator = pl.DataFrame({"domain": ["operator"], "name": ["aten::mm"]})
    tables["api_calls"] = pl.concat([tables["api_calls"], operator], how="diagonal_relaxed")
    assert [what for what, _ in sharpened("device", "gemm", tables, steady=True)] == ["what the kernels achieve"]


def test_a_session_on_the_cpu_is_asked_for_a_calibration_and_for_no_tool_of_devices() -> None:
    names = ("completeness_findings", "devices", "dispatches", "counters", "att_stalls", "ceilings")
    session = pl.DataFrame({"provider": ["CPUExecutionProvider"]})
    vendor = pl.DataFrame({"device_id": [0], "vendor": ["AMD"]}, schema_overrides={"device_id": pl.Int32})
    tables = {**{name: empty_table(name) for name in names}, "sessions": session, "devices": vendor}
    assert [how for _, how in sharpened("device", "gemm", tables, steady=True)] == ["aaco calibrate"]
    measured = pl.DataFrame({"source": ["measured"]})
    assert sharpened("device", "gemm", {**tables, "ceilings": measured}, steady=True) == []
