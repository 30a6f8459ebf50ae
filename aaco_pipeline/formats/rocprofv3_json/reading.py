"""Read rocprofv3's results file: stream records from the text, and build the tables."""

import io
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
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
from aaco_pipeline.formats.parsing.counter_passes import clock_domains
from aaco_pipeline.formats.parsing.json_fields import whole
from aaco_pipeline.formats.parsing.json_stream import Cursor, CutError, Pieces, lines
from aaco_pipeline.formats.rocprofv3_json import ROOT
from aaco_pipeline.formats.rocprofv3_json.columns import (
    CALL,
    COPY,
    DIRECTIONS,
    DISPATCH,
    KEY,
    RESOURCES,
    SAMPLES,
    SCHEMAS,
    SYMBOLS,
    Process,
    device_rows,
    dispatch_fields,
    handle_of,
    numbered,
    pc_samples,
    process_rows,
)
from aaco_pipeline.lake.evidence import Status
from aaco_pipeline.lake.validation import to_contract

_CALLS: Final = ("hip_api", "hsa_api", "rccl_api", "rocdecode_api", "rocjpeg_api")
_TAKEN: Final = (
    *("kernel_dispatch", *_CALLS, "marker_api", "memory_copy", "memory_allocation", "scratch_memory"),
    *("counter_collection", *SAMPLES),
)
_ANCHOR: Final = "rocprofv3's times are ns of the host's boot clock; the file does not tie it to dates"


class _Results:
    """A results file being converted to tables; each step adds its evidence."""

    def __init__(self, path: Path, processes: Sequence[Process], cut: bool) -> None:
        self._processes, self._cut, self._findings = processes, cut, Findings(path.name)
        self._lost: Counter[str] = Counter()

    def reading(self) -> CaptureTables:
        devices, agents = device_rows(self._processes, self._findings)
        self._agents = agents
        counted = self._counted()
        records = self._with_counted(self._records("kernel_dispatch", flat=DISPATCH), counted)
        queues = numbered(records, "queue_id", "process_id", "agent", "queue")
        copies = self._records("memory_copy", flat=COPY)
        used = pl.concat([frame.select("process_id", "stream") for frame in (records, copies)])
        streams = numbered(used, "stream_id", "process_id", "stream")
        kernels, dispatches = self._dispatches(records, queues, streams)
        keys = records.select(
            dispatch_id=pl.int_range(pl.len(), dtype=KEY), source_dispatch_id="dispatch", process_id="process_id"
        )
        tables = {
            "processes": process_rows(self._processes),
            "devices": devices,
            "clock_domains": clock_domains("boottime", 1, _ANCHOR),
            "kernels": kernels,
            "dispatches": dispatches,
            "api_calls": self._api_calls(),
            "memory_copies": self._copies(copies, streams),
            "markers": self._markers(),
            "counters": self._counters(counted, keys),
            "memory_allocations": self._allocations(),
            "pc_samples": pc_samples(self._processes, keys),
        }
        self._findings.say("wall-clock", "absent", "the file does not tie its boot clock to dates")
        self._oddities(dispatches)
        queues = queues.join(agents, on=["process_id", "agent"], how="left", maintain_order="left")
        details = {
            "source_rows": self._source_rows(),
            "dispatch_keys": keys,
            "queues": queues.select("queue_id", "process_id", "device_id", handle="queue"),
            "streams": streams.select("stream_id", "process_id", handle="stream"),
        }
        return CaptureTables(tables, tuple(self._findings.evidence), details)

    def _records(self, kind: str, flat: Mapping[str, pl.Expr]) -> pl.DataFrame:
        """Collect one kind's records of all processes; those without a time that fits int64 are counted and dropped."""
        frame = pl.concat(
            process.frame(kind).select(pl.lit(place, KEY).alias("process_id"), **flat)
            for place, process in enumerate(self._processes)
        )
        kept = frame.drop_nulls(["start_ns", "end_ns", *(["agent"] if kind == "kernel_dispatch" else [])])
        self._lost[kind] += frame.height - kept.height
        return kept

    def _operations(self) -> pl.DataFrame:
        """List the meanings of each process's numbers `kind` and `operation`."""
        rows = [
            (place, kind, operation, str(entry.get("kind")), str(name))
            for place, process in enumerate(self._processes)
            for kind, entry in enumerate(process.entries("strings", "buffer_records"))
            for operation, name in enumerate(entry["operations"] if isinstance(entry.get("operations"), list) else [])
        ]
        numbers = {"process_id": KEY, "kind": pl.Int64, "operation": pl.Int64}
        return pl.DataFrame(rows, schema={**numbers, "kind_name": pl.String, "name": pl.String}, orient="row")

    def _named(self, frame: pl.DataFrame) -> pl.DataFrame:
        """Add the names of kind and operation to records; an unexplained number is used as its own name."""
        operations = self._operations()
        kinds = operations.select("process_id", "kind", "kind_name").unique()
        named = frame.join(kinds, on=["process_id", "kind"], how="left", maintain_order="left").join(
            operations.drop("kind_name"), on=["process_id", "kind", "operation"], how="left", maintain_order="left"
        )
        item = "names of operations"
        if named.get_column("name").null_count() and all(known.item != item for known in self._findings.evidence):
            reason = "the file's lists do not name every operation; those have their number"
            self._findings.say(item, "partial", reason)
        number = pl.format("operation {} of kind {}", pl.col("operation").fill_null(-1), pl.col("kind").fill_null(-1))
        return named.with_columns(pl.col("name").fill_null(number), pl.col("kind_name").fill_null("unknown"))

    def _dispatches(
        self, records: pl.DataFrame, queues: pl.DataFrame, streams: pl.DataFrame
    ) -> tuple[pl.DataFrame, pl.DataFrame]:
        facts = ("name", *RESOURCES)
        name = pl.coalesce("formatted_kernel_name", "kernel_name")
        symbols = pl.concat(
            process.symbols.select(process_id=pl.lit(place, KEY), kernel="kernel_id", name=name, **RESOURCES)
            for place, process in enumerate(self._processes)
        ).unique(["process_id", "kernel"], keep="first", maintain_order=True)
        frame = records.join(symbols, on=["process_id", "kernel"], how="left", maintain_order="left")
        nameless = frame.get_column("name").null_count()
        reason = f"{nameless} dispatches are of kernels that the file does not list; they are named by number"
        self._findings.note(nameless, "kernel names", "partial", reason)
        frame = frame.with_columns(pl.col("name").fill_null(pl.format("kernel {}", pl.col("kernel").fill_null(0))))
        distinct = frame.select(facts).unique(maintain_order=True)
        distinct = distinct.with_columns(kernel_id=pl.int_range(pl.len(), dtype=KEY))
        frame = (
            frame.join(distinct, on=facts, how="left", nulls_equal=True, maintain_order="left")
            .join(queues, on=["process_id", "agent", "queue"], how="left", maintain_order="left")
            .join(streams, on=["process_id", "stream"], how="left", maintain_order="left")
            .join(self._agents, on=["process_id", "agent"], how="left", maintain_order="left")
        )
        dispatches = dispatch_table(
            frame.select(
                *("process_id", "device_id", "queue_id", "stream_id", "kernel_id", "start_ns", "end_ns"),
                *(f"{what}_{axis}" for what in ("grid", "workgroup") for axis in "xyz"),
                *("thread_id", "correlation_id", "scratch_bytes", "lds_allocated_bytes"),
                dispatch_id=pl.int_range(pl.len(), dtype=KEY),
            )
        )
        self._symbols = frame.select("process_id", "kernel").unique().join(symbols, on=["process_id", "kernel"]).height
        return described_kernels(distinct), dispatches

    def _api_calls(self) -> pl.DataFrame:
        frame = self._named(pl.concat([self._records(kind, flat=CALL) for kind in _CALLS]))
        short = pl.col("kind_name").str.replace(r"(_EXT)?_API(_EXT)?$", "").str.to_lowercase()
        return to_contract(
            "api_calls",
            frame.select(
                *("process_id", "thread_id", "name", "correlation_id", "start_ns", "end_ns"),
                call_id=pl.int_range(pl.len(), dtype=KEY),
                domain=short.replace({"hsa_finalize": "hsa_finalizer"}),
            ),
        )

    def _markers(self) -> pl.DataFrame:
        """Build ranges and marks with their text; calls that name or control keep the function's name."""
        frame = self._named(self._records("marker_api", flat=CALL))
        texts = [
            (place, key, str(entry.get("value")))
            for place, process in enumerate(self._processes)
            for entry in process.entries("strings", "marker_api")
            if (key := whole(entry.get("key"), 2**64 - 1)) is not None
        ]
        schema = {"process_id": KEY, "correlation_id": pl.UInt64, "text": pl.String}
        lookup = pl.DataFrame(texts, schema=schema, orient="row").unique(["process_id", "correlation_id"], keep="first")
        frame = frame.join(lookup, on=["process_id", "correlation_id"], how="left", maintain_order="left")
        return to_contract(
            "markers",
            frame.select(
                *("process_id", "thread_id", "start_ns", "end_ns"),
                marker_id=pl.int_range(pl.len(), dtype=KEY),
                name=pl.coalesce("text", "name"),
            ),
        )

    def _copies(self, records: pl.DataFrame, streams: pl.DataFrame) -> pl.DataFrame:
        """Build copies; each counts towards the busy time of its destination device, or else its source."""
        frame = self._named(records).join(streams, on=["process_id", "stream"], how="left", maintain_order="left")
        for side in ("source", "destination"):
            agents = self._agents.rename({"agent": side, "device_id": f"{side}_device_id"})
            frame = frame.join(agents, on=["process_id", side], how="left", maintain_order="left")
        return to_contract(
            "memory_copies",
            frame.select(
                *("process_id", "source_device_id", "destination_device_id", "stream_id", "correlation_id"),
                *("start_ns", "end_ns", "size_bytes"),
                copy_id=pl.int_range(pl.len(), dtype=KEY),
                device_id=pl.coalesce("destination_device_id", "source_device_id"),
                direction=pl.col("name").replace_strict(DIRECTIONS, default=None),
            ),
        )

    def _allocations(self) -> pl.DataFrame:
        frames = []
        for kind, plain in (("memory_allocation", "memory"), ("scratch_memory", "scratch")):
            address = pl.col("address").str.extract(r"^(?:\D*)(\d+)\D*$").cast(pl.UInt64, strict=False)
            flat = {
                **CALL,
                "agent": handle_of(pl.col("agent_id")),
                "size_bytes": pl.col("allocation_size").cast(pl.Int64, strict=False),
                "address": address if kind == "memory_allocation" else pl.lit(None, pl.UInt64),
                "kind_of_memory": pl.lit(plain),
            }
            frames.append(self._records(kind, flat=flat))
        frame = self._named(pl.concat(frames))
        frame = frame.join(self._agents, on=["process_id", "agent"], how="left", maintain_order="left")
        return to_contract(
            "memory_allocations",
            frame.select(
                *("process_id", "thread_id", "device_id", "size_bytes", "address", "correlation_id"),
                *("start_ns", "end_ns"),
                allocation_id=pl.int_range(pl.len(), dtype=KEY),
                kind="kind_of_memory",
                operation="name",
            ),
        )

    def _counted(self) -> pl.DataFrame:
        """Return counted dispatches with their records, flattened like those of the trace."""
        data = pl.col("dispatch_data")
        flat = {
            **dispatch_fields(data.struct.field("dispatch_info")),
            "thread_id": pl.col("thread_id").cast(pl.Int64, strict=False),
            "correlation_id": data.struct.field("correlation_id").struct.field("internal"),
            "start_ns": data.struct.field("start_timestamp").cast(pl.Int64, strict=False),
            "end_ns": data.struct.field("end_timestamp").cast(pl.Int64, strict=False),
            "stream": pl.lit(None, pl.UInt64),
            "records": pl.col("records"),
        }
        return self._records("counter_collection", flat=flat)

    def _with_counted(self, traced: pl.DataFrame, counted: pl.DataFrame) -> pl.DataFrame:
        """Add the counted dispatches that are missing from the traces."""
        alone = counted.drop("records").filter(pl.col("agent").is_not_null())
        alone = alone.join(traced, on=["process_id", "dispatch"], how="anti", maintain_order="left")
        reason = f"{alone.height} dispatches are known from counter records only: times of a counting run"
        self._findings.note(alone.height, "dispatches of counter records", "partial", reason)
        # Records are in the order in which buffers were flushed; the number gives the dispatch order.
        both = pl.concat([traced, alone.select(traced.columns)])
        return both.sort("process_id", "dispatch", nulls_last=True, maintain_order=True)

    def _counters(self, counted: pl.DataFrame, keys: pl.DataFrame) -> pl.DataFrame:
        names = [
            (place, handle, str(entry.get("name")))
            for place, process in enumerate(self._processes)
            for entry in process.entries("counters")
            if isinstance(identity := entry.get("id"), dict)
            and (handle := whole(identity.get("handle"), 2**64 - 1)) is not None
        ]
        schema = {"process_id": KEY, "counter_handle": pl.UInt64, "counter": pl.String}
        lookup = pl.DataFrame(names, schema=schema, orient="row").unique(["process_id", "counter_handle"], keep="first")
        first = keys.unique(["process_id", "source_dispatch_id"], keep="first", maintain_order=True)
        length = pl.col("end_ns") - pl.col("start_ns")
        frame = (
            counted.select("process_id", "records", source_dispatch_id="dispatch", duration=length)
            .explode("records")
            .drop_nulls("records")
            .select(
                *("process_id", "source_dispatch_id", "duration"),
                counter_handle=handle_of(pl.col("records").struct.field("counter_id")),
                value=pl.col("records").struct.field("value"),
            )
            .join(lookup, on=["process_id", "counter_handle"], how="left", maintain_order="left")
            .join(first, on=["process_id", "source_dispatch_id"], how="inner", maintain_order="left")
            .with_columns(pl.col("counter").fill_null(pl.format("counter {}", pl.col("counter_handle").fill_null(0))))
        )
        self._counter_records = frame.height
        summed = frame.group_by("dispatch_id", "counter", maintain_order=True).agg(
            pl.col("value").sum(), pass_duration_ns=pl.col("duration").first()
        )
        return to_contract("counters", summed.with_columns(pl.lit("").alias("pass")))

    def _oddities(self, dispatches: pl.DataFrame) -> None:
        findings = self._findings
        reversed_count = dispatches.filter(pl.col("end_ns") < pl.col("start_ns")).height
        reason = f"{reversed_count} dispatches have a negative duration; they are kept as the file has them"
        findings.note(reversed_count, "kernel durations", "partial", reason)
        overlapping = overlapping_count(dispatches, "queue_id")
        reason = f"{overlapping} dispatches begin before an earlier one of their queue has ended; times are kept"
        findings.note(overlapping, "order within queues", "partial", reason)
        if self._cut:
            self._findings.say("kernel events", "partial", "the file is cut off: its end is missing", dispatches.height)
        elif dispatches.height:
            self._findings.say("kernel events", "present", None, dispatches.height)
        else:
            self._findings.say("kernel events", "absent", "the file holds no dispatches: the run traced no kernels", 0)

    def _source_rows(self) -> pl.DataFrame:
        counts: Counter[str] = Counter()
        for process in self._processes:
            counts.update(process.counts)
        for kind, count in counts.items():
            lost, taken = self._lost[kind], kind in _TAKEN
            out = self._symbols if kind == "kernel_symbols" else count - lost if taken else 0
            self._findings.took(kind, count, out)
            status, reason, rows = self._record_state(kind, count, lost, taken)
            self._findings.say(f"records {kind}", status, reason, rows)
        return self._findings.source_rows()

    def _record_state(self, kind: str, count: int, lost: int, taken: bool) -> tuple[Status, str | None, int]:
        """Return status, reason and rows of evidence for the records of a kind."""
        if kind == "kernel_symbols":
            left = count - self._symbols
            reason = f"{left} of {count} were not dispatched; `kernels` holds those that were"
            return "partial" if left > 0 else "present", reason, self._symbols
        if lost:
            return "invalid", f"{lost} of {count} have no device, or no times that fit 63 bits; left out", lost
        if not count:
            return "absent", "the file holds none: they were not traced or did not occur", 0
        if taken:
            return "present", None, count
        return "absent", "not taken: no table holds records of this kind", count


_LISTS: Final = ("buffer_records", "callback_records")
#: Small parts that are read completely; all other parts of a process are skipped.
_KEPT: Final = ("metadata", "agents", "counters", "strings")


def read(path: Path, limits: Limits) -> CaptureTables:
    """See `aaco_pipeline.formats.rocprofv3_json.read`."""
    processes: list[Process] = []
    cut = found = False
    with Pieces(path, limits) as pieces:
        cursor = Cursor(path, pieces, limits)
        try:
            for key in cursor.entries():
                if key != ROOT:
                    cursor.skip()
                    continue
                found = True
                for _ in cursor.items():
                    processes.append(Process())
                    _read_process(path, cursor, limits, processes[-1])
        except CutError:
            cut = True
    if not found or not processes:
        raise CaptureError(f"{path}: not a rocprofv3 results file, or empty: no process in {ROOT}")
    return _Results(path, processes, cut).reading()


def _read_process(path: Path, cursor: Cursor, limits: Limits, into: Process) -> None:
    for part in cursor.entries():
        if part in _LISTS and cursor.follows(b"{"):
            for kind in cursor.entries():
                _read_records(path, cursor, limits, into, kind)
        elif part == "kernel_symbols" and cursor.follows(b"["):
            frames = [_parsed(path, piece, SYMBOLS) for piece in _batches(path, cursor, limits, into, part)]
            into.symbols = pl.concat([into.symbols, *frames])
        elif part in _KEPT:
            into.parts[part] = cursor.value()
        elif cursor.follows(b"["):
            for _ in _batches(path, cursor, limits, into, part):
                pass
        else:
            cursor.skip()


def _read_records(path: Path, cursor: Cursor, limits: Limits, into: Process, kind: str) -> None:
    """Add the records of one kind; from a truncated file, those before the cut."""
    into.counts.setdefault(kind, 0)
    if not cursor.follows(b"["):
        cursor.skip()
        return
    for batch in _batches(path, cursor, limits, into, kind):
        if kind in SCHEMAS:
            into.records.setdefault(kind, []).append(_parsed(path, batch, SCHEMAS[kind]))


def _batches(path: Path, cursor: Cursor, limits: Limits, into: Process, kind: str) -> Iterator[io.BytesIO]:
    """Yield and count the objects of the next array, one per line, in batches."""
    for piece, part in cursor.batches():
        into.counts[kind] = into.counts.get(kind, 0) + len(part.start)
        if into.counts[kind] > limits.events:
            raise CaptureError(f"{path}: more than {limits.events} records of {kind}; profile a shorter run")
        if len(part.start):
            yield lines(piece, part)


def _parsed(path: Path, text: io.BytesIO, schema: pl.Schema) -> pl.DataFrame:
    try:
        return pl.read_ndjson(text, schema=schema)
    except (pl.exceptions.PolarsError, ValueError) as error:
        reason = str(error).splitlines()[0][:200]
        raise CaptureError(f"{path}: damaged: a record is not as expected: {reason}") from error
