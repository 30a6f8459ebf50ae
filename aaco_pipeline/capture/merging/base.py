"""The base trace: the parts that provide times, with one numbering and on one axis.

`aaco_pipeline.capture.merging.passes` adds the remaining parts.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Final

import polars as pl

from aaco_pipeline.capture.merging.parts import EVENTS, NamedReading, work_items
from aaco_pipeline.formats.capture_tables import Findings, table_of
from aaco_pipeline.lake.evidence import Evidence
from aaco_pipeline.lake.on_disk import with_columns
from aaco_pipeline.lake.validation import to_contract

WALL: Final = "realtime"
#: Readers' name for times in the host's CLOCK_MONOTONIC.
MONOTONIC: Final = "monotonic"
#: Wall-clock readings further apart come from another boot, or from another host with the same name.
_ONE_BOOT_NS: Final = 1_000_000_000
_OWN: Final = "the capture's own clock; zero is its earliest event"
_FRAME_ORDER: Final = ("domain", "offset_ns", "uncertainty_ns", "anchor")


@dataclass(frozen=True)
class PartTimes:
    """A part's clocks as its reader gave them, and its first and last instant in its own times; None if it has none."""

    name: str
    host: str | None
    clock_domains: pl.DataFrame
    first_ns: int | None
    last_ns: int | None

    @property
    def domain(self) -> str:
        own = self.clock_domains.filter(pl.col("domain") != WALL)
        return str(own.item(0, "domain")) if own.height else "capture"

    @property
    def wall(self) -> dict[str, object] | None:
        """Return the row that ties its times to the wall clock."""
        found = self.clock_domains.filter((pl.col("domain") == WALL) & pl.col("offset_ns").is_not_null())
        return found.row(0, named=True) if found.height else None

    @property
    def epoch_ns(self) -> int | None:
        """Return the origin of its times, in ns after the Unix epoch."""
        offset = None if self.wall is None else self.wall["offset_ns"]
        return -offset if isinstance(offset, int) else None

    @property
    def clock(self) -> tuple[str, ...]:
        """Return a key that is equal for parts timed by one clock: that of a stated host, or the part's own."""
        return ("part", self.name) if self.host is None else ("host", self.host, self.domain)


@dataclass(frozen=True)
class Placed:
    """The table `clock_domains`, the offset of each part's times, and each part's clock."""

    clock_domains: pl.DataFrame
    offsets: Mapping[str, int]
    clocks: Mapping[str, tuple[str, ...]]
    evidence: tuple[Evidence, ...]


def placed(parts: Sequence[PartTimes]) -> Placed:
    """Place all parts on an axis whose zero is the earliest event of the parts that can be aligned.

    The uncertainty is 0 for the first part's clock and null for all others, because the offset between the hosts' wall
    clocks is unknown.
    """
    parts = _on_one_count(parts)
    zeros: dict[tuple[object, ...], int] = {}
    for part in parts:
        if part.first_ns is not None:
            zero = part.first_ns + (part.epoch_ns or 0)
            zeros[_frame_of(part)] = min(zero, zeros.get(_frame_of(part), zero))
    offsets = {part.name: (part.epoch_ns or 0) - zeros.get(_frame_of(part), part.epoch_ns or 0) for part in parts}
    timed = [part for part in parts if part.first_ns is not None]
    rows, evidence = _rows(timed, offsets)
    evidence += _apart(timed, offsets)
    clocks = {part.name: part.clock for part in parts}
    return Placed(table_of("clock_domains", rows), offsets, clocks, tuple(evidence))


def _on_one_count(parts: Sequence[PartTimes]) -> list[PartTimes]:
    """Give all parts in one host's CLOCK_MONOTONIC the first part's wall-clock reading."""
    firsts: list[PartTimes] = []
    found = []
    for part in parts:
        epoch = part.epoch_ns
        if part.domain == MONOTONIC and part.host is not None and epoch is not None:
            alike = (one for one in firsts if one.host == part.host and _near(one.epoch_ns, epoch))
            if first := next(alike, None):
                part = replace(part, clock_domains=first.clock_domains)  # noqa: PLW2901 - the same part
            else:
                firsts.append(part)
        found.append(part)
    return found


def _near(one: int | None, other: int) -> bool:
    return one is not None and abs(one - other) <= _ONE_BOOT_NS


def _frame_of(part: PartTimes) -> tuple[object, ...]:
    """Return a key that is equal for parts that can be aligned from stated values."""
    return (WALL,) if part.epoch_ns is not None else (part.host, part.domain)


def _rows(parts: Sequence[PartTimes], offsets: Mapping[str, int]) -> tuple[list[dict[str, object]], list[Evidence]]:
    """Build the rows of `clock_domains`: one per clock, and one for the wall clock.

    Each file of the first part's host that has a different origin gets its own row. Every other host gets one row, from
    its first file, so clocks without an uncertainty correspond to hosts that are not aligned.
    """
    rows: list[dict[str, object]] = []
    unsure: dict[str, list[str]] = {}
    seen: set[tuple[object, ...]] = set()
    for part in parts:
        same = part.clock == parts[0].clock
        key = (part.clock, part.epoch_ns if same else None)
        if key in seen:
            continue
        seen.add(key)
        name, anchor = part.domain, _OWN if len(parts) == 1 or part.epoch_ns is None else _by_wall(part)
        if len(seen) > 1:
            name = f"{part.domain} of {part.host if part.host is not None and not same else part.name}"
        if not same:
            reason, placing = _unsure(part, parts[0])
            anchor = f"{anchor}; {placing}"
            item = "clocks of files without a host" if part.host is None else f"clock of {part.host}"
            unsure.setdefault(item, []).append(reason)
        rows.append(
            {"domain": name, "offset_ns": offsets[part.name], "uncertainty_ns": 0 if same else None, "anchor": anchor}
        )
    walls = [(part, part.wall) for part in parts if part.wall is not None]
    if walls:
        part, wall = walls[0]
        rows.append({**wall, "offset_ns": offsets[part.name] - (part.epoch_ns or 0)})
    evidence = [
        Evidence(item, "partial", "; ".join(dict.fromkeys(reasons)), None, len(reasons))
        for item, reasons in unsure.items()
    ]
    return [{key: row[key] for key in _FRAME_ORDER} for row in rows], evidence


def _by_wall(part: PartTimes) -> str:
    return f"the capture's own clock, counted from {part.epoch_ns} ns after the Unix epoch; zero is the earliest event"


def _unsure(part: PartTimes, first: PartTimes) -> tuple[str, str]:
    """Describe, for the evidence and the clock's row, what is unknown about it relative to the first part's clock."""
    who = "hosts' clocks" if part.host is not None and first.host is not None else "clocks of files without a host"
    if part.epoch_ns is not None and first.epoch_ns is not None:
        reason = f"placed by wall-clock, which may differ between hosts: {who} are not aligned any closer"
        return f"{reason}; times of different ones cannot be compared", "placed by wall-clock, which may differ"
    if _frame_of(part) == _frame_of(first):
        reason = f"{who} are not known to be one: times are kept as if they were, and cannot be compared"
        return reason, "not known to be the others' clock"
    reason = f"{who} are not aligned: times of different hosts cannot be compared"
    return reason, "not aligned with the other hosts': put at the same beginning"


def _apart(parts: Sequence[PartTimes], offsets: Mapping[str, int]) -> list[Evidence]:
    """Report parts placed by wall clock that ran at different times; ranks of one job would overlap."""
    spans = [
        (part.first_ns + offsets[part.name], part.last_ns + offsets[part.name])
        for part in parts
        if part.epoch_ns is not None and part.first_ns is not None and part.last_ns is not None
    ]
    if len(spans) < 2 or max(first for first, _ in spans) <= min(last for _, last in spans):
        return []
    reason = "by wall-clock their events share no instant: they may be of different runs, or wall-clocks differ"
    return [Evidence("parts at the same time", "partial", reason, None, len(spans))]


DEVICE_COLUMNS: Final = ("device_id", "source_device_id", "destination_device_id")
TIMES: Final = ("start_ns", "end_ns", "time_ns")
_STREAM_COLUMNS: Final = ("stream_id", "waited_stream_id")
_KERNEL_IDENTITY: Final = ("name", "arch_vgprs", "accum_vgprs", "sgprs", "static_lds_bytes", "static_scratch_bytes")
#: Folder of one of several program runs under the tool, at the start of a part's name.
_PASS: Final = re.compile(r"pass_\d+/")
#: Folder of a counting run of `aaco record`.
_COUNTER_PASS: Final = re.compile(r"counters_\d+/")


def choose_base(parts: Sequence[NamedReading]) -> tuple[Sequence[NamedReading], list[Evidence]]:
    """Choose the parts that provide times, and report on the others."""
    eventful = [part for part in parts if not part.counts and any(part.table(name).height for name in EVENTS)]
    # A failed counter pass still ran the program once more.
    timed = [part for part in eventful if not _COUNTER_PASS.match(part.name)] or eventful
    counting = [part for part in parts if part.counts]
    findings = Findings()
    if timed:
        aside = sum(part.table("dispatches").height > 0 for part in counting)
        told = f"{aside} counter passes give counters, never times"
        findings.note(aside, "times of counter passes", "present", told)
        kept = _without_thread_trace_passes(parts, timed)
        slowed = len(timed) - len(kept)
        told = f"{slowed} parts of passes with a thread trace give instructions, never times"
        findings.note(slowed, "times of thread trace passes", "present", told)
        return kept, findings.evidence
    if not counting:
        return [next((part for part in parts if part.table("processes").height), parts[0])], []
    first = max(counting, key=lambda part: part.executions.height)
    reason = f"there is no trace without counters: dispatches are those of the counter pass {first.name}"
    if first.table("dispatches").height:
        reason += ", whose times the counting has lengthened"
    findings.say("base trace", "partial", reason, first.executions.height, first.name)
    return [first], findings.evidence


def _without_thread_trace_passes(
    parts: Sequence[NamedReading], timed: Sequence[NamedReading]
) -> Sequence[NamedReading]:
    """Drop timed parts of passes that took a thread trace, unless no other pass is timed.

    Such a pass reran the program, so its dispatches would be duplicates.
    """

    runs = {part.name: found[0] for part in parts if (found := _PASS.match(part.name))}
    traced = {runs.get(part.name) for part in parts if "traced_dispatch" in part.reading.details} - {None}
    return [part for part in timed if runs.get(part.name) not in traced] or timed


@dataclass
class Base:
    """The base's tables with one numbering, and the data that later parts need to refer to them."""

    tables: dict[str, pl.DataFrame]
    #: Its parts, each with the offsets added to its dispatch and process numbers.
    parts: Sequence[tuple[NamedReading, int, int]]
    #: For each part of the base, by name: the offsets for its dispatch numbers and times.
    dispatch_offsets: Mapping[str, int]
    time_offsets: Mapping[str, int]
    #: Clock of each process; equal if both were timed by the same clock.
    clock_of: Mapping[int, tuple[str, ...]]
    #: PCI address, or else handle, of each device that has one, by its number in the session.
    addresses: Mapping[int, str]
    evidence: list[Evidence]

    @cached_property
    def keys(self) -> pl.DataFrame:
        """Return the session's dispatch_id with `process` (ordinal in base), source_dispatch_id, name, grid, workgroup.

        Built only to place counters or a thread trace: it has one row per dispatch.
        """
        return pl.concat(
            part.keys.with_columns(pl.col("dispatch_id") + dispatches, pl.col("process") + processes)
            for part, dispatches, processes in self.parts
        )


def base_trace(base: Sequence[NamedReading]) -> Base:
    kernels, kernel_maps = _kernels(base)
    devices, device_maps, addresses, alike = _devices(base)
    clocks = placed([_times(part) for part in base])
    clock_of: dict[int, tuple[str, ...]] = {}
    pieces: dict[str, list[pl.DataFrame]] = {name: [] for name in ("processes", *EVENTS)}
    parts: list[tuple[NamedReading, int, int]] = []
    offsets = dict.fromkeys((*EVENTS, "processes", "queues", "streams"), 0)
    dispatch_offsets: dict[str, int] = {}
    for number, part in enumerate(base):
        process_offset = offsets["processes"]
        processes = _or_one(part.table("processes"), "processes", "process_id")
        clock_of |= dict.fromkeys(range(process_offset, process_offset + processes.height), clocks.clocks[part.name])
        pieces["processes"].append(processes.with_columns(pl.col("process_id") + process_offset))
        dispatch_offsets[part.name] = offsets["dispatches"]
        parts.append((part, offsets["dispatches"], process_offset))
        frames = {name: part.executions if name == "dispatches" else part.table(name) for name in EVENTS}
        for name, key in EVENTS.items():
            frame = frames[name]
            pieces[name].append(
                renumbered(
                    frame,
                    {key: offsets[name], "process_id": process_offset, "queue_id": offsets["queues"]}
                    | dict.fromkeys(_STREAM_COLUMNS, offsets["streams"])
                    | ({"parent_dispatch_id": offsets[name]} if name == "dispatches" else {})
                    | dict.fromkeys(TIMES, clocks.offsets[part.name]),
                    {"kernel_id": kernel_maps[number]} | dict.fromkeys(DEVICE_COLUMNS, device_maps[number]),
                )
            )
            offsets[name] += frame.height
        offsets["processes"] += processes.height
        for kind, columns in (("queues", ("queue_id",)), ("streams", _STREAM_COLUMNS)):
            offsets[kind] += _how_many(frames.values(), columns)
    tables = {name: pl.concat(frames) for name, frames in pieces.items()}
    tables |= {"kernels": kernels, "devices": devices, "clock_domains": clocks.clock_domains}
    sizes = [items.alias(f"{what}_work_items") for what, items in work_items().items()]
    tables["dispatches"] = with_columns(tables["dispatches"], sizes)
    return Base(tables, parts, dispatch_offsets, clocks.offsets, clock_of, addresses, [*clocks.evidence, *alike])


def renumbered(frame: pl.DataFrame, added: Mapping[str, int], mapped: Mapping[str, Mapping[int, int]]) -> pl.DataFrame:
    """Add offsets to some columns and replace others; missing columns are skipped."""
    changes = [pl.col(column) + number for column, number in added.items() if number and column in frame.columns]
    for column, mapping in mapped.items():
        if column in frame.columns and any(old != new for old, new in mapping.items()):
            changes.append(pl.col(column).replace(mapping))
    return with_columns(frame, changes)


def _kernels(base: Sequence[NamedReading]) -> tuple[pl.DataFrame, list[dict[int, int]]]:
    """Return the distinct kernels of all parts, and each part's mapping to the session's numbers."""
    together = pl.concat(part.table("kernels").with_columns(part=pl.lit(i)) for i, part in enumerate(base))
    distinct = together.unique(_KERNEL_IDENTITY, keep="first", maintain_order=True).drop("part", "kernel_id")
    distinct = distinct.with_columns(kernel_id=pl.int_range(pl.len(), dtype=pl.Int32))
    new = distinct.select(*_KERNEL_IDENTITY, new="kernel_id")
    numbers = together.join(new, on=_KERNEL_IDENTITY, how="left", nulls_equal=True, maintain_order="left")
    maps = [dict(numbers.filter(pl.col("part") == i).select("kernel_id", "new").iter_rows()) for i in range(len(base))]
    return to_contract("kernels", distinct), maps


def _devices(base: Sequence[NamedReading]) -> tuple[pl.DataFrame, list[dict[int, int]], dict[int, str], list[Evidence]]:
    """Return the distinct devices of all parts; processes of one stated host share a device of the same identity.

    The devices of a part without a stated host are its own: devices of another host or another visible set have the
    same names.
    """
    rows: list[pl.DataFrame] = []
    known: dict[tuple[object, ...], int] = {}
    named: list[str] = []
    maps: list[dict[int, int]] = []
    stated: dict[int, str] = {}
    for number, part in enumerate(base):
        devices = _or_one(part.table("devices"), "devices", "device_id")
        keys = part.reading.details.get("device_keys")
        addresses = dict(keys.select("device_id", "pci_address").iter_rows()) if keys is not None else {}
        mapping: dict[int, int] = {}
        for device, handle in devices.select("device_id", "handle").iter_rows():
            address = addresses.get(device) or handle
            shared = part.host is not None and address is not None
            identity = ("host", part.host, address) if shared else ("part", number, device)
            if not shared and address is not None:
                named.append(str(address))
            if identity not in known:
                rows.append(devices.filter(pl.col("device_id") == device))
            mapping[device] = known.setdefault(identity, len(known))
            if address is not None:
                stated.setdefault(mapping[device], str(address))
        maps.append(mapping)
    reason = "files that state no host name devices alike: each file's are kept as devices of their own"
    alike = (
        [Evidence("identity of devices", "partial", reason, None, len(named))] if len(set(named)) < len(named) else []
    )
    numbered = pl.concat(rows).with_columns(device_id=pl.int_range(pl.len(), dtype=pl.Int32))
    return to_contract("devices", numbered), maps, stated, alike


def _or_one(frame: pl.DataFrame, table: str, key: str) -> pl.DataFrame:
    """Return the rows, or a single row with only the number 0 if the format has none."""
    return frame if frame.height else to_contract(table, pl.DataFrame({key: [0]}))


def _how_many(frames: Iterable[pl.DataFrame], columns: Sequence[str]) -> int:
    """Return one more than the largest number in these columns of a frame; 0 without any."""
    found = [frame.get_column(column).max() for frame in frames for column in columns if column in frame.columns]
    return max((int(value) + 1 for value in found if isinstance(value, int)), default=0)


def _times(part: NamedReading) -> PartTimes:
    """Return the part's clocks and its first and last instant; device samples alone define their own span."""
    spans = [frame.select("start_ns", "end_ns") for frame in (part.table(name) for name in EVENTS) if frame.height]
    if not spans and (samples := part.table("gpu_samples")).height:
        spans = [samples.select(start_ns="time_ns", end_ns="time_ns")]
    first, last = (
        pl.concat(spans).select(pl.col("start_ns").min(), pl.col("end_ns").max()).row(0) if spans else (None,) * 2
    )
    return PartTimes(part.name, part.host, part.table("clock_domains"), first, first if last is None else last)
