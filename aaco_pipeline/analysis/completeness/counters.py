"""Impossible, summed or incomplete counter values, and incomplete thread traces."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Final

import polars as pl

from aaco_pipeline.analysis.completeness.findings import FROM_COUNTERS, Finding, counted, of_total
from aaco_pipeline.hardware.counters import TRAITS, family_of
from aaco_pipeline.lake.evidence import Evidence

_WAVES: Final = ("SQ_WAVES", "SQ_WAVES_sum")
_CYCLES: Final = ("GRBM_GUI_ACTIVE", "GRBM_GUI_ACTIVE_PER_XCD", "GRBM_GUI_ACTIVE_sum")
#: A wavefront count may be off by this number, or by this fraction.
_JITTER_WAVES: Final = 8.0
_JITTER: Final = 0.01
#: Time available to a dispatch without neighbours.
_ALONE_NS: Final = 3_600 * 10**9
#: A device may exceed its documented clock by this factor.
_ABOVE_CLOCK: Final = 1.1
_SETTING: Final = ("iteration_multiplexing", "spatial_multiplexing")
_UNSET: Final = ("", "none", "null", "false")
_IMPOSSIBLE: Final = "counters_impossible"
_SUMMED: Final = "counters_summed"
#: Findings whose counter values must not be used in any figure.
UNTRUSTED: Final = (_IMPOSSIBLE, _SUMMED)


def judged(counters: pl.DataFrame, dispatches: pl.DataFrame, devices: pl.DataFrame) -> pl.DataFrame:
    """Check the counter values that can be verified.

    Columns: dispatch_id, device_id, counter, pass, value, expected, verdict (`counters_summed`, `counters_impossible`
    or null), times (the number of passes for summed ones).
    """
    return pl.concat([_waves(counters, dispatches, devices), _cycles(counters, dispatches, devices)]).sort(
        "device_id", "pass", "counter", "dispatch_id"
    )


def trusted(counters: pl.DataFrame, dispatches: pl.DataFrame, devices: pl.DataFrame) -> pl.DataFrame:
    """Drop summed values, and all values of a dispatch and pass with an impossible one: one error may affect all."""
    odd = judged(counters, dispatches, devices).drop_nulls("verdict")
    if not odd.height:
        return counters
    summed = odd.filter(pl.col("verdict") == _SUMMED).select("pass").unique()
    single = odd.select("dispatch_id", "pass").unique()
    return counters.join(summed, on="pass", how="anti", maintain_order="left").join(
        single, on=["dispatch_id", "pass"], how="anti", maintain_order="left"
    )


def of_values(checked: pl.DataFrame) -> Iterator[Finding]:
    """Find passes with summed or impossible values."""
    for (device, name), own in checked.group_by("device_id", "pass", maintain_order=True):
        odd = own.drop_nulls("verdict")
        if not odd.height:
            continue
        verdict, counter = odd.item(0, "verdict"), odd.item(0, "counter")
        row = odd.row(0, named=True)
        subject = f"{counter} in pass {name}"
        if verdict == _SUMMED:
            times = int(row["times"])
            evidence = (
                f"{of_total(odd.height, own.height)} dispatches count {times} times the wavefronts that they launched "
                f"(dispatch {row['dispatch_id']}: {row['value']:,.0f} for {row['expected']:,.0f}): the values of "
                f"{times} replays were added up."
            )
            mend = (
                "one group of counters a run (no kernel replay), or a release that keeps replays apart "
                "(ROCm/rocm-systems PR 11422): {counters}"
            )
        else:
            evidence = (
                f"{of_total(odd.height, own.height)} dispatches count what cannot be (dispatch {row['dispatch_id']}: "
                f"{row['value']:,.0f} where {row['expected']:,.0f} {_LIMIT[counter in _WAVES]})."
            )
            mend = "count again, alone on the device and serialized: {cycles}"
        yield Finding(
            verdict, "fault", subject, evidence, mend, device_id=device, records=odd.height, voids=FROM_COUNTERS
        )


def of_coverage(
    counters: pl.DataFrame, dispatches: pl.DataFrame, devices: pl.DataFrame, environment: pl.DataFrame
) -> Iterator[Finding]:
    """Find counters multiplexed over executions, and missing cycle counts on devices with several XCDs."""
    yield from _multiplexed(counters, dispatches, environment)
    names = set(counters.get_column("counter").unique()) if counters.height else set()
    several = devices.filter(pl.col("xcc_count") > 1)
    used = several.join(
        dispatches.join(counters.select("dispatch_id").unique(), on="dispatch_id", how="semi"),
        on="device_id",
        how="semi",
    )
    if used.height and names and not names & set(_CYCLES):
        row = used.row(0, named=True)
        yield Finding(
            "xcd_shares_missing",
            "bound",
            f"device {row['device_id']}",
            f"{len(names):,} counters were read on a device of {row['xcc_count']} XCDs, and none of the cycles that "
            "each XCD was active (GRBM_GUI_ACTIVE, GRBM_GUI_ACTIVE_PER_XCD): no figure per cycle can be made.",
            "count each XCD's cycles, and state the partition mode (rocm-smi --showcomputepartition): {cycles}",
            device_id=row["device_id"],
            voids=("occupancy.achieved_ratio",),
        )


def _multiplexed(counters: pl.DataFrame, dispatches: pl.DataFrame, environment: pl.DataFrame) -> Iterator[Finding]:
    stated = environment.filter(
        (pl.col("category") == "profiler")
        & pl.col("key").is_in(_SETTING)
        & ~pl.col("value").fill_null("").str.to_lowercase().is_in(_UNSET)
    ).sort("key")
    mend = "profile without multiplexing (no --iteration-multiplexing), a run for each group of counters: {counters}"
    spread = ("counter_metrics.min", "counter_metrics.max")
    if stated.height:
        setting = f"{stated.item(0, 'key')}: {stated.item(0, 'value')}"
        yield Finding(
            "counters_multiplexed",
            "bound",
            "counters",
            f"the profiler says {setting}: each dispatch counted one group of the "
            f"{counters.get_column('counter').n_unique()} counters, and values of the others are imputed from other "
            "executions.",
            mend,
            voids=spread,
        )
        return
    own = counters.drop("kernel_id").join(dispatches.select("dispatch_id", "kernel_id"), on="dispatch_id")
    each = own.group_by("pass", "kernel_id", "dispatch_id").agg(pl.col("counter").n_unique())
    most = own.group_by("pass", "kernel_id").agg(of=pl.col("counter").n_unique())
    uneven = each.join(most, on=["pass", "kernel_id"]).filter(pl.col("counter") < pl.col("of"))
    if uneven.height:
        yield Finding(
            "counters_multiplexed",
            "bound",
            "counters",
            f"{of_total(uneven.height, each.height)} counted executions have a part of the counters that other "
            "executions of their kernel have in the same pass: a kernel's figures join different executions.",
            mend,
            grade="inferred",
            records=uneven.height,
            voids=spread,
        )


def _waves(counters: pl.DataFrame, dispatches: pl.DataFrame, devices: pl.DataFrame) -> pl.DataFrame:
    """Compare counted wavefronts with the number launched."""
    sizes = pl.DataFrame(
        [(row["device_id"], _wavefront(row["arch"], row["wavefront_size"])) for row in devices.iter_rows(named=True)],
        schema={"device_id": pl.Int32, "width": pl.Int64},
        orient="row",
    )
    by_axis = pl.lit(1, pl.Int64)
    for axis in "xyz":
        by_axis = by_axis * (pl.col(f"grid_{axis}") / pl.col(f"workgroup_{axis}")).ceil()
    groups = pl.coalesce(by_axis, (pl.col("grid_work_items") / pl.col("workgroup_work_items")).ceil())
    waves = groups * (pl.col("workgroup_work_items") / pl.col("width")).ceil()
    found = (
        counters.filter(pl.col("counter").is_in(_WAVES))
        .join(dispatches, on="dispatch_id")
        .join(sizes, on="device_id")
        .with_columns(expected=waves.cast(pl.Float64))
        .filter((pl.col("expected") > 0) & pl.col("expected").is_finite())
        .with_columns(times=(pl.col("value") / pl.col("expected")).round())
    )
    slack = pl.max_horizontal(pl.lit(_JITTER_WAVES), _JITTER * pl.col("expected") * pl.col("times"))
    multiple = (pl.col("value") - pl.col("times") * pl.col("expected")).abs() <= slack
    everywhere = (multiple & (pl.col("times") >= 2)).all() & (pl.col("times").n_unique() == 1)
    too_many = pl.col("value") > pl.col("expected") + pl.max_horizontal(
        pl.lit(_JITTER_WAVES), _JITTER * pl.col("expected")
    )
    verdict = (
        pl.when(everywhere.over("device_id", "pass") & (pl.len().over("device_id", "pass") > 0))
        .then(pl.lit(_SUMMED))
        .when(too_many | (pl.col("value") <= 0))
        .then(pl.lit(_IMPOSSIBLE))
    )
    return _checked(found.with_columns(verdict=verdict))


def _cycles(counters: pl.DataFrame, dispatches: pl.DataFrame, devices: pl.DataFrame) -> pl.DataFrame:
    """Find active cycles too high for the time between neighbouring dispatches, and negative values."""
    lane = dispatches.sort("device_id", "start_ns").with_columns(
        before=pl.col("end_ns").shift(1).over("device_id"), after=pl.col("start_ns").shift(-1).over("device_id")
    )
    room = (pl.col("after") - pl.col("before")).fill_null(_ALONE_NS)
    limit = room / 1e3 * pl.col("max_clock_mhz") * _ABOVE_CLOCK * pl.col("xcc_count")
    found = (
        counters.filter(pl.col("counter").is_in(_CYCLES[:1]) | (pl.col("value") < 0))
        .join(lane.select("dispatch_id", "device_id", "before", "after"), on="dispatch_id")
        .join(devices.select("device_id", "max_clock_mhz", "xcc_count"), on="device_id")
        .with_columns(expected=pl.when(pl.col("value") < 0).then(0.0).otherwise(limit), times=pl.lit(None, pl.Float64))
    )
    # The available time comes from timestamps; it is unknown for a dispatch without them, or one that overlaps others.
    wrong = (pl.col("value") < 0) | ((pl.col("value") > pl.col("expected")) & (pl.col("expected") > 0))
    return _checked(found.with_columns(verdict=pl.when(wrong).then(pl.lit(_IMPOSSIBLE))))


def _checked(frame: pl.DataFrame) -> pl.DataFrame:
    return frame.select(
        "dispatch_id",
        "device_id",
        "counter",
        "pass",
        pl.col("value", "expected", "times").cast(pl.Float64),
        pl.col("verdict").cast(pl.String),
    )


def _wavefront(arch: str | None, stated: int | None) -> int | None:
    return stated or TRAITS[family_of(arch)].wavefront_size


#: Meaning of the expected value, by whether it counts wavefronts.
_LIMIT: Final = {
    True: "wavefronts were launched",
    False: "is the most that the time between its neighbours allows, and nothing counts below zero",
}


_VOID: Final = (
    "att_instructions.hits",
    "att_instructions.latency_cycles",
    "att_instructions.stall_cycles",
    "att_stalls.stall_cycles",
)
_EMPTY_MEND: Final = (
    "rocprofv3 --att --att-shader-engine-mask 0xf --att-target-cu 1 --kernel-include-regex KERNEL -- COMMAND, with a "
    "launch that fills every shader engine"
)
_PARTIAL_MEND: Final = (
    "rocprofv3 --att with a larger --att-buffer-size (0x6000000) and fewer --att-simd-select, for one launch of the "
    "kernel; look for DATA_LOST among its messages"
)
_WAVEFRONTS: Final = "wavefronts"
_OF_SAMPLING: Final = "program-counter sampling"
_RAW: Final = ".att"


def of_thread_traces(tables: Mapping[str, pl.DataFrame], evidence: Sequence[Evidence]) -> Iterator[Finding]:
    """Find incomplete decoded thread traces, and raw ones that were not decoded.

    `tables` contain `att_instructions` and, if a trace was taken, the details `waves`, `wave_starts` and
    `instruction_parts`; `evidence` contains the readers' statements on the capture and its files.
    """
    instructions = tables["att_instructions"]
    raw = [one.item for one in evidence if one.item.startswith("raw file ") and one.item.endswith(_RAW)]
    if raw and not instructions.height:
        yield _empty("raw thread traces", f"{counted(len(raw), 'raw thread trace')} lie beside it, none decoded.")
    for one in evidence:
        name, _, part = one.item.partition(" of ")
        if name != _WAVEFRONTS or _OF_SAMPLING in (one.reason or ""):
            continue
        subject = part or "thread trace"
        if one.status in ("absent", "invalid") and not _executed(tables, part):
            yield _empty(subject, f"no wavefront of it was decoded ({one.reason}): nothing that ran was seen.")
        elif one.status == "partial":
            yield _partial(subject, f"wavefronts that it lists cannot be read: {one.reason}.", None)
    yield from _unseen_waves(tables)


def _executed(tables: Mapping[str, pl.DataFrame], part: str) -> bool:
    """Return whether a trace's own sums show executed instructions, even if its wavefront files are missing."""
    hits = tables["att_instructions"].get_column("hits").fill_null(0)
    parts = tables.get("instruction_parts")
    if part and parts is not None and parts.height == len(hits):
        hits = hits.filter(parts.get_column("part") == part)
    return bool((hits > 0).any())


def _unseen_waves(tables: Mapping[str, pl.DataFrame]) -> Iterator[Finding]:
    """Find traced compute units on which more wavefronts began than were decoded."""
    if "waves" not in tables or "wave_starts" not in tables:
        return
    place = ["part", "shader_engine", "cu"]
    seen = tables["waves"].group_by(place).agg(seen=pl.len().cast(pl.Int64))
    both = seen.join(tables["wave_starts"], on=place).group_by("part").agg(pl.col("seen", "waves").sum())
    for part, decoded, began in both.sort("part").select("part", "seen", "waves").iter_rows():
        if decoded < began:
            words = f"{of_total(decoded, began)} wavefronts that began on the traced compute unit were decoded."
            yield _partial(part, words, began - decoded)


def _empty(subject: str, evidence: str) -> Finding:
    return Finding("thread_trace_empty", "fault", subject, evidence, _EMPTY_MEND, voids=_VOID)


def _partial(subject: str, evidence: str, records: int | None) -> Finding:
    return Finding("thread_trace_partial", "fault", subject, evidence, _PARTIAL_MEND, records=records, at_least=_VOID)
