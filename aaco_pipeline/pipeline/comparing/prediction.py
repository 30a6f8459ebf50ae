"""Predicting the time and the detectable change of a measurement from this host's history of the same workload.

Only sessions of campaigns count: there alone is known how long each took, and how blocks of it are spread.
"""

import platform
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import polars as pl

from aaco_pipeline.capture.request import MeasurementRequest
from aaco_pipeline.lake.store import TraceLake
from aaco_pipeline.pipeline.comparing.plan import Plan, Prediction
from aaco_pipeline.statistics.verdicts.block_effects import t_interval
from aaco_pipeline.statistics.verdicts.power import minimum_detectable_ratio
from aaco_pipeline.statistics.verdicts.sequential import LEVEL

#: What of a request is no setting: its place in a campaign, the file, of which the workload's name speaks, and whose
#: build of the runtime it was.
_PLACE: Final = ("model", "interpreter", "campaign_id", "arm", "block", "untraced")


@dataclass(frozen=True)
class History:
    """What earlier campaigns of a workload with the same settings showed on this host.

    `deviation` is that of a block's log ratio, pooled over `campaigns` of them; `session_ns` and `traced_ns` are the
    median time that one session took with its stages. None where none of them tells.
    """

    campaigns: int
    deviation: float | None
    session_ns: int | None
    traced_ns: int | None

    def time_ns(self, sessions: int, traced: int) -> int | None:
        """Time that so many sessions take; None where that is not known of one kind of them."""
        if (sessions and self.session_ns is None) or (traced and self.traced_ns is None):
            return None
        return sessions * (self.session_ns or 0) + traced * (self.traced_ns or 0)


def history_of(lake: TraceLake, workload: str, request: MeasurementRequest, metric: str) -> History:
    """The history on this host of a workload with the settings of `request`, whichever file was measured."""
    settings = _settings(request)
    baselines = lake.read("campaign_arms").filter(pl.col("arm") == "baseline")
    same = [
        campaign
        for campaign, asked in baselines.select("campaign_id", "specification").rows()
        if _settings(MeasurementRequest.from_json(asked, f"campaign {campaign}")) == settings
    ]
    named = lake.read("campaigns").filter(pl.col("workload") == workload, pl.col("campaign_id").is_in(same))
    here = lake.read("sessions").filter(pl.col("host") == platform.node()).get_column("session_id")
    sessions = lake.read("campaign_sessions").filter(
        pl.col("campaign_id").is_in(named.get_column("campaign_id").implode()),
        pl.col("session_id").is_in(here.implode()),
    )
    campaigns = sessions.get_column("campaign_id").unique()
    verdicts = lake.read("verdicts").filter(
        pl.col("campaign_id").is_in(campaigns.implode()), pl.col("metric") == metric
    )
    took = (pl.col("spent_ns") + pl.col("stages_ns")).median().round().cast(pl.Int64)
    times = dict(sessions.group_by("purpose").agg(took).iter_rows())
    return History(len(campaigns), _deviation(verdicts), times.get("latency"), times.get("trace"))


def predict(history: History, plan: Plan) -> Prediction:
    """Predict the time in ns and the detectable ratio of a plan; null without a history."""
    arms = len(plan.arms)
    detectable = None
    if history.deviation is not None:
        error, freedom, level = (
            np.array([each]) for each in (history.deviation / np.sqrt(plan.blocks), plan.blocks - 1.0, LEVEL)
        )
        detectable = float(minimum_detectable_ratio(error, freedom, level)[0])
    return Prediction(history.time_ns(plan.blocks * arms, plan.traced_blocks * arms), detectable)


# ---- inside ----------------------------------------------------------------------------------------------------------


def _settings(request: MeasurementRequest) -> Mapping[str, Any]:
    return {key: value for key, value in dict(request).items() if key not in _PLACE}


def _deviation(verdicts: pl.DataFrame) -> float | None:
    """That of a block's log ratio, from the intervals of verdicts: pooled by their degrees of freedom."""
    known = verdicts.filter(
        pl.col("ci_low").is_not_null(), pl.col("level").is_not_null(), pl.col("ci_low") < pl.col("ci_high")
    )
    if known.is_empty():
        return None
    blocks = known.get_column("blocks").to_numpy().astype(float)
    half = (known.get_column("ci_high") / known.get_column("ci_low")).log().to_numpy() / 2
    _, reach = t_interval(np.zeros(1), np.ones(1), blocks - 1, known.get_column("level").to_numpy())
    variance = (half / reach) ** 2 * blocks
    return float(np.sqrt((variance * (blocks - 1)).sum() / (blocks - 1).sum()))
