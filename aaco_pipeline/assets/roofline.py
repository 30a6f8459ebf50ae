"""The stage `roofline`: what the devices can do at most, what each kernel did, and which resource was nearest its roof.

Ceilings and occupancy are `aaco_pipeline.hardware`, work from counters `aaco_pipeline.analysis.roofline.counter_work`,
work from the model `roofline_model`, figures `counter_metrics`, and the roofline itself `roofline`.
"""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final

import dagster as dg
import polars as pl

from aaco_pipeline.analysis.kernels.statistics import measured_dispatches
from aaco_pipeline.analysis.roofline import counter_work
from aaco_pipeline.analysis.roofline import derived_metrics as counter_metrics
from aaco_pipeline.analysis.roofline import model_based_work as roofline_model
from aaco_pipeline.analysis.roofline.fitted_ceilings import FITTED, fitted_ceilings
from aaco_pipeline.analysis.roofline.framework_work import framework_work
from aaco_pipeline.analysis.roofline.placement import placement
from aaco_pipeline.assets.kernel_trace import kernel_trace
from aaco_pipeline.assets.model_graph import model_graph
from aaco_pipeline.assets.partitions import session_partitions
from aaco_pipeline.assets.session_environment import session_environment
from aaco_pipeline.assets.stage import OWNERS, Outcome, expected_errors, publish_outcome, stage_metadata
from aaco_pipeline.assets.timeline import timeline
from aaco_pipeline.capture import ingested as ingested_capture
from aaco_pipeline.formats import kineto
from aaco_pipeline.formats.kineto.operator_shapes import read_operator_shapes
from aaco_pipeline.hardware.ceilings import missing_ceilings, spec_ceilings
from aaco_pipeline.hardware.device_facts import cache_bytes
from aaco_pipeline.hardware.kernel_occupancy import kernel_occupancy
from aaco_pipeline.lake.calibrations import ceilings_for
from aaco_pipeline.lake.contracts import polars_types
from aaco_pipeline.lake.evidence import Evidence, evidence_frame
from aaco_pipeline.lake.store import TraceLake
from aaco_pipeline.lake.validation import to_contract
from aaco_pipeline.report.html.roofline_plot import roofline_plot
from aaco_pipeline.report.html.svg import as_markdown_image
from aaco_pipeline.report.words.bottleneck_text import CALIBRATION
from aaco_pipeline.resources.dagster_resources import LakeResource

STAGE: Final = "roofline"
TABLES: Final = ("ceilings", "roofline", "resource_bounds", "occupancy", "counter_metrics", "evidence")
_READ: Final = (
    *("sessions", "environment", "devices", "kernels", "dispatches", "counters", "iterations", "kernel_stats"),
    *("model_nodes", "model_edges", "operator_kernels"),
)
_CPU: Final = "cpu"
Frames = Mapping[str, pl.DataFrame]


def read_roofline(lake: TraceLake, session: str) -> Outcome:
    """Ceilings, occupancy, and the nearest roof of every kernel whose work counters or the model tell."""
    tables = {name: lake.read(name, session).drop("session_id") for name in _READ}
    facts = _cpu_facts(tables["environment"])
    threads = _threads(tables["sessions"], facts)
    ceilings, told = _ceilings(lake, session, tables, facts, threads)
    counters = counter_metrics.counted(tables["counters"], tables["dispatches"], tables["devices"])
    capacities = _capacities(tables["devices"], facts, threads)
    work = _with_model(counter_work.work_of(counters), _modelled(lake, session, tables, ceilings, capacities))
    placed = placement(work, ceilings)
    fitted = fitted_ceilings(work, tables["devices"])
    figures = counter_metrics.metrics_of(counters)
    occupied = kernel_occupancy(tables["dispatches"], tables["kernels"], tables["devices"], _achieved(work))
    top = _by_time(placed.roofline, tables["kernels"], tables["kernel_stats"])
    found = {
        "ceilings": pl.concat([ceilings, to_contract("ceilings", fitted.ceilings)]),
        "roofline": placed.roofline,
        "resource_bounds": placed.bounds,
        "occupancy": occupied,
        "counter_metrics": figures,
    }
    told += [Evidence(f"envelope of {dtype} on device {i}", "absent", why) for i, dtype, why in fitted.refused]
    evidence = [*told, *_evidence(tables, found)]
    return Outcome(
        {
            **{name: to_contract(name, frame) for name, frame in found.items()},
            "evidence": evidence_frame(STAGE, evidence),
        },
        _headline(top),
        top.select("kernel", "bound", "efficiency_ratio", "share_ratio", "flags"),
        "kernels and their nearest roofs",
    )


def _ceilings(
    lake: TraceLake, session: str, tables: Frames, facts: Mapping[str, str], threads: int | None
) -> tuple[pl.DataFrame, list[Evidence]]:
    """Published ceilings, those that the capture brought along, and those of this machine's calibration."""
    devices = tables["devices"]
    extensions = frozenset((facts.get("extensions") or "").split())
    cpus = dict.fromkeys(devices.filter(pl.col("handle") == _CPU).get_column("device_id"), extensions)
    parts, told = [spec_ceilings(devices, cpus)], []
    for device, reasons in missing_ceilings(devices, cpus).items():
        told.append(Evidence(f"published ceilings of device {device}", "partial", "; ".join(reasons)))
    if ingested_capture.probe(lake.raw(session)):
        brought = ingested_capture.read(lake.raw(session)).reading().tables["ceilings"]
        parts.append(brought)
        if brought.height:
            told.append(Evidence(CALIBRATION, "present", None, "the capture", brought.height))
    elif cpus:
        measured = ceilings_for(lake.path, tables["environment"], devices, threads)
        if measured.frame is None:
            told.append(Evidence(CALIBRATION, "absent", measured.reason, "aaco calibrate"))
        else:
            parts.append(measured.frame)
            told.append(Evidence(CALIBRATION, "present", None, "aaco calibrate", measured.frame.height))
    return pl.concat([to_contract("ceilings", part) for part in parts]), told


def _with_model(counted: pl.DataFrame, modelled: pl.DataFrame) -> pl.DataFrame:
    """What counters say of dispatches, and what the model or the operators say of kernels that no counter saw."""
    unseen = modelled.join(counted.select("kernel_id").unique(), on="kernel_id", how="anti")
    return pl.concat([counted, unseen], how="diagonal_relaxed")


def _modelled(
    lake: TraceLake, session: str, tables: Frames, ceilings: pl.DataFrame, capacities: pl.DataFrame
) -> pl.DataFrame:
    """Work per kernel by the nodes of the model, or by the shapes that the launching operators were given."""
    if tables["model_nodes"].height:
        iterations = tables["iterations"].filter((pl.col("pass") == "trace") & (pl.col("phase") == "measure"))
        return roofline_model.model_work(tables, ceilings, capacities, iterations.height or None)
    shapes = _operator_shapes(lake.raw(session)) if ceilings.height else None
    if shapes is None:
        return pl.DataFrame(schema=polars_types("kernels", "kernel_id"))
    timed = tables["dispatches"].filter(pl.col("end_ns") >= pl.col("start_ns"))
    dispatches = measured_dispatches(timed, tables["iterations"])
    calls = lake.read("api_calls", session).drop("session_id")
    return framework_work(dispatches, calls, shapes, cache_bytes(tables["devices"]))


def _operator_shapes(raw: Path) -> pl.DataFrame | None:
    """The shapes that a Kineto trace recorded; of one that is not alone it cannot be told which operators' they are."""
    if not ingested_capture.probe(raw):
        return None
    files = [raw / ingested_capture.FILES_FOLDER / one["name"] for one in ingested_capture.read(raw).listed["files"]]
    traces = [path for path in files if kineto.probe(path)]
    return read_operator_shapes(traces[0]) if len(traces) == 1 else None


def _capacities(devices: pl.DataFrame, facts: Mapping[str, str], threads: int | None) -> pl.DataFrame:
    """device_id, resource, bytes of the caches of the CPU that so many threads can fill."""
    rows = []
    for device in devices.filter(pl.col("handle") == _CPU).get_column("device_id"):
        for resource, level in (("l1", "l1d"), ("l2", "l2"), ("l3", "l3")):
            size, count = facts.get(f"{level}_cache_bytes"), facts.get(f"{level}_caches")
            if size is not None and count is not None:
                rows.append((device, resource, int(size) * min(int(count), threads or int(count))))
    return pl.DataFrame(rows, schema={"device_id": pl.Int32, "resource": pl.String, "bytes": pl.Int64}, orient="row")


def _cpu_facts(environment: pl.DataFrame) -> dict[str, str]:
    """Facts of the category `cpu` that are known."""
    rows = environment.filter((pl.col("category") == _CPU) & pl.col("value").is_not_null())
    return dict(rows.select("key", "value").iter_rows())


def _threads(sessions: pl.DataFrame, facts: Mapping[str, str]) -> int | None:
    """The threads that were asked for, else the runtime's own choice: one for each CPU it may use."""
    asked = sessions.get_column("threads").first() if sessions.height else None
    usable = facts.get("usable_cpus")
    return asked if isinstance(asked, int) else int(usable) if usable is not None else None


def _achieved(work: pl.DataFrame) -> pl.DataFrame:
    return work.filter(pl.col("dispatch_id").is_not_null()).select("dispatch_id", "achieved_occupancy_ratio")


def _by_time(rows: pl.DataFrame, kernels: pl.DataFrame, stats: pl.DataFrame) -> pl.DataFrame:
    """The kernels' rows with name and share of the kernel time, the longest first."""
    named = rows.filter(pl.col("dispatch_id").is_null()).join(kernels.select("kernel_id", "name"), on="kernel_id")
    timed = named.join(stats.select("kernel_id", "share_ratio"), on="kernel_id", how="left")
    shown = timed.with_columns(kernel="name", flags=pl.col("quality_flags").list.join(", "))
    return shown.sort("share_ratio", "duration_ns", "kernel_id", descending=[True, True, False], nulls_last=True)


def _headline(top: pl.DataFrame) -> dict[str, int | float | str | None]:
    bound = top.filter(pl.col("bound").is_not_null())
    return {
        "kernels_placed": top.height,
        "kernels_bound": bound.height,
        "bound_of_longest_kernel": top.item(0, "bound") if top.height else None,
        "efficiency_of_longest_kernel": top.item(0, "efficiency_ratio") if top.height else None,
    }


def _evidence(tables: Frames, found: Frames) -> Iterator[Evidence]:
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
    if found["occupancy"].is_empty():
        reason = "no registers, local memory and work-group sizes of a known architecture are stated"
        yield Evidence("occupancy", "absent", reason)


@dg.asset(
    partitions_def=session_partitions,
    group_name="analysis",
    kinds={"polars", "parquet"},
    owners=OWNERS,
    deps=[session_environment, kernel_trace, timeline, model_graph],
    metadata=stage_metadata(TABLES),
)
def roofline(context: dg.AssetExecutionContext, lake: LakeResource) -> dg.MaterializeResult[None]:
    """How close did each kernel come to what its device can do, and which resource stood in the way?"""
    with expected_errors():
        store, session = lake.open(), context.partition_key
        outcome = read_roofline(store, session)
        result = publish_outcome(store, session, STAGE, outcome)
        top = _by_time(outcome.tables["roofline"], store.read("kernels", session), store.read("kernel_stats", session))
        roofs = outcome.tables["ceilings"].filter(pl.col("source") != FITTED)
        plot = roofline_plot(top.to_dicts(), roofs.to_dicts())
        if plot is None:
            return result
        image = dg.MetadataValue.md(as_markdown_image(plot, "roofline"))
        return result._replace(metadata={**(result.metadata or {}), "roofline": image})
