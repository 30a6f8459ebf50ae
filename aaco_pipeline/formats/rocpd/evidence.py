"""What a rocpd database held and missed, as evidence; reading it is `rocpd_tables`."""

import itertools
import re
from collections import Counter
from collections.abc import Sequence
from typing import Final

import numpy as np
import numpy.typing as npt
import polars as pl

from aaco_pipeline.formats.rocpd.database import TableSet
from aaco_pipeline.formats.rocpd.tables import Parts
from aaco_pipeline.lake.evidence import Evidence

_KNOWN_SCHEMAS: Final = re.compile(r"3(\.0\.[0-5])?")
#: What may be there: item, table of the lake, kind of source table, and the option that records it.
_KINDS: Final = (
    ("kernel dispatches", "dispatches", "kernel_dispatch", "capture with --kernel-trace"),
    ("API calls", "api_calls", "region", "capture with --runtime-trace or --hip-trace"),
    ("memory copies", "memory_copies", "memory_copy", "capture with --memory-copy-trace"),
    ("memory allocations", "memory_allocations", "memory_allocate", "capture with --memory-allocation-trace"),
    ("markers", "markers", "region", "capture with --marker-trace a program that sets roctx ranges"),
    ("hardware counters", "counters", "pmc_event", "capture with --pmc"),
)
#: Oddities counted while reading: count, item, what it means.
_ODDITIES: Final = (
    ("dispatches outside their process", "times of dispatches", "{} dispatches lie outside their process's time"),
    ("unknown kernels", "described kernels", "{} kernels that dispatches name are not described"),
    ("unknown agents", "described devices", "{} agents that dispatches name are no described GPUs"),
    (
        "unknown agents of memory",
        "agents of memory operations",
        "{} agents that copies or allocations name are not described; their device is left out",
    ),
    ("unknown processes", "described processes", "{} processes that events name are not described"),
    ("calls without name", "names of calls", "{} calls have no name in the database"),
    ("calls without category", "domains of calls", "{} calls have no category; their domain is unknown"),
    ("markers with damaged text", "text of markers", "the messages of {} markers are damaged; names are used"),
    (
        "copies between devices",
        "device of copies",
        "{} copies go from one device to another; the capture does not say whose engine copied",
    ),
    ("values of unknown counters", "names of counters", "{} counter values name no described counter"),
    (
        "counter rows of streaming samples",
        "streamed counter samples",
        "{} rows are periodic samples within a kernel (SPM), not its sums; they are not added up",
    ),
    (
        "counter rows of no kernel",
        "counters of no kernel",
        "{} rows belong to events that are no kernels (driver events, samples); not taken",
    ),
    ("counter rows without value", "empty counters", "{} rows of counters hold no value; not taken"),
)
#: Why a table is not taken; for any other the lake has no place.
_NOT_TAKEN: Final = {"arg": "arguments of calls are text that no figure is made from"}
#: Kinds whose rows not taken are told by what they are.
_TOLD: Final = ("sample", "pmc_event", "info_kernel_symbol")


def evidence(
    source: str, sets: Sequence[TableSet], found: Sequence[Parts], tables: dict[str, pl.DataFrame], hosts: Sequence[str]
) -> tuple[Evidence, ...]:
    """Items of one database `source`: what is present, absent and why, and every oddity that was kept, counted."""
    counts: Counter[str] = Counter()
    not_taken: Counter[str] = Counter()
    rows: Counter[str] = Counter()
    for one in found:
        counts.update(one.counts)
        not_taken.update(one.not_taken)
        rows.update({kind: rows_in for kind, (rows_in, _) in one.rows.items()})
    dispatches, calls, copies = tables["dispatches"], tables["api_calls"], tables["memory_copies"]
    items = [_schema(source, sets)]
    items += [_presence(source, sets, tables[kind[1]], kind) for kind in _KINDS]
    items.append(_links("launch calls of kernels", source, dispatches, calls))
    if copies.height:
        items.append(_links("calls of memory copies", source, copies, calls))
    unanchored = "the capture's times are since boot; nothing in it ties them to the date"
    items.append(Evidence("wall clock", "absent", unanchored, source))
    loaded = rows["info_kernel_symbol"]
    odd = [
        ("order on a queue", _overlapping(dispatches), "{} dispatches start before an earlier one of their queue ends"),
        (
            "threads of dispatches",
            dispatches["thread_id"].null_count(),
            "{} dispatches name no known thread; they are kept",
        ),
        (
            "correlation of dispatches",
            dispatches["correlation_id"].null_count(),
            "{} dispatches have no event or no correlation; they are kept without a launch call",
        ),
        *((item, counts[count], reason) for count, item, reason in _ODDITIES),
        (
            "rocpd_info_kernel_symbol",
            max(loaded - tables["kernels"].height, 0),
            f"{{}} of {loaded} loaded symbols were not dispatched or repeat a kernel for another device",
        ),
        *(
            (what, count, "{} samples that are neither calls nor markers; not taken")
            for what, count in not_taken.items()
        ),
    ]
    items += [Evidence(item, "partial", reason.format(count), source, count) for item, count, reason in odd if count]
    for kind in sorted(rows):
        if rows[kind] and kind not in _TOLD and not any(one.rows.get(kind, (0, 0))[1] for one in found):
            reason = f"{rows[kind]} rows not taken: {_NOT_TAKEN.get(kind, 'the lake has no table for it')}"
            items.append(Evidence(f"rocpd_{kind}", "absent", reason, source, rows[kind]))
    if len(hosts) > 1:
        reason = f"the processes ran on {len(hosts)} hosts, whose clocks nothing ties together: {', '.join(hosts)}"
        items.append(Evidence("common clock", "invalid", reason, source))
    return tuple(items)


def _presence(source: str, sets: Sequence[TableSet], frame: pl.DataFrame, kind: tuple[str, str, str, str]) -> Evidence:
    item, _, origin, option = kind
    height = frame.height
    if not height:
        there = any(origin in one.tables for one in sets)
        reason = f"none recorded; {option}" if there else f"the database has no table rocpd_{origin}"
        return Evidence(item, "absent", reason, source, 0)
    if "end_ns" in frame.columns and (backwards := int((frame["end_ns"] < frame["start_ns"]).sum())):
        reason = f"{backwards} of {height} end before they start; kept as the capture has them"
        return Evidence(item, "partial", reason, source, height)
    return Evidence(item, "present", None, source, height)


def _schema(source: str, sets: Sequence[TableSet]) -> Evidence:
    versions = list(dict.fromkeys(one.metadata.get("schema_version", "not stated") for one in sets))
    unknown = [version for version in versions if not _KNOWN_SCHEMAS.fullmatch(version)]
    if unknown:
        reason = (
            f"schema {', '.join(unknown)} is not one of 3 to 3.0.5: read by the names of its columns as far as known"
        )
        return Evidence("rocpd schema", "partial", reason, source, len(sets))
    return Evidence("rocpd schema", "present", f"version {', '.join(versions)}", source, len(sets))


def _links(item: str, source: str, activities: pl.DataFrame, calls: pl.DataFrame) -> Evidence:
    """How many activities name a call that was recorded, within their process."""
    if not activities.height or not calls.height:
        reason = "no calls were recorded" if activities.height else "there is nothing to link"
        return Evidence(item, "absent", reason, source, 0)
    keys = ["process_id", "correlation_id"]
    known = calls.select(keys).drop_nulls().group_by(keys).len("times")
    times = activities.select(keys).join(known, on=keys, how="left")["times"]
    linked = len(times) - times.null_count()
    repeated = int((times > 1).sum())
    if linked == activities.height and not repeated:
        return Evidence(item, "present", None, source, linked)
    reason = f"{activities.height - linked} of {activities.height} name no recorded call"
    if repeated:
        reason += f"; {repeated} name more than one"
    return Evidence(item, "partial", reason, source, linked)


def _overlapping(dispatches: pl.DataFrame) -> int:
    """Dispatches that start before an earlier one on the same device's queue has ended."""
    times = dispatches.select("process_id", "device_id", "queue_id", "start_ns", "end_ns").drop_nulls()
    lane = (
        times.select(pl.struct("process_id", "device_id", "queue_id").rank("dense"))
        .to_series()
        .cast(pl.Int64)
        .to_numpy()
    )
    start, end = times["start_ns"].to_numpy(), times["end_ns"].to_numpy()
    order = np.lexsort((start, lane))
    lane, start, end = lane[order], start[order], end[order]
    return sum(
        int((start[first + 1 : last] < np.maximum.accumulate(end[first:last])[:-1]).sum())
        for first, last in _stretches(lane)
    )


def _stretches(values: npt.NDArray[np.int64]) -> list[tuple[int, int]]:
    """Where equal neighbours begin and end."""
    if not len(values):
        return []
    bounds = [0, *(np.flatnonzero(np.diff(values)) + 1).tolist(), len(values)]
    return list(itertools.pairwise(bounds))
