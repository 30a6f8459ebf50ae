"""Which sessions' stages another version of their code has published, and when Dagster is to run them again.

The lake states it; Dagster's own mark, "code version changed", says the same of each session. Its own condition of that
name looks at the time since the last tick alone, and takes all sessions for changed.
"""

from collections.abc import Collection, Mapping
from datetime import datetime
from functools import lru_cache
from pathlib import Path

import dagster as dg

from aaco_pipeline.automation.partitions import session_partitions
from aaco_pipeline.automation.resources import LakeResource
from aaco_pipeline.lake.store import TraceLake
from aaco_pipeline.pipeline.reanalysis import stale_sessions


class PublishedByOtherCode(dg.AutomationCondition[dg.AssetKey]):
    """True for the sessions of which the stage was published by another version of its code than the present."""

    @property
    def name(self) -> str:
        return "published_by_other_code"

    def evaluate(self, context: dg.AutomationContext[dg.AssetKey]) -> dg.AutomationResult[dg.AssetKey]:
        lake = LakeResource().open()
        stale = _stale_at(lake.path, context.evaluation_time)[context.key.to_user_string()]
        view = context.asset_graph_view
        found = view.get_subset_from_partition_keys(context.key, session_partitions, set(stale))
        return dg.AutomationResult(context, context.candidate_subset.compute_intersection(found))


def rerun_when_stale() -> dg.AutomationCondition[dg.AssetKey]:
    """When a stage is to run again: once for each version of its code, and with any that it reads from.

    What failed is not asked for again before the code changes.
    """
    stale = PublishedByOtherCode()
    changed = stale.newly_true() | dg.AutomationCondition.code_version_changed()
    asked = dg.AutomationCondition.newly_requested()
    due = stale & changed.since(asked)
    with_its_source = dg.AutomationCondition.any_deps_match(dg.AutomationCondition.will_be_requested())
    known = ~dg.AutomationCondition.missing() & ~dg.AutomationCondition.in_progress()
    return ((due | with_its_source) & known).with_label("stale by code version")


@lru_cache(1)
def _stale_at(lake: Path, time: datetime) -> Mapping[str, Collection[str]]:
    """As `stale_sessions`, for all stages of one tick."""
    return stale_sessions(TraceLake(lake))
