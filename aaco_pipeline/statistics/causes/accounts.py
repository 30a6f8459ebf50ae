"""Account for a session's measured steps exactly: T = kernels and copies + idle time - overlap, in nanoseconds."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt
import polars as pl

Ns = npt.NDArray[np.int64]

#: Step rule if neither iterations nor repetitions are known.
WHOLE: Final = "the whole recording"
#: Minimum number of other steps that define a typical step.
_LEAST_OTHER_STEPS: Final = 2
_TEXT: Final = pl.String


class Axis:
    """A time axis on which the steps follow each other without pauses."""

    def __init__(self, starts: Ns, ends: Ns) -> None:
        self._starts, self._ends = starts, ends
        self._before = np.concatenate([np.zeros(1, np.int64), np.cumsum(ends - starts)])
        self.length = int(self._before[-1])

    def of(self, instants: pl.Series) -> pl.Series:
        """Map instants (int64 ns) to this axis; instants between steps are moved to the nearest boundary."""
        at = instants.to_numpy()
        step = np.searchsorted(self._starts, at, side="right") - 1
        known = np.clip(step, 0, None)
        within = np.clip(at - self._starts[known], 0, (self._ends - self._starts)[known])
        return pl.Series(np.where(step < 0, 0, self._before[known] + within), dtype=pl.Int64)

    def step_of(self, instants: pl.Series) -> pl.Series:
        """Return the number of the last step that has begun; -1 before the first one."""
        return pl.Series(np.searchsorted(self._starts, instants.to_numpy(), side="right") - 1, dtype=pl.Int64)

    def holds(self, instants: pl.Series) -> pl.Series:
        """Return which instants are in a step."""
        at = instants.to_numpy()
        step = np.searchsorted(self._starts, at, side="right") - 1
        return pl.Series((step >= 0) & (at < self._ends[np.clip(step, 0, None)]), dtype=pl.Boolean)


def measured_steps(tables: Mapping[str, pl.DataFrame], activities: pl.DataFrame) -> tuple[int, str, Ns, Ns] | str:
    """Return the number of steps, their rule, and their disjoint starts and ends in order; or the reason for none.

    Steps are the measured iterations of the pass `trace`, cut at the beginning of the steady part and without a first
    one in which the recorder starts. Without iterations, they are the repetitions of the steady part; without those,
    the recording is a single step.
    """
    steady = tables["session_parts"].filter(pl.col("part").cast(_TEXT) == "steady")
    pieces = steady.select("device_id", "start_ns", "end_ns", "repetitions").sort("start_ns")
    traced = tables["iterations"].filter(
        (pl.col("pass").cast(_TEXT) == "trace") & (pl.col("phase").cast(_TEXT) == "measure")
    )
    timed = traced.drop_nulls(["start_ns", "end_ns"]).filter(pl.col("end_ns") > pl.col("start_ns")).sort("start_ns")
    if timed.height:
        starts, ends = timed.get_column("start_ns").to_numpy(), timed.get_column("end_ns").to_numpy()
        if bool((starts[1:] < ends[:-1]).any()):
            return "the measured iterations overlap one another, so that time cannot be shared out among them"
        if pieces.height:
            starts = _after_set_up(starts, int(pieces.get_column("start_ns").to_numpy().min()), activities)
        kept = ends > starts
        if not kept.any():
            return "no measured iteration lies in the steady part"
        kept[np.argmax(kept)] &= not _begins_recorder(starts[kept], activities)
        return int(kept.sum()), "measured iterations", starts[kept], ends[kept]
    known = pieces.drop_nulls("repetitions")
    if known.is_empty():
        whole = activities.select(pl.col("start_ns").min(), pl.col("end_ns").max())
        return 1, WHOLE, whole.get_column("start_ns").to_numpy(), whole.get_column("end_ns").to_numpy()
    known = known.filter(pl.col("device_id") == known.item(0, "device_id"))
    bounds = known.get_column("start_ns").to_numpy(), known.get_column("end_ns").to_numpy()
    return int(known.item(0, "repetitions")), "repetitions of the steady part", *bounds


def _after_set_up(starts: Ns, steady_ns: int, activities: pl.DataFrame) -> Ns:
    """Return the steps' starts without the device set-up before the steady part.

    A step in which the device had done nothing yet stays complete: the time to its first kernel is part of it.
    """
    began = activities.get_column("start_ns").to_numpy()
    early = np.sort(began[began < steady_ns])
    worked = np.searchsorted(early, starts) < len(early)
    return np.where(worked, np.maximum(starts, steady_ns), starts)


def _begins_recorder(starts: Ns, activities: pl.DataFrame) -> bool:
    """Return whether the recorder starts in the first step.

    The time to its first kernel is then more than twice as long as in each of at least two other steps.
    """
    if len(starts) <= _LEAST_OTHER_STEPS:
        return False
    ran = activities.sort("start_ns")
    began, reached = ran.get_column("start_ns").to_numpy(), ran.get_column("end_ns").cum_max().to_numpy()
    at = np.searchsorted(began, starts)
    idle = (at == 0) | (reached[np.clip(at - 1, 0, None)] <= starts)
    to_first = np.where(at < len(began), began[np.clip(at, None, len(began) - 1)] - starts, np.iinfo(np.int64).max // 2)
    # The time is unknown if the device is still working on the previous step.
    others = to_first[1:][idle[1:]]
    return bool(idle[0] and len(others) >= _LEAST_OTHER_STEPS and to_first[0] > 2 * others.max())


_WAITING: Final = r"^(?:hip|cuda|cu)(?:Device|Ctx|Thread|Stream|Event)Synchronize"
_RUNTIME: Final = r"^(?:hip|cuda|cu|hsa_)[A-Z_a-z]"
_CALLS: Final = {"name": pl.String(), "count": pl.Int64(), "busy_ns": pl.Int64()}


def on_the_host(calls: pl.DataFrame, inside: Axis) -> tuple[int | None, int | None, pl.DataFrame]:
    """The launching thread's time in the steps outside device waits, its number of waits, and runtime calls.

    The calls (name, count, busy_ns in the steps) are the device runtime's on every thread, because frameworks launch
    from several threads. Without a launch the thread is unknown: None, None and no calls.
    """
    name = pl.col("name").cast(_TEXT)
    launching = calls.filter(name.str.contains("(?i)launch"))
    if launching.is_empty():
        return None, None, pl.DataFrame(schema=_CALLS)
    thread = launching.group_by("process_id", "thread_id").len().sort("len", "process_id", descending=[True, False])
    own = calls.join(thread.head(1), on=("process_id", "thread_id"), nulls_equal=True).sort("start_ns")
    own = own.with_columns(
        name=name, at_ns=inside.of(own.get_column("start_ns")), until_ns=inside.of(own.get_column("end_ns"))
    )
    waiting = own.filter(pl.col("name").str.contains(_WAITING))
    reached = waiting.get_column("until_ns").cum_max().shift(1, fill_value=0)
    began = pl.select(pl.max_horizontal(waiting.get_column("at_ns"), reached)).to_series()
    waited = int((waiting.get_column("until_ns") - began).clip(0).sum())
    of_runtime = calls.filter(name.str.contains(_RUNTIME) & inside.holds(calls.get_column("start_ns")))
    took = inside.of(of_runtime.get_column("end_ns")) - inside.of(of_runtime.get_column("start_ns"))
    counted = (
        of_runtime.with_columns(name=name, took=took)
        .group_by("name")
        .agg(count=pl.len().cast(pl.Int64), busy_ns=pl.col("took").sum())
    )
    waits = waiting.filter(pl.col("until_ns") > pl.col("at_ns")).height
    return inside.length - waited, waits, counted.sort("name")


Tables = Mapping[str, pl.DataFrame]

#: The tables of an account; they may be empty.
ACCOUNTED_FROM: Final = (
    *("iterations", "session_parts", "dispatches", "kernels", "memory_copies", "gaps", "operator_kernels"),
    *("model_nodes", "api_calls", "operator_inputs", "gpu_samples", "bottlenecks"),
)
KERNEL: Final = "kernel"
COMMUNICATION: Final = "communication"
COPY: Final = "copy"
#: Idle time at the ends of the steps, before the first and after the last activity.
AT_THE_ENDS: Final = "ends_of_steps"
UNKNOWN: Final = "unknown"
SYNC: Final = "sync"
HOST_WAIT: Final = "host_wait"
#: Host work after a wait up to this length belongs to the next launch.
_LAUNCH_PACE_NS: Final = 30_000
#: Key of a group: a kernel and its launch shape.
GROUP: Final = ("category", "name", "launch")
#: Families whose speed follows the engine clock; used for kernels without a bottleneck label.
_COMPUTING: Final = ("gemm", "attention", "conv", "linear attention")
_GRAPH_LAUNCH: Final = r"(?i)graphlaunch"


@dataclass(frozen=True)
class Account:
    """Measured steps of one session, in ns over all steps.

    `time_ns` = sum of `groups`.busy_ns + sum of `idle`.idle_ns - `overlap_ns`, exactly.
    `groups`: category (kernel, communication, copy), name, launch (its shape), short_name, family, library, dtype,
    tile, compute_ratio (1 when the speed follows the engine clock, 0 for the memory's), count, busy_ns (clipped to the
    steps).
    `idle`: category, name, launch of the activity that ended it (null at the ends), cause, idle_ns.
    `sites`: operator, outermost_operator, name, count, busy_ns: the kernels of each known operator.
    `inputs`: operator, shapes, types, count: the calls of operators that ran kernels, by their inputs.
    `order`: the names of each step's kernels in the order in which they began.
    `host_ns` is the launching thread's time outside waits for the device and `waits` its number of waits; both null
    without host calls. `calls`: name, count, busy_ns of all threads' calls of the device's runtime. `copies`:
    direction, host_memory, count, busy_ns of copies with known host memory. `graph_ratio` is the share of dispatches
    that a graph replayed. `latency_ns` is the median iteration of the pass without a profiler, or null.
    """

    steps: int
    rule: str
    device_id: int
    time_ns: int
    overlap_ns: int
    groups: pl.DataFrame
    idle: pl.DataFrame
    sites: pl.DataFrame
    inputs: pl.DataFrame
    order: tuple[tuple[str, ...], ...]
    host_ns: int | None
    waits: int | None
    calls: pl.DataFrame
    copies: pl.DataFrame
    graph_ratio: float | None
    clock_mhz: float | None
    latency_ns: float | None

    @property
    def busy_ns(self) -> int:
        """The union of all activities in the steps."""
        return int(self.groups.get_column("busy_ns").sum()) - self.overlap_ns


def account(tables: Tables) -> Account | str:
    """Return the account of a session from its tables (`ACCOUNTED_FROM`), or the reason why there is none.

    Activities are clipped to the steps (`measured_steps`). Dispatches nested in others are part of them.
    """
    activities = _activities(tables)
    if activities.is_empty():
        return "no kernel or copy with times was recorded"
    found = measured_steps(tables, activities)
    if isinstance(found, str):
        return found
    steps, rule, starts, ends = found
    inside = Axis(starts, ends)
    activities = activities.with_columns(
        at_ns=inside.of(activities.get_column("start_ns")), until_ns=inside.of(activities.get_column("end_ns"))
    )
    ran = activities.filter((pl.col("until_ns") > pl.col("at_ns")) | inside.holds(activities.get_column("start_ns")))
    if ran.is_empty():
        return "no kernel or copy ran in the measured steps"
    time = pl.col("until_ns") - pl.col("at_ns")
    device = int(
        ran.group_by("device_id").agg(time=time.sum()).sort("time", "device_id", descending=[True, False]).item(0, 0)
    )
    own = ran.filter(pl.col("device_id") == device).sort("at_ns", "until_ns", "activity_kind", "activity_id")
    reached = own.get_column("until_ns").cum_max()
    before = reached.shift(1, fill_value=0)
    union = int((reached - pl.select(pl.max_horizontal(before, own.get_column("at_ns"))).to_series()).clip(0).sum())
    groups = own.group_by(GROUP).agg(
        pl.col("short_name", "family", "library", "dtype", "tile", "compute_ratio").first(),
        count=pl.len().cast(pl.Int64),
        busy_ns=time.sum(),
    )
    host, waits, calls = on_the_host(tables["api_calls"], inside)
    sites = _sites(tables, groups)
    return Account(
        steps=steps,
        rule=rule,
        device_id=device,
        time_ns=inside.length,
        overlap_ns=int(groups.get_column("busy_ns").sum()) - union,
        groups=groups.sort("busy_ns", *GROUP, descending=[True, False, False, False]),
        idle=_idle(tables, own, inside, union, device),
        sites=sites,
        inputs=_inputs(tables, inside, sites),
        order=_order(own, inside, -(-steps // len(starts))),
        host_ns=host,
        waits=waits,
        calls=calls,
        copies=own.drop_nulls("host_memory")
        .group_by("host_memory", direction="name")
        .agg(count=pl.len().cast(pl.Int64), busy_ns=time.sum())
        .sort("direction", "host_memory"),
        graph_ratio=_graph_ratio(own, tables["api_calls"]),
        clock_mhz=_clock(tables["gpu_samples"], inside, device),
        latency_ns=_latency(tables["iterations"]),
    )


def _activities(tables: Tables) -> pl.DataFrame:
    """Kernels and copies with times, with their group; nested dispatches are omitted."""
    kernels = tables["kernels"].select(
        "kernel_id", *(pl.col(one).cast(_TEXT) for one in ("name", "short_name", "family", "library", "dtype", "tile"))
    )
    kernels = kernels.join(_compute_ratios(tables["bottlenecks"]), on="kernel_id", how="left").with_columns(
        pl.col("compute_ratio").fill_null(
            pl.when(pl.col("family").is_in(_COMPUTING))
            .then(1.0)
            .when(pl.col("family").is_null())
            .then(0.5)
            .otherwise(0)
        )
    )
    launch = pl.concat_str(
        pl.col("grid_work_items").cast(_TEXT), pl.lit("/"), pl.col("workgroup_work_items").cast(_TEXT)
    )
    ran = (
        tables["dispatches"]
        .filter(pl.col("parent_dispatch_id").is_null() & (pl.col("end_ns") >= pl.col("start_ns")))
        .join(kernels, on="kernel_id")
        .select(
            pl.lit("dispatch").alias("activity_kind"),
            pl.col("dispatch_id").alias("activity_id"),
            "device_id",
            "start_ns",
            "end_ns",
            "correlation_id",
            "graph_node_id",
            pl.when(pl.col("family") == "comm").then(pl.lit(COMMUNICATION)).otherwise(pl.lit(KERNEL)).alias("category"),
            "name",
            launch.fill_null("").alias("launch"),
            *("short_name", "family", "library", "dtype", "tile", "compute_ratio"),
        )
    )
    direction = pl.col("direction").cast(_TEXT).fill_null("copy of unknown direction")
    moved = (
        tables["memory_copies"]
        .filter(pl.col("device_id").is_not_null() & (pl.col("end_ns") >= pl.col("start_ns")))
        .select(
            pl.lit("memory_copy").alias("activity_kind"),
            pl.col("copy_id").alias("activity_id"),
            "device_id",
            "start_ns",
            "end_ns",
            pl.lit(COPY).alias("category"),
            direction.alias("name"),
            pl.col("size_bytes").cast(_TEXT).fill_null("").alias("launch"),
            direction.alias("short_name"),
            pl.col("host_memory").cast(_TEXT),
        )
    )
    return pl.concat([ran, moved], how="diagonal_relaxed")


def _compute_ratios(bottlenecks: pl.DataFrame) -> pl.DataFrame:
    """compute_ratio of each kernel with a bottleneck label: 1 for compute, 0 for memory."""
    label = pl.col("label").cast(_TEXT)
    ratio = pl.when(label.str.starts_with("compute")).then(1.0).when(label.str.starts_with("memory")).then(0.0)
    labelled = bottlenecks.filter(pl.col("scope").cast(_TEXT) == "kernel")
    return labelled.select("kernel_id", compute_ratio=ratio).drop_nulls().unique("kernel_id")


def _order(own: pl.DataFrame, inside: Axis, repeated: int) -> tuple[tuple[str, ...], ...]:
    """Kernels of each step; in an interval with several repetitions, their number is divided among these."""
    kernels = own.filter(pl.col("category") != COPY)
    kernels = kernels.with_columns(step=inside.step_of(kernels.get_column("start_ns")))
    repetition = pl.int_range(pl.len()).over("step") * repeated // pl.len().over("step")
    steps = kernels.group_by(pl.col("step") * repeated + repetition, maintain_order=True).agg("name")
    return tuple(map(tuple, steps.get_column("name").to_list()))


def _causes_of_idle(tables: Tables, device: int) -> pl.DataFrame:
    """The device's gaps by cause: start_ns, end_ns, cause, and the activity_kind and activity_id that ended them.

    A wait explains a gap until it returns, including the next launch; longer host work after it is `HOST_WAIT`.
    """
    own = tables["gaps"].filter(pl.col("device_id") == device)
    returned = tables["api_calls"].select(host_call_id="call_id", returned_ns="end_ns")
    cause = pl.when(pl.col("doubt").is_null()).then(pl.col("cause").cast(_TEXT)).otherwise(pl.lit(UNKNOWN))
    during = own.join(returned, on="host_call_id", how="left").select(
        "start_ns",
        "end_ns",
        cause=cause,
        activity_kind=pl.col("next_activity_kind").cast(_TEXT),
        activity_id="next_activity_id",
        until_ns=pl.when(cause == SYNC).then(pl.max_horizontal("start_ns", "returned_ns") + _LAUNCH_PACE_NS),
    )
    until = pl.min_horizontal("end_ns", pl.col("until_ns").fill_null(pl.col("end_ns")))
    after = during.with_columns(start_ns=until, cause=pl.lit(HOST_WAIT)).filter(pl.col("start_ns") < pl.col("end_ns"))
    return pl.concat([during.with_columns(end_ns=until), after]).drop("until_ns")


def _idle(tables: Tables, own: pl.DataFrame, inside: Axis, union: int, device: int) -> pl.DataFrame:
    """Idle time by its cause and by the activity that ended it; time outside all gaps is unknown."""
    mapped = _causes_of_idle(tables, device)
    mapped = mapped.with_columns(
        idle_ns=inside.of(mapped.get_column("end_ns")) - inside.of(mapped.get_column("start_ns"))
    )
    owned = (
        mapped.filter(pl.col("idle_ns") > 0)
        .join(own.select("activity_kind", "activity_id", *GROUP), on=("activity_kind", "activity_id"), how="left")
        .group_by(*GROUP, "cause")
        .agg(pl.col("idle_ns").sum())
    )
    known = int(owned.get_column("idle_ns").sum())
    # Gaps are between a device's first and last activity, so they exclude the ends of the steps.
    idle = inside.length - union
    first, last = int(own.get_column("at_ns")[0]), int(own.get_column("until_ns").to_numpy().max())
    at_the_ends = max(0, min(idle - known, first + inside.length - last))
    rest = pl.DataFrame(
        {"cause": [AT_THE_ENDS, UNKNOWN], "idle_ns": [at_the_ends, idle - known - at_the_ends]},
        schema_overrides={"idle_ns": pl.Int64},
    )
    both = pl.concat([owned, rest.filter(pl.col("idle_ns") != 0)], how="diagonal_relaxed")
    return both.group_by(*GROUP, "cause").agg(pl.col("idle_ns").sum()).sort(*GROUP, "cause")


def _sites(tables: Tables, groups: pl.DataFrame) -> pl.DataFrame:
    """The kernels of each operator in the steps, by the model's node or the framework's name.

    The attribution covers the complete recording; a kernel's dispatches in the steps are divided in the same ratio.
    """
    names = tables["kernels"].select("kernel_id", pl.col("name").cast(_TEXT))
    nodes = tables["model_nodes"].select("node_id", node=pl.col("name").cast(_TEXT))
    known = (
        tables["operator_kernels"]
        .filter(pl.col("match").cast(_TEXT) != "unattributed")
        .join(nodes, on="node_id", how="left")
        .with_columns(operator=pl.coalesce("node", pl.col("operator").cast(_TEXT)))
        .drop_nulls("operator")
        .with_columns(outermost_operator=pl.coalesce(pl.col("outermost_operator").cast(_TEXT), "operator"))
        .join(names, on="kernel_id")
        .group_by("operator", "outermost_operator", "name")
        .agg(pl.col("dispatch_count").sum(), pl.col("total_ns").sum())
    )
    everywhere = tables["operator_kernels"].join(names, on="kernel_id").group_by("name")
    whole = everywhere.agg(all_count=pl.col("dispatch_count").sum(), all_ns=pl.col("total_ns").sum())
    inside = groups.filter(pl.col("category") != COPY).group_by("name").agg(pl.col("count", "busy_ns").sum())
    share, share_ns = (pl.col(a) / pl.col(b) for a, b in (("dispatch_count", "all_count"), ("total_ns", "all_ns")))
    return (
        known.join(whole, on="name")
        .join(inside, on="name")
        .select(
            "operator",
            "outermost_operator",
            "name",
            count=pl.col("count") * share,
            busy_ns=(pl.col("busy_ns") * share_ns).fill_nan(0.0),
        )
        .sort("operator", "outermost_operator", "name")
    )


def _inputs(tables: Tables, inside: Axis, sites: pl.DataFrame) -> pl.DataFrame:
    """Number of calls in the steps for each operator that ran kernels, by shapes and types of its inputs."""
    began = tables["api_calls"].filter(inside.holds(tables["api_calls"].get_column("start_ns"))).select("call_id")
    stated = [pl.col(one).cast(_TEXT) for one in ("operator", "shapes", "types")]
    own = tables["operator_inputs"].join(began, on="call_id", how="semi").select(stated)
    own = own.join(sites.select("operator"), on="operator", how="semi")
    return own.group_by("operator", "shapes", "types").agg(count=pl.len().cast(pl.Int64)).sort(pl.all())


def _graph_ratio(own: pl.DataFrame, calls: pl.DataFrame) -> float | None:
    """Fraction of dispatches that a graph replayed, from their graph node or their launch call."""
    kernels = own.filter(pl.col("activity_kind") == "dispatch")
    if kernels.is_empty():
        return None
    launches = calls.filter(pl.col("name").cast(_TEXT).str.contains(_GRAPH_LAUNCH)).get_column("correlation_id")
    replayed = pl.col("graph_node_id").fill_null(0) > 0
    replayed |= pl.col("correlation_id").is_in(launches.drop_nulls().implode()).fill_null(False)
    return float(kernels.select(replayed.mean()).item())


def _clock(samples: pl.DataFrame, inside: Axis, device: int) -> float | None:
    """Mean engine clock in the steps; None without samples."""
    inside_steps = samples.filter(inside.holds(samples.get_column("time_ns")))
    own = inside_steps.filter(pl.col("device_id") == device).get_column("gfx_clock_mhz")
    return None if own.drop_nulls().is_empty() else float(own.drop_nulls().to_numpy().mean())


def _latency(iterations: pl.DataFrame) -> float | None:
    """The median measured iteration without a profiler, in ns."""
    measured = (pl.col("pass").cast(_TEXT) == "latency") & (pl.col("phase").cast(_TEXT) == "measure")
    values = iterations.filter(measured).get_column("latency_ns").drop_nulls()
    return None if values.is_empty() else float(np.median(values.to_numpy()))
