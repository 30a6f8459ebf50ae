"""Read series of GPU sensors from each format: exposition text, Prometheus' JSON responses and Omnistat's CSV.

`reading` turns series into samples and devices.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path
from typing import Any, Final

import polars as pl

from aaco_pipeline.errors import CaptureError
from aaco_pipeline.formats.capture_tables import Limits
from aaco_pipeline.formats.parsing.compression import DAMAGED, open_decompressed, read_decompressed
from aaco_pipeline.formats.parsing.json_document import json_document, parsed
from aaco_pipeline.formats.prometheus import COUNTS, INFORMATION, METRICS, WRITTEN, plain, sensor_of

#: series: index in `Gathered.series`; time_ns: since the Unix epoch, null if not stated; scrape: number of the scrape
#: in the file from 0, if there is no time; value: in the exporter's unit, null for NaN.
POINTS: Final = pl.Schema({"series": pl.Int32(), "time_ns": pl.Int64(), "scrape": pl.Int64(), "value": pl.Float64()})
#: The years 2000 and 2200 in nanoseconds since the Unix epoch; values outside are not wall-clock times.
_EARLIEST_NS: Final = 946_684_800_000_000_000
_LATEST_NS: Final = 7_258_118_400_000_000_000
_MOST_LABELS: Final = 1_000


@dataclass(frozen=True)
class Series:
    """One metric with one set of labels; `metric` is its plain name."""

    metric: str
    labels: Mapping[str, str]


class Gathered:
    """The series of all files in a folder, limited in number, with counts of skipped data."""

    def __init__(self, limits: Limits) -> None:
        self.limits = limits
        self.series: list[Series] = []
        self.frames: list[pl.DataFrame] = []
        #: Values in the files, including those of metrics that are not read.
        self.values = 0
        #: Counts of non-numeric values, and of values with an impossible time.
        self.no_numbers = self.no_times = 0
        #: Reasons for skipping metrics or instances of them, by plain name.
        self.passed_over: dict[str, str] = {}
        self._numbers: dict[tuple[str, tuple[tuple[str, str], ...]], int] = {}
        self._points = 0

    def number_of(self, source: str, metric: str, labels: Mapping[str, str]) -> int | None:
        """Return the number of a series, None for an unread sensor. CaptureError if there are too many."""
        name = plain(metric)
        if name not in METRICS:
            self._pass_over(name, "a metric without a column in `gpu_samples`")
            return None
        if name not in (*COUNTS, INFORMATION) and sensor_of(name, labels) is None:
            self._pass_over(_instance(name, labels), _why_not(name, labels))
            return None
        if len(labels) > _MOST_LABELS:
            raise CaptureError(f"{source}: a series of {name} has {len(labels)} labels; no exporter writes so many")
        key = (name, tuple(sorted(labels.items())))
        if key not in self._numbers:
            if len(self.series) >= (most := self.limits.columns):
                raise CaptureError(f"{source}: more than {most} series of sensors; export the hosts of one run alone")
            self._numbers[key] = len(self.series)
            self.series.append(Series(name, dict(labels)))
        return self._numbers[key]

    def add(self, source: str, points: pl.DataFrame) -> None:
        """Add points with the columns of `POINTS`. CaptureError if there are too many."""
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
        """Return the points of all series, with the columns of `POINTS`."""
        return pl.concat([POINTS.to_frame(), *self.frames])

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


_PIECE_BYTES: Final = 16 << 20
_NAME: Final = r"^\s*([A-Za-z_:][A-Za-z0-9_:]*)"
#: Name, labels, value, and optionally the time; an exemplar follows after `#`.
_SAMPLE: Final = (
    r'^\s*[A-Za-z_:][A-Za-z0-9_:]*\s*(\{(?:[^"}]|"(?:[^"\\]|\\.)*")*\})?\s*'
    r"([^\s{}#]+)(?:[ \t]+([-+]?[0-9.eE+-]+))?[ \t]*(?:\r|#.*)?$"
)
_LABEL: Final = re.compile(r'([A-Za-z_][A-Za-z0-9_]*)\s*=\s*"((?:[^"\\]|\\.)*)"')
_ESCAPES: Final = re.compile(r"\\(.)")
_ESCAPED: Final = {"n": "\n"}


def gather(path: Path, gathered: Gathered) -> None:
    """Read all samples of a text file; a sample without a time belongs to the scrape that contains it.

    CaptureError if the file is damaged or too large.
    """
    in_seconds = _is_open_metrics(path, gathered.limits)
    scrapes = _Scrapes()
    for text in _pieces(path, gathered.limits):
        lines = pl.DataFrame({"line": pl.Series([text]).str.split("\n").explode()})
        lines = lines.filter(pl.col("line").str.contains(r"^\s*[^#\s]"))
        gathered.values += lines.height
        lines = lines.with_columns(name=pl.col("line").str.extract(_NAME))
        for name in lines.get_column("name").drop_nulls().unique().to_list():
            if name not in WRITTEN:
                gathered.number_of(path.name, name, {})
        known = lines.filter(pl.col("name").is_in(list(WRITTEN)))
        parts = known.select(
            "name",
            labels=pl.col("line").str.extract(_SAMPLE, 1),
            value=pl.col("line").str.extract(_SAMPLE, 2).cast(pl.Float64, strict=False),
            stated=pl.col("line").str.extract(_SAMPLE, 3),
        )
        numbers = _numbered(path, parts.select("name", "labels").unique(maintain_order=True), gathered)
        taken = parts.join(numbers, on=["name", "labels"], how="left", nulls_equal=True, maintain_order="left")
        stated = pl.col("stated").cast(pl.Float64, strict=False) * (1e3 if in_seconds else 1)
        taken = taken.drop_nulls("series").with_columns(time_ns=_wall_time(stated), untimed=pl.col("stated").is_null())
        gathered.add(path.name, scrapes.counted(taken))


def _wall_time(milliseconds: pl.Expr) -> pl.Expr:
    """Return nanoseconds from milliseconds, rounded to whole ms (double precision); null if out of range."""
    whole = milliseconds.round()
    return pl.when(whole.is_between(-9e12, 9e12)).then(whole.cast(pl.Int64, strict=False) * 1_000_000)


class _Scrapes:
    """Counter of scrapes, for samples without a time, over the pieces of one file.

    An exporter prints its series in a fixed order, which gives their numbers: a scrape begins when a number decreases.
    """

    def __init__(self) -> None:
        self._scrape, self._last = 0, -1

    def counted(self, taken: pl.DataFrame) -> pl.DataFrame:
        """Add the column `scrape`, null for samples that have a time."""
        if not taken.height:
            return taken.with_columns(scrape=pl.lit(None, pl.Int64))
        begins = (pl.col("series") <= pl.col("series").shift(1, fill_value=self._last)).cast(pl.Int64)
        counted = taken.with_columns(scrape=begins.cum_sum() + self._scrape)
        self._scrape, self._last = counted.item(-1, "scrape"), counted.item(-1, "series")
        return counted.with_columns(scrape=pl.when("untimed").then("scrape"))


def _numbered(path: Path, distinct: pl.DataFrame, gathered: Gathered) -> pl.DataFrame:
    """Add the number of each series by name and label text, null if it is not read."""
    numbers = [gathered.number_of(path.name, name, _labels(labels or "")) for name, labels in distinct.iter_rows()]
    return distinct.with_columns(pl.Series("series", numbers, pl.Int32))


def _labels(block: str) -> dict[str, str]:
    return {name: _ESCAPES.sub(lambda one: _ESCAPED.get(one[1], one[1]), text) for name, text in _LABEL.findall(block)}


def _is_open_metrics(path: Path, limits: Limits) -> bool:
    """Return whether the file's last line declares times in seconds."""
    with open_decompressed(path, limits) as stream:
        last = b""
        try:
            while piece := stream.read(_PIECE_BYTES):
                last = (last + piece)[-64:]
        except DAMAGED as error:
            raise CaptureError(f"{path}: cannot be unpacked: {error}; copy the file again") from error
    return last.rstrip().endswith(b"# EOF")


def _pieces(path: Path, limits: Limits) -> Iterator[str]:
    """Yield the file in pieces of complete lines."""
    with open_decompressed(path, limits) as stream:
        left = b""
        while piece := stream.read(_PIECE_BYTES):
            whole, line_end, rest = (left + piece).rpartition(b"\n")
            left = rest
            if len(left) > limits.line_bytes:
                raise CaptureError(f"{path}: a line of more than {limits.line_bytes} bytes; no exporter writes one")
            if line_end:
                yield whole.decode("utf-8", "replace")
        if left:
            yield left.decode("utf-8", "replace")


def gather_answer(path: Path, gathered: Gathered) -> None:
    """Read the answer of `/api/v1/query_range` (a matrix) or `/api/v1/query` (a vector): times in seconds, values as
    text.

    CaptureError if it is damaged, or not a Prometheus response.
    """
    document = json_document(path, gathered.limits, "ask Prometheus again")
    data = document.get("data") if isinstance(document, dict) else None
    result = data.get("result") if isinstance(data, dict) else None
    if not isinstance(result, list):
        raise CaptureError(f"{path}: an answer of Prometheus without a result; ask again, and keep the whole answer")
    for one in result:
        if not isinstance(one, dict):
            raise CaptureError(f"{path}: a series of the result is no object; ask Prometheus again")
        pairs = one["values"] if "values" in one else [one.get("value")]
        if not isinstance(pairs, list) or {type(pair) for pair in pairs} - {list} or set(map(len, pairs)) - {2}:
            raise CaptureError(f"{path}: the values of a series are no pairs of time and value; ask Prometheus again")
        times, values = zip(*pairs, strict=True) if pairs else ((), ())
        _add(path, gathered, one.get("metric"), _numbers(times) * 1_000, values)


def gather_lines(path: Path, gathered: Gathered) -> None:
    """Read the lines of `/api/v1/export`, one series each, times in milliseconds.

    CaptureError if a line is damaged or too long.
    """
    most = min(gathered.limits.line_bytes, gathered.limits.document_bytes)
    with open_decompressed(path, gathered.limits) as stream:
        number = 0
        try:
            while line := stream.readline(most + 1):
                number += 1
                if len(line) > most:
                    raise CaptureError(f"{path}: line {number} has more than {most} bytes; export a shorter time")
                if line.strip():
                    _add_line(path, gathered, number, line)
        except DAMAGED as error:
            raise CaptureError(f"{path}: cannot be unpacked: {error}; copy the file again") from error


def _add_line(path: Path, gathered: Gathered, number: int, line: bytes) -> None:
    try:
        one = parsed(line.decode("utf-8", "replace"))
    except RecursionError as error:
        raise CaptureError(f"{path}: line {number} cannot be read as JSON: it is nested too deep") from error
    except ValueError as error:
        raise CaptureError(f"{path}: line {number} cannot be read as JSON: {error}; export again") from error
    values, times = (one.get(name) if isinstance(one, dict) else None for name in ("values", "timestamps"))
    if not isinstance(values, list) or not isinstance(times, list) or len(values) != len(times):
        raise CaptureError(f"{path}: line {number} has not as many timestamps as values; export again")
    _add(path, gathered, one.get("metric"), _numbers(times), values)


def _add(path: Path, gathered: Gathered, metric: Any, milliseconds: pl.Series, values: Sequence[Any]) -> None:
    """Add the values of one series; times are whole milliseconds, Prometheus' resolution."""
    gathered.values += len(values)
    stated = metric if isinstance(metric, Mapping) else {}
    labels = {str(name): text for name, text in stated.items() if isinstance(text, str)}
    number = gathered.number_of(path.name, labels.pop("__name__", "(an expression without a name)"), labels)
    if number is None:
        return
    frame = pl.DataFrame({"milliseconds": milliseconds, "value": _numbers(values)})
    times = _wall_time(pl.col("milliseconds")).alias("time_ns")
    gathered.add(path.name, frame.select(times, "value", series=pl.lit(number), scrape=pl.lit(None, pl.Int64)))


def _numbers(values: Sequence[Any]) -> pl.Series:
    """Convert numbers, and numeric texts; null for anything else."""
    return pl.Series(values, dtype=pl.String, strict=False).cast(pl.Float64, strict=False)


_MOST_HEADER_ROWS: Final = 16
_TIME: Final = "timestamp"


def gather_omnistat(path: Path, gathered: Gathered) -> None:
    """Read all columns of a CSV file of Omnistat.

    CaptureError if it is damaged, too large, or has no row that begins with `timestamp`.
    """
    content = read_decompressed(path, gathered.limits)
    header: dict[str, list[str]] = {}
    at = 0
    for _ in range(_MOST_HEADER_ROWS + 1):
        end = content.find(b"\n", at)
        line = content[at : end if end >= 0 else len(content)].decode("utf-8-sig", "replace")
        at = end + 1 if end >= 0 else len(content)
        name, *cells = (cell.strip().strip('"') for cell in line.split(","))
        if name == _TIME or end < 0:
            break
        header[name] = cells
    else:
        name = ""
    if name != _TIME or "metric" not in header:
        raise CaptureError(f"{path}: no row begins with `{_TIME}`: not what omnistat-query --export writes")
    count = len(header["metric"])
    if count > gathered.limits.columns:
        raise CaptureError(f"{path}: more than {gathered.limits.columns} columns; export the hosts of one run alone")
    rows = _rows(path, content[at:], count)
    # An empty cell repeats the one to its left, as in headers written by pandas.
    filled: dict[str, list[str]] = {name: list(accumulate(cells, _or_left)) for name, cells in header.items()}
    gathered.values += int(sum(rows.select(pl.exclude("0").count()).row(0))) if count else 0
    times = _times(rows.get_column("0"))
    for number in range(count):
        labels = {name: cells[number] for name, cells in filled.items() if number < len(cells) and cells[number]}
        series = gathered.number_of(path.name, labels.pop("metric", ""), labels)
        if series is None:
            continue
        texts = rows.get_column(f"{number + 1}").str.strip_chars()
        frame = pl.DataFrame({"time_ns": times, "text": texts}).filter(pl.col("text") != "")
        value = pl.col("text").cast(pl.Float64, strict=False).alias("value")
        gathered.add(path.name, frame.select("time_ns", value, series=pl.lit(series), scrape=pl.lit(None, pl.Int64)))


def _or_left(left: str, cell: str) -> str:
    return cell or left


def _rows(path: Path, content: bytes, count: int) -> pl.DataFrame:
    """Read the rows below the header as texts, columns named by position; missing cells of short rows are null."""
    schema = {f"{at}": pl.String for at in range(count + 1)}
    if not content.strip():
        return pl.DataFrame(schema=schema)
    try:
        return pl.read_csv(content, has_header=False, schema=schema, encoding="utf8-lossy", truncate_ragged_lines=True)
    except pl.exceptions.PolarsError as error:
        reason = str(error).partition("\n")[0]
        raise CaptureError(f"{path}: cannot be read as CSV: {reason}; export again") from error


def _times(texts: pl.Series) -> pl.Series:
    """Parse times such as `2025-01-01 10:00:00`, with or without fraction or UTC offset, to ns since the Unix epoch."""
    plain = texts.str.strip_chars().str.replace("T", " ").str.replace(r"(?:Z|\+00:00)$", "")
    return plain.str.to_datetime("%Y-%m-%d %H:%M:%S%.f", time_unit="ns", strict=False).dt.timestamp("ns")
