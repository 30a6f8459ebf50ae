"""What the parts of one run become together: one set of canonical tables on one axis, with one numbering.

A part is what one reader gave: a process, a counter pass, a thread trace. Times come from the base trace alone; counter
passes are matched to it by process, the capture's own number of the dispatch and the kernel's name, never on time.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Final

import polars as pl

from aaco_pipeline.capture.merging import clocks as assembly_clocks
from aaco_pipeline.capture.merging import iterations as assembly_iterations
from aaco_pipeline.capture.merging.clocks import PartTimes
from aaco_pipeline.errors import CaptureError
from aaco_pipeline.formats.capture_tables import CaptureTables
from aaco_pipeline.formats.thread_trace.matching import matched_instructions
from aaco_pipeline.lake.evidence import Evidence
from aaco_pipeline.lake.validation import empty_table, to_contract

#: Tables whose rows are events of a process, with the column that numbers them.
_EVENTS: Final[Mapping[str, str]] = {
    "dispatches": "dispatch_id",
    "api_calls": "call_id",
    "memory_copies": "copy_id",
    "markers": "marker_id",
    "memory_allocations": "allocation_id",
    "synchronizations": "synchronization_id",
}
#: Every table that an assembled capture has, empty ones too.
TABLES: Final = (
    *("processes", "devices", "clock_domains", "environment", "iterations", "kernels"),
    *(*_EVENTS, "counters", "pc_samples", "reported_statistics", "att_instructions", "gpu_samples", "ceilings"),
)
_DEVICE_COLUMNS: Final = ("device_id", "source_device_id", "destination_device_id")
_STREAM_COLUMNS: Final = ("stream_id", "waited_stream_id")
_TIMES: Final = ("start_ns", "end_ns", "time_ns")
_KERNEL_IDENTITY: Final = ("name", "arch_vgprs", "accum_vgprs", "sgprs", "static_lds_bytes", "static_scratch_bytes")
#: The folder of one of several runs of the program under the tool, at the beginning of a part's name.
_PASS: Final = re.compile(r"pass_\d+/")
#: What one execution of a kernel is called elsewhere.
_MATCH: Final = ("process", "source_dispatch_id", "name")


@dataclass
class NamedReading:
    """What one reader gave, with the part's name inside the run."""

    name: str
    reading: CaptureTables

    def table(self, name: str) -> pl.DataFrame:
        found = self.reading.tables.get(name)
        return empty_table(name) if found is None else found

    @property
    def host(self) -> str | None:
        """The host of its processes, where the format says."""
        hosts: list[str | None] = self.table("processes").get_column("host").to_list()
        return hosts[0] if hosts else None

    @property
    def counts(self) -> bool:
        return self.table("counters").height > 0

    @cached_property
    def executions(self) -> pl.DataFrame:
        """Its dispatches, and those counted executions that have no times, numbered as `counters` refers to them."""
        dispatches = self.table("dispatches")
        counted = self.reading.details.get("counter_dispatches")
        if counted is None:
            return dispatches
        untimed = counted.filter(~pl.col("in_dispatches")).unique("dispatch_id", keep="first", maintain_order=True)
        names = self.table("kernels").select(pl.col("kernel_id"), kernel_name=pl.col("name"))
        untimed = untimed.join(names.unique("kernel_name", keep="first"), on="kernel_name", how="left")
        further = to_contract(
            "dispatches",
            untimed.select(
                *(
                    "dispatch_id",
                    "process_id",
                    "device_id",
                    "thread_id",
                    "kernel_id",
                    "correlation_id",
                    "scratch_bytes",
                ),
                lds_allocated_bytes="lds_bytes",
                grid_work_items="grid_size",
                workgroup_work_items="workgroup_size",
                below_resolution=pl.lit(False),
            ),
        )
        return pl.concat([dispatches, further])

    @cached_property
    def keys(self) -> pl.DataFrame:
        """Of each execution: dispatch_id, and what names it in another pass (`process`, number, kernel's name)."""
        executions = self.executions.select("dispatch_id", "process_id", "kernel_id")
        listed = [self.reading.details[d] for d in ("dispatch_keys", "counter_dispatches") if d in self.reading.details]
        numbers = [frame.select("dispatch_id", pl.col("source_dispatch_id").cast(pl.UInt64)) for frame in listed]
        own = executions.select("dispatch_id", source_dispatch_id=pl.col("dispatch_id").cast(pl.UInt64))
        source = pl.concat(numbers).unique("dispatch_id", keep="first") if numbers else own
        return (
            executions.join(source, on="dispatch_id", how="left", maintain_order="left")
            .join(self.table("kernels").select("kernel_id", "name"), on="kernel_id", how="left", maintain_order="left")
            .select("dispatch_id", *_MATCH[1:], process=pl.col("process_id"))
        )


def merge_parts(parts: Sequence[NamedReading]) -> CaptureTables:
    """One session's tables from the parts of a run, in their given order.

    All of `TABLES` are there. The axis begins at the earliest event of the base trace; parts of another host keep their
    own clock, put at the same beginning, with an uncertainty of null. Detail `source_rows` (part, item, rows_in,
    rows_out) lists what each source held; those of thread traces are described in `thread_trace_matching`. Raises
    CaptureError for parts without anything.
    """
    if not parts:
        raise CaptureError("nothing to assemble: no part could be read")
    base, evidence = _base(parts)
    merged = _merged(base)
    tables = merged.tables
    tables["counters"], counted = _counters(parts, merged)
    tables["pc_samples"] = _samples(parts, merged)
    tables["att_instructions"], traces, traced = matched_instructions(
        [(part.name, part.reading) for part in parts], merged.keys, tables["dispatches"]
    )
    for name in ("reported_statistics", "environment", "ceilings"):
        listed = [part.table(name) for part in parts]
        tables[name] = pl.concat(listed).unique(maintain_order=True)
    tables["environment"] = tables["environment"].unique(["category", "key"], keep="first", maintain_order=True)
    tables["gpu_samples"] = _gpu_samples(parts, merged)
    tables["iterations"], tables["dispatches"], without = _iterations(tables, base[0], merged.clock_of)
    several = len(parts) > 1
    for part in parts:
        evidence += [
            Evidence(
                f"{item.item} of {part.name}" if several else item.item,
                item.status,
                item.reason,
                item.source,
                item.rows,
                item.sha256,
            )
            for item in part.reading.evidence
        ]
    evidence += [*merged.evidence, *without, *counted, *traced]
    source_rows = [
        part.reading.details["source_rows"].select(pl.lit(part.name).alias("part"), "item", "rows_in", "rows_out")
        for part in parts
        if "source_rows" in part.reading.details
    ]
    details = traces | ({"source_rows": pl.concat(source_rows)} if source_rows else {})
    return CaptureTables({name: tables[name] for name in TABLES}, tuple(evidence), details)


def moved(reading: CaptureTables, by_ns: int, *, processes: int, devices: int) -> CaptureTables:
    """The reading with all times moved, and its processes and devices numbered after as many others."""
    added = {"process_id": processes} | dict.fromkeys(_DEVICE_COLUMNS, devices) | dict.fromkeys(_TIMES, by_ns)
    named = (*_EVENTS, "processes", "devices", "iterations", "pc_samples", "gpu_samples", "ceilings")
    tables = {name: _rebased(reading.tables[name], added, {}) for name in named}
    return CaptureTables({**reading.tables, **tables}, reading.evidence, reading.details)


def row_accounts(reading: CaptureTables) -> list[dict[str, object]]:
    """For each record kind of each part: part, item, rows_in, rows_out, and the reason where evidence gives one."""
    if "source_rows" not in reading.details:
        return []
    reasons = {item.item: item.reason for item in reading.evidence}

    def reason(row: Mapping[str, object]) -> str | None:
        if row["rows_out"] == row["rows_in"]:
            return None
        named = (f"{row['item']}", f"records {row['item']}")
        found = (reasons.get(f"{name} of {row['part']}") or reasons.get(name) for name in named)
        return next((one for one in found if one), None)

    return [{**row, "reason": reason(row)} for row in reading.details["source_rows"].to_dicts()]


# ---- the base trace -----------------------------------------------------------------------------------------------


def _base(parts: Sequence[NamedReading]) -> tuple[Sequence[NamedReading], list[Evidence]]:
    """The parts whose times count, and what is to be said about the others."""
    timed = [part for part in parts if not part.counts and any(part.table(name).height for name in _EVENTS)]
    counting = [part for part in parts if part.counts]
    if timed:
        aside = [part for part in counting if part.table("dispatches").height]
        told = f"{len(aside)} counter passes give counters, never times" if aside else None
        evidence = [Evidence("times of counter passes", "present", told, rows=len(aside))] if aside else []
        kept = _without_thread_trace_passes(parts, timed)
        slowed = len(timed) - len(kept)
        if slowed:
            told = f"{slowed} parts of passes with a thread trace give instructions, never times"
            evidence.append(Evidence("times of thread trace passes", "present", told, rows=slowed))
        return kept, evidence
    if not counting:
        return [next((part for part in parts if part.table("processes").height), parts[0])], []
    first = max(counting, key=lambda part: part.executions.height)
    first = next(part for part in counting if part.executions.height == first.executions.height)
    reason = f"there is no trace without counters: dispatches are those of the counter pass {first.name}"
    if first.table("dispatches").height:
        reason += ", whose times the counting has stretched"
    return [first], [Evidence("base trace", "partial", reason, first.name, first.executions.height)]


def _without_thread_trace_passes(
    parts: Sequence[NamedReading], timed: Sequence[NamedReading]
) -> Sequence[NamedReading]:
    """The timed parts but for those of passes in which a thread trace was taken, unless no other pass is timed.

    Such a pass ran the program once more, and its dispatches are the same ones a second time.
    """

    def run(part: NamedReading) -> str:
        found = _PASS.match(part.name)
        return found[0] if found else ""

    traced = {run(part) for part in parts if "traced_dispatch" in part.reading.details} - {""}
    return [part for part in timed if run(part) not in traced] or timed


@dataclass
class _Merged:
    """The base's tables under one numbering, with what a further part needs to refer to them."""

    tables: dict[str, pl.DataFrame]
    #: dispatch_id of the session with `process` (ordinal in the base), source_dispatch_id and name.
    keys: pl.DataFrame
    parts: tuple[str, ...]
    dispatch_offsets: Mapping[str, int]
    time_offsets: Mapping[str, int]
    #: The clock of each process, equal where two were read from one.
    clock_of: Mapping[int, tuple[str, ...]]
    evidence: list[Evidence]


def _merged(base: Sequence[NamedReading]) -> _Merged:
    kernels, kernel_maps = _kernels(base)
    devices, device_maps, alike = _devices(base)
    clocks = assembly_clocks.placed([_times(part) for part in base])
    clock_of: dict[int, tuple[str, ...]] = {}
    pieces: dict[str, list[pl.DataFrame]] = {name: [] for name in ("processes", *_EVENTS)}
    keys: list[pl.DataFrame] = []
    offsets = dict.fromkeys((*_EVENTS, "processes", "queues", "streams"), 0)
    dispatch_offsets: dict[str, int] = {}
    for number, part in enumerate(base):
        process_offset = offsets["processes"]
        processes = _or_one(part.table("processes"), "processes", "process_id")
        clock_of |= dict.fromkeys(range(process_offset, process_offset + processes.height), clocks.clocks[part.name])
        pieces["processes"].append(processes.with_columns(pl.col("process_id") + process_offset))
        dispatch_offsets[part.name] = offsets["dispatches"]
        keys.append(
            part.keys.with_columns(pl.col("dispatch_id") + offsets["dispatches"], pl.col("process") + process_offset)
        )
        widest = {"queues": 0, "streams": 0}
        for name, key in _EVENTS.items():
            frame = part.executions if name == "dispatches" else part.table(name)
            for kind, columns in (("queues", ("queue_id",)), ("streams", _STREAM_COLUMNS)):
                for column in columns:
                    if column in frame.columns:
                        widest[kind] = max(widest[kind], _largest(frame, column) + 1)
            pieces[name].append(
                _rebased(
                    frame,
                    {key: offsets[name], "process_id": process_offset, "queue_id": offsets["queues"]}
                    | dict.fromkeys(_STREAM_COLUMNS, offsets["streams"])
                    | ({"parent_dispatch_id": offsets[name]} if name == "dispatches" else {})
                    | dict.fromkeys(_TIMES, clocks.offsets[part.name]),
                    {"kernel_id": kernel_maps[number]} | dict.fromkeys(_DEVICE_COLUMNS, device_maps[number]),
                )
            )
            offsets[name] += frame.height
        offsets["processes"] += processes.height
        for kind, count in widest.items():
            offsets[kind] += count
    tables = {name: pl.concat(frames) for name, frames in pieces.items()}
    tables |= {"kernels": kernels, "devices": devices, "clock_domains": clocks.clock_domains}
    tables["dispatches"] = tables["dispatches"].with_columns(
        grid_work_items=pl.coalesce("grid_work_items", pl.col("grid_x") * pl.col("grid_y") * pl.col("grid_z")),
        workgroup_work_items=pl.coalesce(
            "workgroup_work_items", pl.col("workgroup_x") * pl.col("workgroup_y") * pl.col("workgroup_z")
        ),
    )
    names = tuple(part.name for part in base)
    evidence = [*clocks.evidence, *alike]
    return _Merged(tables, pl.concat(keys), names, dispatch_offsets, clocks.offsets, clock_of, evidence)


def _rebased(frame: pl.DataFrame, added: Mapping[str, int], mapped: Mapping[str, Mapping[int, int]]) -> pl.DataFrame:
    """The frame with numbers added to some columns and others replaced; columns it does not have are passed over."""
    changes = [pl.col(column) + number for column, number in added.items() if number and column in frame.columns]
    for column, mapping in mapped.items():
        if column in frame.columns and any(old != new for old, new in mapping.items()):
            changes.append(pl.col(column).replace(mapping))
    return frame.with_columns(changes)


def _kernels(base: Sequence[NamedReading]) -> tuple[pl.DataFrame, list[dict[int, int]]]:
    """The distinct kernels of all parts, and for each part the session's number of each of its own."""
    listed = [part.table("kernels").with_columns(part=pl.lit(i)) for i, part in enumerate(base)]
    together = pl.concat(listed)
    distinct = together.unique(_KERNEL_IDENTITY, keep="first", maintain_order=True).drop("part", "kernel_id")
    distinct = distinct.with_columns(kernel_id=pl.int_range(pl.len(), dtype=pl.Int32))
    numbers = together.select("part", "kernel_id", *_KERNEL_IDENTITY).join(
        distinct.select(pl.col("kernel_id").alias("new"), *_KERNEL_IDENTITY),
        on=_KERNEL_IDENTITY,
        how="left",
        nulls_equal=True,
        maintain_order="left",
    )
    maps = [dict(numbers.filter(pl.col("part") == i).select("kernel_id", "new").iter_rows()) for i in range(len(base))]
    return to_contract("kernels", distinct), maps


def _devices(base: Sequence[NamedReading]) -> tuple[pl.DataFrame, list[dict[int, int]], list[Evidence]]:
    """The distinct devices of all parts: one that several processes of a stated host name alike counts once.

    Where a part states no host, its devices are its own: another host's, or another visible set's, have the same names.
    """
    rows: list[pl.DataFrame] = []
    known: dict[tuple[object, ...], int] = {}
    named: list[str] = []
    maps: list[dict[int, int]] = []
    for number, part in enumerate(base):
        devices = _or_one(part.table("devices"), "devices", "device_id")
        keys = part.reading.details.get("device_keys")
        addresses = dict(keys.select("device_id", "pci_address").iter_rows()) if keys is not None else {}
        host = part.host
        mapping: dict[int, int] = {}
        for device, handle in devices.select("device_id", "handle").iter_rows():
            address = addresses.get(device) or handle
            shared = host is not None and address is not None
            identity = ("host", host, address) if shared else ("part", number, device)
            if not shared and address is not None:
                named.append(str(address))
            if identity not in known:
                known[identity] = len(known)
                rows.append(
                    devices.filter(pl.col("device_id") == device).with_columns(
                        pl.lit(known[identity], pl.Int32).alias("device_id")
                    )
                )
            mapping[device] = known[identity]
        maps.append(mapping)
    evidence = []
    if len(set(named)) < len(named):
        reason = "files that state no host name devices alike: each file's are kept as devices of their own"
        evidence.append(Evidence("identity of devices", "partial", reason, None, len(named)))
    return to_contract("devices", pl.concat(rows)), maps, evidence


def _or_one(frame: pl.DataFrame, table: str, key: str) -> pl.DataFrame:
    """The rows, or one that knows nothing but its number 0 where the format has none."""
    return frame if frame.height else to_contract(table, pl.DataFrame({key: [0]}))


def _largest(frame: pl.DataFrame, column: str) -> int:
    value = frame.get_column(column).max()
    return int(value) if isinstance(value, int) else -1


def _times(part: NamedReading) -> PartTimes:
    """The part's clocks with its first and last instant."""
    spans = [frame.select("start_ns", "end_ns") for frame in (part.table(name) for name in _EVENTS) if frame.height]
    first, last = (
        pl.concat(spans).select(pl.col("start_ns").min(), pl.col("end_ns").max()).row(0) if spans else (None,) * 2
    )
    return PartTimes(part.name, part.host, part.table("clock_domains"), first, first if last is None else last)


# ---- what other passes add ----------------------------------------------------------------------------------------


def _counters(parts: Sequence[NamedReading], merged: _Merged) -> tuple[pl.DataFrame, list[Evidence]]:
    """All counter values at the dispatches they belong to."""
    found: list[pl.DataFrame] = []
    lost = 0
    unmatched: list[str] = []
    for part in parts:
        counters = part.table("counters")
        if not counters.height:
            continue
        # A format whose file is one pass does not name it.
        unnamed = pl.col("pass") == ""
        counters = counters.with_columns(pl.when(unnamed).then(pl.lit(part.name)).otherwise("pass").alias("pass"))
        if part.name in merged.parts:
            offset = merged.dispatch_offsets[part.name]
            found.append(counters.with_columns(pl.col("dispatch_id") + offset))
            continue
        joined = part.keys.join(
            merged.keys.select(pl.col("dispatch_id").alias("session_dispatch"), *_MATCH),
            on=_MATCH,
            how="left",
            nulls_equal=True,
        ).unique("dispatch_id", keep="first")
        placed = counters.join(joined.select("dispatch_id", "session_dispatch"), on="dispatch_id", how="left")
        missing = placed.get_column("session_dispatch").null_count()
        if missing:
            lost += missing
            unmatched.append(part.name)
        found.append(
            placed.drop_nulls("session_dispatch")
            .with_columns(dispatch_id=pl.col("session_dispatch"))
            .drop("session_dispatch")
        )
    evidence = []
    if lost:
        evidence.append(
            Evidence(
                "counter values matched to dispatches",
                "partial",
                f"{lost} values of {', '.join(unmatched)} belong to executions that the base trace does not have",
                rows=lost,
            )
        )
    return to_contract("counters", pl.concat(found)) if found else empty_table("counters"), evidence


def _samples(parts: Sequence[NamedReading], merged: _Merged) -> pl.DataFrame:
    found: list[pl.DataFrame] = []
    count = 0
    for part in parts:
        samples = part.table("pc_samples")
        if not samples.height:
            continue
        if part.name in merged.parts:
            samples = _rebased(
                samples,
                {"dispatch_id": merged.dispatch_offsets[part.name], "time_ns": merged.time_offsets[part.name]},
                {},
            )
        else:
            # Another run's clock: its times say nothing on this axis.
            samples = samples.with_columns(time_ns=pl.lit(None, pl.Int64), dispatch_id=pl.lit(None, pl.Int32))
        found.append(samples.with_columns(pl.col("sample_id") + count))
        count += samples.height
    return to_contract("pc_samples", pl.concat(found)) if found else empty_table("pc_samples")


def _gpu_samples(parts: Sequence[NamedReading], merged: _Merged) -> pl.DataFrame:
    found = [
        part.table("gpu_samples").with_columns(pl.col("time_ns") + merged.time_offsets.get(part.name, 0))
        for part in parts
        if part.table("gpu_samples").height
    ]
    return to_contract("gpu_samples", pl.concat(found)) if found else empty_table("gpu_samples")


# ---- iterations ---------------------------------------------------------------------------------------------------


def _iterations(
    tables: Mapping[str, pl.DataFrame], first: NamedReading, clock_of: Mapping[int, tuple[str, ...]]
) -> tuple[pl.DataFrame, pl.DataFrame, list[Evidence]]:
    """Iterations as the format counts them, or from the markers around them, and the dispatches with theirs."""
    dispatches = tables["dispatches"]
    if first.table("iterations").height:
        return first.table("iterations"), dispatches, []
    if dispatches.get_column("iteration").null_count() < dispatches.height:
        runs = tables["api_calls"].filter((pl.col("domain") == "onnxruntime") & (pl.col("name") == "model_run"))
        return assembly_iterations.as_iterations(runs), dispatches, []
    return assembly_iterations.from_markers(tables, clock_of)
