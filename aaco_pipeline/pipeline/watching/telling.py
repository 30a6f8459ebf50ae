"""Telling a finding once: a line in the log, a JSON file in the lake, and the command that was configured.

The file is also what is remembered: a finding that has one was told. How often its command was tried is written before
it runs, so that a kill leads to one more attempt and never to many.
"""

import json
import re
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, Final

from aaco_pipeline.lake.files import lake_errors, make_folder, write_atomically
from aaco_pipeline.lake.layout import FINDINGS
from aaco_pipeline.lake.store import TraceLake
from aaco_pipeline.pipeline.watching.findings import Finding
from aaco_pipeline.report.words.printable import in_a_line
from aaco_pipeline.resources.notifications import Hook, run_hook

#: The first attempt to run the command, and one more.
MOST_ATTEMPTS: Final = 2
Log = Callable[[str], None]


def tell(lake: TraceLake, found: Iterable[Finding], hook: Hook | None, log: Log) -> list[str]:
    """Tell what was not told before, and try failed commands once more; what was done, in words, for each."""
    return [done for finding in found if (done := _tell(lake, finding, hook, log)) is not None]


def _tell(lake: TraceLake, finding: Finding, hook: Hook | None, log: Log) -> str | None:
    path = lake.path / FINDINGS / f"{_file_name(finding.key)}.json"
    known = _known(path)
    if known is None:
        log(in_a_line(finding.sentence))
        known = {**finding.document, "command": {"attempts": 0, "done": hook is None, "failure": None}}
        _write(path, known)
        if hook is None:
            return f"told {finding.key}"
    attempts = known["command"]["attempts"]
    if known["command"]["done"] or attempts >= MOST_ATTEMPTS or hook is None:
        return None
    known["command"] = {"attempts": attempts + 1, "done": False, "failure": "it was killed"}
    _write(path, known)
    failure = run_hook(hook, finding.document)
    known["command"] |= {"done": failure is None, "failure": failure}
    _write(path, known)
    if failure is None:
        return f"told {finding.key}, command run"
    left = "tried once more at the next look" if attempts + 1 < MOST_ATTEMPTS else "not tried again"
    log(in_a_line(f"the command for {finding.key} failed, {left}: {failure}"))
    return f"the command for {finding.key} failed: {failure}"


def _known(path: Path) -> dict[str, Any] | None:
    with lake_errors(path):
        if not path.exists():
            return None
        document: dict[str, Any] = json.loads(path.read_bytes())
        return document


def _write(path: Path, document: dict[str, Any]) -> None:
    with lake_errors(path):
        make_folder(path.parent)
        write_atomically(path, (json.dumps(document, indent=1, sort_keys=True) + "\n").encode())


def _file_name(key: str) -> str:
    """A key as part of a path: names of alerts are made by others."""
    return re.sub(r"[^A-Za-z0-9._-]", "_", key).lstrip(".")
