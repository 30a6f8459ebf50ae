"""The text that an exporter shows to Prometheus: one scrape in a file, or many one after another, piece by piece.

The form is Prometheus' text exposition format, and OpenMetrics', which ends in `# EOF` and counts times in seconds.
"""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import polars as pl

from aaco_pipeline.errors import CaptureError
from aaco_pipeline.formats.capture_tables import Limits
from aaco_pipeline.formats.gpu_metrics.prometheus.gathering import Gathered
from aaco_pipeline.formats.gpu_metrics.prometheus.sensors import WRITTEN
from aaco_pipeline.formats.parsing.compression import DAMAGED, open_decompressed

_PIECE_BYTES: Final = 16 << 20
_NAME: Final = r"^\s*([A-Za-z_:][A-Za-z0-9_:]*)"
#: Name, labels, value, and the time where there is one; what follows a `#` is an exemplar.
_SAMPLE: Final = (
    r'^\s*[A-Za-z_:][A-Za-z0-9_:]*\s*(\{(?:[^"}]|"(?:[^"\\]|\\.)*")*\})?\s*'
    r"([^\s{}#]+)(?:[ \t]+([-+]?[0-9.eE+-]+))?[ \t]*(?:\r|#.*)?$"
)
_LABEL: Final = re.compile(r'([A-Za-z_][A-Za-z0-9_]*)\s*=\s*"((?:[^"\\]|\\.)*)"')
_ESCAPES: Final = re.compile(r"\\(.)")
_ESCAPED: Final = {"n": "\n"}


def gather(path: Path, gathered: Gathered) -> None:
    """All samples of a file; a sample without a time is of the scrape that it stands in.

    CaptureError when the file is damaged or too large.
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
        taken = taken.drop_nulls("series")
        scale = 1e9 if in_seconds else 1e6
        # Whole milliseconds: a double holds no nanoseconds of our time.
        milliseconds = (pl.col("stated").cast(pl.Float64, strict=False) * (scale / 1e6)).round()
        in_range = milliseconds.is_between(-9e12, 9e12)
        taken = taken.with_columns(
            time_ns=pl.when(in_range).then(milliseconds.cast(pl.Int64, strict=False) * 1_000_000),
            untimed=pl.col("stated").is_null(),
        )
        gathered.add(path.name, scrapes.counted(taken))


class _Scrapes:
    """Which scrape a sample without a time is of, counted over the pieces of one file.

    An exporter shows its series in one order, in which they are numbered: a scrape begins where a number falls.
    """

    def __init__(self) -> None:
        self._scrape, self._last = 0, -1

    def counted(self, taken: pl.DataFrame) -> pl.DataFrame:
        """With the column `scrape`, null for samples that have a time."""
        if not taken.height:
            return taken.with_columns(scrape=pl.lit(None, pl.Int64))
        begins = (pl.col("series") <= pl.col("series").shift(1, fill_value=self._last)).cast(pl.Int64)
        counted = taken.with_columns(scrape=begins.cum_sum() + self._scrape)
        self._scrape, self._last = counted.item(-1, "scrape"), counted.item(-1, "series")
        return counted.with_columns(scrape=pl.when("untimed").then("scrape"))


def _numbered(path: Path, distinct: pl.DataFrame, gathered: Gathered) -> pl.DataFrame:
    """The number of each series by name and text of its labels, null where it is not read."""
    rows = [
        (name, labels, gathered.number_of(path.name, name, _labels(labels or "")))
        for name, labels in distinct.iter_rows()
    ]
    schema = {"name": pl.String, "labels": pl.String, "series": pl.Int32}
    return pl.DataFrame(rows, schema=schema, orient="row")


def _labels(block: str) -> dict[str, str]:
    return {name: _ESCAPES.sub(lambda one: _ESCAPED.get(one[1], one[1]), text) for name, text in _LABEL.findall(block)}


def _is_open_metrics(path: Path, limits: Limits) -> bool:
    """Whether the file says by its last line that its times are in seconds."""
    with open_decompressed(path, limits) as stream:
        last = b""
        try:
            while piece := stream.read(_PIECE_BYTES):
                last = (last + piece)[-64:]
        except DAMAGED as error:
            raise CaptureError(f"{path}: cannot be unpacked: {error}; copy the file again") from error
    return last.rstrip().endswith(b"# EOF")


def _pieces(path: Path, limits: Limits) -> Iterator[str]:
    """The file in pieces of whole lines."""
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
