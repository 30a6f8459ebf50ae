"""Convert columns of a CUPTI stream to canonical tables: dispatches, copies and fills, waits, calls, ranges.

`reading` handles devices and clocks.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import polars as pl
from numpy.typing import NDArray

from aaco_pipeline.formats.capture_tables import Findings, described_kernels
from aaco_pipeline.formats.cupti.stream import Columns, Stream
from aaco_pipeline.lake.on_disk import GrowingTable, pieces_of
from aaco_pipeline.lake.validation import empty_table, to_contract

#: CUPTI's CUpti_ActivityMemcpyKind; arrays are in device memory.
_DIRECTIONS: Final = {
    **dict.fromkeys((1, 3), "host_to_device"),
    **dict.fromkeys((2, 4), "device_to_host"),
    **dict.fromkeys((5, 6, 7, 8, 10), "device_to_device"),
    9: "host_to_host",
}
_PEERS: Final = 10
#: CUPTI's CUpti_ActivityMemoryKind of host memory.
_HOST_MEMORY: Final = {1: "pageable", 2: "pinned"}
#: CUPTI's CUpti_ActivitySynchronizationType.
_WAITS: Final = dict(
    enumerate(("event_synchronize", "stream_wait_event", "stream_synchronize", "device_synchronize"), 1)
)
_NONE: Final = 0xFFFFFFFF

Numbers = NDArray[Any]


@dataclass(frozen=True)
class Link:
    """The thread of each correlation's call."""

    correlations: Numbers
    threads: Numbers

    @classmethod
    def of(cls, calls: Columns) -> "Link":
        """Use the first call of each correlation: a runtime launch precedes the driver calls it makes."""
        numbers, threads = calls["correlation"], calls["thread"]
        if _ascending(numbers):
            return cls(numbers, threads)
        correlations, first = np.unique(numbers, return_index=True)
        return cls(correlations, threads[first])

    def unknown(self, correlations: Numbers) -> int:
        """Count correlations without a recorded call."""
        pieces = (correlations[rows] for rows in pieces_of(len(correlations)))
        return sum(len(piece) - int(np.count_nonzero(self._found(piece)[1])) for piece in pieces)

    def thread(self, correlations: Numbers) -> pl.Series:
        """Return the thread of each; null if no call was recorded."""
        at, known = self._found(correlations)
        if not len(self.correlations):
            return pl.Series([None] * len(correlations), dtype=pl.Int64)
        return _where(known, self.threads[at]).cast(pl.Int64)

    def _found(self, correlations: Numbers) -> tuple[Numbers, Numbers]:
        """Return the position of each, and whether it was found."""
        if not len(self.correlations):
            return np.zeros(len(correlations), np.intp), np.zeros(len(correlations), np.bool_)
        at = np.minimum(np.searchsorted(self.correlations, correlations), len(self.correlations) - 1)
        return at, self.correlations[at] == correlations


@dataclass(frozen=True)
class Streams:
    """The streams that ran work, densely numbered; a stream is unique within its context."""

    keys: Numbers

    @classmethod
    def of(cls, *activities: Columns) -> "Streams":
        """List all streams of these activities, in order of device, context and stream."""
        keys = [
            distinct(_key(piece)[piece["stream"] != _NONE])
            for one in activities
            for piece in _pieces(one, "device", "context", "stream")
        ]
        return cls(np.unique(np.concatenate([np.zeros(0, np.uint64), *keys])))

    def number(self, activities: Columns) -> pl.Series:
        """Return the number of each activity's stream; null if it names none."""
        keys = _key(activities)
        return _where(activities["stream"] != _NONE, np.searchsorted(self.keys, keys).astype(np.int32)).cast(pl.Int32)

    def listed(self, device_of: dict[int, int]) -> pl.DataFrame:
        """Build the detail `streams`."""
        rows = [(at, device_of.get(int(key) >> 56), int(key) & 0xFFFFFFFF) for at, key in enumerate(self.keys)]
        schema = {"stream_id": pl.Int32, "device_id": pl.Int32, "source_stream": pl.Int64}
        return pl.DataFrame(rows, schema=schema, orient="row")


def _key(activities: Columns) -> Numbers:
    """Pack device, context and stream into one number; contexts are numbered from 1 within a process."""
    device, context = activities["device"].astype(np.uint64), activities["context"].astype(np.uint64)
    return (device << np.uint64(56)) | ((context & np.uint64(0xFFFFFF)) << np.uint64(32)) | activities["stream"]


def kernels_and_dispatches(
    stream: Stream, runs: Columns, link: Link, streams: Streams, device_of: dict[int, int]
) -> tuple[pl.DataFrame, pl.DataFrame, pl.DataFrame]:
    """Build the tables `kernels` and `dispatches` in the stream's order, and the detail `launch_facts`.

    Rows are built in pieces, because there may be many millions. A kernel that was still running when its process ended
    has no times.
    """
    count = len(runs["start"])
    if not count:
        facts = pl.DataFrame(schema={"dispatch_id": pl.Int32, "registers_per_thread": pl.Int64})
        return empty_table("kernels"), empty_table("dispatches"), facts
    kernels = _Kernels(stream, runs)
    dispatches, launch_facts = GrowingTable(), GrowingTable()
    first = 0
    for piece in _pieces(runs):
        made, facts = _dispatches(piece, first, kernels, link=link, streams=streams, device_of=device_of)
        dispatches.add(made)
        launch_facts.add(facts)
        first += made.height
    return kernels.table(), dispatches.table(), launch_facts.table()


def _dispatches(
    runs: Columns, first: int, kernels: "_Kernels", *, link: Link, streams: Streams, device_of: dict[int, int]
) -> tuple[pl.DataFrame, pl.DataFrame]:
    count = len(runs["start"])
    static, local = runs["static_shared"].astype(np.int64), runs["local_memory"].astype(np.int64)
    start, end = runs["start"], runs["end"]
    parts = {
        "dispatch_id": pl.Series(np.arange(first, first + count, dtype=np.int32)),
        "process_id": pl.Series(np.zeros(count, np.int32)),
        "kernel_id": kernels.number(runs),
        "stream_id": streams.number(runs),
        "device_id": devices_of(runs["device"], device_of),
        "lds_allocated_bytes": pl.Series(static + runs["dynamic_shared"]),
        "scratch_bytes": pl.Series(local),
        "graph_node_id": or_none(runs["graph_node"]),
        "below_resolution": pl.Series(np.zeros(count, np.bool_)),
        "thread_id": link.thread(runs["correlation"]),
        "correlation_id": or_none(runs["correlation"]),
    }
    for axis in "xyz":
        block = runs[f"block_{axis}"].astype(np.int64)
        parts[f"grid_{axis}"] = pl.Series(runs[f"grid_{axis}"] * block)  # CUPTI counts blocks
        parts[f"workgroup_{axis}"] = pl.Series(block)
    timed = (start > 0) & (end > 0)
    for name, values in (("start_ns", start), ("end_ns", end), ("self_ns", np.maximum(end - start, 0))):
        parts[name] = _where(timed, values)
    registers = pl.Series(runs["registers"].astype(np.int64))
    facts = pl.DataFrame({"dispatch_id": parts["dispatch_id"], "registers_per_thread": registers})
    return to_contract("dispatches", pl.DataFrame(parts)), facts


class _Kernels:
    """The executed kernels, densely numbered.

    A kernel is identified by its text and its compile-time properties; the stream may number the same text twice.
    """

    def __init__(self, stream: Stream, runs: Columns) -> None:
        self._stream = stream
        wanted = ("name", "static_shared", "local_memory")
        found = [pl.DataFrame(piece).unique() for piece in _pieces(runs, *wanted)]
        distinct_runs = {name: values.to_numpy() for name, values in pl.concat(found).unique().to_dict().items()}
        self._used = distinct(distinct_runs["name"])
        first: dict[tuple[str, str | None], int] = {}
        same = [first.setdefault(_text(stream, number), number) for number in self._used.tolist()]
        self._same = np.array(same, np.uint64)
        self._fixed = distinct(_resources(distinct_runs))
        self._distinct = distinct(self._keys(distinct_runs))

    def number(self, runs: Columns) -> pl.Series:
        """Return the number of each execution's kernel."""
        return pl.Series(np.searchsorted(self._distinct, self._keys(runs)).astype(np.int32))

    def table(self) -> pl.DataFrame:
        """Build the table `kernels`."""
        rows = []
        for number, key in enumerate(self._distinct.tolist()):
            name, symbol = _text(self._stream, key >> 32)
            of_it = int(self._fixed[key & 0xFFFFFFFF])
            rows.append((number, name, symbol, of_it >> 32, of_it & 0xFFFFFFFF))
        named = {"kernel_id": pl.Int32, "name": pl.String, "symbol": pl.String}
        sizes = dict.fromkeys(("static_lds_bytes", "static_scratch_bytes"), pl.Int64)
        return described_kernels(pl.DataFrame(rows, schema={**named, **sizes}, orient="row"))

    def _keys(self, runs: Columns) -> Numbers:
        named = self._same[np.searchsorted(self._used, runs["name"])]
        return (named << np.uint64(32)) | np.searchsorted(self._fixed, _resources(runs)).astype(np.uint64)


def _resources(runs: Columns) -> Numbers:
    return (runs["static_shared"].astype(np.uint64) << np.uint64(32)) | runs["local_memory"]


def _text(stream: Stream, number: int) -> tuple[str, str | None]:
    """Return a kernel's name and symbol, with a placeholder if the stream does not state them."""
    name = stream.names.get(number) or "kernel not stated"
    return name, stream.symbols.get(number, name if number in stream.names else None)


def copies(moved: Columns, filled: Columns, streams: Streams, device_of: dict[int, int]) -> pl.DataFrame:
    """Build the table `memory_copies`: copies, then fills, each in the stream's order."""
    kind = pl.col("kind")
    is_from = pl.col("direction").is_in(["device_to_host", "device_to_device"])
    is_to = pl.col("direction").is_in(["host_to_device", "device_to_device"])
    host_side = pl.when(kind.is_in([1, 3])).then("source_kind").when(kind.is_in([2, 4])).then("destination_kind")
    ways = pl.DataFrame(
        {
            **_activity(moved, streams, device_of),
            **{name: moved[name] for name in ("kind", "source_kind", "destination_kind")},
            **{end: devices_of(moved[end], device_of) for end in ("source", "destination")},
        }
    ).with_columns(direction=kind.replace_strict(_DIRECTIONS, default=None, return_dtype=pl.String))
    between = kind == _PEERS  # these name both devices; any other copy names only the one that carried it out
    copied = ways.select(
        *_ACTIVITY,
        "direction",
        source_device_id=pl.when(is_from).then(pl.when(between).then("source").otherwise("device_id")),
        destination_device_id=pl.when(is_to).then(pl.when(between).then("destination").otherwise("device_id")),
        host_memory=host_side.replace_strict(_HOST_MEMORY, default=None, return_dtype=pl.String),
    )
    set_to = pl.DataFrame(_activity(filled, streams, device_of)).with_columns(
        direction=pl.lit("fill"), destination_device_id="device_id"
    )
    rows = pl.concat([copied, set_to], how="diagonal")
    number = pl.int_range(pl.len(), dtype=pl.Int32)
    return to_contract("memory_copies", rows.with_columns(copy_id=number, process_id=pl.lit(0, pl.Int32)))


_ACTIVITY: Final = ("device_id", "stream_id", "correlation_id", "size_bytes", "start_ns", "end_ns")


def _activity(records: Columns, streams: Streams, device_of: dict[int, int]) -> dict[str, pl.Series]:
    """Return the columns that copies and fills share."""
    return {
        "device_id": devices_of(records["device"], device_of),
        "stream_id": streams.number(records),
        "correlation_id": or_none(records["correlation"]),
        "size_bytes": pl.Series(records["bytes"].astype(np.int64)),
        "start_ns": pl.Series(records["start"]),
        "end_ns": pl.Series(records["end"]),
    }


def waits(recorded: Columns, events: Columns, streams: Streams, device_of: dict[int, int]) -> pl.DataFrame:
    """Build the table `synchronizations`. Records of both kinds have the `device` of their context.

    The awaited work is known if CUPTI states which recording of the event it is (since CUDA 12.8).
    """
    recordings = pl.DataFrame(
        {
            "recording": pl.Series(events["recording"]),
            "waited_stream_id": streams.number(events),
            "waited_correlation_id": or_none(events["correlation"]),
        }
    )
    recordings = recordings.filter(pl.col("recording") > 0).unique("recording", keep="first", maintain_order=True)
    rows = pl.DataFrame(
        {
            "device_id": devices_of(recorded["device"], device_of),
            "stream_id": streams.number(recorded),
            "kind": pl.Series(recorded["type"]),
            "correlation_id": or_none(recorded["correlation"]),
            "recording": pl.Series(recorded["recording"]),
            "start_ns": pl.Series(recorded["start"]),
            "end_ns": pl.Series(recorded["end"]),
        }
    ).join(recordings, on="recording", how="left", maintain_order="left")
    return to_contract(
        "synchronizations",
        rows.drop("recording").with_columns(
            synchronization_id=pl.int_range(pl.len(), dtype=pl.Int32),
            process_id=pl.lit(0, pl.Int32),
            kind=pl.col("kind").replace_strict(_WAITS, default="unknown", return_dtype=pl.String),
        ),
    )


def devices_of(numbers: Numbers, device_of: dict[int, int]) -> pl.Series:
    """Map CUDA's device numbers to devices; null for an unknown number."""
    if not device_of:
        return pl.Series([None] * len(numbers), dtype=pl.Int32)
    return pl.Series(numbers).replace_strict(device_of, default=None, return_dtype=pl.Int32)


def or_none(numbers: Numbers) -> pl.Series:
    """Convert unsigned numbers; 0 means none."""
    return _where(numbers != 0, numbers).cast(pl.UInt64)


def _where(known: Numbers, values: Numbers) -> pl.Series:
    """Return the values that are known, else null."""
    if known.all():
        return pl.Series(values)
    return pl.DataFrame({"known": known, "values": values}).select(pl.when("known").then("values")).to_series()


def distinct(values: Numbers) -> Numbers:
    """Return the distinct values in order, without sorting all of them."""
    found = [pl.Series(values[rows]).unique() for rows in pieces_of(len(values))]
    return pl.concat(found).unique().sort().to_numpy() if found else values


def _ascending(values: Numbers) -> bool:
    """Return whether each value is larger than the previous one."""
    last = -1
    for rows in pieces_of(len(values)):
        piece = values[rows]
        if int(piece[0]) <= last or bool((piece[1:] <= piece[:-1]).any()):
            return False
        last = int(piece[-1])
    return True


def _pieces(columns: Columns, *names: str) -> Iterator[Columns]:
    """Yield the named columns, or all, in pieces; at least one piece, even without rows."""
    chosen = {name: columns[name] for name in names} if names else columns
    count = len(next(iter(chosen.values())))
    if not count:
        yield chosen
    for rows in pieces_of(count):
        yield {name: values[rows] for name, values in chosen.items()}


_DOMAINS: Final = {1: "cuda_runtime", 2: "cuda_driver"}
#: Suffix of a runtime function's name: its CUDA version.
_API_VERSION: Final = r"_v\d{4,5}(_ptsz)?$"
#: CUPTI's CUpti_ActivityMemoryOperationType, and CUpti_ActivityMemoryKind of memory on the host.
_OPERATIONS: Final = {1: "allocation", 2: "release"}
_ON_HOST: Final = (1, 2)
_BEGIN, _END, _INSTANT = 1, 2, 3


def api_calls(stream: Stream, calls: Columns) -> pl.DataFrame:
    """Build the table `api_calls` in the stream's order, which is by end time within each thread."""
    count = len(calls["start"])
    if not count:
        return empty_table("api_calls")
    found = [distinct(_of_interface(calls, rows)) for rows in pieces_of(count)]
    names = {number: stream.call_names.get(number, "call not stated") for number in np.concatenate(found).tolist()}
    plain = pl.Series([*names.values()], dtype=pl.String).str.replace(_API_VERSION, "").to_list()
    called = dict(zip(names, plain, strict=True))
    table = GrowingTable()
    for rows in pieces_of(count):
        domain = pl.Series(calls["domain"][rows])
        columns = {
            "name": pl.Series(_of_interface(calls, rows)).replace_strict(called, return_dtype=pl.String),
            "domain": domain.replace_strict(_DOMAINS, default="cuda", return_dtype=pl.String),
            "call_id": pl.int_range(rows.start, rows.stop, dtype=pl.Int32, eager=True),
            "process_id": pl.zeros(rows.stop - rows.start, pl.Int32, eager=True),
            "thread_id": pl.Series(calls["thread"][rows].astype(np.int64)),
            "correlation_id": or_none(calls["correlation"][rows]),
            "start_ns": pl.Series(calls["start"][rows]),
            "end_ns": pl.Series(calls["end"][rows]),
        }
        table.add(to_contract("api_calls", pl.DataFrame(columns)))
    return table.table()


def _of_interface(calls: Columns, rows: slice) -> NDArray[np.uint32]:
    """Combine a call's number and its interface's number into the key of the stream's call names."""
    found: NDArray[np.uint32] = (calls["domain"][rows] << np.uint32(16)) | calls["call"][rows]
    return found


def allocations(records: Columns, link: Link, device_of: dict[int, int]) -> pl.DataFrame:
    """Build the table `memory_allocations`; CUPTI gives a single time for each."""
    rows = pl.DataFrame(
        {
            "operation": pl.Series(records["operation"]),
            "memory_kind": pl.Series(records["memory_kind"]),
            "device_id": devices_of(records["device"], device_of),
            "thread_id": link.thread(records["correlation"]),
            "correlation_id": or_none(records["correlation"]),
            "address": or_none(records["address"]),
            "size_bytes": pl.Series(records["bytes"].astype(np.int64)),
            "start_ns": pl.Series(records["time"]),
        }
    )
    return to_contract(
        "memory_allocations",
        rows.select(
            *("thread_id", "correlation_id", "address", "size_bytes", "start_ns"),
            allocation_id=pl.int_range(pl.len(), dtype=pl.Int32),
            process_id=pl.lit(0, pl.Int32),
            device_id=pl.when(pl.col("memory_kind").is_in(_ON_HOST).not_()).then("device_id"),
            kind=pl.lit("memory"),
            operation=pl.col("operation").replace_strict(_OPERATIONS, default="unknown", return_dtype=pl.String),
            end_ns="start_ns",
        ),
    )


def markers(stream: Stream, records: Columns, findings: Findings) -> tuple[pl.DataFrame, int]:
    """Build the table `markers` in order of start, and count the records used for it.

    A range consists of two records with one number; a range that was still open is omitted and reported.
    """
    names = {number: stream.names.get(number, "") for number in np.unique(records["name"]).tolist()}
    rows = pl.DataFrame({name: records[name] for name in ("time", "range", "kind", "thread", "name")}).with_columns(
        # A reused number denotes the next range of that number.
        turn=pl.int_range(pl.len()).over("range", "kind")
    )
    ends = rows.filter(pl.col("kind") == _END).select("range", "turn", end_ns="time")
    begun = rows.filter(pl.col("kind") == _BEGIN).join(ends, on=["range", "turn"], how="left", maintain_order="left")
    still_open = begun.get_column("end_ns").null_count()
    reason = f"{still_open} ranges were still open where the stream ends; left out"
    findings.note(still_open, "open NVTX ranges", "partial", reason)
    whole = begun.drop_nulls("end_ns")
    instants = rows.filter(pl.col("kind") == _INSTANT).with_columns(end_ns="time")
    both = pl.concat([whole, instants.select(whole.columns)]).sort("time", maintain_order=True)
    table = both.select(
        marker_id=pl.int_range(pl.len(), dtype=pl.Int32),
        process_id=pl.lit(0, pl.Int32),
        thread_id=pl.col("thread").cast(pl.Int64),
        name=pl.col("name").replace_strict(names or {0: ""}, default="", return_dtype=pl.String),
        start_ns="time",
        end_ns="end_ns",
    )
    return to_contract("markers", table), 2 * whole.height + instants.height
