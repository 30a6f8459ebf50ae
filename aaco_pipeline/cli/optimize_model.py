"""`aaco optimize` of a model: what it is asked in, and what it prints. The kernel's half is `optimize`."""

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from aaco_pipeline.cli.compare import INCONCLUSIVE, request_in
from aaco_pipeline.cli.output import print_json, say
from aaco_pipeline.cli.progress_bar import progress_bar

if TYPE_CHECKING:
    from aaco_pipeline.resources.project import Project

_SOURCES: Final = (".hip", ".cu", ".cpp")
#: Options that say something of a kernel's source, with what they are where nobody gave them.
_OF_KERNELS: Final = {"kernel": None, "harness": None, "target": "auto", "apply": False}


def is_of_a_model(source: Path | None, session: str | None) -> bool:
    """Whether a model is meant: a SPEC that begins with its name or its .onnx file, or a session without a source."""
    if source is None:
        return session is not None
    first = str(source).partition(" ")[0]
    return first.endswith(".onnx") or not (first.endswith(_SOURCES) or source.exists() or "/" in first or "." in first)


def optimize_model(
    project: "Project", specification: str | None, asked: dict[str, Any], *, strict: bool, as_json: bool
) -> int:
    """Search among configurations of the runtime, then print the answer; the exit code that it means."""
    from aaco_pipeline.lake.store import TraceLake
    from aaco_pipeline.pipeline.optimizing import models
    from aaco_pipeline.report.document.optimization import optimization_document
    from aaco_pipeline.report.terminal.optimization import print_optimization
    from aaco_pipeline.report.words.optimization import is_decided
    from aaco_pipeline.resources.progress import progress_listener

    if wrong := [name for name, default in _OF_KERNELS.items() if asked[name] != default]:
        raise click.UsageError(f"--{wrong[0]} is for a kernel's source; leave it out for a model")
    lake, session = TraceLake(project.lake), asked["session"]
    if specification is not None and session is not None:
        raise click.UsageError(f"--session {session} names a model of its own; leave {specification!r} or it out")
    if specification is not None:
        request = request_in(specification)
    else:
        request, session = models.request_of_session(lake, session, project.configs)
    order = models.ModelOrder(request, session, asked["budget"], asked["threshold"])

    @contextmanager
    def shown() -> Iterator[None]:
        with progress_bar(as_json) as show, progress_listener(show):
            yield

    name = models.optimize_model(project.configs, lake, order, log=partial(say, err=True), shown=shown)
    document = optimization_document(lake, name)
    if as_json:
        print_json(document)
    else:
        print_optimization(document)
    return INCONCLUSIVE if strict and not is_decided(document) else 0
