"""Host calls that waited for device work, and that work, from the tracer's records or inferred."""

from dataclasses import dataclass
from typing import Final, Literal

import polars as pl

#: Names of blocking calls of HIP, CUDA and the CUDA driver, by the awaited object.
_BLOCKING: Final = {
    "device": r"^(?:hip|cuda|cu)(?:Device|Ctx|Thread)Synchronize",
    "stream": r"^(?:hip|cuda|cu)StreamSynchronize",
    "event": r"^(?:hip|cuda|cu)EventSynchronize",
}
_COPYING: Final = r"(?i)memcpy"
_RECORD: Final = r"^(?:hip|cuda|cu)EventRecord"
_WAIT: Final = r"^(?:hip|cuda|cu)StreamWaitEvent"
_STREAM: Final = ("process_id", "device_id", "stream_id")
_THREAD: Final = ("process_id", "thread_id")
_CALL: Final = ("call_id", "outermost_call_id", *_THREAD, "start_ns", "end_ns")


@dataclass(frozen=True)
class Waits:
    """Waits between host calls and device work; `activity`, `source` and `target` are row numbers of activities.

    `calls`: call_id, outermost_call_id, process_id, thread_id, start_ns, end_ns of the blocking calls.
    `awaited`: call_id, outermost_call_id, activity, inferred: device work that a blocking call waited for.
    `handed_over`: source, target, inferred: device work that waited for other device work through an event.
    """

    calls: pl.DataFrame
    awaited: pl.DataFrame
    handed_over: pl.DataFrame


def waits(activities: pl.DataFrame, calls: pl.DataFrame, synchronizations: pl.DataFrame) -> Waits:
    """Find the waits of a session; `activities` and `calls` come from `activities`.

    Blocking calls are synchronizations, by name, and copy calls that returned only after their own copy had ended. A
    call waited for the last work issued before it: on every stream of the device for a device-wide wait, or on the
    stream or before the event record named by `synchronizations`. If none is named, it waited for the last work of the
    same thread (inferred). Work that ended after the call returned was not awaited.
    """
    if calls.is_empty() and synchronizations.is_empty():
        return _nothing_waited(activities, calls)
    issued = _issued(activities)
    blocking = _blocking(calls, synchronizations)
    copying = _blocking_copies(activities, calls)
    awaited = pl.concat(
        [
            _everything_before(blocking.filter(pl.col("scope") == "device"), issued),
            _before(blocking.filter(pl.col("scope") != "device"), issued),
            copying.select("call_id", "activity", inferred=pl.lit(False)),
        ]
    )
    waiting = pl.concat([blocking.select(_CALL), copying.select(_CALL)]).unique("call_id", maintain_order=True)
    ended = activities.select("activity", ended_ns="end_ns")
    awaited = (
        awaited.join(waiting, on="call_id").join(ended, on="activity").filter(pl.col("ended_ns") <= pl.col("end_ns"))
    )
    # A later wait of the same thread for the same work returns at once: only the first one explains anything.
    awaited = awaited.sort("start_ns", maintain_order=True).unique([*_THREAD, "activity"], keep="first")
    return Waits(
        waiting,
        awaited.sort("start_ns", "activity").select("call_id", "outermost_call_id", "activity", "inferred"),
        _handed_over(calls, synchronizations, issued, activities),
    )


def _nothing_waited(activities: pl.DataFrame, calls: pl.DataFrame) -> Waits:
    """Return the result of `waits` without any host call, as with runtimes that call their kernels directly."""
    activity = activities.schema["activity"]
    named = {name: calls.schema[name] for name in ("call_id", "outermost_call_id")}
    return Waits(
        calls.select(_CALL),
        pl.DataFrame(schema={**named, "activity": activity, "inferred": pl.Boolean}),
        pl.DataFrame(schema={"source": activity, "target": activity, "inferred": pl.Boolean}),
    )


def _issued(activities: pl.DataFrame) -> pl.DataFrame:
    """Return activities in launch order; one without a known launch is sorted by its own start."""
    return activities.select(
        "activity",
        pl.col(_STREAM).fill_null(-1),
        pl.col("call_thread_id").fill_null(-1).alias("thread_id"),
        "start_ns",
        linked=pl.col("call_id").is_not_null(),
        issued_ns=pl.coalesce("call_start_ns", "start_ns"),
    ).sort("issued_ns", "start_ns", maintain_order=True)


def _blocking(calls: pl.DataFrame, synchronizations: pl.DataFrame) -> pl.DataFrame:
    """Return synchronizing calls with their scope and awaited work according to the tracer, sorted by start."""
    found = pl.concat(
        [calls_named(calls, pattern).with_columns(scope=pl.lit(scope)) for scope, pattern in _BLOCKING.items()]
    ).join(_stated(calls, synchronizations), on=["process_id", "correlation_id"], how="left")
    event = pl.col("scope") == "event"
    return found.with_columns(
        waited_ns=pl.when(event).then("recorded_ns").otherwise("start_ns"),
        waited_stream=pl.when(event).then("recorded_stream_id").otherwise("stream_id"),
    ).sort("start_ns")


def calls_named(calls: pl.DataFrame, pattern: str) -> pl.DataFrame:
    """Return the calls whose name matches the pattern; few names, many calls."""
    names = calls.get_column("name").unique().cast(pl.String)
    return calls.filter(pl.col("name").is_in(names.filter(names.str.contains(pattern)).implode()))


def _stated(calls: pl.DataFrame, synchronizations: pl.DataFrame) -> pl.DataFrame:
    """One row per call with a recorded wait, with the time at which its event was recorded."""
    recorded = calls.select("process_id", waited_correlation_id="correlation_id", recorded_ns="start_ns").join(
        synchronizations, on=["process_id", "waited_correlation_id"], how="semi"
    )
    return (
        synchronizations.drop_nulls("correlation_id")
        .select(
            "process_id",
            "correlation_id",
            "device_id",
            "stream_id",
            "waited_correlation_id",
            recorded_stream_id="waited_stream_id",
        )
        .unique(["process_id", "correlation_id"], keep="first", maintain_order=True)
        .join(
            recorded.unique(["process_id", "waited_correlation_id"]),
            on=["process_id", "waited_correlation_id"],
            how="left",
        )
    )


def _blocking_copies(activities: pl.DataFrame, calls: pl.DataFrame) -> pl.DataFrame:
    """Return copies whose own call returned only after they had ended, with that call."""
    copies = activities.filter(pl.col("activity_kind") == "memory_copy").drop_nulls("call_id")
    done = copies.filter(pl.col("end_ns") <= pl.col("call_end_ns")).select("activity", "call_id")
    return calls_named(calls, _COPYING).join(done, on="call_id").select(*_CALL, "activity")


def _everything_before(blocking: pl.DataFrame, issued: pl.DataFrame) -> pl.DataFrame:
    """For device-wide waits: the last activity of each of the device's streams, on every device if none is named."""
    streams = (
        issued.select(_STREAM).unique(maintain_order=True).rename({"device_id": "on_device", "stream_id": "on_stream"})
    )
    each = blocking.join(streams, on="process_id").filter(
        pl.col("device_id").is_null() | (pl.col("device_id") == pl.col("on_device"))
    )
    each = each.select("call_id", "process_id", "start_ns", device_id="on_device", stream_id="on_stream")
    return _latest(each, issued, "start_ns", _STREAM).select("call_id", "activity", inferred=pl.lit(False))


def _before(blocking: pl.DataFrame, issued: pl.DataFrame) -> pl.DataFrame:
    """For stream or event waits: the last activity before it on the stream, else the thread's own last one."""
    known = (
        pl.col("device_id").is_not_null() & pl.col("waited_stream").is_not_null() & pl.col("waited_ns").is_not_null()
    )
    stated = blocking.filter(known).select("call_id", "process_id", "device_id", "waited_ns", stream_id="waited_stream")
    unstated = blocking.filter(~known).select("call_id", *_THREAD, "start_ns")
    linked = issued.filter(pl.col("linked"))
    return pl.concat(
        [
            _latest(stated, issued, "waited_ns", _STREAM).select("call_id", "activity", inferred=pl.lit(False)),
            _latest(unstated, linked, "start_ns", _THREAD).select("call_id", "activity", inferred=pl.lit(True)),
        ]
    )


def _handed_over(
    calls: pl.DataFrame, synchronizations: pl.DataFrame, issued: pl.DataFrame, activities: pl.DataFrame
) -> pl.DataFrame:
    """Events between streams: from the last work before the record to the first work after the wait."""
    waiting = calls_named(calls, _WAIT).select("correlation_id", *_THREAD, "start_ns")
    stated = waiting.join(_stated(calls, synchronizations), on=["process_id", "correlation_id"]).drop_nulls(
        ["device_id", "stream_id", "recorded_stream_id", "recorded_ns"]
    )
    if stated.height:
        source = _latest(
            stated.rename({"stream_id": "waiting_stream", "recorded_stream_id": "stream_id"}),
            issued,
            "recorded_ns",
            _STREAM,
        ).rename({"activity": "source", "stream_id": "recorded_stream_id", "waiting_stream": "stream_id"})
        pairs = _next(source, issued, "start_ns", _STREAM)
    else:
        recorded = calls_named(calls, _RECORD).select(*_THREAD, at_ns="start_ns", recorded_ns="start_ns")
        # Some tracers omit the records; the wait then substitutes for its record, which came shortly before.
        pairs = _asof(waiting, recorded, ("start_ns", "at_ns"), _THREAD, "backward")
        pairs = pairs.with_columns(pl.coalesce("recorded_ns", "start_ns"))
        linked = issued.filter(pl.col("linked"))
        pairs = _latest(pairs, linked, "recorded_ns", _THREAD).rename({"activity": "source"})
        pairs = _next(pairs, linked, "start_ns", _THREAD)
    pairs = pairs.select("source", target="activity", inferred=pl.lit(not stated.height))
    return _between_streams(pairs, activities).unique(["source", "target"], maintain_order=True)


def _between_streams(pairs: pl.DataFrame, activities: pl.DataFrame) -> pl.DataFrame:
    """Return the pairs on different streams; on one stream the order is implied anyway."""
    own = activities.select("activity", "device_id", "stream_id")
    both = pairs.join(own.rename({"activity": "source"}), on="source").join(
        own.rename({"activity": "target"}), on="target", suffix="_target"
    )
    same = pl.col("device_id").eq_missing(pl.col("device_id_target")) & pl.col("stream_id").eq_missing(
        pl.col("stream_id_target")
    )
    return both.filter(~same).select("source", "target", "inferred")


def _latest(left: pl.DataFrame, issued: pl.DataFrame, at: str, by: tuple[str, ...]) -> pl.DataFrame:
    """Add to `left` the last activity issued at or before its time `at`, if any."""
    return _issued_at(left, issued, at, by, "backward")


def _next(left: pl.DataFrame, issued: pl.DataFrame, at: str, by: tuple[str, ...]) -> pl.DataFrame:
    """Add to `left` the first activity issued at or after its time `at`, if any."""
    return _issued_at(left, issued, at, by, "forward")


def _issued_at(
    left: pl.DataFrame, issued: pl.DataFrame, at: str, by: tuple[str, ...], strategy: Literal["backward", "forward"]
) -> pl.DataFrame:
    right = issued.select(*by, "issued_ns", "activity")
    return _asof(left, right, (at, "issued_ns"), by, strategy).drop_nulls("activity")


def _asof(
    left: pl.DataFrame,
    right: pl.DataFrame,
    on: tuple[str, str],
    by: tuple[str, ...],
    strategy: Literal["backward", "forward"],
) -> pl.DataFrame:
    left = left.with_columns(pl.col(by).fill_null(-1)).sort(on[0], maintain_order=True)
    right = right.with_columns(pl.col(by).fill_null(-1)).sort(on[1], maintain_order=True)
    types = {name: left.schema[name] for name in by}
    return left.join_asof(
        right.cast(types),  # type: ignore[arg-type]
        left_on=on[0],
        right_on=on[1],
        by=list(by),
        strategy=strategy,
        check_sortedness=False,
    )
