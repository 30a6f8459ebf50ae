"""`aaco check`: check whether a recording supports an answer; if not, say how to record again.

`aaco_pipeline.analysis.completeness` finds what is missing, `aaco_pipeline.report.recording_checks` describes it.
"""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from aaco_pipeline.cli.options import late_lake_option, open_lake
from aaco_pipeline.cli.output import console, data_format, print_json, print_table, say
from aaco_pipeline.errors import CaptureError, IncompleteError, UsageError
from aaco_pipeline.report.formatting import grouped
from aaco_pipeline.report.recording_checks import TITLES, consequences, headline
from aaco_pipeline.report.terminal import print_prose

if TYPE_CHECKING:
    from aaco_pipeline.analysis.completeness.examination import Completeness
    from aaco_pipeline.capture.discovery import Run
    from aaco_pipeline.resources.project import Project

_COUNTS: Final = ("launched", "unrecorded", "recorded", "linked", "dropped", "out_of_order", "before_recording")
_SPARE: Final = ("*before recording", "*out of order", "device", "*unrecorded", "process")
Document = dict[str, Any]


@click.command()
@click.argument("what", metavar="CAPTURE|SESSION", default="latest")
@late_lake_option
@data_format
def check(project: "Callable[[], Project]", what: str, *, as_json: bool) -> int:
    """Check whether a recording is complete enough for an answer: a capture (by path) or a session of the lake.

    Each finding lists its evidence, the figures it invalidates or turns into bounds, and how to record again. Nothing
    is stored when a path is checked. Exits with 9 if the recording contradicts itself or its tool reports it as
    incomplete.
    """
    path = Path(what)
    if not path.exists() and (path.suffix or len(path.parts) > 1):
        raise UsageError(f"{what}: there is no such file or folder")
    documents = list(_of_path(path)) if path.exists() else [_of_session(project(), what)]
    if as_json:
        print_json(documents)
    else:
        for document in documents:
            _print(document)
    faults = [one for document in documents for one in document["findings"] if one["severity"] == "fault"]
    unread = all(document["unreadable"] for document in documents)
    return CaptureError.exit_code if unread else IncompleteError.exit_code if faults else 0


def _of_session(project: "Project", what: str) -> Document:
    """Read a session's completeness from the lake, after finishing its stages."""
    from aaco_pipeline.cli.finishing import finish_first

    lake = open_lake(project)
    session = lake.find_session(what)
    finish_first(project, lake, session, quiet=True)
    found = {name: lake.read(name, session).drop("session_id") for name in ("completeness", "completeness_findings")}
    return _document(session, found["completeness"].to_dicts(), found["completeness_findings"].to_dicts())


def _of_path(path: Path) -> Iterator[Document]:
    """Examine each run at a path in a temporary copy; yield one document per run, and one if there is no run."""
    from aaco_pipeline.analysis.completeness.files import unreadable
    from aaco_pipeline.analysis.completeness.findings import findings_frame
    from aaco_pipeline.resources.confinement.client import discover_runs

    found = discover_runs(path)
    for run in found.runs:
        of = str(path if len(found.runs) == 1 else run.folder)
        try:
            examined = _examined(run)
        except CaptureError as error:
            rows = findings_frame([unreadable(Path(of).name, str(error))], "aaco").to_dicts()
            yield _document(of, [], rows, unreadable=True)
            continue
        yield _document(of, examined.ledger.to_dicts(), examined.findings.to_dicts())
    if not found.runs:
        reasons = [unreadable(one.path.name, one.reason) for one in found.unread]
        rows = findings_frame(reasons or [unreadable(path.name, "nothing in it is a capture")], "aaco").to_dicts()
        yield _document(str(path), [], rows, unreadable=True)


def _examined(run: "Run") -> "Completeness":
    """Examine a run in a temporary copy that is created and read as in `aaco ingest`."""
    import tempfile

    from aaco_pipeline.analysis.completeness.examination import examined
    from aaco_pipeline.analysis.timeline.activities import everything
    from aaco_pipeline.resources.confinement.client import copy_capture, open_capture

    with tempfile.TemporaryDirectory(prefix="aaco-check-") as folder:
        raw = Path(folder) / "raw"
        raw.mkdir()
        copy_capture(run, raw, None)
        capture = open_capture(raw)
        tables = capture.tables()
        evidence = (*capture.evidence("files"), *capture.evidence("trace"))
        return examined(tables, everything(tables), evidence)


def _document(of: str, ledger: list[Document], findings: list[Document], *, unreadable: bool = False) -> Document:
    return {"of": of, "whole": not findings, "unreadable": unreadable, "findings": findings, "ledger": ledger}


def _print(document: Document) -> None:
    screen = console()
    say(document["of"])
    print_prose(screen, headline(document["findings"]))
    for one in document["findings"]:
        say("")
        grade = " (inferred)" if one["grade"] == "inferred" else ""
        print_prose(screen, f"{one['severity'].upper()}  {TITLES[one['finding']]}: {one['subject']}{grade}", "bold")
        print_prose(screen, one["evidence"])
        for line in consequences(one):
            print_prose(screen, line)
        print_prose(screen, f"To record it whole: {one['mend']}.")
    if document["ledger"]:
        names = [name.replace("_", " ") for name in _COUNTS]
        print_table(
            ("records", "process", "device", *names),
            [
                (
                    row["record_kind"].replace("_", " "),
                    *(None if row[name] is None else str(row[name]) for name in ("process_id", "device_id")),
                    *(grouped(row[name]) for name in _COUNTS),
                )
                for row in document["ledger"]
            ],
            numeric=names,
            spare=_SPARE,
        )
