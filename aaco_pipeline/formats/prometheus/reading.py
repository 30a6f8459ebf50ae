"""Turn series of GPU sensors into canonical tables: devices, samples on one axis, and evidence of missing data.

`sources` reads the files; the package defines the meaning of each series.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numpy as np
import polars as pl

from aaco_pipeline.errors import CaptureError
from aaco_pipeline.formats.capture_tables import CaptureTables, Findings, Limits, table_of
from aaco_pipeline.formats.parsing.compression import first_bytes
from aaco_pipeline.formats.parsing.redaction import safe_prose
from aaco_pipeline.formats.prometheus import COUNTS, INFORMATION, RESIDENCIES, Form, form_of, sensor_of, sources
from aaco_pipeline.formats.prometheus.sources import Gathered, Series
from aaco_pipeline.lake.evidence import Status
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
    """Samples with and without a time, and counts of dropped values.

    `placed` is the table `gpu_samples`, in order of device and time since the Unix epoch; `unplaced` has the same
    columns, but with the number `scrape` instead of the time. Counts cover repeated and conflicting values, meaningless
    zeros, invalid percentages, and counters that decreased.
    """

    placed: pl.DataFrame
    unplaced: pl.DataFrame
    repeated: int
    contradicted: int
    zeros: int
    beyond: int
    set_back: int


def samples_of(points: pl.DataFrame, series: Sequence[Series], owners: Sequence[int | None]) -> Samples:
    """Combine points (`sources.POINTS`) into samples; `owners` has each series' device, or None."""
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
    by_turn = together.sort("turn").group_by(*_AT, "column", maintain_order=True)
    first = by_turn.agg(pl.col("value").drop_nulls().first())
    wide = first.filter(pl.col("column").is_in(_MEASURED)).pivot(on="column", index=_AT, values="value")
    absent = [pl.lit(None, pl.Float64).alias(name) for name in _MEASURED if name not in wide.columns]
    wide = wide.with_columns(absent).sort(*_AT, nulls_last=True)
    timed = wide.filter(pl.col("time_ns").is_not_null())
    order = timed.with_columns(_growing(), **_growths())
    columns = _columns(order)
    set_back = sum(int(order.select((pl.col(name) < 0).sum()).item()) for name in _growths())
    percent = [pl.col(name).is_between(0, 100, closed="both").not_() for name in wide.columns if "percent" in name]
    beyond = int(wide.select(pl.sum_horizontal(one.sum() for one in percent)).item())
    scraped = wide.filter(pl.col("time_ns").is_null()).with_columns(time_ns="scrape").sort("device_id", "scrape")
    unplaced = _columns(scraped.with_columns(_growing(), **_growths())).rename({"time_ns": "scrape"})
    return Samples(columns, unplaced, repeated, contradicted, zeros, beyond, set_back)


def _sensors(series: Sequence[Series], owners: Sequence[int | None]) -> pl.DataFrame:
    """List the column and conversion of each series that has a device."""
    rows = []
    for number, (one, owner) in enumerate(zip(series, owners, strict=True)):
        sensor = sensor_of(one.metric, one.labels)
        if sensor is not None and owner is not None:
            facts = (sensor.column, sensor.factor, sensor.over, sensor.turn, sensor.zero_is_nothing)
            rows.append((number, owner, *facts))
    return pl.DataFrame(rows, schema=_SENSOR_SCHEMA, orient="row")


def _before(name: str) -> pl.Expr:
    """Return the device's last known value of a counter before the row."""
    return pl.col(name).forward_fill().shift(1).over("device_id", order_by="time_ns")


def _growths() -> dict[str, pl.Expr]:
    """Return each counter's growth since it was last known; negative if it was reset."""
    return {f"{name}_growth": pl.col(name) - _before(name) for name in ("energy_j", *RESIDENCIES)}


def _growing() -> pl.Expr:
    """Return energies since the accumulator's last reset; values cannot be continued across it."""
    fell = (pl.col("energy_j") < _before("energy_j")).fill_null(False)
    later = fell.cast(pl.Int32).cum_sum(reverse=True).over("device_id", order_by="time_ns")
    return pl.when(later - fell.cast(pl.Int32) == 0).then(pl.col("energy_j")).alias("energy_since_j")


def _columns(wide: pl.DataFrame) -> pl.DataFrame:
    """Select the canonical columns, in order of device and time."""
    grown = {name: pl.col(f"{name}_growth") for name in RESIDENCIES}
    held = [pl.when(growth > 0).then(pl.lit(name)) for name, growth in grown.items()]
    known = pl.any_horizontal((growth >= 0).fill_null(False) for growth in grown.values())
    # The size is constant; the exporter may have written it at other times than the fraction.
    total = pl.col("vram_total_bytes").max().over("device_id")
    same = pl.col("vram_total_bytes").drop_nulls().n_unique().over("device_id") <= 1
    used = pl.coalesce("memory_used_bytes", pl.when(same).then(_ratio("vram_used_percent") * total))
    used_bytes = pl.when(used.is_between(0, _LARGEST_BYTES)).then(used.round()).cast(pl.Int64, strict=False)
    return to_contract(
        "gpu_samples",
        wide.select(
            *("time_ns", "device_id", "power_w", "temperature_hotspot_c", "temperature_memory_c", "gfx_clock_mhz"),
            "memory_clock_mhz",
            energy_j="energy_since_j",
            gfx_activity_ratio=_ratio("gfx_activity_percent"),
            memory_activity_ratio=_ratio("memory_activity_percent"),
            memory_used_bytes=used_bytes,
            throttle_reasons=pl.when(known).then(pl.concat_list(held).list.drop_nulls()),
        ),
    )


def _ratio(percent: str) -> pl.Expr:
    """Convert a percentage to a ratio; values outside 0 to 100 become null."""
    return pl.when(pl.col(percent).is_between(0, 100)).then(pl.col(percent) / 100)


#: The detail `device_names`: names by which another capture may identify the same device.
DEVICE_NAMES: Final = pl.Schema(
    {
        **{"device_id": pl.Int32(), "host": pl.String(), "card": pl.String(), "pci_address": pl.String()},
        **{"uuid": pl.String(), "devices_of_host": pl.Int64()},
    }
)
_PORT: Final = re.compile(r":\d{1,5}$")
_NOT_STATED: Final = ("", "NA", "N/A", "unknown")
_LONGEST_NAME: Final = 120


@dataclass(frozen=True)
class Named:
    """A device as named by an exporter: host, number, and partition number, each None if not stated."""

    host: str | None
    card: str
    partition: str | None

    @property
    def order(self) -> tuple[object, ...]:
        """Sort key: hosts by name, devices by number."""
        return (self.host or "", *_natural(self.card), *_natural(self.partition or ""))

    @property
    def called(self) -> str:
        return f"card{self.card}" + (f" partition {self.partition}" if self.partition is not None else "")


def named(series: Series) -> Named | None:
    """Return the device of a series; None for one without a device."""
    labels = series.labels
    if series.metric in COUNTS:
        return None
    card = _stated(labels, "card") or _stated(labels, "gpu_id")
    if card is None:
        return None
    return Named(host_of(labels), card, _stated(labels, "gpu_partition_id") if _is_divided(labels) else None)


def host_of(labels: Mapping[str, str]) -> str | None:
    """Return the host of a series, preferring the exporter's own name to the scraped address."""
    name = _stated(labels, "hostname") or _stated(labels, "instance")
    return None if name is None else _PORT.sub("", name)


def tables(found: Sequence[Named], series: Sequence[Series], values: pl.DataFrame) -> tuple[pl.DataFrame, pl.DataFrame]:
    """Build the table `devices` and the detail `device_names`, both in the order of `found`.

    `values` has series and value: sizes, limits and counts are used if all values of a device agree.
    """
    constant = values.group_by("series").agg(pl.col("value").unique()).filter(pl.col("value").list.len() == 1)
    known = dict(constant.select("series", pl.col("value").list.first()).drop_nulls().iter_rows())
    hosts = len({one.host for one in found})
    rows, names = [], []
    counts = {
        host_of(one.labels): int(known[at])
        for at, one in enumerate(series)
        if one.metric in COUNTS and 0 < known.get(at, 0) < 1 << 20
    }
    of_device: dict[Named, list[int]] = {}
    for at, one in enumerate(series):
        if (device := named(one)) is not None:
            of_device.setdefault(device, []).append(at)
    for number, device in enumerate(found):
        labels: dict[str, str] = {}
        sizes: dict[str, float] = {}
        for at in of_device[device]:
            information = series[at].metric == INFORMATION
            labels = {**labels, **series[at].labels} if information else {**series[at].labels, **labels}
            if at in known:
                sizes.setdefault(series[at].metric, known[at])
        total = sizes.get("rocm_vram_total_bytes", sizes.get("gpu_total_vram", 0) * (1 << 20))
        partition = [mode for part in ("compute", "memory") if (mode := _stated(labels, f"gpu_{part}_partition_type"))]
        called = device.called + (f" of {device.host}" if hosts > 1 else "")
        rows.append(
            {
                "device_id": number,
                "vendor": "AMD",
                "product": _safe(_product(labels)),
                "memory_bytes": int(total) if 0 < total < 1 << 62 else None,
                "partition_mode": _safe("/".join(partition).upper() or None),
                "power_cap_w": sizes.get("rocm_power_cap_watts") or None,
                "handle": _safe(called),
            }
        )
        names.append(
            {
                "device_id": number,
                "host": _safe(device.host),
                "card": _safe(device.called),
                "pci_address": _address(labels),
                "uuid": _uuid(labels),
                "devices_of_host": counts.get(device.host, counts.get(None) if hosts == 1 else None),
            }
        )
    return table_of("devices", rows), pl.DataFrame(names, schema=DEVICE_NAMES)


def _is_divided(labels: Mapping[str, str]) -> bool:
    """Return whether the device is one of several partitions of a GPU."""
    return (_stated(labels, "gpu_compute_partition_type") or "SPX").lower() != "spx"


def _product(labels: Mapping[str, str]) -> str | None:
    return _stated(labels, "card_series") or _stated(labels, "type") or _stated(labels, "card_model")


def _address(labels: Mapping[str, str]) -> str | None:
    found = _stated(labels, "pci_address") or _stated(labels, "pcie_bus_id") or _stated(labels, "pci_bus")
    return None if found is None else found[:_LONGEST_NAME].lower()


def _uuid(labels: Mapping[str, str]) -> str | None:
    """Return the device's UUID; a virtual function's is all zeros, which identifies nothing."""
    found = (_stated(labels, "gpu_uuid") or "")[:_LONGEST_NAME].lower()
    return found if found.strip("0-") else None


def _stated(labels: Mapping[str, str], name: str) -> str | None:
    text = labels.get(name, "").strip()
    return None if text in _NOT_STATED else text


def _safe(text: str | None) -> str | None:
    return None if text is None else safe_prose(text[:_LONGEST_NAME])


def _natural(text: str) -> tuple[int, int, str]:
    return (0, int(text), "") if text.isascii() and text.isdigit() and len(text) < 19 else (1, 0, text)


_ANCHOR: Final = "the host's wall-clock, which stands with each value; zero is the earliest sample"
_GATHER: Final[dict[Form, Callable[[Path, Gathered], None]]] = {
    "text": sources.gather,
    "query": sources.gather_answer,
    "lines": sources.gather_lines,
    "csv": sources.gather_omnistat,
}
#: Formats whose times are the steps of a query, which repeats the previous value at each step.
_STEPPED: Final[frozenset[Form]] = frozenset(("query", "csv"))
_BEGINNING_BYTES: Final = 256 << 10


def read_run(paths: Sequence[Path], limits: Limits) -> CaptureTables:
    """See `aaco_pipeline.formats.prometheus.read_run`."""
    findings = Findings(paths[0].name if len(paths) == 1 else None)
    gathered = Gathered(limits)
    forms: set[Form] = set()
    scrapes = 0
    for path in paths:
        form = form_of(first_bytes(path, _BEGINNING_BYTES))
        if form is None:
            raise CaptureError(f"{path}: holds no series of Omnistat or device-metrics-exporter; export it again")
        forms.add(form)
        before = len(gathered.frames)
        _GATHER[form](path, gathered)
        scrapes = _behind_each_other(gathered, before, scrapes)
    found = sorted({one for series in gathered.series if (one := named(series))}, key=lambda one: one.order)
    if not found:
        held = ", ".join(list(gathered.passed_over)[:3]) or "no metric at all"
        reason = "no sensor of a GPU that Omnistat or device-metrics-exporter write"
        raise CaptureError(f"{paths[0]}: {reason}; it holds {held[:200]}")
    points = gathered.points()
    number_of = {one: number for number, one in enumerate(found)}
    owners = [number_of.get(one) if (one := named(series)) else None for series in gathered.series]
    samples = samples_of(points, gathered.series, owners)
    table, names = tables(found, gathered.series, points)
    times = samples.placed.get_column("time_ns")
    zero_ns = times.item(int(times.arg_min() or 0)) if len(times) else 0
    _say(findings, gathered, samples, forms, len(found))
    clock = {"domain": "realtime", "offset_ns": -zero_ns, "uncertainty_ns": 0, "anchor": _ANCHOR}
    return CaptureTables(
        {
            "gpu_samples": samples.placed.with_columns(pl.col("time_ns") - zero_ns),
            "devices": table,
            "clock_domains": table_of("clock_domains", [clock] if len(times) else []),
        },
        tuple(findings.evidence),
        {"device_names": names, "unplaced_samples": samples.unplaced, "source_rows": findings.source_rows()},
    )


def _behind_each_other(gathered: Gathered, before: int, scrapes: int) -> int:
    """Number the scrapes of one file after those of earlier files; return the new total."""
    for at in range(before, len(gathered.frames)):
        gathered.frames[at] = gathered.frames[at].with_columns(pl.col("scrape") + scrapes)
    highest = [frame.get_column("scrape").max() for frame in gathered.frames[before:]]
    return max((one + 1 for one in highest if isinstance(one, int)), default=scrapes)


def _say(findings: Findings, gathered: Gathered, samples: Samples, forms: set[Form], devices_: int) -> None:
    taken = sum(frame.height for frame in gathered.frames)
    findings.took("values of metrics", gathered.values, taken)
    placed, unplaced = samples.placed, samples.unplaced
    if placed.height:
        findings.say("resolution of gpu samples", "present", _resolution(placed, devices_), placed.height)
    told = "the scrapes do not state when they were taken (no time behind the values): they cannot be put on an axis"
    remedy = "ask Prometheus for /api/v1/query_range, or export from VictoriaMetrics"
    status: Status = "partial" if placed.height else "absent"
    if unplaced.height:
        findings.say("scrapes without a time", status, f"{told}; {remedy}", unplaced.height)
    if forms & _STEPPED:
        stepped = "times are the steps of a query, and a value stands until the next one was scraped: it may be older"
        findings.say("steps of a query", "partial", stepped, placed.height)
    for item, count, why in (
        ("values of no number", gathered.no_numbers, "NaN, infinite or no number: left out"),
        ("values at no time", gathered.no_times, "their time is no wall-clock time of this age: left out"),
        ("repeated values", samples.repeated, "the same series at the same time with the same value: taken once"),
        ("contradicting values", samples.contradicted, "one series has several values for one time: null"),
        ("sensors at 0", samples.zeros, "0 is what an exporter writes for a sensor that it could not read: null"),
        ("percentages beyond 100", samples.beyond, "no percentage: null"),
        ("counters set back", samples.set_back, "a counter fell: energies before are null, growth across is unknown"),
    ):
        findings.note(count, item, "partial", why)
    for name in list(gathered.passed_over)[:_MOST_NAMED]:
        why = gathered.passed_over[name]
        if "(" in name:
            findings.say(f"metric {name}", "partial", f"{why}: not read")
    others = [name for name in gathered.passed_over if "(" not in name]
    if taken < gathered.values:
        such = ", ".join(name[:60] for name in others[:3])
        shown = f"; of {len(others)} other metrics, such as {such}" if others else ""
        why = f"the others are not of what `gpu_samples` is about, or are no numbers{shown}"
        findings.say("values of metrics", "partial", why, taken)
    silent = [name for name in placed.columns if placed.get_column(name).null_count() == placed.height]
    if placed.height and silent:
        findings.say("other columns of gpu_samples", "absent", f"the series hold no sensor of {', '.join(silent)}", 0)


_MOST_NAMED: Final = 20


def _resolution(placed: pl.DataFrame, devices_: int) -> str:
    """Describe the interval between a device's samples and the longest gap."""
    apart = placed.select(pl.col("time_ns").diff().over("device_id") / 1e9).to_series().drop_nulls()
    who = f"{devices_} device" + ("s" if devices_ > 1 else "")
    if not len(apart):
        return f"{who}, one sample each: nothing is known of the time between"
    median, longest = np.median(apart.to_numpy()), np.max(apart.to_numpy())
    return (
        f"{who}, a sample every {median:.3g} s (median), {longest:.3g} s at most; what happened between two is not "
        "seen, and a gap has no samples"
    )
