"""Read a rocpd database: combine the tables of its processes, and report the data it has and lacks.

`tables` builds the tables of one process.
"""

import re
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import numpy as np
import polars as pl

from aaco_pipeline.formats.capture_tables import CaptureTables, Findings, Limits, described_kernels, overlapping_count
from aaco_pipeline.formats.parsing.sqlite_database import TableSet, opened
from aaco_pipeline.formats.rocpd.process import Parts, table_sets
from aaco_pipeline.formats.rocpd.tables import parts
from aaco_pipeline.lake.validation import to_contract

_KNOWN_SCHEMAS: Final = re.compile(r"3(\.0\.[0-5])?")
#: Possible contents: item, table of the lake, kind of source table, and the option that records it.
_KINDS: Final = (
    ("kernel dispatches", "dispatches", "kernel_dispatch", "capture with --kernel-trace"),
    ("API calls", "api_calls", "region", "capture with --runtime-trace or --hip-trace"),
    ("memory copies", "memory_copies", "memory_copy", "capture with --memory-copy-trace"),
    ("memory allocations", "memory_allocations", "memory_allocate", "capture with --memory-allocation-trace"),
    ("markers", "markers", "region", "capture with --marker-trace a program that sets roctx ranges"),
    ("hardware counters", "counters", "pmc_event", "capture with --pmc"),
)
#: Oddities counted while reading: count, item, meaning.
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
#: Reasons for not using a table; the lake has no place for any other.
_NOT_TAKEN: Final = {"arg": "arguments of calls are text that no figure is made from"}
#: Kinds whose unused rows are reported by content.
_TOLD: Final = ("sample", "pmc_event", "info_kernel_symbol")


def findings_of(
    source: str, sets: Sequence[TableSet], found: Sequence[Parts], tables: dict[str, pl.DataFrame], hosts: Sequence[str]
) -> Findings:
    """Report the data that one database `source` has and lacks, with reasons, and count every oddity."""
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
    """Report how many activities name a recorded call of their process."""
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
    """Count activities that name a call of their process, and those that name several."""
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
    """Count dispatches that start before an earlier one on the same device's queue has ended."""
    lane = pl.struct("process_id", "device_id", "queue_id")
    placed = dispatches.select(lane.alias("lane"), "start_ns", "end_ns", "device_id", "queue_id")
    return overlapping_count(placed.drop_nulls(), "lane")


_CLOCK: Final = "boottime"
_UNIQUE_KERNEL: Final = ("name", "arch_vgprs", "accum_vgprs", "sgprs", "static_lds_bytes", "static_scratch_bytes")
#: Ids that are dense within one process's tables and are shifted when several processes are combined.
_NUMBERED: Final = {
    "process_id": "processes",
    "device_id": "devices",
    "source_device_id": "devices",
    "destination_device_id": "devices",
    "queue_id": "queues",
    "stream_id": "streams",
    "kernel_id": "kernels",
    "dispatch_id": "dispatches",
    "call_id": "api_calls",
    "marker_id": "markers",
    "copy_id": "memory_copies",
    "allocation_id": "memory_allocations",
}
_TABLES: Final = (
    *("processes", "devices", "dispatches", "api_calls", "memory_copies", "markers", "counters"),
    *("memory_allocations", "environment"),
)
_DETAILS: Final = ("dispatch_keys", "kernel_keys", "device_keys", "queues", "streams", "code_objects")


def read(path: Path, limits: Limits) -> CaptureTables:
    """See `aaco_pipeline.formats.rocpd.read`."""
    with opened(path, limits) as database:
        sets = table_sets(database)
        found = [parts(database, one, limits, _pass_name(path)) for one in sets]
    frames = _merged(found)
    kernels, frames["dispatches"], frames["kernel_keys"] = _distinct(
        frames.pop("kernels"), frames["dispatches"], frames["kernel_keys"]
    )
    hosts = list(dict.fromkeys(host for one in found for host in one.hosts))
    tables = {name: to_contract(name, frames.get(name, pl.DataFrame())) for name in _TABLES}
    tables["environment"] = tables["environment"].unique(["category", "key"], keep="first", maintain_order=True)
    symbols = frames["kernel_keys"].select("kernel_id", pl.col("symbol").str.strip_suffix(".kd"))
    symbols = symbols.drop_nulls().unique("kernel_id", keep="first", maintain_order=True)
    tables["kernels"] = described_kernels(kernels.join(symbols, on="kernel_id", how="left", maintain_order="left"))
    tables["clock_domains"] = _clocks(hosts)
    details = {name: frames[name] for name in _DETAILS}
    findings = findings_of(path.name, sets, found, tables, hosts)
    details["source_rows"] = findings.source_rows()
    return CaptureTables(tables, tuple(findings.evidence), details)


def _pass_name(path: Path) -> str:
    """Return the database's replay pass: the `pass_n` folder that contains it, or its own name."""
    folder = next((one.name for one in path.parents if re.fullmatch(r"pass_\d+", one.name)), None)
    return folder or path.name.removesuffix(".gz").removesuffix(".db")


def _merged(found: Sequence[Parts]) -> dict[str, pl.DataFrame]:
    """Combine the frames of all processes, with ids shifted so that they stay dense and distinct."""
    if len(found) == 1:
        return dict(found[0].frames)
    bases: Counter[str] = Counter()
    collected: dict[str, list[pl.DataFrame]] = {}
    for one in found:
        for name, frame in one.frames.items():
            moved = [
                (pl.col(column) + bases[table]).cast(pl.Int32)
                for column, table in _NUMBERED.items()
                if column in frame.columns and bases[table]
            ]
            collected.setdefault(name, []).append(frame.with_columns(moved))
        bases.update({name: frame.height for name, frame in one.frames.items()})
    return {name: pl.concat(frames) for name, frames in collected.items()}


def _distinct(
    kernels: pl.DataFrame, dispatches: pl.DataFrame, keys: pl.DataFrame
) -> tuple[pl.DataFrame, pl.DataFrame, pl.DataFrame]:
    """Keep one row per kernel over all processes, and renumber the references to kernels."""
    unique = kernels.unique(_UNIQUE_KERNEL, keep="first", maintain_order=True)
    if unique.height == kernels.height:
        return kernels, dispatches, keys
    unique = unique.with_columns(kernel_id=pl.int_range(pl.len(), dtype=pl.Int32))
    same = kernels.join(unique, on=_UNIQUE_KERNEL, nulls_equal=True, how="left", maintain_order="left")
    places = same["kernel_id_right"]
    return (
        unique,
        dispatches.with_columns(places.gather(dispatches["kernel_id"]).alias("kernel_id")),
        keys.with_columns(places.gather(keys["kernel_id"]).alias("kernel_id")),
    )


def _clocks(hosts: Sequence[str]) -> pl.DataFrame:
    """Build the capture's clock; every further host has a separate one that is not tied to any other."""
    rows: list[dict[str, object]] = [
        {
            "domain": _CLOCK,
            "offset_ns": 0,
            "uncertainty_ns": 0,
            "anchor": "CLOCK_BOOTTIME of the profiled host, as the capture's own times; it defines their axis",
        }
    ]
    rows += [
        {"domain": f"{_CLOCK} of {host}", "offset_ns": None, "uncertainty_ns": None, "anchor": None}
        for host in hosts[1:]
    ]
    return to_contract("clock_domains", pl.DataFrame(rows))
