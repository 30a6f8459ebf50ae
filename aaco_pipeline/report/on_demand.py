"""Make a session's page and Perfetto trace when somebody asks, and keep them in the lake while they are current.

A kept view is current while the digest of its inputs, published tables and drawing code, is unchanged; one that is
missing, torn or older is made again. `aaco ui` serves both from here; what they show is made by `html` and `perfetto`.
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


# Drawing code is imported where something is drawn: the list of stages needs none of it.

#: The tables that a trace is drawn from.
DRAWN: Final = (
    *("sessions", "processes", "iterations", "api_calls", "critical_path", "dispatches", "kernels", "memory_copies"),
    *("gaps", "markers", "scheduler_events", "clock_domains", "iteration_gaps", "iteration_grades"),
    *("system_samples", "gpu_samples", "kernel_events", "kernel_threads", "kernel_losses", "thread_states"),
)
_Made = TypeVar("_Made")
_PACKAGE: Final = Path(__file__).parents[1]


def page_of(lake: TraceLake, session: str) -> bytes:
    """The session's page in UTF-8, of a lake that cannot be written without being kept.

    LakeError when a table cannot be read, or when another process has been making the page for minutes.
    """
    return _current(_PAGE, lake, session)


def trace_of(lake: TraceLake, session: str) -> bytes:
    """The session's trace, compressed. Kept, and errors, as `page_of`."""
    return _current(_TRACE, lake, session)


def make_page(lake: TraceLake, session: str) -> "Document":
    """Make and keep the page, whether or not a current one is kept; what it says. LakeError as `page_of`."""
    return _make(_PAGE, lake, session)


def make_trace(lake: TraceLake, session: str) -> "TraceSummary":
    """Make and keep the trace, whether or not a current one is kept; what it holds. LakeError as `page_of`."""
    return _make(_TRACE, lake, session)


@dataclass(frozen=True)
class _View(Generic[_Made]):
    """One kind of view: the stage of its name, where a session's lies, and how one is drawn into a file."""

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
        kept = lake.view(session, path, view.rests_on(lake, session))  # another process may have made it meanwhile
        if kept is not None:
            return kept
        _make(view, lake, session)
    with lake_errors(path):
        return path.read_bytes()


def _make(view: _View[_Made], lake: TraceLake, session: str) -> _Made:
    path = view.place(lake, session)
    # Before anything is read: of tables published meanwhile the view may show more than this says, and is made again.
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
    """A page shows how far its session is, all that it published, and the verdicts and the curve of its campaign."""
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
    """The version of the code that draws: this room, and all that a module of it imports from."""
    modules = Path(__file__).parent.rglob("*.py")
    others = {room for module in modules for room in imported_rooms(module.read_text())}
    rooms = {"report", *(room for room in others if not room.startswith("report/"))}
    return " ".join([__version__, *(room_digest(_PACKAGE, room) for room in sorted(rooms))])


_PAGE: Final = _View("report", TraceLake.report, _page_rests_on, _draw_page)
_TRACE: Final = _View("perfetto_trace", TraceLake.trace, _trace_rests_on, _draw_trace)


#: Before the paths of Dagster's own pages: links from them to reports then have the same host, port and cookie.
_PREFIX: Final = "/aaco"
#: Below it, paths as in the lake: a report finds its trace by a relative one.
_ADDRESS: Final = re.compile(rf"{_PREFIX}/(?:reports|traces)/session_id=({SESSION_ID.pattern})/[a-z.]+")


def address_of(path: Path) -> str:
    """Path at which `aaco ui` serves a lake's report or trace, on the same host as Dagster's pages."""
    return "/".join((_PREFIX, *path.parts[-3:]))


def content_of(lake: TraceLake, address: str) -> bytes | None:
    """The page or trace for an address, generated unless a current one is cached; None for any other address.

    LakeError when the session cannot be read; PassingLakeError while another process has been making it for minutes.
    """
    found = _ADDRESS.fullmatch(address)
    if found is None:
        return None
    session = found[1]
    views = {address_of(lake.report(session)): page_of, address_of(lake.trace(session)): trace_of}
    make = views.get(address)
    return make(lake, session) if make is not None and lake.manifest(session).entries else None
