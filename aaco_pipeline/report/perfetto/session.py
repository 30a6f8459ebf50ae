"""Lay out a session's tables as a Perfetto trace: the track of every row, counters, and annotations.

`encoding` creates the bytes; `aaco_pipeline.report.on_demand` stores the file.
"""

from collections.abc import Iterator, Sequence
from itertools import count
from pathlib import Path
from typing import Final

import polars as pl

from aaco_pipeline.analysis.timeline.activities import timed
from aaco_pipeline.lake.on_disk import release
from aaco_pipeline.providers import CPU_PROVIDER
from aaco_pipeline.report.perfetto import kernel_plane
from aaco_pipeline.report.perfetto.encoding import TraceSummary, Track, write_trace
from aaco_pipeline.report.perfetto.lanes import Rule
from aaco_pipeline.report.perfetto.tables import Batches, CallNames, Groups, PathRows, whole

#: Columns of `system_samples` that become counters, with their units.
_OF_HOST: Final = {
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
#: Columns of `gpu_samples` that become counters, with names and units.
_OF_DEVICE: Final = {
    "power_w": ("power", "W"),
    "gfx_clock_mhz": ("engine clock", "MHz"),
    "memory_clock_mhz": ("memory clock", "MHz"),
    "gfx_activity_ratio": ("engine activity", "ratio"),
    "memory_activity_ratio": ("memory activity", "ratio"),
    "temperature_hotspot_c": ("hotspot", "°C"),
    "memory_used_bytes": ("memory in use", "bytes"),
}


class Samples:
    """One session's samples, on the session's axis."""

    def __init__(self, batches: Batches) -> None:
        self._host = whole(batches, "system_samples", ("time_ns", *_OF_HOST))
        self._devices = whole(batches, "gpu_samples", ("time_ns", "device_id", *_OF_DEVICE, "throttle_reasons"))

    def starts(self) -> Sequence[object]:
        """Return the start of each frame, None for an empty one."""
        return [frame.get_column("time_ns").min() for frame in (self._host, self._devices)]

    def counters(self) -> Iterator[tuple[str, str, pl.DataFrame]]:
        """Yield each column with values: its name, its unit, and a frame of time_ns and value."""
        for column, unit in _OF_HOST.items():
            yield from _counter(column.removesuffix("_ns"), unit, self._host, column)
        for (device,), own in self._devices.group_by("device_id", maintain_order=True):
            for column, (name, unit) in _OF_DEVICE.items():
                yield from _counter(f"{name} of device {device}", unit, own, column)

    def held_down(self) -> pl.DataFrame:
        """Return the intervals in which a limit throttled a device; a sample covers the time since the previous sample.

        Returns:
            device_id, start_ns, end_ns, and name, which lists the limits.
        """
        since = pl.col("time_ns").shift(1).over("device_id", order_by="time_ns").fill_null(pl.col("time_ns"))
        return (
            self._devices.with_columns(start_ns=since)
            .filter(pl.col("throttle_reasons").list.len() > 0)
            .select("device_id", "start_ns", end_ns="time_ns", name=pl.col("throttle_reasons").list.join(", "))
        )


def _counter(name: str, unit: str, samples: pl.DataFrame, column: str) -> Iterator[tuple[str, str, pl.DataFrame]]:
    values = samples.select("time_ns", value=pl.col(column).cast(pl.Float64)).drop_nulls()
    if values.height:
        yield name, unit, values


#: Copies whose direction is unknown are labelled as copies.
_COPY_NAME: Final = pl.col("direction").fill_null("copy")
#: Exceeds every correlation number within a process.
_CORRELATIONS_OF_A_PROCESS: Final = 1 << 48
_TIMES: Final = ("start_ns", "end_ns")
#: Columns of the critical path; like the path, activity tables are ordered by number.
_PATH: Final = ("activity_kind", "activity_id", "slack_ns", "is_critical", "binding_edge", "unexplained_wait_ns")
_CALLS: Final = ("call_id", "process_id", "thread_id", "domain", "name", "correlation_id", *_TIMES)
_MARKERS: Final = ("process_id", "thread_id", "name", *_TIMES)
_DISPATCHES: Final = (
    *("dispatch_id", "process_id", "thread_id", "device_id", "queue_id", "stream_id", "kernel_id", "correlation_id"),
    *(*_TIMES, "iteration", "self_ns"),
)
_COPIES: Final = (
    *("copy_id", "process_id", "device_id", "direction", "size_bytes", "queue_id", "stream_id", "correlation_id"),
    *_TIMES,
)
_SCHEDULER: Final = ("time_ns", "cpu", "thread_id", "kind", "duration_ns")
_THREAD: Final = ("process_id", "thread_id")
_QUEUE: Final = ("process_id", "device_id", "queue_id", "stream_id")
_EVENT: Final = ("thread_id", "kind")
_ITERATION: Final = ("pass", "iteration")


def write_session_trace(session: str, batches: Batches, path: Path) -> TraceSummary:
    """Write the session's unified trace: iterations, critical path, idle time, calls, kernels, kernel plane, counters.

    `batches` reads the tables in `on_demand.DRAWN`. The session's axis is moved so that its earliest time is 0, as
    Perfetto knows no negative times; the instant `session` at the start states by how much, and the uncertainty of each
    clock.
    """
    layout = _Layout(session, batches)
    counters = layout.counters()
    return write_trace(
        path,
        layout.tracks,
        layout.slices(),
        counters,
        metadata=dict(layout.metadata()),
        scheduling=layout.scheduling(),
    )


class _Layout:
    """The tracks, determined from a few columns, and all slices in batches of rows."""

    def __init__(self, session: str, batches: Batches) -> None:
        self._session, self._batches = session, batches
        facts = ("model_name", "provider", "backend", "host", "fingerprint")
        self._facts = self._whole("sessions", *facts)
        self._iterations = self._whole(
            "iterations", "pass", "phase", "iteration", *_TIMES, "cpu_time_ns", "run_delay_ns"
        )
        # A spike is annotated with its cause, any other iteration with its disturbance.
        told = ("grade", "is_spike", "excess_ns", "spike_cause", "disturbed_by")
        cause = pl.when("is_spike").then("spike_cause").otherwise("disturbed_by")
        grades = self._whole("iteration_grades", *_ITERATION, *told).with_columns(cause=cause)
        self._iterations = self._iterations.join(grades, on=_ITERATION, how="left", maintain_order="left")
        self._between = self._whole("iteration_gaps", "pass", "before_iteration", *_TIMES)
        self._samples = Samples(batches)
        self._kernel = kernel_plane.KernelPlane(batches)
        self._clocks = self._whole("clock_domains", "domain", "uncertainty_ns")
        self._on_cpu = self._facts.height > 0 and self._facts.item(0, "provider") == CPU_PROVIDER
        places = (*_THREAD[:1], "device_id", "thread_id") if self._on_cpu else _QUEUE
        self._calls = self._groups("api_calls", _THREAD)
        self._markers = self._groups("markers", _THREAD)
        self._dispatches = self._groups("dispatches", places)
        self._copies = self._groups("memory_copies", _QUEUE)
        self._scheduler = Groups("scheduler_events", _EVENT, batches("scheduler_events", _SCHEDULER))
        grouped = (self._calls, self._markers, self._dispatches, self._copies, self._scheduler)
        starts: list[object] = [one.get_column("start_ns").min() for one in (self._iterations, self._between)]
        starts += [*(groups.first_ns for groups in grouped), *self._samples.starts(), *self._kernel.starts()]
        self._zero = min((int(start) for start in starts if isinstance(start, int)), default=0)
        self._number = count(1)
        self.tracks: list[Track] = []
        self._lay_out()

    def _whole(self, table: str, *columns: str) -> pl.DataFrame:
        return whole(self._batches, table, columns)

    def _groups(self, table: str, keys: tuple[str, ...]) -> Groups:
        return Groups(table, keys, self._batches(table, (*keys, *_TIMES)))

    def metadata(self) -> Iterator[tuple[str, str | int | float]]:
        """Return facts for readers who only have the trace."""
        yield "session_id", self._session
        yield "axis_moved_by_ns", -self._zero
        for name in ("model_name", "provider", "backend", "host", "fingerprint"):
            if self._facts.height and (value := self._facts.item(0, name)) is not None:
                yield name, str(value)
        for domain, uncertainty in self._clocks.select("domain", "uncertainty_ns").iter_rows():
            yield f"clock {domain}", "unknown" if uncertainty is None else f"±{uncertainty} ns"

    def slices(self) -> Iterator[pl.DataFrame]:
        """Yield all slices with their tracks, in the encoder's columns."""
        for piece in self._pieces():
            yield piece.with_columns(pl.col(_TIMES) - self._zero)

    def counters(self) -> pl.DataFrame:
        """Yield all samples and counts with their tracks."""
        frames = [pl.DataFrame(schema={"track": pl.UInt64, "time_ns": pl.Int64, "value": pl.Float64})]
        for name, unit, values in self._samples.counters():
            track = pl.lit(self._track(name, kind="counter", unit=unit), pl.UInt64)
            frames.append(values.select(track.alias("track"), "time_ns", "value"))
        frames += self._kernel.counters()
        return pl.concat(frames).with_columns(pl.col("time_ns") - self._zero)

    def scheduling(self) -> Iterator[bytes]:
        """Return the kernel's switches and wake-ups, for the viewer's CPU slices and thread states."""
        return self._kernel.scheduling(self._zero)

    def _track(self, name: str, **settings: object) -> int:
        track = Track(next(self._number), name, **settings)  # type: ignore[arg-type]
        self.tracks.append(track)
        return track.uuid

    def _lay_out(self) -> None:
        """Create all tracks of slices, from the top of the viewer down.

        For each process, calls and markers of its threads come before the work of its devices.
        """
        passes = self._iterations.get_column("pass").unique().sort().to_list()
        self._passes = {name: self._track(f"iterations of the {name} pass") for name in passes}
        gapped = self._between.get_column("pass").unique().sort().to_list()
        self._gapped = {name: self._track(f"between iterations of the {name} pass") for name in gapped}
        critical = pl.concat(self._batches("critical_path", ("is_critical",))).get_column("is_critical")
        # A path that contains everything is not drawn twice.
        self._critical = None if critical.all() else self._track("critical path", lanes=Rule.FLAT)
        devices = pl.concat([b.unique() for b in self._batches("gaps", ("device_id",))]).unique().sort("device_id")
        self._idle = {device: self._track(f"device {device} idle, by cause") for (device,) in devices.iter_rows()}
        self._held_down = self._samples.held_down()
        limited = self._held_down.get_column("device_id").unique().sort().to_list()
        self._limited = {device: self._track(f"device {device} held down, by limit") for device in limited}
        pids = set[int]()
        busy = self._kernel.processes().union(
            *(groups.processes() for groups in (self._calls, self._dispatches, self._copies, self._markers))
        )
        # An unfinished session may lack the table of processes; their tracks are then unnamed.
        roots: dict[int, int | None] = dict.fromkeys(busy)
        processes = self._whole("processes", "process_id", "pid", "command").sort("process_id")
        for process, pid, command in processes.rows():
            name = command or f"process {process if pid is None else pid}"
            if process not in busy or pid is None:
                roots[process] = None
                continue
            # Processes of other hosts or containers may share a pid; the viewer would merge them.
            roots[process] = self._track(name, **({} if pid in pids else {"kind": "process", "pid": pid}))
            pids.add(pid)
        for process, thread in self._calls:
            name = f"calls, thread {thread}"
            self._calls.name(self._track(name, parent=roots[process], lanes=Rule.STACK))
        for process, thread in self._markers:
            name = f"markers, thread {thread}" if thread is not None else "markers, device"
            self._markers.name(self._track(name, parent=roots[process], lanes=Rule.STACK))
        # On the CPU provider a control-flow operator's kernel contains others; a device's kernels never do.
        rule = Rule.STACK if self._on_cpu else Rule.FLAT
        for process, device, *where in self._dispatches:
            name = f"kernels on device {device}, {_place(self._dispatches.keys[2:], where)}"
            self._dispatches.name(self._track(name, parent=roots[process], lanes=rule))
        for process, device, *where in self._copies:
            known_device = "unknown" if device is None else device
            name = f"copies on device {known_device}, {_place(self._copies.keys[2:], where)}"
            self._copies.name(self._track(name, parent=roots[process], lanes=Rule.FLAT))
        for thread, kind in self._scheduler:
            self._scheduler.name(self._track(f"{kind} of thread {thread}"))
        self._kernel.lay_out(self._track, roots)

    def _pieces(self) -> Iterator[pl.DataFrame]:
        path = PathRows(self._batches("critical_path", _PATH))
        calls = CallNames()
        yield from self._of_iterations()
        yield from self._between_iterations()
        yield from self._of_calls(path, calls)
        yield from self._of_dispatches(path)
        yield from self._of_copies(path)
        yield from self._of_gaps(calls)
        yield from self._of_markers()
        yield from self._of_scheduler()
        yield from self._of_limits()
        yield from self._kernel.slices()

    def _of_iterations(self) -> Iterator[pl.DataFrame]:
        for name, track in self._passes.items():
            yield self._iterations.filter(pl.col("pass") == name).select(
                *_TIMES,
                track=pl.lit(track, pl.UInt64),
                name=pl.concat_str(pl.col("phase"), pl.lit(" "), pl.col("iteration").cast(pl.String)),
                category=pl.lit("iteration"),
                iteration=pl.col("iteration").cast(pl.Int64),
                cpu_time_ns="cpu_time_ns",
                run_delay_ns="run_delay_ns",
                grade="grade",
                cause="cause",
                excess_ns="excess_ns",
            )

    def _between_iterations(self) -> Iterator[pl.DataFrame]:
        for name, track in self._gapped.items():
            yield self._between.filter(pl.col("pass") == name).select(
                *_TIMES,
                track=pl.lit(track, pl.UInt64),
                name=pl.concat_str(pl.lit("before "), pl.col("before_iteration").cast(pl.String)),
                category=pl.lit("gap"),
            )

    def _critical_of(self, path: pl.DataFrame, activities: pl.DataFrame, key: str) -> Iterator[pl.DataFrame]:
        """Return activities without slack, repeated on a separate track."""
        if self._critical is not None:
            critical = path.filter(pl.col("is_critical")).join(
                activities.select(key, *_TIMES, "name"), left_on="activity_id", right_on=key, maintain_order="left"
            )
            yield critical.select(
                *_TIMES,
                "name",
                track=pl.lit(self._critical, pl.UInt64),
                category="activity_kind",
                binding_edge="binding_edge",
                unexplained_wait_ns="unexplained_wait_ns",
            )

    def _of_calls(self, path: PathRows, names: CallNames) -> Iterator[pl.DataFrame]:
        """Yield calls; launches point to their kernels."""
        for batch in self._batches("api_calls", _CALLS):
            calls = names.take(timed(batch))
            yield from self._critical_of(path.beside("api_call", batch.get_column("call_id")), calls, "call_id")
            yield self._calls.on_tracks(calls).select("track", *_TIMES, "name", category="domain", **_flow("out"))

    def _of_dispatches(self, path: PathRows) -> Iterator[pl.DataFrame]:
        kernels = self._whole("kernels", "kernel_id", "name", "short_name", "library")
        kernels = kernels.with_columns(
            pl.col(name).cast(pl.Enum(kernels.get_column(name).drop_nulls().unique()))
            for name in ("name", "short_name", "library")
        )
        for batch in self._batches("dispatches", _DISPATCHES):
            run = timed(batch).join(kernels, on="kernel_id", how="left", maintain_order="left")
            beside = path.beside("dispatch", batch.get_column("dispatch_id"))
            yield from self._critical_of(beside, run, "dispatch_id")
            yield self._dispatches.on_tracks(_with_slack(run, "dispatch_id", beside)).select(
                *("track", *_TIMES, "name"),
                category="library",
                **_flow("in"),
                operator="short_name",
                iteration=pl.col("iteration").cast(pl.Int64),
                self_ns="self_ns",
                slack_ns="slack_ns",
            )

    def _of_copies(self, path: PathRows) -> Iterator[pl.DataFrame]:
        for batch in self._batches("memory_copies", _COPIES):
            copies = timed(batch).with_columns(name=_COPY_NAME)
            beside = path.beside("memory_copy", batch.get_column("copy_id"))
            yield from self._critical_of(beside, copies, "copy_id")
            yield self._copies.on_tracks(_with_slack(copies, "copy_id", beside)).select(
                *("track", *_TIMES, "name"),
                category=pl.lit("copy"),
                **_flow("in"),
                size_bytes="size_bytes",
                slack_ns="slack_ns",
            )

    def _of_gaps(self, calls: CallNames) -> Iterator[pl.DataFrame]:
        """Yield idle times of each device, named by cause."""
        name_of = calls.by_number()
        tracks = pl.Series([*self._idle.values()], dtype=pl.UInt64)
        tracks_of = pl.DataFrame({"device_id": pl.Series([*self._idle], dtype=pl.Int32), "track": tracks})
        for batch in self._batches("gaps", ("device_id", *_TIMES, "cause", "host_call_id")):
            yield batch.join(tracks_of, on="device_id", how="left", maintain_order="left").select(
                *("track", *_TIMES),
                name="cause",
                category=pl.lit("idle"),
                host_call=name_of(batch.get_column("host_call_id")),
            )
            release()

    def _of_markers(self) -> Iterator[pl.DataFrame]:
        for batch in self._batches("markers", _MARKERS):
            rows = self._markers.on_tracks(timed(batch))
            yield rows.select("track", *_TIMES, "name", category=pl.lit("marker"))

    def _of_scheduler(self) -> Iterator[pl.DataFrame]:
        for batch in self._batches("scheduler_events", _SCHEDULER):
            yield self._scheduler.on_tracks(batch.drop_nulls("duration_ns")).select(
                "track",
                start_ns="time_ns",
                end_ns=pl.col("time_ns") + pl.col("duration_ns"),
                name="kind",
                category=pl.lit("scheduler"),
                cpu=pl.col("cpu").cast(pl.Int64),
            )

    def _of_limits(self) -> Iterator[pl.DataFrame]:
        """Yield intervals in which a limit throttled each device."""
        for device, track in self._limited.items():
            own = self._held_down.filter(pl.col("device_id") == device)
            yield own.select(*_TIMES, "name", track=pl.lit(track, pl.UInt64), category=pl.lit("limit"))


def _with_slack(rows: pl.DataFrame, key: str, path: pl.DataFrame) -> pl.DataFrame:
    """Add slack_ns, null for activities that are not on the path."""
    slack = path.select("activity_id", "slack_ns")
    return rows.join(slack, left_on=key, right_on="activity_id", how="left", maintain_order="left")


def _place(columns: Sequence[str], values: Sequence[int | None]) -> str:
    """Describe the location of an activity, as far as known: `queue 1, stream 3`."""
    known = [f"{c.removesuffix('_id')} {v}" for c, v in zip(columns, values, strict=True) if v is not None]
    return ", ".join(known) or f"{columns[-1].removesuffix('_id')} unknown"


def _flow(role: str) -> dict[str, pl.Expr]:
    """Return the flow columns from a launch to its activity; correlations are unique only within a process."""
    correlation = pl.col("correlation_id")
    return {
        "flow_id": correlation + pl.col("process_id").cast(pl.UInt64) * _CORRELATIONS_OF_A_PROCESS,
        "flow_role": pl.when(correlation.is_not_null()).then(pl.lit(role)),
    }
