"""Every row of a session goes on its track: queues, streams, the critical path, and idle time by cause.

Samples as counters, each device's by itself; a limit holds from the sample before the one that tells it.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import polars as pl
import pytest

from aaco_pipeline.lake.store import TraceLake
from aaco_pipeline.lake.validation import to_contract
from aaco_pipeline.report.perfetto import session
from aaco_pipeline.report.perfetto.encoding import Track
from aaco_pipeline.report.perfetto.session import Samples
from tests.analysis.delays.recorded import table

SESSION: Final = "20260102T030405Z-0a1b2c3d"
TABLES: Final[dict[str, list[dict[str, Any]]]] = {
    "processes": [{"process_id": 0, "pid": 7}],
    "kernels": [
        {"kernel_id": 0, "name": "gemm", "short_name": "gemm", "role": "main", "family_source": "none"},
        {"kernel_id": 1, "name": "relu", "short_name": "relu", "role": "main", "family_source": "none"},
    ],
    "dispatches": [
        {"dispatch_id": 0, "kernel_id": 0, "queue_id": 0, "stream_id": 1, "start_ns": 100, "end_ns": 200},
        {"dispatch_id": 1, "kernel_id": 1, "queue_id": 0, "stream_id": 2, "start_ns": 100, "end_ns": 120},
        {"dispatch_id": 2, "kernel_id": 1, "queue_id": None, "stream_id": None, "start_ns": 260, "end_ns": 300},
    ],
    "api_calls": [
        {"call_id": 0, "thread_id": 9, "domain": "hip", "name": "hipLaunchKernel", "start_ns": 90, "end_ns": 95},
        {"call_id": 1, "thread_id": 9, "domain": "hip", "name": "hipStreamSynchronize", "start_ns": 200, "end_ns": 250},
    ],
    "memory_copies": [],
    "gaps": [{"device_id": 0, "start_ns": 200, "end_ns": 260, "cause": "sync", "host_call_id": 1}],
    "critical_path": [
        {"activity_kind": "dispatch", "activity_id": 0, "slack_ns": 0, "is_critical": True, "binding_edge": "launch"},
        {"activity_kind": "dispatch", "activity_id": 1, "slack_ns": 80, "is_critical": False, "binding_edge": "launch"},
        {"activity_kind": "api_call", "activity_id": 1, "slack_ns": 0, "is_critical": True, "binding_edge": "sync"},
        {"activity_kind": "dispatch", "activity_id": 2, "slack_ns": 0, "is_critical": True, "binding_edge": "launch"},
    ],
}
ALWAYS: Final[dict[str, dict[str, Any]]] = {
    "dispatches": {"process_id": 0, "device_id": 0, "self_ns": 1, "below_resolution": False},
    "api_calls": {"process_id": 0},
    "critical_path": {"free_slack_ns": 0, "unexplained_wait_ns": 3, "criticality": None},
}


def drawn(
    folder: Path, monkeypatch: pytest.MonkeyPatch, **changed: list[dict[str, Any]]
) -> dict[str, list[dict[str, Any]]]:
    """The slices of a lake with these tables by the name of their track."""
    return laid_out(folder, monkeypatch, **changed)[1]


def laid_out(
    folder: Path, monkeypatch: pytest.MonkeyPatch, **changed: list[dict[str, Any]]
) -> tuple[list[Track], dict[str, list[dict[str, Any]]]]:
    """The tracks, and the slices by the name of their track."""
    lake = TraceLake(folder)
    rows = {**TABLES, **changed}
    frames = {
        name: to_contract(
            name, pl.DataFrame([{**ALWAYS.get(name, {}), **row} for row in own], infer_schema_length=None)
        )
        for name, own in rows.items()
        if own
    }
    lake.publish(SESSION, "test", frames)
    taken: dict[str, Any] = {}

    def take(path: Path, tracks: Any, slices: Iterator[pl.DataFrame], *_: Any, **__: Any) -> None:
        taken.update(tracks=tracks, slices=list(slices))

    def batches(name: str, columns: tuple[str, ...]) -> Iterator[pl.DataFrame]:
        return lake.batches(name, SESSION, columns)

    monkeypatch.setattr(session, "write_trace", take)
    session.write_session_trace(SESSION, batches, folder / "trace")
    names = {track.uuid: track.name for track in taken["tracks"]}
    found: dict[str, list[dict[str, Any]]] = {}
    for piece in taken["slices"]:
        for row in piece.iter_rows(named=True):
            found.setdefault(names[row["track"]], []).append(row)
    return taken["tracks"], found


def test_kernels_lie_by_queue_and_stream_as_far_as_they_are_known(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tracks = drawn(tmp_path, monkeypatch)
    kernels = {name: [row["name"] for row in rows] for name, rows in tracks.items() if name.startswith("kernels")}
    assert kernels == {
        "kernels on device 0, queue 0, stream 1": ["gemm"],
        "kernels on device 0, queue 0, stream 2": ["relu"],
        "kernels on device 0, stream unknown": ["relu"],
    }


def test_critical_activities_stand_on_a_track_of_their_own_and_kernels_tell_their_slack(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tracks = drawn(tmp_path, monkeypatch)
    told = [(row["name"], row["category"], row["binding_edge"]) for row in tracks["critical path"]]
    assert sorted(told) == [
        ("gemm", "dispatch", "launch"),
        ("hipStreamSynchronize", "api_call", "sync"),
        ("relu", "dispatch", "launch"),
    ]
    assert [row["slack_ns"] for row in tracks["kernels on device 0, queue 0, stream 2"]] == [80]


def test_a_path_of_everything_is_not_drawn_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    everything = [{**row, "slack_ns": 0, "is_critical": True} for row in TABLES["critical_path"]]
    assert "critical path" not in drawn(tmp_path, monkeypatch, critical_path=everything)


def test_idle_time_is_named_by_its_cause_and_the_call_it_was_concluded_from(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (idle,) = drawn(tmp_path, monkeypatch)["device 0 idle, by cause"]
    assert (idle["name"], idle["host_call"], idle["end_ns"] - idle["start_ns"]) == ("sync", "hipStreamSynchronize", 60)


def test_an_iteration_tells_what_disturbed_it_and_a_spike_what_made_it_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    timed = [{"pass": "latency", "phase": "measure", "start_ns": 100 * i, "end_ns": 100 * i + 90} for i in range(5)]
    iterations = [{**row, "iteration": i, "latency_ns": 90} for i, row in enumerate(timed)]
    quiet = {"pass": "latency", "grade": "clean", "is_spike": False, "excess_ns": 0}
    disturbed = {**quiet, "grade": "disturbed", "disturbed_by": "interrupts", "excess_ns": 5}
    spike = {**disturbed, "is_spike": True, "spike_cause": "disk", "excess_ns": 50}
    unexplained = {**spike, "spike_cause": None}
    grades = [{**row, "iteration": i} for i, row in enumerate((quiet, disturbed, spike, unexplained))]
    tracks = drawn(tmp_path, monkeypatch, iterations=iterations, iteration_grades=grades)
    told = [(row["grade"], row["cause"], row["excess_ns"]) for row in tracks["iterations of the latency pass"]]
    assert told == [
        ("clean", None, 0),
        ("disturbed", "interrupts", 5),
        ("disturbed", "disk", 50),
        ("disturbed", None, 50),
        (None, None, None),
    ]


def test_what_lies_between_iterations_and_what_held_a_device_down_have_tracks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    gap = {"pass": "latency", "phase": "measure", "reads_counters": False, "duration_ns": 50}
    gaps = [{**gap, "before_iteration": i, "start_ns": 100 * i - 50, "end_ns": 100 * i} for i in range(2)]
    samples = [{"time_ns": 100 * i, "device_id": 0, "throttle_reasons": ["power"] if i else None} for i in range(2)]
    tracks = drawn(tmp_path, monkeypatch, iteration_gaps=gaps, gpu_samples=samples)
    told = {name: [(row["start_ns"], row["end_ns"], row["name"]) for row in rows] for name, rows in tracks.items()}
    # The first gap begins 50 ns before the axis's zero, and the trace with it.
    assert told["between iterations of the latency pass"] == [(0, 50, "before 0"), (100, 150, "before 1")]
    assert told["device 0 held down, by limit"] == [(50, 150, "power")]


def test_of_two_processes_of_one_number_one_is_a_process_to_the_viewer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ranks on two hosts, or in two containers."""
    processes = [{"process_id": i, "pid": 7, "command": f"rank {i}"} for i in range(2)]
    calls = [{**TABLES["api_calls"][0], "call_id": i, "process_id": i} for i in range(2)]
    tracks, found = laid_out(tmp_path, monkeypatch, processes=processes, api_calls=calls)
    roots = {track.name: (track.kind, track.pid) for track in tracks if track.name.startswith("rank")}
    assert roots == {"rank 0": ("process", 7), "rank 1": ("slices", None)}
    assert len(found["calls, thread 9"]) == 2


def sampled(host: list[dict[str, Any]], devices: list[dict[str, Any]]) -> Samples:
    tables = {"system_samples": table("system_samples", host), "gpu_samples": table("gpu_samples", devices)}

    def batches(name: str, columns: tuple[str, ...]) -> Iterator[pl.DataFrame]:
        yield tables[name].select(columns)

    return Samples(batches)


def test_columns_with_values_are_counters_and_what_was_not_read_is_none() -> None:
    samples = sampled(
        [{"time_ns": 5, "run_delay_ns": 7}, {"time_ns": 6}],
        [{"time_ns": 3, "device_id": 1, "power_w": 120.0}, {"time_ns": 4, "device_id": 0, "gfx_clock_mhz": 900.0}],
    )
    assert samples.starts() == [5, 3]
    assert [(name, unit, values.rows()) for name, unit, values in samples.counters()] == [
        ("run_delay", "ns", [(5, 7.0)]),
        ("power of device 1", "W", [(3, 120.0)]),
        ("engine clock of device 0", "MHz", [(4, 900.0)]),
    ]


def test_a_limit_holds_since_the_devices_sample_before() -> None:
    told: list[dict[str, Any]] = [
        {"time_ns": 10, "device_id": 0, "throttle_reasons": ["power"]},
        {"time_ns": 15, "device_id": 1, "throttle_reasons": None},
        {"time_ns": 20, "device_id": 0, "throttle_reasons": []},
        {"time_ns": 30, "device_id": 0, "throttle_reasons": ["power", "thermal"]},
        {"time_ns": 35, "device_id": 1, "throttle_reasons": ["thermal"]},
    ]
    found = sampled([], told).held_down()
    assert found.select("device_id", "start_ns", "end_ns", "name").rows() == [
        (0, 10, 10, "power"),
        (0, 20, 30, "power, thermal"),
        (1, 15, 35, "thermal"),
    ]
