"""Inject one exact fault into a real trace's tables, for `causes.py`.

A fault moves, adds or removes dispatches, calls or steps; gaps are recomputed by the product's analysis. Times move by
a warp of the whole axis.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt
import polars as pl

from aaco_pipeline.analysis.timeline.activities import recorded
from aaco_pipeline.analysis.timeline.gap_causes import gaps
from aaco_pipeline.lake.validation import in_contract

Ns = npt.NDArray[np.int64]
Tables = dict[str, pl.DataFrame]
#: Tables on the session's axis.
_ON_THE_AXIS: Final = (
    *("iterations", "session_parts", "dispatches", "memory_copies", "api_calls", "synchronizations", "markers"),
)
_ADDED: Final = "void tiny_kernel_of_the_fault<float, 4>(float*, int)"
#: Clocks that a fault of the clock is sampled at, in MHz.
_FULL_CLOCK: Final = 1_980.0
#: Less overlap than this part of the steps is not a fault.
_LEAST_OVERLAP: Final = 0.02
_COMPUTE: Final = ("gemm", "attention", "conv")


@dataclass(frozen=True)
class Fault:
    """A fault by name, how it is put in, and the kind and, where it has one, the subject of the cause it must be."""

    name: str
    put_in: Callable[[Mapping[str, pl.DataFrame], float], "tuple[Tables, str | None] | None"]
    kinds: tuple[tuple[str, str | None], ...]


def steps_of(tables: Mapping[str, pl.DataFrame]) -> pl.DataFrame:
    """The measured traced steps, start_ns and end_ns; without any the steady part, else all of it."""
    traced = (pl.col("pass").cast(pl.String) == "trace") & (pl.col("phase").cast(pl.String) == "measure")
    steady = tables["session_parts"].filter(
        (pl.col("part").cast(pl.String) == "steady") & pl.col("repetitions").is_not_null()
    )
    for found in (tables["iterations"].filter(traced).drop_nulls("start_ns"), steady):
        if found.height:
            return found.select("start_ns", "end_ns").sort("start_ns")
    return tables["dispatches"].select(pl.col("start_ns").min(), pl.col("end_ns").max())


def slower_kernel(tables: Mapping[str, pl.DataFrame], size: float) -> tuple[Tables, str | None] | None:
    """The kernel with most time takes so much longer that a step grows by `size`; what follows it moves."""
    kernels = _warm(tables).group_by("kernel_id").agg(time=_duration().sum(), count=pl.len()).sort("time", "kernel_id")
    if kernels.is_empty():
        return None
    kernel = int(kernels.item(-1, "kernel_id"))
    factor = size * _length(tables) / float(kernels.item(-1, "time"))
    slow = tables["dispatches"].filter(pl.col("kernel_id") == kernel)
    delays = (slow.select(_duration()).to_series().to_numpy() * factor).astype(np.int64)
    return _warped(tables, slow.get_column("end_ns").to_numpy(), delays), _name(tables, kernel)


def more_launches(tables: Mapping[str, pl.DataFrame], size: float) -> tuple[Tables, str | None] | None:
    """New tiny kernels after existing ones, each with its launch and the gap before it."""
    places = _gaps_of_the_host(tables, 24)
    if places is None:
        return None
    each = size * _length(tables) / max(1, places.height)
    gap, time = np.int64(each * 0.7), np.int64(each * 0.3)
    at = places.get_column("start_ns").to_numpy()
    changed = _warped(tables, at + 1, np.full(len(at), gap + time))
    # Each place itself moved by the delays before it alone.
    begun = at + np.arange(len(at)) * (gap + time)
    number = int(changed["dispatches"].get_column("dispatch_id").max()) + 1  # type: ignore[arg-type]
    kernel = int(changed["kernels"].get_column("kernel_id").max()) + 1  # type: ignore[arg-type]
    top = int(changed["api_calls"].get_column("correlation_id").max() or 0) + 1  # type: ignore[arg-type]
    call = int(changed["api_calls"].get_column("call_id").max()) + 1  # type: ignore[arg-type]
    like = changed["dispatches"].filter(pl.col("dispatch_id").is_in(places.get_column("dispatch_id").implode()))
    like = places.select("dispatch_id").join(like, on="dispatch_id", how="left")
    count = len(at)
    launched = begun + gap // 2
    rows = like.with_columns(
        dispatch_id=pl.Series(np.arange(number, number + count), dtype=pl.Int32),
        kernel_id=pl.lit(kernel, pl.Int32),
        correlation_id=pl.Series(np.arange(top, top + count), dtype=pl.UInt64),
        start_ns=pl.Series(begun + gap),
        end_ns=pl.Series(begun + gap + time),
        self_ns=pl.lit(int(time), pl.Int64),
        grid_work_items=pl.lit(128, pl.Int64),
        workgroup_work_items=pl.lit(128, pl.Int64),
    )
    thread = _launching(changed)
    calls = thread.select(pl.all().gather([0] * count)).with_columns(
        call_id=pl.Series(np.arange(call, call + count), dtype=pl.Int32),
        correlation_id=pl.Series(np.arange(top, top + count), dtype=pl.UInt64),
        start_ns=pl.Series(launched),
        end_ns=pl.Series(launched + gap // 4),
    )
    new = (
        changed["kernels"]
        .head(1)
        .with_columns(
            kernel_id=pl.lit(kernel, pl.Int32),
            name=pl.lit(_ADDED),
            short_name=pl.lit("tiny_kernel_of_the_fault"),
            family=pl.lit("elementwise"),
        )
    )
    changed["kernels"] = _append(changed["kernels"], new)
    changed["dispatches"] = _append(changed["dispatches"], rows).sort("start_ns")
    changed["api_calls"] = _append(changed["api_calls"], calls).sort("start_ns")
    return _with_gaps(changed), _ADDED


def exposed_host_delay(tables: Mapping[str, pl.DataFrame], size: float) -> tuple[Tables, str | None] | None:
    """The host does something else before one launch of each step, with the device idle."""
    places = _gaps_of_the_host(tables, 1)
    if places is None:
        return None
    delay = np.full(places.height, np.int64(size * _length(tables) / places.height))
    return _warped(tables, places.get_column("launched_ns").to_numpy(), delay), None


def extra_syncs(tables: Mapping[str, pl.DataFrame], size: float) -> tuple[Tables, str | None] | None:
    """After some kernels the host waits for the device and only then goes on."""
    places = _gaps_of_the_host(tables, 8)
    if places is None:
        return None
    delay = np.int64(size * _length(tables) / places.height)
    at = places.get_column("start_ns").to_numpy() + 1
    changed = _warped(tables, at, np.full(len(at), delay))
    begun = at + np.arange(len(at)) * delay
    call = int(changed["api_calls"].get_column("call_id").max()) + 1  # type: ignore[arg-type]
    rows = (
        _launching(changed)
        .select(pl.all().gather([0] * len(at)))
        .with_columns(
            call_id=pl.Series(np.arange(call, call + len(at)), dtype=pl.Int32),
            name=pl.lit("cudaDeviceSynchronize"),
            process_id=places.get_column("process_id"),
            thread_id=places.get_column("thread_id"),
            correlation_id=pl.lit(None, pl.UInt64),
            start_ns=pl.Series(begun - 1_000),
            end_ns=pl.Series(begun + delay - 1),
        )
    )
    changed["api_calls"] = _append(changed["api_calls"], rows).sort("start_ns")
    return _with_gaps(changed), None


def lower_clock(tables: Mapping[str, pl.DataFrame], size: float) -> tuple[Tables, str | None] | None:
    """The engine clock falls: kernels that compute take longer by its ratio, others do not; clocks are sampled."""
    computing = tables["kernels"].filter(pl.col("family").cast(pl.String).is_in(_COMPUTE)).get_column("kernel_id")
    slow = tables["dispatches"].filter(pl.col("kernel_id").is_in(computing.implode()))
    time = int(slow.join(_warm(tables), on="dispatch_id", how="semi").select(_duration().sum()).item())
    if not time or size * _length(tables) / time > 0.6:
        return None
    factor = 1 + size * _length(tables) / time
    delays = (slow.select(_duration()).to_series().to_numpy() * (factor - 1)).astype(np.int64)
    changed = _warped(tables, slow.get_column("end_ns").to_numpy(), delays)
    return sampled(changed, _FULL_CLOCK / factor), None


def less_overlap(tables: Mapping[str, pl.DataFrame], size: float) -> tuple[Tables, str | None] | None:
    """Device work that ran beside other work waits for it: `size` is the part of it that now does."""
    activities = pl.concat(
        [
            tables["dispatches"].select("start_ns", "end_ns"),
            tables["memory_copies"].drop_nulls("device_id").select("start_ns", "end_ns"),
        ]
    ).sort("start_ns", "end_ns")
    starts, ends = (activities.get_column(one).to_numpy() for one in ("start_ns", "end_ns"))
    waits = np.random.default_rng(7).random(len(starts)) < size * 5
    late = np.zeros(len(starts), np.int64)
    moved, reached = 0, int(starts[0])
    for at, (start, end) in enumerate(zip(starts.tolist(), ends.tolist(), strict=True)):
        if waits[at] and reached > start + moved:
            late[at] = reached - start - moved
            moved = reached - start
        reached = max(reached, end + moved)
    if late.sum() < _LEAST_OVERLAP * _length(tables):
        return None
    # Work that began before is not lengthened by what has to wait for it: only starts move, and ends with them.
    changed = _moved(tables, starts[late > 0], late[late > 0], keep_lengths=True)
    return _with_gaps(changed), None


FAULTS: Final = (
    Fault("slower kernel", slower_kernel, (("duration", None), ("communication", None))),
    Fault("more launches", more_launches, (("launches", None),)),
    Fault("exposed host delay", exposed_host_delay, (("gaps", "host_wait"), ("gaps", "ends_of_steps"))),
    Fault("extra syncs", extra_syncs, (("gaps", "sync"),)),
    Fault("lower clock", lower_clock, (("clock", None),)),
    Fault("less overlap", less_overlap, (("overlap", None),)),
)


def sampled(tables: Mapping[str, pl.DataFrame], clock: float = _FULL_CLOCK) -> Tables:
    """The tables with an engine clock sampled every 100 us of the steps, with 0.2 % of noise."""
    steps = steps_of(tables)
    times = np.arange(steps.get_column("start_ns")[0], steps.get_column("end_ns")[-1], 100_000)
    noise = 1 + 0.002 * np.random.default_rng(3).standard_normal(len(times))
    device = tables["dispatches"].get_column("device_id").mode()[0]
    rows = pl.DataFrame({"time_ns": times, "device_id": device, "gfx_clock_mhz": clock * noise})
    return {**tables, "gpu_samples": in_contract("gpu_samples", _filled(rows, tables["gpu_samples"]))}


# ---- inside ----------------------------------------------------------------------------------------------------------


def _duration() -> pl.Expr:
    return pl.col("end_ns") - pl.col("start_ns")


def _length(tables: Mapping[str, pl.DataFrame]) -> int:
    return int(steps_of(tables).select(_duration().sum()).item())


def _warm(tables: Mapping[str, pl.DataFrame]) -> pl.DataFrame:
    """Dispatches in the steps."""
    steps = steps_of(tables).select(step_ns="start_ns", until_ns="end_ns")
    rows = tables["dispatches"].drop_nulls("start_ns").sort("start_ns")
    found = rows.join_asof(steps, left_on="start_ns", right_on="step_ns")
    return found.filter(pl.col("start_ns") < pl.col("until_ns"))


def _name(tables: Mapping[str, pl.DataFrame], kernel: int) -> str:
    return str(tables["kernels"].filter(pl.col("kernel_id") == kernel).item(0, "name"))


def _launching(tables: Mapping[str, pl.DataFrame]) -> pl.DataFrame:
    """A launching call of the thread that launched most."""
    calls = tables["api_calls"].filter(pl.col("name").cast(pl.String).str.contains("(?i)launch"))
    thread = calls.get_column("thread_id").mode()[0]
    return calls.filter(pl.col("thread_id") == thread).head(1)


def _gaps_of_the_host(tables: Mapping[str, pl.DataFrame], each: int) -> pl.DataFrame | None:
    """Places in each step where the device is idle and its next launch is only made then: start_ns, launched_ns."""
    if tables["api_calls"].is_empty() or steps_of(tables).is_empty():
        return None
    warm = _warm(tables).select("dispatch_id", "correlation_id", "step_ns")
    calls = tables["api_calls"].filter(pl.col("name").cast(pl.String).str.contains("(?i)launch"))
    launched = warm.join(
        calls.select("correlation_id", "process_id", "thread_id", launched_ns="start_ns"), on="correlation_id"
    )
    idle = tables["gaps"].filter(
        (pl.col("previous_activity_kind").cast(pl.String) == "dispatch")
        & (pl.col("next_activity_kind").cast(pl.String) == "dispatch")
    )
    found = idle.select("start_ns", "end_ns", "previous_activity_id", dispatch_id="next_activity_id").join(
        launched, on="dispatch_id"
    )
    # Both ends of the gap in one step, and the launch well inside it.
    before = warm.select(previous_activity_id="dispatch_id", previous_step_ns="step_ns")
    found = found.join(before, on="previous_activity_id").filter(
        (pl.col("previous_step_ns") == pl.col("step_ns")) & (pl.col("launched_ns") > pl.col("start_ns") + 2_000)
    )
    places = found.sort("start_ns").with_columns(rank=pl.int_range(pl.len()).over("step_ns"))
    steps = steps_of(tables).height
    if places.is_empty() or places.get_column("step_ns").n_unique() < steps:
        return None
    least = int(places.group_by("step_ns").len().get_column("len").to_numpy().min())
    return places.filter(pl.col("rank") < min(each, least)).sort("start_ns")


def _warped(tables: Mapping[str, pl.DataFrame], at: Ns, delays: Ns) -> Tables:
    """All tables on the axis with delays put in; gaps are found anew."""
    return _with_gaps(_moved(tables, at, delays, keep_lengths=False))


def _moved(tables: Mapping[str, pl.DataFrame], at: Ns, delays: Ns, *, keep_lengths: bool) -> Tables:
    order = np.argsort(at, kind="stable")
    instants, total = at[order], np.concatenate([[0], np.cumsum(delays[order])])

    def later(values: pl.Series) -> pl.Series:
        moved = values.to_numpy() + total[np.searchsorted(instants, values.to_numpy(), side="right")]
        return pl.Series(values.name, moved, dtype=pl.Int64)

    changed = dict(tables)
    for name in _ON_THE_AXIS:
        frame = tables[name]
        if frame.is_empty():
            continue
        missing = frame.filter(pl.col("start_ns").is_null() | pl.col("end_ns").is_null())
        timed = frame.drop_nulls(["start_ns", "end_ns"])
        length = timed.get_column("end_ns") - timed.get_column("start_ns")
        start = later(timed.get_column("start_ns"))
        whole = keep_lengths and name in ("dispatches", "memory_copies")
        end = (start + length).alias("end_ns") if whole else later(timed.get_column("end_ns"))
        moved = timed.with_columns(start, end)
        if "self_ns" in frame.columns:
            grown = pl.Series(end - start) - length
            moved = moved.with_columns(pl.col("self_ns") + grown)
        changed[name] = pl.concat([moved, missing])
    return changed


def _with_gaps(tables: Mapping[str, pl.DataFrame]) -> Tables:
    """The tables with gaps and their causes as the product finds them."""
    run = recorded(tables)
    found = gaps(run.activities, tables["api_calls"], run.waits)
    return {**tables, "gaps": in_contract("gaps", found.with_columns(doubt=pl.lit(None, pl.String)))}


def _append(frame: pl.DataFrame, rows: pl.DataFrame) -> pl.DataFrame:
    """More rows of a table, names as plain text."""
    plain = frame.with_columns(pl.col(pl.Categorical).cast(pl.String))
    return pl.concat([plain, rows.select(plain.columns).cast(plain.schema)])


def _filled(rows: pl.DataFrame, like: pl.DataFrame) -> pl.DataFrame:
    """The rows with every column of a table, null where they have none."""
    columns = [name for name in like.columns if name != "session_id"]
    return rows.select(
        pl.col(name).cast(like.schema[name]) if name in rows.columns else pl.lit(None, like.schema[name]).alias(name)
        for name in columns
    )
