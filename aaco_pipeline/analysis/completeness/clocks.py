"""Check that host and device clocks agree: no work begins before its launch or ends after a wait for it returned.

A constant offset of device times may fix both violations. Every launch gives a lower bound (how much too early its work
began); every wait for the device gives an upper bound (how long it outlasted the work). If no constant satisfies all
bounds, the clock was reset during the recording or single durations are wrong.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

import polars as pl

from aaco_pipeline.analysis.completeness.findings import Finding, counted, of_total
from aaco_pipeline.analysis.completeness.findings import milliseconds as ms
from aaco_pipeline.analysis.timeline.activities import ENCLOSING_DOMAINS
from aaco_pipeline.analysis.timeline.host_waits import calls_named

#: Clock tolerance: in complete captures of ROCm 6.4, a wait returned 8 us before its work ended.
TOLERANCE_NS: Final = 100_000
#: Records of one process that are further apart than this use clocks with different epochs.
_APART_NS: Final = 3_600 * 10**9
_DEVICE_WAIT: Final = r"^(?:hip|cuda|cu)(?:Device|Ctx|Thread)Synchronize"
#: Figures that depend on the relative order of host and device events.
_ORDER: Final = (
    *("gaps.cause", "critical_path_summary.category_ratio"),
    *("session_metrics.exposed_launch", "session_metrics.exposed_launch_ratio"),
)
_MEND: Final = (
    "record again after the host's clock has settled (chronyc tracking), without suspend in between: {one_clock}"
)


@dataclass(frozen=True)
class Fit:
    """Offset to add to a process's device times: at least `least_ns`, at most `most_ns`; None is unbounded.

    `early` are linked activities that begin before their launch by more than the tolerance; `late` are those that end
    after a wait for the device returned; `linked` counts all that have a launch.
    """

    least_ns: int
    most_ns: int | None
    early: pl.DataFrame
    late: pl.DataFrame
    linked: int

    @property
    def step_ns(self) -> int:
        """Return the gap between the two bounds if no constant fits, else 0."""
        step = self.least_ns - self.most_ns if self.most_ns is not None else 0
        return step if step > TOLERANCE_NS else 0


def fits(activities: pl.DataFrame, calls: pl.DataFrame) -> dict[int, Fit]:
    """Return the fit of each process with linked activities; waits count only if the process used a single device."""
    found = {}
    for (process,), own in activities.drop_nulls("call_id").group_by("process_id", maintain_order=True):
        ahead = own.get_column("call_start_ns") - own.get_column("start_ns")
        early = own.filter(ahead > TOLERANCE_NS)
        waits = _device_waits(calls.filter(pl.col("process_id") == process))
        most, late = None, own.clear()
        if waits.height and own.get_column("device_id").n_unique() == 1:
            most, late = _after_waits(own, waits)
        found[int(process)] = Fit(int(ahead.max() or 0), most, early, late, own.height)  # type: ignore[arg-type]
    return found


def of_clocks(found: dict[int, Fit]) -> Iterator[Finding]:
    """Detect clocks with a constant offset, clocks that were reset, and impossible durations."""
    for process, fit in found.items():
        odd = fit.early.height + fit.late.height
        if not odd:
            continue
        first = min(
            int(frame.get_column("start_ns").min())  # type: ignore[arg-type]
            for frame in (fit.early, fit.late)
            if frame.height
        )
        subject = f"process {process}"
        if _are_durations(fit):
            yield _impossible(fit, process)
        elif fit.step_ns or _begins_midway(fit):
            jump = fit.step_ns or max(fit.least_ns, -(fit.most_ns or 0))
            yield Finding(
                "clock_resynchronized",
                "fault",
                subject,
                f"{_how(fit)}; no constant offset mends the order of host and device: their clocks jumped by at least "
                f"{ms(jump)} within the recording, {first} ns at the latest.",
                _MEND,
                process_id=process,
                start_ns=first,
                records=odd,
                voids=_ORDER,
            )
        else:
            least, most = fit.least_ns, fit.most_ns
            bound = f"at least {ms(least)}" if most is None else f"between {ms(least)} and {ms(most)}"
            yield Finding(
                "clocks_apart",
                "fault",
                subject,
                f"{_how(fit)}; the device's clock is off the host's by a constant {bound}.",
                _MEND,
                process_id=process,
                records=odd,
                voids=_ORDER,
            )


def of_epochs(activities: pl.DataFrame, api_calls: pl.DataFrame) -> Iterator[Finding]:
    """Find record types of one process that are over an hour apart and never overlap: different epochs."""
    enclosing = pl.col("domain").is_in(ENCLOSING_DOMAINS)
    spans = pl.concat(
        [
            frame.group_by("process_id").agg(
                kind=pl.lit(kind), first=pl.col("start_ns").min(), last=pl.col("end_ns").max(), n=pl.len()
            )
            for kind, frame in (
                ("framework operators", api_calls.filter(enclosing)),
                ("runtime calls", api_calls.filter(~enclosing)),
                ("device activities", activities),
            )
        ]
    ).sort("process_id", "first")
    before = spans.with_columns(
        reached=pl.col("last").shift(1).over("process_id"), other=pl.col("kind").shift(1).over("process_id")
    )
    for row in before.filter(pl.col("first") - pl.col("reached") > _APART_NS).iter_rows(named=True):
        yield Finding(
            "clocks_apart",
            "fault",
            f"process {row['process_id']}",
            f"the {row['n']:,} {row['kind']} begin {(row['first'] - row['reached']) / _APART_NS:,.1f} hours after the "
            f"last of the {row['other']}: they were written by clocks that count from other instants.",
            _MEND,
            process_id=row["process_id"],
            records=row["n"],
            voids=(*_ORDER, "timeline.active_ratio"),
        )


def _device_waits(calls: pl.DataFrame) -> pl.DataFrame:
    waits = calls_named(calls, _DEVICE_WAIT)
    return waits.select(waited_ns="start_ns", returned_ns="end_ns").sort("waited_ns")


def _after_waits(own: pl.DataFrame, waits: pl.DataFrame) -> tuple[int | None, pl.DataFrame]:
    """Return the least time by which a wait outlasted the work launched before it, and work that outlasted a wait."""
    placed = own.sort("call_end_ns").join_asof(
        waits, left_on="call_end_ns", right_on="waited_ns", strategy="forward", check_sortedness=False
    )
    after = (placed.get_column("returned_ns") - placed.get_column("end_ns")).min()
    late = placed.filter(pl.col("end_ns") - pl.col("returned_ns") > TOLERANCE_NS).select(own.columns)
    return (int(after) if isinstance(after, int) else None), late


def _are_durations(fit: Fit) -> bool:
    """Return whether single ends are wrong rather than the clock: few, none early, each long enough to explain it."""
    if fit.early.height or not fit.late.height or fit.late.height * 20 > fit.linked:
        return False
    length = (fit.late.get_column("end_ns") - fit.late.get_column("start_ns")).min()
    return isinstance(length, int) and fit.most_ns is not None and length > -fit.most_ns


def _begins_midway(fit: Fit) -> bool:
    """Return whether, without waits to compare, early work begins only after a phase of correctly ordered work."""
    return fit.most_ns is None and 0 < fit.early.height < fit.linked / 2


def _impossible(fit: Fit, process: int) -> Finding:
    longest = (fit.late.get_column("end_ns") - fit.late.get_column("start_ns")).max()
    return Finding(
        "impossible_durations",
        "fault",
        f"process {process}",
        f"{counted(fit.late.height, 'activity', 'activities')} of up to {ms(float(longest))} end after a wait for the "  # type: ignore[arg-type]
        f"whole device had returned, by up to {ms(-(fit.most_ns or 0))}, while the others are in order.",
        DURATIONS_AGAIN,
        process_id=process,
        records=fit.late.height,
        voids=("kernel_stats.share_ratio",),
        at_most=("kernel_stats.max_ns", "kernel_stats.mean_ns", "kernel_stats.total_ns", "timeline.busy_ns"),
    )


#: How to record reliable durations.
DURATIONS_AGAIN: Final = (
    "record again with the clocks at rest (rocm-smi --setperfdeterminism, or a longer warm-up) and compare identical "
    "launches: {durations}"
)


def of_reversed(dispatches: pl.DataFrame, memory_copies: pl.DataFrame) -> Iterator[Finding]:
    """Find device activities that end before they begin."""
    times = pl.concat([frame.select("start_ns", "end_ns") for frame in (dispatches, memory_copies)])
    odd = times.filter(pl.col("end_ns") < pl.col("start_ns"))
    if odd.height:
        yield Finding(
            "impossible_durations",
            "fault",
            "device activities",
            f"{of_total(odd.height, times.height)} device activities end before they begin.",
            DURATIONS_AGAIN,
            records=odd.height,
            voids=("kernel_stats.share_ratio",),
            at_least=("kernel_stats.min_ns", "kernel_stats.total_ns", "timeline.busy_ns"),
        )


def _how(fit: Fit) -> str:
    words = []
    if fit.early.height:
        words.append(
            f"{of_total(fit.early.height, fit.linked)} device activities begin before the call that launched them, by "
            f"up to {ms(fit.least_ns)}"
        )
    if fit.late.height and fit.most_ns is not None:
        words.append(
            f"{of_total(fit.late.height, fit.linked)} end after a wait for the device had returned, by up to "
            f"{ms(-fit.most_ns)}"
        )
    return " and ".join(words)
