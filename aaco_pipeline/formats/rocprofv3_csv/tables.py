"""The tables of one process's run of rocprofv3, from the text of its CSV files to canonical tables."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

import polars as pl

from aaco_pipeline.formats import rocprof as rocprof_v1
from aaco_pipeline.formats.capture_tables import CaptureTables, described_kernels
from aaco_pipeline.formats.parsing import counter_passes
from aaco_pipeline.formats.parsing.counter_passes import numbered
from aaco_pipeline.formats.parsing.csv_text import TextTable
from aaco_pipeline.formats.rocprofv3_csv import frames
from aaco_pipeline.formats.rocprofv3_csv.devices import Devices
from aaco_pipeline.lake.evidence import Evidence
from aaco_pipeline.lake.validation import empty_table, to_contract

#: The clock of every time in these files.
CLOCK: Final = "boottime"
_TIMED: Final = ("dispatches", "api_calls", "memory_copies", "markers", "memory_allocations", "pc_samples")
_GATHERED: Final = {"memory_allocation": "memory", "scratch_memory": "memory"}


@dataclass(frozen=True)
class SourceFile:
    """One file of a run: its text, what its header says it holds, its counter pass, and its name in the run."""

    table: TextTable
    kind: str
    pass_name: str
    label: str


@dataclass
class _Run:
    """What is gathered file by file."""

    evidence: list[Evidence] = field(default_factory=list)
    rows: list[tuple[str, int, int]] = field(default_factory=list)
    frames: dict[str, list[pl.DataFrame]] = field(default_factory=dict)

    def taken(self, kind: str) -> pl.DataFrame | None:
        """All rows of a kind, in the order of files; None when no file has it."""
        gathered = self.frames.get(kind)
        return pl.concat(gathered) if gathered else None


def assembled(files: Sequence[SourceFile]) -> CaptureTables:
    """One reading of all files of a run."""
    run = _Run()
    counted: list[counter_passes.LongTable] = []
    for file in files:
        name, height = file.label, file.table.frame.height
        if file.kind == "counter_collection":
            long = counter_passes.long_table(file.table, file.pass_name)
            counted.append(long)
            kept, left_out = long.counters.height + long.repeated, long.invalid
            run.rows.append((f"{file.kind} ({name})", height, long.counters.height))
            if long.repeated:
                reason = f"{long.repeated} rows state a counter of a dispatch again; their values were summed"
                run.evidence.append(Evidence(f"repeated counters ({name})", "partial", reason, name, long.repeated))
        else:
            rows = frames.FRAMES[file.kind](file.table)
            sound = rows.drop_nulls(frames.NEEDED[file.kind])
            if file.kind == "statistics":
                sound = sound.with_columns(source=pl.lit(name))
            run.frames.setdefault(_GATHERED.get(file.kind, file.kind), []).append(sound)
            kept, left_out = sound.height, rows.height - sound.height
            run.rows.append((f"{file.kind} ({name})", height, kept))
        run.evidence += _file_evidence(file, kept, left_out)
    return _reading(run, counted)


def _file_evidence(file: SourceFile, kept: int, left_out: int) -> list[Evidence]:
    name = file.label
    found = [Evidence(name, "present" if kept else "absent", None if kept else "the table has no rows", name, kept)]
    if file.table.cut:
        found.append(Evidence(f"end of {name}", "partial", "the file ends within a row; read up to it", name))
    if left_out:
        reason = f"{left_out} rows without what is essential: {', '.join(frames.ESSENTIAL[file.kind])}; left out"
        found.append(Evidence(f"unusable rows of {name}", "invalid", reason, name, left_out))
    read = frames.READ.get(file.kind)
    surplus = file.table.surplus(frozenset(read)) if read else ()
    if surplus:
        reason = f"columns not taken: {', '.join(surplus[:20])}"
        found.append(Evidence(f"columns of {name}", "partial", reason, name, len(surplus)))
    return found


def _reading(run: _Run, counted: Sequence[counter_passes.LongTable]) -> CaptureTables:
    kernels_seen, calls, copies = run.taken("kernel_trace"), run.taken("api_trace"), run.taken("memory_copy")
    memory, samples = run.taken("memory"), run.taken("pc_sampling")
    executions, counters = _counted(counted)
    parts = {"dispatch": kernels_seen, "call": calls, "copy": copies, "memory": memory, "sample": samples}
    parts["execution"] = executions
    present = {name: frame for name, frame in parts.items() if frame is not None}
    processes, present = _processes(present)
    devices = Devices(run.taken("agent_info"))
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
        if keys.height and new.height:
            reason = f"{new.height} counted executions are not in the kernel trace; added with their own times"
            run.evidence.append(Evidence("executions beside the trace", "partial", reason, rows=new.height))
        dispatches = pl.concat([dispatches, counter_passes.dispatch_rows(new)])
        keys = pl.concat([keys, new.select(keys.columns)])
        details["counter_dispatches"] = counter_passes.counter_dispatches(found)
        run.evidence += rocprof_v1.times_evidence("times of counted executions", "counter_collection", found)
        by_execution = found.select("execution", "dispatch_id", "duration_ns")
        tables["counters"] = rocprof_v1.counter_rows(
            counters.join(by_execution, on="execution", how="left", maintain_order="left")
        )
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
    statistics = run.taken("statistics")
    if statistics is not None:
        tables["reported_statistics"] = statistics
    timed = sum(frame.height for name, frame in tables.items() if name in _TIMED)
    tables["clock_domains"] = rocprof_v1.clock_domains(CLOCK, timed)
    details["source_rows"] = counter_passes.source_rows(run.rows)
    run.evidence += _run_evidence(tables) + devices.evidence()
    return CaptureTables(tables, tuple(run.evidence), details)


def _counted(counted: Sequence[counter_passes.LongTable]) -> tuple[pl.DataFrame | None, pl.DataFrame]:
    """Executions and counters of all counter files, executions numbered through them."""
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
    """The table `processes`, and the parts with their `process_id`.

    Some tables name no process. Their rows belong to the only one that the others name; where there are several, or
    none, they belong to one of which nothing is known.
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
    """The details `queues` and `streams`, and the parts with `queue_id` and `stream_id` where they name any."""
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
    """The table `kernels`, one row per name and registers, and the parts with `kernel_id` where they run kernels."""
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
    taken = ("process_id", "thread_id", "device_id", "queue_id", "stream_id", "kernel_id", "correlation_id")
    sizes = [f"{what}_{axis}" for what in ("grid", "workgroup") for axis in "xyz"]
    return to_contract(
        "dispatches",
        frame.select(
            *taken,
            *sizes,
            "start_ns",
            "end_ns",
            "lds_allocated_bytes",
            "scratch_bytes",
            "graph_node_id",
            dispatch_id=pl.int_range(pl.len(), dtype=pl.Int32),
            self_ns=(pl.col("end_ns") - pl.col("start_ns")).clip(lower_bound=0),
            below_resolution=pl.lit(False),
        ),
    )


def _keys(frame: pl.DataFrame | None) -> pl.DataFrame:
    """What names each dispatch of the trace: `dispatch_id`, `process_id`, `source_dispatch_id`, `kernel_name`."""
    schema = {
        "dispatch_id": pl.Int32,
        "process_id": pl.Int32,
        "source_dispatch_id": pl.UInt64,
        "kernel_name": pl.String,
    }
    if frame is None:
        return pl.DataFrame(schema=schema)
    return frame.with_columns(dispatch_id=pl.int_range(pl.len(), dtype=pl.Int32)).select(*schema)


def _calls(frame: pl.DataFrame) -> dict[str, pl.DataFrame]:
    """The tables `api_calls` and `markers`: the tool writes what the program annotated among the calls."""
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
    """The table `memory_copies`. The executing device of a copy between two devices is not stated: null."""
    source, destination = pl.col("source_device_id"), pl.col("destination_device_id")
    one_sided = pl.when(source.is_null()).then(destination).when(destination.is_null()).then(source)
    return to_contract(
        "memory_copies",
        frame.select(
            "process_id",
            "direction",
            "source_device_id",
            "destination_device_id",
            "stream_id",
            "correlation_id",
            "start_ns",
            "end_ns",
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
    return to_contract(
        "pc_samples",
        joined.drop("guid", "pid", "process_id").with_columns(sample_id=pl.int_range(pl.len(), dtype=pl.Int32)),
    )


def _run_evidence(tables: Mapping[str, pl.DataFrame]) -> list[Evidence]:
    """What the run as a whole has and lacks, and what is odd in it."""
    found: list[Evidence] = []
    for table, missing in _ABSENCE.items():
        rows = tables[table].height if table in tables else 0
        found.append(Evidence(table, "present" if rows else "absent", None if rows else missing, rows=rows))
    for table in _TIMED[:-1]:
        frame = tables.get(table)
        reversed_times = 0 if frame is None else frame.filter(pl.col("end_ns") < pl.col("start_ns")).height
        if reversed_times:
            reason = f"{reversed_times} rows end before they begin; kept as stated"
            found.append(Evidence(f"reversed times of {table}", "invalid", reason, rows=reversed_times))
    dispatches, calls = (
        tables.get("dispatches", empty_table("dispatches")),
        tables.get("api_calls", empty_table("api_calls")),
    )
    if dispatches.height and calls.height:
        linked = dispatches.join(calls, on=["process_id", "correlation_id"], how="semi").height
        unlinked = dispatches.height - linked
        reason = f"{unlinked} of {dispatches.height} dispatches have no call of their correlation in the API trace"
        if unlinked:
            found.append(Evidence("launches", "partial", reason, rows=linked))
        else:
            found.append(Evidence("launches", "present", rows=linked))
    overlapping = _overlapping(dispatches)
    if overlapping:
        reason = f"{overlapping} dispatches begin before an earlier one of the same queue has ended; kept as stated"
        found.append(Evidence("overlapping dispatches", "partial", reason, rows=overlapping))
    if "memory_copies" in tables:
        found.append(Evidence("sizes of copies", "absent", "these tables have no size of copies"))
    for table in ("dispatches", "api_calls", "markers"):
        frame = tables.get(table)
        unnamed = 0 if frame is None else frame.get_column("thread_id").null_count()
        if unnamed:
            reason = f"{unnamed} rows name no thread (an empty field or 0)"
            found.append(Evidence(f"threads of {table}", "partial", reason, rows=unnamed))
    return found


def _overlapping(dispatches: pl.DataFrame) -> int:
    queue = ["process_id", "device_id", "queue_id"]
    ordered = dispatches.filter(pl.col("queue_id").is_not_null()).sort(*queue, "start_ns")
    earlier = pl.col("end_ns").cum_max().shift(1).over(queue)
    return ordered.filter(pl.col("start_ns") < earlier).height


_ABSENCE: Final = {
    "dispatches": "no kernel trace among the files, nor counters with times",
    "api_calls": "no API trace among the files",
    "memory_copies": "no trace of memory copies among the files",
    "markers": "no trace of markers among the files",
    "counters": "no counter table among the files",
}
