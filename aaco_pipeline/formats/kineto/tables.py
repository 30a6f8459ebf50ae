"""Turn a Kineto trace's events, read as columns, into canonical tables with evidence.

`aaco_pipeline.formats.kineto.reading` reads the columns from the text; `aaco_pipeline.formats.kineto.events` handles
the trace's own properties.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import polars as pl

from aaco_pipeline.formats.capture_tables import (
    CaptureTables,
    Findings,
    described_kernels,
    dispatch_table,
    overlapping_count,
    table_of,
)
from aaco_pipeline.formats.kineto.events import (
    AXES,
    CALLS,
    COLLECTIVE_COLUMNS,
    COPIES,
    FLOWS,
    INPUT_COLUMNS,
    KERNELS,
    MARKERS,
    RATIOS,
    RUNTIME_DOMAINS,
    SYNCS,
    Collected,
    clocks,
    described_collectives,
    described_devices,
    device_rows,
    is_amd,
    kept_inputs,
    named_launches,
    properties_of,
    say_losses,
    versions,
    with_grids_in_work_items,
)
from aaco_pipeline.formats.parsing.json_fields import whole
from aaco_pipeline.lake.evidence import Status
from aaco_pipeline.lake.validation import to_contract

_DIRECTIONS: Final = {
    "HtoD": "host_to_device",
    "DtoH": "device_to_host",
    "DtoD": "device_to_device",
    "PtoP": "device_to_device",
    "HtoH": "host_to_host",
}
_SYNC_KINDS: Final = {
    "Stream Sync": "stream_synchronize",
    "Event Sync": "event_synchronize",
    "Context Sync": "device_synchronize",
    "Stream Wait Event": "stream_wait_event",
}
_NO_CATEGORY: Final = "(no category)"
#: Reasons why events of a kind are in no table, by phase or category.
_NOT_TAKEN: Final = {
    "ac2g": "arrows from calls to device activities: they repeat the correlation",
    "fwdbwd": "arrows from forward to backward operators: kept in the detail forward_backward",
    "overhead": "what profiling itself cost: no table holds it",
    "Trace": "the profiler's own span",
    "cpu_instant_event": "instants such as the framework's memory accounting: no table holds them",
    "M": "names and order of rows in the viewer",
    "C": "counter values of the viewer",
    "i": "instants without a category: the viewer's marks",
    "B": "the beginning of a range whose end is an event of its own: PyTorch writes whole ranges, these are not paired",
    "E": "the end of a range whose beginning is an event of its own: PyTorch writes whole ranges, these are not paired",
}


class Trace:
    """A trace being converted to tables; each step adds its evidence."""

    def __init__(self, path: Path, metadata: Mapping[str, Any], collected: Collected) -> None:
        self._metadata, self._collected = metadata, collected
        self._findings = Findings(path.name)
        self._unreadable: dict[str, int] = {}
        counts = collected.take("counts").with_columns(
            pl.when(pl.col("cat") != "").then("cat").fill_null(_NO_CATEGORY),
            pl.when(pl.col("ph").str.len_chars() == 1).then("ph").fill_null("?"),
        )
        counts = counts.group_by("ph", "cat", maintain_order=True).agg(pl.col("len").sum())
        self._counts = counts.sort("cat", "ph", maintain_order=True)
        self._calls = self._readable("calls")
        self._markers = self._with_collectives(self._readable("markers"))
        self._kernels = self._readable("kernels")
        self._copies = self._readable("copies")
        self._syncs = self._readable("syncs")

    def reading(self) -> CaptureTables:
        """Build tables, details and evidence of the trace."""
        processes, devices, streams = self._number_processes(), self._number_devices(), self._number_streams()
        calls = self._api_calls()
        link = self._link(calls)
        kernels, dispatches, facts = self._dispatches(link)
        tables = {
            "processes": processes,
            "devices": devices,
            "clock_domains": self._clocks(),
            "kernels": kernels,
            "dispatches": with_grids_in_work_items(dispatches, calls),
            "api_calls": calls,
            "memory_copies": self._memory_copies(link),
            "markers": self._marker_rows(),
            "synchronizations": self._synchronizations(link),
            "environment": versions(self._metadata),
            "operator_inputs": self._operator_inputs(calls),
        }
        details = {"source_rows": self._source_rows(), "streams": streams}
        if facts.height:
            details["launch_facts"] = facts
        if (named := named_launches(self._collected.take("launches"), calls)).height:
            details["named_launches"] = named
        if (flows := self._collected.take("flows")).height:
            details["forward_backward"] = flows
        self._completeness(dispatches)
        say_losses(self._metadata, self._findings)
        return CaptureTables(tables, tuple(self._findings.evidence), details)

    def _readable(self, name: str) -> pl.DataFrame:
        """Take events of one kind, dropping those with unreadable times, which no table can hold."""
        frame = self._collected.take(name)
        readable = pl.col("start_ns").is_not_null() & pl.col("name").is_not_null()
        self._unreadable |= dict(frame.filter(~readable).group_by("cat").len().rows())
        return frame.filter(readable)

    def _with_collectives(self, markers: pl.DataFrame) -> pl.DataFrame:
        """Append the operators that record a collective to the markers: they annotate the work they enclose."""
        recorded = self._collected.take("collectives").filter(pl.col("start_ns").is_not_null())
        self._recorded = recorded.height
        return pl.concat([markers, described_collectives(recorded)], how="diagonal")

    def _number_processes(self) -> pl.DataFrame:
        """Number the processes of host events in file order, and add `process_id` to the host events."""
        annotations = self._markers.filter(pl.col("cat") == "user_annotation")
        stated = pl.concat([self._calls.get_column("pid"), annotations.get_column("pid")])
        stated = stated.unique(maintain_order=True).drop_nulls()
        # Threads that the profiler could not place have process number 0 next to the real one.
        real = stated.filter(stated != 0) if (stated != 0).any() else stated
        self._process_count = max(1, len(real))
        unplaced = 0
        for name in ("_calls", "_markers"):
            frame: pl.DataFrame = getattr(self, name)
            numbers = list(range(len(real)))
            mapped = frame.get_column("pid").replace_strict(real, numbers, default=None, return_dtype=pl.Int32)
            host = frame.get_column("cat").cast(pl.String) != "gpu_user_annotation"
            unplaced += int((mapped.is_null() & host).sum())
            setattr(self, name, frame.with_columns(mapped.fill_null(0).alias("process_id")))
        reason = f"{unplaced} host events: their process number is 0 or missing; they count to the first process"
        self._findings.note(unplaced, "process of host events", "partial", reason)
        information = self._metadata.get("distributedInfo")
        rank = information.get("rank") if isinstance(information, dict) else None
        guid = self._metadata.get("trace_id")
        common = {
            "guid": guid if isinstance(guid, str) else None,
            "rank": whole(rank, 2**31 - 1) if self._process_count == 1 else None,
        }
        pids: list[int | None] = real.to_list() or [None]
        return table_of("processes", ({"process_id": at, "pid": pid, **common} for at, pid in enumerate(pids)))

    def _number_devices(self) -> pl.DataFrame:
        """List the devices that the trace describes or that have activities, in order of the trace's numbers."""
        described = described_devices(self._metadata)
        active = pl.concat([frame.get_column("device") for frame in (self._kernels, self._copies, self._syncs)])
        seen = active.drop_nulls().unique().to_list()
        if self._kernels.get_column("device").null_count():
            seen.append(-1)
        amd = is_amd(self._metadata, self._calls)
        stated = properties_of(seen, described, amd)
        self._devices = {number: place for place, number in enumerate(sorted({*stated, *seen}))}
        self._say_properties(sorted(seen), described, stated)
        return device_rows(self._devices, stated, amd)

    def _say_properties(self, seen: Sequence[int], described: Mapping[int, Any], stated: Mapping[int, Any]) -> None:
        """Report devices with activities that the trace does not describe, or describes under another number."""
        unknown = ", ".join(str(number) for number in seen if number not in stated)
        other = ", ".join(str(number) for number in seen if number in stated and number not in described)
        if unknown:
            reason = f"the trace holds activities of these but does not describe them: {unknown}"
            self._findings.say("device properties", "partial" if described else "absent", reason)
        elif other:
            among = "the one device" if len(described) == 1 else f"{len(described)} devices that are alike"
            reason = f"activities are of device {other}, by another count than the properties, which are of {among}"
            self._findings.say("device properties", "present", reason, len(stated))

    def _number_streams(self) -> pl.DataFrame:
        """Number the streams of all devices, and add `device_id` and `stream_id` to the device events."""
        frames = ("_kernels", "_copies", "_syncs")
        keys, places = list(self._devices), list(self._devices.values())
        for name in frames:
            frame: pl.DataFrame = getattr(self, name)
            device = pl.col("device").fill_null(-1) if name == "_kernels" else pl.col("device")
            mapped = device.replace_strict(keys, places, default=None, return_dtype=pl.Int32)
            setattr(self, name, frame.with_columns(device_id=mapped))
        used: pl.DataFrame = pl.concat([getattr(self, name).select("device_id", "stream") for name in frames])
        # Waits for a whole device or for the host have stream -1.
        placed = used.filter(pl.col("device_id").is_not_null() & (pl.col("stream") >= 0))
        streams = placed.unique().sort("device_id", "stream")
        streams = streams.with_columns(stream_id=pl.int_range(pl.len(), dtype=pl.Int32))
        for name in frames:
            joined = getattr(self, name).join(streams, on=["device_id", "stream"], how="left", maintain_order="left")
            setattr(self, name, joined)
        self._streams = streams
        return streams.select("stream_id", "device_id", source_stream="stream")

    def _api_calls(self) -> pl.DataFrame:
        name, cat = pl.col("name").cast(pl.String), pl.col("cat").cast(pl.String)
        named = {"cpu_op": "operator", "python_function": "python"}
        runtime = pl.when(name.str.starts_with("hip")).then(pl.lit("hip_runtime")).otherwise(cat)
        domain = pl.when(cat.is_in(list(named))).then(cat.replace(named)).otherwise(runtime)
        return to_contract(
            "api_calls",
            self._calls.select(
                *("process_id", "start_ns", "end_ns"),
                call_id=pl.int_range(pl.len(), dtype=pl.Int32),
                thread_id="tid",
                domain=domain,
                name=name,
                correlation_id=_correlation(),
            ),
        )

    def _operator_inputs(self, calls: pl.DataFrame) -> pl.DataFrame:
        """Join recorded inputs to the operator's call, unless two with the same name began in the same nanosecond."""
        key = ["operator", "start_ns"]
        stated = kept_inputs(self._collected.take("shapes"))
        operators = calls.filter(pl.col("domain") == "operator").select("call_id", "start_ns", operator="name")
        stated = stated.with_columns(pl.col("operator").cast(pl.String)).unique(key, keep="none")
        known = operators.join(stated, on=key, how="inner", maintain_order="left")
        return to_contract("operator_inputs", known.select("call_id", *INPUT_COLUMNS))

    def _link(self, calls: pl.DataFrame) -> pl.DataFrame:
        """Map each correlation to its call's process and thread; with several processes, only unambiguous ones."""
        named = calls.filter(pl.col("domain").is_in(RUNTIME_DOMAINS)).drop_nulls("correlation_id")
        named = named.select("correlation_id", "process_id", "thread_id")
        link = named.unique("correlation_id", keep="none" if self._process_count > 1 else "first", maintain_order=True)
        repeated = named.height - link.height
        reason = f"{repeated} calls have the correlation of another call; device activities are linked to the first"
        self._findings.note(repeated, "correlation of calls", "partial", reason)
        return link

    def _placed(self, frame: pl.DataFrame, link: pl.DataFrame, what: str) -> pl.DataFrame:
        """Add process and thread of the launching call to device events; report how many have none."""
        frame = frame.with_columns(correlation_id=_correlation())
        frame = frame.join(link, on="correlation_id", how="left", maintain_order="left")
        unlinked = int(frame.get_column("process_id").null_count())
        if unlinked:
            reason = f"{unlinked} of {frame.height} have no call with their correlation in the trace; they are kept"
            status: Status = "absent" if unlinked == frame.height else "partial"
            self._findings.say(f"launch of {what}", status, reason, unlinked)
        elif frame.height:
            self._findings.say(f"launch of {what}", "present", None, frame.height)
        return frame.with_columns(pl.col("process_id").fill_null(0))

    def _dispatches(self, link: pl.DataFrame) -> tuple[pl.DataFrame, pl.DataFrame, pl.DataFrame]:
        frame = self._placed(self._kernels, link, "kernels")
        frame = frame.with_columns(dispatch_id=pl.int_range(pl.len(), dtype=pl.Int32))
        distinct = frame.select("name").unique(maintain_order=True)
        distinct = distinct.with_columns(kernel_id=pl.int_range(pl.len(), dtype=pl.Int32))
        frame = frame.join(distinct, on="name", how="left", maintain_order="left")
        kernels = described_kernels(distinct.with_columns(pl.col("name").cast(pl.String)))
        self._oddities(frame)
        dispatches = dispatch_table(
            frame.select(
                *("dispatch_id", "process_id", "thread_id", "device_id", "stream_id", "kernel_id", "correlation_id"),
                *("start_ns", "end_ns", *AXES, "graph_node_id"),
                lds_allocated_bytes="lds",
            )
        )
        stated = ("registers_per_thread", *RATIOS)
        facts = frame.filter(pl.any_horizontal(pl.col(stated).is_not_null())).select("dispatch_id", *stated)
        return kernels, dispatches, facts

    def _oddities(self, frame: pl.DataFrame) -> None:
        reversed_count = int((frame.get_column("end_ns") < frame.get_column("start_ns")).sum())
        reason = f"{reversed_count} kernels have a negative duration; they are kept as the trace has them"
        self._findings.note(reversed_count, "kernel durations", "partial", reason)
        same = ["name", "device_id", "stream_id", "start_ns", "end_ns", "correlation_id"]
        repeated = frame.height - frame.select(same).unique().height
        reason = f"{repeated} kernels repeat another one wholly: same name, stream, times and correlation; kept"
        self._findings.note(repeated, "distinct kernels", "partial", reason)
        overlapping = overlapping_count(frame, "stream_id")
        reason = f"{overlapping} kernels begin before an earlier one of their stream has ended; times are kept"
        self._findings.note(overlapping, "order within streams", "partial", reason)

    def _memory_copies(self, link: pl.DataFrame) -> pl.DataFrame:
        frame = self._placed(self._copies, link, "copies")
        short = pl.col("name").cast(pl.String).str.extract(r"\b([A-Z]to[A-Z])\b")
        fill = pl.col("cat") == "gpu_memset"
        direction = pl.when(fill).then(pl.lit("fill")).otherwise(short.replace_strict(_DIRECTIONS, default=None))
        return to_contract(
            "memory_copies",
            frame.select(
                *("process_id", "device_id", "stream_id", "correlation_id", "start_ns", "end_ns"),
                copy_id=pl.int_range(pl.len(), dtype=pl.Int32),
                direction=direction,
                # A copy between two devices names only the one that executed it.
                source_device_id=pl.when(~fill & short.is_in(["DtoH", "DtoD"])).then("device_id"),
                destination_device_id=pl.when(fill | short.is_in(["HtoD", "DtoD"])).then("device_id"),
                size_bytes="bytes",
                host_memory=pl.col("name").cast(pl.String).str.extract("(Pageable|Pinned)").str.to_lowercase(),
            ),
        )

    def _marker_rows(self) -> pl.DataFrame:
        return to_contract(
            "markers",
            self._markers.select(
                *("process_id", "start_ns", "end_ns", *COLLECTIVE_COLUMNS),
                marker_id=pl.int_range(pl.len(), dtype=pl.Int32),
                thread_id=pl.when(pl.col("cat") != "gpu_user_annotation").then("tid"),
                name=pl.col("name").cast(pl.String),
            ),
        )

    def _synchronizations(self, link: pl.DataFrame) -> pl.DataFrame:
        frame = self._placed(self._syncs, link, "waits")
        waited = self._streams.select("device_id", waited_stream="stream", waited_stream_id="stream_id")
        frame = frame.join(waited, on=["device_id", "waited_stream"], how="left", maintain_order="left")
        kind = pl.coalesce("kind", pl.col("name").cast(pl.String))
        plain = kind.str.to_lowercase().str.replace_all(" ", "_", literal=True)
        return to_contract(
            "synchronizations",
            frame.select(
                *("process_id", "device_id", "stream_id", "correlation_id", "waited_stream_id"),
                *("waited_correlation_id", "start_ns", "end_ns"),
                synchronization_id=pl.int_range(pl.len(), dtype=pl.Int32),
                kind=kind.replace_strict(_SYNC_KINDS, default=plain),
            ),
        )

    def _clocks(self) -> pl.DataFrame:
        starts = [frame.get_column("start_ns") for frame in (self._calls, self._kernels, self._markers, self._copies)]
        domains, dated = clocks(self._metadata, starts)
        if not dated:
            reason = "the trace states no baseTimeNanoseconds and its times are no dates"
            self._findings.say("wall-clock", "absent", reason)
        return domains

    def _source_rows(self) -> pl.DataFrame:
        """Count events read and used, by phase and category, with the reason if they are in no table."""
        findings, taken = self._findings, {KERNELS, SYNCS, *COPIES, *CALLS, *MARKERS}
        for phase, cat, count in self._counts.rows():
            item = f"events {cat} {phase}"
            lost = self._unreadable.get(cat, 0) if phase == "X" else 0
            is_taken = (phase == "X" and cat in taken) or (cat == FLOWS and phase in ("s", "f"))
            out = count - lost if is_taken else 0
            findings.took(item, count, out)
            known = _NOT_TAKEN.get(phase) or _NOT_TAKEN.get(cat) or "no table holds events of this kind"
            if out == count:
                findings.say(item, "present", None, count)
            elif lost:
                reason = f"{lost} of {count} have no name, or a start or duration that is no finite number; left out"
                findings.say(item, "invalid", reason, lost)
            else:
                findings.say(item, "absent", f"not taken: {known}", count)
        if count := self._recorded:
            findings.took("collectives that operators record", count)
            findings.say("collectives that operators record", "present", "kept in markers, beside the calls", count)
        return findings.source_rows()

    def _completeness(self, dispatches: pl.DataFrame) -> None:
        if self._collected.cut:
            reason = "the file is cut off: its end is missing, and what follows the events with it"
            self._findings.say("kernel events", "partial", reason, dispatches.height)
        elif dispatches.height:
            self._findings.say("kernel events", "present", None, dispatches.height)
        else:
            self._findings.say("kernel events", "absent", "the trace holds no kernels: no device was profiled", 0)


def _correlation() -> pl.Expr:
    """Read the correlation; 0 means none, and ROCm's tracer gives collective kernels 0."""
    return pl.when(pl.col("correlation") != 0).then("correlation")
