"""The stage `kernel_trace`: the kernels of the session's profiled pass and their times.

Profiles are read in `aaco_pipeline.capture` and kernel names parsed in `aaco_pipeline.analysis.kernels.names`. The
stage `timeline` computes totals.
"""

from typing import Final

import polars as pl

from aaco_pipeline.analysis.sessions import invariants
from aaco_pipeline.assets.stage import Check, Outcome, Session, stage
from aaco_pipeline.lake.validation import to_contract

_TABLES: Final = (
    *("kernels", "dispatches", "api_calls", "memory_copies", "markers", "counters", "operator_inputs"),
    *("memory_allocations", "synchronizations", "pc_samples", "reported_statistics", "captured_launches"),
)
_CHECKED: Final = ("dispatches", "iterations", "sessions")
_LOOKED_AT: Final = {"dispatches": ("iteration", "self_ns", "start_ns", "end_ns")}


@stage(
    reads=("sessions", "iterations"),
    publishes=_TABLES,
    group="capture",
    kinds=("rocm", "onnx", "parquet"),
    checks=(
        Check(
            "conservation",
            "Kernel self times of an iteration sum to no more than the iteration took.",
            invariants.kernels_fit_their_calls,
            _CHECKED,
            columns=_LOOKED_AT,
        ),
        Check(
            "coverage",
            "Every traced iteration has its kernels, and every kernel lies in its iteration.",
            invariants.kernels_cover_their_calls,
            _CHECKED,
            blocking=False,
            columns=_LOOKED_AT,
        ),
    ),
)
def kernel_trace(session: Session) -> Outcome:
    """Which kernels ran, when, and for how long? Control-flow operators are given their self time."""
    captured = session.capture.tables()
    tables = {name: captured[name] for name in _TABLES}
    dispatches = tables["dispatches"]
    if session.capture.facts().kernels_named_by == "compiler":
        # Import the kernel-name grammar only if a name needs it.
        from aaco_pipeline.analysis.kernels.names import classify_names, with_operators
        from aaco_pipeline.analysis.model.launching_operators import launching_operators

        operators = launching_operators(dispatches, tables["api_calls"]).rename({"duration_ns": "total_ns"})
        named = with_operators(classify_names(tables["kernels"]), operators)
        tables["kernels"] = to_contract("kernels", named.select(tables["kernels"].columns))
    counts = ("dispatches", "kernels", "api_calls", "memory_copies", "counters")
    return Outcome(
        tables,
        session.capture.evidence("trace"),
        {
            **{name: tables[name].height for name in counts},
            "below_resolution": int(dispatches.get_column("below_resolution").sum()),
        },
        dispatches.group_by("kernel_id")
        .agg(dispatches=pl.len(), total_ns=pl.col("self_ns").sum())
        .join(tables["kernels"], on="kernel_id")
        .group_by(kernel="short_name", family="family")
        .agg(pl.col("dispatches", "total_ns").sum())
        .sort("total_ns", "kernel", descending=[True, False]),
        "kernels",
    )
