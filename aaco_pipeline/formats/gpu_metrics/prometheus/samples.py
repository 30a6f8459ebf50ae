"""Points of series as the table `gpu_samples`: one row for each device and time, one column for each sensor."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import polars as pl

from aaco_pipeline.formats.gpu_metrics.prometheus.gathering import Series
from aaco_pipeline.formats.gpu_metrics.prometheus.sensors import RESIDENCIES, sensor_of
from aaco_pipeline.lake.validation import to_contract

_AT: Final = ("device_id", "time_ns", "scrape")
_MEASURED: Final = (
    *("power_w", "energy_j", "temperature_hotspot_c", "temperature_memory_c", "gfx_clock_mhz", "memory_clock_mhz"),
    *("gfx_activity_percent", "memory_activity_percent", "memory_used_bytes", "vram_used_percent", "vram_total_bytes"),
    *RESIDENCIES,
)
_LARGEST_BYTES: Final = 1 << 62
_SENSOR_SCHEMA: Final = {
    **{"series": pl.Int32, "device_id": pl.Int32, "column": pl.String, "factor": pl.Float64, "over": pl.String},
    **{"turn": pl.Int32, "zero_is_nothing": pl.Boolean},
}


@dataclass(frozen=True)
class Samples:
    """`placed`: the table `gpu_samples`, times after the Unix epoch, by device and time.

    `unplaced`: the same columns, with `scrape`, its number, in the place of the time. How many values were repeated,
    contradicted each other, were a 0 that says nothing, a percentage that is none; how often a counter fell.
    """

    placed: pl.DataFrame
    unplaced: pl.DataFrame
    repeated: int
    contradicted: int
    zeros: int
    beyond: int
    set_back: int


def samples_of(points: pl.DataFrame, series: Sequence[Series], owners: Sequence[int | None]) -> Samples:
    """The samples of points (`gathering.POINTS`); `owners` has each series' device, None for those of none."""
    known = points.join(_sensors(series, owners), on="series", how="inner")
    single = known.group_by("series", "time_ns", "scrape").agg(
        pl.col("device_id", "column", "factor", "over", "turn", "zero_is_nothing").first(),
        value=pl.when(pl.col("value").n_unique() == 1).then(pl.col("value").first()),
        repeated=pl.len() - 1,
    )
    contradicted = single.get_column("value").null_count()
    repeated = int(single.filter(pl.col("value").is_not_null()).get_column("repeated").sum())
    silent = pl.col("zero_is_nothing") & (pl.col("value") == 0)
    zeros = single.filter(silent).height
    valued = single.with_columns(pl.when(~silent).then(pl.col("value") * pl.col("factor")).alias("value"))
    together = valued.group_by(*_AT, "column", "turn").agg(
        value=pl.when(pl.col("over").first() == "max").then(pl.col("value").max()).otherwise(pl.col("value").mean())
    )
    first = (
        together.sort("turn").group_by(*_AT, "column", maintain_order=True).agg(pl.col("value").drop_nulls().first())
    )
    wide = first.filter(pl.col("column").is_in(_MEASURED)).pivot(on="column", index=_AT, values="value")
    absent = [pl.lit(None, pl.Float64).alias(name) for name in _MEASURED if name not in wide.columns]
    wide = wide.with_columns(absent).sort(*_AT, nulls_last=True)
    timed = wide.filter(pl.col("time_ns").is_not_null())
    order = timed.with_columns(_growing(), **_growths())
    columns = _columns(order)
    set_back = sum(int(order.select((pl.col(name) < 0).sum()).item()) for name in _growths())
    percent = [pl.col(name).is_between(0, 100, closed="both").not_() for name in wide.columns if "percent" in name]
    beyond = int(wide.select(pl.sum_horizontal(one.sum() for one in percent)).item())
    scraped = (
        wide.filter(pl.col("time_ns").is_null()).with_columns(time_ns=pl.col("scrape")).sort("device_id", "scrape")
    )
    counted = scraped.with_columns(_growing(), **_growths())
    return Samples(
        columns, _columns(counted).rename({"time_ns": "scrape"}), repeated, contradicted, zeros, beyond, set_back
    )


def _sensors(series: Sequence[Series], owners: Sequence[int | None]) -> pl.DataFrame:
    """What each series of a device becomes."""
    rows = []
    for number, (one, owner) in enumerate(zip(series, owners, strict=True)):
        sensor = sensor_of(one.metric, one.labels)
        if sensor is not None and owner is not None:
            facts = (sensor.column, sensor.factor, sensor.over, sensor.turn, sensor.zero_is_nothing)
            rows.append((number, owner, *facts))
    return pl.DataFrame(rows, schema=_SENSOR_SCHEMA, orient="row")


def _before(name: str) -> pl.Expr:
    """The device's last known value of a counter before the row."""
    return pl.col(name).forward_fill().shift(1).over("device_id", order_by="time_ns")


def _growths() -> dict[str, pl.Expr]:
    """By how much each counter grew since it was last known; negative where it was set back."""
    return {f"{name}_growth": pl.col(name) - _before(name) for name in ("energy_j", *RESIDENCIES)}


def _growing() -> pl.Expr:
    """Energies since the accumulator was last set back: how they go on from those before is not known."""
    fell = (pl.col("energy_j") < _before("energy_j")).fill_null(False)
    later = fell.cast(pl.Int32).cum_sum(reverse=True).over("device_id", order_by="time_ns")
    return pl.when(later - fell.cast(pl.Int32) == 0).then(pl.col("energy_j")).alias("energy_since_j")


def _columns(wide: pl.DataFrame) -> pl.DataFrame:
    """The canonical columns, in order of device and time."""
    grown = {name: pl.col(f"{name}_growth") for name in RESIDENCIES}
    held = [pl.when(growth > 0).then(pl.lit(name)) for name, growth in grown.items()]
    told = pl.any_horizontal((growth >= 0).fill_null(False) for growth in grown.values())
    # The size is constant; the exporter may have written it at other times than the share.
    total = pl.col("vram_total_bytes").max().over("device_id")
    same = pl.col("vram_total_bytes").n_unique().over("device_id") <= 1 + (
        pl.col("vram_total_bytes").is_null().any().over("device_id").cast(pl.Int32)
    )
    of_share = pl.when(same).then(_ratio("vram_used_percent") * total)
    used = pl.coalesce("memory_used_bytes", of_share)
    return to_contract(
        "gpu_samples",
        wide.select(
            "time_ns",
            "device_id",
            "power_w",
            "temperature_hotspot_c",
            "temperature_memory_c",
            "gfx_clock_mhz",
            "memory_clock_mhz",
            energy_j="energy_since_j",
            gfx_activity_ratio=_ratio("gfx_activity_percent"),
            memory_activity_ratio=_ratio("memory_activity_percent"),
            memory_used_bytes=pl.when(used.is_between(0, _LARGEST_BYTES))
            .then(used.round())
            .cast(pl.Int64, strict=False),
            throttle_reasons=pl.when(told).then(pl.concat_list(held).list.drop_nulls()),
        ),
    )


def _ratio(percent: str) -> pl.Expr:
    """A percentage as a ratio; what is below 0 or above 100 is no percentage and null."""
    return pl.when(pl.col(percent).is_between(0, 100)).then(pl.col(percent) / 100)
