"""Plan a campaign: arms, blocks and order, written to the lake before its first session, and its estimated time.

`measuring` measures a plan; `aaco_pipeline.pipeline.nightly.night` creates the plans of a night.
"""

import platform
import random
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import date, datetime
from pathlib import Path
from secrets import randbits
from typing import Any, Final, Literal, cast

import numpy as np
import polars as pl

from aaco_pipeline.capture.request import Arm, MeasurementRequest
from aaco_pipeline.errors import LakeError, ModelError, UsageError
from aaco_pipeline.lake.store import TraceLake
from aaco_pipeline.pipeline.comparing.campaigns import new_name, publish
from aaco_pipeline.resources.measure.inference import plan as resolved
from aaco_pipeline.resources.measure.models import model_digest
from aaco_pipeline.statistics.verdicts.decision import INTERLEAVED
from aaco_pipeline.statistics.verdicts.effects import LEVEL, minimum_detectable_ratio, t_interval
from aaco_pipeline.statistics.verdicts.service_level import Limit

Kind = Literal["compare", "nightly", "bisect", "configure", "stack"]
#: Kinds of campaign that are steps of a search: they have no answer of their own and may have only a few blocks.
STEPS: Final = ("bisect", "configure")
#: Kind of a campaign without its own sessions: it compares nights before and after a stack change.
BETWEEN_NIGHTS_KIND: Final = "between_nights"
#: Stage that publishes a plan.
STAGE: Final = "plan"
#: Sessions per arm: fewer than 5 give no interval; 10 resolve a few percent.
DEFAULT_BLOCKS: Final = 10
LEAST_BLOCKS: Final = 3
MOST_BLOCKS: Final = 200
#: Traced sessions per arm, from which causes are derived.
TRACED_BLOCKS: Final = 5
DEFAULT_METRIC: Final = "latency_p50"
DEFAULT_THRESHOLD: Final = 0.01
#: Fields of a plan that are also columns of `campaigns`.
_OF_THE_PLAN: Final = (
    *("kind", "metric", "threshold_ratio", "seed", "blocks", "traced_blocks"),
    *("planned_at", "night", "confirms"),
)

#: Request fields that are not settings: place in a campaign, model file (identified by the workload) and runtime build.
_PLACE: Final = ("model", "interpreter", "campaign_id", "arm", "block", "untraced")


@dataclass(frozen=True)
class Subject:
    """Measurement of one arm: its request, model file, and the digest of model and weights at planning time."""

    request: MeasurementRequest
    artefact: Path
    artefact_sha256: str
    baseline: str | None = None


@dataclass(frozen=True)
class Prediction:
    """Estimated time of sessions with their stages, and the difference from 1 detected with 80 % probability."""

    time_ns: int | None = None
    detectable_ratio: float | None = None


@dataclass(frozen=True)
class Plan:
    """A planned campaign, with arms sorted by name.

    `night` is the UTC day of a nightly campaign, `confirms` the campaign that this one repeats.
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
        """Return the arms in their order within a block: random, but the same for every call."""
        arms = sorted(self.arms)
        random.Random(f"{self.seed}/{block}").shuffle(arms)
        return arms

    def request(self, arm: Arm, block: int, *, traced: bool) -> MeasurementRequest:
        """Return the request that measures an arm in a block."""
        place = {"campaign_id": self.campaign, "arm": arm, "block": block, "untraced": not traced}
        return MeasurementRequest(**{**dict(self.arms[arm].request), **place})


def subject(request: MeasurementRequest, configs: Path) -> Subject:
    """Return the arm that measures `request`; AacoError if its model, weights or backend are missing."""
    model, _ = resolved(request, configs)
    try:
        digest = model_digest(model.path)
    except OSError as error:
        raise ModelError(f"{error.filename}: {error.strerror}; {model.path} keeps weights there") from error
    return Subject(request, model.path, digest)


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
    """Plan a new campaign; UsageError if it could never reach a verdict."""
    if "baseline" not in arms or len(arms) < 2:
        raise UsageError("a campaign needs a baseline and at least one arm to compare with it")
    least = 1 if kind in STEPS else LEAST_BLOCKS
    if not least <= blocks <= MOST_BLOCKS:
        raise UsageError(f"{blocks} sessions an arm; expected {least} to {MOST_BLOCKS}")
    if not 0 <= traced_blocks <= MOST_BLOCKS:
        raise UsageError(f"{traced_blocks} traced sessions an arm; expected 0 to {MOST_BLOCKS}")
    if not 0 < threshold_ratio < 1:
        raise UsageError(f"a threshold of {threshold_ratio:g}; expected more than 0 and less than 1, such as 0.01")
    work = {arm: _work_in_words(one.request) for arm, one in sorted(arms.items())}
    if len({*work.values()}) > 1:
        told = ", ".join(f"{arm} {words}" for arm, words in work.items())
        raise UsageError(f"the arms do not do the same work ({told}); give them the same prompt, tokens and batch")
    if len({one.metric for one in limits}) < len(limits):
        raise UsageError("one metric has two limits; give one limit a metric")
    name, now = new_name(kind)
    return Plan(
        campaign=name,
        kind=kind,
        arms=dict(sorted(arms.items())),
        metric=metric,
        threshold_ratio=threshold_ratio,
        seed=randbits(31) if seed is None else seed,
        blocks=blocks,
        traced_blocks=traced_blocks,
        planned_at=now,
        limits=tuple(sorted(limits, key=lambda one: one.metric)),
        night=night,
        confirms=confirms,
    )


def require_same_shapes(inputs: Mapping[Arm, Mapping[str, Sequence[int]]]) -> None:
    """Raise UsageError if an input's shape differs between arms, because the work would then differ.

    Args:
        inputs: For each arm, the shapes of its inputs by name. Names that only one model has are ignored, because the
            candidate may be a different model.
    """
    base = inputs["baseline"]
    for arm, own in inputs.items():
        for name in sorted(base.keys() & own.keys()):
            if list(base[name]) != list(own[name]):
                shapes = ("x".join(map(str, shape)) for shape in (base[name], own[name]))
                told = f"input {name!r} is {next(shapes)} in the baseline and {next(shapes)} in the {arm}"
                raise UsageError(f"the arms do not do the same work: {told}; give both the same shapes")


def write_plan(lake: TraceLake, plan: Plan) -> None:
    """Publish the plan, unless the campaign already has one."""
    campaign = {
        **{name: getattr(plan, name) for name in _OF_THE_PLAN},
        "design": INTERLEAVED,
        "workload": plan.workload,
        "backend": plan.arms["baseline"].request.backend,
        "foretold_ns": plan.prediction.time_ns,
        "foretold_detectable_ratio": plan.prediction.detectable_ratio,
    }
    arms = [arm_row(arm, one) for arm, one in plan.arms.items()]
    limits = [asdict(one) for one in plan.limits]
    publish(lake, plan.campaign, STAGE, {"campaigns": [campaign], "campaign_arms": arms, "campaign_limits": limits})


def arm_row(arm: Arm, measured: Subject) -> dict[str, Any]:
    """Return the row of `campaign_arms` for one arm."""
    return {
        "arm": arm,
        "specification": measured.request.to_json(),
        "artefact_sha256": measured.artefact_sha256,
        "artefact": str(measured.artefact),
        "baseline": measured.baseline,
    }


def read_plan(lake: TraceLake, campaign: str) -> Plan:
    """Read the plan of a campaign; UsageError if there is none."""
    planned = lake.read("campaigns", campaign)
    if planned.is_empty():
        raise UsageError(f"campaign {campaign} has no plan in {lake.path}; `aaco compare` and `aaco nightly` write one")
    row: dict[str, Any] = planned.row(0, named=True)
    arms = {
        cast(Arm, one["arm"]): Subject(
            MeasurementRequest.from_json(one["specification"], f"campaign {campaign}"),
            Path(one["artefact"]),
            one["artefact_sha256"],
            one["baseline"],
        )
        for one in lake.read("campaign_arms", campaign).iter_rows(named=True)
    }
    return Plan(
        **{name: row[name] for name in _OF_THE_PLAN},
        campaign=campaign,
        arms=arms,
        limits=tuple(Limit(**one) for one in lake.read("campaign_limits", campaign).drop("campaign_id").to_dicts()),
        prediction=Prediction(row["foretold_ns"], row["foretold_detectable_ratio"]),
    )


def is_between_nights(lake: TraceLake, campaign: str) -> bool:
    """Return whether a campaign only compares existing nights and measures nothing."""
    return lake.read("campaigns", campaign).get_column("kind").cast(pl.String).to_list() == [BETWEEN_NIGHTS_KIND]


def require_unchanged(plan: Plan) -> None:
    """Raise UsageError if an arm's model is no longer the planned one, LakeError if it cannot be read.

    The placebo is exempt, because it is copied again for each measurement.
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


def _work_in_words(request: MeasurementRequest) -> str:
    """Describe the work of a language model; other models are described by their inputs."""
    if request.output_tokens is None:
        return "generates none"
    return f"{request.output_tokens} tokens after {request.prompt_tokens}, batch {request.batch_size or 1}"


@dataclass(frozen=True)
class History:
    """Results of earlier campaigns of a workload with the same settings on this host.

    `deviation` is the standard deviation of a block's log ratio, pooled over `campaigns`; `session_ns` and `traced_ns`
    are the median times of one session with its stages. Each is None if no campaign provides it.
    """

    campaigns: int
    deviation: float | None
    session_ns: int | None
    traced_ns: int | None

    def time_ns(self, sessions: int, traced: int) -> int | None:
        """Estimate the time of this many sessions; None if one kind of session has no history."""
        if (sessions and self.session_ns is None) or (traced and self.traced_ns is None):
            return None
        return sessions * (self.session_ns or 0) + traced * (self.traced_ns or 0)


def history_of(lake: TraceLake, workload: str, request: MeasurementRequest, metric: str) -> History:
    """Collect this host's history of a workload with the settings of `request`, regardless of the model file."""
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
    """Estimate the time in ns and the detectable ratio of a plan; null without a history."""
    arms = len(plan.arms)
    detectable = None
    if history.deviation is not None:
        error, freedom, level = (
            np.array([each]) for each in (history.deviation / np.sqrt(plan.blocks), plan.blocks - 1.0, LEVEL)
        )
        detectable = float(minimum_detectable_ratio(error, freedom, level)[0])
    return Prediction(history.time_ns(plan.blocks * arms, plan.traced_blocks * arms), detectable)


def _settings(request: MeasurementRequest) -> Mapping[str, Any]:
    return {key: value for key, value in dict(request).items() if key not in _PLACE}


def _deviation(verdicts: pl.DataFrame) -> float | None:
    """Estimate the deviation of a block's log ratio from the verdicts' intervals, pooled by degrees of freedom."""
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
