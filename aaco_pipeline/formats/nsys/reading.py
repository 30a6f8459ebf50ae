"""Read device activities, API calls, ranges and waits of an Nsight Systems export into canonical tables.

`export` opens the export and reads its processes and devices; the package documents the format.
"""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Final

import polars as pl

from aaco_pipeline.formats.capture_tables import CaptureTables, Findings, Limits, described_kernels, dispatch_table
from aaco_pipeline.formats.nsys import export as nsys
from aaco_pipeline.formats.nsys.export import (
    CALLS,
    NO_NUMBER,
    PID_BITS,
    PID_SHIFT,
    RANGES,
    Export,
    say_end,
    say_messages,
)
from aaco_pipeline.formats.parsing.lookup import Lookup
from aaco_pipeline.formats.parsing.sqlite_database import opened
from aaco_pipeline.lake.evidence import AS_A_WHOLE, WHOLE_GRAPHS, Status
from aaco_pipeline.lake.validation import to_contract

AXES: Final = tuple(f"{what}_{axis}" for what in ("grid", "workgroup") for axis in "xyz")
_RESOURCES: Final = ("static_lds_bytes", "static_scratch_bytes")
#: CUDA's copy kinds by number; arrays are in device memory, and managed memory migrates on its own.
_DIRECTIONS: Final = {
    **dict.fromkeys((1, 3, 11), "host_to_device"),
    **dict.fromkeys((2, 4, 12), "device_to_host"),
    **dict.fromkeys((5, 6, 7, 8, 10, 13), "device_to_device"),
    9: "host_to_host",
}
#: Kinds of waits, by the name of their call.
_WAIT_CALLS: Final = {
    "^(?:cudaDevice|cudaThread|cuCtx)Synchronize": "device_synchronize",
    "^(?:cuda|cu)StreamSynchronize": "stream_synchronize",
    "^(?:cuda|cu)EventSynchronize": "event_synchronize",
    "^(?:cuda|cu)StreamWaitEvent": "stream_wait_event",
}
#: CUPTI's numbers for kinds of waits.
_WAIT_KINDS: Final = dict(
    enumerate(("event_synchronize", "stream_wait_event", "stream_synchronize", "device_synchronize"), 1)
)
_NO_EVENT: Final = 0xFFFFFFFF
_FILL: Final = "fill"
_WHO: Final = ("process_id", "device_id", "stream_id", "correlation_id", "start_ns", "end_ns")


def kernels(recorded: pl.DataFrame, graphs: pl.DataFrame, names: Lookup) -> pl.DataFrame:
    """List executed kernels, and graphs recorded as a single unit, with `name` and `symbol`."""
    spellings = ("demangled", "short", "mangled")
    own = recorded.with_columns(names.applied(recorded.get_column(one)).alias(one) for one in spellings)
    own = own.with_columns(symbol="mangled", name=pl.coalesce(*spellings, pl.lit("kernel not stated")))
    numbered = pl.concat_str(pl.lit("CUDA graph "), pl.col("graph"), pl.lit(AS_A_WHOLE))
    whole = graphs.with_columns(name=numbered.fill_null(f"CUDA graph{AS_A_WHOLE}"))
    return pl.concat([own, whole], how="diagonal")


def dispatches(ran: pl.DataFrame) -> tuple[pl.DataFrame, pl.DataFrame, pl.DataFrame]:
    """Build the tables `kernels` and `dispatches` and the detail `launch_facts` from the rows of `kernels`."""
    what = ["name", "symbol", *_RESOURCES]
    distinct = ran.select(what).unique(maintain_order=True)
    distinct = distinct.with_columns(kernel_id=pl.int_range(pl.len(), dtype=pl.Int32))
    rows = ran.with_columns(dispatch_id=pl.int_range(pl.len(), dtype=pl.Int32))
    rows = rows.join(distinct, on=what, how="left", nulls_equal=True, maintain_order="left")
    table = dispatch_table(
        rows.select(
            *(*_WHO, "dispatch_id", "kernel_id", "thread_id"),
            *(pl.col(f"workgroup_{axis}") for axis in "xyz"),
            # The export counts blocks.
            *((pl.col(f"grid_{axis}") * pl.col(f"workgroup_{axis}")).alias(f"grid_{axis}") for axis in "xyz"),
            lds_allocated_bytes=pl.col("static_lds_bytes") + pl.col("dynamic_lds_bytes"),
            scratch_bytes="static_scratch_bytes",
            graph_node_id=pl.when(pl.col("graph_node") > 0).then("graph_node").cast(pl.UInt64, strict=False),
        )
    )
    facts = rows.select("dispatch_id", "registers_per_thread").drop_nulls()
    return described_kernels(distinct), table, facts


def copies(moved: pl.DataFrame, filled: pl.DataFrame, devices: pl.DataFrame) -> pl.DataFrame:
    """Build the table `memory_copies`; `devices` maps a process's own device numbers to `device_id`."""
    direction = pl.col("kind").replace_strict(_DIRECTIONS, default=None, return_dtype=pl.String)
    both = [moved.with_columns(direction=direction), filled.with_columns(direction=pl.lit(_FILL))]
    rows = pl.concat(both, how="diagonal")
    for end in ("source", "destination"):
        known = devices.drop_nulls().rename({"device": end, "device_id": f"{end}_known"})
        rows = rows.join(known, on=["process_id", end], how="left", maintain_order="left")
    own = pl.col("device_id")
    is_from = pl.col("direction").is_in(["device_to_host", "device_to_device"])
    is_to = pl.col("direction").is_in(["host_to_device", "device_to_device", _FILL])
    # A copy between two devices names both; any other names only the one that carried it out.
    peers = pl.col("kind") == 10
    return to_contract(
        "memory_copies",
        rows.select(
            *_WHO,
            "direction",
            copy_id=pl.int_range(pl.len(), dtype=pl.Int32),
            source_device_id=pl.coalesce("source_known", pl.when(is_from & peers.not_()).then(own)),
            destination_device_id=pl.coalesce("destination_known", pl.when(is_to & ~peers.fill_null(False)).then(own)),
            size_bytes=pl.when(pl.col("bytes") >= 0).then("bytes"),
        ),
    )


def waits(recorded: pl.DataFrame, events: pl.DataFrame, *, numbered_right: bool) -> pl.DataFrame:
    """Build the table `synchronizations`; `events` are recorded events that a wait refers to by number.

    A wait's kind comes from its call, or without a call from waits of the same number with known calls. Real exports
    before schema 3.25 number the kinds differently than their own list, so the number alone is only used since then
    (`numbered_right`).
    """
    named = events.filter(pl.col("event").is_between(1, _NO_EVENT - 1)).select(
        "process_id",
        "event",
        waited_stream_id="stream_id",
        waited_correlation_id=pl.when(pl.col("correlation") > 0).then("correlation").cast(pl.UInt64, strict=False),
    )
    key = ["process_id", "event"]
    rows = recorded.join(named.unique(key, keep="none"), on=key, how="left", maintain_order="left")
    said = (pl.when(pl.col("call").str.contains(pattern)).then(pl.lit(kind)) for pattern, kind in _WAIT_CALLS.items())
    rows = rows.with_columns(said=pl.coalesce(said))
    alike = rows.drop_nulls(["said", "kind"]).select("kind", alike="said").unique().unique("kind", keep="none")
    rows = rows.join(alike, on="kind", how="left", maintain_order="left")
    stated = pl.col("kind").replace_strict(_WAIT_KINDS, default=None, return_dtype=pl.String)
    return to_contract(
        "synchronizations",
        rows.select(
            *_WHO,
            *("waited_stream_id", "waited_correlation_id"),
            synchronization_id=pl.int_range(pl.len(), dtype=pl.Int32),
            kind=pl.coalesce("said", "alike", *([stated] if numbered_right else []), pl.lit("unknown")),
        ),
    )


_STARTS_AND_ENDS: Final = {"start_ns": "start", "end_ns": "end"}
_TIMES: Final = tuple(_STARTS_AND_ENDS)
_HOST: Final = {**_STARTS_AND_ENDS, "global": "globalTid"}
_CALL: Final = {**_HOST, "correlation": "correlationId", "class": "eventClass", "name_id": "nameId"}
_RANGE: Final = {**_HOST, "type": "eventType", "text_id": "textId"}
#: Classes of calls. With backtraces, older releases write a call twice, the second time with another class.
_RUNTIME: Final = 0
_DRIVER: Final = 1
#: NVTX events that are a mark or a range; the others name threads, categories, domains and objects.
_MARK: Final = 34
_SPANS: Final = (59, 60)
#: Suffix of a runtime function's name: its CUDA version.
_API_VERSION: Final = r"_v\d{4,5}$"


def recorded_calls(export: Export, findings: Findings) -> tuple[pl.DataFrame, int]:
    """Read the calls with their names, without duplicates; return them and the number of skipped rows."""
    rows = export.integers(CALLS, _CALL)
    names = export.names.applied(rows.get_column("name_id")).alias("name")
    every = placed(rows.with_columns(names))
    rows = every.drop_nulls(_TIMES)
    lost = every.height - rows.height
    findings.note(lost, f"unusable rows of {CALLS}", "invalid", f"{lost} rows without times; left out")
    own = pl.col("class").is_in([_RUNTIME, _DRIVER]).fill_null(True)
    key = ["process", "correlation"]
    once = rows.filter(own).select(key).unique()
    repeated = rows.filter(own.not_()).join(once, on=key, how="semi", nulls_equal=True).height
    reason = f"{repeated} calls are there twice, the second time with their backtrace; taken once"
    findings.note(repeated, "calls with backtraces", "present", reason)
    others = rows.filter(own.not_()).join(once, on=key, how="anti", nulls_equal=True)
    if repeated:
        rows = pl.concat([rows.filter(own), others]).sort("start_ns", maintain_order=True)
    return rows, lost + repeated


def recorded_ranges(export: Export, findings: Findings) -> pl.DataFrame:
    """Read the NVTX ranges and marks, each with its text."""
    rows = export.integers(RANGES, _RANGE)
    texts = export.texts(RANGES, "text")
    texts = texts if len(texts) == rows.height else texts.clear(rows.height)
    registered = export.names.applied(rows.get_column("text_id"))
    rows = placed(rows.with_columns(name=texts)).with_columns(
        name=pl.coalesce("name", registered), type=pl.col("type").fill_null(_SPANS[0])
    )
    open_count = rows.filter(pl.col("type").is_in(_SPANS) & pl.col("end_ns").is_null()).height
    reason = f"{open_count} ranges were still open when the recording ended; left out"
    findings.note(open_count, "open NVTX ranges", "partial", reason)
    marks = pl.col("type") == _MARK
    rows = rows.with_columns(end_ns=pl.when(marks).then("start_ns").otherwise("end_ns"))
    return rows.filter(marks | pl.col("type").is_in(_SPANS)).drop_nulls(_TIMES)


def api_calls(recorded: pl.DataFrame) -> pl.DataFrame:
    """Build the table `api_calls` from the rows of `recorded_calls`."""
    name = pl.col("name").fill_null("call not stated").str.replace(_API_VERSION, "")
    rows = recorded.with_columns(name)
    by_name = pl.col("name").str.contains("^cu[A-Z]")
    is_driver = pl.when(pl.col("class").is_null()).then(by_name).otherwise(pl.col("class") == _DRIVER)
    return to_contract(
        "api_calls",
        rows.select(
            *("process_id", "name", "start_ns", "end_ns"),
            call_id=pl.int_range(pl.len(), dtype=pl.Int32),
            thread_id="thread",
            domain=pl.when(is_driver).then(pl.lit("cuda_driver")).otherwise(pl.lit("cuda_runtime")),
            correlation_id=correlation(),
        ),
    )


def markers(recorded: pl.DataFrame) -> pl.DataFrame:
    """Build the table `markers` from the rows of `recorded_ranges`."""
    return to_contract(
        "markers",
        recorded.select(
            *("process_id", "start_ns", "end_ns"),
            marker_id=pl.int_range(pl.len(), dtype=pl.Int32),
            thread_id="thread",
            name=pl.col("name").fill_null(""),
        ),
    )


def placed(rows: pl.DataFrame) -> pl.DataFrame:
    """Replace the serialized identifier with `process`, the process's identifier, and `thread`."""
    identifier = pl.col("global")
    # Negative identifiers are the profiler's own.
    known, thread = pl.when(identifier >= 0), identifier % (PID_BITS + 1)
    return rows.with_columns(process=known.then(identifier - thread), thread=known.then(thread)).drop("global")


def correlation() -> pl.Expr:
    """Read the correlation as an unsigned number; 0 or less means none."""
    return pl.when(pl.col("correlation") > 0).then("correlation").cast(pl.UInt64, strict=False)


_LANE: Final = {
    **{"device": "deviceId", "context": "contextId", "stream": "streamId"},
    **{"correlation": "correlationId", "global": "globalPid"},
}
_DEVICE: Final = {**_STARTS_AND_ENDS, **_LANE}
#: Columns read for each kind of device activity.
_ACTIVITIES: Final[Mapping[str, Mapping[str, str]]] = {
    nsys.KERNELS: {
        **_DEVICE,
        **{"demangled": "demangledName", "short": "shortName", "mangled": "mangledName"},
        **dict(zip(AXES, ("gridX", "gridY", "gridZ", "blockX", "blockY", "blockZ"), strict=True)),
        **{"registers_per_thread": "registersPerThread", "static_lds_bytes": "staticSharedMemory"},
        **{"dynamic_lds_bytes": "dynamicSharedMemory", "static_scratch_bytes": "localMemoryPerThread"},
        "graph_node": "graphNodeId",
    },
    nsys.GRAPHS: {**_DEVICE, "graph": "graphId"},
    nsys.COPIES: {
        **_DEVICE,
        **{"bytes": "bytes", "kind": "copyKind", "source": "srcDeviceId", "destination": "dstDeviceId"},
    },
    nsys.FILLS: {**_DEVICE, "bytes": "bytes"},
    nsys.WAITS: {**_DEVICE, "kind": "syncType", "event": "eventSyncId"},
}
_EVENT: Final = {**_LANE, "event": "eventSyncId"}
#: CUPTI's device number for work that begins on the host.
_ON_HOST: Final = 0x7FFFFFFF


def read(path: Path, limits: Limits) -> CaptureTables:
    """See `aaco_pipeline.formats.nsys.read`."""
    with opened(path, limits) as database:
        return _Reading(Export(database, limits), path.name).reading()


class _Reading:
    """The records of one export being converted to tables; each step adds its evidence."""

    def __init__(self, export: Export, source: str) -> None:
        self.export, self.findings = export, Findings(source)
        self.settings = nsys.settings(export)
        self.lost: dict[str, int] = {}
        self.activities = {kind: self._activities(kind, columns) for kind, columns in _ACTIVITIES.items()}
        self.calls, repeated = recorded_calls(export, self.findings)
        self.lost[nsys.CALLS] = repeated
        self.ranges = recorded_ranges(export, self.findings)
        self.events = _numbers(placed(export.integers(nsys.EVENTS, _EVENT)))

    def reading(self) -> CaptureTables:
        """Build all tables and their evidence."""
        processes = self._number_processes()
        devices, streams = self._number_devices()
        calls = api_calls(self.calls)
        link = self._link(calls)
        launched = {kind: self._launched(kind, frame, link) for kind, frame in self.activities.items()}
        whole = self._whole_graphs(launched)
        ran = kernels(launched[nsys.KERNELS], whole, self.export.names)
        named, executed, facts = dispatches(ran)
        tables = {
            "processes": processes,
            "devices": devices,
            "clock_domains": nsys.clocks(self.export, self.settings, self.findings),
            "environment": nsys.environment(self.settings),
            "kernels": named,
            "dispatches": executed,
            "api_calls": calls,
            "memory_copies": copies(launched[nsys.COPIES], launched[nsys.FILLS], self.device_numbers),
            "markers": markers(self.ranges),
            "synchronizations": waits(launched[nsys.WAITS], self.events, numbered_right=self._numbers_waits_right()),
        }
        self._say(tables)
        details = {"source_rows": self.findings.source_rows(), "streams": streams}
        if facts.height:
            details["launch_facts"] = facts
        return CaptureTables(tables, tuple(self.findings.evidence), details)

    def _activities(self, kind: str, columns: Mapping[str, str]) -> pl.DataFrame:
        """Read the device activities of a kind; those without times or device are dropped, except kernels."""
        rows = _numbers(placed(self.export.integers(kind, columns)))
        # CUPTI writes zero for both times if it could not record them.
        unknown = (pl.col("start_ns") == 0) & (pl.col("end_ns") == 0)
        rows = rows.with_columns(pl.when(~unknown).then(name).alias(name) for name in _TIMES)
        if kind != nsys.KERNELS:
            return self._sound(kind, rows)
        untimed = rows.get_column("start_ns").null_count()
        reason = f"{untimed} kernels have no times: CUPTI could not take them; kept without"
        self.findings.note(untimed, "times of kernels", "partial", reason)
        return rows

    def _sound(self, kind: str, rows: pl.DataFrame) -> pl.DataFrame:
        """Drop rows without times, and report how many."""
        sound = rows.drop_nulls(_TIMES)
        self.lost[kind] = rows.height - sound.height
        reason = f"{self.lost[kind]} rows without times; left out"
        self.findings.note(self.lost[kind], f"unusable rows of {kind}", "invalid", reason)
        return sound

    def _number_processes(self) -> pl.DataFrame:
        """List the processes with records, in order of identifiers, and add `process_id` to all records."""
        frames = [*self.activities.values(), self.calls, self.ranges]
        keys = pl.concat([frame.get_column("process") for frame in frames]).drop_nulls().unique().sort()
        self.keys: list[int | None] = keys.to_list() or [None]
        numbers = pl.DataFrame({"process": keys, "process_id": range(len(keys))}, schema_overrides=_NUMBER)
        unknown = 0

        def numbered(frame: pl.DataFrame) -> pl.DataFrame:
            nonlocal unknown
            frame = frame.join(numbers, on="process", how="left", maintain_order="left")
            unknown += frame.get_column("process_id").null_count()
            return frame.with_columns(pl.col("process_id").fill_null(0))

        self.activities = {kind: numbered(frame) for kind, frame in self.activities.items()}
        self.calls, self.ranges = numbered(self.calls), numbered(self.ranges)
        if len(self.keys) > 1:
            reason = f"{unknown} records do not say whose they are; they count to the first process"
            self.findings.note(unknown, "process of records", "partial", reason)
        self.events = self.events.join(numbers, on="process", how="left")
        self.events = self.events.with_columns(pl.col("process_id").fill_null(0))
        return nsys.processes(self.export, self.keys, self.settings)

    def _number_devices(self) -> tuple[pl.DataFrame, pl.DataFrame]:
        """List the devices with records and the detail `streams`; add device_id and stream_id to activities."""
        lane = ["process_id", "device", "context", "stream"]
        work = pl.concat([frame.select(lane) for kind, frame in self.activities.items() if kind != nsys.WAITS]).unique()
        self.activities[nsys.WAITS] = _at_their_contexts(self.activities[nsys.WAITS], work)
        self.events = _at_their_contexts(self.events, work)
        used = pl.concat([work, *(one.select(lane) for one in (self.activities[nsys.WAITS], self.events))]).unique()
        pids = {number: None if key is None else key >> PID_SHIFT & PID_BITS for number, key in enumerate(self.keys)}
        pid = pl.col("process_id").replace_strict(pids, default=None, return_dtype=pl.Int64)
        own = work.select("process_id", pid.alias("pid"), "device").unique()
        devices, numbers = nsys.devices(self.export, own, self.findings)
        self.device_numbers = numbers
        # The release decides whether a process's only context is named; a stream is unique within its context.
        streams = used.drop_nulls("stream").sort(lane).with_columns(stream_id=pl.int_range(pl.len(), dtype=pl.Int32))

        def at(frame: pl.DataFrame) -> pl.DataFrame:
            key = ["process_id", "device"]
            frame = frame.join(numbers, on=key, how="left", nulls_equal=True, maintain_order="left")
            return frame.join(streams, on=lane, how="left", nulls_equal=True, maintain_order="left")

        self.activities = {kind: at(frame) for kind, frame in self.activities.items()}
        self.events = at(self.events)
        listed = at(streams.drop("stream_id"))
        return devices, listed.select("stream_id", "device_id", source_stream="stream")

    def _link(self, calls: pl.DataFrame) -> pl.DataFrame:
        """Map each correlation to the thread and name of its call, within its process."""
        named = calls.select("process_id", "correlation_id", "thread_id", call="name").drop_nulls("correlation_id")
        link = named.unique(["process_id", "correlation_id"], keep="first", maintain_order=True)
        repeated = named.height - link.height
        reason = f"{repeated} calls have the correlation of another call; device activities are linked to the first"
        self.findings.note(repeated, "correlation of calls", "partial", reason)
        return link.with_columns(is_linked=pl.lit(True))

    def _launched(self, kind: str, frame: pl.DataFrame, link: pl.DataFrame) -> pl.DataFrame:
        """Add the thread of the launching call to activities; report how many have none."""
        key = ["process_id", "correlation_id"]
        rows = frame.with_columns(correlation_id=correlation())
        rows = rows.join(link, on=key, how="left", maintain_order="left")
        unlinked = rows.get_column("is_linked").null_count()
        if unlinked:
            reason = f"{unlinked} of {rows.height} have no call with their correlation in the export; they are kept"
            status: Status = "absent" if unlinked == rows.height else "partial"
            self.findings.say(f"launch of {_WORDS[kind]}", status, reason, unlinked)
        elif rows.height:
            self.findings.say(f"launch of {_WORDS[kind]}", "present", None, rows.height)
        return rows

    def _whole_graphs(self, launched: Mapping[str, pl.DataFrame]) -> pl.DataFrame:
        """Return graph launches that are one record each, except those whose kernels were also recorded."""
        key = ["process_id", "correlation_id"]
        graphs = launched[nsys.GRAPHS]
        singly = launched[nsys.KERNELS].select(key).drop_nulls().unique()
        whole = graphs.join(singly, on=key, how="anti", maintain_order="left")
        both = graphs.height - whole.height
        reason = f"{both} graph launches have records of their kernels, too, which are taken instead"
        self.findings.note(both, "graph launches recorded twice", "present", reason)
        length = int((whole.get_column("end_ns") - whole.get_column("start_ns")).sum())
        reason = (
            f"{whole.height:,} graph launches of {length / 1e6:,.2f} ms in all were recorded as one piece each: which "
            "kernels ran in them, and when none did, is not in the export; each is a dispatch with its graph's name"
        )
        self.findings.note(whole.height, WHOLE_GRAPHS, "partial", reason)
        return whole

    def _numbers_waits_right(self) -> bool:
        """Return whether wait kinds are numbered as in the export's own list, true since schema 3.25."""
        version = re.match(r"(\d{1,4})\.(\d{1,4})", self.settings.export.get("EXPORT_SCHEMA_VERSION", ""))
        return version is not None and (int(version[1]), int(version[2])) >= _WAITS_NUMBERED

    def _say(self, tables: Mapping[str, pl.DataFrame]) -> None:
        findings, counted = self.findings, self.export
        for kind in (nsys.CALLS, *_ACTIVITIES):
            if kind in counted.kinds:
                findings.took(counted.kinds[kind][0], counted.count(kind), counted.count(kind) - self.lost.get(kind, 0))
        if RANGES in counted.kinds:
            findings.took(counted.kinds[RANGES][0], counted.count(RANGES), self.ranges.height)
        for name, lacking in _LACKING.items():
            findings.have(name, tables[name].height, lacking)
        for name, rows in sorted(counted.others().items()):
            findings.took(name, rows, 0)
            findings.say(f"records {name}", "absent", "not taken: no table of the lake holds them", rows)
        reversed_count = tables["dispatches"].filter(pl.col("end_ns") < pl.col("start_ns")).height
        reason = f"{reversed_count} dispatches end before they begin; they are kept as the export has them"
        findings.note(reversed_count, "kernel durations", "partial", reason)
        say_end(counted, findings)
        say_messages(counted, self.keys, findings)


_WAITS_NUMBERED: Final = (3, 25)
_NUMBER: Final = {"process": pl.Int64, "process_id": pl.Int32}
_WORDS: Final = dict(zip(_ACTIVITIES, ("kernels", "graphs", "copies", "fills", "waits"), strict=True))
_LACKING: Final = {
    "dispatches": "the export has no kernels: record with nsys profile --trace=cuda",
    "memory_copies": "the export has no copies",
    "api_calls": "the export has no CUDA calls: record with nsys profile --trace=cuda",
    "markers": "the export has no NVTX ranges: the program set none, or record with nsys profile --trace=cuda,nvtx",
    "synchronizations": "the export has no waits",
}


def _numbers(rows: pl.DataFrame) -> pl.DataFrame:
    """Set missing device and stream numbers to null."""
    return rows.with_columns(
        device=pl.when(pl.col("device").is_between(0, _ON_HOST - 1)).then("device"),
        stream=pl.when(pl.col("stream").is_between(0, NO_NUMBER - 1)).then("stream"),
    )


def _at_their_contexts(rows: pl.DataFrame, work: pl.DataFrame) -> pl.DataFrame:
    """Set the device of waits and events to their context's, known from the work that ran in it.

    Real exports state device 0 for all of them, even for contexts on other devices. If no work shows the device, the
    stated one is used if its process used it, else none.
    """
    key = ["process_id", "context"]
    of_context = work.select(*key, known="device").drop_nulls().unique().unique(key, keep="none")
    used = work.select("process_id", "device").drop_nulls().unique().with_columns(is_used=pl.lit(True))
    rows = rows.join(of_context, on=key, how="left", maintain_order="left")
    rows = rows.join(used, on=["process_id", "device"], how="left", maintain_order="left")
    stated = pl.when(pl.col("is_used")).then("device")
    return rows.with_columns(device=pl.coalesce("known", stated)).drop("known", "is_used")
