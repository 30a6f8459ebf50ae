"""What a measured process itself saw of the machine between blocks of iterations, and what a fault cost it."""

from collections.abc import Mapping
from typing import Any, Final

import polars as pl

_PROBES: Final[dict[str, pl.DataType | type[pl.DataType]]] = {
    **{"pass": pl.String, "before_iteration": pl.Int32, "cpu": pl.Int32, "start_ns": pl.Int64, "end_ns": pl.Int64},
    **{"gap_start_ns": pl.List(pl.Int64), "gap_end_ns": pl.List(pl.Int64)},
}
_COSTS: Final = {"pass": pl.String, "minor_fault_ns": pl.Float64}


def read_probes(passes: Mapping[str, Mapping[str, Any]], axis_zero_monotonic_ns: int) -> dict[str, pl.DataFrame]:
    """`kernel_probes`: a row a probe with the gaps between its readings of the clock, on the session's axis; and
    `kernel_costs`: what a page fault cost each pass's process. No rows of passes without a kernel plane.
    """
    zero = axis_zero_monotonic_ns
    probes, costs = [], []
    for name, one in passes.items():
        if (probed := one.get("kernel_plane")) is None:
            continue
        costs.append((name, float(probed["minor_fault_ns"])))
        for probe in probed["probes"]:
            begins, ends = ([gap[side] - zero for gap in probe["gaps"]] for side in (0, 1))
            span = (probe["start_ns"] - zero, probe["end_ns"] - zero)
            probes.append((name, probe["before_iteration"], probe["cpu"], *span, begins, ends))
    return {
        "kernel_probes": pl.DataFrame(probes, schema=_PROBES, orient="row"),
        "kernel_costs": pl.DataFrame(costs, schema=_COSTS, orient="row"),
    }
