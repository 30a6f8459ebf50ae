"""What the lake holds of a search for a build: the question, its builds, what was measured, and the answer."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from secrets import token_hex
from typing import Any, Final, Literal, cast

import numpy as np
import numpy.typing as npt
import polars as pl

from aaco_pipeline.capture.request import MeasurementRequest
from aaco_pipeline.errors import UsageError
from aaco_pipeline.lake.store import TraceLake
from aaco_pipeline.lake.validation import to_contract
from aaco_pipeline.pipeline.comparing.plan import Prediction, Subject
from aaco_pipeline.statistics.bisection import Answer, build_effect

STAGE: Final = "bisection"
_NS: Final = 1_000_000_000
Floats = npt.NDArray[np.float64]
State = Literal["planned", "made", "measured", "failed", "good", "bad", "skipped"]


@dataclass(frozen=True)
class Recipe:
    """How builds are made. `request` measures one; `{output}` stands in it for what is made, a model or a Python."""

    repository: Path
    command: str
    limit_seconds: float
    request: MeasurementRequest


@dataclass(frozen=True)
class Build:
    """One of the builds. `subject` measures it; None until it is made."""

    label: str
    revision: str | None = None
    title: str | None = None
    subject: Subject | None = None
    state: State = "planned"
    reason: str | None = None


@dataclass(frozen=True)
class Step:
    """Some blocks of one build beside the first."""

    build: int
    blocks: int
    campaign: str


@dataclass(frozen=True)
class Search:
    """One search as it stands. `pair` is the campaign between the two builds that the answer names."""

    name: str
    began_at: datetime
    workload: str
    backend: str
    builds: tuple[Build, ...]
    recipe: Recipe | None
    predicted_blocks: int | None
    prediction: Prediction
    steps: tuple[Step, ...] = ()
    answer: Answer | None = None
    pair: str | None = None

    @property
    def last(self) -> int:
        return len(self.builds) - 1

    def with_build(self, number: int, **changed: Any) -> "Search":
        builds = list(self.builds)
        builds[number] = replace(builds[number], **changed)
        return replace(self, builds=tuple(builds))


def new_name() -> tuple[str, datetime]:
    """A name for a search, and when it began."""
    now = datetime.now(UTC)
    return f"bisection-{now:%Y%m%dT%H%M%SZ}-{token_hex(4)}", now


def write(lake: TraceLake, search: Search, log_ratios: Mapping[int, Floats]) -> None:
    """Publish a search as it stands, with each build's log ratios of blocks so far."""
    recipe, answer = search.recipe, search.answer
    question = {
        "began_at": search.began_at,
        "workload": search.workload,
        "backend": search.backend,
        "builds": len(search.builds),
        "repository": recipe and str(recipe.repository),
        "make_command": recipe and recipe.command,
        "make_limit_ns": recipe and round(recipe.limit_seconds * _NS),
        "specification": recipe and recipe.request.to_json(),
        "foretold_blocks": search.predicted_blocks,
        "foretold_ns": search.prediction.time_ns,
        "foretold_detectable_ratio": search.prediction.detectable_ratio,
        "answer": answer and answer.state,
        "pair_campaign": search.pair,
        **{name: getattr(answer, name, None) for name in _OF_THE_ANSWER},
    }
    builds = [_row(lake, number, build, log_ratios.get(number)) for number, build in enumerate(search.builds)]
    steps = [{"step": number, **vars(step)} for number, step in enumerate(search.steps)]
    tables = {"bisections": [question], "bisection_builds": builds, "bisection_steps": steps}
    frames = {name: to_contract(name, pl.DataFrame(rows, infer_schema_length=None)) for name, rows in tables.items()}
    lake.publish(search.name, STAGE, frames, scope="campaign")


def read(lake: TraceLake, name: str) -> Search:
    """A search as it stands. UsageError when there is none of that name."""
    asked = lake.read("bisections", name)
    if asked.is_empty():
        raise UsageError(f'no search {name!r} in {lake.path}; `aaco sql "SELECT * FROM bisections"` lists them')
    row = asked.row(0, named=True)
    recipe = None
    if row["make_command"] is not None:
        request = MeasurementRequest.from_json(row["specification"], f"search {name}")
        recipe = Recipe(Path(row["repository"]), row["make_command"], row["make_limit_ns"] / _NS, request)
    return Search(
        name,
        row["began_at"],
        row["workload"],
        row["backend"],
        tuple(_build(lake, name, one) for one in lake.read("bisection_builds", name).iter_rows(named=True)),
        recipe,
        row["foretold_blocks"],
        Prediction(row["foretold_ns"], row["foretold_detectable_ratio"]),
        tuple(Step(*one) for one in lake.read("bisection_steps", name).select("build", "blocks", "campaign").rows()),
        None if row["answer"] is None else Answer(row["answer"], *(row[name] for name in _OF_THE_ANSWER)),
        row["pair_campaign"],
    )


def told_apart(builds: Sequence[Build], answer: Answer) -> tuple[Build, ...]:
    """The builds with what the answer makes of them."""
    return tuple(replace(build, state=_state(number, build, answer)) for number, build in enumerate(builds))


# ---- inside ----------------------------------------------------------------------------------------------------------

#: Fields of an answer that are columns by the same name.
_OF_THE_ANSWER: Final = ("after", "until", "likeliest", "probability", "effect_ratio", "ci_low", "ci_high")


def _state(number: int, build: Build, answer: Answer) -> State:
    if build.state == "failed":
        return "failed"
    if number and build.state != "measured":
        return "skipped"
    if number <= answer.after or answer.state == "no change":
        return "good"
    return "bad" if number >= answer.until else "measured"


def _row(lake: TraceLake, number: int, build: Build, log_ratios: Floats | None) -> dict[str, Any]:
    subject = build.subject
    effect = None if log_ratios is None else build_effect(log_ratios)
    return {
        "build": number,
        "label": build.label,
        "revision": build.revision,
        "title": build.title,
        "specification": subject and subject.request.to_json(),
        "artefact": subject and _within(lake, subject.artefact),
        "artefact_sha256": subject and subject.artefact_sha256,
        "state": build.state,
        "reason": build.reason,
        "blocks": 0 if log_ratios is None else len(log_ratios),
        **dict(zip(("effect_ratio", "ci_low", "ci_high"), effect or (None,) * 3, strict=True)),
    }


def _within(lake: TraceLake, file: Path) -> str:
    return str(file.relative_to(lake.path) if file.is_relative_to(lake.path) else file)


def _build(lake: TraceLake, name: str, row: Mapping[str, Any]) -> Build:
    subject = None
    if row["specification"] is not None:
        request = MeasurementRequest.from_json(row["specification"], f"search {name}, build {row['build']}")
        subject = Subject(request, lake.path / row["artefact"], row["artefact_sha256"])
    return Build(row["label"], row["revision"], row["title"], subject, cast(State, row["state"]), row["reason"])
