"""The stage `classification`: what limits the session and each of its kernels, with the evidence and what was missing.

The arithmetic is `aaco_pipeline.analysis.bottlenecks.classification`; the rules are `configs/bottleneck_rules.yaml`.
"""

from typing import Final

import dagster as dg
import polars as pl

from aaco_pipeline.analysis.bottlenecks.classification import INPUTS, Classification, classify
from aaco_pipeline.analysis.bottlenecks.rules import Rules
from aaco_pipeline.analysis.timeline.gap_causes import gaps
from aaco_pipeline.assets.att_enrichment import att_enrichment
from aaco_pipeline.assets.critical_path import critical_path
from aaco_pipeline.assets.model_graph import model_graph
from aaco_pipeline.assets.partitions import session_partitions
from aaco_pipeline.assets.roofline import roofline
from aaco_pipeline.assets.stage import OWNERS, Outcome, expected_errors, publish_outcome, stage_metadata
from aaco_pipeline.assets.telemetry import telemetry
from aaco_pipeline.assets.timeline import recorded, timeline
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
    found = classify(tables, gaps(run.activities, run.api_calls, run.waits).gaps, rules)
    of_session = found.bottlenecks.filter(pl.col("scope") == "session").row(0, named=True)
    kernels = found.bottlenecks.filter(pl.col("scope") == "kernel")
    named = kernels.join(tables["kernels"].select("kernel_id", "short_name"), on="kernel_id", how="left")
    timed = named.join(tables["kernel_stats"].select("kernel_id", "share_ratio"), on="kernel_id", how="left")
    return Outcome(
        {"bottlenecks": found.bottlenecks, "evidence": evidence_frame(STAGE, _evidence(found, kernels))},
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


def _evidence(found: Classification, kernels: pl.DataFrame) -> list[Evidence]:
    """What the labels lacked: signals of the session with their reasons, and kernels without a label."""
    label = found.bottlenecks.item(0, "label")
    items = [
        Evidence("bottleneck of the session", "present", None, "bottlenecks", 1)
        if label is not None
        else Evidence("bottleneck of the session", "absent", "no cause explains most of the time", "bottlenecks", 0)
    ]
    for (source, reason), alike in found.missing.group_by("source", "reason", maintain_order=True):
        names = alike.get_column("signal").to_list()
        item = f"signal {names[0]}" if len(names) == 1 else f"{len(names)} signals from {source}"
        told = reason if len(names) == 1 else f"{reason} ({', '.join(names)})"
        items.append(Evidence(item, "absent", str(told), str(source)))
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
    group_name="judgement",
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
        rules = load_bottleneck_rules(runner.folder / RULES_FILE)
        return publish_outcome(store, session, STAGE, read_classification(store, session, rules))
