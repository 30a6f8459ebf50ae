"""The doors to captures: what a path holds, its digest, copying it, and opening the copy, each in a confined child.

They do what their namesakes in `aaco_pipeline.capture` and `aaco_pipeline.resources.ingestion` do in the same process,
which tests and the child itself use. Which session a capture becomes is `aaco_pipeline.pipeline.ingestion`.
"""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

from aaco_pipeline.capture import Identity, identity
from aaco_pipeline.capture.discovery import DiscoveredRuns, Run
from aaco_pipeline.formats.parsing.regular_files import files_beneath, is_folder, settled
from aaco_pipeline.resources.confinement.bounds import bounds_for, size_on_disk
from aaco_pipeline.resources.confinement.requests import as_json, run_from, unread_from
from aaco_pipeline.resources.confinement.results import ConfinedCapture, Frames, Question
from aaco_pipeline.resources.confinement.server import answered

#: What SQLite may have left beside a database, by which it is known that it was not finished.
_BESIDE: Final = ("-wal", "-journal")


def discover_runs(path: Path) -> DiscoveredRuns:
    """Recognize everything under `path`: see `aaco_pipeline.capture.discovery.discover_runs`."""
    path = settled(path)
    whole = is_folder(path)
    files = files_beneath(path)[0] if whole else [path]
    top = path if whole else path.parent
    request = {"work": "discover", "path": str(path)}
    readable = [path] if whole else _with_beside([path])
    with answered(request, path, readable, [], bounds_for(size_on_disk(files))) as (answer, _):
        runs = tuple(run_from(one, top) for one in answer["runs"])
        return DiscoveredRuns(runs, tuple(unread_from(answer["unread"], top)))


def capture_digest(run: Run) -> str:
    """SHA-256 over the content of a run's files: see `aaco_pipeline.resources.ingestion.capture_digest`.

    Of a small run `discover_runs` has brought it along. A file that changes after that is noticed by its copy.
    """
    if run.digest is not None:
        return run.digest
    with _of_run("digest", run, []) as (answer, _):
        return str(answer["digest"])


def copy_capture(run: Run, folder: Path, workload: str | None, *, keep_original: bool = False) -> None:
    """Fill `folder` with the run's files, minus secrets: see `aaco_pipeline.resources.ingestion.copy_capture`.

    The child that copies them reads the copy too, so that `open_capture` need not start another.
    """
    folder = settled(folder)
    asked = {"folder": str(folder), "workload": workload, "keep_original": keep_original}
    with _of_run("copy", run, [folder], **asked) as (answer, results):
        question = Question(folder, True, bounds_for(size_on_disk(files_beneath(folder)[0])))
        _remember(identity(folder), ConfinedCapture(question, answer, Frames(results, folder)))


def open_capture(raw: Path) -> ConfinedCapture:
    """The capture in a session's raw folder; the same object for the same content, however often it is asked for.

    The newest one only is kept. CaptureError when the folder holds no capture, or a damaged one.
    """
    known = identity(raw)
    if known not in _OPENED:
        folder = settled(raw)
        bounds = bounds_for(size_on_disk(files_beneath(folder)[0]))
        question = Question(folder, known.place is None, bounds)
        _remember(known, ConfinedCapture(question, *question.ask("read")))
    return _OPENED[known]


_OPENED: Final[dict[Identity, ConfinedCapture]] = {}


def _remember(known: Identity, capture: ConfinedCapture) -> None:
    _OPENED.clear()
    _OPENED[known] = capture


@contextmanager
def _of_run(work: str, run: Run, writable: list[Path], **more: Any) -> Iterator[tuple[dict[str, Any], Path]]:
    """The answer to what is asked of a run's files, and the folder of its results while the context lasts."""
    files = [*(file for part in run.parts for file in part.files), *(one.path for one in run.unread)]
    whole = is_folder(run.folder)
    top = run.folder if whole else run.folder.parent
    request = {"work": work, "run": as_json(run), "top": str(top), **more}
    readable = [run.folder] if whole else _with_beside(files)
    with answered(request, run.folder, readable, writable, bounds_for(size_on_disk(files))) as given:
        yield given


def _with_beside(files: Iterable[Path]) -> list[Path]:
    return [file.with_name(file.name + ending) for file in files for ending in ("", *_BESIDE)]
