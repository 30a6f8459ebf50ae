"""The stage `classification`: what limits the session and each of its kernels, with the evidence and what was missing.

The arithmetic is `aaco_pipeline.analysis.bottlenecks`; the rules are `configs/bottleneck_rules.yaml`.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Final

import dagster as dg
import polars as pl

from aaco_pipeline.analysis.bottleneck_rules import Rules
from aaco_pipeline.analysis.bottleneck_session_signals import with_launches_since_wait
from aaco_pipeline.analysis.bottlenecks import INPUTS, Classification, classify
from aaco_pipeline.analysis.framework_work import framework_work
from aaco_pipeline.analysis.gap_causes import gaps
from aaco_pipeline.analysis.roofline import placement
from aaco_pipeline.assets.att_enrichment import att_enrichment
from aaco_pipeline.assets.critical_path import critical_path
from aaco_pipeline.assets.model_graph import model_graph
from aaco_pipeline.assets.partitions import session_partitions
from aaco_pipeline.assets.roofline import roofline
from aaco_pipeline.assets.stage import OWNERS, Outcome, expected_errors, publish_outcome, stage_metadata
from aaco_pipeline.assets.telemetry import telemetry
from aaco_pipeline.assets.timeline import recorded, timeline
from aaco_pipeline.formats import ingested_capture, kineto
from aaco_pipeline.formats.kineto_operator_shapes import read_operator_shapes
from aaco_pipeline.formats.reading import canonical, no_rows
from aaco_pipeline.hardware.architecture import architecture
from aaco_pipeline.hardware.device_facts import recognized
from aaco_pipeline.lake.evidence import Evidence, Status, evidence_frame
from aaco_pipeline.lake.store import TraceLake
from aaco_pipeline.resources.bottleneck_rules import RULES_FILE, load_bottleneck_rules
from aaco_pipeline.resources.dagster_resources import InferenceRunner, LakeResource

STAGE: Final = "classification"
TABLES: Final = ("bottlenecks", "evidence")


def read_classification(lake: TraceLake, session: str, rules: Rules) -> Outcome:
    """The label of the session and of each kernel by `rules`; a null label where the evidence is too thin."""
    tables = {name: lake.read(name, session).drop("session_id") for name in INPUTS}
    run = recorded(lake, session)
    # The dispatches that every other figure of the traced pass is over.
    tables["dispatches"] = run.dispatches
    shown = by_operators(lake.raw(session), tables, run.api_calls)
    tables["roofline"] = pl.concat([tables["roofline"], shown])
    idle = gaps(run.activities, run.api_calls, run.waits).gaps
    idle = with_launches_since_wait(idle, run.activities, run.waits.calls)
    found = classify(tables, idle, rules)
    of_session = found.bottlenecks.filter(pl.col("scope") == "session").row(0, named=True)
    kernels = found.bottlenecks.filter(pl.col("scope") == "kernel")
    named = kernels.join(tables["kernels"].select("kernel_id", "short_name"), on="kernel_id", how="left")
    timed = named.join(tables["kernel_stats"].select("kernel_id", "share_ratio"), on="kernel_id", how="left")
    return Outcome(
        {"bottlenecks": found.bottlenecks, "evidence": evidence_frame(STAGE, _evidence(found, kernels, shown.height))},
        {
            "bottleneck": of_session["label"],
            "runner_up": of_session["runner_up"],
            "score": of_session["score"],
            "kernels_with_a_label": kernels.height - int(kernels.get_column("label").null_count()),
            "recommendation": of_session["recommendation"],
        },
        timed.sort("share_ratio", descending=True, nulls_last=True).select(
            kernel="short_name", share="share_ratio", bottleneck="label", runner_up="runner_up", score="score"
        ),
        "bottlenecks of the top kernels",
    )


def by_operators(raw: Path, tables: Mapping[str, pl.DataFrame], api_calls: pl.DataFrame) -> pl.DataFrame:
    """Rows of `roofline` for kernels that it has none of, from the shapes of the operators that launched them.

    Only a Kineto trace records such shapes, and only one that is alone in its session can be told to be the operators'.
    """
    nothing = no_rows("roofline")
    if not tables["ceilings"].height or not ingested_capture.probe(raw):
        return nothing
    listed = ingested_capture.read(raw).listed["files"]
    traces = [path for one in listed if kineto.probe(path := raw / ingested_capture.FILES_FOLDER / one["name"])]
    if len(traces) != 1:
        return nothing
    shapes = read_operator_shapes(traces[0])
    work = framework_work(tables["dispatches"], api_calls, shapes, _caches(tables["devices"]))
    placed = placement(work, tables["ceilings"]).roofline
    known = tables["roofline"].filter(pl.col("bound").is_not_null())
    return canonical("roofline", placed.join(known, on="kernel_id", how="anti"))


def _caches(devices: pl.DataFrame) -> pl.DataFrame:
    """device_id and bytes of the last cache before the memory, where the device or its product is known to have one."""
    rows = []
    for row in devices.iter_rows(named=True):
        known = architecture(row["arch"])
        product = recognized(row, known) if known is not None else None
        if product is not None and product.l2_bytes is not None:
            rows.append((row["device_id"], product.l2_bytes.whole))
    return pl.DataFrame(rows, schema={"device_id": pl.Int32, "bytes": pl.Int64}, orient="row")


def _evidence(found: Classification, kernels: pl.DataFrame, by_shape: int) -> list[Evidence]:
    """What the labels lacked: signals of the session with their reasons, and kernels without a label."""
    label = found.bottlenecks.item(0, "label")
    items = [
        Evidence("bottleneck of the session", "present", None, "bottlenecks", 1)
        if label is not None
        else Evidence("bottleneck of the session", "absent", "no cause explains most of the time", "bottlenecks", 0)
    ]
    if by_shape:
        items.append(Evidence("work of kernels by operators' shapes", "present", None, "Kineto trace", by_shape))
    for signal, source, reason in found.missing.iter_rows():
        items.append(Evidence(f"signal {signal}", "absent", reason, source))
    unnamed = int(kernels.get_column("label").null_count())
    if unnamed:
        reason = f"{unnamed} of {kernels.height} kernels have no label: their rows say which signals were missing"
        status: Status = "absent" if unnamed == kernels.height else "partial"
        items.append(Evidence("bottlenecks of kernels", status, reason, "bottlenecks", kernels.height - unnamed))
    elif kernels.height:
        items.append(Evidence("bottlenecks of kernels", "present", None, "bottlenecks", kernels.height))
    return items


@dg.asset(
    partitions_def=session_partitions,
    group_name="analysis",
    kinds={"polars", "parquet"},
    owners=OWNERS,
    deps=[timeline, critical_path, model_graph, roofline, telemetry, att_enrichment],
    metadata=stage_metadata(TABLES),
)
def classification(
    context: dg.AssetExecutionContext, lake: LakeResource, runner: InferenceRunner
) -> dg.MaterializeResult[None]:
    """What limits this session and each kernel, how well is that supported, and what would removing it save at most?"""
    with expected_errors():
        store, session = lake.open(), context.partition_key
        rules = load_bottleneck_rules(Path(runner.configs) / RULES_FILE)
        return publish_outcome(store, session, STAGE, read_classification(store, session, rules))
