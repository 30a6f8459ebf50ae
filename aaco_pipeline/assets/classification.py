"""The stage `classification`: where the session's time went, what to fix first, and what limits each kernel.

Computed by `aaco_pipeline.analysis.answer` and `aaco_pipeline.analysis.bottlenecks`; the kernel rules are in
`configs/bottleneck_rules.yaml`.
"""

from functools import cache
from pathlib import Path
from typing import Final

import polars as pl
import yaml

from aaco_pipeline.analysis.answer.answer import INPUTS as ANSWERED_FROM
from aaco_pipeline.analysis.answer.answer import Answer, answer_of, session_row
from aaco_pipeline.analysis.answer.reasons import GRID
from aaco_pipeline.analysis.answer.shares import on_cpu_ratio
from aaco_pipeline.analysis.answer.window import COLD_START, INCOMPLETE
from aaco_pipeline.analysis.bottlenecks.classification import INPUTS, RULES_FILE, Rules, classify, rules_of
from aaco_pipeline.analysis.sessions.metrics import usage
from aaco_pipeline.analysis.timeline.activities import RECORDED_FROM, counted_dispatches, recorded
from aaco_pipeline.assets.stage import FINDINGS, Outcome, Session, stage
from aaco_pipeline.lake.evidence import Evidence, Status
from aaco_pipeline.providers import CPU_PROVIDER
from aaco_pipeline.resources.configuration import read_yaml
from aaco_pipeline.resources.project import DEFAULTS

BUILT_IN_RULES: Final = DEFAULTS / "configs" / RULES_FILE
_READ: Final = tuple(dict.fromkeys((*INPUTS, *ANSWERED_FROM, *RECORDED_FROM)))
#: Dispatch columns used here.
_OF_DISPATCHES: Final = (
    *("dispatch_id", "process_id", "device_id", "kernel_id", "correlation_id", "start_ns", "end_ns", "iteration"),
    *("parent_dispatch_id", "scratch_bytes", "grid_work_items", "workgroup_work_items"),
)
#: Columns used from the table that has one row per activity.
_OF_PATH: Final = ("activity_kind", "activity_id", "is_critical")


@stage(
    reads=tuple(dict.fromkeys((*_READ, FINDINGS))),
    publishes=("answers", "time_shares", "kinds_of_work", "bottlenecks"),
    group="judgement",
    kinds=("polars", "parquet"),
    configs=(RULES_FILE,),
)
def classification(session: Session) -> Outcome:
    """Where did the time go, what should be fixed first, and how much could that save at most?"""
    run = session.derive(recorded, RECORDED_FROM)
    tables = session.tables(*(name for name in _READ if name not in ("dispatches", "critical_path")))
    # Grid sizes are only needed to match collectives across ranks.
    of_dispatches = (*_OF_DISPATCHES, *(GRID if tables["collectives"].height else ()))
    # The dispatches that all other traced-pass figures are based on.
    tables["dispatches"], _ = counted_dispatches(session.columns("dispatches", of_dispatches), tables["iterations"])
    tables["critical_path"] = session.columns("critical_path", _OF_PATH)
    sessions = tables["sessions"]
    on_host = sessions.height > 0 and sessions.item(0, "provider") == CPU_PROVIDER
    on_cpu = on_cpu_ratio(usage(tables["iterations"], tables["iteration_blocks"], "trace")) if on_host else 1.0
    kernels = classify(tables, load_bottleneck_rules(session.configs / RULES_FILE), on_cpu)
    answer = answer_of(tables, run, kernels.select("kernel_id", "label"))
    row = answer.answers.row(0, named=True)
    named = kernels.join(tables["kernels"].select("kernel_id", "short_name"), on="kernel_id", how="left")
    timed = named.join(tables["kernel_stats"].select("kernel_id", "share_ratio"), on="kernel_id", how="left")
    return Outcome(
        {
            "answers": answer.answers,
            "time_shares": answer.time_shares,
            "kinds_of_work": answer.kinds_of_work,
            "bottlenecks": pl.concat([session_row(answer), kernels]),
        },
        _evidence(answer, kernels),
        {
            "class": row["class"],
            "second_class": row["second_class"],
            "class_ratio": row["class_ratio"],
            "kernels_with_a_label": kernels.height - int(kernels.get_column("label").null_count()),
            "advice": row["advice"],
        },
        timed.sort("share_ratio", "kernel_id", descending=[True, False], nulls_last=True).select(
            kernel="short_name", share_ratio="share_ratio", bottleneck="label", runner_up="runner_up", score="score"
        ),
        "bottlenecks of the top kernels",
    )


def load_bottleneck_rules(path: Path) -> Rules:
    """Load the rules at `path`, or the built-in ones if it does not exist. UsageError names the file and key."""
    if path.exists() and not path.samefile(BUILT_IN_RULES) and (own := read_yaml(path)) is not None:
        return rules_of(own, path)
    return _built_in_rules()


@cache
def _built_in_rules() -> Rules:
    """Load the built-in rules. Their file is trusted, so the slow strict reader is not needed."""
    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    return rules_of(yaml.load(BUILT_IN_RULES.read_text(encoding="utf-8"), Loader=loader), BUILT_IN_RULES)


def _evidence(answer: Answer, kernels: pl.DataFrame) -> list[Evidence]:
    """Report whether the data supports an answer, what would make it more precise, and which kernels have no label."""
    row = answer.answers.row(0, named=True)
    valid = row["class"] not in (INCOMPLETE, COLD_START)
    items = [
        Evidence("answer", "present" if valid else "absent", None if valid else row["reason"], "answers", int(valid))
    ]
    items += [
        Evidence(what, "absent", f"not recorded: {how}", "answers")
        for what, how in zip(row["sharpen"], row["sharpen_commands"], strict=True)
    ]
    unnamed = int(kernels.get_column("label").null_count())
    if unnamed:
        reason = f"{unnamed} of {kernels.height} kernels have no label: their rows say which signals were missing"
        status: Status = "absent" if unnamed == kernels.height else "partial"
        items.append(Evidence("bottlenecks of kernels", status, reason, "bottlenecks", kernels.height - unnamed))
    elif kernels.height:
        items.append(Evidence("bottlenecks of kernels", "present", None, "bottlenecks", kernels.height))
    return items
