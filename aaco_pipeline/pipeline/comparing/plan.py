"""Plan a campaign: its arms, blocks and order, written to the lake before its first session, and its predicted time.

Measuring a plan is `measuring`; the plans of a night are made in `aaco_pipeline.pipeline.nightly.night`.
"""

import platform
import random
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, date, datetime
from pathlib import Path
from secrets import randbits, token_hex
from typing import Any, Final, Literal, cast

import numpy as np
import polars as pl

from aaco_pipeline.capture.request import Arm, MeasurementRequest
from aaco_pipeline.errors import LakeError, ModelError, UsageError
from aaco_pipeline.lake.contracts import polars_types
from aaco_pipeline.lake.store import TraceLake
from aaco_pipeline.lake.validation import to_contract
from aaco_pipeline.resources.measure.inference import plan as resolved
from aaco_pipeline.resources.measure.models import model_digest
from aaco_pipeline.statistics.service_level import Limit
from aaco_pipeline.statistics.verdicts.decision import INTERLEAVED
from aaco_pipeline.statistics.verdicts.effects import LEVEL, minimum_detectable_ratio, t_interval

Kind = Literal["compare", "nightly", "bisect", "configure", "stack"]
#: Kinds that are steps of a search: alone they answer nothing, and one may add a few blocks to those that there are.
STEPS: Final = ("bisect", "configure")
#: The kind of a campaign without sessions of its own: nights before and after the host's stack changed.
BETWEEN_NIGHTS_KIND: Final = "between_nights"
#: The stage that publishes a plan.
STAGE: Final = "plan"
#: Sessions of each arm: with fewer than 5 there is no interval, and 10 see what people care about (a few percent).
DEFAULT_BLOCKS: Final = 10
LEAST_BLOCKS: Final = 3
MOST_BLOCKS: Final = 200
#: Causes come from traced sessions, of which each arm has so many.
TRACED_BLOCKS: Final = 5
DEFAULT_METRIC: Final = "latency_p50"
DEFAULT_THRESHOLD: Final = 0.01


@dataclass(frozen=True)
class Subject:
    """What one arm measures: its request, and what its model was with all weights when the plan was written."""

    request: MeasurementRequest
    artefact: Path
    artefact_sha256: str
    baseline: str | None = None


@dataclass(frozen=True)
class Prediction:
    """Time that sessions with stages were to take, and the difference from 1 to be found four times in five."""

    time_ns: int | None = None
    detectable_ratio: float | None = None


@dataclass(frozen=True)
class Plan:
    """One campaign as it was planned. `arms` are in the order of their names.

    `night` is the day, in UTC, that a nightly one was asked for, and `confirms` the campaign that it measures again.
    """

    campaign: str
    kind: Kind
    arms: Mapping[Arm, Subject]
    metric: str
    threshold_ratio: float
    seed: int
    blocks: int
    traced_blocks: int
    planned_at: datetime
    limits: Sequence[Limit] = ()
    night: date | None = None
    confirms: str | None = None
    prediction: Prediction = Prediction()

    @property
    def workload(self) -> str:
        return Path(self.arms["baseline"].request.model).stem

    def order(self, block: int) -> list[Arm]:
        """The arms in the order in which they run in a block: random, and the same whenever it is asked."""
        arms = sorted(self.arms)
        random.Random(f"{self.seed}/{block}").shuffle(arms)
        return arms

    def request(self, arm: Arm, block: int, *, traced: bool) -> MeasurementRequest:
        """What is measured for an arm in a block."""
        place = {"campaign_id": self.campaign, "arm": arm, "block": block, "untraced": not traced}
        return MeasurementRequest(**{**dict(self.arms[arm].request), **place})


def subject(request: MeasurementRequest, configs: Path, baseline: str | None = None) -> Subject:
    """The arm that measures `request`; AacoError when there is no such model or backend, or not all of its weights."""
    model, _ = resolved(request, configs)
    try:
        digest = model_digest(model.path)
    except OSError as error:
        raise ModelError(f"{error.filename}: {error.strerror}; {model.path} keeps weights there") from error
    return Subject(request, model.path, digest, baseline)


def new_plan(
    kind: Kind,
    arms: Mapping[Arm, Subject],
    *,
    blocks: int = DEFAULT_BLOCKS,
    traced_blocks: int = TRACED_BLOCKS,
    metric: str = DEFAULT_METRIC,
    threshold_ratio: float = DEFAULT_THRESHOLD,
    seed: int | None = None,
    limits: Sequence[Limit] = (),
    night: date | None = None,
    confirms: str | None = None,
) -> Plan:
    """A plan of a new campaign. UsageError when it could never come to a verdict."""
    if "baseline" not in arms or len(arms) < 2:
        raise UsageError("a campaign needs a baseline and at least one arm to hold against it")
    least = 1 if kind in STEPS else LEAST_BLOCKS
    if not least <= blocks <= MOST_BLOCKS:
        raise UsageError(f"{blocks} sessions an arm; expected {least} to {MOST_BLOCKS}")
    if not 0 <= traced_blocks <= MOST_BLOCKS:
        raise UsageError(f"{traced_blocks} traced sessions an arm; expected 0 to {MOST_BLOCKS}")
    if not 0 < threshold_ratio < 1:
        raise UsageError(f"a threshold of {threshold_ratio:g}; expected more than 0 and less than 1, such as 0.01")
    if len({_tokens(one.request) for one in arms.values()}) > 1:
        told = ", ".join(f"{arm} {_tokens_in_words(one.request)}" for arm, one in sorted(arms.items()))
        raise UsageError(f"the arms do not do the same work ({told}); give them the same prompt, tokens and batch")
    if len({one.metric for one in limits}) < len(limits):
        raise UsageError("one metric has two limits; give one limit a metric")
    now = datetime.now(UTC)
    name = f"{kind}-{now:%Y%m%dT%H%M%SZ}-{token_hex(4)}"
    chosen = randbits(31) if seed is None else seed
    kept = tuple(sorted(limits, key=lambda one: one.metric))
    return Plan(
        *(name, kind, dict(sorted(arms.items())), metric, threshold_ratio, chosen, blocks, traced_blocks, now),
        *(kept, night, confirms),
    )


def require_same_shapes(inputs: Mapping[Arm, Mapping[str, Sequence[int]]]) -> None:
    """UsageError when an input has one shape in one arm and another in the next: their times would tell of the work.

    `inputs` are each arm's inputs by name. Names that only one model has are no matter: it may well be another model.
    """
    base = inputs["baseline"]
    for arm, own in inputs.items():
        for name in sorted(base.keys() & own.keys()):
            if list(base[name]) != list(own[name]):
                shapes = ("x".join(map(str, shape)) for shape in (base[name], own[name]))
                told = f"input {name!r} is {next(shapes)} in the baseline and {next(shapes)} in the {arm}"
                raise UsageError(f"the arms do not do the same work: {told}; give both the same shapes")


def write_plan(lake: TraceLake, plan: Plan) -> None:
    """Publish the plan; a campaign that has one keeps it."""
    base = plan.arms["baseline"].request
    what = {
        "kind": [plan.kind],
        "design": [INTERLEAVED],
        "workload": [plan.workload],
        "backend": [base.backend],
        "metric": [plan.metric],
        "threshold_ratio": [plan.threshold_ratio],
        "seed": [plan.seed],
        "blocks": [plan.blocks],
        "traced_blocks": [plan.traced_blocks],
        "planned_at": [plan.planned_at],
        "night": [plan.night],
        "confirms": [plan.confirms],
        "foretold_ns": [plan.prediction.time_ns],
        "foretold_detectable_ratio": [plan.prediction.detectable_ratio],
    }
    arms = [
        {
            "arm": arm,
            "specification": one.request.to_json(),
            "artefact_sha256": one.artefact_sha256,
            "artefact": str(one.artefact),
            "baseline": one.baseline,
        }
        for arm, one in plan.arms.items()
    ]
    limits = [asdict(one) for one in plan.limits]
    tables = {
        "campaigns": to_contract("campaigns", pl.DataFrame(what)),
        "campaign_arms": to_contract("campaign_arms", pl.DataFrame(arms)),
        "campaign_limits": to_contract("campaign_limits", pl.DataFrame(limits, polars_types("campaign_limits"))),
    }
    lake.publish(plan.campaign, STAGE, tables, scope="campaign")


def read_plan(lake: TraceLake, campaign: str) -> Plan:
    """The plan of a campaign; UsageError when it has none."""
    planned = lake.read("campaigns", campaign)
    if planned.is_empty():
        raise UsageError(f"campaign {campaign} has no plan in {lake.path}; `aaco compare` and `aaco nightly` write one")
    row: dict[str, Any] = planned.row(0, named=True)
    source = f"campaign {campaign}"
    arms = {
        cast(Arm, one["arm"]): Subject(
            MeasurementRequest.from_json(one["specification"], source),
            Path(one["artefact"]),
            one["artefact_sha256"],
            one["baseline"],
        )
        for one in lake.read("campaign_arms", campaign).iter_rows(named=True)
    }
    return Plan(
        campaign,
        row["kind"],
        arms,
        row["metric"],
        row["threshold_ratio"],
        row["seed"],
        row["blocks"],
        row["traced_blocks"],
        row["planned_at"],
        tuple(Limit(**one) for one in lake.read("campaign_limits", campaign).drop("campaign_id").to_dicts()),
        row["night"],
        row["confirms"],
        Prediction(row["foretold_ns"], row["foretold_detectable_ratio"]),
    )


def is_between_nights(lake: TraceLake, campaign: str) -> bool:
    """Whether a campaign only holds nights that others measured against each other, and has nothing to measure."""
    return lake.read("campaigns", campaign).get_column("kind").cast(pl.String).to_list() == [BETWEEN_NIGHTS_KIND]


def require_unchanged(plan: Plan) -> None:
    """UsageError when the model of an arm is no longer the one that was planned; LakeError when it cannot be read.

    A placebo's is copied anew when it is measured.
    """
    for arm, one in plan.arms.items():
        if arm == "placebo":
            continue
        try:
            digest = model_digest(one.artefact)
        except OSError as error:
            raise LakeError(f"{error.filename}: {error.strerror}; campaign {plan.campaign} measures it") from error
        if digest != one.artefact_sha256:
            raise UsageError(
                f"{one.artefact}: changed, or its weights, since campaign {plan.campaign} was planned, so its {arm} "
                "would not be one thing; start a new campaign"
            )


def _tokens(request: MeasurementRequest) -> tuple[int | None, ...]:
    """What a language model is asked to do; the same of all other models, whose inputs say it."""
    if request.output_tokens is None:
        return ()
    return request.prompt_tokens, request.output_tokens, request.batch_size or 1


def _tokens_in_words(request: MeasurementRequest) -> str:
    if request.output_tokens is None:
        return "generates none"
    return f"{request.output_tokens} tokens after {request.prompt_tokens}, batch {request.batch_size or 1}"


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
