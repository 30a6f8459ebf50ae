"""What a rocpd database held and missed, as evidence; reading it is `aaco_pipeline.formats.rocpd.tables`'."""

import re
from collections import Counter
from collections.abc import Sequence
from typing import Final

import numpy as np
import polars as pl

from aaco_pipeline.formats.capture_tables import Findings, overlapping_count
from aaco_pipeline.formats.rocpd.database import TableSet
from aaco_pipeline.formats.rocpd.process import Parts

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


def findings_of(
    source: str, sets: Sequence[TableSet], found: Sequence[Parts], tables: dict[str, pl.DataFrame], hosts: Sequence[str]
) -> Findings:
    """What one database `source` holds and lacks, with why, and every oddity that was kept, counted."""
    findings = Findings(source)
    counts, not_taken, rows, taken = (Counter[str]() for _ in range(4))
    for one in found:
        counts.update(one.counts)
        not_taken.update(one.not_taken)
        rows.update({kind: rows_in for kind, (rows_in, _) in one.rows.items()})
        taken.update({kind: rows_out for kind, (_, rows_out) in one.rows.items()})
    for kind in sorted(rows):
        findings.took(f"rocpd_{kind}", rows[kind], taken[kind])
    dispatches, calls, copies = tables["dispatches"], tables["api_calls"], tables["memory_copies"]
    _say_schema(findings, sets)
    for item, table, origin, option in _KINDS:
        there = any(origin in one.tables for one in sets)
        lacking = f"none recorded; {option}" if there else f"the database has no table rocpd_{origin}"
        _say_present(findings, item, tables[table], lacking)
    _say_links(findings, "launch calls of kernels", dispatches, calls)
    if copies.height:
        _say_links(findings, "calls of memory copies", copies, calls)
    findings.say("wall clock", "absent", "the capture's times are since boot; nothing in it ties them to the date")
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
    for item, count, reason in odd:
        findings.note(count, item, "partial", reason.format(count))
    for kind in sorted(rows):
        if kind not in _TOLD and not taken[kind]:
            reason = f"{rows[kind]} rows not taken: {_NOT_TAKEN.get(kind, 'the lake has no table for it')}"
            findings.note(rows[kind], f"rocpd_{kind}", "absent", reason)
    if len(hosts) > 1:
        reason = f"the processes ran on {len(hosts)} hosts, whose clocks nothing ties together: {', '.join(hosts)}"
        findings.say("common clock", "invalid", reason)
    return findings


def _say_present(findings: Findings, item: str, frame: pl.DataFrame, lacking: str) -> None:
    backwards = frame.filter(pl.col("end_ns") < pl.col("start_ns")).height if "end_ns" in frame.columns else 0
    if backwards:
        reason = f"{backwards} of {frame.height} end before they start; kept as the capture has them"
        findings.say(item, "partial", reason, frame.height)
    else:
        findings.have(item, frame.height, lacking)


def _say_schema(findings: Findings, sets: Sequence[TableSet]) -> None:
    versions = list(dict.fromkeys(one.metadata.get("schema_version", "not stated") for one in sets))
    unknown = ", ".join(version for version in versions if not _KNOWN_SCHEMAS.fullmatch(version))
    reason = f"schema {unknown} is not one of 3 to 3.0.5: read by the names of its columns as far as known"
    known = f"version {', '.join(versions)}"
    findings.say("rocpd schema", "partial" if unknown else "present", reason if unknown else known, len(sets))


def _say_links(findings: Findings, item: str, activities: pl.DataFrame, calls: pl.DataFrame) -> None:
    """State how many activities name a call that was recorded, within their process."""
    if not activities.height or not calls.height:
        reason = "no calls were recorded" if activities.height else "there is nothing to link"
        findings.say(item, "absent", reason, 0)
        return
    linked, repeated = _linked(activities, calls)
    reason = f"{activities.height - linked} of {activities.height} name no recorded call"
    reason += f"; {repeated} name more than one" if repeated else ""
    whole = linked == activities.height and not repeated
    findings.say(item, "present" if whole else "partial", None if whole else reason, linked)


def _linked(activities: pl.DataFrame, calls: pl.DataFrame) -> tuple[int, int]:
    """How many activities name a call of their process, and how many of them more than one."""
    linked = repeated = 0
    of_process = [
        frame.select("process_id", "correlation_id").drop_nulls().partition_by("process_id", as_dict=True)
        for frame in (activities, calls)
    ]
    for process in of_process[0].keys() & of_process[1].keys():
        sought, known = (frames[process].get_column("correlation_id").to_numpy() for frames in of_process)
        known = np.sort(known, kind="stable")
        times = np.searchsorted(known, sought, "right") - np.searchsorted(known, sought, "left")
        linked, repeated = linked + int((times > 0).sum()), repeated + int((times > 1).sum())
    return linked, repeated


def _overlapping(dispatches: pl.DataFrame) -> int:
    """Dispatches that start before an earlier one on the same device's queue has ended."""
    lane = pl.struct("process_id", "device_id", "queue_id")
    placed = dispatches.select(lane.alias("lane"), "start_ns", "end_ns", "device_id", "queue_id")
    return overlapping_count(placed.drop_nulls(), "lane")
