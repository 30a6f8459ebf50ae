"""Files with series of GPU sensors, put together as one reading: samples on the axis, devices, and what was missed."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

import numpy as np
import polars as pl

from aaco_pipeline.errors import CaptureError
from aaco_pipeline.formats.capture_tables import CaptureTables, Findings, Limits
from aaco_pipeline.formats.gpu_metrics.prometheus import devices, documents, exposition, omnistat_csv
from aaco_pipeline.formats.gpu_metrics.prometheus.gathering import Gathered
from aaco_pipeline.formats.gpu_metrics.prometheus.samples import Samples, samples_of
from aaco_pipeline.formats.gpu_metrics.prometheus.signs import Form, form_of
from aaco_pipeline.formats.parsing.compression import first_bytes
from aaco_pipeline.lake.evidence import Status
from aaco_pipeline.lake.validation import empty_table, to_contract

_ANCHOR: Final = "the host's wall-clock, which stands with each value; zero is the earliest sample"
_GATHER: Final[dict[Form, Callable[[Path, Gathered], None]]] = {
    "text": exposition.gather,
    "query": documents.gather_answer,
    "lines": documents.gather_lines,
    "csv": omnistat_csv.gather,
}
#: Forms whose times are the steps of a query, at which the last value before is repeated.
_STEPPED: Final[frozenset[Form]] = frozenset(("query", "csv"))
_BEGINNING_BYTES: Final = 256 << 10


def read_run(paths: Sequence[Path], limits: Limits) -> CaptureTables:
    """See `aaco_pipeline.formats.gpu_metrics.prometheus.read_run`."""
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
    found = sorted({one for series in gathered.series if (one := devices.named(series))}, key=lambda one: one.order)
    if not found:
        held = ", ".join(list(gathered.passed_over)[:3]) or "no metric at all"
        raise CaptureError(
            f"{paths[0]}: no sensor of a GPU that Omnistat or device-metrics-exporter write; it holds {held[:200]}"
        )
    points = gathered.points()
    number_of = {one: number for number, one in enumerate(found)}
    owners = [number_of.get(one) if (one := devices.named(series)) else None for series in gathered.series]
    samples = samples_of(points, gathered.series, owners)
    table, names = devices.tables(found, gathered.series, points)
    zero = samples.placed.get_column("time_ns").min()
    zero_ns = zero if isinstance(zero, int) else 0
    _say(findings, gathered, samples, forms, len(found))
    clock = {"domain": "realtime", "offset_ns": -zero_ns, "uncertainty_ns": 0, "anchor": _ANCHOR}
    return CaptureTables(
        {
            "gpu_samples": samples.placed.with_columns(pl.col("time_ns") - zero_ns),
            "devices": table,
            "clock_domains": to_contract("clock_domains", pl.DataFrame([clock]))
            if isinstance(zero, int)
            else empty_table("clock_domains"),
        },
        tuple(findings.evidence),
        {"device_names": names, "unplaced_samples": samples.unplaced, "source_rows": findings.source_rows()},
    )


def _behind_each_other(gathered: Gathered, before: int, scrapes: int) -> int:
    """Number the scrapes of one file after those of the files before it; how many there are by now."""
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
        shown = (
            f"; of {len(others)} other metrics, such as {', '.join(name[:60] for name in others[:3])}" if others else ""
        )
        why = f"the others are not of what `gpu_samples` is about, or are no numbers{shown}"
        findings.say("values of metrics", "partial", why, taken)
    silent = [name for name in placed.columns if placed.get_column(name).null_count() == placed.height]
    if placed.height and silent:
        findings.say("other columns of gpu_samples", "absent", f"the series hold no sensor of {', '.join(silent)}", 0)


_MOST_NAMED: Final = 20


def _resolution(placed: pl.DataFrame, devices_: int) -> str:
    """How far apart a device's samples are, and how long the longest gap is."""
    apart = placed.select(pl.col("time_ns").diff().over("device_id") / 1e9).to_series().drop_nulls()
    who = f"{devices_} device" + ("s" if devices_ > 1 else "")
    if not len(apart):
        return f"{who}, one sample each: nothing is known of the time between"
    median, longest = np.median(apart.to_numpy()), np.max(apart.to_numpy())
    return (
        f"{who}, a sample every {median:.3g} s (median), {longest:.3g} s at most; what happened between two is not "
        "seen, and a gap has no samples"
    )
