"""Register models that a Dagster run may measure: by name, or as a copy of a file in a trusted folder.

The copy is made from the file opened in the trusted folder, weights included, so later changes to the path have no
effect. Provider options are restricted to numbers and words, because some providers load a file named in an option.
"""

import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from aaco_pipeline.capture.request import MeasurementRequest
from aaco_pipeline.errors import AacoError, ModelError, UsageError
from aaco_pipeline.lake.store import TraceLake
from aaco_pipeline.pipeline.nightly.baselines import keep
from aaco_pipeline.pipeline.scratch import scratch
from aaco_pipeline.pipeline.sessions import register
from aaco_pipeline.resources.configuration import load_models
from aaco_pipeline.resources.measure.models import origin_of, weights_beside
from aaco_pipeline.resources.measure.runner import InferenceRunner
from aaco_pipeline.resources.project_settings import TrustedFolders, trusted_folders

_PLAIN_VALUE: Final = re.compile(r"[A-Za-z0-9_+-]{0,64}(\.[0-9]{1,32})?")
_NAMES_A_FILE: Final = re.compile(r"path|file|dir|folder|lib", re.IGNORECASE)


def register_trusted(lake: TraceLake, runner: InferenceRunner, request: MeasurementRequest) -> str:
    """Check a Dagster run's request and register its session; AacoError, with nothing stored, if it is not allowed."""
    _require_plain(request)
    if origin_of(request.model, load_models(runner.folder / "models.yaml")) != "path":
        runner.check(request)
        return register(lake, request)
    trusted = trusted_folders(runner.folder)
    path = trusted.locate(request.model)
    with scratch("models") as folder, _named(path, folder):
        copy = _copied(trusted, path, folder)
        request = request.model_copy(update={"model": str(path), "artefact": str(copy)})
        runner.check(request)
        kept = lake.path / keep(lake, request, runner.folder)
    return register(lake, request.model_copy(update={"artefact": str(kept)}))


def _require_plain(request: MeasurementRequest) -> None:
    for key, value in request.provider_options.items():
        if _NAMES_A_FILE.search(key) or not _PLAIN_VALUE.fullmatch(value):
            raise UsageError(
                f"provider_options.{key} is {value!r}; a run of Dagster gives numbers and words there and names no "
                "file: measure with `aaco run` in your own shell"
            )


def _copied(trusted: TrustedFolders, path: Path, folder: Path) -> Path:
    """Copy the model and the weights next to it to a private folder."""
    copy = folder / path.name
    try:
        trusted.copy(path, copy)
    except FileNotFoundError as error:
        raise ModelError(f"{path}: no such file; check the path, or choose a model that `aaco info` lists") from error
    for weights in weights_beside(copy):
        name = weights.relative_to(folder)
        if not weights.exists():
            try:
                trusted.copy(path.parent / name, weights)
            except FileNotFoundError as error:
                raise ModelError(f"{path.parent / name}: no such file; {path} keeps weights there") from error
    return copy


@contextmanager
def _named(path: Path, folder: Path) -> Iterator[None]:
    """Make an error name the requested file instead of its copy, which has been deleted."""
    try:
        yield
    except AacoError as error:
        raise type(error)(str(error).replace(str(folder), str(path.parent))) from error
