"""Values of sensors as they are read from a file: one frame of points, and the labels of each series in it."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

import polars as pl

from aaco_pipeline.errors import CaptureError
from aaco_pipeline.formats.capture_tables import Limits
from aaco_pipeline.formats.gpu_metrics.prometheus.sensors import COUNTS, INFORMATION, METRICS, plain, sensor_of

#: series: the position in `Gathered.series`; time_ns: after the Unix epoch, null where the file does not state it;
#: scrape: which of the file's scrapes, counted from 0, where it does not; value: in the exporter's unit, null for NaN.
POINTS: Final = pl.Schema(
    {"series": pl.Int32(), "time_ns": pl.Int64(), "scrape": pl.Int64(), "value": pl.Float64()},
)
#: What a time in 2000 and one in 2200 are, in nanoseconds after the Unix epoch; others are no wall-clock times.
_EARLIEST_NS: Final = 946_684_800_000_000_000
_LATEST_NS: Final = 7_258_118_400_000_000_000

_MOST_LABELS: Final = 1_000


@dataclass(frozen=True)
class Series:
    """One metric with one set of labels; `metric` is its plain name."""

    metric: str
    labels: Mapping[str, str]


class Gathered:
    """The series of all files of a folder, bounded in number, with what was not taken and how often."""

    def __init__(self, limits: Limits) -> None:
        self.limits = limits
        self.series: list[Series] = []
        self.frames: list[pl.DataFrame] = []
        #: Values in the files, those of metrics that are not read among them.
        self.values = 0
        #: How many values have no number for a value, and how many a time that cannot be one.
        self.no_numbers = self.no_times = 0
        #: Metrics, or their instances, that no column is about: why, by plain name.
        self.passed_over: dict[str, str] = {}
        self._numbers: dict[tuple[str, tuple[tuple[str, str], ...]], int] = {}
        self._points = 0

    def number_of(self, source: str, metric: str, labels: Mapping[str, str]) -> int | None:
        """The number of a series, None where it is of no sensor that is read. CaptureError when there are too many."""
        name = plain(metric)
        if name not in METRICS:
            self._pass_over(name, "a metric that no column of `gpu_samples` is about")
            return None
        if name not in (*COUNTS, INFORMATION) and sensor_of(name, labels) is None:
            self._pass_over(_instance(name, labels), _why_not(name, labels))
            return None
        if len(labels) > _MOST_LABELS:
            raise CaptureError(f"{source}: a series of {name} has {len(labels)} labels; no exporter writes so many")
        key = (name, tuple(sorted(labels.items())))
        if key not in self._numbers:
            if len(self.series) >= self.limits.columns:
                raise CaptureError(
                    f"{source}: more than {self.limits.columns} series of sensors; export the hosts of one run alone"
                )
            self._numbers[key] = len(self.series)
            self.series.append(Series(name, dict(labels)))
        return self._numbers[key]

    def add(self, source: str, points: pl.DataFrame) -> None:
        """Take points with the columns of `POINTS`. CaptureError when they are too many."""
        self._points += points.height
        if self._points > self.limits.events:
            raise CaptureError(f"{source}: more than {self.limits.events} values; export the time of one run alone")
        untimed = pl.col("time_ns").is_null() & pl.col("scrape").is_null()
        possible = pl.col("time_ns").is_between(_EARLIEST_NS, _LATEST_NS) | pl.col("time_ns").is_null()
        placed = points.filter(possible & ~untimed)
        self.no_times += points.height - placed.height
        finite = placed.filter(pl.col("value").is_finite())
        self.no_numbers += placed.height - finite.height
        self.frames.append(finite.select(POINTS.names()).cast(POINTS))

    def points(self) -> pl.DataFrame:
        return pl.concat(self.frames) if self.frames else pl.DataFrame(schema=POINTS)

    def _pass_over(self, name: str, why: str) -> None:
        if len(self.passed_over) < self.limits.columns:
            self.passed_over.setdefault(name, why)


def _instance(metric: str, labels: Mapping[str, str]) -> str:
    told = labels.get("location") or labels.get("clock_type") or "no location"
    return f"{metric} ({told[:40]})"


def _why_not(metric: str, labels: Mapping[str, str]) -> str:
    if metric == "gpu_clock":
        return "a clock of neither engine nor memory"
    if not labels.get("location"):
        return "it does not say where on the device the temperature was taken"
    if metric == "rocm_temperature_memory_celsius":
        return "the temperature of one stack of memory, not of the hottest"
    return "not the temperature of the hottest spot"
