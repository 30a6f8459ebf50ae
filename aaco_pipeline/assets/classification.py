"""The stage `classification`: what limits the session and each of its kernels, with the evidence and what was missing.

The arithmetic is `aaco_pipeline.analysis.bottlenecks`; the rules are `configs/bottleneck_rules.yaml`.
"""

from functools import cache
from pathlib import Path
from typing import Final

import polars as pl
import yaml

from aaco_pipeline.analysis.bottlenecks.classification import INPUTS, Classification, classify
from aaco_pipeline.analysis.bottlenecks.rule_file import RULES_FILE, rules_of
from aaco_pipeline.analysis.bottlenecks.rules import Rules
from aaco_pipeline.analysis.timeline.recorded import counted_dispatches
from aaco_pipeline.assets.stage import FINDINGS, Outcome, Session, stage
from aaco_pipeline.lake.evidence import Evidence, Status
from aaco_pipeline.resources.project import DEFAULTS
from aaco_pipeline.resources.strict_yaml import read_yaml

BUILT_IN_RULES: Final = DEFAULTS / "configs" / RULES_FILE


@stage(
    reads=(*INPUTS, FINDINGS),
    publishes=("bottlenecks",),
    group="judgement",
    kinds=("polars", "parquet"),
    configs=(RULES_FILE,),
)
def classification(session: Session) -> Outcome:
    """What limits this session and each kernel, how well is that supported, and what would removing it save at most?"""
    tables = session.tables(*INPUTS)
    # The dispatches that every other figure of the traced pass is over.
    tables["dispatches"], _ = counted_dispatches(tables["dispatches"], tables["iterations"])
    found = classify(tables, load_bottleneck_rules(session.configs / RULES_FILE))
    of_session = found.bottlenecks.filter(pl.col("scope") == "session").row(0, named=True)
    kernels = found.bottlenecks.filter(pl.col("scope") == "kernel")
    named = kernels.join(tables["kernels"].select("kernel_id", "short_name"), on="kernel_id", how="left")
    timed = named.join(tables["kernel_stats"].select("kernel_id", "share_ratio"), on="kernel_id", how="left")
    return Outcome(
        {"bottlenecks": found.bottlenecks},
        _evidence(found, kernels),
        {
            "bottleneck": of_session["label"],
            "runner_up": of_session["runner_up"],
            "score": of_session["score"],
            "kernels_with_a_label": kernels.height - int(kernels.get_column("label").null_count()),
            "recommendation": of_session["recommendation"],
        },
        timed.sort("share_ratio", "kernel_id", descending=[True, False], nulls_last=True).select(
            kernel="short_name", share="share_ratio", bottleneck="label", runner_up="runner_up", score="score"
        ),
        "bottlenecks of the top kernels",
    )


def load_bottleneck_rules(path: Path) -> Rules:
    """The rules of the file at `path`, or the package's own where there is none. UsageError naming file and key."""
    if path.exists() and not path.samefile(BUILT_IN_RULES) and (own := read_yaml(path)) is not None:
        return rules_of(own, path)
    return _built_in_rules()


@cache
def _built_in_rules() -> Rules:
    """The package's own rules. Their file is trusted: no need of the slow reader that finds a person's slips."""
    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    return rules_of(yaml.load(BUILT_IN_RULES.read_text(encoding="utf-8"), Loader=loader), BUILT_IN_RULES)


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
