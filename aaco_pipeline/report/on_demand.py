"""Generate a session's page and Perfetto trace on request, and cache them in the lake while they are current.

A cached view is current while the digest of its inputs, published tables and drawing code, is unchanged; a missing,
torn or outdated one is generated again. `aaco ui` serves both; `html` and `perfetto` define their content.
"""

import json
import os
import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import cache
from hashlib import sha256
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Final, Generic, TypeVar

from aaco_pipeline import __version__
from aaco_pipeline.code_digest import imported_rooms, room_digest
from aaco_pipeline.lake.files import lake_errors
from aaco_pipeline.lake.layout import SESSION_ID
from aaco_pipeline.lake.store import TraceLake

if TYPE_CHECKING:
    from aaco_pipeline.report.perfetto.encoding import TraceSummary
    from aaco_pipeline.report.session.sentences import Document


# Drawing code is imported on demand, because the list of stages does not need it.

#: Tables needed for a trace.
DRAWN: Final = (
    *("sessions", "processes", "iterations", "api_calls", "critical_path", "dispatches", "kernels", "memory_copies"),
    *("gaps", "markers", "scheduler_events", "clock_domains", "iteration_gaps", "iteration_grades"),
    *("system_samples", "gpu_samples", "kernel_events", "kernel_threads", "kernel_losses", "thread_states"),
)
_Made = TypeVar("_Made")
_PACKAGE: Final = Path(__file__).parents[1]


def page_of(lake: TraceLake, session: str) -> bytes:
    """Return the session's page in UTF-8; if the lake is read-only, the page is not cached.

    LakeError if a table cannot be read, or if another process has been generating the page for minutes.
    """
    return _current(_PAGE, lake, session)


def trace_of(lake: TraceLake, session: str) -> bytes:
    """Return the session's compressed trace. Caching and errors are the same as for `page_of`."""
    return _current(_TRACE, lake, session)


def make_page(lake: TraceLake, session: str) -> "Document":
    """Generate and cache the page even if it is current, and return its document. Errors as for `page_of`."""
    return _make(_PAGE, lake, session)


def make_trace(lake: TraceLake, session: str) -> "TraceSummary":
    """Generate and cache the trace even if it is current, and return its summary. Errors as for `page_of`."""
    return _make(_TRACE, lake, session)


@dataclass(frozen=True)
class _View(Generic[_Made]):
    """A kind of view: the stage with its name, its path in a session, and the function that draws it to a file."""

    stage: str
    place: Callable[[TraceLake, str], Path]
    rests_on: Callable[[TraceLake, str], str]
    draw: Callable[[TraceLake, str, Path], _Made]


def _current(view: _View[_Made], lake: TraceLake, session: str) -> bytes:
    path = view.place(lake, session)
    kept = lake.view(session, path, view.rests_on(lake, session))
    if kept is not None:
        return kept
    if not os.access(lake.path, os.W_OK):
        with TemporaryDirectory() as folder:
            view.draw(lake, session, file := Path(folder, path.name))
            return file.read_bytes()
    with lake.drawing(session, path):
        kept = lake.view(session, path, view.rests_on(lake, session))  # another process may have generated it
        if kept is not None:
            return kept
        _make(view, lake, session)
    with lake_errors(path):
        return path.read_bytes()


def _make(view: _View[_Made], lake: TraceLake, session: str) -> _Made:
    path = view.place(lake, session)
    # Computed before reading: if tables are published meanwhile, the view is newer than its digest and is regenerated.
    rests_on = view.rests_on(lake, session)
    with lake.new_view(session, view.stage, path, rests_on) as file, lake_errors(path):
        return view.draw(lake, session, file)


def _draw_page(lake: TraceLake, session: str, file: Path) -> "Document":
    from aaco_pipeline.report.html.page import render_html
    from aaco_pipeline.report.session.document import session_document

    document = session_document(lake, session)
    file.write_bytes(render_html(document, trace_of(lake, session)).encode())
    return document


def _draw_trace(lake: TraceLake, session: str, file: Path) -> "TraceSummary":
    from aaco_pipeline.report.perfetto.session import write_session_trace

    return write_session_trace(session, lambda table, columns: lake.batches(table, session, columns), file)


def _page_rests_on(lake: TraceLake, session: str) -> str:
    """Return a page's inputs: the session's progress and published tables, and its campaigns' verdicts and scaling
    curve.
    """
    from aaco_pipeline.report.session.document import campaign_of

    manifest, campaign = lake.manifest(session), campaign_of(lake, session)
    of_campaign = lake.manifest(campaign, "campaign").entries if campaign else ()
    return _digest([session, manifest.expected, manifest.stages, manifest.entries, of_campaign])


def _trace_rests_on(lake: TraceLake, session: str) -> str:
    return _digest([session, [entry for entry in lake.manifest(session).entries if entry.table in DRAWN]])


def _digest(made_from: Iterable[object]) -> str:
    return sha256(json.dumps([_code(), *made_from]).encode()).hexdigest()


@cache
def _code() -> str:
    """Return the version of the drawing code: this package, and everything that a module of it imports."""
    modules = Path(__file__).parent.rglob("*.py")
    others = {room for module in modules for room in imported_rooms(module.read_text())}
    rooms = {"report", *(room for room in others if not room.startswith("report/"))}
    return " ".join([__version__, *(room_digest(_PACKAGE, room) for room in sorted(rooms))])


_PAGE: Final = _View("report", TraceLake.report, _page_rests_on, _draw_page)
_TRACE: Final = _View("perfetto_trace", TraceLake.trace, _trace_rests_on, _draw_trace)


#: Path prefix on the server of Dagster's pages, so that links from them to reports share host, port and cookie.
_PREFIX: Final = "/aaco"
#: Paths below it match the lake, because a report finds its trace by a relative path.
_ADDRESS: Final = re.compile(rf"{_PREFIX}/(?:reports|traces)/session_id=({SESSION_ID.pattern})/[a-z.]+")


def address_of(path: Path) -> str:
    """Return the path at which `aaco ui` serves a lake's report or trace, on the same host as Dagster's pages."""
    return "/".join((_PREFIX, *path.parts[-3:]))


def content_of(lake: TraceLake, address: str) -> bytes | None:
    """Return the page or trace at an address, generated unless a current one is cached; None for any other address.

    LakeError if the session cannot be read; PassingLakeError if another process has been generating it for minutes.
    """
    found = _ADDRESS.fullmatch(address)
    if found is None:
        return None
    session = found[1]
    views = {address_of(lake.report(session)): page_of, address_of(lake.trace(session)): trace_of}
    make = views.get(address)
    return make(lake, session) if make is not None and lake.manifest(session).entries else None
