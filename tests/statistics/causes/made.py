"""Sessions made up from a list of activities a step, as tables of the lake."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import polars as pl

from aaco_pipeline.lake.validation import empty_table, to_contract
from aaco_pipeline.statistics.causes.accounts import ACCOUNTED_FROM
from aaco_pipeline.statistics.causes.arms import FACTS, Arm, arm

Tables = dict[str, pl.DataFrame]


@dataclass(frozen=True)
class Ran:
    """One activity of a step: a kernel for an operator, how long, the idle time before it and why."""

    kernel: str
    ns: int
    gap_ns: int = 0
    cause: str = "launch_latency"
    operator: str | None = None
    family: str | None = "elementwise"
    library: str | None = "pytorch"
    dtype: str | None = None
    launch: int = 256
    outermost: str | None = None


GEMM: Final = Ran("sgemm", 900, 100, operator="aten::mm", family="gemm", library="cublas")
ADD: Final = Ran("add", 400, 100, operator="aten::add")
NORM: Final = Ran("norm", 500, 100, operator="aten::norm", family="norm")
STEP: Final = (GEMM, ADD, NORM)


def session(
    step: Sequence[Ran],
    steps: int = 3,
    *,
    block: int | None = None,
    clock_mhz: float | None = None,
    latency_ns: Sequence[int] = (),
    environment: Mapping[tuple[str, str], str | None] | None = None,
    facts: Mapping[str, Any] | None = None,
    product: str = "one GPU",
) -> Tables:
    """The tables of a session of equal steps, one after the other; the last one's end is a tenth of a us late."""
    rows, gaps, iterations, now = [], [], [], 1_000
    for number in range(steps):
        begun = now
        for one in step:
            rows.append((one, now + one.gap_ns, now + one.gap_ns + one.ns, number))
            if one.gap_ns and len(rows) > 1:
                gaps.append((now, now + one.gap_ns, one.cause, len(rows) - 1))
            now += one.gap_ns + one.ns
        iterations.append(("trace", number, "measure", begun, now, now - begun))
    kernels = {one.kernel: one for one in step}
    place = {name: at for at, name in enumerate(kernels)}
    made = {
        "sessions": _one("sessions", source_kind="capture", block=block, **dict(facts or {})),
        "devices": _one("devices", device_id=0, product=product),
        "iterations": _table(
            "iterations",
            ("pass", "iteration", "phase", "start_ns", "end_ns", "latency_ns"),
            [*iterations, *(("latency", at, "measure", None, None, ns) for at, ns in enumerate(latency_ns))],
        ),
        "kernels": _table(
            "kernels",
            ("kernel_id", "name", "short_name", "family", "library", "dtype", "role", "family_source"),
            [(place[k], k, k[:20], o.family, o.library, o.dtype, "main", "name") for k, o in kernels.items()],
        ),
        "dispatches": _table(
            "dispatches",
            (
                *("dispatch_id", "process_id", "device_id", "kernel_id", "start_ns", "end_ns", "self_ns"),
                *("below_resolution", "grid_work_items", "workgroup_work_items"),
            ),
            [(at, 0, 0, place[o.kernel], a, b, b - a, False, o.launch, 64) for at, (o, a, b, _) in enumerate(rows)],
        ),
        "gaps": _table(
            "gaps",
            ("device_id", "start_ns", "end_ns", "cause", "next_activity_kind", "next_activity_id"),
            [(0, a, b, cause, "dispatch", at) for a, b, cause, at in gaps],
        ),
        "operator_kernels": _operators(rows, place),
        "environment": _table(
            "environment",
            ("category", "key", "value", "in_fingerprint"),
            [(category, key, value, True) for (category, key), value in (environment or {}).items()],
        ),
        "gpu_samples": _table(
            "gpu_samples",
            ("time_ns", "device_id", "gfx_clock_mhz"),
            [] if clock_mhz is None else [(at, 0, clock_mhz) for at in range(1_000, now, 500)],
        ),
    }
    return {name: made.get(name, empty_table(name)) for name in (*ACCOUNTED_FROM, *FACTS)}


def arm_of(*sessions: Tables) -> Arm:
    """Sessions as one side of a comparison."""
    return arm({f"session {at}": tables for at, tables in enumerate(sessions)})


# ---- inside ----------------------------------------------------------------------------------------------------------


def _operators(rows: Sequence[tuple[Ran, int, int, int]], place: Mapping[str, int]) -> pl.DataFrame:
    known = [(one.operator, one.outermost or one.operator, place[one.kernel], b - a) for one, a, b, _ in rows]
    frame = pl.DataFrame(known, schema=["operator", "outermost_operator", "kernel_id", "ns"], orient="row")
    frame = frame.with_columns(pl.col("operator", "outermost_operator").cast(pl.String))
    summed = frame.group_by("operator", "outermost_operator", "kernel_id", maintain_order=True).agg(
        dispatch_count=pl.len(), total_ns=pl.col("ns").sum()
    )
    match = pl.when(pl.col("operator").is_null()).then(pl.lit("unattributed")).otherwise(pl.lit("correlation"))
    return to_contract("operator_kernels", summed.with_columns(match=match))


def _table(name: str, columns: Sequence[str], rows: Sequence[Sequence[Any]]) -> pl.DataFrame:
    return to_contract(name, pl.DataFrame(rows, schema=list(columns), orient="row", infer_schema_length=None))


def _one(name: str, **values: Any) -> pl.DataFrame:
    return to_contract(name, pl.DataFrame({key: [value] for key, value in values.items()}))
