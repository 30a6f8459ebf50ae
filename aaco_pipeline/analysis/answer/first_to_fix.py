"""Choose the first fix, its maximum saving, and the call, copy, collective or kernel to name.

The module `savings` bounds the savings by the time that must remain.
"""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

import polars as pl

from aaco_pipeline.analysis.answer.kinds import COMMUNICATION, FUSABLE, GLUE, kind_of
from aaco_pipeline.analysis.answer.terms import AT_ROOF, PACK, each_of
from aaco_pipeline.analysis.answer.window import Window, allocating, inside
from aaco_pipeline.analysis.timeline.collectives import LATE_OR_BROKEN

#: Advice for each class of time other than device time.
ADVICE: Final[Mapping[str, str]] = {
    "communication": "Overlap the exchange with compute, or make it smaller or rarer",
    "imbalance": "Even out the ranks' work, for the late one sets the pace",
    "copy": "Copy less, from pinned memory, and while kernels run",
    "sync": "Wait for the device less often, reading results back in one go",
    "launch": "Replay these launches as a graph, the kernels staying as they are",
    "host": "Move what the host does then to another thread, or before the loop",
    "contention": "Keep other work off these CPUs",
    "throttling": "Raise the power limit or cool the device, for its clock is held down",
    "allocation": "Allocate before the loop, or from a pool that keeps its memory",
    "compilation": "Compile before the loop, and keep the cache",
    "page_faults": "Touch the memory before the loop",
}
#: Advice for waits for kernels whose results are not read back.
WAIT_LESS: Final = "Wait for the device less often"
#: Advice for copies that already use pinned memory.
COPIES_BESIDE: Final = "Copy less, or in a stream of their own while kernels run"
#: Advice for copies within the device.
COPIES_WITHIN: Final = "Avoid the copies within the device, or fuse them into the kernels beside them"
#: Advice for graph launches: the time of fused kernels has no lower bound.
OF_GRAPHS: Final = "Fuse the graph's kernels, for one launch starts them all already"
_GRAPHS: Final = "kernels of graphs"
#: Advice for kinds of work that are not near their roof.
_FASTER: Final = "Make these kernels faster"
_BY_KIND: Final[Mapping[str, str]] = {
    "gemm": "Tune the matrix products (shapes, layout, library)",
    "attention": "Use a faster attention kernel",
    "convolution": "Tune the convolutions (layout, algorithm, number format)",
    GLUE: "Fuse the elementwise work and the copies into their neighbours",
    "normalization": "Fuse the normalization into its neighbours",
    "softmax": "Fuse the softmax into its neighbours",
    "reduction": "Fuse the reductions into their neighbours",
    "gather": "Fuse the gathers into what reads them",
    "quantization": "Fuse the quantization into its neighbours",
}
#: Above this fraction of a roof, tuning gains little.
NEAR_ROOF: Final = 0.8
#: A call that starts at least this many kernels is taken for a graph launch.
_IN_GRAPHS: Final = 2
#: Advice for kernels that can only be fused with others of their kind.
_INTO_EACH_OTHER: Final = "Fuse these kernels into one another"
#: A kind that takes at least this fraction of kernel time has no neighbours to be fused into.
_NEARLY_ALL: Final = 0.9


@dataclass(frozen=True)
class Fix:
    """A possible fix, with an upper bound on its saving.

    Attributes:
        kind: The kind of work, only if kernels are to be fixed.
        subject: The call, copy, collective or kernel to name.
        saves_at_most_ns: Part of the window; None if no roof bounds it.
        advice: What to do.
        gone_ns: Saving if the work were removed entirely.
        saves_unprofiled_ns: Saving per repetition without a profiler; None if unknown.
    """

    kind: str | None
    subject: str | None
    saves_at_most_ns: int | None
    advice: str | None
    gone_ns: int = 0
    saves_unprofiled_ns: int | None = None


def kind_to_fix(
    kinds: pl.DataFrame, critical: Mapping[str, int] | None, scale: float, repetitions: int | None
) -> Fix | None:
    """Choose the kind of work with the largest saving if removed or tuned to its roof; None without kinds.

    A kind saves at most the time in which nothing else ran (`alone_ns`) and at most its time on the critical path.
    Streaming work can be fused away entirely if there are other kernels to fuse it into, or into itself if a repetition
    has several such kernels. Any other kind keeps the time that it needs at its roof; without a known roof its saving
    is unbounded. Ties go to the longer kind.

    Args:
        kinds: Rows of `kinds_of_work`.
        critical: Nanoseconds on the critical path by kind; None if there is no path.
        scale: Factor from kernel time to window time.
        repetitions: Repetitions in the window, if any.
    """
    best: tuple[float, Fix] | None = None
    for row in kinds.iter_rows(named=True):
        if row["kind"] == COMMUNICATION:
            continue
        alone = row["share_ratio"] >= _NEARLY_ALL
        fusable = row["kind"] in FUSABLE and not alone
        at_roof = 0.0 if fusable or row["reached_ratio"] is None else row["reached_ratio"]
        reach = min(row["alone_ns"], row["alone_ns"] if critical is None else critical.get(row["kind"], 0))
        saves = reach * scale * max(0.0, 1 - at_roof)
        if best is None or saves > best[0]:
            near = at_roof >= NEAR_ROOF
            advice = AT_ROOF if near else _BY_KIND.get(row["kind"], _FASTER)
            if row["kind"] in FUSABLE and alone and not near:
                several = repetitions is not None and row["dispatch_count"] > repetitions
                advice = _INTO_EACH_OTHER if several else _FASTER
            subject = row["operator"]
            known = fusable or row["reached_ratio"] is not None
            gone = round(reach * scale)
            best = saves, Fix(row["kind"], subject, round(saves) if known else None, advice, gone)
    return None if best is None else best[1]


def cost_of_class(name: str, saves_ns: int, subject: str | None, advice: str | None = None) -> Fix:
    """Advise on a class of idle time, copies or communication that saves at most `saves_ns`.

    `advice` is specific to this subject and overrides the class's advice.
    """
    if name == "launch" and subject is not None and _GRAPHS in subject:
        return Fix(None, subject, None, OF_GRAPHS)
    within = name == "copy" and subject is not None and subject.startswith("device to device")
    return Fix(None, subject, saves_ns, COPIES_WITHIN if within else advice or ADVICE.get(name))


def how_often(number: int, repetitions: int | None, each: str) -> str:
    """Format a count: `599 times`, `once`, or per repetition `16 times an iteration` (`each` is `an iteration`)."""
    many = round(number / repetitions) if repetitions else 0
    times = "once" if (many or number) == 1 else f"{many or number:,} times"
    return f"{times} {each}" if many else times


def longest_call(
    gaps: pl.DataFrame, api_calls: pl.DataFrame, repetitions: int | None = None, each: str = ""
) -> str | None:
    """Return the host call whose waits idled the device longest, with its count: `cudaStreamSynchronize, 599 times`."""
    calls = gaps.filter(pl.col("cause") == "sync").join(
        api_calls.select("call_id", "name"), left_on="host_call_id", right_on="call_id"
    )
    return longest_name(calls, repetitions, each)


def pauses_of_host(idle: pl.DataFrame, repetitions: int | None, each: str) -> str | None:
    """Return the number and mean length of pauses due to long host work: `2 pauses of 1.47 ms`.

    `idle` are rows of `idle_parts`.
    """
    long = idle.select(work=pl.col("work") + pl.col("waited_work")).filter(pl.col("work") > 0).get_column("work")
    if not len(long):
        return None
    many = round(len(long) / repetitions) if repetitions else 0
    number, length = many or len(long), int(long.sum()) / len(long)
    text = f"{number:,} pause{'' if number == 1 else 's'} of {_in_unit(length, _TIMES, 'ns')}"
    return f"{text} {each}" if many else text


def longest_copies(copies: pl.DataFrame) -> str | None:
    """Return the copy direction with the most time, and its rate: `host to device at 12.6 GB/s from pageable memory`.

    The memory type is named if all these copies use the same type.
    """
    directions = (
        copies.drop_nulls("direction")
        .group_by(pl.col("direction").cast(pl.String))
        .agg(
            time=(pl.col("end_ns") - pl.col("start_ns")).sum(),
            size=pl.col("size_bytes").sum(),
            known=pl.col("size_bytes").is_not_null().all(),
            memory=pl.when(pl.col("host_memory").n_unique() == 1).then(pl.col("host_memory").first().cast(pl.String)),
        )
        .sort("time", "direction", descending=[True, False])
    )
    if not directions.height:
        return None
    direction, time, size, known, memory = directions.row(0)
    text = direction.replace("_", " ")
    text += f" at {size / time:.3g} GB/s" if known and time and direction != "fill" else ""
    return text if memory is None else f"{text}, {'into' if direction.endswith('host') else 'from'} {memory} memory"


def copies_in_pieces(copies: pl.DataFrame, repetitions: int | None, each: str) -> str | None:
    """Return the direction of most copies with their number and size: `64 copies of 4 KiB host to device`, followed by
    `each` if there are repetitions; None if a repetition has at most one."""
    directions = (
        copies.drop_nulls(["direction", "size_bytes"])
        .group_by(pl.col("direction").cast(pl.String))
        .agg(number=pl.len(), size=pl.col("size_bytes").mean(), alike=pl.col("size_bytes").n_unique() == 1)
        .sort("number", "direction", descending=[True, False])
    )
    if not directions.height:
        return None
    direction, number, size, alike = directions.row(0)
    many = round(number / repetitions) if repetitions else number
    if many <= 1:
        return None
    average = "" if alike else " on average"
    text = f"{many:,} copies of {_in_unit(size, _SIZES, 'B')}{average} {direction.replace('_', ' ')}"
    return f"{text} {each}" if repetitions else text


def heaviest_collective(collectives: pl.DataFrame) -> str | None:
    """Return the collective with the most time and its rate: `all_reduce of 17.6 MB at 1.97 GB/s: a late rank`.

    As is customary, the rate is size over time; `collectives` has the bus bandwidth.
    """
    own = collectives.drop_nulls("name")
    if not own.height:
        return None
    operations = (
        own.group_by(pl.col("name").cast(pl.String), "size_bytes")
        .agg(
            time=pl.col("duration_ns").sum(),
            rate=pl.col("algorithm_bytes_per_s").median(),
            remark=pl.col("remark").drop_nulls().mode().sort().first(),
            ranks=pl.col("participants").max(),
        )
        .sort("time", "name", "size_bytes", descending=[True, False, False])
    )
    name, size, _, rate, remark, ranks = operations.row(0)
    text = str(name)
    text += f" of {size / 1e6:.3g} MB" if size is not None else ""
    text += f" at {rate / 1e9:.3g} GB/s" if rate is not None else ""
    if remark is None:
        return text
    lone = ", which one rank alone cannot tell" if remark == LATE_OR_BROKEN and ranks == 1 else ""
    return f"{text}: {remark}{lone}"


def subject_of_launches(kernels: int, calls: int, repetitions: int | None, per: str) -> str | None:
    """Return the number of launches: `1,500 launches`, or `per` repetition, as in `an iteration`.

    For graphs, each of whose `calls` starts many kernels, return the number of kernels: `200 kernels of graphs`.
    """
    each = round(kernels / repetitions) if repetitions else kernels
    if not each:
        return None
    text = f"{each:,} launch" + ("" if each == 1 else "es")
    if 0 < _IN_GRAPHS * calls <= kernels:
        text = f"{each:,} {_GRAPHS}"
    return f"{text} {per}" if repetitions else text


_SIZES: Final = (("GiB", 2**30), ("MiB", 2**20), ("KiB", 2**10))
_TIMES: Final = (("s", 1e9), ("ms", 1e6), ("µs", 1e3))


def _in_unit(value: float, units: tuple[tuple[str, float], ...], smallest: str) -> str:
    """Format a value with three significant digits in the largest unit that does not exceed it."""
    unit, least = next(((unit, least) for unit, least in units if value >= least), (smallest, 1))
    return f"{value / least:.3g} {unit}"


def longest_name(calls: pl.DataFrame, repetitions: int | None, each: str) -> str | None:
    """Return the name in rows (name, start_ns, end_ns) with the most time, and its count."""
    if not calls.height:
        return None
    by_name = (
        calls.group_by(pl.col("name").cast(pl.String))
        .agg(time=(pl.col("end_ns") - pl.col("start_ns")).sum(), times=pl.len())
        .sort("time", "name", descending=[True, False])
    )
    name, _, times = by_name.row(0)
    return f"{name}, {how_often(times, repetitions, each)}"


#: A label that covers at least this fraction of kernel time names the resource.
_MOST: Final = 0.5


def subject_of(
    name: str,
    window: Window,
    dispatches: pl.DataFrame,
    gaps: pl.DataFrame,
    tables: Mapping[str, pl.DataFrame],
    *,
    idle: pl.DataFrame | None,
) -> tuple[str | None, str | None]:
    """Name the subject of a class other than device time, with specific advice if there is any.

    The frames are those of the window's device; `idle` comes from `idle_parts`. The subject is None if no record names
    it.
    """
    times = window.repetitions, each_of(window.rule)
    if name == "sync":
        own = inside(gaps, window.pieces)
        return longest_call(own, tables["api_calls"], *times), None if _reads_back(own) else WAIT_LESS
    if name == "copy":
        return _copies(window, idle, tables["memory_copies"])
    if name == "communication":
        return heaviest_collective(tables["collectives"].join(dispatches, on="dispatch_id", how="semi")), None
    if name == "launch":
        calls = dispatches.drop_nulls("correlation_id").select("process_id", "correlation_id").n_unique()
        return subject_of_launches(dispatches.height, calls, *times), None
    if name == "allocation":
        return longest_name(inside(allocating(tables["api_calls"]), window.pieces), *times), None
    return None if idle is None or name != "host" else pauses_of_host(idle, *times), None


def on_critical_path(tables: Mapping[str, pl.DataFrame], dispatches: pl.DataFrame) -> dict[str, int] | None:
    """Sum the nanoseconds of `dispatches` on the critical path by kind; None without a path."""
    if tables["critical_path"].is_empty():
        return None
    on_path = tables["critical_path"].filter(
        (pl.col("activity_kind").cast(pl.String) == "dispatch") & pl.col("is_critical")
    )
    own = dispatches.join(on_path.select(dispatch_id="activity_id"), on="dispatch_id", how="semi")
    families = own.join(tables["kernels"].select("kernel_id", "family"), on="kernel_id", how="left")
    sums = families.group_by(pl.col("family").cast(pl.String)).agg((pl.col("end_ns") - pl.col("start_ns")).sum())
    found: Counter[str] = Counter()
    for family, time in sums.iter_rows():
        found[kind_of(family)] += int(time)
    return dict(found)


def kernel_name(tables: Mapping[str, pl.DataFrame], kinds: pl.DataFrame, kind: str | None) -> str | None:
    """Return the name of the kind's heaviest kernel; None if the kind has none."""
    own = kinds.filter(pl.col("kind").eq_missing(pl.lit(kind, pl.String)))
    if not own.height or own.item(0, "kernel_id") is None:
        return None
    kernel = tables["kernels"].filter(pl.col("kernel_id") == own.item(0, "kernel_id"))
    return None if not kernel.height else str(kernel.item(0, "short_name") or kernel.item(0, "name"))


def limiting_resource(dispatches: pl.DataFrame, labels: pl.DataFrame) -> str | None:
    """Return the label (from kernel_id, label) that covers at least half of kernel time; None if none does."""
    if dispatches.is_empty():
        return None
    timed = dispatches.select("kernel_id", time=pl.col("end_ns") - pl.col("start_ns")).join(
        labels, on="kernel_id", how="left"
    )
    sums = (
        timed.group_by("label")
        .agg(pl.col("time").sum())
        .sort("time", "label", descending=[True, False], nulls_last=True)
    )
    whole, (label, time) = int(sums.get_column("time").sum()), sums.row(0)
    return str(label) if label is not None and whole and time >= _MOST * whole else None


def _reads_back(gaps: pl.DataFrame) -> bool:
    """Return whether most of the wait time follows a copy, that is, whether the host waits for a result."""
    waits = gaps.filter(pl.col("cause") == "sync").select(
        time=pl.col("end_ns") - pl.col("start_ns"),
        behind_copy=(pl.col("previous_activity_kind").cast(pl.String) == "memory_copy").fill_null(False),
    )
    return 2 * int(waits.filter("behind_copy").get_column("time").sum()) >= int(waits.get_column("time").sum())


def _copies(window: Window, idle: pl.DataFrame | None, copies: pl.DataFrame) -> tuple[str | None, str | None]:
    """Return the copies with the most time, or their number if most of their share is the delay before them."""
    own = inside(copies.filter(pl.col("device_id") == window.device), window.pieces)
    copying = 0 if idle is None else int(idle.get_column("copying").sum())
    if copying > int(own.select((pl.col("end_ns") - pl.col("start_ns")).sum()).item() or 0):
        pieces = copies_in_pieces(own, window.repetitions, each_of(window.rule))
        if pieces is not None:
            return pieces, PACK
    longest = longest_copies(own)
    return longest, COPIES_BESIDE if longest is not None and longest.endswith("pinned memory") else None
