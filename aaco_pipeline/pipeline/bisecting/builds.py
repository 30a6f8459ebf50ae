"""The builds of a search: those that are there, and making one from its revision."""

import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

from aaco_pipeline.capture.request import MeasurementRequest
from aaco_pipeline.errors import ModelError, UsageError
from aaco_pipeline.formats.onnx.weightless import external_files, graph_only
from aaco_pipeline.formats.parsing.redaction import safe_name
from aaco_pipeline.lake.artefacts import BUILDS, keep_artefact
from aaco_pipeline.lake.files import lake_errors
from aaco_pipeline.lake.writers import temporary_beside
from aaco_pipeline.pipeline.bisecting.record import Build, Recipe
from aaco_pipeline.pipeline.comparing.plan import Subject, new_plan, subject
from aaco_pipeline.resources.measure.inference import check_request
from aaco_pipeline.resources.measure.measurement_slot import measurement_slot
from aaco_pipeline.resources.toolchains.making import OUTPUT, make, words_of
from aaco_pipeline.resources.toolchains.revisions import checked_out

Log = Callable[[str], None]
_SHORT: Final = 10


def builds_there(specifications: Sequence[tuple[str, MeasurementRequest]], configs: Path) -> tuple[Build, ...]:
    """Builds that need no making, each by what it is called. AacoError when one cannot be measured beside the first."""
    if len(specifications) < 2:
        raise UsageError("there is nothing between one build and itself: give two or more")
    builds: list[Build] = []
    for label, request in specifications:
        check_request(request, configs)
        made = Build(label, subject=subject(request, configs), state="made")
        builds.append(made)
        require_same_work(builds[0], made)
    return tuple(builds)


def require_same_work(first: Build, other: Build) -> None:
    """UsageError when a build cannot be held against the first: it takes other inputs, or generates tokens alone."""
    assert first.subject is not None and other.subject is not None
    new_plan("bisect", {"baseline": first.subject, "candidate": other.subject})
    before, after = (_inputs(one.subject.artefact) for one in (first, other) if one.subject is not None)
    if None not in (before, after) and before != after:
        raise UsageError(
            f"{other.label}: takes {after}, and the first build {before}; builds must do the same work to be compared"
        )


def output_of(recipe: Recipe) -> str:
    """What the file that is made is called: a model by its repository, which names the workload; else a Python."""
    if recipe.request.model == OUTPUT:
        return f"{safe_name(recipe.repository.resolve().name) or 'model'}.onnx"
    return "bin/python"


def made(lake: Path, search: str, number: int, build: Build, recipe: Recipe, *, configs: Path, log: Log) -> Subject:
    """Make a build from its revision; the arm that measures it.

    It is made in a work tree of its own, with the measurement slot held: what compiles would disturb what measures. A
    model is kept with the lake's artefacts, an interpreter where it was made, because most cannot be moved. ModelError
    when it cannot be made, and AacoError when what was made cannot be run.
    """
    assert build.revision is not None
    folder = lake / BUILDS
    with lake_errors(folder):
        folder.mkdir(parents=True, exist_ok=True)
        work = temporary_beside(folder / "work")
        work.mkdir()
    is_model = recipe.request.model == OUTPUT
    place = work / "output" if is_model else folder / search / str(number)
    output = place / output_of(recipe)
    try:
        with lake_errors(place):
            shutil.rmtree(place, ignore_errors=True)  # what a killed make left
            output.parent.mkdir(parents=True)
        with (
            measurement_slot(on_wait=log),
            checked_out(recipe.repository, build.revision, work / "source"),
        ):
            words = words_of(recipe.command)
            make(
                words,
                build.revision,
                output,
                work / "source",
                log=work / "make.log",
                limit_seconds=recipe.limit_seconds,
            )
        if is_model:
            output = lake / keep_artefact(lake, output, external_files(output))
    finally:
        shutil.rmtree(work, ignore_errors=True)
    field = "model" if is_model else "interpreter"
    request = MeasurementRequest(**{**dict(recipe.request), field: str(output)})
    check_request(request, configs)
    return subject(request, configs)


def from_revision(name: str, title: str) -> Build:
    """A build that is yet to be made."""
    return Build(name[:_SHORT], name, title)


# ---- inside ----------------------------------------------------------------------------------------------------------


def _inputs(model: Path) -> str | None:
    """What a model takes, in words; None where the file does not say, which the runtime then may."""
    from aaco_pipeline.formats import onnx as onnx_format

    try:
        inputs = onnx_format.read(graph_only(model), str(model)).inputs
    except ModelError:
        return None
    return ", ".join(sorted(f"{one.name} {one.dtype} {list(one.dims or ())}" for one in inputs)) or "no input"
