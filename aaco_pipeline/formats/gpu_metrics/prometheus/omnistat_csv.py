"""The CSV files of `omnistat-query --export`: a column for each series, whose labels stand in the rows above it.

The first cell of each of these rows names the label, that of the metric's row is `metric`; a row that begins with
`timestamp` ends them. Times are UTC, as Omnistat itself reads them. The export leaves out every label that it has no
row for, so that a temperature does not say where it was taken.
"""

import io
from itertools import accumulate
from pathlib import Path
from typing import Final

import polars as pl

from aaco_pipeline.errors import CaptureError
from aaco_pipeline.formats.gpu_metrics.prometheus.gathering import Gathered
from aaco_pipeline.formats.parsing.compression import read_decompressed

_MOST_LABELS: Final = 16
_TIME: Final = "timestamp"


def gather(path: Path, gathered: Gathered) -> None:
    """All columns of a file. CaptureError when it is damaged, too large, or has no row that begins with `timestamp`."""
    content = read_decompressed(path, gathered.limits)
    header: dict[str, list[str]] = {}
    at = 0
    for _ in range(_MOST_LABELS + 1):
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
    # A cell that is empty has what stands to its left, as pandas writes such headers.
    filled = {name: list(accumulate(cells, _or_left)) for name, cells in header.items()}
    gathered.values += int(sum(rows.select(pl.exclude("0").count()).row(0))) if count else 0
    times = _times(rows.get_column("0"))
    for number in range(count):
        labels = {name: cells[number] for name, cells in filled.items() if number < len(cells) and cells[number]}
        series = gathered.number_of(path.name, labels.pop("metric", ""), labels)
        if series is None:
            continue
        column = rows.get_column(f"{number + 1}")
        frame = pl.DataFrame({"time_ns": times, "text": column}).filter(pl.col("text").str.strip_chars() != "")
        gathered.add(
            path.name,
            frame.select(
                "time_ns",
                series=pl.lit(series, pl.Int32),
                scrape=pl.lit(None, pl.Int64),
                value=pl.col("text").str.strip_chars().cast(pl.Float64, strict=False),
            ),
        )


def _or_left(left: str, cell: str) -> str:
    return cell or left


def _rows(path: Path, content: bytes, count: int) -> pl.DataFrame:
    """The rows under the header as texts, columns named by their positions; a short row's missing cells are null."""
    schema = {f"{at}": pl.String for at in range(count + 1)}
    if not content.strip():
        return pl.DataFrame(schema=schema)
    try:
        return pl.read_csv(
            io.BytesIO(content),
            has_header=False,
            schema=schema,
            encoding="utf8-lossy",
            truncate_ragged_lines=True,
        )
    except pl.exceptions.PolarsError as error:
        reason = str(error).partition("\n")[0]
        raise CaptureError(f"{path}: cannot be read as CSV: {reason}; export again") from error


def _times(texts: pl.Series) -> pl.Series:
    """Nanoseconds after the Unix epoch of `2025-01-01 10:00:00`, with or without a fraction or an offset from UTC."""
    plain = texts.str.strip_chars().str.replace("T", " ").str.replace(r"(?:Z|\+00:00)$", "")
    return plain.str.to_datetime("%Y-%m-%d %H:%M:%S%.f", time_unit="ns", strict=False).dt.timestamp("ns")
