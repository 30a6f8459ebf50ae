"""What speaks for a recording: iterations that a program marked, and repetition that holds a good part of the work."""

import polars as pl
import pytest

from aaco_pipeline.analysis.answer.sharpen import sharpened
from aaco_pipeline.analysis.answer.terms import one_of
from aaco_pipeline.analysis.answer.validity import without_steady_part
from aaco_pipeline.lake.validation import empty_table

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


@pytest.mark.parametrize(("until", "said"), [(15, None), (14, "is 23 % of the device's work"), (70, None)])
def test_repetition_speaks_for_a_recording_from_a_quarter_of_its_work_on(until: int, said: str | None) -> None:
    found = without_steady_part(parts(until, "9 repetitions of 1 activity"), ACTIVITIES)
    assert (found is None) == (said is None)
    assert found is None or (found.verdict == "incomplete" and said is not None and said in found.reason)


def test_what_a_program_marked_always_speaks_for_it() -> None:
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


def test_what_would_sharpen_an_answer_is_what_it_lacks() -> None:
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
