"""The stage `session_environment`: the facts about host and software under which the session was captured.

The facts were read at capture time (`aaco_pipeline.resources.host.facts`); which of them make sessions comparable is
`aaco_pipeline.analysis.sessions.environment`.
"""

from typing import Final

import dagster as dg
import polars as pl

from aaco_pipeline.analysis.sessions.environment import environment, fingerprint
from aaco_pipeline.assets.capture import capture
from aaco_pipeline.assets.partitions import session_partitions
from aaco_pipeline.assets.stage import OWNERS, Outcome, expected_errors, publish_outcome, stage_metadata
from aaco_pipeline.capture import ingested as ingested_capture
from aaco_pipeline.capture import profiled as profiled_capture
from aaco_pipeline.formats import native as inference_capture
from aaco_pipeline.formats.capture_tables import CaptureTables
from aaco_pipeline.formats.native import telemetry as telemetry_format
from aaco_pipeline.lake.evidence import Evidence, evidence_frame
from aaco_pipeline.lake.store import TraceLake
from aaco_pipeline.resources.dagster_resources import LakeResource

STAGE: Final = "session_environment"
TABLES: Final = ("environment", "devices", "processes", "clock_domains", "evidence")


def read_environment(lake: TraceLake, session: str) -> Outcome:
    """The session's environment, devices, processes and clocks, with the facts that could not be read as evidence."""
    if ingested_capture.probe(lake.raw(session)):
        return _of_ingested(ingested_capture.read(lake.raw(session)).reading())
    raw = inference_capture.read(lake.raw(session))
    rows = environment(raw.host["facts"])
    unknown = rows.filter(pl.col("value").is_null())
    items = [Evidence("host facts", "present", None, "host.json", rows.height - unknown.height)]
    if unknown.height:
        names = ", ".join(f"{category}.{key}" for category, key in unknown.select("category", "key").iter_rows())
        items.append(
            Evidence("further host facts", "absent", f"not stated by this host: {names}", "host.json", unknown.height)
        )
    devices, processes, clocks = raw.devices(), raw.processes(), raw.clock_domains()
    if profiled_capture.base_pass(raw) is not None:
        profiled = profiled_capture.read(raw).tables
        devices = pl.concat([devices, profiled["devices"]])
        processes = pl.concat([processes, profiled["processes"]])
        clocks = pl.concat([clocks, profiled["clock_domains"]])
    sampled = telemetry_format.read(
        telemetry_format.load(raw.folder / telemetry_format.TELEMETRY_FILE), raw.axis_zero_monotonic_ns
    ).details.get("gpu_devices")
    if sampled is not None:  # what the profiler says of a device goes before what its sampler saw
        devices = pl.concat([devices, sampled]).unique("device_id", keep="first", maintain_order=True)
    return Outcome(
        {
            "environment": rows,
            "devices": devices,
            "processes": processes,
            "clock_domains": clocks,
            "evidence": evidence_frame(STAGE, items),
        },
        {"fingerprint": fingerprint(rows), "facts": rows.height, "facts_unknown": unknown.height},
        rows.drop_nulls("value").select("category", "key", "value"),
        "environment",
    )


def _of_ingested(reading: CaptureTables) -> Outcome:
    """What the capture states of where it was made; a fact it does not state is not known."""
    rows = reading.tables["environment"]
    items = [
        Evidence("host facts", "partial", "only what the capture states", None, rows.height)
        if rows.height
        else Evidence("host facts", "absent", "the capture does not describe host and software", None, 0)
    ]
    tables = {name: reading.tables[name] for name in TABLES if name != "evidence"}
    return Outcome(
        {**tables, "evidence": evidence_frame(STAGE, items)},
        {"devices": tables["devices"].height, "processes": tables["processes"].height, "facts": rows.height},
        tables["devices"].select("device_id", "vendor", "arch", "product", "compute_units"),
        "devices",
    )


@dg.asset(
    partitions_def=session_partitions,
    group_name="capture",
    kinds={"linux", "parquet"},
    owners=OWNERS,
    deps=[capture],
    metadata=stage_metadata(TABLES),
)
def session_environment(context: dg.AssetExecutionContext, lake: LakeResource) -> dg.MaterializeResult[None]:
    """Under which host, software and clocks was this measured, and which other sessions is it comparable with?"""
    with expected_errors():
        store = lake.open()
        return publish_outcome(store, context.partition_key, STAGE, read_environment(store, context.partition_key))
