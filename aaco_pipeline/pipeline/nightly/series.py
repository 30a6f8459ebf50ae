"""Read a benchmark's nights as a series, and compare nights before and after a change of the host's stack.

Change points and forecasts are in `aaco_pipeline.statistics.history`, the verdict between nights in
`aaco_pipeline.statistics.verdicts`.
"""

import hashlib
import json
from dataclasses import replace
from typing import Any, Final

import polars as pl

from aaco_pipeline.errors import UsageError
from aaco_pipeline.lake.store import TraceLake
from aaco_pipeline.lake.validation import empty_table, to_contract
from aaco_pipeline.pipeline.comparing.campaigns import Tables, publish
from aaco_pipeline.pipeline.comparing.judging import STAGE as JUDGING
from aaco_pipeline.pipeline.comparing.judging import sessions_of
from aaco_pipeline.pipeline.comparing.measuring import finished_sessions
from aaco_pipeline.pipeline.comparing.plan import BETWEEN_NIGHTS_KIND, Plan, arm_row, read_plan
from aaco_pipeline.pipeline.comparing.plan import STAGE as PLAN
from aaco_pipeline.report.comparing.campaign import quantiles_of
from aaco_pipeline.statistics.causes.accounts import ACCOUNTED_FROM
from aaco_pipeline.statistics.causes.arms import FACTS, Arm, arm, environment_differences
from aaco_pipeline.statistics.history.changes import OF_THE_NIGHT, night_levels, with_levels
from aaco_pipeline.statistics.history.forecast import forecasts
from aaco_pipeline.statistics.verdicts.comparison import BETWEEN_NIGHTS, METRICS, compare_between_nights

#: Stage that publishes a campaign's history.
STAGE: Final = "history"
NIGHTLY: Final = "nightly"
#: Kinds of campaign that measure unchanged code on purpose.
_OF_NIGHTS: Final = ("nightly", "stack")
#: Maximum number of nights read per side: more add little precision, and reading them takes time every night.
_MOST_NIGHTS: Final = 30
_MOST_LOOKED_AT: Final = 4 * _MOST_NIGHTS
_BASELINE: Final = "baseline"
_CANDIDATE: Final = "candidate"
_MEMBERS: Final = ("block", "position", "arm", "session_id", "purpose", "state")


def publish_history(lake: TraceLake, campaign: str) -> Tables:
    """Publish and return the history of the campaign's benchmark up to its night.

    The tables are `nights` with their levels, for every judged nightly campaign of the same workload and backend
    planned up to then; `change_points`; and `forecasts` for the limits of its plan. A campaign of another kind sees the
    earlier nights but adds none. UsageError if it has no plan.

    Nights in an earlier history are copied from it: they do not change, and their sessions may have been removed.
    """
    planned = _nightly(lake, campaign)
    known = _known(lake, campaign, planned)
    frames = [known.select(OF_THE_NIGHT)]
    done = known.get_column("campaign").unique()
    for row in planned.filter(~pl.col("campaign_id").is_in(done.implode())).iter_rows(named=True):
        measured = _sessions(lake, row)
        if not measured.is_empty():
            frames.append(night_levels(measured))
    nights, changes = with_levels(pl.concat(frames))
    limits = lake.read("campaign_limits", campaign).select("metric", "limit_ns")
    held = nights.select("workload", "backend").unique().join(limits, how="cross")
    tables = {"nights": nights, "change_points": changes, "forecasts": forecasts(nights, held)}
    return publish(lake, campaign, STAGE, tables)


def _nightly(lake: TraceLake, campaign: str) -> pl.DataFrame:
    """Read the judged nightly campaigns of the same benchmark up to this one, oldest first."""
    planned = lake.read("campaigns")
    own = planned.filter(pl.col("campaign_id") == campaign)
    if own.is_empty():
        raise UsageError(f"campaign {campaign} has no plan in {lake.path}; `aaco compare` and `aaco nightly` write one")
    same = [pl.col(name) == own.item(0, name) for name in ("workload", "backend")]
    nightly = planned.filter(pl.col("kind") == NIGHTLY, pl.col("planned_at") <= own.item(0, "planned_at"), *same)
    nightly = nightly.sort("planned_at", "campaign_id")
    judged = [bool(lake.manifest(one, "campaign").of_stage(JUDGING)) for one in nightly.get_column("campaign_id")]
    return nightly.filter(pl.Series(judged, dtype=pl.Boolean))


def _known(lake: TraceLake, campaign: str, planned: pl.DataFrame) -> pl.DataFrame:
    """Read the earlier nights from the newest earlier history."""
    for earlier in reversed(planned.get_column("campaign_id").to_list()):
        if earlier != campaign:
            rows = lake.read("nights", earlier).drop("campaign_id")
            if not rows.is_empty():
                return rows.filter(pl.col("campaign") != campaign)
    return empty_table("nights")


def _sessions(lake: TraceLake, row: dict[str, Any]) -> pl.DataFrame:
    """Summarize a campaign's sessions in the form that `night_levels` takes; empty without a finished block."""
    campaign = row["campaign_id"]
    timed = finished_sessions(lake, campaign, "latency")
    if timed.is_empty():
        return timed
    what = lake.read("sessions", timed.get_column("session_id").to_list()).select("session_id", "host", "fingerprint")
    plan = read_plan(lake, campaign)
    files = {"arm": list(plan.arms), "artefact_sha256": [one.artefact_sha256 for one in plan.arms.values()]}
    return (
        quantiles_of(lake, timed)
        .join(what, on="session_id", how="left")
        .join(pl.DataFrame(files), on="arm", how="left")
        .with_columns(
            campaign=pl.lit(campaign),
            started_at=pl.lit(row["planned_at"]).cast(pl.Datetime("us", "UTC")),
            workload=pl.lit(row["workload"]),
            backend=pl.lit(row["backend"]),
        )
    )


def judge_between_nights(lake: TraceLake, campaign: str) -> str | None:
    """Compare nights on `campaign`'s stack with nights on the previous stack; return the campaign with the verdict.

    Two drivers cannot alternate within a block, so unchanged code is compared: the baseline arm of nightly and
    new-stack campaigns. None if `campaign` is of another kind, or if its baseline was measured on one stack only. Each
    further night on the new stack publishes the same campaign again, with more nights.
    """
    known = lake.read("campaigns").filter(pl.col("kind").cast(pl.String).is_in(_OF_NIGHTS))
    if campaign not in known.get_column("campaign_id"):
        return None
    plan = read_plan(lake, campaign)
    nights = _nights(lake, plan, known)
    before, after = _sides(nights, campaign)
    if before.is_empty():
        return None
    identifier = _name(plan, before, after)
    rows = _members(lake, before, after)
    sessions = sessions_of(lake, replace(plan, campaign=identifier), rows)
    quiet = sessions.filter(pl.col("arm") == _BASELINE)
    level = pl.col(METRICS[plan.metric]).drop_nulls().log().mean().exp()
    canary = quiet.group_by("host", "block", maintain_order=True).agg(level_ns=level).drop_nulls("level_ns")
    verdicts = compare_between_nights(
        sessions, canary, _BASELINE, _CANDIDATE, policy_ratio=plan.threshold_ratio, metric=plan.metric
    )
    judged = {
        "campaign_sessions": rows,
        "verdicts": verdicts.drop("campaign_id"),
        "attributions": _what_changed(lake, rows),
        "selections": empty_table("selections"),
    }
    publish(lake, identifier, JUDGING, judged)
    _publish_plan(lake, identifier, plan, rows.get_column("block").n_unique())
    return identifier


def _nights(lake: TraceLake, plan: Plan, known: pl.DataFrame) -> pl.DataFrame:
    """Find the nights that measured this baseline: campaign_id, planned_at, host and fingerprint, oldest first.

    Nights whose sessions differ in host or fingerprint are left out, because the stack changed during the night.
    """
    base = plan.arms[_BASELINE]
    same = known.filter(
        (pl.col("workload") == plan.workload)
        & (pl.col("backend") == base.request.backend)
        & (pl.col("planned_at") <= plan.planned_at)
    ).sort("planned_at", "campaign_id")
    found: list[tuple[Any, ...]] = []
    for name, planned_at in same.select("campaign_id", "planned_at").tail(_MOST_LOOKED_AT).iter_rows():
        other = read_plan(lake, name).arms[_BASELINE]
        if (_asked(other.request), other.artefact_sha256) != (_asked(base.request), base.artefact_sha256):
            continue
        sessions = lake.read("sessions", _timed(lake, name).get_column("session_id").to_list())
        where = sessions.select(pl.col("host", "fingerprint").cast(pl.String)).unique()
        if where.height == 1 and None not in where.row(0):
            found.append((name, planned_at, *where.row(0)))
    names = pl.String()
    schema = {"campaign_id": names, "planned_at": known.schema["planned_at"], "host": names, "fingerprint": names}
    return pl.DataFrame(found, schema=schema, orient="row")


def _asked(request: Any) -> dict[str, Any]:
    """Return the request's settings without model paths, because file contents are compared instead."""
    return {name: value for name, value in dict(request).items() if name not in ("model", "artefact")}


def _timed(lake: TraceLake, campaign: str) -> pl.DataFrame:
    return finished_sessions(lake, campaign, "latency").filter(pl.col("arm") == _BASELINE)


def _sides(nights: pl.DataFrame, campaign: str) -> tuple[pl.DataFrame, pl.DataFrame]:
    """Split this host's nights into those on the previous stack and on the current one, each an unbroken run."""
    own = nights.filter(pl.col("campaign_id") == campaign)
    if own.is_empty():
        return own, own
    here = nights.filter(pl.col("host") == own.item(0, "host"))
    runs = here.with_columns(run=pl.col("fingerprint").rle_id())
    last = runs.filter(pl.col("campaign_id") == campaign).item(0, "run")
    return tuple(runs.filter(pl.col("run") == one).drop("run").tail(_MOST_NIGHTS) for one in (int(last) - 1, last))  # type: ignore[return-value]


def _name(plan: Plan, before: pl.DataFrame, after: pl.DataFrame) -> str:
    """Return the campaign's name, which is the same for every night on the new stack: first night, workload, host,
    stacks.
    """
    base = plan.arms[_BASELINE]
    first = after.row(0, named=True)
    told = [plan.workload, base.request.backend, first["host"], before.item(-1, "fingerprint"), first["fingerprint"]]
    digest = hashlib.sha256(json.dumps([*told, first["campaign_id"]]).encode()).hexdigest()[:8]
    return f"between-{first['planned_at']:%Y%m%dT%H%M%SZ}-{digest}"


def _members(lake: TraceLake, before: pl.DataFrame, after: pl.DataFrame) -> pl.DataFrame:
    """Build rows of `campaign_sessions` with one block per night."""
    frames: list[pl.DataFrame] = []
    for side, name in ((before, _BASELINE), (after, _CANDIDATE)):
        for campaign in side.get_column("campaign_id"):
            sessions = _timed(lake, campaign).sort("session_id").with_row_index("place")
            night = pl.lit(len(frames), pl.Int32)
            frames.append(sessions.with_columns(block=night, position=pl.col("place").cast(pl.Int32), arm=pl.lit(name)))
    return to_contract("campaign_sessions", pl.concat(frames).select(_MEMBERS))


def _what_changed(lake: TraceLake, rows: pl.DataFrame) -> pl.DataFrame:
    """Build rows of `attributions`: facts that differ between the last session before the change and the first after
    it.
    """
    pair = [
        rows.filter(pl.col("arm") == side).get_column("session_id").sort()[place]
        for side, place in ((_BASELINE, -1), (_CANDIDATE, 0))
    ]
    differing = environment_differences(*(_side(lake, one) for one in pair), interleaved=False)
    change = pl.concat_str(pl.col("baseline"), pl.lit(" → "), pl.col("candidate"))
    return differing.filter(pl.col("category") != "boot").select(
        "evidence_grade",
        kind=pl.lit("environment"),
        subject=pl.concat_str(pl.col("category"), pl.lit(" "), pl.col("key"), pl.lit(": "), change),
        in_sum=pl.lit(False),
        baseline=pl.lit(_BASELINE),
        candidate=pl.lit(_CANDIDATE),
    )


def _side(lake: TraceLake, session: str) -> Arm:
    facts = {name: lake.read(name, session) for name in FACTS}
    return arm({session: {**{name: empty_table(name) for name in ACCOUNTED_FROM}, **facts}})


def _publish_plan(lake: TraceLake, identifier: str, plan: Plan, nights: int) -> None:
    """Publish a placeholder plan, which every campaign must have."""
    base = plan.arms[_BASELINE]
    campaign = {
        **{"kind": BETWEEN_NIGHTS_KIND, "design": BETWEEN_NIGHTS, "workload": plan.workload, "seed": plan.seed},
        **{"backend": base.request.backend, "metric": plan.metric, "threshold_ratio": plan.threshold_ratio},
        **{"blocks": nights, "traced_blocks": 0, "planned_at": plan.planned_at},
    }
    arms = [arm_row(_BASELINE, base), arm_row(_CANDIDATE, base)]
    publish(lake, identifier, PLAN, {"campaigns": [campaign], "campaign_arms": arms})
