"""The stage `kernel_trace`: which kernels ran when, from the session's profiled pass.

On the CPU provider that is ONNX Runtime's own profile (`aaco_pipeline.formats.ort_profile`). What the times add up
to is the stage `timeline`.
"""

from typing import Final

import dagster as dg
import polars as pl

from aaco_pipeline.assets.capture import capture
from aaco_pipeline.assets.partitions import session_partitions
from aaco_pipeline.assets.stage import OWNERS, Outcome, expected_errors, publish_outcome, stage_metadata
from aaco_pipeline.capture import ingested as ingested_capture
from aaco_pipeline.capture import profiled as profiled_capture
from aaco_pipeline.formats import native as inference_capture
from aaco_pipeline.formats import ort_profile
from aaco_pipeline.formats.capture_tables import CaptureTables
from aaco_pipeline.lake.evidence import Evidence, evidence_frame
from aaco_pipeline.lake.store import TraceLake
from aaco_pipeline.lake.validation import empty_table, to_contract
from aaco_pipeline.resources.dagster_resources import LakeResource

STAGE: Final = "kernel_trace"
TABLES: Final = (
    *("kernels", "dispatches", "api_calls", "memory_copies", "markers", "counters"),
    *("memory_allocations", "synchronizations", "pc_samples", "reported_statistics", "evidence"),
)
_TRACE_PROCESS: Final = 1
_ABSENT: Final = (
    ("memory copies", "the runtime's profile does not record copies"),
    ("markers", "the runtime's profile has no marker ranges"),
    ("allocations, waits and samples", "the runtime's profile records none of them"),
    ("hardware counters", "the runtime's profile has no hardware counters; they need rocprofv3 on a ROCm host"),
    ("launch links", "the CPU provider calls its kernels directly: there are no launches to link"),
)


def read_kernel_trace(lake: TraceLake, session: str) -> Outcome:
    """Kernels, dispatches and runtime calls of the profiled pass; what its profile cannot hold is said absent."""
    if ingested_capture.probe(lake.raw(session)):
        return _of_profiler(ingested_capture.read(lake.raw(session)).reading())
    raw = inference_capture.read(lake.raw(session))
    if profiled_capture.base_pass(raw) is not None:
        return _of_profiler(profiled_capture.read(raw))
    if raw.passes["trace"]["profile"] is None:
        tables = {name: empty_table(name) for name in TABLES if name != "evidence"}
        missing = Evidence("kernel events", "absent", "the profiled pass left no profile", "trace.json", 0)
        return Outcome({**tables, "evidence": evidence_frame(STAGE, [missing])}, {"dispatches": 0})
    reading = ort_profile.read(
        raw.folder / inference_capture.PROFILE_FILE,
        axis_start_ns=raw.profile_axis_start_ns(),
        process_id=_TRACE_PROCESS,
    )
    provider = raw.capture["provider"]
    absent = [Evidence(item, "absent", reason, inference_capture.PROFILE_FILE) for item, reason in _ABSENT]
    if provider != "CPUExecutionProvider":
        absent.append(
            Evidence(
                "device kernels",
                "absent",
                f"the runtime's profile holds host-side times of the partitions that {provider} runs, not the "
                "kernels on the device; these need rocprofv3",
                inference_capture.PROFILE_FILE,
            )
        )
    dispatches, kernels = reading.tables["dispatches"], reading.tables["kernels"]
    return Outcome(
        {
            **{name: empty_table(name) for name in TABLES if name not in ("evidence", *reading.tables)},
            **reading.tables,
            "evidence": evidence_frame(STAGE, [*reading.evidence, *absent]),
        },
        {
            "dispatches": dispatches.height,
            "kernels": kernels.height,
            "below_resolution": int(dispatches.get_column("below_resolution").sum()),
        },
        dispatches.join(kernels, on="kernel_id")
        .group_by(operator="short_name")
        .agg(dispatches=pl.len(), self_ns=pl.col("self_ns").sum())
        .sort("self_ns", descending=True),
        "operators",
    )


def _of_profiler(reading: CaptureTables) -> Outcome:
    """All events that a GPU's own tool recorded, here or elsewhere, with what its readers found and missed."""
    # The grammar of kernels' names: only where there are such names.
    from aaco_pipeline.analysis.kernels.names import described, with_operators
    from aaco_pipeline.analysis.timeline.launching_operators import launching_operators

    tables = {name: reading.tables[name] for name in TABLES if name != "evidence"}
    dispatches = tables["dispatches"]
    operators = launching_operators(dispatches, tables["api_calls"]).rename({"duration_ns": "total_ns"})
    named = with_operators(described(tables["kernels"]), operators)
    tables["kernels"] = to_contract("kernels", named.select(tables["kernels"].columns))
    return Outcome(
        {**tables, "evidence": evidence_frame(STAGE, reading.evidence)},
        {name: tables[name].height for name in ("dispatches", "kernels", "api_calls", "memory_copies", "counters")},
        dispatches.join(tables["kernels"], on="kernel_id")
        .group_by(kernel="short_name", family="family")
        .agg(dispatches=pl.len(), total_ns=pl.col("self_ns").sum())
        .sort("total_ns", descending=True),
        "kernels",
    )


@dg.asset(
    partitions_def=session_partitions,
    group_name="capture",
    kinds={"onnx", "parquet"},
    owners=OWNERS,
    deps=[capture],
    metadata=stage_metadata(TABLES),
)
def kernel_trace(context: dg.AssetExecutionContext, lake: LakeResource) -> dg.MaterializeResult[None]:
    """Which kernels ran, when and for how long? Self time where a control-flow operator contains others."""
    with expected_errors():
        store = lake.open()
        return publish_outcome(store, context.partition_key, STAGE, read_kernel_trace(store, context.partition_key))
