"""From the sampler's raw counters to canonical tables, with nothing made up."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

from aaco_pipeline.errors import CaptureError
from aaco_pipeline.formats.capture_tables import Limits
from aaco_pipeline.formats.native import telemetry
from aaco_pipeline.lake.evidence import Evidence
from tests.formats.readings import checked, evidence_of

ZERO: Final = 1_000
RAW: Final = telemetry._RAW_COLUMNS


def raw_columns(rows: int, **given: list[int | None]) -> dict[str, list[int | None]]:
    columns: dict[str, list[int | None]] = {name: [None] * rows for name in RAW}
    columns["time_ns"] = [ZERO + 10_000_000 * row for row in range(rows)]
    columns["took_ns"] = [20_000] * rows
    assert set(given) <= set(RAW)
    assert all(len(values) == rows for values in given.values())
    return {**columns, **given}


def a_document(columns: dict[str, list[int | None]], **changed: Any) -> dict[str, Any]:
    return {
        "format": "aaco-telemetry",
        "format_version": 1,
        "clock": "CLOCK_MONOTONIC",
        "interval_ns": 10_000_000,
        "overruns": 0,
        "thinned": 0,
        "sampler_cpu_ns": 40_000,
        "page_bytes": 4096,
        "columns": columns,
        "segments": [],
        "periods_ns": {"host_busy_ticks": 10_000_000},
        "reasons": {},
        "gpu": {"sources": [], "reason": "this host has no AMD GPU", "samples": []},
        **changed,
    }


def a_segment(**changed: Any) -> dict[str, Any]:
    return {
        "label": "latency",
        "pid": 42,
        "started_monotonic_ns": ZERO + 5,
        "ended_monotonic_ns": ZERO + 25_000_000,
        "ended_because": "the process ended",
        "overruns": 0,
        "threads_most": 2,
        "periods_ns": {"process_cpu_ns": 10_000_000},
        "reasons": {},
        **changed,
    }


def samples_of(document: Mapping[str, Any] | None) -> pl.DataFrame:
    return telemetry.read(document, ZERO).tables["system_samples"]


def test_times_lie_on_the_sessions_axis() -> None:
    assert samples_of(a_document(raw_columns(3)))["time_ns"].to_list() == [0, 10_000_000, 20_000_000]


def test_counters_pass_through_and_sizes_become_bytes() -> None:
    document = a_document(
        raw_columns(
            2,
            process_cpu_ns=[5, 9],
            run_delay_ns=[0, 1],
            rss_pages=[10, 20],
            voluntary_switches=[1, None],
            involuntary_switches=[2, None],
            major_faults=[0, 3],
            load_1m_hundredths=[125, None],
            clock_khz=[2_500_000, None],
        )
    )
    assert samples_of(document).drop("time_ns", "cpu_ratio", "cpu_pressure_ratio").rows(named=True) == [
        {
            "process_cpu_ns": 5,
            "run_delay_ns": 0,
            "rss_bytes": 40_960,
            "voluntary_switches": 1,
            "involuntary_switches": 2,
            "major_faults": 0,
            "load_1m": 1.25,
            "clock_mhz": 2500.0,
        },
        {
            "process_cpu_ns": 9,
            "run_delay_ns": 1,
            "rss_bytes": 81_920,
            "voluntary_switches": None,
            "involuntary_switches": None,
            "major_faults": 3,
            "load_1m": None,
            "clock_mhz": None,
        },
    ]


def test_cpu_ratio_is_of_the_interval_and_null_in_the_first_row() -> None:
    document = a_document(
        raw_columns(3, host_busy_ticks=[1_000_000, 1_000_003, 1_000_003], host_idle_ticks=[500, 501, 505])
    )
    assert samples_of(document)["cpu_ratio"].to_list() == [None, 0.75, 0.0]


def test_a_source_read_less_often_is_compared_with_its_own_last_reading() -> None:
    document = a_document(
        raw_columns(
            5,
            host_busy_ticks=[0, None, None, 3, None],
            host_idle_ticks=[0, None, None, 1, None],
            pressure_some_us=[100, None, 5_100, None, None],
        )
    )
    samples = samples_of(document)
    assert samples["cpu_ratio"].to_list() == [None, None, None, 0.75, None]
    assert samples["cpu_pressure_ratio"].to_list() == [None, None, 0.25, None, None]


@pytest.mark.parametrize(("busy", "idle"), [([7, 7], [9, 9]), ([7, 9], [9, 8])])
def test_no_tick_or_idle_time_that_the_kernel_takes_back_gives_no_ratio(
    busy: list[int | None], idle: list[int | None]
) -> None:
    document = a_document(raw_columns(2, host_busy_ticks=busy, host_idle_ticks=idle))
    assert samples_of(document)["cpu_ratio"].to_list() == [None, None]


def test_pressure_is_a_share_of_the_time_and_never_above_one() -> None:
    document = a_document(raw_columns(4, pressure_some_us=[0, 5_000, 16_000, 16_000]))
    assert samples_of(document)["cpu_pressure_ratio"].to_list() == [None, 0.5, 1.0, 0.0]


@given(st.lists(st.tuples(*[st.integers(0, 50)] * 3), min_size=1, max_size=30))
def test_ratios_are_shares_whatever_the_counters_do(steps: list[tuple[int, int, int]]) -> None:
    busy, idle, pressure = zip(*steps, strict=True)
    document = a_document(
        raw_columns(len(steps), host_busy_ticks=list(busy), host_idle_ticks=list(idle), pressure_some_us=list(pressure))
    )
    reading = checked(telemetry.read(document, ZERO))
    samples = reading.tables["system_samples"]
    for name in ("cpu_ratio", "cpu_pressure_ratio"):
        assert samples[name].drop_nulls().is_between(0, 1).all()
        assert samples[name][0] is None


def test_a_complete_reading_fulfils_the_contracts_and_is_called_present() -> None:
    columns = raw_columns(3, segment=[None, 0, 0], process_cpu_ns=[None, 1, 2], host_busy_ticks=[1, 2, 3])
    reading = checked(telemetry.read(a_document(columns, segments=[a_segment()]), ZERO))
    evidence = evidence_of(reading)
    assert evidence["system samples"].status == "present"
    assert evidence["system samples"].rows == 3
    assert evidence["samples of the latency process"].status == "present"
    assert evidence["samples of the latency process"].rows == 2
    assert "CLOCK_MONOTONIC" in (evidence["clock of the system samples"].reason or "")
    assert reading.details["segments"].rows() == [("latency", 42, 5, 25_000_000)]


def test_no_gpu_sample_is_made_up_where_there_is_no_gpu() -> None:
    reading = telemetry.read(a_document(raw_columns(2)), ZERO)
    assert reading.tables["gpu_samples"].height == 0
    assert evidence_of(reading)["gpu samples"] == Evidence("gpu samples", "absent", "this host has no AMD GPU")


def test_a_session_without_a_sampler_has_empty_tables_and_says_so() -> None:
    reading = checked(telemetry.read(None, ZERO))
    assert {frame.height for frame in reading.tables.values()} == {0}
    assert {item.status for item in reading.evidence} == {"absent"}
    assert reading.details["segments"].height == 0


def test_missed_readings_are_evidence_with_the_longest_gap() -> None:
    columns = raw_columns(3, segment=[0, 0, 0])
    columns["time_ns"] = [ZERO, ZERO + 10_000_000, ZERO + 45_000_000]
    evidence = evidence_of(telemetry.read(a_document(columns, overruns=2, segments=[a_segment(overruns=2)]), ZERO))
    assert evidence["system samples"].status == evidence["samples of the latency process"].status == "partial"
    assert "2 of 5" in (evidence["system samples"].reason or "")
    assert "35 ms" in (evidence["system samples"].reason or "")


def test_dropped_rows_are_evidence() -> None:
    evidence = evidence_of(telemetry.read(a_document(raw_columns(3), thinned=2), ZERO))
    assert evidence["system samples"].status == "partial"
    assert "dropped 2 times" in (evidence["system samples"].reason or "")


def test_a_single_row_is_no_sampling_and_nothing_watched_is_evidence() -> None:
    assert evidence_of(telemetry.read(a_document(raw_columns(1)), ZERO))["system samples"].status == "absent"
    unwatched = evidence_of(telemetry.read(a_document(raw_columns(2)), ZERO))
    assert unwatched["samples of the measured process"].status == "absent"


def test_a_column_that_could_not_be_read_says_why() -> None:
    document = a_document(
        raw_columns(2, segment=[0, 0], run_delay_ns=[None, 5]),
        reasons={"pressure_some_us": "/proc/pressure/cpu: Operation not supported"},
        segments=[a_segment(reasons={"run_delay_ns": "closed", "rss_pages": "Permission denied"})],
    )
    evidence = evidence_of(telemetry.read(document, ZERO))
    pressure = evidence["system_samples.cpu_pressure_ratio"]
    assert (pressure.status, pressure.reason) == ("absent", "/proc/pressure/cpu: Operation not supported")
    assert evidence["system_samples.run_delay_ns of the latency process"].status == "partial"
    assert evidence["system_samples.rss_bytes of the latency process"].status == "absent"


def test_a_column_read_less_often_is_present_and_says_how_often() -> None:
    document = a_document(
        raw_columns(2, host_busy_ticks=[1, None]),
        periods_ns={"host_busy_ticks": 50_000_000},
        segments=[a_segment(periods_ns={"voluntary_switches": 80_000_000})],
    )
    evidence = evidence_of(telemetry.read(document, ZERO))
    assert evidence["system_samples.cpu_ratio"].status == "present"
    assert "every 50 ms" in (evidence["system_samples.cpu_ratio"].reason or "")
    assert "every 80 ms" in (evidence["system_samples.voluntary_switches"].reason or "")


def test_a_process_that_was_never_read_is_absent_with_the_reason() -> None:
    segment = a_segment(ended_because="the process had ended before it was read")
    evidence = evidence_of(telemetry.read(a_document(raw_columns(2), segments=[segment]), ZERO))
    item = evidence["samples of the latency process"]
    assert (item.status, item.rows) == ("absent", 0)
    assert "had ended" in (item.reason or "")


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"format": "something"}, "format something"),
        ({"format_version": 3}, "upgrade aaco_pipeline"),
        ({"format_version": None}, "upgrade aaco_pipeline"),
        ({"clock": "CLOCK_REALTIME"}, "CLOCK_REALTIME"),
        ({"columns": {}}, "time_ns"),
        ({"columns": raw_columns(2) | {"rss_pages": [1]}}, "differ in length"),
        ({"columns": raw_columns(1) | {"rss_pages": ["much"]}}, "else than integers"),
        ({"columns": raw_columns(1) | {"rss_pages": [1 << 70]}}, "else than integers"),
        ({"columns": raw_columns(2) | {"time_ns": [5, 5]}}, "do not increase"),
        ({"columns": raw_columns(2) | {"time_ns": [None, 5]}}, "do not increase"),
        ({"segments": [{"label": "latency"}]}, "segments.0.pid"),
        ({"segments": [a_segment(reasons={"nothing": "why"})]}, "'nothing' is no column"),
        ({"segments": [a_segment(started_monotonic_ns=1 << 61)]}, "started_monotonic_ns"),
        ({"reasons": {"rss_pages": ""}}, "reasons.rss_pages"),
        ({"overruns": "many"}, "overruns"),
        ({"interval_ns": 0}, "interval_ns"),
        ({"gpu": {"sources": [], "reason": None}}, "gpu.samples"),
    ],
)
def test_a_damaged_document_is_refused_with_the_reason(change: dict[str, Any], words: str) -> None:
    with pytest.raises(CaptureError, match=words):
        telemetry.read({**a_document(raw_columns(2)), **change}, ZERO)


@pytest.mark.parametrize("key", telemetry._DOCUMENT_KEYS)
def test_a_document_without_one_of_its_parts_is_refused(key: str) -> None:
    document = a_document(raw_columns(2))
    del document[key]
    with pytest.raises(CaptureError, match=key):
        telemetry.read(document, ZERO)


def test_a_document_is_loaded_and_recognized_from_its_file(tmp_path: Path) -> None:
    file = tmp_path / telemetry.TELEMETRY_FILE
    assert telemetry.load(file) is None
    assert telemetry.probe(file) is None
    document = a_document(raw_columns(2))
    file.write_text(json.dumps(document))
    assert telemetry.load(file) == document
    recognized = telemetry.probe(file)
    assert recognized is not None
    assert recognized.format == telemetry.FORMAT
    (tmp_path / "other.json").write_text("{}")
    assert telemetry.probe(tmp_path / "other.json") is None


@pytest.mark.parametrize(
    ("content", "words"), [("{", "as JSON"), ("[]", "no JSON object"), ("{}" * 50, "than 64 bytes")]
)
def test_a_file_that_cannot_be_read_is_refused_by_name(content: str, words: str, tmp_path: Path) -> None:
    file = tmp_path / "telemetry.json"
    file.write_text(content)
    with pytest.raises(CaptureError, match=rf"telemetry\.json.*{words}"):
        telemetry.load(file, Limits(file_bytes=64))


def test_a_real_sampling_can_be_published() -> None:
    """The sampler's own document, of this process, through the reader and the contract."""
    import os

    from aaco_pipeline.resources.telemetry.sampler import SystemSampler
    from tests.resources.telemetry.rows import wait_for_rows

    with SystemSampler(2_000_000, source_budget_ratio=1.0) as sampler:
        sampler.watch(os.getpid(), "latency")
        wait_for_rows(sampler, 10)
    document = json.loads(json.dumps(sampler.samples()))
    assert set(document["columns"]) == set(RAW)
    zero = document["clocks_before"]["monotonic_ns"]
    reading = checked(telemetry.read(document, zero))
    samples = reading.tables["system_samples"]
    assert samples["time_ns"][0] >= 0
    assert samples["process_cpu_ns"].drop_nulls().len() > 2
    assert samples["cpu_ratio"].drop_nulls().is_between(0, 1).all()
