"""Taking in a tiny capture while calls fail, its reader's calls included; what is shown has no session's own id."""

import re
from collections.abc import Callable
from pathlib import Path
from typing import Final
from unittest.mock import patch

from aaco_pipeline.errors import LakeError
from aaco_pipeline.lake.journal import Journal
from aaco_pipeline.lake.removals import Account
from aaco_pipeline.lake.store import TraceLake
from aaco_pipeline.pipeline.doctor import examine
from aaco_pipeline.pipeline.ingestion import discovered, ingest
from aaco_pipeline.pipeline.session_stages import finish_session
from aaco_pipeline.resources.confinement import server
from benchmarks.reliability.fault_injection.library import STATE_FILE
from benchmarks.reliability.fault_injection.operations import Operation, Shown, files, shown
from benchmarks.performance.ingest_cost import write_capture

_CONFIGS: Final = Path(__file__).parents[3] / "configs"


def operation(folder: Path) -> Operation:
    """Taking in the second of two captures, which lie in `folder`, into a lake that has the first."""
    # What the reader of captures writes is struck as well.
    patch.object(server, "_PASSED_ON", (*server._PASSED_ON, "LD_PRELOAD", STATE_FILE)).start()
    first, second = (write_capture(folder / f"capture_{number}", number) for number in (1, 2))

    def taken_in(capture: Path, lake: TraceLake) -> None:
        for one in ingest(lake, discovered(lake, capture), finish=lambda session: _finish(lake, session)):
            if one.error is not None:
                raise one.error

    return Operation(
        lambda lake: taken_in(first, lake),
        (lambda lake: taken_in(second, lake),),
        mend=_mend,
        show=_shown,
        files=_files,
        is_gradual=True,
    )


def _finish(lake: TraceLake, session: str) -> None:
    finish_session(lake, session, _CONFIGS)


def _mend(lake: TraceLake) -> None:
    """Mend as `aaco doctor --mend` does."""
    treated: set[tuple[str, str]] = set()
    while True:
        found = [
            one
            for one in examine(lake, lambda session: _finish(lake, session))
            if (one.kind, one.subject) not in treated
        ]
        if not found:
            return
        for one in found:
            treated.add((one.kind, one.subject))
            if one.mend is None or not one.mend():
                raise LakeError(f"{one.kind} of {one.subject} was not mended: {one.explanation}")


def _shown(lake: TraceLake) -> Shown:
    """Read the lake as its readers do; of the journal only whether it has an entry, since entries change in steps."""
    seen = shown(lake, _called(lake))
    return {aspect: "" if aspect.startswith("journal of") else value for aspect, value in seen.items()}


def _files(lake: TraceLake) -> dict[str, str]:
    """The names of all files, those of tables without their digests, and what is not whole or pending."""
    called = _called(lake)
    names = (re.sub(r"-[0-9a-f]{12}\.parquet$", "", called(name)) for name in files(lake))
    left = {"unfinished": str(lake.unfinished()), "pending": str(Account(lake).pending())}
    return {**dict.fromkeys(names, ""), **left}


def _called(lake: TraceLake) -> Callable[[str], str]:
    """Give each session a name that is the same in every run."""
    known = {*lake.sessions(), *lake.captured(), *(one.session_id for one in Journal(lake).entries())}
    names = {session: f"session {number}" for number, session in enumerate(sorted(known), 1)}

    def called(text: str) -> str:
        for session, name in names.items():
            text = text.replace(session, name)
        return text

    return called
