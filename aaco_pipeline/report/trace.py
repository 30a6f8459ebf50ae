"""One session's tables laid out as a Perfetto trace: which track every row goes on, and what is written beside it.

The bytes are `aaco_pipeline.lake.perfetto`; where the file lies is `TraceLake.trace`.
"""

from collections.abc import Iterator, Mapping, Sequence
from itertools import chain, count
from pathlib import Path
from typing import Any, Final

import polars as pl

from aaco_pipeline.analysis.kernels.statistics import timed
from aaco_pipeline.lake.perfetto import TraceSummary, Track, write_trace
from aaco_pipeline.lake.perfetto.lanes import assign_lanes, nesting_lanes
from aaco_pipeline.providers import CPU_PROVIDER

#: Columns of `system_samples` that are counters in the trace, with their unit there.
_COUNTERS: Final = {
    "cpu_ratio": "ratio",
    "cpu_pressure_ratio": "ratio",
    "load_1m": "processes",
    "clock_mhz": "MHz",
    "process_cpu_ns": "ns",
    "run_delay_ns": "ns",
    "rss_bytes": "bytes",
    "voluntary_switches": "switches",
    "involuntary_switches": "switches",
    "major_faults": "faults",
}
#: The tables that a trace is drawn from.
TABLES: Final = (
    *("sessions", "processes", "iterations", "api_calls", "critical_path", "dispatches", "kernels", "memory_copies"),
    *("gaps", "markers", "system_samples", "scheduler_events", "clock_domains"),
)
#: Copies of an unknown direction are still copies.
_COPY_NAME: Final = pl.col("direction").fill_null("copy")
#: Far above what a tracer counts up to within a process.
_CORRELATIONS_OF_A_PROCESS: Final = 1 << 48


def write_session_trace(session: str, tables: Mapping[str, pl.DataFrame], path: Path) -> TraceSummary:
    """Write the session's unified trace: iterations, critical path, idle time by cause, calls, kernels, counters.

    `tables` are those named in `TABLES`. All on the session's axis, moved so that its earliest time is zero, as
    Perfetto knows no negative time; by how much, and how uncertain each clock's place on the axis is, stands in the
    instant `session` at the start. Kernels of the CPU provider are ordinary slices: only kernels that a GPU's own tool
    recorded may use render-stage events.
    """
    layout = _Layout(session, tables)
    return write_trace(path, layout.tracks, layout.slices(), layout.counters(), metadata=dict(layout.metadata()))


class _Layout:
    """The session's frames and the tracks they go on."""

    def __init__(self, session: str, tables: Mapping[str, pl.DataFrame]) -> None:
        self._session = session
        self._facts = tables["sessions"]
        self._processes = tables["processes"]
        self._iterations = tables["iterations"]
        self._calls = timed(tables["api_calls"])
        self._path = tables["critical_path"]
        self._dispatches = self._with_slack(
            timed(tables["dispatches"]).join(
                tables["kernels"].select("kernel_id", "name", "short_name", "library"),
                on="kernel_id",
                how="left",
                maintain_order="left",
            ),
            "dispatch",
            "dispatch_id",
        )
        self._copies = self._with_slack(timed(tables["memory_copies"]), "memory_copy", "copy_id")
        self._gaps = tables["gaps"]
        self._markers = timed(tables["markers"])
        self._samples = tables["system_samples"]
        self._scheduler = tables["scheduler_events"].drop_nulls("duration_ns")
        self._clocks = tables["clock_domains"]
        self._number = count(1)
        self.tracks: list[Track] = []
        events = (self._iterations, self._calls, self._dispatches, self._copies, self._markers)
        starts = [frame.get_column("start_ns").min() for frame in events]
        starts += [frame.get_column("time_ns").min() for frame in (self._samples, self._scheduler)]
        self._zero = min((int(start) for start in starts if isinstance(start, int)), default=0)

    def metadata(self) -> Iterator[tuple[str, str | int | float]]:
        """What a reader of the trace alone must know."""
        yield "session_id", self._session
        yield "axis_moved_by_ns", -self._zero
        for name in ("model_name", "provider", "backend", "host", "fingerprint"):
            if self._facts.height and (value := self._facts.item(0, name)) is not None:
                yield name, str(value)
        for domain, uncertainty in self._clocks.select("domain", "uncertainty_ns").iter_rows():
            yield f"clock {domain}", "unknown" if uncertainty is None else f"±{uncertainty} ns"

    def slices(self) -> pl.DataFrame:
        """All slices, each on its track, in the columns that the encoder takes."""
        empty = pl.DataFrame(schema={"track": pl.UInt64, "start_ns": pl.Int64, "end_ns": pl.Int64, "name": pl.String})
        drawn = (
            *(self._of_iterations(), self._of_critical_path(), self._of_gaps(), self._of_calls_and_kernels()),
            self._of_scheduler(),
        )
        joined = pl.concat([empty, *chain.from_iterable(drawn)], how="diagonal")
        return joined.with_columns(pl.col("start_ns") - self._zero, pl.col("end_ns") - self._zero)

    def counters(self) -> pl.DataFrame:
        """The system samples, one counter track for each column that has values."""
        frames = [pl.DataFrame(schema={"track": pl.UInt64, "time_ns": pl.Int64, "value": pl.Float64})]
        for name, unit in _COUNTERS.items():
            values = self._samples.select(time_ns=pl.col("time_ns") - self._zero, value=pl.col(name).cast(pl.Float64))
            values = values.drop_nulls()
            if values.height:
                track = self._track(name.removesuffix("_ns"), kind="counter", unit=unit)
                frames.append(values.select(pl.lit(track, pl.UInt64).alias("track"), "time_ns", "value"))
        return pl.concat(frames)

    def _track(self, name: str, **settings: object) -> int:
        track = Track(next(self._number), name, **settings)  # type: ignore[arg-type]
        self.tracks.append(track)
        return track.uuid

    def _on_track(self, frame: pl.DataFrame, called: str, parent: int | None = None, /, **columns: Any) -> pl.DataFrame:
        """The frame's rows as slices on a new track of that name; `columns` are those beside the times."""
        track = pl.lit(self._track(called, parent=parent), pl.UInt64)
        return frame.select(track=track, **{"start_ns": "start_ns", "end_ns": "end_ns", "name": "name", **columns})

    def _on_lanes(
        self, frame: pl.DataFrame, called: str, parent: int | None = None, /, **columns: Any
    ) -> Iterator[pl.DataFrame]:
        """The same on a track for each of the frame's lanes."""
        for (lane,), rows in _groups(frame, "lane"):
            yield self._on_track(rows, called if lane == 0 else f"{called}, lane {lane + 1}", parent, **columns)

    def _of_iterations(self) -> Iterator[pl.DataFrame]:
        for (name,), frame in _groups(self._iterations, "pass"):
            yield self._on_track(
                frame,
                f"iterations of the {name} pass",
                name=pl.concat_str(pl.col("phase"), pl.lit(" "), pl.col("iteration").cast(pl.String)),
                category=pl.lit("iteration"),
                iteration=pl.col("iteration").cast(pl.Int64),
                cpu_time_ns="cpu_time_ns",
                run_delay_ns="run_delay_ns",
            )

    def _with_slack(self, frame: pl.DataFrame, kind: str, key: str) -> pl.DataFrame:
        """The activities with slack_ns, null where the path does not know them."""
        own = self._path.filter(pl.col("activity_kind") == kind).select("activity_id", "slack_ns")
        return frame.join(own, left_on=key, right_on="activity_id", how="left", maintain_order="left")

    def _of_critical_path(self) -> Iterator[pl.DataFrame]:
        """The activities without slack, once more on a track of their own, unless that is all of them."""
        if self._path.is_empty() or self._path.get_column("is_critical").all():
            return
        places = pl.concat(
            frame.select("start_ns", "end_ns", activity_kind=pl.lit(kind), activity_id=key, name=name)
            for kind, key, frame, name in (
                ("dispatch", "dispatch_id", self._dispatches, pl.col("name")),
                ("memory_copy", "copy_id", self._copies, _COPY_NAME),
                ("api_call", "call_id", self._calls, pl.col("name")),
            )
        )
        critical = self._path.filter(pl.col("is_critical")).join(
            places, on=["activity_kind", "activity_id"], maintain_order="left"
        )
        yield from self._on_lanes(
            assign_lanes(critical, by=("is_critical",)),
            "critical path",
            category="activity_kind",
            binding_edge="binding_edge",
            unexplained_wait_ns="unexplained_wait_ns",
        )

    def _of_gaps(self) -> Iterator[pl.DataFrame]:
        """When each device had nothing to do, named by why."""
        calls = self._calls.select("call_id", host_call="name")
        named = self._gaps.join(calls, left_on="host_call_id", right_on="call_id", how="left", maintain_order="left")
        for (device,), frame in _groups(named, "device_id"):
            track = f"device {device} idle, by cause"
            yield self._on_track(frame, track, name="cause", category=pl.lit("idle"), host_call="host_call")

    def _of_calls_and_kernels(self) -> Iterator[pl.DataFrame]:
        """Per process: its threads' calls and markers, then what its devices ran; launches point at their kernels."""
        roots: dict[int, int | None] = {}
        for process, pid, command in self._processes.select("process_id", "pid", "command").sort("process_id").rows():
            busy = any(
                (frame.get_column("process_id") == process).any()
                for frame in (self._calls, self._dispatches, self._copies, self._markers)
            )
            name = command or f"process {process if pid is None else pid}"
            roots[process] = self._track(name, kind="process", pid=pid) if busy and pid is not None else None
        for (process, thread), frame in _groups(self._calls, "process_id", "thread_id"):
            calls = nesting_lanes(frame)
            yield from self._on_lanes(
                calls, f"calls, thread {thread}", roots[process], category="domain", **_flow("out")
            )
        for (process, thread), frame in _groups(self._markers, "process_id", "thread_id"):
            where = f"markers, thread {thread}" if thread is not None else "markers, device"
            yield from self._on_lanes(nesting_lanes(frame), where, roots[process], category=pl.lit("marker"))
        yield from self._of_devices(roots)

    def _of_devices(self, roots: Mapping[int, int | None]) -> Iterator[pl.DataFrame]:
        """Kernels and copies by device, queue and stream (thread on the CPU provider), on lanes where they overlap."""
        on_cpu = self._facts.height > 0 and self._facts.item(0, "provider") == CPU_PROVIDER
        places = ("thread_id",) if on_cpu else ("queue_id", "stream_id")
        for (process, device, *where), frame in _groups(self._dispatches, "process_id", "device_id", *places):
            yield from self._on_lanes(
                # On the CPU provider a control-flow operator's kernel contains others; a device's kernels never do.
                nesting_lanes(frame) if on_cpu else assign_lanes(frame, by=("device_id",)),
                f"kernels on device {device}, {_place(places, where)}",
                roots[process],
                category="library",
                **_flow("in"),
                operator="short_name",
                iteration=pl.col("iteration").cast(pl.Int64),
                self_ns="self_ns",
                slack_ns="slack_ns",
            )
        places = ("queue_id", "stream_id")
        for (process, device, *where), frame in _groups(self._copies, "process_id", "device_id", *places):
            yield from self._on_lanes(
                assign_lanes(frame, by=("process_id",)),
                f"copies on device {'unknown' if device is None else device}, {_place(places, where)}",
                roots[process],
                name=_COPY_NAME,
                category=pl.lit("copy"),
                **_flow("in"),
                size_bytes="size_bytes",
                slack_ns="slack_ns",
            )

    def _of_scheduler(self) -> Iterator[pl.DataFrame]:
        by = ("thread_id", "kind")
        for (thread, kind), frame in sorted(self._scheduler.group_by(*by), key=lambda one: str(one[0])):
            yield self._on_track(
                frame,
                f"{kind} of thread {thread}",
                start_ns="time_ns",
                end_ns=pl.col("time_ns") + pl.col("duration_ns"),
                name="kind",
                category=pl.lit("scheduler"),
                cpu=pl.col("cpu").cast(pl.Int64),
            )


def _place(columns: Sequence[str], values: Sequence[int | None]) -> str:
    """Where something ran, in words: `queue 1, stream 3`; only what is known of it."""
    known = [f"{c.removesuffix('_id')} {v}" for c, v in zip(columns, values, strict=True) if v is not None]
    return ", ".join(known) or f"{columns[-1].removesuffix('_id')} unknown"


def _groups(frame: pl.DataFrame, *keys: str) -> list[tuple[tuple[Any, ...], pl.DataFrame]]:
    """The frame by the values of `keys`, in their order, null last."""
    return sorted(frame.group_by(*keys, maintain_order=True), key=lambda one: [(k is None, k or 0) for k in one[0]])


def _flow(role: str) -> dict[str, pl.Expr]:
    """The columns of a flow between a launch and what it launched; correlations are unique only within a process."""
    correlation = pl.col("correlation_id")
    return {
        "flow_id": correlation + pl.col("process_id").cast(pl.UInt64) * _CORRELATIONS_OF_A_PROCESS,
        "flow_role": pl.when(correlation.is_not_null()).then(pl.lit(role)),
    }
