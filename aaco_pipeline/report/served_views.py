"""Where `aaco ui` serves the pages and traces of a lake's sessions, and what it gives there: views made when asked."""

import re
from pathlib import Path
from typing import Final

from aaco_pipeline.lake.identity import SESSION_ID
from aaco_pipeline.lake.store import TraceLake
from aaco_pipeline.report.views import page_of, trace_of

#: Before the paths of Dagster's own pages: links from them to reports then have the same host, port and cookie.
_PREFIX: Final = "/aaco"
#: Below it, paths as in the lake: a report finds its trace by a relative one.
_ADDRESS: Final = re.compile(rf"{_PREFIX}/(?:reports|traces)/session_id=({SESSION_ID.pattern})/[a-z.]+")


def address_of(path: Path) -> str:
    """Where a lake's report or trace is served while `aaco ui` runs, on the same host as Dagster's pages."""
    return "/".join((_PREFIX, *path.parts[-3:]))


def content_of(lake: TraceLake, address: str) -> bytes | None:
    """The page or trace that an address means, made unless a current one is kept; None for any other address.

    LakeError when the session cannot be read; PassingLakeError while another process has been making it for minutes.
    """
    found = _ADDRESS.fullmatch(address)
    if found is None:
        return None
    session = found[1]
    views = {address_of(lake.report(session)): page_of, address_of(lake.trace(session)): trace_of}
    make = views.get(address)
    return make(lake, session) if make is not None and lake.manifest(session).entries else None
