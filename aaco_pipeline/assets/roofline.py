"""The stage `roofline`: device ceilings, the work of each kernel, and the resource nearest its ceiling.

Ceilings and occupancy come from `aaco_pipeline.hardware`; work, counters and the roofline from
`aaco_pipeline.analysis.roofline`.
"""

from collections.abc import Iterator, Mapping
from typing import Final

import polars as pl

from aaco_pipeline.analysis.completeness.counters import UNTRUSTED, trusted
from aaco_pipeline.analysis.roofline import counter_metrics
from aaco_pipeline.analysis.roofline.fitted_ceilings import fitted_ceilings
from aaco_pipeline.analysis.roofline.framework_work import operator_launches, operator_shapes
from aaco_pipeline.analysis.roofline.kernel_work import (
    CPU,
    Tables,
    cache_capacities,
    cpu_facts,
    kernels_by_time,
    threads_of,
    work_of_kernels,
)
from aaco_pipeline.analysis.roofline.operators.graph_replays import graph_evidence, replays
from aaco_pipeline.analysis.roofline.placement import placement
from aaco_pipeline.analysis.sessions import invariants
from aaco_pipeline.assets.stage import FINDINGS, Check, Outcome, Session, stage
from aaco_pipeline.hardware.ceilings import missing_ceilings, reported_ceilings, spec_ceilings
from aaco_pipeline.hardware.device_facts import cache_bytes
from aaco_pipeline.hardware.occupancy import kernel_occupancy, why_no_limits
from aaco_pipeline.lake.calibrations import ceilings_for, gpu_ceilings_for
from aaco_pipeline.lake.evidence import Evidence
from aaco_pipeline.lake.validation import to_contract
from aaco_pipeline.report.html.roofline_plot import roofline_of_session

_READ: Final = (
    *("sessions", "environment", "devices", "kernels", "dispatches", "counters", "iterations", "kernel_stats"),
    *("model_nodes", "model_edges", "operator_kernels", "api_calls", "memory_copies", "operator_inputs"),
    *(FINDINGS, "captured_launches"),
)
#: `evidence` item for the ceilings of a calibrated machine.
_CALIBRATION: Final = "measured ceilings"
_OPERATORS: Final = ("dispatches", "memory_copies", "api_calls", "operator_inputs", "kernels")
_REPLAYS: Final = ("dispatches", "memory_copies", "api_calls", "kernels", "captured_launches")
_TABLES: Final = ("ceilings", "roofline", "resource_bounds", "occupancy", "counter_metrics", "operator_shapes")


@stage(
    reads=_READ,
    publishes=_TABLES,
    group="analysis",
    kinds=("polars", "rocm", "parquet"),
    checks=(
        Check(
            "plausibility",
            "No kernel is above what its device can do by its published figures.",
            lambda tables: invariants.roofs_are_plausible(tables["resource_bounds"]),
            ("resource_bounds",),
            blocking=False,
        ),
    ),
    plots={"roofline": roofline_of_session},
)
def roofline(session: Session) -> Outcome:
    """How close did each kernel come to its device's limits, and which resource limited it?"""
    tables = session.tables(*_READ)
    facts = cpu_facts(tables["environment"])
    threads = threads_of(tables["sessions"], facts)
    ceilings, said = _ceilings(session, tables, facts, threads)
    measured = (tables["dispatches"], tables["devices"])
    if tables[FINDINGS].get_column("finding").is_in(UNTRUSTED).any():
        tables["counters"] = trusted(tables["counters"], *measured)
    counters = counter_metrics.counted(tables["counters"], *measured)
    replayed = replays(*(tables[name] for name in _REPLAYS))
    operators = operator_launches(*(tables[name] for name in _OPERATORS), replays=replayed)
    capacities = cache_capacities(tables["devices"], facts, threads)
    work = work_of_kernels(counters, tables, operators, ceilings, capacities)
    placed = placement(work, ceilings)
    fitted = fitted_ceilings(work, tables["devices"])
    achieved = work.filter(pl.col("dispatch_id").is_not_null()).select("dispatch_id", "achieved_occupancy_ratio")
    found = {
        "ceilings": pl.concat([ceilings, to_contract("ceilings", fitted.ceilings)]),
        "roofline": placed.roofline,
        "resource_bounds": placed.bounds,
        "occupancy": kernel_occupancy(tables["dispatches"], tables["kernels"], tables["devices"], achieved),
        "counter_metrics": counter_metrics.metrics_of(counters),
        "operator_shapes": operator_shapes(operators, cache_bytes(tables["devices"]), ceilings),
    }
    said += [Evidence(f"envelope of {dtype} on device {i}", "absent", why) for i, dtype, why in fitted.refused]
    top = kernels_by_time({**tables, **found})
    return Outcome(
        {name: to_contract(name, frame) for name, frame in found.items()},
        [*said, *_evidence(tables, found), *graph_evidence(replayed, tables["captured_launches"], tables["kernels"])],
        {
            "kernels_placed": top.height,
            "kernels_bound": top.height - top.get_column("bound").null_count(),
            "bound_of_longest_kernel": top.item(0, "bound") if top.height else None,
            "efficiency_of_longest_kernel_ratio": top.item(0, "efficiency_ratio") if top.height else None,
        },
        top.select("kernel", "bound", "efficiency_ratio", "share_ratio", "flags"),
        "kernels and their nearest roofs",
    )


def _ceilings(
    session: Session, tables: Tables, facts: Mapping[str, str], threads: int | None
) -> tuple[pl.DataFrame, list[Evidence]]:
    """Collect published and reported ceilings, those in the capture, and this machine's calibration."""
    devices = tables["devices"]
    extensions = frozenset((facts.get("extensions") or "").split())
    cpus = dict.fromkeys(devices.filter(pl.col("handle") == CPU).get_column("device_id"), extensions)
    brought = session.capture.tables()["ceilings"]
    published = spec_ceilings(devices, cpus)
    parts, said = [published, reported_ceilings(devices, published), brought], []
    for device, reasons in missing_ceilings(devices, cpus).items():
        said.append(Evidence(f"published ceilings of device {device}", "partial", "; ".join(reasons)))
    if brought.height:
        said.append(Evidence(_CALIBRATION, "present", None, "the capture", brought.height))
    if cpus and session.capture.facts().ran_here:
        measured = ceilings_for(session.lake.path, tables["environment"], devices, threads)
        if measured.frame is None:
            said.append(Evidence(_CALIBRATION, "absent", measured.reason, "aaco calibrate"))
        else:
            parts.append(measured.frame)
            said.append(Evidence(_CALIBRATION, "present", None, "aaco calibrate", measured.frame.height))
    for device, of_gpu in gpu_ceilings_for(session.lake.path, tables["environment"], devices).items():
        if of_gpu.frame is not None:
            parts.append(of_gpu.frame)
            said.append(
                Evidence(f"calibration of device {device}", "present", None, "aaco calibrate", of_gpu.frame.height)
            )
        elif session.capture.facts().ran_here:
            said.append(Evidence(f"calibration of device {device}", "absent", of_gpu.reason, "aaco calibrate"))
    return pl.concat([to_contract("ceilings", part) for part in parts]), said


def _evidence(tables: Tables, found: Tables) -> Iterator[Evidence]:
    counters, placed = tables["counters"].height, found["roofline"]
    if counters:
        yield Evidence("work by counters", "present", None, "counters", counters)
    else:
        yield Evidence("work by counters", "absent", "the session has no counters", "counters", 0)
    whole = placed.filter(pl.col("dispatch_id").is_null())
    modelled = whole.filter(pl.col("quality_flags").list.contains("model_based")).height
    if modelled:
        reason = f"the work of {modelled} kernels is their operators' by formula and shapes, not counted"
        yield Evidence("work by the model", "partial", reason, None, modelled)
    unknown = tables["kernels"].height - whole.height
    if unknown:
        reason = f"neither counters nor the model tell the work of {unknown} of {tables['kernels'].height} kernels"
        yield Evidence("roofline", "partial" if whole.height else "absent", reason, None, whole.height)
    yield from _shapes_evidence(tables, found["operator_shapes"])
    if found["occupancy"].is_empty():
        reason = "no registers, local memory and work-group sizes of a known architecture are stated"
        yield Evidence("occupancy", "absent", why_no_limits(tables["devices"]) or reason)


def _shapes_evidence(tables: Tables, shapes: pl.DataFrame) -> Iterator[Evidence]:
    """Report whether the operators' work is known and, if not, for how many it is missing and why."""
    if tables["operator_inputs"].is_empty() and shapes.is_empty():
        if tables["dispatches"].height:
            reason = "no inputs of framework operators are recorded; PyTorch's profiler does with record_shapes=True"
            yield Evidence("work by operators' shapes", "absent", reason, "operator_inputs", 0)
        return
    unknown = shapes.filter(pl.col("reason").is_not_null())
    if unknown.is_empty():
        yield Evidence("work by operators' shapes", "present", None, "operator_inputs", shapes.height)
        return
    time = pl.col("kernel_ns") + pl.col("copy_ns")
    first = unknown.sort(time, "reason", descending=[True, False]).item(0, "reason")
    reason = f"of {unknown.height} of {shapes.height} operators and shapes it is not known in full, first: {first}"
    yield Evidence("work by operators' shapes", "partial", reason, "operator_inputs", shapes.height)
