"""Operators with the shapes of their inputs, in words: for a terminal, for Markdown and for the page.

The rows are those of the table `operator_shapes`, with `share_of_time`.
"""

import json
from collections.abc import Callable, Mapping
from typing import Any, Final

from aaco_pipeline.report.words import bottleneck_text
from aaco_pipeline.report.words.session import Document, Row
from aaco_pipeline.report.words.units import duration, grouped, share, shortened, size, work

_LONGEST: Final = 60


def shapes_text(row: Row) -> str:
    """The shapes of the inputs with extents, such as `8944×1024, 1024×2816`, and what else tells the calls apart."""
    try:
        dims = json.loads(row["shapes"])
    except ValueError:
        dims = []
    shown = ", ".join(_shape(one) for one in dims if one) if isinstance(dims, list) else ""
    return "; ".join(part for part in (shortened(shown, _LONGEST), row["detail"]) if part)


def rate_text(row: Row) -> str | None:
    """Operations a second, where any are counted."""
    rate = row["achieved_flops_per_s"]
    return f"{work(rate)}/s" if rate else None


def bandwidth_text(row: Row) -> str | None:
    """Least bytes a second."""
    rate = row["achieved_bytes_per_s"]
    return None if rate is None else f"{size(rate)}/s"


def roof_text(row: Row) -> str | None:
    """How much of which roof, such as `58.6 % of matrix arithmetic`."""
    if row["share_ratio"] is None:
        return None
    return f"{share(row['share_ratio'])} of {bottleneck_text.resource(row['bound'])}"


def bus_text(row: Row) -> str:
    """Bus bandwidth as nccl-tests counts it."""
    return f"{row['bus_bytes_per_s'] / 1e9:,.4g} GB/s"


SHAPES: Final[Mapping[str, Callable[[Row], str | None]]] = {
    "operator": lambda row: row["operator"],
    "inputs": shapes_text,
    "format": lambda row: row["dtype"],
    "*calls": lambda row: grouped(row["call_count"]),
    "*time": lambda row: duration(row["kernel_ns"] + row["copy_ns"]),
    "*share": lambda row: share(row["share_of_time"]),
    "*work a call": lambda row: work(row["flops"]),
    "*rate": rate_text,
    "*least bytes": lambda row: size(row["least_bytes"]),
    "*bandwidth": bandwidth_text,
    "*of its roof": lambda row: share(row["share_ratio"]),
    "roof": lambda row: bottleneck_text.resource(row["bound"]),
}


#: Collectives of one operation, size and group; the rows of the part `collective_rates`.
COLLECTIVES: Final[Mapping[str, Callable[[Row], str | None]]] = {
    "collective": lambda row: row["name"],
    "*ranks": lambda row: grouped(row["expected_participants"]),
    "*message": lambda row: size(row["size_bytes"]),
    "*parts": lambda row: grouped(row["parts"]),
    "*median": lambda row: duration(row["median_ns"]),
    "*bus bandwidth": bus_text,
    "*of the links": lambda row: share(row["share_ratio"]),
    "what that says": lambda row: row["remark"],
}


def shapes_answer(document: Document) -> str:
    """Of how much of the operators' time it is known what they had to do, and which took longest."""
    rows = document["operator_shapes"]
    if not rows:
        return "No kernel of the session was launched by a framework operator whose inputs are recorded."
    total = sum(_time(row) for row in rows)
    known = sum(_time(row) for row in rows if row["flops"] is not None or row["least_bytes"] is not None)
    longest = rows[0]
    parts = [
        f"Operators and shapes: {len(rows):,}, on {duration(total)} of device time; what had to be done is known for "
        f"{share(known / total)} of it."
        if total
        else f"Operators and shapes: {len(rows):,}, without any time.",
        f"{longest['operator']} on {shapes_text(longest)} took longest, {share(longest['share_of_time'])}"
        + (f", at {rate}" if (rate := rate_text(longest)) else "")
        + (f", {roof}" if (roof := roof_text(longest)) else "")
        + ".",
    ]
    if captured := sum(_time(row) for row in rows if row["inputs_from"] != "trace"):
        parts.append(f"Of {share(captured / total)} of the time the inputs are those of captured graphs.")
    return " ".join(parts)


def _time(row: Row) -> int:
    return int(row["kernel_ns"] + row["copy_ns"])


def _shape(dims: Any) -> str:
    """`8944×1024`; of a list of tensors the first, and how many more."""
    if isinstance(dims, list) and dims and isinstance(dims[0], list):
        return f"[{_shape(dims[0])}{f' and {len(dims) - 1} more' if len(dims) > 1 else ''}]"
    return "×".join(str(size) for size in dims) if isinstance(dims, list) else "?"
