"""Switches and wake-ups as perf and bpftrace print them, for hosts where tracefs cannot be read: a line an event.

Recording them is `aaco_pipeline.resources.telemetry.scheduler_events`. Faults, interrupts, calls and who woke a thread
are not among them.
"""

from collections.abc import Iterable, Mapping
from typing import Final

import polars as pl

from aaco_pipeline.errors import CaptureError
from aaco_pipeline.formats.native.scheduler import PERF_LOST

#: What a thread that leaves a CPU waits for, by the first letter that perf prints of its state.
_PERF_STATES: Final = {
    **{"R": "runnable", "S": "sleeping", "I": "sleeping", "P": "sleeping", "D": "disk_sleep", "T": "stopped"},
    **{"t": "stopped", "X": "dead", "Z": "dead"},
}
_PERF_LINE: Final = (
    r"^\s*(?P<process>-?\d{1,18})/-?\d+\s+\[(?P<cpu>\d{1,6})\]\s+(?P<seconds>\d{1,9})\.(?P<ns>\d{9}):"
    r"\s+sched:sched_(?P<event>switch|waking):\s(?P<rest>.*)$"
)
_PERF_SWITCH: Final = (
    r"^prev_comm=(?P<name>.*) prev_pid=(?P<thread>\d{1,18}) .*prev_state=(?P<state>\S+) ==> "
    r"next_comm=(?P<other_name>.*) next_pid=(?P<other>\d{1,18}) "
)
_PERF_WAKING: Final = r"^.*\bpid=(?P<thread>\d{1,18}) .*target_cpu=(?P<value>\d{1,6})"
_BPFTRACE_SWITCH: Final = (
    r"^@s\[(?P<time>\d{1,18}), (?P<cpu>\d{1,6}), (?P<thread>\d{1,18}), (?P<process>\d{1,18}), (?P<bits>\d{1,18}), "
    r"(?P<other>\d{1,18})\]"
)
_BPFTRACE_WAKING: Final = r"^@w\[(?P<time>\d{1,18}), (?P<value>\d{1,6}), (?P<thread>\d{1,18})\]"
_NUMBERS: Final = ("process", "cpu", "thread", "other", "value")
_COLUMNS: Final = {
    **{"time_ns": pl.Int64, "cpu": pl.Int32, "thread_id": pl.Int64, "kind": pl.String, "other_thread_id": pl.Int64},
    **{"state": pl.String, "value": pl.Int64, "process": pl.Int64, "name": pl.String, "other_name": pl.String},
}


def events_of(tool: str, lines: Iterable[str], file: str) -> tuple[pl.DataFrame, pl.DataFrame]:
    """`switch` and `waking` rows as `kernel_events` has them, in the tool's clock; of a switch also the process of the
    thread that leaves, and both names, where the tool tells. And what was lost where it tells: cpu, start_ns (the
    CPU's last event before; null without one), end_ns, events. CaptureError for a line that is none of the tool's.
    """
    text = pl.Series("line", [line.rstrip("\n") for line in lines], dtype=pl.String)
    text = text.filter((text.str.strip_chars() != "") & ~text.str.starts_with("#"))
    is_loss = text.str.contains(PERF_LOST) if tool == "perf" else pl.repeat(False, len(text), eager=True)
    lost, text = text.filter(is_loss), text.filter(~is_loss)
    made = _of_perf(text) if tool == "perf" else _of_bpftrace(text)
    bad = made.filter(pl.any_horizontal(pl.col("time_ns", "thread_id", "kind").is_null()))
    if bad.height:
        raise CaptureError(f"{file}: a line is not one of {tool}'s: {bad.item(0, 'line')[:100]!r}")
    events = made.select(pl.col(name).cast(dtype) for name, dtype in _COLUMNS.items())
    return (events := events.sort("time_ns", "cpu", "thread_id")), _losses(lost, events)


def _losses(text: pl.Series, events: pl.DataFrame) -> pl.DataFrame:
    """What perf says that a CPU lost lies between its event before and the one that the line stands before."""
    end = pl.col("seconds").cast(pl.Int64) * 1_000_000_000 + pl.col("ns").cast(pl.Int64)
    told = text.to_frame("line").with_columns(_groups("line", PERF_LOST)).with_columns(end_ns=end)
    told = told.select(pl.col("cpu").cast(pl.Int32), "end_ns", pl.col("events").cast(pl.Int64)).sort("end_ns")
    whole = events.select("cpu", start_ns="time_ns").sort("start_ns")
    return told.join_asof(
        whole, left_on="end_ns", right_on="start_ns", by="cpu", allow_exact_matches=False, check_sortedness=False
    ).select("cpu", "start_ns", "end_ns", "events")


def _of_perf(text: pl.Series) -> pl.DataFrame:
    outer = text.to_frame().with_columns(_groups("line", _PERF_LINE))
    made = outer.with_columns(_groups("rest", _PERF_SWITCH, "s_"), _groups("rest", _PERF_WAKING, "w_"))
    is_switch = pl.col("event") == "switch"
    letter = pl.col("s_state").str.slice(0, 1)
    state = letter.replace_strict(_PERF_STATES, default="sleeping", return_dtype=pl.String)
    thread = pl.when(is_switch).then("s_thread").otherwise("w_thread").cast(pl.Int64)
    return made.with_columns(
        time_ns=pl.col("seconds").cast(pl.Int64) * 1_000_000_000 + pl.col("ns").cast(pl.Int64),
        kind="event",
        thread_id=pl.when(is_switch & pl.col("s_other").is_null()).then(None).otherwise(thread),
        other_thread_id=pl.when(is_switch).then("s_other"),
        state=_idle_or(pl.when(is_switch).then(state), thread),
        value=pl.when(~is_switch).then("w_value"),
        process=pl.when(is_switch).then("process"),
        name=pl.when(is_switch).then("s_name"),
        other_name=pl.when(is_switch).then("s_other_name"),
    )


def _of_bpftrace(text: pl.Series) -> pl.DataFrame:
    made = text.to_frame().with_columns(
        _groups("line", _BPFTRACE_SWITCH, "s_"), _groups("line", _BPFTRACE_WAKING, "w_")
    )
    is_switch = pl.col("s_thread").is_not_null()
    bits, thread = pl.col("s_bits").cast(pl.Int64), pl.coalesce("s_thread", "w_thread").cast(pl.Int64)
    state = (
        pl.when(bits & 0x30 > 0)
        .then(pl.lit("dead"))
        .when(bits & 0x0C > 0)
        .then(pl.lit("stopped"))
        .when(bits & 0x02 > 0)
        .then(pl.lit("disk_sleep"))
        .when(bits & 0xFF > 0)
        .then(pl.lit("sleeping"))
        .otherwise(pl.lit("runnable"))
    )
    return made.with_columns(
        time_ns=pl.coalesce("s_time", "w_time").cast(pl.Int64),
        # Where a thread was woken bpftrace tells by the CPU that it is woken for alone.
        cpu=pl.coalesce("s_cpu", "w_value"),
        kind=pl.when(is_switch).then(pl.lit("switch")).when(pl.col("w_thread").is_not_null()).then(pl.lit("waking")),
        thread_id=thread,
        other_thread_id="s_other",
        state=_idle_or(pl.when(is_switch).then(state), thread),
        value="w_value",
        process="s_process",
        name=pl.lit(None, pl.String),
        other_name=pl.lit(None, pl.String),
    )


def _groups(column: str, pattern: str, prefix: str = "") -> pl.Expr:
    """The pattern's named groups as columns."""
    return pl.col(column).str.extract_groups(pattern).name.map_fields(lambda name: prefix + name).struct.unnest()


def _idle_or(state: pl.Expr, thread: pl.Expr) -> pl.Expr:
    return pl.when(state.is_not_null() & (thread == 0)).then(pl.lit("idle")).otherwise(state)


def own_threads(events: pl.DataFrame, processes: Mapping[str, int]) -> dict[int, int]:
    """The threads that are of a measured process, with the number of that process."""
    number = {pid: place for place, pid in enumerate(processes.values())}
    mine = events.filter(pl.col("process").is_in(list(number)) & (pl.col("thread_id") > 0))
    return {thread: number[process] for thread, process in mine.select("thread_id", "process").unique().iter_rows()}


def names_in(events: pl.DataFrame) -> dict[int, str]:
    """What each thread was called last."""
    sides = [
        events.select("time_ns", thread_id=thread, name=name).drop_nulls()
        for thread, name in (("thread_id", "name"), ("other_thread_id", "other_name"))
    ]
    last = pl.concat(sides).sort("time_ns", "thread_id", "name").group_by("thread_id").agg(pl.col("name").last())
    return dict(last.iter_rows())
