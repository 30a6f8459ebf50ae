"""Read baselines of earlier tools: one JSON file of figures, without the sessions behind them.

Two forms are known. One names a baseline with `metrics`, each with its mean, minimum, maximum and sample count; the
other has `metadata`, `kernels` and `workload`. Implausible figures, which no device can reach, are rejected with one
line each. The remaining figures are descriptive only; no verdict may be based on them.
"""

import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import combinations
from pathlib import Path
from typing import Any, Final

from aaco_pipeline.errors import CaptureError
from aaco_pipeline.formats.capture_tables import Limits
from aaco_pipeline.formats.parsing.json_document import json_document

#: A baseline is about a page of text; a larger file is something else.
_MOST_BYTES: Final = 16 << 20
_KNOWN: Final = "a baseline has `metrics` beside `name` and `model_name`, or `metadata` beside `workload`"
_NANOSECONDS: Final[Mapping[str, float]] = {"ns": 1.0, "us": 1e3, "µs": 1e3, "ms": 1e6, "s": 1e9}
#: Figures of `session_metrics` by name, quantiles in ascending order.
_LATENCIES: Final[Mapping[str, str]] = {
    "p50": "latency_p50",
    "median": "latency_p50",
    "p90": "latency_p90",
    "p99": "latency_p99",
    "mean": "latency_mean",
    "avg": "latency_mean",
    "total_time": "latency_mean",
}
_QUANTILES: Final = ("latency_p50", "latency_p90", "latency_p99")
#: Words in names of figures that are never 0 on a running device: earlier tools wrote 0 for a failed reading.
_NEVER_ZERO: Final = ("power", "temperature", "clock", "latency", "time", "throughput", "memory_bw", "bandwidth")
#: No current device reaches this many operations per second.
_MOST_FLOPS_PER_S: Final = 2e16


@dataclass(frozen=True)
class StoredBaseline:
    """Figures of one file: `latencies_ns` by the names of `session_metrics`, and rejected figures with reasons.

    `facts` are the stated model_name, batch_size, precision and arch; `not_compared` names plausible figures without a
    counterpart in a session.
    """

    name: str
    latencies_ns: Mapping[str, float]
    facts: Mapping[str, Any]
    refused: tuple[str, ...]
    not_compared: tuple[str, ...]


@dataclass(frozen=True)
class _Figure:
    name: str
    value: Any
    unit: str
    low: Any = None
    high: Any = None
    count: Any = None


def read_stored_baseline(path: Path) -> StoredBaseline:
    """Read the figures of a baseline file. CaptureError if it is not one, or has no plausible latency."""
    document = json_document(path, Limits(document_bytes=_MOST_BYTES), "give a session or a baseline file")
    figures, facts, name = _taken_apart(document, path)
    _require_measured(document, path)
    refused, believed, not_compared = list[str](), dict[str, float](), list[str]()
    for figure in figures:
        if (why := _implausible(figure)) is not None:
            refused.append(f"{figure.name}: {why}")
        elif (latency := _latency(figure)) is not None:
            believed[latency[0]] = latency[1]
        else:
            not_compared.append(figure.name)
    quantiles = [(name, believed[name]) for name in _QUANTILES if name in believed]
    for (lower, shorter), (upper, longer) in combinations(quantiles, 2):
        if shorter > longer:
            refused.append(f"{lower} and {upper}: the lower quantile is the longer one")
            believed = {name: time for name, time in believed.items() if name not in (lower, upper)}
    if not believed:
        why = f": {refused[0]}" if refused else "; name figures as latency_p50_ms or with their unit"
        raise CaptureError(f"{path}: holds no latency that can be believed{why}")
    return StoredBaseline(name, believed, facts, tuple(refused), tuple(not_compared))


# ---- inside ----------------------------------------------------------------------------------------------------------


def _taken_apart(document: Any, path: Path) -> tuple[list[_Figure], dict[str, Any], str]:
    """Return the figures of either form, the facts it states, and the baseline's name."""
    if isinstance(document, dict):
        metrics, metadata = document.get("metrics"), document.get("metadata")
        if isinstance(metrics, dict) and isinstance(document.get("name"), str) and "model_name" in document:
            return list(_of_samples(metrics)), {"model_name": document["model_name"]}, document["name"]
        workload = document.get("workload")
        if isinstance(metadata, dict) and isinstance(workload, dict):
            kernels = document.get("kernels")
            figures = [_Figure(name, value, _unit(name)) for name, value in workload.items()]
            return (
                [*figures, *_of_kernels(kernels if isinstance(kernels, dict) else {})],
                _facts(metadata),
                _name(metadata, path),
            )
    raise CaptureError(f"{path}: is no baseline that is known: {_KNOWN}; `aaco diff` takes a session, too")


def _of_samples(metrics: Mapping[str, Any]) -> Iterator[_Figure]:
    for name, one in metrics.items():
        if isinstance(one, dict):
            unit = str(one.get("unit") or "") or _unit(name)
            yield _Figure(name, one.get("mean"), unit, one.get("min"), one.get("max"), one.get("count"))
        else:
            yield _Figure(name, one, _unit(name))


def _of_kernels(kernels: Mapping[str, Any]) -> Iterator[_Figure]:
    """Return a kernel's figures; its operations are converted to a rate, so that they can be checked."""
    for kernel, one in kernels.items():
        if not isinstance(one, dict):
            continue
        numbers = {name: value for name, value in one.items() if _is_number(value)}
        for name, value in numbers.items():
            yield _Figure(f"{kernel}.{name}", value, "" if name.startswith("latency") else _unit(name))
        flops, latency = numbers.get("flops"), numbers.get("latency_us")
        if flops is not None and latency:
            yield _Figure(f"{kernel}.flops in latency_us", flops / latency * 1e6, "flop/s")


def _facts(metadata: Mapping[str, Any]) -> dict[str, Any]:
    names = {"model_name": "model_name", "batch_size": "batch_size", "precision": "precision", "gpu_arch": "arch"}
    return {ours: metadata[theirs] for theirs, ours in names.items() if metadata.get(theirs) is not None}


def _name(metadata: Mapping[str, Any], path: Path) -> str:
    return str(metadata.get("baseline_id") or path.stem)


def _require_measured(document: Mapping[str, Any], path: Path) -> None:
    """Reject moving averages: they follow the runs they are compared with and measure no single state."""
    stated = [document, document.get("metadata"), document.get("version")]
    for held in (one for one in stated if isinstance(one, dict)):
        for key, value in held.items():
            if isinstance(value, str) and value.upper() == "MOVING_AVERAGE":
                raise CaptureError(f"{path}: {key} is {value}: it follows what it is compared with; pin a measurement")


def _unit(name: str) -> str:
    """Return the unit at the end of a name: `latency_p50_ms`."""
    found = re.search(r"_(ns|us|ms|s)$", name.lower())
    return found[1] if found else ""


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _implausible(figure: _Figure) -> str | None:
    """Return the first reason why a figure is impossible; None if it is plausible."""
    if not _is_number(figure.value) or not math.isfinite(figure.value):
        return f"{figure.value!r} is no figure"
    return next((why for is_fault, why in _faults(figure) if is_fault), None)


def _faults(figure: _Figure) -> Iterator[tuple[bool, str]]:
    name, value = figure.name.lower(), figure.value

    def named(*words: str) -> bool:
        return any(word in name for word in words)

    yield value < 0, f"{value:g} is below 0"
    yield value == 0 and named(*_NEVER_ZERO), f"{value:g} is a reading that failed"
    yield (value > 1 and named("ratio", "occupancy"), f"{value:g} is more than all of it: overlapping work was summed")
    yield value > 100 and named("pct", "util"), f"{value:g} % is more than all of it"
    is_rate = figure.unit == "flop/s"
    yield is_rate and value > _MOST_FLOPS_PER_S, f"{value:.3g} flop/s is more than any device carries out"
    yield _is_number(figure.count) and figure.count < 1, "it rests on no sample"
    low, high = figure.low, figure.high
    if _is_number(low) and _is_number(high):
        yield not low <= value <= high, f"its mean {value:g} lies outside its own {low:g} to {high:g}"


def _latency(figure: _Figure) -> tuple[str, float] | None:
    """Return the `session_metrics` name and nanoseconds of a figure; None if it has no counterpart there."""
    name, scale = figure.name.lower(), _NANOSECONDS.get(figure.unit)
    if (
        scale is None
        or "." in name
        or not ("latency" in name or name.startswith(("total_time", "p", "mean", "median")))
    ):
        return None
    words = name.removesuffix(f"_{figure.unit}")
    found = next((ours for theirs, ours in _LATENCIES.items() if theirs in words), None)
    if found is None and words == "latency":
        found = "latency_mean"
    return None if found is None else (found, figure.value * scale)
