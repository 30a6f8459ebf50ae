"""The tables of an export of Nsight Systems, from its rows to canonical tables.

How an export is recognized, and what its columns mean, is `aaco_pipeline.formats.kineto.nsys`.
"""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Final

import polars as pl

from aaco_pipeline.formats.capture_tables import CaptureTables, Findings, Limits
from aaco_pipeline.formats.kineto.nsys import export as nsys
from aaco_pipeline.formats.kineto.nsys import surroundings
from aaco_pipeline.formats.kineto.nsys.activities import AXES, copies, dispatches, kernels, waits
from aaco_pipeline.formats.kineto.nsys.export import Export
from aaco_pipeline.formats.kineto.nsys.host_records import (
    api_calls,
    correlation,
    markers,
    placed,
    recorded_calls,
    recorded_ranges,
)
from aaco_pipeline.formats.kineto.nsys.messages import say_end, say_messages
from aaco_pipeline.formats.kineto.nsys.surroundings import NO_NUMBER, PID_BITS, PID_SHIFT
from aaco_pipeline.formats.rocpd.database import opened
from aaco_pipeline.lake.evidence import WHOLE_GRAPHS, Status

_TIMES: Final = {"start_ns": "start", "end_ns": "end"}
_DEVICE: Final = {
    **_TIMES,
    **{"device": "deviceId", "context": "contextId", "stream": "streamId"},
    **{"correlation": "correlationId", "global": "globalPid"},
}
#: What is read of each kind of device activity.
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
_EVENT: Final = {**{name: column for name, column in _DEVICE.items() if name not in _TIMES}, "event": "eventSyncId"}
#: CUPTI's number of a device for work that begins on the host.
_ON_HOST: Final = 0x7FFFFFFF


def read(path: Path, limits: Limits) -> CaptureTables:
    """See `aaco_pipeline.formats.kineto.nsys.read`."""
    with opened(path, limits) as database:
        return _Reading(Export(database, limits), path.name).reading()


class _Reading:
    """The records of one export while they become tables; each step adds its evidence."""

    def __init__(self, export: Export, source: str) -> None:
        self.export, self.findings = export, Findings(source)
        self.settings = surroundings.settings(export)
        self.lost: dict[str, int] = {}
        self.activities = {kind: self._activities(kind, columns) for kind, columns in _ACTIVITIES.items()}
        self.calls, repeated = recorded_calls(export, self.findings)
        self.lost[nsys.CALLS] = repeated
        self.ranges = recorded_ranges(export, self.findings)
        self.events = _numbers(placed(export.integers(nsys.EVENTS, _EVENT)))

    def reading(self) -> CaptureTables:
        """All tables, and what was found and missed."""
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
            "clock_domains": surroundings.clocks(self.export, self.settings, self.findings),
            "environment": surroundings.environment(self.settings),
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
        """The device activities of a kind; those without times or device are left out, kernels keep theirs unknown."""
        rows = _numbers(placed(self.export.integers(kind, columns)))
        # CUPTI writes zero twice where it could not take the times.
        unknown = (pl.col("start_ns") == 0) & (pl.col("end_ns") == 0)
        rows = rows.with_columns(pl.when(~unknown).then(name).alias(name) for name in _TIMES)
        if kind != nsys.KERNELS:
            return self._sound(kind, rows)
        untimed = rows.get_column("start_ns").null_count()
        reason = f"{untimed} kernels have no times: CUPTI could not take them; kept without"
        self.findings.note(untimed, "times of kernels", "partial", reason)
        return rows

    def _sound(self, kind: str, rows: pl.DataFrame) -> pl.DataFrame:
        """The rows that have times; how many do not is told."""
        sound = rows.drop_nulls(list(_TIMES))
        self.lost[kind] = rows.height - sound.height
        reason = f"{self.lost[kind]} rows without times; left out"
        self.findings.note(self.lost[kind], f"unusable rows of {kind}", "invalid", reason)
        return sound

    def _number_processes(self) -> pl.DataFrame:
        """The processes that left records, in order of their identifiers; adds `process_id` to all records."""
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
        self.events = self.events.join(numbers, on="process", how="left").with_columns(
            pl.col("process_id").fill_null(0)
        )
        return surroundings.processes(self.export, self.keys, self.settings)

    def _number_devices(self) -> tuple[pl.DataFrame, pl.DataFrame]:
        """The devices with records, and the detail `streams`; adds device_id and stream_id to the activities."""
        lane = ["process_id", "device", "context", "stream"]
        work = pl.concat([frame.select(lane) for kind, frame in self.activities.items() if kind != nsys.WAITS]).unique()
        self.activities[nsys.WAITS], self.events = (
            _at_their_contexts(frame, work) for frame in (self.activities[nsys.WAITS], self.events)
        )
        used = pl.concat([work, *(one.select(lane) for one in (self.activities[nsys.WAITS], self.events))]).unique()
        pids = {number: None if key is None else key >> PID_SHIFT & PID_BITS for number, key in enumerate(self.keys)}
        pid = pl.col("process_id").replace_strict(pids, default=None, return_dtype=pl.Int64)
        own = work.select("process_id", pid.alias("pid"), "device").unique()
        devices, numbers = surroundings.devices(self.export, own, self.findings)
        self.device_numbers = numbers
        # A process's only context is named or not, as the release has it; a stream is unique within it.
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
        """The thread and name of the call of each correlation, within its process."""
        named = calls.select("process_id", "correlation_id", "thread_id", call="name").drop_nulls("correlation_id")
        link = named.unique(["process_id", "correlation_id"], keep="first", maintain_order=True)
        repeated = named.height - link.height
        reason = f"{repeated} calls have the correlation of another call; device activities are linked to the first"
        self.findings.note(repeated, "correlation of calls", "partial", reason)
        return link.with_columns(is_linked=pl.lit(True))

    def _launched(self, kind: str, frame: pl.DataFrame, link: pl.DataFrame) -> pl.DataFrame:
        """Activities with the thread of the call that launched them; tells how many have none."""
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
        """Launches of graphs that are one record each; not those of which kernels were recorded, too."""
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
        """Whether kinds of waits are numbered as the export's own list says, which holds since schema 3.25 alone."""
        version = re.match(r"(\d{1,4})\.(\d{1,4})", self.settings.export.get("EXPORT_SCHEMA_VERSION", ""))
        return version is not None and (int(version[1]), int(version[2])) >= _WAITS_NUMBERED

    def _say(self, tables: Mapping[str, pl.DataFrame]) -> None:
        findings, counted = self.findings, self.export
        for kind in (nsys.CALLS, *_ACTIVITIES):
            if kind in counted.kinds:
                findings.took(counted.kinds[kind][0], counted.count(kind), counted.count(kind) - self.lost.get(kind, 0))
        if nsys.RANGES in counted.kinds:
            rows = counted.count(nsys.RANGES)
            findings.took(counted.kinds[nsys.RANGES][0], rows, self.ranges.height)
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
_WORDS: Final = {
    nsys.KERNELS: "kernels",
    nsys.GRAPHS: "graphs",
    nsys.COPIES: "copies",
    nsys.FILLS: "fills",
    nsys.WAITS: "waits",
}
_LACKING: Final = {
    "dispatches": "the export has no kernels: record with nsys profile --trace=cuda",
    "memory_copies": "the export has no copies",
    "api_calls": "the export has no CUDA calls: record with nsys profile --trace=cuda",
    "markers": "the export has no NVTX ranges: the program set none, or record with nsys profile --trace=cuda,nvtx",
    "synchronizations": "the export has no waits",
}


def _numbers(rows: pl.DataFrame) -> pl.DataFrame:
    """The rows with null for devices and streams that are none."""
    return rows.with_columns(
        device=pl.when(pl.col("device").is_between(0, _ON_HOST - 1)).then("device"),
        stream=pl.when(pl.col("stream").is_between(0, NO_NUMBER - 1)).then("stream"),
    )


def _at_their_contexts(rows: pl.DataFrame, work: pl.DataFrame) -> pl.DataFrame:
    """Waits and events at the device of their context, by the work that ran in it.

    Real exports state device 0 of each of them, also of contexts on other devices. What no work tells has the stated
    device where its process used that one, else none.
    """
    key = ["process_id", "context"]
    of_context = work.select(*key, known="device").drop_nulls().unique().unique(key, keep="none")
    used = work.select("process_id", "device").drop_nulls().unique().with_columns(is_used=pl.lit(True))
    rows = rows.join(of_context, on=key, how="left", maintain_order="left")
    rows = rows.join(used, on=["process_id", "device"], how="left", maintain_order="left")
    stated = pl.when(pl.col("is_used")).then("device")
    return rows.with_columns(device=pl.coalesce("known", stated)).drop("known", "is_used")
