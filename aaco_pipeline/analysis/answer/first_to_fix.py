"""The first thing to fix, what it saves at most, and the call, copy, collective or kernel to name.

How savings are bounded by what must remain is `savings`.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

import polars as pl

from aaco_pipeline.analysis.answer.kinds import COMMUNICATION, FUSABLE, GLUE, kind_of
from aaco_pipeline.analysis.answer.terms import AT_ROOF, PACK, allocating, each_of
from aaco_pipeline.analysis.answer.window import Window, inside
from aaco_pipeline.analysis.timeline.collectives import LATE_OR_BROKEN

#: What to do about a class of time that is not the device's own.
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
#: What to do about waits for kernels, of which nothing is read back.
WAIT_LESS: Final = "Wait for the device less often"
#: What to do about copies that are from pinned memory already.
COPIES_BESIDE: Final = "Copy less, or in a stream of their own while kernels run"
#: What to do about copies that stay on the device.
COPIES_WITHIN: Final = "Avoid the copies within the device, or fuse them into the kernels beside them"
#: What to do about launches that graphs make: nothing bounds what fused kernels need.
OF_GRAPHS: Final = "Fuse the graph's kernels, for one launch starts them all already"
_GRAPHS: Final = "kernels of graphs"
#: What to do about kinds of work that are not near their roof.
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
#: From this share of a roof on there is little left to tune.
NEAR_ROOF: Final = 0.8
#: Where a call starts at least so many kernels, graphs start them.
_IN_GRAPHS: Final = 2
#: What to do about kernels that have none but their own kind to be fused with.
_INTO_EACH_OTHER: Final = "Fuse these kernels into one another"
#: A kind that takes at least this part of the kernels' time has no neighbours to be fused into.
_NEARLY_ALL: Final = 0.9


@dataclass(frozen=True)
class Fix:
    """`kind` only where kernels are to be fixed; `saves_at_most_ns` of the window, None where no roof bounds it.

    `gone_ns` is what it would save if it went altogether, `saves_unprofiled_ns` what is saved of a repetition as it
    runs without a profiler, None where that is not known.
    """

    kind: str | None
    subject: str | None
    saves_at_most_ns: int | None
    advice: str | None
    gone_ns: int = 0
    saves_unprofiled_ns: int | None = None


def kind_to_fix(
    kinds: pl.DataFrame, critical: Mapping[str, int] | None, scale: float, repetitions: int | None = None
) -> Fix | None:
    """The kind of work whose going, or reaching its roof, saves most; None without kinds.

    A kind saves no more than the time in which nothing else ran (`alone_ns`) and no more than its time on the critical
    path (`critical`, ns by kind, None where there is no path). What streams can be fused away whole where there are
    other kernels to fuse it into, and into itself where a repetition has several; anything else keeps the time it needs
    at its roof, and without one nothing bounds what can be saved of it. `scale` maps kernel time onto the
    window's. Of equals the longer one.
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
    """What to do about a class of idle time, of copies or of communication, which saves at most `saves_ns`.

    `advice` is one for this subject, before the class's.
    """
    if name == "launch" and subject is not None and _GRAPHS in subject:
        return Fix(None, subject, None, OF_GRAPHS)
    within = name == "copy" and subject is not None and subject.startswith("device to device")
    return Fix(None, subject, saves_ns, COPIES_WITHIN if within else advice or ADVICE.get(name))


def how_often(number: int, repetitions: int | None, each: str) -> str:
    """`599 times`, `once`, or of repetitions `16 times an iteration` by `each`, such as `an iteration`."""
    many = round(number / repetitions) if repetitions else 0
    times = "once" if (many or number) == 1 else f"{many or number:,} times"
    return f"{times} {each}" if many else times


def longest_call(
    gaps: pl.DataFrame, api_calls: pl.DataFrame, repetitions: int | None = None, each: str = ""
) -> str | None:
    """The host call by whose waits the device was idle longest, with how often: `cudaStreamSynchronize, 599 times`."""
    calls = gaps.filter(pl.col("cause") == "sync").join(
        api_calls.select("call_id", "name"), left_on="host_call_id", right_on="call_id"
    )
    return longest_name(calls, repetitions, each)


def pauses_of_host(idle: pl.DataFrame, repetitions: int | None, each: str) -> str | None:
    """How often the device is idle by the host's long work, and how long on average: `2 pauses of 1.47 ms`.

    `idle` are rows of `idle_parts`.
    """
    long = idle.select(work=pl.col("work") + pl.col("waited_work")).filter(pl.col("work") > 0).get_column("work")
    if not len(long):
        return None
    many = round(len(long) / repetitions) if repetitions else 0
    number, length = many or len(long), int(long.sum()) / len(long)
    text = f"{number:,} pause{'' if number == 1 else 's'} of {_time(length)}"
    return f"{text} {each}" if many else text


def longest_copies(copies: pl.DataFrame) -> str | None:
    """The direction of copies that took most time, with its rate: `host to device at 12.6 GB/s from pageable memory`.

    Whose memory is said where it is the same of all of them.
    """
    told = (
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
    if not told.height:
        return None
    direction, time, size, known, memory = told.row(0)
    text = direction.replace("_", " ")
    text += f" at {size / time:.3g} GB/s" if known and time and direction != "fill" else ""
    return text if memory is None else f"{text}, {'into' if direction.endswith('host') else 'from'} {memory} memory"


def copies_in_pieces(copies: pl.DataFrame, repetitions: int | None, each: str) -> str | None:
    """The direction in which most copies go, with how many and how large: `64 copies of 4 KiB host to device`, and
    behind it `each`, such as `an iteration`, where there are repetitions; None where there is one of each at most."""
    told = (
        copies.drop_nulls(["direction", "size_bytes"])
        .group_by(pl.col("direction").cast(pl.String))
        .agg(number=pl.len(), size=pl.col("size_bytes").mean(), alike=pl.col("size_bytes").n_unique() == 1)
        .sort("number", "direction", descending=[True, False])
    )
    if not told.height:
        return None
    direction, number, size, alike = told.row(0)
    many = round(number / repetitions) if repetitions else number
    if many <= 1:
        return None
    text = f"{many:,} copies of {_bytes(size)}{'' if alike else ' on average'} {direction.replace('_', ' ')}"
    return f"{text} {each}" if repetitions else text


def heaviest_collective(collectives: pl.DataFrame) -> str | None:
    """The collective that took most time, with what its rate says: `all_reduce of 17.6 MB at 1.97 GB/s: a late rank`.

    The rate is its size over its time, as people divide; the bus bandwidth stands in `collectives`.
    """
    own = collectives.drop_nulls("name")
    if not own.height:
        return None
    told = (
        own.group_by(pl.col("name").cast(pl.String), "size_bytes")
        .agg(
            time=pl.col("duration_ns").sum(),
            rate=pl.col("algorithm_bytes_per_s").median(),
            remark=pl.col("remark").drop_nulls().mode().sort().first(),
            ranks=pl.col("participants").max(),
        )
        .sort("time", "name", "size_bytes", descending=[True, False, False])
    )
    name, size, _, rate, remark, ranks = told.row(0)
    text = str(name)
    text += f" of {size / 1e6:.3g} MB" if size is not None else ""
    text += f" at {rate / 1e9:.3g} GB/s" if rate is not None else ""
    if remark is None:
        return text
    return f"{text}: {remark}" + (
        ", which one rank alone cannot tell" if remark == LATE_OR_BROKEN and ranks == 1 else ""
    )


def subject_of_launches(kernels: int, calls: int, repetitions: int | None, per: str) -> str | None:
    """How many launches there are: `1,500 launches`, where there are any repetitions `per` one, as `an iteration`.

    Of graphs, whose `calls` start many kernels each, how many kernels: `200 kernels of graphs`.
    """
    each = round(kernels / repetitions) if repetitions else kernels
    if not each:
        return None
    text = f"{each:,} launch" + ("" if each == 1 else "es")
    if 0 < _IN_GRAPHS * calls <= kernels:
        text = f"{each:,} {_GRAPHS}"
    return f"{text} {per}" if repetitions else text


# ---- inside ----------------------------------------------------------------------------------------------------------


def _bytes(size: float) -> str:
    """A size with three significant digits, in binary units."""
    unit, least = next(
        ((unit, least) for unit, least in (("GiB", 2**30), ("MiB", 2**20), ("KiB", 2**10)) if size >= least), ("B", 1)
    )
    return f"{size / least:.3g} {unit}"


def _time(ns: float) -> str:
    """A time with three significant digits, in the unit that a person would choose."""
    unit, least = next(
        ((unit, least) for unit, least in (("s", 1e9), ("ms", 1e6), ("µs", 1e3)) if ns >= least), ("ns", 1)
    )
    return f"{ns / least:.3g} {unit}"


def longest_name(calls: pl.DataFrame, repetitions: int | None, each: str) -> str | None:
    """The name of rows (name, start_ns, end_ns) that takes most time, with how often it is there."""
    if not calls.height:
        return None
    told = (
        calls.group_by(pl.col("name").cast(pl.String))
        .agg(time=(pl.col("end_ns") - pl.col("start_ns")).sum(), times=pl.len())
        .sort("time", "name", descending=[True, False])
    )
    name, _, times = told.row(0)
    return f"{name}, {how_often(times, repetitions, each)}"


#: A label that covers at least this much of the kernels' time names the resource.
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
    """What the class `name`, no device's own time, is to be fixed by, and advice on that, where it has one of its own.

    The frames are those of the window's device, `idle` as `idle_parts` gives it. None where nothing recorded names it.
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
    """Per kind the nanoseconds of `dispatches` on the critical path; None where there is no path."""
    if tables["critical_path"].is_empty():
        return None
    on_path = tables["critical_path"].filter(
        (pl.col("activity_kind").cast(pl.String) == "dispatch") & pl.col("is_critical")
    )
    own = dispatches.join(on_path.select(dispatch_id="activity_id"), on="dispatch_id", how="semi")
    families = own.join(tables["kernels"].select("kernel_id", "family"), on="kernel_id", how="left")
    sums = families.group_by(pl.col("family").cast(pl.String)).agg((pl.col("end_ns") - pl.col("start_ns")).sum())
    found: dict[str, int] = {}
    for family, time in sums.iter_rows():
        found[kind_of(family)] = found.get(kind_of(family), 0) + int(time)
    return found


def kernel_name(tables: Mapping[str, pl.DataFrame], kinds: pl.DataFrame, kind: str | None) -> str | None:
    """The name of the kind's heaviest kernel; None where the kind has none."""
    own = kinds.filter(pl.col("kind").eq_missing(pl.lit(kind, pl.String)))
    if not own.height or own.item(0, "kernel_id") is None:
        return None
    kernel = tables["kernels"].filter(pl.col("kernel_id") == own.item(0, "kernel_id"))
    return None if not kernel.height else str(kernel.item(0, "short_name") or kernel.item(0, "name"))


def limiting_resource(dispatches: pl.DataFrame, labels: pl.DataFrame) -> str | None:
    """The label of kernels (kernel_id, label) that holds at least half of their time; None where none does."""
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


# ---- inside ----------------------------------------------------------------------------------------------------------


def _reads_back(gaps: pl.DataFrame) -> bool:
    """Whether most of the waits' time lies behind a copy: then it is a result that the host waits for."""
    waits = gaps.filter(pl.col("cause") == "sync").select(
        time=pl.col("end_ns") - pl.col("start_ns"),
        behind_copy=(pl.col("previous_activity_kind").cast(pl.String) == "memory_copy").fill_null(False),
    )
    return 2 * int(waits.filter("behind_copy").get_column("time").sum()) >= int(waits.get_column("time").sum())


def _copies(window: Window, idle: pl.DataFrame | None, copies: pl.DataFrame) -> tuple[str | None, str | None]:
    """The copies that take most time, or how many there are where most of their share is the way to them."""
    own = inside(copies.filter(pl.col("device_id") == window.device), window.pieces)
    copying = 0 if idle is None else int(idle.get_column("copying").sum())
    if copying > int(own.select((pl.col("end_ns") - pl.col("start_ns")).sum()).item() or 0):
        pieces = copies_in_pieces(own, window.repetitions, each_of(window.rule))
        if pieces is not None:
            return pieces, PACK
    told = longest_copies(own)
    return told, COPIES_BESIDE if told is not None and told.endswith("pinned memory") else None
