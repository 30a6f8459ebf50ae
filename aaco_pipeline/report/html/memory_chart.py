"""A kernel's traffic by level of memory, placed for `templates/kernel/memory.svg.jinja`.

From the compute units down: the LDS and the vector L1, then L2, the fabric and DRAM, joined by arrows as wide as the
bytes that passed. What was not counted is hollow and has no width of its own.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from aaco_pipeline.report.words.kernel import SOURCES, rate_text
from aaco_pipeline.report.words.units import share, size

Row = Mapping[str, Any]

#: How wide the arrow of the most bytes is, the least that is still seen, and one of which nothing is known.
_WIDEST: Final = 40.0
_LEAST: Final = 2.0
_HOLLOW: Final = 14.0
#: How a row says that its bytes are those of operators' shapes, and that DRAM's may have come from the cache before it.
_MODEL_BASED: Final = "model_based"
_ASSUMED: Final = "infinity_cache_not_excluded"


@dataclass(frozen=True)
class Level:
    """What passed above one level of memory, per dispatch where their number is known.

    `width` is the arrow's, None where nothing was counted; `said` are the lines beside the arrow, `inside` those in the
    level's box under its name.
    """

    key: str
    name: str
    bytes_: int | None
    width: float
    said: tuple[str, ...]
    inside: tuple[str, ...]


def memory_levels(kernel: Row, bounds: Sequence[Row], metrics: Mapping[str, float]) -> list[Level]:
    """The levels from LDS to DRAM; empty where no counter tells of any.

    `kernel` is a row of `roofline` with counted_ns (its duration) and counted (its dispatches), `bounds` its rows of
    `resource_bounds`, `metrics` figures of `counter_metrics` by name.
    """
    flags = kernel["quality_flags"] or ()
    if _MODEL_BASED in flags:
        return []
    by_source = sorted(bounds, key=lambda row: [*SOURCES].index(row["ceiling_source"]))
    counted = [row for row in by_source if row["unit"] == "byte" and row["work_source"] == "counters"]
    best = {row["resource"]: row for row in reversed(counted)}
    read, written = kernel["fabric_read_bytes"], kernel["fabric_write_bytes"]
    fabric = None if read is None and written is None else (read or 0) + (written or 0)
    dram = round(best["dram"]["work"]) if "dram" in best else None
    found = {
        "lds": kernel["lds_traffic_bytes"],
        "vl1d": kernel["vl1d_traffic_bytes"],
        "l2": kernel["l2_traffic_bytes"],
        "fabric": fabric,
        "dram": dram,
    }
    if all(amount is None for amount in found.values()):
        return []
    most = max((amount for amount in found.values() if amount), default=0)
    behind = next((best[name] for name in ("fabric", "infinity_cache") if name in best), None)
    each = kernel["counted"] or 0
    directions = tuple(
        f"{size(round(amount / max(each, 1)))} {way}"
        for amount, way in ((read, "read"), (written, "written"))
        if amount is not None
    )
    inside = {
        "vl1d": _hits(metrics.get("vl1d_hit_ratio")),
        "l2": _hits(metrics.get("l2_hit_ratio")),
        "fabric": (", ".join(directions),) if directions else (),
        "dram": ("if the Infinity Cache served none",) if _ASSUMED in flags else (),
    }
    names = {"lds": "LDS", "vl1d": "vL1D", "l2": "L2", "fabric": "Fabric", "dram": "DRAM"}
    if "infinity_cache" in best:
        names["fabric"] = "Fabric and Infinity Cache"
    return [
        Level(
            key,
            name,
            found[key],
            _HOLLOW if found[key] is None else max(_LEAST, _WIDEST * (found[key] or 0) / most) if most else _LEAST,
            _said(found[key], each, kernel["counted_ns"], behind if key == "fabric" else best.get(key)),
            inside.get(key, ()),
        )
        for key, name in names.items()
    ]


def _said(amount: int | None, dispatches: int, time_ns: int | None, bound: Row | None) -> tuple[str, ...]:
    if amount is None:
        return ("not counted",)
    if not amount:
        return ("nothing passed",)
    lines = [f"{size(round(amount / dispatches))} a dispatch" if dispatches > 1 else str(size(amount))]
    rate = rate_text(amount, "byte", time_ns)
    lines += [rate] if rate else []
    if bound is not None and bound["share_ratio"] is not None:
        lines.append(f"{share(bound['share_ratio'])} of {SOURCES[bound['ceiling_source']]}")
    return tuple(lines)


def _hits(ratio: float | None) -> tuple[str, ...]:
    return () if ratio is None else (f"{share(ratio)} hits",)
