"""The stage `telemetry`: what the host and the measured process did meanwhile, on the session's axis.

Sampling happened during the capture (`aaco_pipeline.resources.telemetry.sampler`); reading it is
`aaco_pipeline.formats.native.telemetry`.
"""

from typing import Final

import dagster as dg

from aaco_pipeline.assets.capture import capture
from aaco_pipeline.assets.partitions import session_partitions
from aaco_pipeline.assets.stage import OWNERS, Outcome, expected_errors, publish_outcome, stage_metadata
from aaco_pipeline.capture import ingested as ingested_capture
from aaco_pipeline.formats import native as inference_capture
from aaco_pipeline.formats.capture_tables import CaptureTables
from aaco_pipeline.formats.native import telemetry as telemetry_format
from aaco_pipeline.lake.evidence import Evidence, evidence_frame
from aaco_pipeline.lake.store import TraceLake
from aaco_pipeline.lake.validation import empty_table
from aaco_pipeline.resources.dagster_resources import LakeResource

STAGE: Final = "telemetry"
TABLES: Final = ("system_samples", "gpu_samples", "scheduler_events", "evidence")


def read_telemetry(lake: TraceLake, session: str) -> Outcome:
    """Samples of host and process, samples of GPUs, and scheduler events; what was not recorded is said absent."""
    if ingested_capture.probe(lake.raw(session)):
        return _of_ingested(ingested_capture.read(lake.raw(session)).reading())
    raw = inference_capture.read(lake.raw(session))
    zero = raw.axis_zero_monotonic_ns
    samples = telemetry_format.read(telemetry_format.load(raw.folder / telemetry_format.TELEMETRY_FILE), zero)
    document = telemetry_format.load(raw.folder / telemetry_format.SCHEDULER_FILE)
    recorded = document is not None and document.get("file") is not None
    scheduler = telemetry_format.read_scheduler(
        document,
        telemetry_format.scheduler_lines(raw.folder / str(document["file"])) if recorded and document else (),
        {one["process_id"] for one in raw.passes.values()},
        zero,
    )
    tables = {**samples.tables, **scheduler.tables}
    busy = tables["system_samples"].get_column("cpu_ratio").mean()
    return Outcome(
        {**tables, "evidence": evidence_frame(STAGE, [*samples.evidence, *scheduler.evidence])},
        {
            "samples": tables["system_samples"].height,
            "host_cpu_ratio": busy if isinstance(busy, float) else None,
            "scheduler_events": tables["scheduler_events"].height,
        },
    )


def _of_ingested(reading: CaptureTables) -> Outcome:
    """The samples of GPUs that came with the capture; nobody sampled its host."""
    samples = reading.tables["gpu_samples"]
    items = [
        Evidence("gpu samples", "present", None, None, samples.height)
        if samples.height
        else Evidence("gpu samples", "absent", "the capture holds no gpu_metrics tables"),
        Evidence("system samples", "absent", "the capture was made elsewhere; its host was not sampled"),
        Evidence("scheduler events", "absent", "the capture was made elsewhere"),
    ]
    rest = {name: empty_table(name) for name in ("system_samples", "scheduler_events")}
    return Outcome({"gpu_samples": samples, **rest, "evidence": evidence_frame(STAGE, items)}, {"samples": 0})


@dg.asset(
    partitions_def=session_partitions,
    group_name="capture",
    kinds={"linux", "parquet"},
    owners=OWNERS,
    deps=[capture],
    metadata=stage_metadata(TABLES),
)
def telemetry(context: dg.AssetExecutionContext, lake: LakeResource) -> dg.MaterializeResult[None]:
    """What were the machine and the measured process doing meanwhile?"""
    with expected_errors():
        store = lake.open()
        return publish_outcome(store, context.partition_key, STAGE, read_telemetry(store, context.partition_key))
