"""Perfetto's trace processor, where it can be had, finds what was written."""

from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest

from aaco_pipeline.report.perfetto.encoding import write_trace
from aaco_pipeline.report.perfetto.kernel_plane import scheduling_packets
from tests.report.perfetto.decoding import DEVICE, POWER, THREAD, TRACKS


def workload(pairs: int) -> tuple[pl.DataFrame, pl.DataFrame]:
    """Launches with an inner step each, the operators they launch, and a power curve; times and names are made up."""
    random = np.random.default_rng(7)
    launch = 1_000_000 + np.cumsum(random.integers(2_000, 9_000, pairs))
    length, work = random.integers(800, 1_500, pairs), random.integers(100, 2_000, pairs)
    name = pl.Series([f"operator {i % 40}" for i in range(pairs)])
    numbers = pl.Series(range(pairs), dtype=pl.UInt64)

    def part(track: int, start: Any, duration: Any, names: pl.Series, **further: Any) -> pl.DataFrame:
        times = pl.DataFrame({"start_ns": start, "end_ns": start + duration, "name": names})
        return times.with_columns(pl.lit(track, pl.UInt64).alias("track"), category=pl.lit("work"), **further)

    frame = pl.concat(
        [
            part(THREAD, launch, length, name, flow_id=numbers, flow_role=pl.lit("out")),
            part(THREAD, launch, length // 2, pl.Series(["prepare"] * pairs)),
            part(DEVICE, launch + 1_500, work, name, flow_id=numbers, flow_role=pl.lit("in"), iteration=numbers),
        ],
        how="diagonal",
    )
    counters = pl.DataFrame(
        {"track": pl.Series([POWER] * pairs, dtype=pl.UInt64), "time_ns": launch, "value": random.random(pairs)}
    )
    return frame, counters


def test_a_real_trace_processor_finds_what_was_written(trace_processor_address: str, tmp_path: Path) -> None:
    from perfetto.trace_processor import TraceProcessor

    pairs = 20_000
    frame, counters = workload(pairs)
    # Invented dispatches, as a test of the format; two of a queue overlap.
    kernels = pl.DataFrame(
        {
            "gpu_id": [0, 0],
            "process": [4711, 4711],
            "queue": ["queue", "queue"],
            "start_ns": [2_000_000, 2_000_050],
            "end_ns": [2_000_100, 2_000_200],
            "name": ["invented 1", "invented 2"],
            **{
                column: [8, 8] for column in ("grid_x", "grid_y", "grid_z", "workgroup_x", "workgroup_y", "workgroup_z")
            },
        }
    )
    path = tmp_path / "trace.pftrace.gz"
    summary = write_trace(path, TRACKS, frame, counters, kernels=kernels, metadata={"session": "a"})
    assert (summary.slices, summary.counters, summary.flows) == (3 * pairs, pairs, pairs)

    processor = TraceProcessor(trace=str(path), addr=trace_processor_address)
    try:

        def one(query: str) -> Any:
            row = next(iter(processor.query(query)))
            return tuple(row.__dict__.values()) if len(row.__dict__) > 1 else next(iter(row.__dict__.values()))

        def rows(query: str) -> list[Any]:
            return [tuple(row.__dict__.values()) for row in processor.query(query)]

        instants, gpu = 1, kernels.height
        total = int((frame["end_ns"] - frame["start_ns"]).sum())
        gpu_total = int((kernels["end_ns"] - kernels["start_ns"]).sum())
        found = one("SELECT count(*) AS n, sum(dur) AS total FROM slice")
        assert found == (3 * pairs + instants + gpu, total + gpu_total)
        assert one("SELECT count(*) AS n, sum(dur) AS total FROM gpu_slice") == (gpu, gpu_total)
        assert one("SELECT count(*) AS n FROM flow") == pairs
        joined = "FROM flow JOIN slice a ON flow.slice_out = a.id JOIN slice b ON flow.slice_in = b.id"
        assert one(f"SELECT count(*) AS n {joined} WHERE a.name = b.name AND a.ts < b.ts") == pairs
        assert one("SELECT count(*) AS n FROM slice WHERE name = 'prepare' AND depth = 1") == pairs
        assert one("SELECT count(*) AS n FROM args WHERE key = 'debug.iteration'") == pairs
        n, summed = one("SELECT count(*) AS n, sum(value) AS total FROM counter")
        assert (n, summed) == (pairs, pytest.approx(counters["value"].sum(), rel=1e-12))
        assert one("SELECT unit FROM counter_track WHERE name = 'power'") == "W"
        assert one("SELECT string_value FROM args WHERE key = 'debug.session'") == "a"
        faults = rows("SELECT name, value FROM stats WHERE severity IN ('error', 'data_loss') AND value > 0")
        print(f"trace processor: {found} slices and sum of durations, {pairs} flows, {n} counters, faults {faults}")
        assert faults == []
    finally:
        processor.close()


def test_a_real_trace_processor_makes_states_of_switches(trace_processor_address: str, tmp_path: Path) -> None:
    """A thread that runs, is pushed off, sleeps and is woken: its states are its life, and nothing is refused."""
    from perfetto.trace_processor import TraceProcessor

    switches = pl.DataFrame(
        {
            "cpu": [0, 0, 0, 0, 0, 1],
            "time_ns": [100, 300, 350, 500, 900, 150],
            "thread_id": [0, 7, 8, 7, 0, 0],
            "other_thread_id": [7, 8, 7, 0, 7, 9],
            "state": ["idle", "runnable", "sleeping", "disk_sleep", "idle", "idle"],
        }
    )
    woken = {
        "cpu": [1, 0],
        "time_ns": [800, 700],
        "thread_id": [7, 8],
        "target_cpu": [0, 0],
        "by_handler": [True, False],
    }
    wakings = pl.DataFrame(woken)
    names = ["idle", "main", "hog", "x"]
    threads = pl.DataFrame({"thread_id": [0, 7, 8, 9], "pid": [None, 7, None, None], "name": names})
    path = tmp_path / "trace.pftrace.gz"
    write_trace(path, TRACKS, workload(1)[0], scheduling=scheduling_packets(switches, wakings, threads))
    processor = TraceProcessor(trace=str(path), addr=trace_processor_address)
    try:
        found = processor.query(
            "SELECT tid, s.ts, s.dur, s.state, s.irq_context FROM thread_state s JOIN thread USING (utid) ORDER BY s.ts"
        )
        rows = list(found)
        states = [(row.ts, row.dur, row.state) for row in rows if row.tid == 7]
        of_hog = [(row.ts, row.state) for row in rows if row.tid == 8]
        by_handlers = [row.ts for row in rows if row.irq_context]
        refused = processor.query("SELECT name, value FROM stats WHERE severity = 'error' AND value > 0")
        assert [(row.name, row.value) for row in refused] == []
    finally:
        processor.close()
    assert states[:3] == [(100, 200, "Running"), (300, 50, "R"), (350, 150, "Running")]
    assert states[3:5] == [(500, 300, "D"), (800, 100, "R")]
    assert by_handlers == [800]
    assert of_hog == [(300, "Running"), (350, "S"), (700, "R")]
    assert states[5][::2] == (900, "Running")
