"""Run a campaign from its first session to its verdict and alerts, and update the rolling baseline.

Pinned baselines and their files are in `aaco_pipeline.pipeline.nightly.baselines`.
"""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final

import polars as pl

from aaco_pipeline.capture.request import MeasurementRequest
from aaco_pipeline.lake.store import TraceLake
from aaco_pipeline.pipeline.comparing.judging import judge_campaign
from aaco_pipeline.pipeline.comparing.measuring import finished_sessions, measure_campaign
from aaco_pipeline.pipeline.comparing.plan import Plan, read_plan
from aaco_pipeline.pipeline.nightly.alerts import STAGE as CLOSED
from aaco_pipeline.pipeline.nightly.alerts import judge_night
from aaco_pipeline.pipeline.nightly.baselines import current, pin
from aaco_pipeline.pipeline.nightly.series import judge_between_nights, publish_history
from aaco_pipeline.resources.measure.runner import InferenceRunner
from aaco_pipeline.statistics.alerts.events import ACKNOWLEDGED, alerts, may_enter_rolling
from aaco_pipeline.statistics.verdicts.decision import EQUIVALENT, HARDWARE_DIFFERS, IMPROVED, REGRESSED, WITHHELD

#: Verdicts that exclude a candidate from becoming the baseline, even if it is identical to the current one.
_SPOILT: Final = (REGRESSED, HARDWARE_DIFFERS, WITHHELD)


def roll_forward(lake: TraceLake, runner: InferenceRunner) -> list[str]:
    """Make each benchmark's newest night its rolling baseline if allowed; return the new ids.

    A night becomes the new baseline if the candidate is not slower, is identical to the baseline, or its regression was
    acknowledged, and only if it has no open alert and its night's table is closed. An inconclusive candidate is
    excluded, because small regressions would accumulate unnoticed. An unchanged file, request and environment are not
    stored again.
    """
    planned = lake.read("campaigns").filter(pl.col("night").is_not_null() & pl.col("confirms").is_null())
    newest = planned.sort("planned_at").group_by("workload", "backend", maintain_order=True).last()
    events = lake.read("alerts")
    made = []
    for workload, backend, campaign in newest.select("workload", "backend", "campaign_id").iter_rows():
        if not lake.manifest(campaign, "campaign").of_stage(CLOSED):
            continue
        plan, fingerprint = read_plan(lake, campaign), _environment(lake, campaign)
        own = events.filter((pl.col("workload") == workload) & (pl.col("backend") == backend))
        now = current(lake, workload, backend, "rolling", fingerprint)
        if _may_enter(lake, plan, own) and not _is_the_same(now, plan, fingerprint):
            request = plan.arms["candidate"].request
            told: dict[str, Any] = {"kind": "rolling", "campaign": campaign, "fingerprint": fingerprint}
            made.append(pin(lake, request, runner.folder, **told))
    return made


def _may_enter(lake: TraceLake, plan: Plan, events: pl.DataFrame) -> bool:
    """Return whether the night's candidate may become the baseline; `events` are those of its benchmark."""
    if plan.night is None or not may_enter_rolling(events.drop("campaign_id"), plan.night):
        return False
    primary = (pl.col("role") == "primary") & (pl.col("candidate") == "candidate")
    verdict = lake.read("verdicts", plan.campaign).filter(primary).item(0, "verdict")
    is_acknowledged = alerts(events.drop("campaign_id")).filter(pl.col("state") == ACKNOWLEDGED).height > 0
    if verdict in (EQUIVALENT, IMPROVED) or (verdict == REGRESSED and is_acknowledged):
        return True
    arms = plan.arms["baseline"], plan.arms["candidate"]
    return arms[0].artefact_sha256 == arms[1].artefact_sha256 and verdict not in _SPOILT


def _is_the_same(now: Mapping[str, Any] | None, plan: Plan, fingerprint: str | None) -> bool:
    """Return whether the current baseline has the candidate's file, request and environment."""
    if now is None:
        return False
    candidate = plan.arms["candidate"]
    request = candidate.request.model_copy(update={"artefact": None})
    kept = MeasurementRequest.from_json(now["specification"], f"baseline {now['campaign_id']}")
    return (now["artefact_sha256"], now["fingerprint"], kept) == (candidate.artefact_sha256, fingerprint, request)


def _environment(lake: TraceLake, campaign: str) -> str | None:
    """Return the environment fingerprint of the candidate's sessions; None if they differ or it is unknown."""
    own = finished_sessions(lake, campaign, "latency").filter(pl.col("arm") == "candidate")
    known = lake.read("sessions", own.get_column("session_id").to_list()).get_column("fingerprint").unique()
    return known.item() if known.len() == 1 else None


def run(configs: Path, lake: TraceLake, campaign: str, log: Callable[[str], None] = lambda line: None) -> None:
    """Run the rest of a campaign: sessions, verdict, history and alerts; raise the AacoError that ended it."""
    measure_campaign(lake, campaign, configs, log)
    judge_campaign(lake, campaign)
    judge_between_nights(lake, campaign)
    publish_history(lake, campaign)
    judge_night(lake, campaign)
    roll_forward(lake, InferenceRunner(str(configs)))
