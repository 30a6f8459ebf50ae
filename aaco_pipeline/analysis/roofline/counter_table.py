"""Hardware counters as one row per dispatch, with device facts and plausible cycles.

A dispatch's counters come from several passes, each of them another execution; they are joined by dispatch, never by
time. A kernel with values that are only known in total has its own row: the means over all its executions in each pass.
If passes repeat a counter, the first pass without an accumulating counter provides the value.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

import numpy as np
import polars as pl

from aaco_pipeline.hardware.architecture import Architecture
from aaco_pipeline.hardware.architecture_files import architecture
from aaco_pipeline.hardware.counters import TRAITS, family_of, plain_name
from aaco_pipeline.hardware.device_facts import device_facts

#: `GRBM_GUI_ACTIVE` over the pass's duration is plausible between these multiples of the device's maximum clock.
LOWEST_CLOCK: Final = 0.2
HIGHEST_CLOCK: Final = 1.1
#: Columns that are not counters.
FACTS: Final = (
    *("dispatch_id", "kernel_id", "device_id", "family", "duration_ns", "counted_duration_ns", "duration_s"),
    *("compute_units", "xcc_count", "wavefront_size", "max_clock_mhz", "is_of_product", "channels_are_incomplete"),
    *("fp64_issue_slots", "transcendental_issue_slots"),
    *("active_cycles", "clock_mhz", "clock_is_implausible", "clock_is_unchecked"),
    *("level_cycles", "level_clock_mhz", "level_clock_is_implausible"),
)
_ACTIVE: Final = "GRBM_GUI_ACTIVE"
#: `GRBM_GUI_ACTIVE` of the pass that accumulated resident wavefronts.
_LEVEL_ACTIVE: Final = "GRBM_GUI_ACTIVE of SQ_LEVEL_WAVES"
_ACCUMULATED: Final = "SQ_ACCUM_PREV_HIRES"
_LEVEL: Final = re.compile(r"^SQ_(?:LEVEL_WAVES|INST_LEVEL_\w+|IFETCH_LEVEL)$")
_CHANNEL: Final = re.compile(r"^(TCC_\w+)\[(\d+)\]$")
_REPEATED: Final = re.compile(r"^(.+)_\d+$")
_DIGITS: Final = re.compile(r"\d+")


@dataclass(frozen=True)
class _Source:
    """One counter of one pass: its name there, the plain counter that it provides, and its order of trust."""

    counter: str
    pass_name: str
    plain: str
    order: tuple[int, bool, str]


def counter_table(
    counters: pl.DataFrame,
    dispatches: pl.DataFrame,
    devices: pl.DataFrame,
    needed: Iterable[str],
    *,
    check_clock: bool = True,
) -> pl.DataFrame:
    """Build one row per counted dispatch, sorted: `FACTS`, then every counter of `needed` by plain name as float64.

    A row without dispatch_id describes a kernel with counted executions that could not be matched to a dispatch.
    `active_cycles` and `level_cycles` are `GRBM_GUI_ACTIVE` of one XCC, the latter from the pass that accumulated
    `SQ_LEVEL_WAVES`, if counted. `duration_s` is the base trace's, or else the mean over counter passes.

    Args:
        counters: The table.
        dispatches: The table.
        devices: The table.
        needed: Plain names (see `aaco_pipeline.hardware.counters.plain_name`); uncounted ones are null.
        check_clock: Whether to null cycles that imply an impossible device clock.
    """
    wanted = sorted({*needed} - {*FACTS})
    counters, of_kernels = _with_kernels(counters, dispatches)
    wide, channels = _wide(counters, frozenset((*wanted, _ACTIVE, _LEVEL_ACTIVE)))
    table = wide.join(_durations(counters), on="dispatch_id", how="left", maintain_order="left")
    places = pl.concat([_timed(dispatches), of_kernels])
    table = table.join(places, on="dispatch_id", how="inner", maintain_order="left")
    table = table.join(_facts(devices), on="device_id", how="left", maintain_order="left")
    table = _without_part_sums(table, channels)
    table = _with_cycles(table, check_clock)
    duration = pl.coalesce("duration_ns", "counted_duration_ns") / 1e9
    missing = [pl.lit(None, pl.Float64).alias(name) for name in wanted if name not in table.columns]
    table = table.with_columns(duration.alias("duration_s"), *missing).select(*FACTS, *wanted).sort("dispatch_id")
    return table.with_columns(dispatch_id=pl.when(pl.col("dispatch_id") >= 0).then("dispatch_id"))


def _with_kernels(counters: pl.DataFrame, dispatches: pl.DataFrame) -> tuple[pl.DataFrame, pl.DataFrame]:
    """Add a placeholder below 0 for each kernel whose values are only known in total, and list the placeholders.

    A placeholder has the mean over all executions of its kernel in a pass. If a kernel did not, or may not, have run on
    a single device in the base trace, it is unknown which formulas apply; its values stay in `counters`.
    """
    alone = counters.filter(pl.col("dispatch_id").is_null()).select("kernel_id").drop_nulls().unique()
    devices = dispatches.group_by("kernel_id").agg(pl.col("device_id").unique())
    every = dispatches.get_column("device_id").unique().to_list()
    devices = alone.join(devices, on="kernel_id", how="left").with_columns(
        pl.col("device_id").fill_null(pl.lit(every, pl.List(pl.Int32)))
    )
    known = devices.filter(pl.col("device_id").list.len() == 1).sort("kernel_id")
    of_kernels = known.select(
        dispatch_id=-1 - pl.col("kernel_id"),
        kernel_id="kernel_id",
        device_id=pl.col("device_id").list.first(),
        duration_ns=pl.lit(None, pl.Int64),
    )
    own = counters.filter(pl.col("dispatch_id").is_not_null()).select(
        "dispatch_id", "counter", "value", "pass", "pass_duration_ns"
    )
    means = (
        counters.join(known.select("kernel_id"), on="kernel_id", how="semi")
        .group_by("kernel_id", "counter", "pass")
        # Sorted by size: otherwise the distribution of rows over threads would determine the last digit.
        .agg(pl.col("value").sort().mean(), pl.col("pass_duration_ns").mean().round().cast(pl.Int64))
        .with_columns(dispatch_id=-1 - pl.col("kernel_id"))
    )
    return pl.concat([own, means.select(own.columns)]), of_kernels


def _timed(dispatches: pl.DataFrame) -> pl.DataFrame:
    duration = pl.col("end_ns") - pl.col("start_ns")
    measured = pl.when(duration > 0).then(duration)
    return dispatches.select("dispatch_id", "kernel_id", "device_id", duration_ns=measured.cast(pl.Int64))


def _facts(devices: pl.DataFrame) -> pl.DataFrame:
    """Family and facts of each device for the formulas; missing facts come from its product."""
    rows = [_device(row) for row in devices.iter_rows(named=True)]
    schema = {
        "device_id": pl.Int32,
        "family": pl.String,
        **dict.fromkeys(("compute_units", "xcc_count", "wavefront_size", "max_clock_mhz"), pl.Float64),
        **dict.fromkeys(("fp64_issue_slots", "transcendental_issue_slots"), pl.Float64),
        "l2_channels": pl.Int64,
        "is_of_product": pl.Boolean,
    }
    return pl.DataFrame(rows, schema=schema, orient="row")


def _device(row: Mapping[str, Any]) -> dict[str, object]:
    known = architecture(row["arch"])
    traits = TRAITS[family_of(row["arch"])]
    facts = None if known is None else device_facts(row, known)
    stated = {name: row[name] for name in ("compute_units", "xcc_count", "max_clock_mhz")}
    stated["xcc_count"] = stated["xcc_count"] or traits.xcc_count
    filled = dict(stated)
    if facts is not None and facts.product is not None:
        of_product = {"compute_units": facts.compute_units, "xcc_count": facts.xcds, "max_clock_mhz": facts.clock_mhz}
        filled |= {name: fact.value for name, fact in of_product.items() if fact is not None and stated[name] is None}
    return {
        "device_id": row["device_id"],
        "family": family_of(row["arch"]).value,
        **filled,
        "wavefront_size": row["wavefront_size"] or traits.wavefront_size,
        **{f"{name}_issue_slots": _slots(known, name) for name in ("fp64", "transcendental")},
        "l2_channels": traits.l2_channels,
        "is_of_product": filled != stated,
    }


def _slots(known: Architecture | None, instruction: str) -> float | None:
    figure = None if known is None else known.issue_slots.get(instruction)
    return None if figure is None else figure.value


def _durations(counters: pl.DataFrame) -> pl.DataFrame:
    """Mean duration of each dispatch over its counter passes, without those that accumulate levels.

    For these passes, old releases record the time from one dispatch to the next, which may be seconds.
    """
    accumulates = pl.col("pass").str.starts_with("SQ_")
    stated = counters.filter((pl.col("pass_duration_ns") > 0) & ~accumulates).unique(["dispatch_id", "pass"])
    mean = pl.col("pass_duration_ns").mean().round().cast(pl.Int64)
    return stated.group_by("dispatch_id").agg(counted_duration_ns=mean)


def _with_cycles(table: pl.DataFrame, check_clock: bool) -> pl.DataFrame:
    """Add cycles per XCC, the clocks that they imply, and whether these are plausible."""
    table = table.with_columns(
        active_cycles=pl.col(_ACTIVE) / pl.col("xcc_count"),
        level_cycles=pl.coalesce(_LEVEL_ACTIVE, _ACTIVE) / pl.col("xcc_count"),
    )
    table = table.with_columns(
        clock_mhz=_clock("active_cycles", pl.col(f"{_ACTIVE} ns")),
        level_clock_mhz=_clock("level_cycles", pl.coalesce(f"{_LEVEL_ACTIVE} ns", f"{_ACTIVE} ns")),
    )
    lowest, highest = LOWEST_CLOCK * pl.col("max_clock_mhz"), HIGHEST_CLOCK * pl.col("max_clock_mhz")
    believed = {
        cycles: pl.col(clock).is_between(lowest, highest)
        for cycles, clock in (("active_cycles", "clock_mhz"), ("level_cycles", "level_clock_mhz"))
    }
    table = table.with_columns(
        clock_is_implausible=(~believed["active_cycles"]).fill_null(False),
        level_clock_is_implausible=(~believed["level_cycles"]).fill_null(False),
        clock_is_unchecked=believed["active_cycles"].is_null() & pl.col("active_cycles").is_not_null(),
    )
    if not check_clock:
        return table
    return table.with_columns(
        pl.when(plausible.fill_null(True)).then(pl.col(cycles)).alias(cycles) for cycles, plausible in believed.items()
    )


def _clock(cycles: str, stated: pl.Expr) -> pl.Expr:
    """Return the clock implied by cycles, in MHz, over the recorded duration of their own pass.

    For some passes, old profiler releases record the time from one dispatch to the next; if that makes the clock too
    low, the base trace's duration is used instead.
    """
    in_pass, in_trace = (pl.col(cycles) / elapsed * 1e3 for elapsed in (stated, pl.col("duration_ns")))
    too_low = (in_pass < LOWEST_CLOCK * pl.col("max_clock_mhz")).fill_null(False)
    of_pass = pl.when(stated > 0).then(in_pass)
    return pl.coalesce(pl.when(~too_low).then(of_pass), in_trace, of_pass)


def _wide(counters: pl.DataFrame, needed: frozenset[str]) -> tuple[pl.DataFrame, dict[str, int]]:
    """One row per counted dispatch with the needed counters, and the number of channels for those summed here.

    The columns `<counter> ns` contain the durations of the passes that provided the cycles.
    """
    pairs = counters.select("counter", "pass").unique().rows()
    sources = _sources(pairs, needed)
    identity = counters.select("dispatch_id").unique().sort("dispatch_id")
    found = _located(counters, identity, sources)
    columns = _scattered(found, "value", identity.height, sources)
    of_cycles = [
        replace(source, plain=f"{source.plain} ns") if source.plain in (_ACTIVE, _LEVEL_ACTIVE) else None
        for source in sources
    ]
    columns |= _scattered(found, "pass_duration_ns", identity.height, of_cycles)
    for name in (_ACTIVE, _LEVEL_ACTIVE):
        columns.setdefault(name, pl.lit(None, pl.Float64))
        columns.setdefault(f"{name} ns", pl.lit(None, pl.Float64))
    table = identity.with_columns(**columns)
    summed, channels = _channels(counters, pairs, needed - {source.plain for source in sources})
    return table.join(summed, on="dispatch_id", how="left", maintain_order="left"), channels


def _located(counters: pl.DataFrame, identity: pl.DataFrame, sources: Sequence[_Source]) -> pl.DataFrame:
    """Rows of the sources: `row` in `identity`, `source` by number, value and duration (-1 if not recorded)."""
    listed = pl.DataFrame(
        {
            "counter": [source.counter for source in sources],
            "pass": [source.pass_name for source in sources],
            "source": pl.Series(range(len(sources)), dtype=pl.Int64),
        },
        schema={"counter": pl.String, "pass": pl.String, "source": pl.Int64},
    )
    return (
        counters.join(listed, on=["counter", "pass"], how="inner")
        .join(identity.with_row_index("row"), on="dispatch_id", how="inner")
        .select("row", "source", "value", pl.col("pass_duration_ns").fill_null(-1).cast(pl.Float64))
    )


def _scattered(found: pl.DataFrame, value: str, rows: int, sources: Sequence[_Source | None]) -> dict[str, pl.Expr]:
    """For each plain counter, the values of its most trusted source that has one; `sources` are ordered by trust."""
    matrix = np.full((len(sources), rows), np.nan)
    matrix[found.get_column("source").to_numpy(), found.get_column("row").to_numpy()] = found.get_column(value)
    by_name: dict[str, list[pl.Series]] = {}
    for source, values in zip(sources, matrix, strict=True):
        if source is not None:
            by_name.setdefault(source.plain, []).append(pl.Series(values, nan_to_null=True))
    return {name: pl.coalesce(*(pl.lit(series) for series in listed)) for name, listed in by_name.items()}


def _channels(
    counters: pl.DataFrame, pairs: Sequence[tuple[str, str]], needed: frozenset[str]
) -> tuple[pl.DataFrame, dict[str, int]]:
    """Sum needed counters that lack a sum over L2 channels, by dispatch, and count the channels of each.

    A dispatch that lacks one of the channels has null.
    """
    rows = []
    for counter, pass_name in pairs:
        channel = _CHANNEL.match(counter)
        if channel is not None and plain_name(channel[1]) in needed:
            rows.append((counter, pass_name, plain_name(channel[1])))
    if not rows:
        return counters.select("dispatch_id").clear(), {}
    listed = pl.DataFrame(rows, schema={"counter": pl.String, "pass": pl.String, "plain": pl.String}, orient="row")
    numbers = dict(listed.group_by("plain").agg(pl.col("counter").n_unique()).rows())
    each = counters.join(listed, on=["counter", "pass"], how="inner", maintain_order="left").unique(
        ["dispatch_id", "counter"], keep="first", maintain_order=True
    )
    # Sorted by size, like the means above.
    sums = each.group_by("dispatch_id", "plain").agg(pl.col("value").sort().sum(), channels=pl.len())
    expected = pl.col("plain").replace_strict(numbers, return_dtype=pl.UInt32)
    return sums.filter(pl.col("channels") == expected).pivot("plain", index="dispatch_id", values="value"), numbers


def _without_part_sums(table: pl.DataFrame, channels: dict[str, int]) -> pl.DataFrame:
    """Clear sums that do not cover all of the device's channels, because they are not its full traffic."""
    every = pl.col("l2_channels") * pl.col("xcc_count")
    complete = {name: (every == number).fill_null(False) for name, number in channels.items() if name in table.columns}
    partial = pl.any_horizontal(*(~whole for whole in complete.values())) if complete else pl.lit(False)
    return table.with_columns(
        *(pl.when(whole).then(pl.col(name)).alias(name) for name, whole in complete.items()),
        channels_are_incomplete=partial,
    )


def _sources(pairs: Sequence[tuple[str, str]], needed: frozenset[str]) -> list[_Source]:
    """The counter and pass that provide each needed counter, sorted by plain name and trust."""
    names = {counter for counter, _ in pairs}
    of_pass: dict[str, set[str]] = {}
    for counter, pass_name in pairs:
        of_pass.setdefault(pass_name, set()).add(counter)
    levels = {name: [c for c in inside if _LEVEL.match(c)] for name, inside in of_pass.items()}
    found = []
    for counter, pass_name in pairs:
        level = levels[pass_name]
        accumulates = _ACCUMULATED in of_pass[pass_name] or any(f"{c}_ACCUM" in of_pass[pass_name] for c in level)
        plain, repeated = _plain(counter, level, names)
        order = (repeated, accumulates and pass_name.startswith("SQ_"), _natural(pass_name))
        if plain in needed:
            found.append(_Source(counter, pass_name, plain, order))
        if counter == _ACTIVE and accumulates and "SQ_LEVEL_WAVES" in level:
            found.append(_Source(counter, pass_name, _LEVEL_ACTIVE, order))
    return sorted(found, key=lambda source: (source.plain, source.order))


def _plain(counter: str, level: Sequence[str], names: set[str]) -> tuple[str, int]:
    """Return the plain counter that a pass's counter provides, and 1 if it repeats another under its own number."""
    if counter == _ACCUMULATED and len(level) == 1:
        return f"{level[0]}_ACCUM", 0
    repeated = _REPEATED.match(counter)
    if repeated is not None and repeated[1] in names:
        return plain_name(repeated[1]), 1
    return plain_name(counter), 0


def _natural(text: str) -> str:
    """A key that sorts `pass.2` before `pass.10`."""
    return _DIGITS.sub(lambda digits: digits[0].zfill(20), text)
