"""Where `aaco ui` serves a lake's reports and traces, and what it gives there: the lake's own files, verified."""

import re
from pathlib import Path
from typing import Final

from aaco_pipeline.lake.identity import SESSION_ID
from aaco_pipeline.lake.store import TraceLake

#: Before the paths of Dagster's own pages: links from them to reports then have the same host, port and cookie.
_PREFIX: Final = "/aaco"
#: Below it, paths as in the lake: a report finds its trace by a relative one.
_ADDRESS: Final = re.compile(rf"{_PREFIX}/(reports|traces)/session_id=({SESSION_ID.pattern})/([a-z.]+)")


def address_of(path: Path) -> str:
    """Where a lake's report or trace is served while `aaco ui` runs, on the same host as Dagster's pages."""
    return "/".join((_PREFIX, *path.parts[-3:]))


def content_of(lake: TraceLake, address: str) -> bytes | None:
    """The report or trace that an address means, verified; None for any other. LakeError when it is torn."""
    found = _ADDRESS.fullmatch(address)
    if found is None:
        return None
    folder, session, name = found[1], found[2], found[found.re.groups]
    path = lake.report(session) if folder == "reports" else lake.trace(session)
    return lake.artifact(session, path) if path.name == name else None
