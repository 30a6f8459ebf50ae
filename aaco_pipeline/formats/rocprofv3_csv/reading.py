"""Read the CSV tables of one rocprofv3 run into canonical tables.

`frames` normalizes the files' columns.
"""

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import polars as pl

from aaco_pipeline.errors import CaptureError
from aaco_pipeline.formats.capture_tables import (
    CaptureTables,
    Findings,
    Limits,
    described_kernels,
    dispatch_table,
    overlapping_count,
)
from aaco_pipeline.formats.parsing import counter_passes
from aaco_pipeline.formats.parsing.counter_passes import numbered
from aaco_pipeline.formats.parsing.csv_text import TextTable, read_text
from aaco_pipeline.formats.rocprofv3_csv import file_name, frames, kind_of
from aaco_pipeline.formats.rocprofv3_csv.frames import ESSENTIAL, Devices
from aaco_pipeline.lake.evidence import Evidence
from aaco_pipeline.lake.validation import empty_table, to_contract

#: Clock of all times in these files.
CLOCK: Final = "boottime"
_TIMED: Final = ("dispatches", "api_calls", "memory_copies", "markers", "memory_allocations", "pc_samples")
_GATHERED: Final = {"memory_allocation": "memory", "scratch_memory": "memory"}
#: Kinds of rows while processes, devices and queues are numbered.
_PARTS: Final = {
    **{"kernel_trace": "dispatch", "api_trace": "call", "memory_copy": "copy", "memory": "memory"},
    "pc_sampling": "sample",
}


@dataclass(frozen=True)
class SourceFile:
    """A file of a run: its text, the kind from its header, its counter pass, and its name in the run."""

    table: TextTable
    kind: str
    pass_name: str
    label: str


def assembled(files: Sequence[SourceFile]) -> CaptureTables:
    """Combine all files of a run."""
    findings, counted = Findings(), list[counter_passes.LongTable]()
    gathered: dict[str, list[pl.DataFrame]] = {}
    for file in files:
        name, height = file.label, file.table.frame.height
        if file.kind == "counter_collection":
            long = counter_passes.long_table(file.table, file.pass_name)
            counted.append(long)
            kept, left_out = long.counters.height + long.repeated, long.invalid
            findings.took(f"{file.kind} ({name})", height, long.counters.height)
            counter_passes.say_repeated(findings, long, name)
        else:
            rows = frames.FRAMES[file.kind](file.table)
            sound = rows.drop_nulls(frames.NEEDED[file.kind])
            if file.kind == "statistics":
                sound = sound.with_columns(source=pl.lit(name))
            gathered.setdefault(_GATHERED.get(file.kind, file.kind), []).append(sound)
            kept, left_out = sound.height, rows.height - sound.height
            findings.took(f"{file.kind} ({name})", height, kept)
        _say_of_file(findings, file, kept, left_out)
    return _reading(findings, {kind: pl.concat(listed) for kind, listed in gathered.items()}, counted)


def _say_of_file(findings: Findings, file: SourceFile, kept: int, left_out: int) -> None:
    name = file.label
    findings.have(name, kept, "none of its rows can be used" if left_out else "the table has no rows", name)
    if file.table.cut:
        findings.say(f"end of {name}", "partial", "the file ends within a row; read up to it", source=name)
    reason = f"{left_out} rows without what is essential: {', '.join(frames.ESSENTIAL[file.kind])}; left out"
    findings.note(left_out, f"unusable rows of {name}", "invalid", reason, name)
    read = frames.READ.get(file.kind)
    surplus = file.table.surplus(frozenset(read)) if read else ()
    findings.note(len(surplus), f"columns of {name}", "partial", f"columns not taken: {', '.join(surplus[:20])}", name)


def _reading(
    findings: Findings, gathered: Mapping[str, pl.DataFrame], counted: Sequence[counter_passes.LongTable]
) -> CaptureTables:
    executions, counters = _counted(counted)
    present = {part: gathered[kind] for kind, part in _PARTS.items() if kind in gathered}
    present |= {} if executions is None else {"execution": executions}
    processes, present = _processes(present)
    devices = Devices(gathered.get("agent_info"))
    present = devices.numbered(present)
    queues, streams, present = _queues(present)
    kernels, present = _kernels(present)
    tables: dict[str, pl.DataFrame] = {"processes": processes, "devices": devices.table(), "kernels": kernels}
    details: dict[str, pl.DataFrame] = {"queues": queues, "streams": streams}
    dispatches = _dispatches(present.get("dispatch"))
    keys = _keys(present.get("dispatch"))
    if "execution" in present:
        found = counter_passes.matched(present["execution"], keys)
        new = found.filter("is_new").sort("dispatch_id")
        reason = f"{new.height} counted executions are not in the kernel trace; added with their own times"
        findings.note(new.height if keys.height else 0, "executions beside the trace", "partial", reason)
        dispatches = pl.concat([dispatches, counter_passes.dispatch_rows(new)])
        keys = pl.concat([keys, new.select(keys.columns)])
        details["counter_dispatches"] = counter_passes.counter_dispatches(found)
        counter_passes.say_times(findings, "times of counted executions", "counter_collection", found)
        tables["counters"] = counter_passes.counter_rows(counters, found)
    if "dispatch" in present or "execution" in present:
        tables["dispatches"] = dispatches
        details["dispatch_keys"] = keys.select("dispatch_id", "source_dispatch_id")
    if "call" in present:
        tables |= _calls(present["call"])
    if "copy" in present:
        tables["memory_copies"] = _copies(present["copy"])
    if "memory" in present:
        tables["memory_allocations"] = _allocations(present["memory"])
    if "sample" in present:
        tables["pc_samples"] = _samples(present["sample"], keys)
    if "statistics" in gathered:
        tables["reported_statistics"] = gathered["statistics"]
    timed = sum(frame.height for name, frame in tables.items() if name in _TIMED)
    tables["clock_domains"] = counter_passes.clock_domains(CLOCK, timed)
    details["source_rows"] = findings.source_rows()
    _say_of_run(findings, tables)
    devices.say(findings)
    return CaptureTables(tables, tuple(findings.evidence), details)


def _counted(counted: Sequence[counter_passes.LongTable]) -> tuple[pl.DataFrame | None, pl.DataFrame]:
    """Concatenate executions and counters of all counter files, numbering executions consecutively."""
    if not counted:
        return None, pl.DataFrame()
    executions, counters, before = [], [], 0
    for long in counted:
        shift = pl.col("execution") + before
        executions.append(long.executions.with_columns(shift))
        counters.append(long.counters.with_columns(shift))
        before += long.executions.height
    return pl.concat(executions), pl.concat(counters)


def _processes(parts: Mapping[str, pl.DataFrame]) -> tuple[pl.DataFrame, dict[str, pl.DataFrame]]:
    """Build the table `processes`, and add `process_id` to the parts.

    Some tables name no process. Their rows belong to the only process named in the others, or with several or none, to
    an unknown process.
    """
    keys = [key for frame in parts.values() for key in frame.select("guid", "pid").unique(maintain_order=True).rows()]
    named = list(dict.fromkeys(key for key in keys if key[1] is not None))
    numbers = {key: number for number, key in enumerate(named)}
    facts = list(named)
    of_guid: dict[str | None, list[tuple[str | None, int | None]]] = {}
    for key in named:
        of_guid.setdefault(key[0], []).append(key)
    for guid, pid in dict.fromkeys(keys):
        if pid is None:
            fitting = named if guid is None else [*of_guid.get(guid, []), *of_guid.get(None, [])]
            if len(fitting) != 1:
                facts.append((guid, None))
            numbers[guid, None] = numbers[fitting[0]] if len(fitting) == 1 else len(facts) - 1
    schema = {"guid": pl.String, "pid": pl.Int64, "process_id": pl.Int32}
    of_key = pl.DataFrame([(*key, number) for key, number in numbers.items()], schema=schema, orient="row")
    given = {
        name: frame.join(of_key, on=["guid", "pid"], how="left", nulls_equal=True, maintain_order="left")
        for name, frame in parts.items()
    }
    table = pl.DataFrame([(*key, number) for number, key in enumerate(facts)], schema=schema, orient="row")
    return to_contract("processes", table), given


def _queues(parts: Mapping[str, pl.DataFrame]) -> tuple[pl.DataFrame, pl.DataFrame, dict[str, pl.DataFrame]]:
    """Build the details `queues` and `streams`, and add `queue_id` and `stream_id` to parts that name any."""
    given = dict(parts)
    details = []
    for kind in ("queue", "stream"):
        columns = ["process_id", kind]
        schema = {"process_id": pl.Int32, kind: pl.String}
        holders = [name for name, frame in given.items() if kind in frame.columns]
        all_values = [given[name].select(columns) for name in holders] or [pl.DataFrame(schema=schema)]
        number = f"{kind}_id"
        distinct = numbered(pl.concat(all_values).drop_nulls(kind).unique(maintain_order=True), columns, number)
        for name in holders:
            given[name] = given[name].join(distinct, on=columns, how="left", maintain_order="left")
        details.append(distinct.select(number, "process_id", source=kind))
    return details[0], details[1], given


def _kernels(parts: Mapping[str, pl.DataFrame]) -> tuple[pl.DataFrame, dict[str, pl.DataFrame]]:
    """Build the table `kernels`, one row per name and registers, and add `kernel_id` to parts that run kernels."""
    given = dict(parts)
    identity = ["kernel_name", "arch_vgprs", "accum_vgprs", "sgprs"]
    holders = [name for name in ("dispatch", "execution") if name in given]
    if not holders:
        return empty_table("kernels"), given
    distinct = pl.concat([given[name].select(identity) for name in holders]).unique(maintain_order=True)
    distinct = distinct.with_columns(kernel_id=pl.int_range(pl.len(), dtype=pl.Int32))
    for name in holders:
        given[name] = given[name].join(distinct, on=identity, how="left", nulls_equal=True, maintain_order="left")
    return described_kernels(distinct.rename({"kernel_name": "name"})), given


def _dispatches(frame: pl.DataFrame | None) -> pl.DataFrame:
    if frame is None:
        return empty_table("dispatches")
    return dispatch_table(
        frame.select(
            *("process_id", "thread_id", "device_id", "queue_id", "stream_id", "kernel_id", "correlation_id"),
            *(f"{what}_{axis}" for what in ("grid", "workgroup") for axis in "xyz"),
            *("start_ns", "end_ns", "lds_allocated_bytes", "scratch_bytes", "graph_node_id"),
            dispatch_id=pl.int_range(pl.len(), dtype=pl.Int32),
        )
    )


def _keys(frame: pl.DataFrame | None) -> pl.DataFrame:
    """Return the identity of each dispatch: `dispatch_id`, `process_id`, `source_dispatch_id`, `kernel_name`."""
    ids = {"dispatch_id": pl.Int32, "process_id": pl.Int32}
    schema = {**ids, "source_dispatch_id": pl.UInt64, "kernel_name": pl.String}
    if frame is None:
        return pl.DataFrame(schema=schema)
    return frame.with_columns(dispatch_id=pl.int_range(pl.len(), dtype=pl.Int32)).select(*schema)


def _calls(frame: pl.DataFrame) -> dict[str, pl.DataFrame]:
    """Build the tables `api_calls` and `markers`: the tool writes the program's annotations among the calls."""
    is_marker = pl.col("domain").str.starts_with("marker")
    domain = pl.col("domain").str.replace(r"(?:_api|_ext)+$", "").replace({"hsa_finalize": "hsa_finalizer"})
    calls, markers = frame.filter(~is_marker), frame.filter(is_marker)
    columns = ("process_id", "thread_id", "name", "start_ns", "end_ns")
    number = pl.int_range(pl.len(), dtype=pl.Int32)
    return {
        "api_calls": to_contract("api_calls", calls.select(*columns, "correlation_id", domain=domain, call_id=number)),
        "markers": to_contract("markers", markers.select(*columns, marker_id=number)),
    }


def _copies(frame: pl.DataFrame) -> pl.DataFrame:
    """Build `memory_copies`. The executing device of a copy between two devices is not stated: null."""
    source, destination = pl.col("source_device_id"), pl.col("destination_device_id")
    one_sided = pl.when(source.is_null()).then(destination).when(destination.is_null()).then(source)
    return to_contract(
        "memory_copies",
        frame.select(
            *("process_id", "direction", "source_device_id", "destination_device_id", "stream_id", "correlation_id"),
            *("start_ns", "end_ns"),
            copy_id=pl.int_range(pl.len(), dtype=pl.Int32),
            device_id=one_sided.when(source == destination).then(source),
        ),
    )


def _allocations(frame: pl.DataFrame) -> pl.DataFrame:
    taken = ("process_id", "thread_id", "device_id", "kind", "operation", "size_bytes", "address", "correlation_id")
    return to_contract(
        "memory_allocations",
        frame.select(*taken, "start_ns", "end_ns", allocation_id=pl.int_range(pl.len(), dtype=pl.Int32)),
    )


def _samples(frame: pl.DataFrame, keys: pl.DataFrame) -> pl.DataFrame:
    identity = ["process_id", "source_dispatch_id"]
    known = keys.select("dispatch_id", *identity).unique(identity, keep="none")
    joined = frame.join(known, on=identity, how="left", maintain_order="left")
    samples = joined.drop("guid", "pid", "process_id").with_columns(sample_id=pl.int_range(pl.len(), dtype=pl.Int32))
    return to_contract("pc_samples", samples)


def _say_of_run(findings: Findings, given: Mapping[str, pl.DataFrame]) -> None:
    """Report the data that the run as a whole has and lacks, and its oddities."""
    tables = {name: given[name] if name in given else empty_table(name) for name in (*_TIMED[:-1], *_ABSENCE)}
    for name, missing in _ABSENCE.items():
        lacking = "its files hold no row that can be used" if name in given else missing
        findings.have(name, tables[name].height, lacking)
    for name in _TIMED[:-1]:
        backwards = tables[name].filter(pl.col("end_ns") < pl.col("start_ns")).height
        reason = f"{backwards} rows end before they begin; kept as stated"
        findings.note(backwards, f"reversed times of {name}", "invalid", reason)
    dispatches, calls = tables["dispatches"], tables["api_calls"]
    if dispatches.height and calls.height:
        linked = dispatches.join(calls, on=["process_id", "correlation_id"], how="semi").height
        unlinked = dispatches.height - linked
        reason = f"{unlinked} of {dispatches.height} dispatches have no call of their correlation in the API trace"
        findings.say("launches", "partial" if unlinked else "present", reason if unlinked else None, linked)
    queued = dispatches.filter(pl.col("queue_id").is_not_null())
    overlapping = overlapping_count(queued.with_columns(lane=pl.struct("process_id", "device_id", "queue_id")), "lane")
    reason = f"{overlapping} dispatches begin before an earlier one of the same queue has ended; kept as stated"
    findings.note(overlapping, "overlapping dispatches", "partial", reason)
    if "memory_copies" in given:
        findings.say("sizes of copies", "absent", "these tables have no size of copies")
    for name in ("dispatches", "api_calls", "markers"):
        unnamed = tables[name].get_column("thread_id").null_count()
        reason = f"{unnamed} rows name no thread (an empty field or 0)"
        findings.note(unnamed, f"threads of {name}", "partial", reason)


_ABSENCE: Final = {
    "dispatches": "no kernel trace among the files, nor counters with times",
    "api_calls": "no API trace among the files",
    "memory_copies": "no trace of memory copies among the files",
    "markers": "no trace of markers among the files",
    "counters": "no counter table among the files",
}


_PASS_FOLDER: Final = re.compile(r"pass_\d+", re.IGNORECASE)


def read_run(paths: Sequence[Path], limits: Limits) -> CaptureTables:
    """See `aaco_pipeline.formats.rocprofv3_csv.read_run`."""
    if not paths:
        raise CaptureError("no files of a rocprofv3 run given; name at least one")
    names = Counter(path.name for path in paths)
    labels = [path.name if names[path.name] == 1 else str(path) for path in paths]
    files: list[SourceFile] = []
    refused: list[tuple[str, CaptureError]] = []
    for path, label in zip(paths, labels, strict=True):
        try:
            files.append(_file(path, label, limits))
        except CaptureError as error:
            refused.append((label, error))
    if not files:
        raise refused[0][1]
    if sum(file.table.frame.height for file in files) > limits.events:
        raise CaptureError(f"{paths[0]}: more than {limits.events} rows in its run; raise the limit or capture less")
    told = [Evidence(f"file {label}", "invalid", str(error), label) for label, error in refused]
    read = assembled(files)
    return CaptureTables(read.tables, (*read.evidence, *told), read.details)


def _file(path: Path, label: str, limits: Limits) -> SourceFile:
    table = read_text(path, limits)
    kind = kind_of(frozenset(table.frame.columns))
    if kind is None:
        raise CaptureError(f"{path}: not a table of rocprofv3; its columns are {', '.join(table.header[:8])}")
    table.require(f"a {kind} table of rocprofv3", *ESSENTIAL[kind])
    return SourceFile(table, kind, _pass_name(path), label)


def _pass_name(path: Path) -> str:
    """Return the counter pass of a file: the folder `pass_n` that contains it, or the prefix of its name."""
    for folder in path.parents[:3]:
        if _PASS_FOLDER.fullmatch(folder.name):
            return folder.name
    named = file_name(path.name)
    return (named["prefix"] or named["kind"]) if named else path.name.split(".")[0]
