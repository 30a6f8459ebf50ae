"""Check tool and file statements: dropped records, truncated files, inconsistent sums, ranks, a fallback."""

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Final

import polars as pl

from aaco_pipeline.analysis.completeness.findings import ANSWER, BUSY, IDLE, KERNEL_SUMS, Finding, counted, of_total
from aaco_pipeline.analysis.completeness.findings import milliseconds as ms
from aaco_pipeline.lake.evidence import DROPPED, OUT_OF_RANGE, STOPPED, Evidence
from aaco_pipeline.providers import CPU_PROVIDER

_CUT: Final = re.compile(
    r"cut off|ends within a row|its end is missing|damaged|malformed|page|truncated", re.IGNORECASE
)
_CAP: Final = "the runtime's profile holds a million events"
_COPY_AGAIN: Final = (
    "copy the file again once the program has ended by itself (compare sha256sum on both sides), or run it again and "
    "let it exit: the profiler writes at the end"
)
_PROVIDER: Final = "ExecutionProvider"


def of_evidence(evidence: Sequence[Evidence]) -> Iterator[Finding]:
    """Findings from the tool's own statements and from incomplete files."""
    for one in evidence:
        source = one.source or "capture"
        capped = "cap of" in (one.reason or "") and "events" in (one.reason or "")
        dropped = (_is(one, DROPPED) and one.status != "present") or _is(one, STOPPED)
        if dropped or capped:
            room = "record fewer steps, or give the tool more room" if dropped else _CAP
            yield Finding(
                "dropped_by_tool",
                "fault",
                source,
                f"the tool says so itself: {one.reason}.",
                f"{room}: {{more_room}}",
                records=one.rows if dropped else None,
                at_least=(*BUSY, *KERNEL_SUMS),
                at_most=IDLE,
            )
        elif (one.status in ("partial", "invalid") and _says_cut(one)) or _is_no_database(one):
            yield Finding(
                "file_truncated",
                "fault",
                source,
                f"{one.item}: {one.reason}.",
                _COPY_AGAIN,
                at_least=(*BUSY, *KERNEL_SUMS),
                at_most=IDLE,
            )


def unreadable(source: str, reason: str) -> Finding:
    """Report a file that no reader can interpret although a capture was expected in it."""
    reason = f"it cannot be read: {reason}."
    return Finding("file_truncated", "fault", source, reason, _COPY_AGAIN, voids=(*ANSWER, *BUSY))


def _is(one: Evidence, item: str) -> bool:
    """Return whether this item is the capture or one of its parts."""
    return one.item == item or one.item.startswith(f"{item} of ")


def _says_cut(one: Evidence) -> bool:
    """Return whether the statement reports a truncated or damaged file: a part, an unread file, or a file's end."""
    of_file = one.item.startswith(("part ", "file ", "end of ", "kernel events"))
    return of_file and _CUT.search(one.reason or "") is not None


def _is_no_database(one: Evidence) -> bool:
    """Return whether a file is named like a profiler's database but is not one, say for lack of a header."""
    return one.status == "absent" and one.item.startswith("file ") and one.item.endswith((".db", ".db.gz"))


def of_outside(evidence: Sequence[Evidence]) -> Iterator[Finding]:
    """Find dispatches outside their process's recorded lifetime."""
    for one in evidence:
        if _is(one, "times of dispatches"):
            yield Finding(
                "impossible_durations",
                "fault",
                one.source or "capture",
                f"{one.reason}: they begin before it did, or end after it.",
                "record again, and compare identical launches: {durations}",
                records=one.rows,
                voids=("kernel_stats.share_ratio", "timeline.active_ratio"),
                at_most=("kernel_stats.max_ns", "kernel_stats.total_ns"),
            )


def of_statistics(stated: pl.DataFrame, dispatches: pl.DataFrame, kernels: pl.DataFrame) -> Iterator[Finding]:
    """Find kernels for which the tool's own statistics report another dispatch count or total time.

    The statistics belong to this recording only if they name the same kernels.
    """
    if stated.is_empty():
        return
    sums = (
        stated.filter(pl.col("domain").str.to_lowercase() == "kernel")
        .group_by("name")
        .agg(calls=pl.col("call_count").sum(), told_ns=pl.col("total_ns").sum())
    )
    length = pl.col("end_ns") - pl.col("start_ns")
    own = (
        dispatches.drop_nulls(["start_ns", "end_ns"])
        .join(kernels.select("kernel_id", "name"), on="kernel_id")
        .group_by("name")
        .agg(recorded=pl.len().cast(pl.Int64), own_ns=length.sum())
    )
    both = own.join(sums, on="name", how="inner")
    if both.height < own.height or not both.height:
        return
    lost = both.filter(pl.col("calls") > pl.col("recorded"))
    if lost.height:
        missing = int((lost.get_column("calls") - lost.get_column("recorded")).sum())
        yield Finding(
            "dropped_by_tool",
            "fault",
            "kernel statistics",
            f"the tool's own statistics count {counted(missing, 'dispatch', 'dispatches')} of "
            f"{counted(lost.height, 'kernel')} more than are recorded.",
            "record again, and compare the tool's counts with the records: {durations}",
            records=missing,
            at_least=(*BUSY, *KERNEL_SUMS),
            at_most=IDLE,
        )
    # Tools round their sums to whole ns, or at worst to a microsecond.
    cut = both.filter(
        (pl.col("calls") == pl.col("recorded")) & (pl.col("told_ns") - pl.col("own_ns") > 1_000 * pl.col("recorded"))
    )
    touching = _touching(dispatches)
    if cut.height and touching:
        short = int((cut.get_column("told_ns") - cut.get_column("own_ns")).sum())
        yield Finding(
            "slices_cut",
            "fault",
            "kernel records",
            f"{counted(cut.height, 'kernel')} last {ms(short)} less than the tool's own statistics of the same "
            f"dispatches say, and {touching:,} records end where the next of their queue begins: ends of overlapping "
            "slices were moved, as in pictures for Perfetto.",
            "take the data itself, never the picture (.pftrace): {without_pictures}",
            records=int(cut.get_column("recorded").sum()),
            voids=("timeline.overlapped_ns", "kernel_stats.share_ratio"),
            at_least=(*("kernel_stats.total_ns", "kernel_stats.mean_ns"), "timeline.activity_time_sum_ns"),
        )


def _touching(dispatches: pl.DataFrame) -> int:
    """Find records that end at exactly the instant at which the next one of their queue begins."""
    lane = ["process_id", "device_id", "queue_id", "stream_id"]
    ordered = dispatches.drop_nulls(["start_ns", "end_ns"]).sort(*lane, "start_ns", "end_ns")
    return ordered.filter(pl.col("start_ns") == pl.col("end_ns").shift(1).over(lane)).height


def of_ranks(processes: pl.DataFrame, markers: pl.DataFrame) -> Iterator[Finding]:
    """Find ranks of a job that took part in a collective but are missing from the capture."""
    group = markers.get_column("group_size").max() if markers.height else None
    if not isinstance(group, int) or group <= max(1, processes.height):
        return
    ranks = processes.get_column("rank").drop_nulls().to_list()
    named = f" (rank {', '.join(map(str, sorted(ranks)))})" if ranks else ", which states no rank"
    yield Finding(
        "ranks_missing",
        "bound",
        "job",
        f"collectives are of {group} ranks, and the capture holds {counted(processes.height, 'process', 'processes')}"
        f"{named}: the others wrote elsewhere, or over one another into one file.",
        "ingest a folder with a file for each rank: {each_rank}",
        records=group - processes.height,
        voids=("collectives.is_straggler",),
        at_most=("timeline.exposed_communication_ns",),
    )


def of_fallback(sessions: pl.DataFrame, dispatches: pl.DataFrame, kernels: pl.DataFrame) -> Iterator[Finding]:
    """Find operators that ran on the CPU in a session of another provider without its runtime reporting that."""
    if not sessions.height or not dispatches.height:
        return
    provider = sessions.item(0, "provider")
    own = kernels.filter(pl.col("library").fill_null("").str.starts_with("onnxruntime "))
    ran = dispatches.join(own.select("kernel_id", "library"), on="kernel_id")
    on_cpu = ran.filter(pl.col("library") == f"onnxruntime {CPU_PROVIDER.removesuffix(_PROVIDER)}")
    others = ran.height - on_cpu.height
    if not on_cpu.height or provider == CPU_PROVIDER or (provider is None and not others):
        return
    length = on_cpu.get_column("self_ns").sum()
    yield Finding(
        "cpu_fallback",
        "fault",
        f"provider {provider or 'of the session'}",
        f"{of_total(on_cpu.height, ran.height)} operator executions of {ms(float(length))} ran on the CPU provider, "
        f"though {provider or 'another provider'} was asked for.",
        "have it refused instead: {no_fallback}",
        records=on_cpu.height,
        voids=("timeline.active_ratio", "roofline.bound"),
    )


def tool_counts(evidence: Sequence[Evidence]) -> Mapping[str, int | None]:
    """Return the tool's own loss counts over all files, by `DROPPED` and `OUT_OF_RANGE`; None if it has none."""
    counts: dict[str, int | None] = {DROPPED: None, OUT_OF_RANGE: None}
    for one in evidence:
        for name, count in list(counts.items()):
            if _is(one, name) and one.rows is not None:
                counts[name] = (count or 0) + one.rows
    return counts
