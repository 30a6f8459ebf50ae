"""Load the nightly benchmarks and decide which of them are due at a given time.

The plans that are written for them are `night`.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime
from pathlib import Path
from typing import Annotated, Any, Final, Literal

import polars as pl
from pydantic import Field

from aaco_pipeline.capture.request import MeasurementRequest, MeasurementSettings, spelling_of
from aaco_pipeline.errors import UsageError
from aaco_pipeline.pipeline.comparing.plan import (
    DEFAULT_BLOCKS,
    DEFAULT_THRESHOLD,
    LEAST_BLOCKS,
    MOST_BLOCKS,
    TRACED_BLOCKS,
)
from aaco_pipeline.pipeline.nightly.alerts import Confirmation
from aaco_pipeline.pipeline.nightly.baselines import Kind
from aaco_pipeline.resources.configuration import Form, expecting, load_backends, load_form, load_models
from aaco_pipeline.resources.host.backends import backend_states
from aaco_pipeline.statistics.verdicts.service_level import Limit, usual_budget

FILE: Final = "nightly.yaml"
#: Keys of an entry's `options`: command line options without dashes. Model and backend have their own keys.
_FIELDS: Final[Mapping[str, str]] = {
    spelling_of(name).removeprefix("--"): name
    for name in MeasurementSettings.model_fields
    if name not in ("model", "backend")
}
_Sessions = Annotated[
    int, Field(ge=LEAST_BLOCKS, le=MOST_BLOCKS), expecting(f"a whole number from {LEAST_BLOCKS} to {MOST_BLOCKS}")
]
_Traced = Annotated[int, Field(ge=0, le=MOST_BLOCKS), expecting(f"a whole number from 0 to {MOST_BLOCKS}")]
_Text = Annotated[str, Field(min_length=1), expecting("a name")]
_Share = Annotated[float, Field(gt=0, lt=1), expecting("a share between 0 and 1, such as 0.01")]


class LimitEntry(Form):
    """A service level of one benchmark; the default budget is the fraction above the named quantile."""

    metric: Annotated[Literal["p50", "p90", "p99"], expecting("one of p50, p90, p99")] = Field(
        default=None, validate_default=True
    )
    limit_ms: Annotated[float, Field(gt=0, le=1e9), expecting("a time in ms, more than 0")] = Field(
        default=None, validate_default=True
    )
    budget_ratio: _Share | None = None


class BenchmarkEntry(Form):
    """One benchmark of `nightly.yaml`."""

    model: _Text = Field(default=None, validate_default=True)
    backend: _Text = "cpu"
    options: Annotated[dict[str, Any], expecting("a mapping from options of `aaco run` to their values")] | None = None
    sessions: _Sessions = DEFAULT_BLOCKS
    traced: _Traced = TRACED_BLOCKS
    threshold_ratio: _Share = DEFAULT_THRESHOLD
    limits: Annotated[list[LimitEntry], expecting("a list of limits")] | None = None
    baseline: Annotated[Kind, expecting("pinned or rolling")] = "rolling"


class NightlyFile(Form):
    """The file `configs/nightly.yaml`."""

    benchmarks: Annotated[list[BenchmarkEntry], expecting("a list of benchmarks")] | None = None


@dataclass(frozen=True)
class Benchmark:
    """One nightly measurement, identified by workload and backend, which must be unique."""

    request: MeasurementRequest
    blocks: int = DEFAULT_BLOCKS
    traced_blocks: int = TRACED_BLOCKS
    threshold_ratio: float = DEFAULT_THRESHOLD
    limits: tuple[Limit, ...] = ()
    baseline: Kind = "rolling"

    @property
    def workload(self) -> str:
        return Path(self.request.model).stem

    @property
    def backend(self) -> str:
        return self.request.backend

    @property
    def key(self) -> tuple[str, str]:
        """The workload and the backend."""
        return self.workload, self.backend

    @property
    def name(self) -> str:
        """The name used on the command line."""
        return f"{self.workload}:{self.backend}"


def load_benchmarks(configs: Path) -> list[Benchmark]:
    """Load the benchmarks of a night, in the file's order.

    Without entries this is one benchmark per registered model and backend usable on this host. UsageError for an
    invalid file, two benchmarks with the same workload and backend, or an empty list.
    """
    path = configs / FILE
    file = load_form(path, NightlyFile)
    entries = (file and file.benchmarks) or []
    found = [_benchmark(path, place, entry) for place, entry in enumerate(entries)] or _of_every_model(configs)
    if not found:
        raise UsageError(
            f"{path}: no benchmarks, and {configs / 'models.yaml'} registers no model; name what each night is to "
            "measure, such as `benchmarks: [{model: squeezenet}]`"
        )
    names = [one.name for one in found]
    if twice := next((name for name in names if names.count(name) > 1), None):
        raise UsageError(
            f"{path}: {twice} is there twice, and its nights could not be separated; register the model under another "
            "name in models.yaml to measure it in two ways"
        )
    return found


def chosen(benchmarks: Sequence[Benchmark], only: Sequence[str]) -> list[Benchmark]:
    """Select the benchmarks named `MODEL` or `MODEL:BACKEND`, or all without names. UsageError for unknown names."""
    known = {name for one in benchmarks for name in (one.workload, one.name)}
    if unknown := [name for name in only if name not in known]:
        raise UsageError(f"no benchmark {unknown[0]!r}; there is {', '.join(one.name for one in benchmarks)}")
    return [one for one in benchmarks if not only or one.workload in only or one.name in only]


def _of_every_model(configs: Path) -> list[Benchmark]:
    usable = [state.backend for state in backend_states(load_backends(configs / "backends.yaml")) if state.usable]
    return [
        Benchmark(MeasurementRequest(model=model, backend=backend))
        for model in load_models(configs / "models.yaml")
        for backend in usable
    ]


def _benchmark(path: Path, place: int, entry: BenchmarkEntry) -> Benchmark:
    where = f"{path}: benchmarks[{place}]"
    options = entry.options or {}
    if unknown := [str(name) for name in options if name not in _FIELDS]:
        raise UsageError(f"{where}.options: no option {unknown[0]!r}; expected one of {', '.join(sorted(_FIELDS))}")
    model = entry.model
    if model.endswith(".onnx") or "/" in model:
        model = str((path.absolute().parent / model).resolve())
    asked = {_FIELDS[name]: value for name, value in options.items()}
    try:
        request = MeasurementRequest(model=model, backend=entry.backend, **asked)
        limits = tuple(
            Limit(
                metric := f"latency_{one.metric}", round(one.limit_ms * 1e6), one.budget_ratio or usual_budget(metric)
            )
            for one in entry.limits or []
        )
    except UsageError as error:
        raise UsageError(f"{where}: {error}") from error
    if len({one.metric for one in limits}) < len(limits):
        raise UsageError(f"{where}.limits: one metric has two limits; give one limit a metric")
    return Benchmark(request, entry.sessions, entry.traced, entry.threshold_ratio, limits, entry.baseline)


@dataclass(frozen=True)
class Due:
    """Work that is due.

    `go_on` are campaigns without a verdict, of tonight or confirming; `begin` are tonight's benchmarks without a plan;
    `confirm` are findings that are due for a second time slot, `later` those that are not due yet.
    """

    night: date
    go_on: list[str]
    begin: list[Benchmark]
    confirm: list[Confirmation]
    later: list[Confirmation]

    @property
    def is_nothing(self) -> bool:
        return not (self.go_on or self.begin or self.confirm)


def night_of(now: datetime) -> date:
    """Return the night of a time: its UTC date."""
    return now.astimezone(UTC).date()


def due(
    benchmarks: Sequence[Benchmark],
    campaigns: pl.DataFrame,
    confirmations: Sequence[Confirmation],
    now: datetime,
    only: Collection[tuple[str, str]] | None = None,
) -> Due:
    """Decide what is due at `now`, as a pure function.

    Args:
        benchmarks: Benchmarks of every night; may be empty.
        campaigns: campaign_id, workload, backend, night, confirms, planned_at and is_judged of all nightly campaigns.
        confirmations: Findings that await a second time slot.
        now: A time with its zone.
        only: Workloads and backends to consider; None means all.

    Returns:
        The lists in a fixed order: by plan, by position in the file, earliest first. A past night is not continued,
        because its blocks and tonight's must not be mixed. A finding with a confirming campaign is not listed.
    """
    night = night_of(now)
    rows = campaigns.sort("planned_at", "campaign_id").to_dicts()
    ours = [row for row in rows if only is None or (row["workload"], row["backend"]) in only]
    begun = {(row["workload"], row["backend"]) for row in rows if row["night"] == night and row["confirms"] is None}
    confirmed = {row["confirms"] for row in rows}
    waiting = [one for one in confirmations if one.campaign not in confirmed]
    mine = [one for one in waiting if only is None or (one.workload, one.backend) in only]
    half = [row for row in ours if not row["is_judged"] and (row["night"] == night or row["confirms"] is not None)]
    return Due(
        night,
        [row["campaign_id"] for row in half],
        [one for one in benchmarks if one.key not in begun],
        [one for one in mine if one.not_before <= now],
        [one for one in mine if one.not_before > now],
    )
