"""The single Definitions object, assembled from assets, checks, jobs, sensors and resources.

Nothing is defined here; tests build their own with `build_definitions(resource_overrides=…)`.
"""

from collections.abc import Mapping
from typing import Any

import dagster as dg

from aaco_pipeline.automation.adoption import adopt_sessions
from aaco_pipeline.automation.campaigns import ASSETS as CAMPAIGN_ASSETS
from aaco_pipeline.automation.campaigns import run_campaign
from aaco_pipeline.automation.jobs import ingest_capture, start_session
from aaco_pipeline.automation.nights import due_confirmations, nightly_baseline
from aaco_pipeline.automation.optimization import optimization, optimize_kernel
from aaco_pipeline.automation.resources import LakeResource
from aaco_pipeline.automation.schedules import compaction, nightly_compaction, nightly_retention, retention
from aaco_pipeline.automation.sensors import (
    capture_inbox,
    dead_runs,
    lake_sessions,
    stale_stages,
    start_observing,
    unfinished_campaigns,
    unfinished_sessions,
)
from aaco_pipeline.automation.stage_assets import observe, stage_assets
from aaco_pipeline.automation.watching import regression_found, rocm_stack_changed, run_failed
from aaco_pipeline.resources.measure.runner import InferenceRunner


def build_definitions(*, resource_overrides: Mapping[str, Any] | None = None) -> dg.Definitions:
    """Return the code location. `resource_overrides` replaces resources by name: `lake`, `runner`.

    Without overrides, the lake and the settings are those of Dagster's working directory, located on first use.
    """
    return dg.Definitions(
        assets=[*stage_assets(), *CAMPAIGN_ASSETS, optimization],
        jobs=[
            *(observe, run_campaign, optimize_kernel, start_session, ingest_capture),
            *(adopt_sessions, retention, compaction),
        ],
        schedules=[nightly_baseline, nightly_retention, nightly_compaction],
        sensors=[
            *(start_observing, dead_runs, capture_inbox, lake_sessions),
            *(unfinished_sessions, unfinished_campaigns, due_confirmations, stale_stages),
            *(rocm_stack_changed, run_failed, regression_found),
        ],
        resources={"lake": LakeResource(), "runner": InferenceRunner(), **(resource_overrides or {})},
        executor=dg.in_process_executor,
    )


defs = build_definitions()
