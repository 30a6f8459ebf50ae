"""Compose a session's answer from its tables: validity, exact shares, the first fix, and useful further recordings.

The other modules of this package compute the parts; `aaco_pipeline.report.words` phrases them for readers.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Final

import polars as pl

from aaco_pipeline.analysis.answer import reasons
from aaco_pipeline.analysis.answer.first_to_fix import (
    Fix,
    cost_of_class,
    kernel_name,
    kind_to_fix,
    limiting_resource,
    on_critical_path,
    subject_of,
)
from aaco_pipeline.analysis.answer.inferred_waits import with_inferred_waits
from aaco_pipeline.analysis.answer.kinds import COMMUNICATION, kinds_of_work
from aaco_pipeline.analysis.answer.savings import Held, Unprofiled, held_in, saved, saved_unprofiled, unprofiled
from aaco_pipeline.analysis.answer.shares import DEVICE, device_shares, host_shares, largest, operators_ns
from aaco_pipeline.analysis.answer.terms import AT_ROOF, NO_WINDOW, WHOLE
from aaco_pipeline.analysis.answer.window import (
    COLD_START,
    INCOMPLETE,
    Invalid,
    Window,
    allocating,
    busiest,
    inside,
    of_device,
    steady_window,
    whole_recording,
    without_answer,
    without_steady_part,
)
from aaco_pipeline.analysis.completeness.findings import in_words, tool_of
from aaco_pipeline.analysis.kernels.names import operator_family
from aaco_pipeline.analysis.sessions.metrics import usage
from aaco_pipeline.analysis.timeline.activities import OPERATOR_DOMAIN, Recorded
from aaco_pipeline.lake.contracts import polars_types
from aaco_pipeline.lake.validation import empty_table, to_contract
from aaco_pipeline.providers import CPU_PROVIDER

_AT_MOST: Final = 3
#: Findings that affect the answer, most severe first, and what a new recording would show.
_TELLS: Final[Mapping[str, str]] = {
    "no_device_events": "what ran on the device",
    "wait_for_unrecorded_work": "what ran before the recording",
    "graph_kernels_missing": "all kernels of replayed graphs",
    "launches_unrecorded": "the launches that left no record",
    "first_kernels_dropped": "the first kernels",
    "stream_missing": "the missing stream",
    "dropped_by_tool": "what the tool dropped",
    "file_truncated": "the rest of the file",
    "ranks_missing": "which rank is late",
    "impossible_durations": "true durations",
    "clocks_apart": "host and device on one clock",
    "clock_resynchronized": "host and device on one clock",
}
_CALIBRATED: Final = ("how near the operators come to what this machine reaches", "aaco calibrate")


def sharpened(name: str, kind: object, tables: Mapping[str, pl.DataFrame], *, steady: bool) -> list[tuple[str, str]]:
    """List further recordings that would help, each with its command, most useful first.

    Args:
        name: The class.
        kind: The kind of work to fix, if any.
        tables: The tables of `INPUTS`.
        steady: Whether there is a steady part.
    """
    found = tables["completeness_findings"].unique("finding", keep="first", maintain_order=True)
    mends = dict(found.select("finding", "mend").iter_rows())
    wanted = [(words, str(mends[finding])) for finding, words in _TELLS.items() if finding in mends]
    sessions, devices = tables["sessions"], tables["devices"]
    if sessions.height and sessions.item(0, "provider") == CPU_PROVIDER:
        # No device tool profiles operators on the CPU.
        measured = (tables["ceilings"].get_column("source").cast(pl.String) == "measured").any()
        return [*wanted, *([] if measured else [_CALIBRATED])][:_AT_MOST]
    vendors = set(devices.get_column("vendor").drop_nulls()) if devices.height else set()
    tool = tool_of(sessions)
    if name == COLD_START:
        wanted.insert(0, ("the steady state", in_words("record after warm-up: {warm_up}", tool)))
    if name == INCOMPLETE and not steady and _has_times(tables):
        wanted.append(("what repeats", "record ten or more repetitions of the work after a warm-up"))
        # A profiler that collects counters serializes dispatches, and the device waits for it.
    idle = tables["dispatches"].height and not tables["api_calls"].height and not tables["counters"].height
    if name == INCOMPLETE and idle and "AMD" in vendors:
        wanted.append(("what the idle device waits for", in_words("{everything}", tool)))
    if name == INCOMPLETE and not _has_times(tables) and "NVIDIA" not in vendors:
        wanted.append(("when the kernels ran", in_words("{kernel_times}", tool)))
    ranks = tables["dispatches"].get_column("process_id").n_unique()
    if name == COMMUNICATION and ranks == 1 and "ranks_missing" not in mends:
        wanted.append((_TELLS["ranks_missing"], in_words("{each_rank}", tool)))
    operators = tables["api_calls"].get_column("domain").cast(pl.String) == OPERATOR_DOMAIN
    if kind is not None and operators.any() and not tables["operator_shapes"].height:
        wanted.append(("what the kernels achieve", "torch.profiler.profile(record_shapes=True)"))
    if kind is not None:
        # On NVIDIA, only the recorder can collect counters.
        if not tables["counters"].height and ("AMD" in vendors or ("NVIDIA" in vendors and tool == "aaco record")):
            wanted.append(("which unit limits the kernels", in_words("{counters}", tool)))
        if "AMD" in vendors and not tables["att_stalls"].height:
            wanted.append(("which instructions stall", in_words("{instructions}", tool)))
    return wanted[:_AT_MOST]


def _has_times(tables: Mapping[str, pl.DataFrame]) -> bool:
    times = (tables[name].select("start_ns", "end_ns").drop_nulls() for name in ("dispatches", "memory_copies"))
    return any(one.height for one in times)


#: Tables from which the answer is computed, in addition to the result of `recorded`.
INPUTS: Final = (
    *("sessions", "devices", "iterations", "iteration_blocks", "dispatches", "memory_copies", "kernels", "api_calls"),
    *("gaps", "session_parts", "first_calls", "roofline", "operator_shapes", "ceilings", "critical_path"),
    *("collectives", "gpu_samples", "completeness_findings", "counters", "att_stalls", "processes"),
    "memory_allocations",
)
#: Two shares that differ by at most this much are both reported.
TIE: Final = 0.05
#: Tuning is not expected to speed all kernels up by more than this factor; the second applies if they run less than
#: half the window.
_FASTER: Final = 3
_FASTER_BESIDE_IDLE: Final = 2
#: Columns used of the dispatches in a window.
_OF_DISPATCHES: Final = (
    *("dispatch_id", "process_id", "device_id", "kernel_id", "correlation_id", "start_ns", "end_ns"),
    "parent_dispatch_id",
)
#: Classes that a tracer inflates because it slows every call.
_LENGTHENED: Final = ("launch", "sync", "unknown")


@dataclass(frozen=True)
class Answer:
    """Rows of `answers`, `time_shares` and `kinds_of_work`."""

    answers: pl.DataFrame
    time_shares: pl.DataFrame
    kinds_of_work: pl.DataFrame


@dataclass(frozen=True)
class _Judged:
    """A window's time by share and by (share, reason), with its dispatches, gaps and kinds of work."""

    window: Window
    shares: Mapping[str, int]
    explained: Mapping[tuple[str, str], int]
    inside: pl.DataFrame
    gaps: pl.DataFrame
    kinds: pl.DataFrame
    #: The part of `sync` that was inferred without a record.
    inferred_ns: int = 0
    held: Held | None = None
    without: Unprofiled | None = None

    def time_of(self, name: str) -> int:
        """Return the time of a share, or of all parts with the same reason."""
        if name in self.shares:
            return self.shares[name]
        return sum(time for (_, reason), time in self.explained.items() if reason == name)


def answer_of(tables: Mapping[str, pl.DataFrame], run: Recorded, labels: pl.DataFrame) -> Answer:
    """Compose the answer from the tables of `INPUTS`, the recorded work and kernel labels (kernel_id, label).

    On the CPU provider, the window consists of the measured iterations of the unprofiled pass.
    """
    sessions = tables["sessions"]
    if sessions.height and sessions.item(0, "provider") == CPU_PROVIDER:
        return _on_host(tables, run, labels)
    return _on_device(tables, run, labels)


def session_row(answer: Answer) -> pl.DataFrame:
    """Return the session's row of `bottlenecks`: its class, with the shares as evidence."""
    row = answer.answers.row(0, named=True)
    shares = answer.time_shares.filter(pl.col("time_ns") > 0).sort(
        "time_ns", "share", "reason", descending=[True, False, False], nulls_last=False
    )
    saves, of = row["saves_at_most_ns"], row["window_ns"]
    if row["saves_unprofiled_ns"] is not None:
        saves, of = row["saves_unprofiled_ns"], row["unprofiled_period_ns"]
    advice = row["advice"]
    if advice is not None:
        saving = "Reaching the peak saves" if advice == AT_ROOF else "That saves"
        bound = f" {saving} at most {100 * saves / of:.1f} % of the time." if saves is not None and of else ""
        advice = f"{advice}.{bound}"
    evidence = [
        {"signal": "share_" + (one["reason"] or one["share"]), "value": one["share_ratio"], "unit": "ratio"}
        | {"threshold": None, "weight": float(one["reason"] is None), "source": "time_shares"}
        for one in shares.iter_rows(named=True)
    ]
    outcome = {"label": row["class"], "runner_up": row["second_class"], "score": row["class_ratio"]}
    whole = {"scope": "session", "kernel_id": None, **outcome, "evidence": evidence, "missing": row["sharpen"]}
    return pl.DataFrame([{**whole, "recommendation": advice}], schema=polars_types("bottlenecks"))


def _on_device(tables: Mapping[str, pl.DataFrame], run: Recorded, labels: pl.DataFrame) -> Answer:
    activities = run.activities
    if activities.get_column("device_id").null_count() == activities.height:
        why = "no kernel or copy has times" if activities.is_empty() else "no activity names its device"
        return _without_shares(tables, Invalid(INCOMPLETE, why))
    device = busiest(activities)
    own, parts = (of_device(rows, device) for rows in (activities, tables["session_parts"]))
    invalid = without_steady_part(parts, own)
    if invalid is not None:
        whole = whole_recording(own, device)
        return _without_shares(tables, invalid, whole, _kinds_within(whole, tables))
    window = steady_window(parts, own, device, tables)
    gaps = with_inferred_waits(of_device(tables["gaps"], device), activities, tables)
    held = held_in(window, own, gaps, run, tables)

    def shared_out(idle: pl.DataFrame) -> dict[str, int]:
        copies, long_ns = tables["memory_copies"], held.host.long_ns
        return device_shares(own, idle, tables["api_calls"], window.pieces, copies, long_ns=long_ns)

    shares = shared_out(gaps)
    ran = _ran(window, tables)
    judged = _Judged(
        window,
        shares,
        _explained(shares, tables, ran, gaps, window.pieces),
        ran,
        gaps,
        _kinds_within(window, tables),
        inferred_ns=shared_out(gaps.filter("inferred")).get("sync", 0),
        held=held,
        without=unprofiled(tables["iterations"], window),
    )
    row = _judgement(judged, tables, labels, on_critical_path(tables, ran), 1.0)
    invalid = without_answer(shares, gaps, tables["completeness_findings"], host_calls=tables["api_calls"].height > 0)
    if invalid is not None:
        row |= {"class": invalid.verdict, "second_class": None, "reason": invalid.reason, "class_ratio": None}
        row |= {"saves_at_most_ns": None, "advice": None, "subject": None, "kind": None, "resource": None}
        judged = replace(judged, kinds=_kinds_within(whole_recording(own, device), tables))
    return _answer(row, judged, tables)


def _on_host(tables: Mapping[str, pl.DataFrame], run: Recorded, labels: pl.DataFrame) -> Answer:
    iterations, blocks = tables["iterations"], tables["iteration_blocks"]
    unprofiled, traced = (usage(iterations, blocks, name) for name in ("latency", "trace"))
    shares, contended = host_shares(unprofiled, traced, operators_ns(run.dispatches))
    if not shares:
        why = "no iterations were measured without a profiler, with their CPU time"
        return _without_shares(tables, Invalid(INCOMPLETE, why))
    times = iterations.filter((pl.col("pass") == "latency") & (pl.col("phase") == "measure"))
    times = times.drop_nulls(["start_ns", "end_ns"]).select("start_ns", "end_ns")
    each = times.select((pl.col("end_ns") - pl.col("start_ns")).median()).item()
    period = None if each is None else round(each)
    window = Window(0, times, "measured iterations without a profiler", 0, unprofiled.iterations, period)
    dispatches = tables["dispatches"].filter(pl.col("parent_dispatch_id").is_null())
    kinds = _kinds({**tables, "kernels": _named(tables["kernels"])}, dispatches, tables["memory_copies"].clear(), 0)
    explained = {(name, reasons.CONTENTION): time for name, time in contended.items()}
    judged = _Judged(window, shares, explained, dispatches, tables["gaps"], kinds)
    kernel_time = int(kinds.get_column("time_ns").sum())
    scale = shares[DEVICE] / kernel_time if kernel_time else 0.0
    return _answer(_judgement(judged, tables, labels, None, scale), judged, tables)


def _judgement(
    judged: _Judged,
    tables: Mapping[str, pl.DataFrame],
    labels: pl.DataFrame,
    critical: Mapping[str, int] | None,
    scale: float,
) -> dict[str, object]:
    """Return the row of `answers` without `sharpen`; `scale` converts kernel time to window time."""
    name, second = _class(judged)
    fix = _within_device(judged, tables, critical, scale) if name == DEVICE else _fix_of(name, judged, tables)
    window, whole = judged.window, sum(judged.shares.values())
    # On the CPU, runtime time also counts as busy; on a device, use the activities, because shares also include idle
    # time.
    busy = judged.shares[DEVICE] + judged.shares["launch"] if judged.held is None else judged.held.busy_ns["all"]
    bounds = window.pieces.select(pl.col("start_ns").min(), pl.col("end_ns").max())
    late = reasons.late_rank(tables)
    return {
        "class": name,
        "second_class": second,
        "reason": None if late is None else reasons.in_words(late),
        "device_id": window.device,
        "window_start_ns": bounds.item(0, 0),
        "window_end_ns": bounds.item(0, 1),
        "window_ns": whole,
        "window_rule": window.rule,
        "beside_ns": window.beside_ns,
        "repetitions": window.repetitions,
        "period_ns": window.period_ns,
        "class_ratio": judged.time_of(name) / whole if whole else None,
        "busy_ratio": busy / whole if whole else None,
        "resource": limiting_resource(judged.inside, labels) if name == DEVICE else None,
        "kind": fix.kind,
        "subject": fix.subject,
        "saves_at_most_ns": fix.saves_at_most_ns,
        "unprofiled_period_ns": None if judged.without is None else round(judged.without.period_ns),
        "saves_unprofiled_ns": fix.saves_unprofiled_ns,
        "advice": fix.advice,
    }


def _fix_of(name: str, judged: _Judged, tables: Mapping[str, pl.DataFrame]) -> Fix:
    """Advise on a class other than device time, with the maximum saving."""
    own, held = judged.time_of(name), judged.held
    idle = None if held is None else held.idle
    about = subject_of(name, judged.window, judged.inside, judged.gaps, tables, idle=idle)
    fix = cost_of_class(name, own, *about)
    if held is None or fix.saves_at_most_ns is None:
        return fix
    each = None if judged.without is None else saved_unprofiled(name, own, held, judged.without)
    return replace(fix, saves_at_most_ns=saved(name, own, held), saves_unprofiled_ns=each)


def _within_device(
    judged: _Judged, tables: Mapping[str, pl.DataFrame], critical: Mapping[str, int] | None, scale: float
) -> Fix:
    """Choose the first fix if device work is the largest share: a kind of work, or a cause that costs more."""
    fix = kind_to_fix(judged.kinds, critical, scale, judged.window.repetitions) or Fix(None, None, None, None)
    at_most = fix.gone_ns if fix.saves_at_most_ns is None else fix.saves_at_most_ns
    beside = next((name for name in largest(judged.shares) if name not in (DEVICE, "unknown")), None)
    if beside is not None and judged.shares[beside] > at_most:
        return _fix_of(_named_class(beside, judged), judged, tables)
    each = None
    if judged.held is not None and judged.without is not None and fix.saves_at_most_ns is not None:
        each = saved_unprofiled(DEVICE, fix.saves_at_most_ns, judged.held, judged.without)
    subject = fix.subject or kernel_name(tables, judged.kinds, fix.kind)
    return replace(fix, subject=subject, saves_unprofiled_ns=each)


def _explained(
    shares: Mapping[str, int],
    tables: Mapping[str, pl.DataFrame],
    inside: pl.DataFrame,
    gaps: pl.DataFrame,
    pieces: pl.DataFrame,
) -> dict[tuple[str, str], int]:
    """Sum the nanoseconds of shares by the reason that explains them."""
    if not shares:
        return {}
    unprofiled = usage(tables["iterations"], tables["iteration_blocks"], "latency")
    found = {(name, reasons.CONTENTION): time for name, time in reasons.contention(shares, unprofiled).items()}
    late = reasons.imbalance(shares, tables["collectives"], inside)
    found |= {(name, reasons.IMBALANCE): time for name, time in late.items()}
    held = reasons.throttling(shares, reasons.samples_of_the_run(tables, inside), tables["devices"])
    found |= {(name, reasons.THROTTLING): time for name, time in held.items()}
    sync = pl.col("cause").is_in(["sync", "dependency"])
    idle = gaps.filter(pl.col("doubt").is_null() & (pl.col("cause") != "unknown")).select(
        "start_ns", "end_ns", share=pl.when(sync).then(pl.lit("sync")).otherwise(pl.lit("launch"))
    )
    of_memory = allocating(tables["api_calls"]).with_columns(kind=pl.lit("allocation"))
    columns = ["kind", "start_ns", "end_ns"]
    calls = pl.concat([tables["first_calls"].select(columns), of_memory.select(columns)], how="vertical_relaxed")
    for (share, kind), time in reasons.recurring(idle, calls, pieces).items():
        # A gap between late launches counts as the host's if the thread was busy elsewhere.
        named = share if shares[share] >= time else "host"
        if shares[named] >= time:
            found[named, kind] = time
    return {key: time for key, time in found.items() if time}


def _named(kernels: pl.DataFrame) -> pl.DataFrame:
    """Add the operator's family to kernels of the CPU provider."""
    operators = kernels.get_column("short_name").cast(pl.String)
    families = {name: operator_family(name) for name in operators.drop_nulls().unique()}
    own = operators.replace_strict(families, default=None, return_dtype=pl.String)
    return kernels.with_columns(family=pl.coalesce(pl.col("family").cast(pl.String), own))


def _ran(window: Window, tables: Mapping[str, pl.DataFrame]) -> pl.DataFrame:
    """Return the dispatches of the window's device that began in it, without duplicates."""
    own = of_device(tables["dispatches"].select(_OF_DISPATCHES), window.device)
    return inside(own.filter(pl.col("parent_dispatch_id").is_null()).drop("parent_dispatch_id"), window.pieces)


def _kinds_within(window: Window, tables: Mapping[str, pl.DataFrame]) -> pl.DataFrame:
    within = pl.col("direction").cast(pl.String).is_in(["device_to_device", "fill"])
    copies = tables["memory_copies"].filter((pl.col("device_id") == window.device) & within)
    return _kinds(tables, _ran(window, tables), inside(copies, window.pieces), window.device)


def _kinds(
    tables: Mapping[str, pl.DataFrame], dispatches: pl.DataFrame, copies: pl.DataFrame, device: int
) -> pl.DataFrame:
    own = {name: of_device(tables[name], device) for name in ("operator_shapes", "ceilings", "dispatches")}
    return kinds_of_work(dispatches, copies, {**tables, **own})


def _class(judged: _Judged) -> tuple[str, str | None]:
    """Return the class and, if within `TIE` of it, a second one. A reason for over half of a share replaces it.

    Device time may be irreducible. If kernels would have to become more than `_FASTER` times as fast to save as much as
    one cause costs, that cause comes first, unless the tracer itself inflates it. If kernels run for less than half of
    the window, the factor is `_FASTER_BESIDE_IDLE`, and any known cause may come first.
    """
    ordered = largest(judged.shares)
    if not ordered:
        return "unknown", None
    if ordered[0] == DEVICE and judged.held is not None:
        limits = 2 * judged.shares[DEVICE] >= sum(judged.shares.values())
        passed_over = _LENGTHENED if limits else ("unknown",)
        faster = _FASTER if limits else _FASTER_BESIDE_IDLE
        leading = [one for one in ordered[1:] if _named_class(one, judged) not in passed_over]
        if leading and (faster - 1) * judged.shares[DEVICE] <= faster * judged.shares[leading[0]]:
            ordered = [leading[0], *(one for one in ordered if one != leading[0])]
    margin = TIE * sum(judged.shares.values())
    near = [name for name in ordered[1:] if abs(judged.shares[ordered[0]] - judged.shares[name]) <= margin]
    names = [_named_class(name, judged) for name in [ordered[0], *near[:1]]]
    return names[0], names[1] if len(names) > 1 and names[1] != names[0] else None


def _named_class(share: str, judged: _Judged) -> str:
    own = sorted(((time, reason) for (name, reason), time in judged.explained.items() if name == share), reverse=True)
    return own[0][1] if own and own[0][0] > judged.shares[share] / 2 else share


def _without_shares(
    tables: Mapping[str, pl.DataFrame], invalid: Invalid, whole: Window | None = None, kinds: pl.DataFrame | None = None
) -> Answer:
    """Build an answer that only says why there is none, and what ran in the recording."""
    row: dict[str, object] = {"class": invalid.verdict, "reason": invalid.reason, "window_rule": NO_WINDOW}
    if whole is not None:
        start, end = whole.pieces.row(0)
        row |= {"device_id": whole.device, "window_start_ns": start, "window_end_ns": end, "window_ns": end - start}
        row |= {"window_rule": whole.rule, "beside_ns": 0}
    ran = empty_table("kinds_of_work") if kinds is None else to_contract("kinds_of_work", kinds)
    return Answer(_row(row, tables), empty_table("time_shares"), ran)


def _row(row: Mapping[str, object], tables: Mapping[str, pl.DataFrame]) -> pl.DataFrame:
    """Return the row of `answers`, including the recordings that would add detail."""
    steady = row["window_rule"] not in (NO_WINDOW, WHOLE)
    wanted = sharpened(str(row["class"]), row.get("kind"), tables, steady=steady)
    advice = {"sharpen": [what for what, _ in wanted], "sharpen_commands": [how for _, how in wanted]}
    # Concatenated with an empty table so that columns without values get their type.
    filled = pl.DataFrame([{**row, **advice}], infer_schema_length=None)
    return to_contract("answers", pl.concat([empty_table("answers"), filled], how="diagonal_relaxed"))


def _answer(row: Mapping[str, object], judged: _Judged, tables: Mapping[str, pl.DataFrame]) -> Answer:
    window = sum(judged.shares.values())
    # Untraced waits may account for most of a share.
    inferred = {"sync"} if 2 * judged.inferred_ns > judged.shares.get("sync", 0) else set()
    rows = [
        *(
            (share, None, time, "inferred" if share in inferred else "observed")
            for share, time in judged.shares.items()
        ),
        *((share, reason, time, "inferred") for (share, reason), time in judged.explained.items()),
    ]
    columns = polars_types("time_shares", "share", "reason", "time_ns", "grade")
    listed = pl.DataFrame(rows, schema=columns, orient="row").with_columns(
        device_id=pl.lit(judged.window.device, pl.Int32),
        share_ratio=pl.col("time_ns") / window if window else pl.lit(0.0),
    )
    return Answer(_row(row, tables), to_contract("time_shares", listed), to_contract("kinds_of_work", judged.kinds))
