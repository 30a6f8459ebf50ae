"""Nights before and after a host's stack changed, held against each other: two drivers cannot alternate in a block.

What is compared is unchanged code: the baseline arm of campaigns of nights and of new stacks. The verdict is
`aaco_pipeline.statistics.verdicts.comparison`; it is published as a campaign of its own, which measures nothing.
"""

import hashlib
import json
from dataclasses import replace
from typing import Any, Final

import polars as pl

from aaco_pipeline.lake.store import TraceLake
from aaco_pipeline.lake.validation import empty_table, to_contract
from aaco_pipeline.pipeline.comparing.judging import STAGE, sessions_of
from aaco_pipeline.pipeline.comparing.measuring import members
from aaco_pipeline.pipeline.comparing.plan import BETWEEN_NIGHTS_KIND, Plan, read_plan
from aaco_pipeline.pipeline.comparing.plan import STAGE as PLAN
from aaco_pipeline.statistics.causes.accounts import ACCOUNTED_FROM
from aaco_pipeline.statistics.causes.arms import FACTS, Arm, arm, environment_differences
from aaco_pipeline.statistics.verdicts.comparison import BETWEEN_NIGHTS, METRICS, compare_between_nights

#: Campaigns that measure unchanged code for its own sake.
_OF_NIGHTS: Final = ("nightly", "stack")
#: Nights on each side that are read: more sharpen little, and a year's would have to be read every night.
_MOST_NIGHTS: Final = 30
_MOST_LOOKED_AT: Final = 4 * _MOST_NIGHTS
_BASELINE: Final = "baseline"
_CANDIDATE: Final = "candidate"
_MEMBERS: Final = ("block", "position", "arm", "session_id", "purpose", "state")


def judge_between_nights(lake: TraceLake, campaign: str) -> str | None:
    """Hold the nights of `campaign`'s stack against those of the stack before it; the campaign that says so.

    None where `campaign` is none of nights, or the stack never changed while its baseline was measured. Every further
    night on the new stack publishes the same campaign again, with more nights.
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
        "verdicts": to_contract("verdicts", verdicts.drop("campaign_id")),
        "attributions": _what_changed(lake, rows),
        "selections": empty_table("selections"),
    }
    lake.publish(identifier, STAGE, judged, scope="campaign")
    lake.publish(identifier, PLAN, _plan_of(plan, rows.get_column("block").n_unique()), scope="campaign")
    return identifier


# ---- inside ----------------------------------------------------------------------------------------------------------


def _nights(lake: TraceLake, plan: Plan, known: pl.DataFrame) -> pl.DataFrame:
    """campaign_id, planned_at, host and fingerprint of the nights that measured this baseline, the oldest first.

    A night whose sessions differ in host or fingerprint is left out: its stack changed while it ran.
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
    """What was asked for, without the places of the model's file: its content is compared."""
    return {name: value for name, value in dict(request).items() if name not in ("model", "artefact")}


def _timed(lake: TraceLake, campaign: str) -> pl.DataFrame:
    wanted = (pl.col("state") == "finished") & (pl.col("purpose") == "latency") & (pl.col("arm") == _BASELINE)
    return members(lake, campaign).filter(wanted)


def _sides(nights: pl.DataFrame, campaign: str) -> tuple[pl.DataFrame, pl.DataFrame]:
    """The nights of this campaign's host on the stack before and on this one's, each without a gap of another stack."""
    own = nights.filter(pl.col("campaign_id") == campaign)
    if own.is_empty():
        return own, own
    here = nights.filter(pl.col("host") == own.item(0, "host"))
    runs = here.with_columns(run=pl.col("fingerprint").rle_id())
    last = runs.filter(pl.col("campaign_id") == campaign).item(0, "run")
    return tuple(runs.filter(pl.col("run") == one).drop("run").tail(_MOST_NIGHTS) for one in (int(last) - 1, last))  # type: ignore[return-value]


def _name(plan: Plan, before: pl.DataFrame, after: pl.DataFrame) -> str:
    """A name that every night of the new stack gives again: by when it began, and of what it is."""
    base = plan.arms[_BASELINE]
    first = after.row(0, named=True)
    told = [plan.workload, base.request.backend, first["host"], before.item(-1, "fingerprint"), first["fingerprint"]]
    digest = hashlib.sha256(json.dumps([*told, first["campaign_id"]]).encode()).hexdigest()[:8]
    return f"between-{first['planned_at']:%Y%m%dT%H%M%SZ}-{digest}"


def _members(lake: TraceLake, before: pl.DataFrame, after: pl.DataFrame) -> pl.DataFrame:
    """Rows of `campaign_sessions` with a night for each block."""
    frames: list[pl.DataFrame] = []
    for side, name in ((before, _BASELINE), (after, _CANDIDATE)):
        for campaign in side.get_column("campaign_id"):
            sessions = _timed(lake, campaign).sort("session_id").with_row_index("place")
            night = pl.lit(len(frames), pl.Int32)
            frames.append(sessions.with_columns(block=night, position=pl.col("place").cast(pl.Int32), arm=pl.lit(name)))
    return to_contract("campaign_sessions", pl.concat(frames).select(_MEMBERS))


def _what_changed(lake: TraceLake, rows: pl.DataFrame) -> pl.DataFrame:
    """Rows of `attributions`: facts that differ between the last session before and the first after."""
    pair = [
        rows.filter(pl.col("arm") == side).get_column("session_id").sort()[place]
        for side, place in ((_BASELINE, -1), (_CANDIDATE, 0))
    ]
    differing = environment_differences(*(_side(lake, one) for one in pair), interleaved=False)
    change = pl.concat_str(pl.col("baseline"), pl.lit(" → "), pl.col("candidate"))
    told = differing.filter(pl.col("category") != "boot").select(
        "evidence_grade",
        kind=pl.lit("environment"),
        subject=pl.concat_str(pl.col("category"), pl.lit(" "), pl.col("key"), pl.lit(": "), change),
        in_sum=pl.lit(False),
        baseline=pl.lit(_BASELINE),
        candidate=pl.lit(_CANDIDATE),
    )
    return to_contract("attributions", told)


def _side(lake: TraceLake, session: str) -> Arm:
    facts = {name: lake.read(name, session) for name in FACTS}
    return arm({session: {**{name: empty_table(name) for name in ACCOUNTED_FROM}, **facts}})


def _plan_of(plan: Plan, nights: int) -> dict[str, pl.DataFrame]:
    """What stands for its plan: a campaign without one is none."""
    base = plan.arms[_BASELINE]
    what = {
        **dict(zip(("kind", "design", "workload"), (BETWEEN_NIGHTS_KIND, BETWEEN_NIGHTS, plan.workload), strict=True)),
        **{"backend": base.request.backend, "metric": plan.metric, "threshold_ratio": plan.threshold_ratio},
        **{"seed": plan.seed, "blocks": nights, "traced_blocks": 0, "planned_at": plan.planned_at},
    }
    arms = [
        {
            "arm": name,
            "specification": base.request.to_json(),
            "artefact_sha256": base.artefact_sha256,
            "artefact": str(base.artefact),
            "baseline": base.baseline,
        }
        for name in (_BASELINE, _CANDIDATE)
    ]
    return {
        "campaigns": to_contract("campaigns", pl.DataFrame([what])),
        "campaign_arms": to_contract("campaign_arms", pl.DataFrame(arms)),
    }
