"""Series as JSON: the answer of a Prometheus query, and the lines of VictoriaMetrics' export."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import polars as pl

from aaco_pipeline.errors import CaptureError
from aaco_pipeline.formats.gpu_metrics.prometheus.gathering import Gathered
from aaco_pipeline.formats.parsing.compression import DAMAGED, open_decompressed
from aaco_pipeline.formats.parsing.json_document import json_document, parsed


def gather_answer(path: Path, gathered: Gathered) -> None:
    """The answer of `/api/v1/query_range` (a matrix) or `/api/v1/query` (a vector): times in seconds, values as text.

    CaptureError when it is damaged, or not what Prometheus answers.
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
    """The lines of `/api/v1/export`, each a series: times in milliseconds.

    CaptureError when a line is damaged or too long.
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
    """Take the values of one series; times are whole milliseconds, the smallest that Prometheus has."""
    gathered.values += len(values)
    stated = metric if isinstance(metric, Mapping) else {}
    labels = {str(name): text for name, text in stated.items() if isinstance(text, str)}
    number = gathered.number_of(path.name, labels.pop("__name__", "(an expression without a name)"), labels)
    if number is None:
        return
    frame = pl.DataFrame({"milliseconds": milliseconds.round(), "value": _numbers(values)}).select(
        series=pl.lit(number, pl.Int32),
        time_ns=pl.when(pl.col("milliseconds").is_between(-9e12, 9e12)).then(
            pl.col("milliseconds").cast(pl.Int64, strict=False) * 1_000_000
        ),
        scrape=pl.lit(None, pl.Int64),
        value="value",
    )
    gathered.add(path.name, frame)


def _numbers(values: Sequence[Any]) -> pl.Series:
    """Numbers, and texts of numbers, as they come; null for anything else."""
    return pl.Series(values, dtype=pl.String, strict=False).cast(pl.Float64, strict=False)
