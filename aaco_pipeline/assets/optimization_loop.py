"""The stage `optimization_loop`: the kernels to optimize first, and the proposers that `aaco optimize` would use.

Computed by `aaco_pipeline.optimization.first_to_fix`. Attempts need source code and are made in campaigns
(`aaco_pipeline.pipeline.optimizing`).
"""

import polars as pl

from aaco_pipeline.assets.stage import Outcome, Session, stage
from aaco_pipeline.lake.evidence import Evidence
from aaco_pipeline.optimization.first_to_fix import READS, kernels_to_fix
from aaco_pipeline.report.optimization.document import searches_of


@stage(
    reads=READS,
    publishes=("kernels_to_fix",),
    group="optimization",
    kinds=("polars", "parquet"),
)
def optimization_loop(session: Session) -> Outcome:
    """Which kernel should be optimized first, and how much could that save at most?"""
    tables = session.tables(*READS)
    found = kernels_to_fix(tables)
    named = found.join(
        tables["kernels"].select("kernel_id", pl.col("name", "short_name").cast(pl.String)), on="kernel_id", how="left"
    ).sort("rank")
    first = named.row(0, named=True) if named.height else {}
    # Later searches are not included here; `aaco show --kernel` lists them all.
    made = searches_of(session.lake, session.id, first["name"]) if first else []
    return Outcome(
        {"kernels_to_fix": found},
        _evidence(found),
        {
            "first_kernel": first.get("short_name"),
            "saves_at_most_ns": first.get("saves_at_most_ns"),
            "label": first.get("label"),
            "proposers": ", ".join(first.get("proposers") or ()) or None,
            "attempts": sum(one["attempts"] for one in made) or None,
            "last_search": made[0]["optimization_id"] if made else None,
            "last_search_speedup_ratio": made[0]["speedup_ratio"] if made else None,
        },
        named.select("rank", kernel="short_name", share_ratio="share_ratio", criticality="criticality",
                     roof_ratio="roof_ratio", saves_at_most_ns="saves_at_most_ns", label="label"),
        "kernels to make faster, the first first",
    )  # fmt: skip


def _evidence(found: pl.DataFrame) -> list[Evidence]:
    """Report how many kernels have an upper bound on savings, and why the others have none."""
    if not found.height:
        return [Evidence("kernels to fix", "absent", "the session has no kernels with times")]
    bounded = found.height - int(found.get_column("saves_at_most_ns").null_count())
    if bounded == found.height:
        return [Evidence("kernels to fix", "present", None, None, bounded)]
    reason = f"{found.height - bounded} of {found.height} kernels have no roof, or no place on the critical path"
    return [Evidence("kernels to fix", "partial" if bounded else "absent", reason, None, bounded)]
