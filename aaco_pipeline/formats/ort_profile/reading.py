"""Read ONNX Runtime's profiles: parse the events, determine their nesting, and build the tables."""

import io
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import numpy as np
import numpy.typing as npt
import polars as pl

from aaco_pipeline.errors import CaptureError
from aaco_pipeline.formats import ort_profile
from aaco_pipeline.formats.capture_tables import CaptureTables, Findings, Limits, fingerprint
from aaco_pipeline.formats.parsing.compression import DAMAGED, open_decompressed
from aaco_pipeline.formats.parsing.json_document import parsed
from aaco_pipeline.lake.validation import to_contract

#: Columns that identify a node's kernel among the events.
NODE: Final = ("name", "op_name", "provider", "node_index")
_CHUNK_BYTES: Final = 16 << 20
_SHAPE_COLUMNS: Final = (*NODE, "input_type_shape", "output_type_shape")
_EVENT: Final = pl.Schema(
    {
        "cat": pl.String(),
        "pid": pl.Int64(),
        "tid": pl.Int64(),
        "dur": pl.Int64(),
        "ts": pl.Int64(),
        "name": pl.String(),
        "args": pl.Struct(
            {
                "op_name": pl.String(),
                "provider": pl.String(),
                "node_index": pl.String(),
                "dropped_event_count": pl.String(),
                # Nested JSON, kept as text: each element is {type: [dimensions]}.
                "input_type_shape": pl.String(),
                "output_type_shape": pl.String(),
            }
        ),
    }
)


def read_events(path: Path, limits: Limits) -> tuple[pl.DataFrame, pl.DataFrame, bool]:
    """Return all events in file order, each node's first shapes, and whether the file is complete.

    Memory: one chunk plus the columns; shape texts are dropped chunk by chunk, except for each node's first.
    """
    frames: list[pl.DataFrame] = []
    shapes: list[pl.DataFrame] = []
    count = 0
    complete = False
    for chunk, last in _chunks(path, limits):
        body = chunk.strip()
        if not frames:
            if not body.startswith(b"["):
                raise CaptureError(f"{path}: not an ONNX Runtime profile; expected a JSON array of events")
            body = body[1:]
        frame, complete = _parse_chunk(path, body, count, last)
        frame = frame.unnest("args")
        count += frame.height
        if count > limits.events:
            raise CaptureError(f"{path}: more than {limits.events} events; raise the limit or capture fewer iterations")
        shapes.append(frame.filter(pl.col("cat") == "Node").select(_SHAPE_COLUMNS).unique(NODE, keep="first"))
        frames.append(frame.drop("input_type_shape", "output_type_shape"))
    events = pl.concat(frames).with_row_index("position").with_columns(pl.col("position").cast(pl.Int64))
    return events, pl.concat(shapes).unique(NODE, keep="first", maintain_order=True), complete


def _parse_chunk(path: Path, body: bytes, before: int, last: bool) -> tuple[pl.DataFrame, bool]:
    """Parse one chunk, and return whether it ends the array. An incomplete last chunk is read up to the cut."""
    if last and body.endswith(b"]"):
        try:
            return _parse(path, body[:-1], before, cut=False), True
        except CaptureError:
            pass  # the file may be cut after a bracket inside an event: then the previous line is the last complete one
    return _parse(path, body, before, cut=last), False


def _parse(path: Path, lines: bytes, before: int, cut: bool) -> pl.DataFrame:
    lines = lines.replace(b"},\n", b"}\n").strip().removesuffix(b",")
    if not lines:
        return pl.DataFrame(schema=_EVENT)
    if not lines.startswith(b"{"):  # Polars would mistake some other beginnings for compressed data
        raise CaptureError(f"{path}: not an ONNX Runtime profile, or damaged after event {before}: no event in braces")
    try:
        return pl.read_ndjson(io.BytesIO(lines), schema=_EVENT)
    except (pl.exceptions.PolarsError, ValueError) as error:
        whole, newline, _ = lines.rpartition(b"\n")
        # The file is cut inside an event; everything before it is complete. A line with several events is another
        # format.
        if cut and (newline or before or lines.count(b'"cat"') <= 1):
            return _parse(path, whole, before, cut=False)
        reason = str(error).splitlines()[0]
        raise CaptureError(f"{path}: not an ONNX Runtime profile, or damaged after event {before}: {reason}") from error


def _chunks(path: Path, limits: Limits) -> Iterator[tuple[bytes, bool]]:
    """Yield the file in pieces that end at a line end; the flag marks the last one."""
    taken = 0
    rest = b""
    try:
        with open_decompressed(path) as stream:
            piece = stream.read(_CHUNK_BYTES)
            while True:
                taken += len(piece)
                if taken > limits.file_bytes:
                    raise CaptureError(f"{path}: more than {limits.file_bytes} bytes when unpacked; not read")
                following = stream.read(_CHUNK_BYTES)
                if not following:
                    yield rest + piece, True
                    return
                lines, newline, tail = piece.rpartition(b"\n")
                if newline:
                    yield rest + lines + newline, False
                    rest = tail
                else:
                    rest += piece
                    if len(rest) > limits.line_bytes:
                        raise CaptureError(f"{path}: a line of more than {limits.line_bytes} bytes; not a profile")
                piece = following
    except DAMAGED as error:
        raise CaptureError(f"{path}: cannot be read: {error}") from error


def nesting(
    position: npt.NDArray[np.int64], start: npt.NDArray[np.int64], duration: npt.NDArray[np.int64]
) -> npt.NDArray[np.int64]:
    """Return the position of each event's parent, or -1 at the top level, for one thread's events in file order.

    `position` is increasing (file order, which is order of end time); times are truncated to whole ticks. An event is
    inside a later one if it did not start earlier. An event without measured length that begins on the same tick as the
    later one cannot be distinguished from a left neighbour and is treated as one. Vectorized: O(n log n).
    """
    count = len(position)
    parent = np.full(count, -1, np.int64)
    if count == 0:
        return parent
    # Events written earlier had ended by this event's end. Those that end after its start lie inside it; a left
    # neighbour had already ended.
    ended = np.maximum.accumulate(start + duration)
    has_children = np.concatenate(([False], ended[:-1] > start[1:]))
    if not has_children.any():
        return parent
    # Leaf events follow one another, so their starts do not decrease in file order. An event with children covers a
    # contiguous, non-empty interval [low, high) of leaves.
    leaf = np.flatnonzero(~has_children)
    outer = np.flatnonzero(has_children)
    leaf_key = 2 * start[leaf] + (duration[leaf] > 0)
    leaf_key = np.maximum.accumulate(leaf_key)
    low = np.searchsorted(leaf_key, 2 * start[outer] + 1, side="left")
    high = np.searchsorted(leaf, outer, side="left")
    low = np.minimum(low, high - 1)
    order = np.lexsort((-outer, -high, low))  # wider first; of equal ones, the later in the file is the outer
    outer, low, high = outer[order], low[order], high[order]
    closes = np.sort(high)
    depth = np.arange(len(outer)) - np.searchsorted(closes, low, side="right")
    open_at_leaf = np.searchsorted(low, np.arange(len(leaf)), side="right") - np.searchsorted(
        closes, np.arange(len(leaf)), side="right"
    )
    inner = pl.concat(
        [
            pl.DataFrame({"event": leaf, "at": np.arange(len(leaf)), "level": open_at_leaf - 1}),
            pl.DataFrame({"event": outer, "at": low, "level": depth - 1}),
        ]
    ).filter(pl.col("level") >= 0)
    enclosing = pl.DataFrame({"parent": outer, "at": low, "level": depth}).sort("at")
    joined = inner.sort("at").join_asof(enclosing, on="at", by="level", strategy="backward", check_sortedness=False)
    parent[joined.get_column("event").to_numpy()] = position[joined.get_column("parent").to_numpy()]
    return parent


#: Shorter durations are dominated by the microsecond clock and ~2 µs of instrumentation.
RESOLUTION_FLOOR_NS: Final = 5_000
_NS_PER_US: Final = 1_000
_KERNEL_SUFFIX: Final = "_kernel_time"
#: Event with which newer runtimes report that recording stopped.
_TRUNCATION: Final = "profile_truncated"
#: Microseconds that fit int64 nanoseconds, leaving room for the session's axis.
_LATEST_TICK: Final = 2**62 // _NS_PER_US
_SHAPES: Final = {"dtypes": pl.List(pl.String()), "shapes": pl.List(pl.List(pl.Int64()))}
_KERNEL_SHAPES: Final = pl.Schema(
    {
        "kernel_id": pl.Int32(),
        **{f"{side}_{what}": kind for side in ("input", "output") for what, kind in _SHAPES.items()},
    }
)


def read(path: Path, limits: Limits, axis_start_ns: int, process_id: int) -> CaptureTables:
    """See `aaco_pipeline.formats.ort_profile.read`."""
    events, first_shapes, complete = read_events(path, limits)
    dropped = _dropped(events)
    counts = events.group_by(pl.col("cat").fill_null("without category")).len().sort("cat")
    events = events.filter(pl.col("cat").is_in(["Node", "Session"]) & pl.col("name").ne_missing(_TRUNCATION))
    _require_times(path, events)
    nodes, calls = _split_runs(events)
    kernels, nodes = _kernels(nodes)
    shapes = _shapes(nodes, first_shapes)
    dispatches = _dispatches(nodes, axis_start_ns, process_id)
    api_calls = to_contract(
        "api_calls",
        calls.select(
            call_id=pl.int_range(pl.len(), dtype=pl.Int32),
            process_id=pl.lit(process_id, pl.Int32),
            thread_id=pl.col("tid"),
            domain=pl.lit("onnxruntime"),
            name=pl.col("name"),
            start_ns=axis_start_ns + pl.col("ts") * _NS_PER_US,
            end_ns=axis_start_ns + (pl.col("ts") + pl.col("dur")) * _NS_PER_US,
        ),
    )
    findings = Findings(path.name)
    _say(findings, dispatches, complete, dropped)
    for category, count in counts.rows():
        findings.took(f"events {category}", count, {"Node": nodes.height, "Session": calls.height}.get(category, 0))
    tables = {"kernels": kernels, "dispatches": dispatches, "api_calls": api_calls}
    details = {"kernel_shapes": shapes, "source_rows": findings.source_rows()}
    return CaptureTables(tables, tuple(findings.evidence), details)


def _dropped(events: pl.DataFrame) -> int | None:
    """Return the number of events that the runtime dropped: None for none, 0 if the number is unknown."""
    truncation = events.filter(pl.col("name") == _TRUNCATION).get_column("dropped_event_count")
    if len(truncation):
        return int(truncation.cast(pl.Int64, strict=False).fill_null(0)[0])
    return 0 if events.height >= ort_profile.EVENT_CAP else None


def _require_times(path: Path, events: pl.DataFrame) -> None:
    """Raise CaptureError for an event whose times are missing, negative or beyond int64 nanoseconds."""
    valid = pl.all_horizontal(pl.col("ts", "dur").is_between(0, _LATEST_TICK).fill_null(False))
    broken = events.filter(~valid | pl.col("tid").is_null() | pl.col("name").is_null())
    if broken.height:
        position, start, duration = broken.select("position", "ts", "dur").row(0)
        raise CaptureError(f"{path}: event {position} has the times ts {start}, dur {duration}; the file is damaged")


def _split_runs(events: pl.DataFrame) -> tuple[pl.DataFrame, pl.DataFrame]:
    """Return node events with the ordinal of their model run (null outside any), and session events.

    A node belongs to the next `model_run` in the file if it also lies within that run's time.
    """
    session = events.filter(pl.col("cat") == "Session")
    nodes = events.filter((pl.col("cat") == "Node") & pl.col("name").str.ends_with(_KERNEL_SUFFIX))
    runs = session.filter(pl.col("name") == "model_run").select(
        pl.col("position"),
        pl.int_range(pl.len(), dtype=pl.Int32).alias("run"),
        pl.col("ts").alias("run_start"),
        (pl.col("ts") + pl.col("dur")).alias("run_end"),
    )
    nodes = nodes.join_asof(runs, on="position", strategy="forward", coalesce=True)
    # Start and length are both truncated to whole ticks, so their sum may be one tick before the true end.
    inside = (pl.col("ts") >= pl.col("run_start")) & (pl.col("ts") + pl.col("dur") <= pl.col("run_end") + 1)
    nodes = nodes.with_columns(iteration=pl.when(inside).then(pl.col("run")))
    return nodes.drop("run", "run_start", "run_end"), session


def _kernels(nodes: pl.DataFrame) -> tuple[pl.DataFrame, pl.DataFrame]:
    """Return the distinct kernels (one per executed node) and the nodes with their `kernel_id`."""
    identity = ["node_name", "op_name", "provider", "node_index"]
    nodes = nodes.with_columns(node_name=pl.col("name").str.strip_suffix(_KERNEL_SUFFIX))
    distinct = nodes.select(identity).unique(maintain_order=True)
    distinct = distinct.with_columns(kernel_id=pl.int_range(pl.len(), dtype=pl.Int32))
    provider = pl.col("provider").str.strip_suffix("ExecutionProvider")
    kernels = to_contract(
        "kernels",
        distinct.select(
            "kernel_id",
            name="node_name",
            short_name=pl.coalesce("op_name", "node_name"),
            fingerprint=_fingerprint(distinct),
            library=pl.concat_str(pl.lit("onnxruntime "), provider, ignore_nulls=True),
            role=pl.lit("main"),
            family_source=pl.lit("none"),
        ),
    )
    return kernels, nodes.join(distinct, on=identity, how="left", nulls_equal=True, maintain_order="left")


def _fingerprint(distinct: pl.DataFrame) -> pl.Series:
    """Hash the kernel's identity across sessions: its name, operator and provider."""
    keys = distinct.select(pl.concat_str("node_name", "op_name", "provider", separator="\x00", ignore_nulls=True))
    return pl.Series([fingerprint(key) for key in keys.to_series()], dtype=pl.String)


def _shapes(nodes: pl.DataFrame, first_shapes: pl.DataFrame) -> pl.DataFrame:
    """Build the detail `kernel_shapes`: one row per kernel whose events state shapes."""
    kernels = nodes.select(*NODE, "kernel_id").unique("kernel_id", keep="first", maintain_order=True)
    rows = [
        {"kernel_id": kernel, **_typed_shapes("input", inputs), **_typed_shapes("output", outputs)}
        for kernel, inputs, outputs in kernels.join(first_shapes, on=NODE, nulls_equal=True, maintain_order="left")
        .select("kernel_id", "input_type_shape", "output_type_shape")
        .iter_rows()
    ]
    return pl.DataFrame(rows, schema=_KERNEL_SHAPES)


def _typed_shapes(side: str, text: str | None) -> dict[str, list[str] | list[list[int]] | None]:
    """Parse `[{"float": [1, 3]}, …]` into two lists; both null if the event has another form."""
    try:
        entries = parsed(text) if text is not None else None
    except (ValueError, RecursionError):
        entries = None
    dtypes: list[str] = []
    shapes: list[list[int]] = []
    for entry in entries if isinstance(entries, list) else [None]:
        dtype, shape = next(iter(entry.items()), (None, None)) if isinstance(entry, dict) else (None, None)
        if dtype is None or not isinstance(shape, list) or not all(map(_is_size, shape)):
            return {f"{side}_dtypes": None, f"{side}_shapes": None}
        dtypes.append(dtype)
        shapes.append(shape)
    return {f"{side}_dtypes": dtypes, f"{side}_shapes": shapes}


def _is_size(size: object) -> bool:
    return type(size) is int and abs(size) < 2**63


def _dispatches(nodes: pl.DataFrame, axis_start_ns: int, process_id: int) -> pl.DataFrame:
    nodes = nodes.with_columns(parent_position=_parents(nodes))
    # Truncation to whole ticks can make a parent seem to end before its children. Everything written earlier on its
    # thread had ended, so the running maximum is a later but still safe bound.
    has_children = pl.col("position").is_in(nodes.get_column("parent_position").unique().implode())
    nodes = nodes.with_columns(end=pl.col("ts") + pl.col("dur"), has_children=has_children).with_columns(
        end=pl.when("has_children").then(pl.col("end").cum_max().over("tid")).otherwise(pl.col("end"))
    )
    child_time = (
        nodes.filter(pl.col("parent_position") >= 0)
        .group_by(position="parent_position")
        .agg(child_time=(pl.col("end") - pl.col("ts")).sum())
    )
    nodes = (
        nodes.join(child_time, on="position", how="left", maintain_order="left")
        .sort(["ts", "has_children", "end", "position"], descending=[False, True, True, False])
        .with_columns(dispatch_id=pl.int_range(pl.len(), dtype=pl.Int32))
    )
    parents = nodes.select(parent_position="position", parent_dispatch_id="dispatch_id")
    nodes = nodes.join(parents, on="parent_position", how="left", maintain_order="left")
    duration = pl.col("end") - pl.col("ts")
    return to_contract(
        "dispatches",
        nodes.select(
            dispatch_id=pl.col("dispatch_id"),
            process_id=pl.lit(process_id, pl.Int32),
            thread_id=pl.col("tid"),
            device_id=pl.lit(0, pl.Int32),
            kernel_id=pl.col("kernel_id"),
            start_ns=axis_start_ns + pl.col("ts") * _NS_PER_US,
            end_ns=axis_start_ns + pl.col("end") * _NS_PER_US,
            iteration=pl.col("iteration"),
            parent_dispatch_id=pl.col("parent_dispatch_id"),
            self_ns=(duration - pl.col("child_time").fill_null(0)) * _NS_PER_US,
            below_resolution=(duration * _NS_PER_US < RESOLUTION_FLOOR_NS),
        ),
    )


def _parents(nodes: pl.DataFrame) -> pl.Series:
    """Return the position of each node's parent, -1 at the top level; events nest within a thread."""
    parent = np.full(nodes.height, -1, np.int64)
    thread = nodes.get_column("tid").to_numpy()
    position = nodes.get_column("position").to_numpy()
    start = nodes.get_column("ts").to_numpy()
    duration = nodes.get_column("dur").to_numpy()
    for one in np.unique(thread):
        own = np.flatnonzero(thread == one)
        parent[own] = nesting(position[own], start[own], duration[own])
    return pl.Series(parent, dtype=pl.Int64)


def _say(findings: Findings, dispatches: pl.DataFrame, complete: bool, dropped: int | None) -> None:
    """Report how much of the run the profile covers, and how reliable its times are."""
    item, count = "kernel events", dispatches.height
    if dropped is not None:
        missing = f"{dropped} events were dropped" if dropped else "an unknown number of events is missing"
        reason = (
            f"the profile reached the runtime's cap of {ort_profile.EVENT_CAP} events: {missing}; run fewer iterations"
        )
        findings.say(item, "partial", reason, count)
    elif not complete:
        findings.say(item, "partial", "the file is cut off: its end is missing", count)
    else:
        findings.have(item, count, "the profile holds no node events")
    short = int(dispatches.get_column("below_resolution").sum())
    reason = (
        f"{short} of {count} kernel executions are shorter than {RESOLUTION_FLOOR_NS} ns, where the microsecond clock "
        "and about 2 µs of instrumentation dominate; trust them only in sum"
    )
    findings.note(short, "kernel resolution", "partial", reason)
    outside = dispatches.get_column("iteration").null_count()
    if outside:
        findings.say("iteration of kernels", "partial", f"{outside} kernel executions lie in no model run")
